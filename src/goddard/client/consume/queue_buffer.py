"""The messages that a consumer has pulled of one queue, and how far they are consumed. Pure.

``ProcessQueue`` is a push consumer's, ``PrefetchQueue`` a lite pull consumer's; they share what
pulling needs. A buffer that was dropped stays dropped: a queue that moves to another offset gets a
new buffer, and results that still come for the old one are ignored.

The event loop owns buffers. Threads of listeners only read ``is_dropped`` and ``is_locked``. Times
are ``now_ms`` of a clock that never jumps.

Offsets grow along a queue. So a ProcessQueue keeps its messages in a dict in order of arrival, and
their offsets in a deque whose head is the oldest message that is not consumed. Everything before
that may be committed: a message is never committed before all that precede it are consumed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_client import ProcessQueueInfo

# Brokers keep a lock for 60 s, and it is renewed every 20 s; after this it is not relied on.
LOCK_VALID_MS: Final = 30_000

_MIB: Final = 1024 * 1024


class QueueBuffer:
    """What pulling knows of a queue."""

    __slots__ = ("is_dropped", "last_pull_ms", "next_offset", "queue", "size_bytes")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        # The offset of the next pull, once it is known.
        self.next_offset: int | None = None
        self.last_pull_ms: int | None = None
        self.size_bytes = 0
        self.is_dropped = False

    def __len__(self) -> int:
        """How many messages it holds."""
        raise NotImplementedError

    @property
    def span(self) -> int:
        """From the offset of the oldest message that it holds to that of the newest."""
        raise NotImplementedError

    def start(self, offset: int) -> None:
        """Set the offset of the first pull."""
        self.next_offset = offset

    def drop(self) -> None:
        """Have nothing more pulled or consumed; running calls of the listener may still count."""
        self.is_dropped = True

    def info(self, commit_offset: int, epoch_ms: int) -> ProcessQueueInfo:
        """For tools. ``epoch_ms`` is the time of day at which the clock of its times was 0."""
        info = ProcessQueueInfo(
            commit_offset=commit_offset,
            cached_msg_count=len(self),
            cached_msg_size_in_mib=self.size_bytes // _MIB,
            droped=self.is_dropped,
        )
        if self.last_pull_ms is not None:
            info.last_pull_timestamp = self.last_pull_ms + epoch_ms
        return info


@dataclass(frozen=True, slots=True)
class PullLimits:
    """How much may be held before pulling pauses: of one queue, and of all queues together.

    ``queue_span`` and ``total_count`` None: without limit.
    """

    queue_count: int = 1_000
    queue_bytes: int = 100 * _MIB
    queue_span: int | None = 2_000
    total_count: int | None = None

    def has_room(
        self,
        buffer: QueueBuffer,
        total_count: int = 0,
        *,
        more_count: int = 0,
        more_bytes: int = 0,
        more_span: int = 0,
    ) -> bool:
        """Whether a queue may be pulled from, as it is or after so much more has come."""
        return (
            len(buffer) + more_count <= self.queue_count
            and buffer.size_bytes + more_bytes <= self.queue_bytes
            and (self.queue_span is None or buffer.span + more_span <= self.queue_span)
            and (self.total_count is None or total_count + more_count <= self.total_count)
        )


class ProcessQueue(QueueBuffer):
    """A push consumer's messages of one queue, from their pull to their commit.

    A concurrent consumer removes messages in any order. An orderly consumer takes them from the
    head, and then commits them, puts them back or rolls them back.
    """

    __slots__ = (
        "_consuming",
        "_last_offset",
        "_messages",
        "_order",
        "last_consume_ms",
        "locked_at_ms",
        "unlock_attempts",
    )

    def __init__(self, queue: MessageQueue, now_ms: int) -> None:
        super().__init__(queue)
        self.last_consume_ms = now_ms
        self.locked_at_ms: int | None = None
        self.unlock_attempts = 0
        self._messages: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = deque()
        self._consuming: dict[int, ReceivedMessage] = {}
        self._last_offset = -1

    def __len__(self) -> int:
        return len(self._messages) + len(self._consuming)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return message.queue_offset in self._messages

    @property
    def span(self) -> int:
        return self._last_offset - self._order[0] if self._order else 0

    @property
    def has_waiting(self) -> bool:
        """Whether there are messages to take."""
        return bool(self._messages)

    def is_locked(self, now_ms: int) -> bool:
        locked_at_ms = self.locked_at_ms
        return locked_at_ms is not None and now_ms - locked_at_ms <= LOCK_VALID_MS

    def add(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Hold pulled messages; returns them without those that were held before."""
        last = self._last_offset
        held = self._messages
        order = self._order
        size = 0
        added = []
        for message in messages:
            offset = message.queue_offset
            if offset <= last:
                continue
            last = offset
            held[offset] = message
            order.append(offset)
            size += message.stored_body_bytes
            added.append(message)
        self._last_offset = last
        self.size_bytes += size
        return added

    def remove(self, messages: Iterable[ReceivedMessage]) -> int | None:
        """Remove consumed messages; returns the offset to commit, None if nothing was held."""
        held = self._messages
        if not held:
            return None
        size = 0
        for message in messages:
            if held.pop(message.queue_offset, None) is not None:
                size += message.stored_body_bytes
        self.size_bytes -= size
        order = self._order
        while order and order[0] not in held:
            order.popleft()
        return order[0] if order else self._last_offset + 1

    # --- Orderly ----------------------------------------------------------------------------------

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Up to ``limit`` of the oldest messages, to be consumed now."""
        taken = []
        for _ in range(min(limit, len(self._order))):
            offset = self._order.popleft()
            message = self._consuming[offset] = self._messages.pop(offset)
            taken.append(message)
        return taken

    def commit(self, through: ReceivedMessage) -> int | None:
        """Remove what was taken up to a message; returns the offset to commit, None if there was
        nothing."""
        last = through.queue_offset
        done = [offset for offset in self._consuming if offset <= last]
        for offset in done:
            self.size_bytes -= self._consuming.pop(offset).stored_body_bytes
        return done[-1] + 1 if done else None

    def put_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Have messages that were taken consumed again, before all others."""
        offsets = [message.queue_offset for message in messages]
        returned = {
            offset: self._consuming.pop(offset) for offset in offsets if offset in self._consuming
        }
        self._messages.update(returned)
        self._order.extendleft(sorted(returned, reverse=True))

    def rollback(self) -> None:
        """Have all that was taken consumed again."""
        self.put_back(list(self._consuming.values()))

    # --- The end ----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop all messages; later results are ignored."""
        self._messages.clear()
        self._consuming.clear()
        self._order.clear()
        self.size_bytes = 0

    def info(self, commit_offset: int, epoch_ms: int) -> ProcessQueueInfo:
        info = super().info(commit_offset, epoch_ms)
        info.cached_msg_count = len(self._messages)
        info.locked = self.locked_at_ms is not None
        info.try_unlock_times = self.unlock_attempts
        info.last_consume_timestamp = self.last_consume_ms + epoch_ms
        if self.locked_at_ms is not None:
            info.last_lock_timestamp = self.locked_at_ms + epoch_ms
        if self._order:
            info.cached_msg_min_offset = self._order[0]
            info.cached_msg_max_offset = self._last_offset
        if self._consuming:
            info.transaction_msg_count = len(self._consuming)
            info.transaction_msg_min_offset = min(self._consuming)
            info.transaction_msg_max_offset = max(self._consuming)
        return info


class PrefetchQueue(QueueBuffer):
    """A lite pull consumer's messages of one queue: batches that wait for the user.

    ``delivered_offset`` is the offset after the last message that the user got;
    ``consumed_offset``, after the last message that the user is done with: this is what auto commit
    commits. Both are None until the start offset is known.
    """

    __slots__ = (
        "batches",
        "consumed_offset",
        "delivered_offset",
        "is_partly_delivered",
        "is_paused",
        "waiting_count",
    )

    def __init__(self, queue: MessageQueue) -> None:
        super().__init__(queue)
        self.delivered_offset: int | None = None
        self.consumed_offset: int | None = None
        self.is_paused = False
        # The user has got some messages of a batch, and not yet the others.
        self.is_partly_delivered = False
        self.batches: deque[Batch] = deque()
        self.waiting_count = 0

    def __len__(self) -> int:
        return self.waiting_count

    @property
    def span(self) -> int:
        if not self.batches:
            return 0
        return self.batches[-1].messages[-1].queue_offset - self.batches[0].messages[0].queue_offset

    def start(self, offset: int) -> None:
        """Begin here; what lies before counts as consumed."""
        super().start(offset)
        self.delivered_offset = self.consumed_offset = offset

    def add(self, messages: list[ReceivedMessage], next_offset: int) -> "Batch | None":
        """Hold what a pull brought, as a batch; None if it has no messages for the user."""
        if not messages:
            self._pass(next_offset)
            return None
        size = sum(message.stored_body_bytes for message in messages)
        batch = Batch(self, messages, next_offset, size)
        self.batches.append(batch)
        self.waiting_count += len(messages)
        self.size_bytes += size
        return batch

    def _pass(self, offset: int) -> None:
        """Count offsets without messages as consumed, unless messages before them are not."""
        if self.batches or self.is_partly_delivered:
            return
        if self.consumed_offset == self.delivered_offset:
            self.consumed_offset = offset
        self.delivered_offset = offset

    def take(self) -> None:
        """Remove the oldest batch, which is delivered now."""
        batch = self.batches.popleft()
        self.waiting_count -= len(batch.messages)
        self.size_bytes -= batch.size_bytes

    def mark_consumed(self) -> None:
        """The user is done with all that it got."""
        self.consumed_offset = self.delivered_offset


@dataclass(slots=True)
class Batch:
    """Messages of one pull; ``next_offset`` is after them and what was filtered out."""

    buffer: PrefetchQueue
    messages: list[ReceivedMessage]
    next_offset: int
    size_bytes: int

    @property
    def is_stale(self) -> bool:
        """Whether its queue was released or moved to another offset."""
        return self.buffer.is_dropped
