"""The verb ``startMonitoring``: a report about all groups every minute, until it is stopped."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.messaging.groups import group_of
from goddard.cli.mqadmin.messaging.pulling import pull_page
from goddard.cli.mqadmin.messaging.running_info import have_same_subscriptions, queue_problems
from goddard.client.errors import BrokerError, ClientCode, NoRouteError
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.bodies_admin import ConsumeOffsets
from goddard.protocol.codes import ResponseCode
from goddard.protocol.names import is_retry_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_ROUND_SECONDS: Final = 60
_PREFIX: Final = "[MONITOR] "
_NOTIFY: Final = "[MONITOR]  [NOTIFY] "
_RULE: Final = "=" * 41


@dataclass(frozen=True, slots=True)
class Undone:
    """What a group has not consumed of a topic; ``delay_ms`` is how old its position is."""

    group: str
    topic: str
    total: int
    most_in_one_queue: int
    delay_ms: int

    def __str__(self) -> str:
        return (
            f"UndoneMsgs [consumerGroup={self.group}, topic={self.topic}, "
            f"undoneMsgsTotal={self.total}, undoneMsgsSingleMQ={self.most_in_one_queue}, "
            f"undoneMsgsDelayTimeMills={self.delay_ms}]"
        )


async def start_monitoring(call: Call) -> None:
    while True:
        await monitor_once(call)
        sys.stdout.flush()
        await asyncio.sleep(_ROUND_SECONDS)


async def monitor_once(call: Call) -> None:
    """One report. Groups without online consumers are left out; standard error has those that
    cannot be asked.
    """
    admin = call.admin
    groups = sorted({group_of(one) for one in await admin.topics() if is_retry_topic(one)})
    call.line(f"{_PREFIX}{_RULE}beginRound")
    for lines in await in_parallel(groups, lambda group: _report(admin, group)):
        for line in lines:
            call.line(line)
    call.line(f"{_PREFIX}{_RULE}endRound")


async def _report(admin: "Admin", group: str) -> list[str]:
    lines = []
    try:
        await admin.consumer_connections(group)
        queues = (await admin.group_progress(group)).queues
        for topic in sorted({queue.topic for queue in queues}):
            own = {queue: at for queue, at in queues.items() if queue.topic == topic}
            undone = await _undone(admin, group, topic, own)
            lines.append(f"{_PREFIX}reportUndoneMsgs: {undone}")
        lines += await _notices(admin, group)
    except (BrokerError, NoRouteError) as error:
        if error.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ClientCode.NOT_FOUND_TOPIC):
            _print_unread(group, error)
    except GoddardError as error:
        _print_unread(group, error)
    return lines


def _print_unread(group: str, error: GoddardError) -> None:
    click.echo(f"mqadmin startMonitoring: group {group} is not read: {error}", err=True)


async def _undone(
    admin: "Admin", group: str, topic: str, queues: Mapping[MessageQueue, ConsumeOffsets]
) -> Undone:
    lags = [at.broker_offset - at.consumer_offset for at in queues.values()]
    delays = [
        await _delay_ms(admin, queue, at) for queue, at in queues.items() if at.last_timestamp > 0
    ]
    total = sum(lag for lag in lags if lag > 0)
    return Undone(group, topic, total, max([0, *lags]), max([0, *delays]))


async def _delay_ms(admin: "Admin", queue: MessageQueue, at: ConsumeOffsets) -> int:
    """The time between the last consumed message and the newest one."""
    if at.broker_offset <= 0:
        return 0
    page = await pull_page(admin, queue, at.broker_offset - 1, max_messages=1)
    return page.messages[0].store_timestamp_ms - at.last_timestamp if page.messages else 0


async def _notices(admin: "Admin", group: str) -> list[str]:
    infos = await admin.running_infos(group)
    if not infos:
        return []
    now_ms = admin.clock.now_ms()
    begin = f"{_NOTIFY}reportConsumerRunningInfo: ConsumerGroup: {group}, "
    lines = []
    if not have_same_subscriptions(infos, now_ms):
        lines.append(f"{begin}Subscription different")
    for client_id, info in sorted(infos.items()):
        problems = queue_problems(client_id, info, now_ms)
        lines += [f"{begin}ClientId: {client_id}, {problem}" for problem in problems]
    return lines
