"""Administration of offsets: the ends of queues, and moving what a group has consumed.

Every function is a method of ``Admin``; see there. A docstring's brackets give the verb of mqadmin
and the request code.
"""

from collections.abc import Mapping

from goddard.client import broker_api
from goddard.client.admin.brokers import broker_config
from goddard.client.admin.groups import group_addresses, group_progress
from goddard.client.admin.requests import (
    AdminLink,
    ask,
    ask_each,
    broker_address,
    by_queue,
    each,
    queue_address,
    route,
    route_addresses,
)
from goddard.client.admin.topics import topic_stats
from goddard.client.admin.values import Rollback
from goddard.client.broker_api import Boundary
from goddard.client.errors import BrokerError, BrokerNotFoundError
from goddard.client.options import check_range
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_admin import (
    ConsumeOffsets,
    ConsumerOffsetTable,
    CorrectionOffsets,
    DelayOffsetTable,
)
from goddard.protocol.bodies_client import ResetOffsetBody
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers_admin import (
    CloneGroupOffsetRequest,
    QueryCorrectionOffsetRequest,
    ResetOffsetRequest,
)

_TO_THE_END_MS = -1
_NO_OFFSET = -1


# --- Ends of queues -------------------------------------------------------------------------------


async def max_offset(admin: AdminLink, queue: MessageQueue) -> int:
    """The offset that the queue's next message gets [30]."""
    address = await queue_address(admin, queue)
    return await broker_api.max_offset(admin.session, address, queue, timeout_ms=admin.timeout_ms)


async def min_offset(admin: AdminLink, queue: MessageQueue) -> int:
    """The offset of the oldest message that the queue has [31]."""
    address = await queue_address(admin, queue)
    return await broker_api.min_offset(admin.session, address, queue, timeout_ms=admin.timeout_ms)


async def search_offset(
    admin: AdminLink,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    boundary: Boundary = Boundary.LOWER,
) -> int:
    """The offset of the first message stored at a time or later [29]."""
    address = await queue_address(admin, queue)
    return await broker_api.search_offset(
        admin.session,
        address,
        queue,
        timestamp_ms,
        boundary=boundary,
        timeout_ms=admin.timeout_ms,
    )


async def earliest_store_time_ms(admin: AdminLink, queue: MessageQueue) -> int:
    """When the queue's oldest message was stored; -1 if it has none [32]."""
    address = await queue_address(admin, queue)
    return await broker_api.earliest_store_time_ms(
        admin.session, address, queue, timeout_ms=admin.timeout_ms
    )


# --- Of a group -----------------------------------------------------------------------------------


async def consumer_offset(admin: AdminLink, group: str, queue: MessageQueue) -> int | None:
    """The offset that a group has consumed a queue up to; None if it has none [14]."""
    address = await queue_address(admin, queue)
    return await broker_api.query_consumer_offset(
        admin.session,
        address,
        group,
        queue,
        set_zero_if_not_found=False,
        timeout_ms=admin.timeout_ms,
    )


async def update_consumer_offset(
    admin: AdminLink, group: str, queue: MessageQueue, offset: int
) -> None:
    """Note an offset for a group, as its consumers do [15].

    Consumers that are online do not notice and soon note their own again: see ``reset_offset``.
    """
    address = await queue_address(admin, queue)
    await broker_api.update_consumer_offset(
        admin.session, address, group, queue, offset, timeout_ms=admin.timeout_ms
    )


async def reset_offset(admin: AdminLink, group: str, queue: MessageQueue, offset: int) -> None:
    """Have a group consume a queue from an offset on [resetOffsetByTime -b -q -o, 15 and 222].

    Online consumers follow if the broker resets by itself (useServerSideResetOffset, which is the
    default in 5.3); stop them first at others. They learn of it from the answer to the pull that
    waits: when the next message comes, at the latest after its 15 seconds.
    """
    await reset_offsets(admin, group, {queue: offset})


async def reset_offsets(admin: AdminLink, group: str, offsets: Mapping[MessageQueue, int]) -> None:
    """Have a group consume several queues from offsets on, as ``reset_offset`` does [15, 222]."""
    for offset in offsets.values():
        check_range("offset", offset, 0, 2**63 - 1)
    by_address: dict[str, dict[MessageQueue, int]] = {}
    for topic in sorted({queue.topic for queue in offsets}):
        found = route_addresses(await route(admin, topic))
        address_of = {name: address for address, name in found.items()}
        for queue, offset in offsets.items():
            if queue.topic == topic:
                if queue.broker_name not in address_of:
                    raise BrokerNotFoundError(queue.broker_name)
                by_address.setdefault(address_of[queue.broker_name], {})[queue] = offset

    async def of_one(address: str) -> None:
        # Without this property 222 knows nothing of queues, and would reset all of them by time.
        config = await broker_config(admin, address)
        resets_itself = config.get("useServerSideResetOffset") == "true"
        for queue, offset in by_address[address].items():
            await broker_api.update_consumer_offset(
                admin.session, address, group, queue, offset, timeout_ms=admin.timeout_ms
            )
            if resets_itself:
                header = ResetOffsetRequest(
                    group=group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    offset=offset,
                    timestamp=0,
                    is_force=True,
                )
                await ask(admin, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    await each(by_address, of_one)


async def reset_offsets_by_time(
    admin: AdminLink,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    force: bool = True,
    cluster: str | None = None,
) -> dict[MessageQueue, int]:
    """Have a group consume a topic from a time on [resetOffsetByTime, 222].

    Without ``force`` offsets only move back, never over messages that are not consumed yet.
    Brokers that leave it to the consumers need them online; for groups that are not, offsets are
    set as by ``reset_offsets_by_time_old``. Gives the new offsets.
    """
    found = route_addresses(await route(admin, topic), cluster)
    header = ResetOffsetRequest(
        group=group, topic=topic, offset=_NO_OFFSET, timestamp=timestamp_ms, is_force=force
    )

    async def of_one(address: str) -> dict[MessageQueue, int]:
        try:
            response = await ask(admin, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        except BrokerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            rollbacks = await _roll_back(
                admin, address, found[address], group, topic, timestamp_ms, force
            )
            return {rollback.queue: rollback.rollback_offset for rollback in rollbacks}
        return by_queue((await broker_api.read(response, ResetOffsetBody)).offset_table)

    answers = await each(found, of_one)
    return dict(sorted(item for offsets in answers.values() for item in offsets.items()))


async def skip_accumulated(
    admin: AdminLink, group: str, topic: str, *, force: bool = True, cluster: str | None = None
) -> dict[MessageQueue, int]:
    """Have a group consume only messages sent from now on [skipAccumulatedMessage, 222]."""
    return await reset_offsets_by_time(
        admin, group, topic, _TO_THE_END_MS, force=force, cluster=cluster
    )


async def reset_offsets_by_time_old(
    admin: AdminLink, group: str, topic: str, timestamp_ms: int, *, force: bool = True
) -> list[Rollback]:
    """Set a group's offsets to those of a time, without asking its consumers
    [resetOffsetByTimeOld, 208, 29, 15].

    For groups that are not online: consumers would note their own offsets again. Below 0 is the
    end.
    """
    found = route_addresses(await route(admin, topic))

    async def of_one(address: str) -> list[Rollback]:
        return await _roll_back(admin, address, found[address], group, topic, timestamp_ms, force)

    answers = await each(found, of_one)
    return [rollback for rollbacks in answers.values() for rollback in rollbacks]


async def _roll_back(
    admin: AdminLink,
    address: str,
    broker_name: str,
    group: str,
    topic: str,
    timestamp_ms: int,
    force: bool,
) -> list[Rollback]:
    progress = await group_progress(admin, group, broker=address)
    standing = {queue: at for queue, at in progress.queues.items() if queue.topic == topic}
    if not standing:
        stats = await topic_stats(admin, topic, broker=address)
        standing = {
            queue: ConsumeOffsets(broker_offset=ends.max_offset, consumer_offset=ends.min_offset)
            for queue, ends in stats.queues.items()
        }
    rollbacks: list[Rollback] = []
    for queue, at in standing.items():
        if timestamp_ms < 0:
            wanted = await broker_api.max_offset(
                admin.session, address, queue, timeout_ms=admin.timeout_ms
            )
        else:
            wanted = await broker_api.search_offset(
                admin.session, address, queue, timestamp_ms, timeout_ms=admin.timeout_ms
            )
        chosen = rollback_offset(wanted, at.consumer_offset, force=force)
        if force or wanted <= at.consumer_offset:
            await broker_api.update_consumer_offset(
                admin.session, address, group, queue, chosen, timeout_ms=admin.timeout_ms
            )
        rollbacks.append(Rollback(queue, at.broker_offset, at.consumer_offset, wanted, chosen))
    return rollbacks


def rollback_offset(timestamp_offset: int, consumer_offset: int, *, force: bool) -> int:
    """Where a group goes on: at the offset of the time, unless that would skip messages unasked."""
    return timestamp_offset if force else min(timestamp_offset, consumer_offset)


async def clone_offsets(
    admin: AdminLink,
    source_group: str,
    target_group: str,
    topic: str | None = None,
    *,
    offline: bool = False,
) -> list[str]:
    """Give a group the offsets of another, of one topic or all [cloneGroupOffset, 314].

    ``offline`` takes every topic that the source has offsets for, else only those that its
    consumers want now. Gives the addresses of the brokers that did it.
    """
    header = CloneGroupOffsetRequest(
        src_group=source_group, dest_group=target_group, topic=topic, offline=offline
    )
    found = await group_addresses(admin, source_group, topic=topic)
    return await ask_each(admin, found, RequestCode.CLONE_GROUP_OFFSET, header)


async def correction_offsets(
    admin: AdminLink, topic: str, compare_group: str, *, filter_groups: str = "", broker: str
) -> dict[int, int]:
    """By queue number, the smallest offset of the groups of a topic on a broker [308]."""
    header = QueryCorrectionOffsetRequest(
        filter_groups=filter_groups, compare_group=compare_group, topic=topic
    )
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.QUERY_CORRECTION_OFFSET, header)
    return (await broker_api.read(response, CorrectionOffsets)).correction_offsets


# --- Whole tables ---------------------------------------------------------------------------------


async def consumer_offsets(admin: AdminLink, broker: str) -> dict[tuple[str, str], dict[int, int]]:
    """Every offset that a broker keeps: by topic and group, then queue number [43]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.GET_ALL_CONSUMER_OFFSET)
    table = (await broker_api.read(response, ConsumerOffsetTable)).offset_table
    found: dict[tuple[str, str], dict[int, int]] = {}
    for key, offsets in table.items():
        topic, _, group = key.partition("@")
        found[topic, group] = dict(offsets)
    return found


async def delay_offsets(admin: AdminLink, broker: str) -> dict[int, int]:
    """How far a broker has delivered the messages of each delay level [45]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.GET_ALL_DELAY_OFFSET)
    return dict((await broker_api.read(response, DelayOffsetTable)).offset_table)
