"""Where a consumer group stands in each of its queues: kept by the brokers, or in a local file.

Both kinds keep offsets in memory, where ``update`` puts them, and write them out when told to
(``persist_all`` every few seconds and at the end). All methods belong to the event loop; the file
is read and written by a thread.

The file is RocketMQ's: ``<folder>/<client id>/<group>/offsets.json``, the content before the last
write in ``offsets.json.bak``, fastjson with objects as keys::

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}}
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar

from goddard.client import broker_api
from goddard.client.errors import BrokerNotFoundError
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.errors import ConfigError, GoddardError, ProtocolError
from goddard.files import replace_file
from goddard.protocol.bodies import decode_body, encode_body
from goddard.protocol.bodies_client import ResetOffsetBody
from goddard.protocol.names import is_retry_topic

LOCAL_OFFSETS_FOLDER: Final = ".rocketmq_offsets"
# An entry has about a hundred bytes; a client with so many queues is none.
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_BROKER_TIMEOUT_MS: Final = 5_000

_P = ParamSpec("_P")
_T = TypeVar("_T")

_logger: Final = logging.getLogger("goddard.client")


class Offsets(Protocol):
    """Where a group stands in each of its queues."""

    async def load(self) -> None:
        """Read what is kept, before anything else is done."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Note the offset of the next message to consume."""

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Note an offset that no update changes until the queue is forgotten."""

    def cached(self, queue: MessageQueue) -> int | None:
        """What memory knows."""

    async def read(self, queue: MessageQueue, *, refresh: bool = False) -> int | None:
        """What memory knows, else (or with ``refresh``) what is kept; None if there is nothing.

        A broker that cannot be asked raises a ClientError or RemotingError.
        """

    async def persist(self, queue: MessageQueue) -> None:
        """Write one queue's offset; a failure is logged."""

    async def persist_all(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Write the offsets of these queues; failures are logged. ``wait`` until they are kept."""

    async def flush(self, queues: Collection[MessageQueue]) -> None:
        """Write the offsets of these queues, and wait until they are kept; a failure is raised."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop what memory knows of a queue."""

    def table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """All that memory knows (of a topic)."""


class BrokerAddresses(broker_api.Caller, Protocol):
    """What BrokerOffsets needs of a session."""

    def find_broker(
        self, broker_name: str, broker_id: int = 0, *, only_this: bool = False
    ) -> tuple[str, bool] | None: ...

    async def locate(
        self, queue: MessageQueue, broker_id: int = 0, *, only_this: bool = False
    ) -> tuple[str, bool]: ...


class _Memory:
    """Offsets by queue; some of them frozen."""

    __slots__ = ("_frozen", "_offsets")

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        if queue in self._frozen:
            return
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset
        self._frozen.add(queue)

    def cached(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        return {
            queue: offset
            for queue, offset in self._offsets.items()
            if topic is None or queue.topic == topic
        }


class BrokerOffsets(_Memory):
    """Offsets that the brokers keep: those of a group that shares its queues."""

    __slots__ = ("_group", "_session", "_unwritten")

    def __init__(self, session: BrokerAddresses, group: str) -> None:
        super().__init__()
        self._session = session
        self._group = group
        self._unwritten: set[MessageQueue] = set()

    async def load(self) -> None:
        """Nothing: each queue is asked for when it is needed."""

    async def read(self, queue: MessageQueue, *, refresh: bool = False) -> int | None:
        if not refresh and (cached := self.cached(queue)) is not None:
            return cached
        try:
            address = await master_address(self._session, queue)
        except BrokerNotFoundError:
            # A slave has a copy.
            found = self._session.find_broker(queue.broker_name)
            if found is None:
                raise
            address, _ = found
        kept = await broker_api.query_consumer_offset(
            self._session, address, self._group, queue, timeout_ms=_BROKER_TIMEOUT_MS
        )
        if kept is None or kept < 0:
            # Some clients commit -1 for a queue that they have not read yet.
            return None
        self.update(queue, kept)
        return kept

    async def persist(self, queue: MessageQueue) -> None:
        await self._write(queue, wait=False)

    async def persist_all(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Others are left alone: one that was given up is written by whoever gives it up."""
        if wait:
            for some in _rounds(queues):
                # Each broker answers in its own time.
                await asyncio.gather(*(self._write(queue, wait=True) for queue in some))
            return
        # Copied: queues may come and go meanwhile.
        for queue in list(queues):
            await self._write(queue, wait=False)

    async def flush(self, queues: Collection[MessageQueue]) -> None:
        outcomes: list[BaseException | None] = []
        for some in _rounds(queues):
            outcomes += await asyncio.gather(
                *(self._send(queue, wait=True) for queue in some), return_exceptions=True
            )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _write(self, queue: MessageQueue, *, wait: bool) -> None:
        try:
            await self._send(queue, wait=wait)
        except GoddardError as error:
            # Once, not every few seconds for as long as a broker is away.
            level = logging.DEBUG if queue in self._unwritten else logging.WARNING
            self._unwritten.add(queue)
            _logger.log(
                level,
                "the offset of %s for the group %s could not be written: %s",
                queue,
                self._group,
                error,
            )
        else:
            self._unwritten.discard(queue)

    async def _send(self, queue: MessageQueue, *, wait: bool) -> None:
        offset = self.cached(queue)
        if offset is None:
            return
        address, _ = await self._session.locate(queue)
        if wait:
            await broker_api.update_consumer_offset(
                self._session, address, self._group, queue, offset, timeout_ms=_BROKER_TIMEOUT_MS
            )
        else:
            await broker_api.update_consumer_offset_oneway(
                self._session, address, self._group, queue, offset
            )


async def start_offset(
    session: BrokerAddresses,
    offsets: Offsets,
    queue: MessageQueue,
    consume_from: ConsumeFrom,
    timestamp_ms: int,
) -> int:
    """Where to begin in a queue: where the group stands, else where a new one starts.

    A new group starts at the beginning of its retry topic, unless it starts by time. Raises a
    ClientError or RemotingError if a broker that has to be asked cannot be.
    """
    kept = await offsets.read(queue)
    if kept is not None:
        return kept
    is_retry = is_retry_topic(queue.topic)
    if consume_from is ConsumeFrom.FIRST_OFFSET or (
        consume_from is ConsumeFrom.LAST_OFFSET and is_retry
    ):
        # If the queue begins later, the first pull says where.
        return 0
    address = await master_address(session, queue)
    if consume_from is ConsumeFrom.TIMESTAMP and not is_retry:
        return await broker_api.search_offset(session, address, queue, timestamp_ms)
    return await broker_api.max_offset(session, address, queue)


async def master_address(session: BrokerAddresses, queue: MessageQueue) -> str:
    """The address of the master of a queue's broker."""
    address, _ = await session.locate(queue, only_this=True)
    return address


def _rounds(queues: Collection[MessageQueue]) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """One queue of each topic at each broker, then the others.

    RocketMQ's broker, told two first offsets of a group in a topic at the same moment, may forget
    one of them.
    """
    firsts = {(queue.broker_name, queue.topic): queue for queue in reversed(list(queues))}
    return list(firsts.values()), [
        queue for queue in queues if firsts[queue.broker_name, queue.topic] != queue
    ]


class LocalOffsets(_Memory):
    """Offsets in a file of this machine: those of a group whose members get every message."""

    __slots__ = ("_path", "_writing")

    def __init__(self, client_id: str, group: str, *, folder: Path | None = None) -> None:
        super().__init__()
        for name in (client_id, group):
            if name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
                raise ConfigError(f"{name[:80]!r} cannot be the name of a folder of offsets")
        root = folder if folder is not None else Path.home() / LOCAL_OFFSETS_FOLDER
        self._path = root / client_id / group / "offsets.json"
        # Reading, merging and replacing the file is one step.
        self._writing = asyncio.Lock()

    @property
    def path(self) -> Path:
        return self._path

    async def load(self) -> None:
        """ConfigError if neither the file nor its backup can be read."""
        for queue, offset in (await _in_thread(read_offsets, self._path)).items():
            self.update(queue, offset)

    async def read(self, queue: MessageQueue, *, refresh: bool = False) -> int | None:
        if not refresh and (cached := self.cached(queue)) is not None:
            return cached
        try:
            kept = (await _in_thread(read_offsets, self._path)).get(queue)
        except ConfigError as error:
            _logger.warning("%s", error)
            return None
        if kept is not None:
            self.update(queue, kept)
        return kept

    async def persist(self, queue: MessageQueue) -> None:
        await self.persist_all((queue,))

    async def persist_all(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """What the file holds of other queues stays there."""
        try:
            await self.flush(queues)
        except ConfigError as error:
            _logger.warning("%s", error)

    async def flush(self, queues: Collection[MessageQueue]) -> None:
        wanted = frozenset(queues)
        changed = {queue: offset for queue, offset in self.table().items() if queue in wanted}
        if not changed:
            return
        async with self._writing:
            try:
                await _in_thread(_merge_file, self._path, changed)
            except OSError as error:
                raise ConfigError(
                    f"the offsets in {self._path} cannot be written: {error.strerror}; make the "
                    "folder writable or choose another"
                ) from error


async def _in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function that blocks."""
    call = partial(function, *args, **kwargs)
    try:
        calling = asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError:
        # The interpreter ends and starts no threads any more; what is noted now is noted late, but
        # not lost.
        return call()
    return await calling


def read_offsets(path: Path) -> dict[MessageQueue, int]:
    """What a local offset file says, or its backup if it is missing, empty or damaged.

    Neither there: no offsets. ConfigError if the last of them is damaged too. Blocks.
    """
    try:
        content = _read(path)
        if content:
            return _parse(content)
    except (OSError, ProtocolError) as error:
        _logger.warning("%s cannot be read (%s); its backup is tried", path, error)
    backup = path.with_name(path.name + ".bak")
    try:
        content = _read(backup)
        return _parse(content) if content else {}
    except (OSError, ProtocolError) as error:
        raise ConfigError(
            f"neither {path} nor its backup can be read: {error}; "
            "remove both to start as a new group does"
        ) from error


def write_offsets(path: Path, offsets: dict[MessageQueue, int]) -> None:
    """Replace a local offset file; what was there becomes its backup. Blocks."""
    table = {queue.to_body(): offset for queue, offset in offsets.items()}
    replace_file(path, encode_body(ResetOffsetBody(offset_table=table)))


def _merge_file(path: Path, changed: dict[MessageQueue, int]) -> None:
    write_offsets(path, read_offsets(path) | changed)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return b""
    if len(content) > MAX_FILE_BYTES:
        raise ProtocolError(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    return content


def _parse(content: bytes) -> dict[MessageQueue, int]:
    # The body of a request to reset offsets has the same form.
    table = decode_body(content, ResetOffsetBody, max_dialect_bytes=MAX_FILE_BYTES).offset_table
    return {MessageQueue.from_body(queue): offset for queue, offset in table.items()}
