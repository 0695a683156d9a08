"""The slave's end of the HA protocol: copies the log of its master, from start to stop.

One connection at a time. It first compares the end of the log with the master's (``following`` has
the rules), then appends what comes and reports how much it has: with SYNC_FLUSH, how much is on
disk. When the connection ends it tries again, at growing intervals.

Reading stops while the store prepares a segment, so no more than one frame and one read of the
socket is held. Belongs to the loop; clock, random numbers and the network are parameters.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, cast

from goddard.clock import Clock
from goddard.errors import GoddardError, ProtocolError, StoreError
from goddard.protocol.record import MAGIC_V1, MAGIC_V2
from goddard.replication.decisions import ByteRate, LogRange
from goddard.replication.following import (
    COMPARED_BYTES,
    Backoff,
    BrokerIdentity,
    CompareMoreError,
    Following,
    FollowLimits,
    LogsDifferError,
    MasterRefusedError,
    check_identity,
    next_compared_bytes,
    plan_start,
)
from goddard.replication.frames import Frame, FrameDecoder, encode_report
from goddard.replication.reasons import Reasons
from goddard.store.config import FlushMode
from goddard.store.store import MessageStore
from goddard.transport.client import split_address

_logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 3.0
_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
# What is appended before others on the loop have their turn.
_TURN_BYTES: Final = 1 << 20
# A slave that is further behind copies first, and dispatches a little in each turn.
_FAR_BEHIND_BYTES: Final = 16 << 20
_DISPATCHED_BYTES: Final = 64 << 10


class Master(NamedTuple):
    """Whom to follow. ``identity`` and ``log`` are None if it cannot be asked for them."""

    ha_address: str
    identity: BrokerIdentity | None = None
    log: LogRange | None = None


class FollowStatus(NamedTuple):
    """How a slave is doing. ``reason`` says why it does not follow, if it does not."""

    ha_address: str
    is_following: bool
    end_offset: int
    # The end of the master's log as last heard of; what it appended since is not in it.
    master_end_offset: int
    reason: str
    # Wall times, 0 if never; and bytes in the last whole second.
    last_received_ms: int = 0
    last_reported_ms: int = 0
    received_in_last_second: int = 0


class Connect(Protocol):
    """As ``loop.create_connection``."""

    def __call__(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> Awaitable[tuple[object, asyncio.Protocol]]: ...


class Follower:
    """Copies the log of whomever ``find_master`` names into a store.

    ``find_master`` returns None while there is no master; its errors are reasons to try again.
    ``on_logs_differ`` is called when the store has what its master does not have; the slave does
    not follow until that is solved, but goes on trying.
    """

    def __init__(
        self,
        store: MessageStore,
        executor: Executor,
        *,
        identity: BrokerIdentity,
        find_master: Callable[[], Awaitable[Master | None]],
        limits: Callable[[], FollowLimits],
        clock: Clock,
        random: Callable[[], float],
        connect: Connect | None = None,
        on_logs_differ: Callable[[LogsDifferError], None] = lambda _: None,
        on_level: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._identity = identity
        self._find_master = find_master
        self._limits = limits
        self._clock = clock
        self._backoff = Backoff(random)
        self._connect = connect
        self._on_logs_differ = on_logs_differ
        self._on_level = on_level
        self._reasons = Reasons(clock)
        self._compared_bytes = COMPARED_BYTES
        self._ha_address = ""
        self._reason = "it has not started"
        self._rate = ByteRate(clock.monotonic_ms())
        self._last_received_ms = self._last_reported_ms = 0
        self._master_end_offset = 0
        self._connection: _MasterConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="follow the master")

    async def stop(self, *, can_be_behind: bool = False) -> None:
        """Disconnect, and leave a log that ends with a record.

        ``can_be_behind``: do not wait for the dispatch of what was copied; a recovery does it.
        """
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if can_be_behind and self._store.is_dispatch_behind:
            return
        loop = asyncio.get_running_loop()
        with suppress(StoreError):  # the next opening does it
            await loop.run_in_executor(self._executor, self._store.drop_incomplete)

    def try_now(self) -> None:
        """Do not wait for the next attempt: the master may have changed."""
        self._is_wanted.set()

    @property
    def status(self) -> FollowStatus:
        end_offset = self._store.log_max_offset
        connection = self._connection
        is_following = connection is not None and connection.is_level
        return FollowStatus(
            self._ha_address,
            is_following,
            end_offset,
            max(self._master_end_offset, end_offset if is_following else 0),
            "" if is_following else self._reason,
            self._last_received_ms,
            self._last_reported_ms,
            self._rate.in_last_second(self._clock.monotonic_ms()),
        )

    async def _run(self) -> None:
        while True:
            self._is_wanted.clear()
            again = False
            try:
                await self._follow()
            except CompareMoreError:
                self._compared_bytes = next_compared_bytes(self._compared_bytes)
                again = True
            except LogsDifferError as error:
                self._compared_bytes = COMPARED_BYTES
                self._failed(str(error))
                self._on_logs_differ(error)
            except (GoddardError, OSError, TimeoutError) as error:
                self._failed(str(error) or type(error).__name__)
            except Exception:
                _logger.exception("following the master failed once and goes on")
                self._reason = "a defect, which is in the log"
            if not again:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.wait_ms() / 1000):
                        await self._is_wanted.wait()

    def _failed(self, reason: str) -> None:
        self._reason = reason
        if self._reasons.is_new(self._ha_address, reason):
            _logger.warning("cannot follow the master at %s: %s", self._ha_address or "?", reason)

    async def _follow(self) -> None:
        """Follow until the connection ends, which raises the reason."""
        master = await self._find_master()
        if master is None:
            self._ha_address = ""
            raise MasterRefusedError("no name server knows a master of this broker")
        self._ha_address = master.ha_address
        if master.identity is not None:
            check_identity(self._identity, master.identity)
        self._master_end_offset = 0 if master.log is None else master.log.end_offset
        while self._store.is_dispatch_behind:  # else records to compare are not found
            self._store.dispatch_raw(_DISPATCHED_BYTES)
            await asyncio.sleep(0)
        limits = self._limits()
        own = self._own_range()
        start = plan_start(
            own,
            master.log,
            compared_bytes=self._compared_bytes,
            is_last_segment_enough=limits.is_last_segment_enough,
        )
        following = Following(start, own, _OwnLog(self._store), limits, self._clock.monotonic_ms())
        host, port = split_address(master.ha_address)
        connection = _MasterConnection(self, self._store, following, start.report, self._clock)
        connect = self._connect or cast(Connect, asyncio.get_running_loop().create_connection)
        self._connection = connection
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await connect(lambda: connection, host, port)
            _logger.info(
                "connected to the master at %s; the log here has %d to %d, asking from %d on",
                master.ha_address,
                own.min_offset,
                own.end_offset,
                start.report,
            )
            await connection.ended
        finally:
            self._connection = None
            connection.abort()

    @property
    def is_far_behind(self) -> bool:
        return self._master_end_offset - self._store.log_max_offset > _FAR_BEHIND_BYTES

    def level(self, offset: int) -> None:
        """The master has all that was here, and sends what follows."""
        self._compared_bytes = COMPARED_BYTES
        _logger.info("following the master at %s from %d on", self._ha_address, offset)
        self._on_level()

    def reported(self) -> None:
        self._last_reported_ms = self._clock.now_ms()

    def received(self, end_offset: int, size: int) -> None:
        """All is well: the next failure is a new one."""
        self._last_received_ms = self._clock.now_ms()
        self._rate.add(size, self._clock.monotonic_ms())
        self._master_end_offset = max(self._master_end_offset, end_offset)
        self._reasons.forget()
        self._backoff.reset()

    def _own_range(self) -> LogRange:
        store = self._store
        return LogRange(store.log_min_offset, store.log_max_offset, store.config.segment_bytes)


class _OwnLog:
    """The slave's log, as far as it is compared."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def read(self, physical_offset: int, size: int) -> memoryview:
        view = self._store.read_log(physical_offset, size)
        if view is None or len(view) != size:
            raise MasterRefusedError(f"the log here cannot be read at {physical_offset}")
        return view

    def holds_record(self, start_offset: int, end_offset: int) -> bool:
        while start_offset < end_offset:
            view = self._store.read_log(start_offset, end_offset - start_offset)
            if not view:
                return False
            data = bytes(view)
            for magic in _MAGICS:
                at = data.find(magic)
                while at >= 0:
                    # A record's magic follows its four bytes of size.
                    record = self._store.lookup(start_offset + at - 4) if at >= 4 else None
                    if record is not None and at - 4 + len(record) <= len(data):
                        return True
                    at = data.find(magic, at + 1)
            start_offset += len(data)
        return False


class _MasterConnection(asyncio.Protocol):
    """One connection to a master. ``ended`` raises why it ended."""

    def __init__(
        self,
        follower: Follower,
        store: MessageStore,
        following: Following,
        report: int,
        clock: Clock,
    ) -> None:
        self._follower = follower
        self._store = store
        self._following = following
        self._first_report = report
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._is_sync = store.config.flush_mode is FlushMode.SYNC
        self._is_flush_awaited = False
        self._is_waiting = False  # for the store
        self._is_dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.is_level = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.ended.done():  # given up meanwhile
            self.abort()
            return
        self._transport.write(encode_report(self._first_report))
        self._set_timer()
        self._note_level()

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.extend(self._decoder.feed(data))
        except ProtocolError as error:
            self._fail(MasterRefusedError(str(error)))
            return
        if not self._is_waiting:
            self._process()

    def connection_lost(self, error: Exception | None) -> None:
        text = "it closed the connection" if error is None else f"the connection is lost: {error}"
        self._fail(MasterRefusedError(text))

    # What the follower calls

    def abort(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._frames.clear()
        if not self.ended.cancel() and not self.ended.cancelled():
            self.ended.exception()  # seen, also if nobody waits any more

    # Appending

    def _process(self) -> None:
        """Append what has come, as far as the store is ready, and report it."""
        if self.ended.done():
            return
        budget = _TURN_BYTES
        try:
            while self._frames:
                if budget <= 0 or not self._store.when_ready(self._store_ready):
                    self._pause()
                    if budget <= 0:
                        self._loop.call_soon(self._resume)
                    return
                budget -= self._append_some()
        except (MasterRefusedError, LogsDifferError, CompareMoreError, StoreError) as error:
            self._fail(error)
            return
        self._report()

    def _append_some(self) -> int:
        """Append frames that lie together in one segment; returns how many bytes."""
        now_ms = self._clock.monotonic_ms()
        pieces: list[memoryview] = []
        start, size, end_offset = 0, 0, 0
        while self._frames:
            frame = self._frames[0]
            begins_segment = frame.physical_offset % self._store.config.segment_bytes == 0
            if pieces and begins_segment:
                break
            self._frames.popleft()
            piece = self._following.take(frame, now_ms)
            end_offset = frame.end_offset
            if piece is None:
                continue
            if not pieces:
                start = piece[0]
            pieces.append(piece[1])
            size += len(piece[1])
            if size >= _TURN_BYTES:
                break
        if pieces:
            if start != self._store.log_max_offset:
                self._store.begin_at(start)
            self._store.append_raw(
                pieces[0] if len(pieces) == 1 else b"".join(pieces),
                dispatch_later=self._follower.is_far_behind,
            )
            self._dispatch_soon()
        self._note_level()
        if self.is_level:
            self._follower.received(end_offset, size)
        return size

    def _dispatch_soon(self) -> None:
        if self._store.is_dispatch_behind and not self._is_dispatching:
            self._is_dispatching = True
            self._loop.call_soon(self._dispatch_some)

    def _dispatch_some(self) -> None:
        """Dispatch a little, and go on after what has come from the network."""
        self._is_dispatching = False
        if self.ended.done():
            return  # the follower goes on
        try:
            self._store.dispatch_raw(_DISPATCHED_BYTES)
        except StoreError as error:
            self._fail(error)
            return
        self._dispatch_soon()

    def _note_level(self) -> None:
        if not self.is_level and self._following.is_level:
            self.is_level = True
            self._follower.level(self._following.next_offset)

    def _pause(self) -> None:
        self._is_waiting = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _store_ready(self) -> None:
        """Called in a thread of the store."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        if self.ended.done() or not self._is_waiting:
            return
        self._is_waiting = False
        if self._transport is not None:
            self._transport.resume_reading()
        self._process()

    # Reporting

    def _report(self) -> None:
        if self.ended.done() or self._transport is None:
            return
        store = self._store
        stored_offset = store.log_max_offset
        if self._is_sync:
            if store.flushed_offset < stored_offset:
                self._await_flush(stored_offset)
            stored_offset = store.flushed_offset
        offset = self._following.report(stored_offset, self._clock.monotonic_ms())
        if offset is not None:
            self._transport.write(encode_report(offset))
            self._follower.reported()

    def _await_flush(self, end_offset: int) -> None:
        """Report again when the log is on disk up to an offset; one wait at a time."""
        if self._is_flush_awaited:
            return
        self._is_flush_awaited = True

        def flushed(error: StoreError | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._flushed, error)

        self._store.wait_durable(end_offset, flushed)

    def _flushed(self, error: StoreError | None) -> None:
        self._is_flush_awaited = False
        if error is not None:
            self._fail(error)
        else:
            self._report()

    def _set_timer(self) -> None:
        try:
            wait_ms = self._following.wait_ms(self._clock.monotonic_ms())
        except MasterRefusedError as error:
            if not self._is_waiting:  # else it is we who do not read
                self._fail(error)
                return
            wait_ms = 1_000
        self._timer = self._loop.call_later(wait_ms / 1000, self._tick)

    def _tick(self) -> None:
        if not self.ended.done():
            self._report()
            self._set_timer()

    def _fail(self, error: GoddardError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
        self.abort()
