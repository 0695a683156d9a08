"""Administration of offsets: of queues, of groups, and moving groups.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from collections.abc import Mapping

from goddard.client import broker_api, queries
from goddard.client.admin.groups import GroupMethods
from goddard.client.admin.requests import ask, ask_each, broker_address, by_queue, group_addresses
from goddard.client.admin.values import Rollback
from goddard.client.arguments import Offset, Text, TimeOrEndMs
from goddard.client.broker_api import Boundary
from goddard.client.checks import check_range
from goddard.client.errors import BrokerError, BrokerNotFoundError
from goddard.client.queries import each, queue_address, route, route_addresses
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_admin import (
    ConsumeOffsets,
    ConsumerOffsetTable,
    CorrectionOffsets,
    DelayOffsetTable,
)
from goddard.protocol.bodies_client import ResetOffsetBody
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers.admin import (
    CloneGroupOffsetRequest,
    QueryCorrectionOffsetRequest,
    ResetOffsetRequest,
)

_TO_THE_END_MS = -1
_NO_OFFSET = -1


def rollback_offset(timestamp_offset: int, consumer_offset: int, *, force: bool) -> int:
    """The new offset of a group: that of the time, but without ``force`` never beyond the current
    one.
    """
    return timestamp_offset if force else min(timestamp_offset, consumer_offset)


class OffsetMethods(GroupMethods):
    """Read the offsets of queues and groups, and move groups."""

    # Of queues

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of the queue gets [30]."""
        return await queries.max_offset(self, queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that the queue has [31]."""
        return await queries.min_offset(self, queue)

    async def search_offset(
        self,
        queue: MessageQueue,
        timestamp_ms: TimeOrEndMs,
        *,
        boundary: Boundary = Boundary.LOWER,
    ) -> int:
        """The offset of the first message that was stored at a time or later [29]."""
        return await queries.search_offset(self, queue, timestamp_ms, boundary)

    async def earliest_store_time_ms(self, queue: MessageQueue) -> int:
        """When the oldest message of the queue was stored; -1 if it has none [32]."""
        return await queries.earliest_store_time_ms(self, queue)

    # Of groups

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The offset up to which a group has consumed a queue; None if it has no offset [14]."""
        address = await queue_address(self, queue)
        return await broker_api.query_consumer_offset(
            self.session,
            address,
            group,
            queue,
            set_zero_if_not_found=False,
            timeout_ms=self.timeout_ms,
        )

    async def update_consumer_offset(self, group: str, queue: MessageQueue, offset: Offset) -> None:
        """Commit an offset for a group, as its consumers do [15].

        Online consumers ignore it and soon commit their own offset again: see ``reset_offset``.
        """
        address = await queue_address(self, queue)
        await broker_api.update_consumer_offset(
            self.session, address, group, queue, offset, timeout_ms=self.timeout_ms
        )

    async def reset_offset(self, group: str, queue: MessageQueue, offset: Offset) -> None:
        """Have a group consume a queue from an offset on [resetOffsetByTime -b -q -o, 15 and 222].

        Online consumers follow if the broker resets offsets itself (useServerSideResetOffset, the
        default in 5.3); with other brokers, stop the consumers first. Consumers learn of the reset
        from the response to their pending pull: when the next message arrives, or after 15 seconds
        at the latest.
        """
        await self.reset_offsets(group, {queue: offset})

    async def reset_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Have a group consume several queues from offsets on; see ``reset_offset`` [15, 222]."""
        for offset in offsets.values():
            check_range("offset", offset, 0, 2**63 - 1)
        by_address: dict[str, dict[MessageQueue, int]] = {}
        for topic in sorted({queue.topic for queue in offsets}):
            found = route_addresses(await route(self, topic))
            address_of = {name: address for address, name in found.items()}
            for queue, offset in offsets.items():
                if queue.topic == topic:
                    if queue.broker_name not in address_of:
                        raise BrokerNotFoundError(queue.broker_name)
                    by_address.setdefault(address_of[queue.broker_name], {})[queue] = offset

        async def of_one(address: str) -> None:
            # Without this property, request 222 ignores the queue and resets all queues by time.
            config = await self.broker_config(address)
            resets_itself = config.get("useServerSideResetOffset") == "true"
            for queue, offset in by_address[address].items():
                await broker_api.update_consumer_offset(
                    self.session, address, group, queue, offset, timeout_ms=self.timeout_ms
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
                    await ask(self, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

        await each(by_address, of_one)

    async def reset_offsets_by_time(
        self,
        group: str,
        topic: str,
        timestamp_ms: TimeOrEndMs,
        *,
        force: bool = True,
        cluster: str | None = None,
    ) -> dict[MessageQueue, int]:
        """Have a group consume a topic from a time on [resetOffsetByTime, 222].

        Without ``force``, offsets only move back and never skip messages. Brokers that leave the
        reset to the consumers need online consumers; for groups without them, offsets are set as by
        ``reset_offsets_by_time_old``. Returns the new offsets.
        """
        found = route_addresses(await route(self, topic), cluster)
        header = ResetOffsetRequest(
            group=group, topic=topic, offset=_NO_OFFSET, timestamp=timestamp_ms, is_force=force
        )

        async def of_one(address: str) -> dict[MessageQueue, int]:
            try:
                response = await ask(
                    self, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header
                )
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                rollbacks = await self._roll_back(
                    address, found[address], group, topic, timestamp_ms, force
                )
                return {rollback.queue: rollback.rollback_offset for rollback in rollbacks}
            return by_queue((await broker_api.read(response, ResetOffsetBody)).offset_table)

        answers = await each(found, of_one)
        return dict(sorted(item for offsets in answers.values() for item in offsets.items()))

    async def skip_accumulated(
        self, group: str, topic: str, *, force: bool = True, cluster: str | None = None
    ) -> dict[MessageQueue, int]:
        """Have a group consume only messages sent from now on [skipAccumulatedMessage, 222]."""
        return await self.reset_offsets_by_time(
            group, topic, _TO_THE_END_MS, force=force, cluster=cluster
        )

    async def reset_offsets_by_time_old(
        self, group: str, topic: str, timestamp_ms: TimeOrEndMs, *, force: bool = True
    ) -> list[Rollback]:
        """Set the offsets of a group to those of a time, without telling its consumers
        [resetOffsetByTimeOld; 208, 29, 15].

        For groups without online consumers, which would commit their own offsets again. A negative
        time is the end of each queue.
        """
        found = route_addresses(await route(self, topic))

        async def of_one(address: str) -> list[Rollback]:
            return await self._roll_back(address, found[address], group, topic, timestamp_ms, force)

        answers = await each(found, of_one)
        return [rollback for rollbacks in answers.values() for rollback in rollbacks]

    async def _roll_back(
        self,
        address: str,
        broker_name: str,
        group: str,
        topic: str,
        timestamp_ms: int,
        force: bool,
    ) -> list[Rollback]:
        progress = await self.group_progress(group, broker=address)
        consumed = {queue: at for queue, at in progress.queues.items() if queue.topic == topic}
        if not consumed:
            stats = await self.topic_stats(topic, broker=address)
            consumed = {
                queue: ConsumeOffsets(
                    broker_offset=ends.max_offset, consumer_offset=ends.min_offset
                )
                for queue, ends in stats.queues.items()
            }
        rollbacks: list[Rollback] = []
        for queue, at in consumed.items():
            if timestamp_ms < 0:
                wanted = await broker_api.max_offset(
                    self.session, address, queue, timeout_ms=self.timeout_ms
                )
            else:
                wanted = await broker_api.search_offset(
                    self.session, address, queue, timestamp_ms, timeout_ms=self.timeout_ms
                )
            chosen = rollback_offset(wanted, at.consumer_offset, force=force)
            if force or wanted <= at.consumer_offset:
                await broker_api.update_consumer_offset(
                    self.session, address, group, queue, chosen, timeout_ms=self.timeout_ms
                )
            rollbacks.append(Rollback(queue, at.broker_offset, at.consumer_offset, wanted, chosen))
        return rollbacks

    async def clone_offsets(
        self,
        source_group: str,
        target_group: str,
        topic: str | None = None,
        *,
        offline: bool = False,
    ) -> list[str]:
        """Copy the offsets of a group to another, for one topic or all [cloneGroupOffset, 314].

        ``offline`` copies all topics that the source has offsets for; otherwise only topics that
        its online consumers subscribe to are copied. Returns the addresses of the brokers that did
        it.
        """
        header = CloneGroupOffsetRequest(
            src_group=source_group, dest_group=target_group, topic=topic, offline=offline
        )
        found = await group_addresses(self, source_group, topic=topic)
        return await ask_each(self, found, RequestCode.CLONE_GROUP_OFFSET, header)

    async def copy_offsets(self, source_group: str, target_group: str) -> dict[MessageQueue, int]:
        """Set the offsets of a group to those that another has consumed to, in all topics
        [cloneGroupOffset; 208, 15].

        Unlike ``clone_offsets``, it needs no consumers and no support by the broker. Consumers of
        the target group that are online commit their own offsets again.
        """
        progress = await self.group_progress(source_group)
        offsets = {
            queue: at.consumer_offset
            for queue, at in progress.queues.items()
            if at.consumer_offset >= 0
        }
        for queue, offset in offsets.items():
            await self.update_consumer_offset(target_group, queue, offset)
        return offsets

    async def correction_offsets(
        self, topic: str, compare_group: str, *, filter_groups: Text = "", broker: str
    ) -> dict[int, int]:
        """The smallest offsets of the groups of a topic on a broker, by queue number [308]."""
        header = QueryCorrectionOffsetRequest(
            filter_groups=filter_groups, compare_group=compare_group, topic=topic
        )
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.QUERY_CORRECTION_OFFSET, header)
        return (await broker_api.read(response, CorrectionOffsets)).correction_offsets

    # Whole tables

    async def consumer_offsets(self, broker: str) -> dict[tuple[str, str], dict[int, int]]:
        """All offsets that a broker keeps, by topic and group, then by queue number [43]."""
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = (await broker_api.read(response, ConsumerOffsetTable)).offset_table
        found: dict[tuple[str, str], dict[int, int]] = {}
        for key, offsets in table.items():
            topic, _, group = key.partition("@")
            found[topic, group] = dict(offsets)
        return found

    async def delay_offsets(self, broker: str) -> dict[int, int]:
        """How far a broker has delivered the messages of each delay level [45]."""
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_ALL_DELAY_OFFSET)
        return dict((await broker_api.read(response, DelayOffsetTable)).offset_table)
