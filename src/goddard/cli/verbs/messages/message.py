"""``goddard message``: find messages, send one, and follow what happened to one."""

import re
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from goddard.cli.terminal.completion import topic_argument
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import (
    FailedError,
    WrongUsageError,
    explained,
    is_utf8,
    one_line,
)
from goddard.cli.terminal.output import Table, TimeMs, Wide
from goddard.cli.terminal.target import Target, cluster_options, parse_pairs
from goddard.cli.terminal.times import Bound, Position, Range, parse_time
from goddard.cli.verbs.messages.consume import chosen_queue
from goddard.cli.verbs.messages.produce import message_maker, message_options, send_one
from goddard.cli.verbs.messages.scanning import Scan
from goddard.cli.verbs.messages.templates import body_fields, check_property_names, own_properties
from goddard.client.errors import InvalidMessageError, NoRouteError
from goddard.client.message import ReceivedMessage
from goddard.client.trace.records import (
    ConsumeEnd,
    ConsumeStart,
    RecallTrace,
    SendTrace,
    TraceRecord,
    TransactionEnd,
)
from goddard.client.values import SendResult
from goddard.errors import ConfigError

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_PLACE: Final = re.compile(r"(.+):([0-9]{1,9}):([0-9]{1,18})")
MESSAGE_COLUMNS: Final = (
    *("stored", "broker", "queue", "offset", "message id", "tags", "keys", "bytes"),
    Wide("offset message id"),
)


@click.group(cls=Group)
def message() -> None:
    """Find messages, send one, and follow what happened to one."""


def message_row(one: ReceivedMessage) -> tuple[object, ...]:
    """The values of MESSAGE_COLUMNS."""
    return (
        TimeMs(one.store_timestamp_ms),
        one.broker_name,
        one.queue_id,
        one.queue_offset,
        one.message_id,
        one.tags,
        one.keys,
        len(one.body),
        one.offset_message_id,
    )


def message_record(one: ReceivedMessage) -> dict[str, Any]:
    """Everything about one message."""
    return {
        "topic": one.topic,
        "message id": one.message_id,
        "offset message id": one.offset_message_id,
        "broker": one.broker_name,
        "queue": one.queue_id,
        "offset": one.queue_offset,
        "tags": one.tags,
        "keys": one.keys,
        "properties": own_properties(one),
        "sent": TimeMs(one.born_timestamp_ms),
        "sent from": one.born_host,
        "stored": TimeMs(one.store_timestamp_ms),
        "stored on": one.store_host,
        "reconsume times": one.reconsume_times,
        "transaction": one.get("TRAN_MSG"),
        **body_fields(one.body),
    }


@message.command()
@cluster_options
@topic_argument
@click.option("--id", "message_id", metavar="ID", help="Message id or offset message id.")
@click.option("--key", metavar="KEY", help="One of its keys.")
@click.option("--at", metavar="BROKER:QUEUE:OFFSET", help="Where it is stored.")
@click.option("--from", "from_text", metavar="TIME", help="Stored since: -1h, 2026-11-18T10:30.")
@click.option("--to", "to_text", metavar="TIME", help="Stored before.")
@click.option("--tag", metavar="TAGS", help="With --from: only these tags.")
@click.option("-c", "--count", type=click.IntRange(1), default=64, show_default=True)
@click.option("--groups", "with_groups", is_flag=True, help="Also whether groups consumed it.")
def find(target: Target, topic: str, **options: Any) -> None:
    """Find messages by id, key, place or time.

    If there is only one, it is shown with its body.
    """
    names = ("message_id", "key", "at", "from_text")
    given = [name for name in names if options[name] is not None]
    if len(given) != 1:
        raise WrongUsageError("give exactly one of --id, --key, --at and --from")
    if options["to_text"] is not None and given[0] in ("message_id", "at"):
        raise WrongUsageError("--to has no effect without --from or --key")
    if options["tag"] is not None and given[0] != "from_text":
        raise WrongUsageError("--tag has no effect without --from")

    async def work(admin: "Admin") -> tuple[list[ReceivedMessage], dict[str, Table], str | None]:
        found, incomplete = await _find(admin, topic, options)
        if len(found) > options["count"]:
            found.pop()
            target.output.done(f"only the first {len(found)}; --count shows more")
        more = {}
        if options["with_groups"] and len(found) == 1:
            tracks = await admin.message_track(found[0])
            rows = [(track.group, track.kind.value, track.problem or None) for track in tracks]
            columns = ("group", "state", "problem")
            more["groups"] = Table(columns, rows, empty="no group consumes the topic")
        return found, more, incomplete

    found, more, incomplete = target.run(work)
    if not found and incomplete is None:
        raise FailedError(f"no such message in {topic}; it may be deleted, or not in the index yet")
    if len(found) == 1:
        target.output.record({**message_record(found[0]), **more})
    else:
        target.output.table(Table(MESSAGE_COLUMNS, [message_row(one) for one in found]))
    if incomplete is not None:
        raise FailedError(incomplete)
    if options["with_groups"] and len(found) > 1:
        raise FailedError(f"--groups needs one message, not {len(found)}; choose one with --id")


async def _find(
    admin: "Admin", topic: str, options: dict[str, Any]
) -> tuple[list[ReceivedMessage], str | None]:
    """The messages, one more than --count if there are more, and what could not be read."""
    most = options["count"] + 1
    await admin.topic_route(topic)
    if options["message_id"] is not None:
        return [await admin.message(topic, options["message_id"])], None
    if options["at"] is not None:
        place = _PLACE.fullmatch(options["at"])
        if place is None:
            raise WrongUsageError(
                f"--at {options['at']!r} is not BROKER:QUEUE:OFFSET, as broker-a:0:120"
            )
        queue = await chosen_queue(admin, topic, f"{place[1]}:{place[2]}")
        assert queue is not None
        return [await admin.message_by_offset(queue, int(place[3]))], None
    now_ms = admin.clock.now_ms()
    begin_ms = parse_time(options["from_text"], now_ms) if options["from_text"] else 0
    end_ms = parse_time(options["to_text"], now_ms) if options["to_text"] else now_ms
    if options["key"] is not None:
        by_key = await admin.messages_by_key(
            topic, options["key"], max_count=most, begin_ms=begin_ms, end_ms=end_ms
        )
        return by_key.messages[:most], None
    wanted = Range(Position(Bound.TIME, begin_ms), Position(Bound.TIME, end_ms))
    scan = Scan(admin, topic, wanted, options["tag"])
    found = []
    async with aclosing(scan.messages()) as messages:
        async for one in messages:
            found.append(one)
            if len(found) == most:
                break
    return found, scan.failure_text()


def _in_utf8(_context: click.Context, _parameter: click.Parameter, text: str) -> bytes:
    if not is_utf8(text):
        raise click.BadParameter("it is not UTF-8; send bytes with 'goddard produce --input whole'")
    return text.encode()


@message.command()
@cluster_options
@topic_argument
@click.argument("body", callback=_in_utf8)
@message_options
def send(target: Target, topic: str, body: bytes, **options: Any) -> None:
    """Send one message with the text BODY."""
    try:
        check_property_names(parse_pairs(options["properties"], "--property"))
        made = message_maker(topic, options)(body)
    except ConfigError as error:
        raise explained(error) from error
    except InvalidMessageError as error:
        raise WrongUsageError(one_line(error.message)) from error

    async def work(admin: "Admin") -> SendResult:
        await admin.topic_route(topic)
        return await send_one(target, made)

    result = target.run(work)
    target.output.record(
        {
            "status": result.status.value,
            "message id": result.message_id,
            "offset message id": result.offset_message_id,
            "broker": result.queue.broker_name,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset,
        }
    )


@message.command()
@cluster_options
@click.argument("message_id", metavar="ID")
@click.option("--trace-topic", default="RMQ_SYS_TRACE_TOPIC", show_default=True)
def trace(target: Target, message_id: str, trace_topic: str) -> None:
    """Show what happened to a message, in the order of time.

    Its producer and consumers must have tracing enabled.
    """

    async def work(admin: "Admin") -> Sequence[TraceRecord]:
        try:
            return await admin.message_trace(message_id, trace_topic=trace_topic)
        except NoRouteError:
            return []  # nobody traces

    records = target.run(work)
    if not records:
        raise FailedError(
            f"no trace of {message_id}; do its producer and consumers trace, and is "
            "traceTopicEnable=true at the brokers?"
        )
    columns = ("time", "event", "group", "client or broker", "milliseconds", "result")
    target.output.table(Table(columns, timeline(records)))


def timeline(records: Sequence[TraceRecord]) -> list[tuple[Any, ...]]:
    """The rows of a trace, in the order of time; pure."""
    begins = {record.request_id: record for record in records if isinstance(record, ConsumeStart)}
    rows = [_row(record, begins) for record in records]
    return sorted(rows, key=lambda row: int(row[0]))


def _row(record: TraceRecord, begins: dict[str | None, ConsumeStart]) -> tuple[Any, ...]:
    if isinstance(record, SendTrace):
        result = "stored" if record.is_success else "failed"
        name = f"sent ({record.kind.name.lower()})"
        time_ms = TimeMs(record.timestamp_ms)
        return (time_ms, name, record.group, record.store_host, record.cost_ms, result)
    if isinstance(record, ConsumeStart):
        name = "consuming" if not record.retry_times else f"consuming, retry {record.retry_times}"
        return (TimeMs(record.timestamp_ms), name, record.group, None, None, None)
    if isinstance(record, ConsumeEnd):
        begin = begins.get(record.request_id)
        group = record.group or (begin.group if begin else None)
        ended_ms = record.timestamp_ms or (begin.timestamp_ms + record.cost_ms if begin else 0)
        result = record.outcome.name.lower().replace("_", " ")
        return (TimeMs(ended_ms), "consumed", group, None, record.cost_ms, result)
    if isinstance(record, TransactionEnd):
        name = "transaction check" if record.is_from_check else "transaction end"
        time_ms = TimeMs(record.timestamp_ms)
        return (time_ms, name, record.group, record.store_host, None, record.state)
    assert isinstance(record, RecallTrace)
    result = "recalled" if record.is_success else "failed"
    return (TimeMs(record.timestamp_ms), "recall", record.group, None, None, result)
