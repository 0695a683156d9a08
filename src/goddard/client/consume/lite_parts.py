"""What a lite pull consumer has while it runs: its queues, how far each is read, and moving that.

Topics and queues are as brokers know them: with the namespace, if there is one. Belongs to the
event loop.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from goddard.client import broker_api
from goddard.client.consume.offsets import Offsets, master_address
from goddard.client.consume.poll_buffer import Handout
from goddard.client.consume.prefetch_queue import AssignedQueue
from goddard.client.consume.prefetcher import PullAhead, PullSettings
from goddard.client.consume.status import thread_stacks
from goddard.client.errors import ClientError
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.bodies import ConsumeType
from goddard.protocol.bodies_client import (
    ConsumerRunningInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from goddard.transport.tasks import Tasks

_logger: Final = logging.getLogger("goddard.client")

# As long as RocketMQ's push consumer waits before it reads a queue that was another member's.
_HANDOVER_MS: Final = 500
_MIB: Final = 1024 * 1024


class Running:
    """The parts of one consumer. ``prepare`` readies messages for the user; offsets are noted every
    ``auto_commit_ms``, or, if that is None, when the user says so."""

    def __init__(
        self,
        session: Session,
        group: str,
        offsets: Offsets,
        settings: PullSettings,
        *,
        auto_commit_ms: int | None,
        subscription_of: Callable[[str], SubscriptionData],
        prepare: Callable[[list[ReceivedMessage]], None],
    ) -> None:
        self.session = session
        self.offsets = offsets
        self.pulls = PullAhead(session, group, offsets, settings, subscription_of)
        self.handout = Handout(self.pulls, prepare, session.clock)
        self.tasks = Tasks(_logger, logging.DEBUG)
        self._group = group
        self._auto_commit_ms = auto_commit_ms
        self._next_commit_ms = 0
        self._started_ms = session.clock.now_ms()

    @property
    def queues(self) -> Mapping[MessageQueue, AssignedQueue]:
        return self.pulls.queues

    def assigned(self, queue: MessageQueue, *, is_shared: bool) -> AssignedQueue:
        """A queue that is read; ClientError for any other, which may come if queues are shared."""
        assigned = self.queues.get(queue)
        if assigned is None:
            maybe = ", may be rebalancing" if is_shared else ""
            raise ClientError(
                f"The message queue is not in assigned list{maybe}, message queue: {queue}"
            )
        return assigned

    # --- Taking and giving up ---------------------------------------------------------------------

    def read_only(self, wanted: Collection[MessageQueue]) -> None:
        """Read these queues and no others."""
        for queue in self.queues.keys() - wanted:
            self.give_up(queue)
        for queue in sorted(wanted):
            self.pulls.assign(queue)

    def take_share(self, topic: str, share: Collection[MessageQueue], *, has_others: bool) -> bool:
        """Read these queues of a topic and none else of it; True if that changed something."""
        held = {queue for queue in self.queues if queue.topic == topic}
        if held == share:
            return False
        for queue in sorted(held.difference(share)):
            self.give_up(queue)
        for queue in sorted(set(share) - held):
            self.offsets.forget(queue)
            # Who has a queue so far gets a moment to say how far it was consumed.
            self.pulls.assign(queue, delay_ms=_HANDOVER_MS if has_others else 0)
        return True

    def give_up(self, queue: MessageQueue) -> None:
        """Stop reading a queue, and let the next one to read it know how far it was read."""
        assigned = self.pulls.drop(queue)
        if assigned is None:
            return
        self.handout.left(assigned)
        if self._auto_commit_ms is not None and assigned.done_offset is not None:
            self.offsets.update(queue, assigned.done_offset)
        self.tasks.spawn(self._persist_and_forget(queue), f"offset of {queue}")

    async def _persist_and_forget(self, queue: MessageQueue) -> None:
        await self.offsets.persist(queue)
        if queue not in self.queues:
            self.offsets.forget(queue)

    # --- How far ----------------------------------------------------------------------------------

    def commit_in_time(self) -> None:
        """Auto commit, if it is time: the user wants more, so it is through with what it got."""
        if self._auto_commit_ms is None:
            return
        now_ms = self.session.clock.monotonic_ms()
        if now_ms >= self._next_commit_ms:
            self.handout.ask_on()
            self.note_done()
            self._next_commit_ms = now_ms + self._auto_commit_ms

    def note_done(self) -> None:
        """What the user is through with is consumed."""
        self.handout.catch_up()
        for queue, assigned in self.queues.items():
            if assigned.done_offset is not None:
                self.offsets.update(queue, assigned.done_offset)

    def given(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """How far queues were handed out, those of them of which anything was."""
        self.handout.catch_up()
        return {
            queue: assigned.given_offset
            for queue in queues
            if (assigned := self.queues.get(queue)) is not None
            and assigned.given_offset is not None
        }

    async def keep_offsets(self) -> None:
        """Write all offsets, at the end."""
        self.handout.put_back()
        if self._auto_commit_ms is not None:
            self.note_done()
        try:
            await self.offsets.flush(self.offsets.table())
        except GoddardError as error:
            _logger.warning("the offsets of %s could not be written: %s", self._group, error)

    async def ends(self, queue: MessageQueue) -> tuple[int, int]:
        """The offset of the oldest message of a queue, and that of the next one to come."""
        address = await master_address(self.session, queue)
        low = await broker_api.min_offset(self.session, address, queue)
        return low, await broker_api.max_offset(self.session, address, queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue that was stored at this time or later."""
        address = await master_address(self.session, queue)
        return await broker_api.search_offset(self.session, address, queue, timestamp_ms)

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading a queue elsewhere, if it is read."""
        assigned = self.queues.get(queue)
        if assigned is not None:
            self.handout.left(assigned)
            self.pulls.seek(queue, offset)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """The same for several, which then count as consumed up to there."""
        for queue, offset in offsets.items():
            if queue in self.queues:
                self.move(queue, offset)
                self.offsets.update(queue, offset)
                await self.offsets.persist(queue)

    # --- What tools ask ---------------------------------------------------------------------------

    def info(
        self, subscriptions: Collection[SubscriptionData], *, with_stacks: bool
    ) -> ConsumerRunningInfo:
        """What ``consumerStatus`` of mqadmin shows."""
        info = ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self.session.name_servers) + ";",
                "PROP_CONSUME_TYPE": ConsumeType.ACTIVELY.value,
                "PROP_CLIENT_VERSION": "V5_4_0",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            subscription_set=list(subscriptions),
        )
        for queue, assigned in self.queues.items():
            info.mq_table[queue.to_body()] = ProcessQueueInfo(
                commit_offset=self.offsets.cached(queue) or 0,
                cached_msg_count=assigned.waiting_count,
                cached_msg_size_in_mib=assigned.size_bytes // _MIB,
            )
        if with_stacks:
            info.jstack = thread_stacks()
        return info
