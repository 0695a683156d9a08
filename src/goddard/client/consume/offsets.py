"""The offsets of a consumer group in its queues: stored by the brokers, or in a local file.

Both kinds keep offsets in memory, where ``update`` puts them, and write them with ``persist_all``,
which is called every few seconds and at the end. All methods belong to the event loop; a thread
reads and writes the file.

The file has RocketMQ's format: ``<folder>/<client id>/<group>/offsets.json``, and the content
before the last write in ``offsets.json.bak``; fastjson with objects as keys::

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
from goddard.environment.files import SystemFiles
from goddard.errors import ConfigError, GoddardError, ProtocolError
from goddard.files import replace_file
from goddard.protocol.bodies import decode_body, encode_body
from goddard.protocol.bodies_client import ResetOffsetBody
from goddard.protocol.names import is_retry_topic

LOCAL_OFFSETS_FOLDER: Final = ".rocketmq_offsets"
# An entry has about a hundred bytes: enough for 40,000 queues.
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_BROKER_TIMEOUT_MS: Final = 5_000

_P = ParamSpec("_P")
_T = TypeVar("_T")

_logger: Final = logging.getLogger("goddard.client")


class Offsets(Protocol):
    """The offsets of a group."""

    async def load(self) -> None:
        """Read what is stored; called first."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Set the offset of the next message to consume."""

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set an offset that ``update`` does not change until the queue is forgotten."""

    def cached(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""

    async def read(self, queue: MessageQueue, *, refresh: bool = False) -> int | None:
        """The offset in memory, else (or with ``refresh``) the stored one; None if there is none.

        Raises a ClientError or RemotingError if a broker cannot be asked.
        """

    async def persist(self, queue: MessageQueue) -> None:
        """Write one queue's offset; a failure is logged."""

    async def persist_all(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Write the offsets of these queues; failures are logged. With ``wait``, until they are
        stored."""

    async def flush(self, queues: Collection[MessageQueue]) -> None:
        """Write the offsets of these queues, and wait until they are stored; raises failures."""

    def forget(self, queue: MessageQueue) -> None:
        """Remove a queue from memory."""

    def table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """All offsets in memory, or those of a topic."""


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
    """Offsets stored by the brokers: those of a clustering group."""

    __slots__ = ("_group", "_session", "_unwritten")

    def __init__(self, session: BrokerAddresses, group: str) -> None:
        super().__init__()
        self._session = session
        self._group = group
        self._unwritten: set[MessageQueue] = set()

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._unwritten.discard(queue)

    async def load(self) -> None:
        """Nothing: the offset of each queue is read when it is needed."""

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
            # Some clients commit -1 for a queue that they have not read.
            return None
        self.update(queue, kept)
        return kept

    async def persist(self, queue: MessageQueue) -> None:
        await self._write(queue, wait=False)

    async def persist_all(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Other queues are not written: a queue that is released is written by its release."""
        if wait:
            for some in _rounds(queues):
                # All brokers at once.
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
            # One warning for as long as the broker is unreachable.
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
    """The offset to start at in a queue: the group's, else that of a new group.

    A new group starts at the beginning of its retry topic, unless it starts by time. Raises a
    ClientError or RemotingError if a broker cannot be asked.
    """
    kept = await offsets.read(queue)
    if kept is not None:
        return kept
    is_retry = is_retry_topic(queue.topic)
    if consume_from is ConsumeFrom.FIRST_OFFSET or (
        consume_from is ConsumeFrom.LAST_OFFSET and is_retry
    ):
        # If the queue begins later, the answer to the first pull has its offset.
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

    A RocketMQ broker that gets the first two offsets of a group in a topic at the same time may
    lose one of them.
    """
    firsts = {(queue.broker_name, queue.topic): queue for queue in reversed(list(queues))}
    return list(firsts.values()), [
        queue for queue in queues if firsts[queue.broker_name, queue.topic] != queue
    ]


class LocalOffsets(_Memory):
    """Offsets in a local file: those of a broadcasting group."""

    __slots__ = ("_path", "_writing")

    def __init__(self, client_id: str, group: str, *, folder: str | Path | None = None) -> None:
        super().__init__()
        for name in (client_id, group):
            if name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
                raise ConfigError(f"{name[:80]!r} cannot be a folder name for offsets")
        root = Path.home() / LOCAL_OFFSETS_FOLDER if folder is None else Path(folder)
        self._path = root / client_id / group / "offsets.json"
        # Held while the file is read, merged and replaced.
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
        """The offsets of other queues in the file stay as they are."""
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
    """Call a blocking function in a thread."""
    call = partial(function, *args, **kwargs)
    try:
        calling = asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError:
        # The interpreter is exiting and starts no more threads: block rather than lose offsets.
        return call()
    return await calling


def read_offsets(path: Path) -> dict[MessageQueue, int]:
    """The offsets in a local file, or in its backup if the file is missing, empty or damaged.

    No offsets if there is neither; ConfigError if the backup is damaged too. Blocks.
    """
    try:
        content = _read(path)
        if content:
            return _parse(content)
    except (OSError, ProtocolError) as error:
        _logger.warning("%s cannot be read; reading its backup instead: %s", path, error)
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
    """Replace a local offset file; the old content becomes its backup. Blocks."""
    table = {queue.to_body(): offset for queue, offset in offsets.items()}
    replace_file(SystemFiles(), path, encode_body(ResetOffsetBody(offset_table=table)))


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
