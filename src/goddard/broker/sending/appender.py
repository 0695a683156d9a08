"""One append per loop tick: everything that is to be stored comes through here, in order.

Groups of records submitted while the loop handles what its sockets brought are appended together
when that is done, with one ``append``. A batch of one client (``whole``) is appended by itself,
in its place, because it must not cross a segment. With SYNC_FLUSH one wait for the disk answers
every group of the tick, and what comes meanwhile is appended when that wait is over: few large
syncs serve more senders than many small ones. The next sync is under way before those who waited
for the last are answered, so disk and loop work at the same time.

Belongs to the loop thread; the store's flushing thread only ever calls ``call_soon_threadsafe``.
Where the kernel runs syncs (``goddard.environment.syncs``), ``start`` has it do so, and that thread
is only needed for what the kernel cannot do.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, Protocol, TypeAlias, cast

import msgspec

from goddard.clock import Clock, SystemClock
from goddard.environment.syncs import Syncs
from goddard.errors import StoreError
from goddard.store.config import FlushMode
from goddard.store.errors import MessageIllegalError
from goddard.store.log.block import Placed, RecordBlock, end_offset
from goddard.store.log.records import LogEntry, PreparedRecord
from goddard.store.store import MessageStore

_logger: Final = logging.getLogger(__name__)

# An append that takes longer is told in the log, in RocketMQ's words.
_SLOW_PUT_MS: Final = 500

# While the disk is at work, what comes waits, so that the next sync is for all of it; but not long.
_MAX_HELD_BACK_SECONDS: Final = 0.02

Done: TypeAlias = Callable[[Sequence[LogEntry] | None, StoreError | None], None]
# Whether a block of records was stored, and what went wrong.
BlockDone: TypeAlias = Callable[[bool, StoreError | None], None]


class FlushTimeoutError(StoreError):
    """The messages are in the log, but the disk did not confirm them in time; it still may.

    With a ``cause``, it did not because of that: RocketMQ's clients know one code for both.
    """

    def __init__(self, messages: int, timeout_ms: int, cause: StoreError | None = None) -> None:
        why = f"in {timeout_ms} ms" if cause is None else f"({cause})"
        super().__init__(f"the disk did not confirm {messages} messages {why}")
        self.cause = cause


class Replication(Protocol):
    """The slaves that a synchronous master waits for."""

    @property
    def is_needed(self) -> bool: ...

    def refusal(self) -> StoreError | None: ...

    def wait(self, end_offset: int, done: Callable[[StoreError | None], None]) -> None: ...


class LateError(StoreError):
    """The loop was so busy that this came to its turn too late; nothing was written."""

    def __init__(self, waited_ms: int, queued_requests: int) -> None:
        super().__init__(f"{queued_requests} requests waited {waited_ms} ms to be stored")
        self.waited_ms = waited_ms
        self.queued_requests = queued_requests


class AppendStats(Protocol):
    """Who counts how the store does."""

    def appended(self, count: int, took_ms: int) -> None: ...

    def failed(self, count: int) -> None: ...


class Group(msgspec.Struct):
    """Records that were submitted together, and whom to tell. Either a list of them or a block."""

    records: Sequence[PreparedRecord]
    block: RecordBlock | None
    requests: int
    messages: int
    done: Done | BlockDone
    whole: bool
    wait_durable: bool
    max_wait_ms: int | None


# A group that has been appended, and where its records went.
_Appended: TypeAlias = tuple[Group, Placed]


class _Wait:
    """Groups that wait for one sync, for slaves, or for both."""

    __slots__ = ("_over", "groups", "is_over", "pending", "requests", "timeout")

    def __init__(self, groups: Sequence[_Appended]) -> None:
        self.groups = groups
        self.pending = 0
        self.requests = sum(group.requests for group, _ in groups)
        self.timeout: asyncio.TimerHandle | None = None
        self.is_over = False
        self._over: asyncio.Future[None] | None = None

    def end(self) -> None:
        self.is_over = True
        if self.timeout is not None:
            self.timeout.cancel()
        if self._over is not None:
            self._over.set_result(None)

    def until_over(self) -> asyncio.Future[None]:
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
        return self._over


class Appender:
    """Collects, appends, waits for the disk where asked to, and tells who submitted."""

    def __init__(
        self,
        store: MessageStore,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock | None = None,
        flush_timeout_ms: int = 5_000,
        stats: AppendStats | None = None,
        replication: Replication | None = None,
    ) -> None:
        self._replication = replication
        self._store = store
        self._loop = loop
        self._clock: Clock = clock or SystemClock()
        self._stats = stats
        self._queue: list[Group] = []
        self._queued_since_ms = 0
        self._waits: set[_Wait] = set()
        # Those of them that wait for the disk.
        self._disk_waits: set[_Wait] = set()
        self._held_back: asyncio.TimerHandle | None = None
        self._syncs: Syncs | None = None
        # Clear while the queue waits for the store, which prepares a segment or fills the index.
        self._resumed = asyncio.Event()
        store.publish_on(lambda show: loop.call_soon_threadsafe(self._on_synced, show))
        self.flush_timeout_ms = flush_timeout_ms
        self.queued_requests = 0
        # Appended, and not yet known to be on disk; only those whose submitter waits for that.
        self.undurable_requests = 0
        # How long the last append held the log, if that was too long; and how long is too long.
        self.busy_ms = 0
        self.busy_after_ms = _SLOW_PUT_MS

    def start(self) -> None:
        """Have the kernel run the syncs, where it can; then ``stop`` must be called."""
        syncs = self._store.open_syncs()
        if syncs is not None:
            self._syncs = syncs
            self._loop.add_reader(syncs.fileno(), self._store.end_sync, self._append_held_back)
            self._store.sync_with(syncs)

    def stop(self) -> None:
        """Have the store's thread run the syncs; this waits for one that the kernel runs."""
        syncs, self._syncs = self._syncs, None
        if syncs is not None:
            self._loop.remove_reader(syncs.fileno())
            self._store.sync_with(None)
            syncs.close()

    def submit(
        self,
        records: Sequence[PreparedRecord],
        done: Done,
        *,
        whole: bool = False,
        wait_durable: bool = True,
        max_wait_ms: int | None = None,
    ) -> None:
        """Append at the end of this tick, then call ``done(entries, error)`` on the loop.

        Either every record is stored (``error`` is None, or says what did not confirm them) or none
        is (``entries`` is None). With SYNC_FLUSH ``done`` is called once they are on disk, with
        SYNC_MASTER once enough slaves have them, unless ``wait_durable`` is false. A group that has
        not had its turn within ``max_wait_ms`` is given up with a LateError.
        """
        self._submit(Group(records, None, 1, len(records), done, whole, wait_durable, max_wait_ms))

    def submit_block(self, block: RecordBlock, done: BlockDone, max_wait_ms: int | None) -> Group:
        """As ``submit``, for a block that may grow as long as the group ``is_last``.

        The submitter reports what is in the block with ``added``.
        """
        group = Group((), block, 0, 0, done, False, True, max_wait_ms)
        self._submit(group)
        return group

    def _submit(self, group: Group) -> None:
        if not self._queue:
            self._queued_since_ms = self._clock.monotonic_ms()
            if self._disk_waits:
                self._held_back = self._loop.call_later(_MAX_HELD_BACK_SECONDS, self._append_queued)
            else:
                self._loop.call_soon(self._append_queued)
        self._queue.append(group)
        self.queued_requests += group.requests

    def is_last(self, group: Group | None) -> bool:
        """Whether nothing was submitted after this group and it still waits for its turn.

        Until then its submitter may add records to its block, and must call ``added``.
        """
        queue = self._queue
        return bool(queue) and queue[-1] is group

    def added(self, group: Group, requests: int, messages: int) -> None:
        group.requests += requests
        group.messages += messages
        self.queued_requests += requests

    async def put(
        self,
        records: Sequence[PreparedRecord],
        *,
        whole: bool = False,
        wait_durable: bool = True,
    ) -> Sequence[LogEntry]:
        """As ``submit``; raises the StoreError."""
        future: asyncio.Future[Sequence[LogEntry]] = self._loop.create_future()

        def done(entries: Sequence[LogEntry] | None, error: StoreError | None) -> None:
            if future.done():
                return  # the caller was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(entries or ())

        self.submit(records, done, whole=whole, wait_durable=wait_durable)
        return await future

    async def drain(self) -> None:
        """Until everything submitted so far is stored, and known to be durable where asked for."""
        while self._queue:
            self._append_queued()
            if self._queue:
                await self._resumed.wait()
        if self._waits:
            await asyncio.wait([wait.until_over() for wait in self._waits])

    # The end of a tick

    def _append_queued(self) -> None:
        groups = self._queue
        if not groups:
            return  # appended before its turn
        if self._held_back is not None:
            self._held_back.cancel()
            self._held_back = None
        if not self._store.when_ready(self._resume_soon):
            self._resumed.clear()
            return
        self._queue = []
        queued_requests, self.queued_requests = self.queued_requests, 0
        waited_ms = self._clock.monotonic_ms() - self._queued_since_ms
        replication = self._replication
        if replication is not None and not replication.is_needed:
            replication = None
        refusal = None if replication is None else replication.refusal()
        settled: list[_Appended] = []
        together: list[Group] = []
        for group in groups:
            if group.max_wait_ms is not None and waited_ms >= group.max_wait_ms:
                _tell(group, None, LateError(waited_ms, queued_requests))
            elif refusal is not None and group.wait_durable:
                _tell(group, None, refusal)
            elif group.whole or group.block is not None:
                self._append(together, settled)
                together = []
                self._append([group], settled)
            else:
                together.append(group)
        self._append(together, settled)
        is_sync = self._store.config.flush_mode is FlushMode.SYNC
        if settled and (is_sync or replication is not None):
            self._wait(settled, replication, is_sync=is_sync)
        else:
            for group, entries in settled:
                _tell(group, entries, None)

    def _resume_soon(self) -> None:
        # At shutdown the store's threads may outlive the loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        self._resumed.set()
        self._append_queued()

    def _append(self, groups: Sequence[Group], settled: list[_Appended]) -> None:
        if not groups:
            return
        first = groups[0]
        messages = sum(group.messages for group in groups)
        try:
            placed = self._put(groups, messages)
        except MessageIllegalError as error:
            if len(groups) == 1:
                _tell(first, None, error)
                return
            for group in groups:  # the others should not suffer for the one that is wrong
                self._append((group,), settled)
            return
        except StoreError as error:
            for group in groups:
                _tell(group, None, error)
            return
        except Exception as error:
            _logger.exception("appending %d messages failed", messages)
            for group in groups:
                _tell(group, None, StoreError(f"{type(error).__name__}: {error}"))
            return
        if len(groups) == 1 or not isinstance(placed, list):
            settled.append((first, placed))
            return
        start = 0
        for group in groups:
            end = start + len(group.records)
            settled.append((group, placed[start:end]))
            start = end

    def _put(self, groups: Sequence[Group], messages: int) -> Placed:
        stats = self._stats
        started_ms = self._clock.monotonic_ms()
        try:
            placed = self._put_now(groups)
        except MessageIllegalError:
            raise  # the store is well
        except Exception:
            if stats is not None:
                stats.failed(messages)
            raise
        took_ms = self._clock.monotonic_ms() - started_ms
        if took_ms > _SLOW_PUT_MS:
            _logger.warning(
                "not in lock elapsed time(ms)=%d, bodyLength=%d",
                took_ms,
                _size_of(placed),
            )
        if took_ms > self.busy_after_ms:
            self._refuse_backlog(took_ms)
        if stats is not None:
            stats.appended(messages, took_ms)
        return placed

    def _put_now(self, groups: Sequence[Group]) -> Placed:
        first = groups[0]
        if first.block is not None:
            self._store.append_block(first.block)
            return first.block
        if len(groups) == 1:
            return self._store.append(first.records, whole=first.whole)
        return self._store.append(list(chain.from_iterable(group.records for group in groups)))

    def _refuse_backlog(self, took_ms: int) -> None:
        """Be busy until the sockets have been read once: what is there came meanwhile."""

        def recover() -> None:
            self.busy_ms = 0

        self.busy_ms = took_ms
        # A call made soon may come before the sockets; one made by it comes after them.
        self._loop.call_soon(self._loop.call_soon, recover)

    # Durability

    def _wait(
        self, settled: Sequence[_Appended], replication: Replication | None, *, is_sync: bool
    ) -> None:
        waiting = [(group, placed) for group, placed in settled if group.wait_durable]
        wait = _Wait(waiting)
        end = end_offset(settled[-1][1])
        if waiting:
            self.undurable_requests += wait.requests
            self._waits.add(wait)
        if is_sync:
            self._wait_durable(wait, end)
        if waiting and replication is not None:
            wait.pending += 1
            replication.wait(end, lambda error: self._confirm(wait, error))
        for group, placed in settled:
            if not group.wait_durable:
                _tell(group, placed, None)

    def _wait_durable(self, wait: _Wait, end: int) -> None:
        wait.pending += 1
        if wait.groups:
            self._disk_waits.add(wait)
            wait.timeout = self._loop.call_later(self.flush_timeout_ms / 1000, self._expire, wait)

        def bridge(error: StoreError | None) -> None:
            if self._is_in_loop():
                self._loop.call_soon(self._flushed, wait, error)
                return
            # At shutdown the flushing thread may outlive the loop.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._flushed, wait, error)

        # Also when nobody waits: messages become visible once they are on disk.
        self._store.wait_durable(end, bridge)

    def _is_in_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:  # a thread without a loop
            return False

    def _on_synced(self, show: Callable[[], None]) -> None:
        """Start the next append; then publish what was synced, and answer it."""
        self._append_held_back()
        show()

    def _append_held_back(self) -> None:
        if self._held_back is not None:
            self._append_queued()

    def _expire(self, wait: _Wait) -> None:
        self._flushed(wait, FlushTimeoutError(0, self.flush_timeout_ms))

    def _flushed(self, wait: _Wait, error: StoreError | None) -> None:
        if wait.timeout is not None:
            wait.timeout.cancel()
        self._disk_waits.discard(wait)
        if error is not None and not isinstance(error, FlushTimeoutError):
            error = FlushTimeoutError(0, self.flush_timeout_ms, error)
        self._confirm(wait, error)
        if self._held_back is not None and not self._disk_waits:
            self._append_queued()  # after a sync that failed

    def _confirm(self, wait: _Wait, error: StoreError | None) -> None:
        """One of the things that a wait is for has come; with an error, the others do not count."""
        wait.pending -= 1
        if wait.is_over or (error is None and wait.pending):
            return
        wait.end()
        if not wait.groups:
            return
        self._waits.discard(wait)
        self.undurable_requests -= wait.requests
        for group, placed in wait.groups:
            if isinstance(error, FlushTimeoutError):
                error = FlushTimeoutError(group.messages, self.flush_timeout_ms, error.cause)
            _tell(group, placed, error)


def _size_of(placed: Placed) -> int:
    return sum(entry.size for entry in placed) if isinstance(placed, list) else placed.size


def _tell(group: Group, placed: Placed | None, error: StoreError | None) -> None:
    try:
        if group.block is not None:
            cast(BlockDone, group.done)(placed is not None, error)
        else:
            cast(Done, group.done)(cast(list[LogEntry] | None, placed), error)
    except Exception:
        # A fault of ours in one submitter must not keep the others of the tick waiting.
        _logger.exception("handling the outcome of an append failed")
