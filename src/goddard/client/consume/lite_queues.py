"""The queues of a lite pull consumer: how they are taken, pulled from and released, and where they
are read from.

Topics and queues are as brokers know them: with the namespace, if there is one. Belongs to the
event loop.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from goddard.client.consume.assignment import Assignment
from goddard.client.consume.offsets import Offsets
from goddard.client.consume.options import MIB, LiteOptions, QueuesListener
from goddard.client.consume.poll_buffer import PollBuffer
from goddard.client.consume.pull import PullAnswer, PullResult
from goddard.client.consume.pull_loop import PullLoop
from goddard.client.consume.queue_buffer import PrefetchQueue, PullLimits
from goddard.client.errors import NoRouteError
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.transport.tasks import Tasks

_logger: Final = logging.getLogger("goddard.client")


class LiteQueues(Assignment[PrefetchQueue]):
    """``prepare`` readies messages for the user; ``changed`` is called when the queues of a topic
    have changed. ``pulls`` is set by the owner."""

    pulls: PullLoop[PrefetchQueue]

    def __init__(
        self,
        session: Session,
        group: str,
        options: LiteOptions,
        *,
        offsets: Offsets,
        subscription_of: Callable[[str], SubscriptionData],
        prepare: Callable[[list[ReceivedMessage]], None],
        changed: Callable[[str, list[MessageQueue], list[MessageQueue]], None],
    ) -> None:
        super().__init__(session, group, options.strategy)
        self._options = options
        self._offsets = offsets
        self._tell_changed = changed
        self.subscription_of = subscription_of
        self.limits = PullLimits(
            options.pull_threshold_for_queue,
            options.pull_threshold_mib_for_queue * MIB,
            options.max_span,
            options.pull_threshold_for_all,
        )
        self.poll_buffer = PollBuffer(prepare, self._made_room, session.clock)
        self._next_commit_ms = 0
        self._clock = session.clock
        self._tasks = Tasks(_logger, logging.DEBUG)

    # --- Pulling (PullHandler) --------------------------------------------------------------------

    def may_pull(self, buffer: PrefetchQueue) -> bool:
        return not buffer.is_paused and self.limits.has_room(buffer, self._waiting_count())

    async def lock(self, buffer: PrefetchQueue) -> bool:
        return True

    def may_prefetch(self, buffer: PrefetchQueue, answer: PullAnswer, offset: int) -> bool:
        return not buffer.is_paused and self.limits.has_room(
            buffer,
            self._waiting_count(),
            more_count=self._options.pull_batch_size,
            more_bytes=answer.size_bytes,
            more_span=answer.next_offset - offset,
        )

    def commit_offset(self, queue: MessageQueue) -> int | None:
        return None

    def take(self, buffer: PrefetchQueue, result: PullResult, spent_ms: int) -> None:
        self.poll_buffer.add(buffer, result.messages, result.next_offset)

    def offset_is_illegal(self, buffer: PrefetchQueue, result: PullResult) -> bool:
        _logger.warning(
            "%s has no offset %s; reading continues at %d",
            buffer.queue,
            buffer.next_offset,
            result.next_offset,
        )
        return True

    def failed(self, buffer: PrefetchQueue, error: GoddardError) -> None:
        """Nothing else depends on it."""

    def lost(self, buffer: PrefetchQueue) -> None:
        """No locks are needed."""

    def _waiting_count(self) -> int:
        return sum(buffer.waiting_count for buffer in self.owned.values())

    def _made_room(self) -> None:
        self.pulls.wake_all()

    # --- Taking and releasing (Assignment) --------------------------------------------------------

    async def _acquire(self, queues: list[MessageQueue]) -> list[PrefetchQueue]:
        for queue in queues:
            # The group may have moved on since this consumer last read it.
            self._offsets.forget(queue)
        return [self._add(queue) for queue in queues]

    async def _release(self, buffer: PrefetchQueue) -> bool:
        self.release(buffer)
        return True

    async def _changed(
        self, topic: str, queues: list[MessageQueue], ours: list[MessageQueue]
    ) -> None:
        self._tell_changed(topic, queues, ours)

    def _is_pulling(self, buffer: PrefetchQueue) -> bool:
        return self.pulls.is_pulling(buffer)

    def _start(self, buffer: PrefetchQueue, delay_ms: int) -> None:
        self.pulls.start(buffer, delay_ms)

    def read_only(self, queues: Collection[MessageQueue]) -> None:
        """Read these queues and no others, whatever the group does."""
        for queue, buffer in list(self.owned.items()):
            if queue not in queues:
                self.release(buffer)
        for queue in sorted(queues):
            if queue not in self.owned:
                self._start(self._add(queue), 0)

    def release_topic(self, topic: str) -> None:
        """Release the queues of a topic now."""
        for buffer in list(self.owned.values()):
            if buffer.queue.topic == topic:
                self.release(buffer)

    def release(self, buffer: PrefetchQueue) -> None:
        """Stop reading a queue, and write its offset for the member that reads it next."""
        if self.owned.get(buffer.queue) is not buffer:
            return
        self._stop(buffer)
        del self.owned[buffer.queue]
        if self._options.auto_commit and buffer.consumed_offset is not None:
            self._offsets.update(buffer.queue, buffer.consumed_offset)
        self._tasks.spawn(self._persist_and_forget(buffer.queue), f"offset of {buffer.queue}")
        self.pulls.wake_all()

    def _add(self, queue: MessageQueue) -> PrefetchQueue:
        buffer = self.owned[queue] = PrefetchQueue(queue)
        return buffer

    def _stop(self, buffer: PrefetchQueue) -> None:
        self.pulls.cancel(buffer)
        self.poll_buffer.forget(buffer)
        buffer.drop()

    async def _persist_and_forget(self, queue: MessageQueue) -> None:
        await self._offsets.persist(queue)
        if queue not in self.owned:
            self._offsets.forget(queue)

    # --- Positions --------------------------------------------------------------------------------

    def pause(self, queue: MessageQueue) -> None:
        """Pull nothing more of a queue; what was pulled is delivered."""
        if (buffer := self.owned.get(queue)) is not None:
            buffer.is_paused = True

    def resume(self, queue: MessageQueue) -> None:
        if (buffer := self.owned.get(queue)) is not None:
            buffer.is_paused = False
            self.pulls.wake(buffer)

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading a queue at another offset, if it is read; what was pulled is dropped."""
        old = self.owned.get(queue)
        if old is None:
            return
        self._stop(old)
        buffer = self.owned[queue] = PrefetchQueue(queue)
        buffer.is_paused = old.is_paused
        buffer.start(offset)
        self._start(buffer, 0)
        # What was dropped has made room.
        self.pulls.wake_all()

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on reading queues at other offsets, up to which they count as consumed."""
        for queue, offset in offsets.items():
            if queue in self.owned:
                self.move(queue, offset)
                self._offsets.update(queue, offset)
                await self._offsets.persist(queue)

    # --- Offsets ----------------------------------------------------------------------------------

    def commit_in_time(self) -> None:
        """Auto commit, if it is time: the user asks for more, so it is done with what it got."""
        if not self._options.auto_commit:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_commit_ms:
            self.poll_buffer.mark_delivered_consumed()
            self._note_consumed()
            self._next_commit_ms = now_ms + self._options.auto_commit_interval_ms

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the consumed offsets of queues, until the user asks for more messages."""
        for queue, offset in offsets.items():
            self.owned[queue].consumed_offset = offset
            self._offsets.update(queue, offset)

    def delivered_offsets(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The offsets after the delivered messages, of those queues that have any."""
        self.poll_buffer.catch_up()
        return {
            queue: buffer.delivered_offset
            for queue in queues
            if (buffer := self.owned.get(queue)) is not None and buffer.delivered_offset is not None
        }

    def _note_consumed(self) -> None:
        self.poll_buffer.catch_up()
        for queue, buffer in self.owned.items():
            if buffer.consumed_offset is not None:
                self._offsets.update(queue, buffer.consumed_offset)

    # --- The end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Pull no more, and end every wait for messages."""
        self.poll_buffer.close()
        try:
            await self._close()
        finally:
            await self.pulls.close()

    async def write_offsets(self) -> None:
        """Write all offsets, at the end."""
        self.poll_buffer.put_back()
        if self._options.auto_commit:
            self._note_consumed()
        await self._tasks.stop()
        try:
            await self._offsets.flush(self._offsets.table())
        except GoddardError as error:
            _logger.warning("the offsets of %s could not be written: %s", self._group, error)


class QueueChanges:
    """Calls listeners when the queues of a topic change, whether it is subscribed to or not."""

    def __init__(self) -> None:
        self._listeners: dict[str, QueuesListener] = {}
        self._seen: dict[str, set[MessageQueue]] = {}

    def listen(self, topic: str, listener: QueuesListener) -> None:
        """Set the listener for a topic; it replaces an earlier one."""
        self._listeners[topic] = listener

    async def check(self, session: Session) -> None:
        """Compare with the last check; the first one only remembers."""
        for topic, listener in list(self._listeners.items()):
            try:
                now = set(await session.subscribe_queues(topic, refresh=True))
            except NoRouteError as error:
                _logger.warning("the queues of %s are unknown: %s", topic, error)
                continue
            before = self._seen.get(topic)
            self._seen[topic] = now
            if before is None or now == before:
                continue
            try:
                listener(topic, now)
            except Exception:
                _logger.exception("the listener for the queues of %s failed", topic)
