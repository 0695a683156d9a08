"""What a lite consumer has pulled ahead of its user, and how far the user is. Pure.

Batches wait in the order in which they came, whatever queue they are of. Each queue knows three
offsets: ``pull_offset``, where the next pull begins; ``given_offset``, behind the last message that
the user got; ``done_offset``, behind the last that the user has asked on from, which is what may be
committed without being told to. A queue that is moved (``seek``) or given up leaves its batches
behind: they are passed over when their turn comes.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue

_MIB = 1024 * 1024


class AssignedQueue:
    """A queue that the consumer reads. Offsets are None until they are known."""

    __slots__ = (
        "batches",
        "done_offset",
        "generation",
        "given_offset",
        "is_dropped",
        "is_in_hand",
        "is_paused",
        "pull_offset",
        "queue",
        "size_bytes",
        "waiting_count",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.pull_offset: int | None = None
        self.given_offset: int | None = None
        self.done_offset: int | None = None
        self.is_paused = False
        self.is_dropped = False
        # Some messages of a batch that was taken are not given yet.
        self.is_in_hand = False
        # Batches of another generation than the queue's are of a place that it has left.
        self.generation = 0
        self.batches: deque[Batch] = deque()
        self.waiting_count = 0
        self.size_bytes = 0

    @property
    def span(self) -> int:
        """From the oldest message that waits to the newest."""
        if not self.batches:
            return 0
        return self.batches[-1].messages[-1].queue_offset - self.batches[0].messages[0].queue_offset

    def start(self, offset: int) -> None:
        """Begin here; what lies before counts as consumed."""
        self.pull_offset = self.given_offset = self.done_offset = offset

    def skip_to(self, offset: int) -> None:
        """Go on from here: what lies before has no messages for this consumer."""
        self.pull_offset = offset
        if not self.batches and not self.is_in_hand:
            if self.done_offset == self.given_offset:
                self.done_offset = offset
            self.given_offset = offset

    def done(self) -> None:
        """The user is through with all that it got."""
        self.done_offset = self.given_offset

    def clear(self) -> None:
        """Leave what waits behind."""
        self.generation += 1
        self.is_in_hand = False
        self.batches.clear()
        self.waiting_count = 0
        self.size_bytes = 0


@dataclass(slots=True)
class Batch:
    """Messages of one pull; ``next_offset`` lies behind them and what was filtered out."""

    assigned: AssignedQueue
    messages: list[ReceivedMessage]
    next_offset: int
    generation: int
    size_bytes: int

    @property
    def is_stale(self) -> bool:
        return self.assigned.is_dropped or self.generation != self.assigned.generation


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait before pulling pauses: of all queues together, and of one."""

    total_count: int = 10_000
    queue_count: int = 1_000
    queue_mib: int = 100
    queue_span: int = 2_000


class Prefetch:
    """The batches that wait for the user."""

    __slots__ = ("_batches", "_limits", "_queues")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._batches: deque[Batch] = deque()
        self._queues: dict[MessageQueue, AssignedQueue] = {}

    # --- Queues -----------------------------------------------------------------------------------

    @property
    def queues(self) -> dict[MessageQueue, AssignedQueue]:
        """Those that are read; change it by ``assign`` and ``drop`` only."""
        return self._queues

    def assign(self, queue: MessageQueue) -> AssignedQueue:
        assigned = self._queues[queue] = AssignedQueue(queue)
        return assigned

    def drop(self, queue: MessageQueue) -> AssignedQueue | None:
        """Give a queue up; None if it was not read."""
        assigned = self._queues.pop(queue, None)
        if assigned is not None:
            assigned.is_dropped = True
            assigned.clear()
        return assigned

    # --- Batches ----------------------------------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        return sum(assigned.waiting_count for assigned in self._queues.values())

    def has_room(self, assigned: AssignedQueue) -> bool:
        """Whether more may be pulled of a queue."""
        limits = self._limits
        return (
            assigned.waiting_count <= limits.queue_count
            and assigned.size_bytes <= limits.queue_mib * _MIB
            and assigned.span <= limits.queue_span
            and self.waiting_count <= limits.total_count
        )

    def add(
        self, assigned: AssignedQueue, messages: Iterable[ReceivedMessage], next_offset: int
    ) -> bool:
        """Take in what a pull found; False if there was nothing in it for the user."""
        held = list(messages)
        if not held:
            assigned.skip_to(next_offset)
            return False
        size = sum(message.stored_body_bytes for message in held)
        batch = Batch(assigned, held, next_offset, assigned.generation, size)
        assigned.pull_offset = next_offset
        assigned.batches.append(batch)
        assigned.waiting_count += len(held)
        assigned.size_bytes += size
        self._batches.append(batch)
        return True

    def take(self) -> Batch | None:
        """The batch that waits longest. Giving its messages to the user is the caller's part."""
        while self._batches:
            batch = self._batches.popleft()
            if batch.is_stale:
                continue
            assigned = batch.assigned
            assigned.batches.popleft()
            assigned.waiting_count -= len(batch.messages)
            assigned.size_bytes -= batch.size_bytes
            return batch
        return None
