"""Verbs that move the offsets of groups."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from goddard.cli.mqadmin.call import Call
from goddard.cli.mqadmin.java_text import front
from goddard.cli.mqadmin.options import Options
from goddard.client.values import MessageQueue

_OFFSETS: Final = "%-40s  %-40s  %-40s"
_NOW: Final = "now"
_TIME_FORMAT: Final = "%Y-%m-%d#%H:%M:%S:%f"


def time_of(options: Options, name: str, now_ms: int) -> int:
    """Milliseconds since 1970 of ``now``, of such a number, or of ``yyyy-MM-dd#HH:mm:ss:SSS``."""
    text = options.text(name)
    if text == _NOW:
        return now_ms
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        moment = datetime.strptime(text, _TIME_FORMAT).astimezone()
    except ValueError:
        raise options.wrong(
            name, f"takes now, milliseconds since 1970 or yyyy-MM-dd#HH:mm:ss:SSS, not {text!r}"
        ) from None
    return round(moment.timestamp() * 1000)


async def reset_by_time(call: Call) -> None:
    options = call.options
    group, topic = options.text("g"), options.text("t")
    time_ms = time_of(options, "s", call.admin.clock.now_ms())
    shown = f"timestamp(string)[{options.text('s')}], timestamp(long)[{time_ms}]"
    if "b" in options and "q" in options:
        await _reset_queue(call, group, topic, time_ms, shown)
        return
    force = options.boolean("f", True)
    offsets = await call.admin.reset_offsets_by_time(
        group, topic, time_ms, force=force, cluster=None
    )
    call.line(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
        f"force[{str(force).lower()}], {shown}"
    )
    _print_offsets(call, offsets)


async def _reset_queue(call: Call, group: str, topic: str, time_ms: int, shown: str) -> None:
    options, number = call.options, call.options.number("q", least=0)
    address = await call.broker()
    queue = MessageQueue(topic, await call.admin.broker_name(address), number)
    call.line(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
        f"queueId[{number}], broker[{address}], {shown}"
    )
    offset = options.optional_number("o")
    if offset is None:
        offset = await call.admin.search_offset(queue, time_ms)
    await call.admin.reset_offset(group, queue, offset)
    call.line(f"reset consumer offset to {offset}")


async def skip_accumulated(call: Call) -> None:
    options = call.options
    offsets = await call.admin.skip_accumulated(
        options.text("g"), options.text("t"), force=options.boolean("f", True)
    )
    _print_offsets(call, offsets)


def _print_offsets(call: Call, offsets: Mapping[MessageQueue, int]) -> None:
    call.row(_OFFSETS, "#brokerName", "#queueId", "#offset")
    for queue, offset in offsets.items():
        call.row(_OFFSETS, front(queue.broker_name, 32), queue.queue_id, offset)


async def clone_group_offset(call: Call) -> None:
    options = call.options
    source, target, topic = options.text("s"), options.text("d"), options.text("t")
    await call.admin.topic_route(topic)
    await call.admin.copy_offsets(source, target)
    call.text(
        f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
    )
