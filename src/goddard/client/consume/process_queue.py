"""What a consumer holds of one queue: messages pulled and not done with, and how far it may commit.

Pure: times come in as ``now_ms`` of a clock that never jumps. The event loop owns it; listener
threads only look at ``is_dropped`` and ``is_locked``.

Offsets grow along a queue, so that the messages held are a dict in the order of arrival and a deque
of the same offsets, whose head is the oldest message not done with. Everything before it may be
committed: a message is never committed before all that precede it are done with.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_client import ProcessQueueInfo

# Brokers keep a lock for 60 s, and it is renewed every 20 s; after this it is not relied on.
LOCK_VALID_MS: Final = 30_000

_MIB: Final = 1024 * 1024


class ProcessQueue:
    """The messages of one queue between their pull and their commit.

    A concurrent consumer removes them in any order; an orderly one takes them from the head, and
    commits what it took, puts it back or rolls it back.
    """

    __slots__ = (
        "_consuming",
        "_last_offset",
        "_messages",
        "_order",
        "_size_bytes",
        "is_dropped",
        "last_consume_ms",
        "last_pull_ms",
        "locked_at_ms",
        "next_offset",
        "queue",
        "unlock_tries",
    )

    def __init__(self, queue: MessageQueue, now_ms: int) -> None:
        self.queue = queue
        self.is_dropped = False
        # Where the next pull begins, once that is known.
        self.next_offset: int | None = None
        self.last_pull_ms: int | None = None
        self.last_consume_ms = now_ms
        self.locked_at_ms: int | None = None
        self.unlock_tries = 0
        self._messages: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = deque()
        self._consuming: dict[int, ReceivedMessage] = {}
        self._last_offset = -1
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._messages) + len(self._consuming)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return message.queue_offset in self._messages

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def span(self) -> int:
        """From the oldest message not done with to the newest."""
        return self._last_offset - self._order[0] if self._order else 0

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._messages)

    def is_locked(self, now_ms: int) -> bool:
        locked_at_ms = self.locked_at_ms
        return locked_at_ms is not None and now_ms - locked_at_ms <= LOCK_VALID_MS

    def add(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Hold pulled messages; gives them without those that were there before."""
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
        self._size_bytes += size
        return added

    def remove(self, messages: Iterable[ReceivedMessage]) -> int | None:
        """Be done with messages; gives the offset to commit, None if nothing was held."""
        held = self._messages
        if not held:
            return None
        size = 0
        for message in messages:
            if held.pop(message.queue_offset, None) is not None:
                size += message.stored_body_bytes
        self._size_bytes -= size
        order = self._order
        while order and order[0] not in held:
            order.popleft()
        return order[0] if order else self._last_offset + 1

    # --- Orderly ----------------------------------------------------------------------------------

    def take(self, limit: int) -> list[ReceivedMessage]:
        """Up to so many of the oldest messages; they are being consumed now."""
        taken = []
        for _ in range(min(limit, len(self._order))):
            offset = self._order.popleft()
            message = self._consuming[offset] = self._messages.pop(offset)
            taken.append(message)
        return taken

    def commit(self, through: ReceivedMessage) -> int | None:
        """Be done with what was taken up to a message; gives the offset to commit, None if it was
        nothing."""
        last = through.queue_offset
        done = [offset for offset in self._consuming if offset <= last]
        for offset in done:
            self._size_bytes -= self._consuming.pop(offset).stored_body_bytes
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

    def drop(self) -> None:
        """Have no listener called for it any more; what runs may still end and count."""
        self.is_dropped = True

    def clear(self) -> None:
        """Let go of everything: what is still done with counts no more."""
        self._messages.clear()
        self._consuming.clear()
        self._order.clear()
        self._size_bytes = 0

    def info(self, commit_offset: int, epoch_ms: int) -> ProcessQueueInfo:
        """For tools. ``epoch_ms`` is the time of day at which this queue's clock was 0."""
        info = ProcessQueueInfo(
            commit_offset=commit_offset,
            cached_msg_size_in_mib=self._size_bytes // _MIB,
            droped=self.is_dropped,
            locked=self.locked_at_ms is not None,
            try_unlock_times=self.unlock_tries,
            last_consume_timestamp=self.last_consume_ms + epoch_ms,
        )
        if self.last_pull_ms is not None:
            info.last_pull_timestamp = self.last_pull_ms + epoch_ms
        if self.locked_at_ms is not None:
            info.last_lock_timestamp = self.locked_at_ms + epoch_ms
        if self._order:
            info.cached_msg_count = len(self._messages)
            info.cached_msg_min_offset = self._order[0]
            info.cached_msg_max_offset = self._last_offset
        if self._consuming:
            info.transaction_msg_count = len(self._consuming)
            info.transaction_msg_min_offset = min(self._consuming)
            info.transaction_msg_max_offset = max(self._consuming)
        return info
