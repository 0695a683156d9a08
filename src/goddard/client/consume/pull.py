"""Pull requests: what is sent, how the answer is read, and its stored records as messages.

``pull_command``, ``read_answer`` and ``decode_messages`` do no I/O. ``Puller`` pulls from the
brokers of a queue for one group, and remembers which broker it was told to pull from next; it
belongs to the event loop.

Every message that is consumed is decoded here, so decoding is fast: one unpacking checks a record,
one slice copies it, and its fields are read when they are used (``ReceivedMessage``). Where
``goddard.core`` is compiled, it decodes the plain records. Malformed records raise ProtocolError.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from struct import Struct
from typing import Final, Protocol, Required, TypedDict, Unpack

from goddard.client import broker_api
from goddard.client.errors import BrokerError
from goddard.client.message import RECORD_HEAD, ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.core import IS_COMPILED
from goddard.errors import ProtocolError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.compression import decompress, without_compression
from goddard.protocol.filters.expression import is_tag_type
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import PullResponse
from goddard.protocol.message import SysFlag, iter_batch, join_properties
from goddard.protocol.record import (
    MAGIC_V1,
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES_V1,
    Record,
    decode_record,
)
from goddard.transport.connection import Connection

if IS_COMPILED:
    from goddard.core import records as core_records

# RocketMQ's defaults: how long a broker may hold a push consumer's pull, and how long the client
# waits for the answer.
SUSPEND_MS: Final = 15_000
TIMEOUT_MS: Final = 30_000
MAX_PULL_BYTES: Final = 256 * 1024

# PullSysFlag's bits.
_COMMIT_OFFSET: Final = 0x1
_SUSPEND: Final = 0x2
_SUBSCRIPTION: Final = 0x4
_LITE: Final = 0x10

# From the fixed part of a record: size, magic, queue, queue offset, system flag, the upper halves
# of the two ports (which must be 0), and the length of the body.
_CHECKED: Final = Struct(">iI4xi4xq8xi12xH14xH14xi")
_HEAD_BYTES: Final = RECORD_HEAD.size
_MIN_BYTES: Final = _HEAD_BYTES + 3
_WRAPPED: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
_UNUSUAL: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.INNER_BATCH)


class PullStatus(Enum):
    FOUND = "FOUND"
    NO_NEW_MESSAGES = "NO_NEW_MSG"
    NO_MATCHED_MESSAGES = "NO_MATCHED_MSG"
    # The queue does not have the offset; ``next_offset`` is one that it has.
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUSES: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGES,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGES,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """``messages`` are those that passed the filter; there may be none even when FOUND."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    messages: list[ReceivedMessage]


class PullAnswer:
    """The answer to a pull; ``result`` decodes its records."""

    __slots__ = ("_header", "_queue", "_records", "_tags", "status")

    def __init__(
        self,
        response: RemotingCommand,
        queue: MessageQueue,
        tags: Collection[str] = (),
        address: str = "",
    ) -> None:
        """BrokerError for a code that is not one of PullStatus, ProtocolError for no header."""
        status = _STATUSES.get(response.code)
        if status is None:
            raise BrokerError(response.code, response.remark, address)
        header = PullResponse.decode(response.fields)
        if header.next_begin_offset < 0:
            raise ProtocolError(f"the next offset to pull is {header.next_begin_offset}")
        self.status = status
        self._header = header
        self._records = bytes(response.body) if status is PullStatus.FOUND else b""
        self._queue = queue
        self._tags = tags

    @property
    def next_offset(self) -> int:
        return self._header.next_begin_offset

    @property
    def suggested_broker_id(self) -> int:
        return self._header.suggest_which_broker_id

    @property
    def size_bytes(self) -> int:
        """Of the records together."""
        return len(self._records)

    def result(self) -> PullResult:
        """With the decoded messages; ProtocolError if they are malformed.

        Messages with other tags than those subscribed to are left out: brokers compare only hashes.
        """
        header = self._header
        messages: list[ReceivedMessage] = []
        if self._records:
            # Properties of each message, from which users compute the lag.
            bounds = b"MIN_OFFSET\x01%d\x02MAX_OFFSET\x01%d\x02" % (
                header.min_offset,
                header.max_offset,
            )
            messages = decode_messages(
                self._records,
                self._queue,
                bounds,
                offset_delta=header.offset_delta or 0,
                tags=frozenset(self._tags),
            )
        return PullResult(
            self.status,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            header.suggest_which_broker_id,
            messages,
        )


class Brokers(broker_api.Caller, Protocol):
    """What a Puller needs of a session."""

    def find_broker(
        self, broker_name: str, broker_id: int = 0, *, only_this: bool = False
    ) -> tuple[str, bool] | None: ...

    async def locate(
        self, queue: MessageQueue, broker_id: int = 0, *, only_this: bool = False
    ) -> tuple[str, bool]: ...

    def prepare(self, command: RemotingCommand) -> None: ...

    def connection(self, address: str) -> Connection | None: ...


class PullKeywords(TypedDict, total=False):
    """See ``pull_command``; ``timeout_ms`` is for the answer."""

    max_messages: Required[int]
    max_bytes: int
    suspend_ms: int
    timeout_ms: int
    carries_subscription: bool
    is_lite: bool


class PendingPull:
    """A pull that was sent; its answer is awaited or abandoned."""

    __slots__ = ("_future", "_read")

    def __init__(
        self,
        future: asyncio.Future[RemotingCommand],
        read: Callable[[RemotingCommand], PullAnswer],
    ) -> None:
        self._future = future
        self._read = read

    async def answer(self) -> PullAnswer:
        return self._read(await self._future)

    def abandon(self) -> None:
        self._future.cancel()


class Puller:
    """The pulls of one group."""

    __slots__ = ("_group", "_session", "_suggested", "_without_lite")

    def __init__(self, session: Brokers, group: str) -> None:
        self._session = session
        self._group = group
        # The broker id to pull a queue from, if it is not 0, the master's.
        self._suggested: dict[MessageQueue, int] = {}
        # Names of brokers before 5.0, which do not know the request of lite consumers.
        self._without_lite: set[str] = set()

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData,
        *,
        commit_offset: int | None = None,
        **how: Unpack[PullKeywords],
    ) -> PullResult:
        """The next messages of a queue.

        The broker holds the request up to ``suspend_ms`` when there is nothing new (0: it answers
        at once) and notes ``commit_offset``, if given, as the group's. Any code but the four of
        PullStatus raises BrokerError.
        """
        answer = await self.request(
            queue, queue_offset, subscription, commit_offset=commit_offset, **how
        )
        return answer.result()

    async def request(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData,
        *,
        commit_offset: int | None = None,
        **how: Unpack[PullKeywords],
    ) -> PullAnswer:
        """Like ``pull``, but the records are not decoded."""
        address, is_slave = await self._session.locate(queue, self._suggested.get(queue, 0))
        # Only a master keeps offsets.
        commit_offset = None if is_slave else commit_offset
        command = self._command(queue, queue_offset, subscription, commit_offset, how)
        timeout_ms = how.get("timeout_ms", TIMEOUT_MS)
        response = await self._session.request(address, command, timeout_ms)
        if (
            response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            and command.code == RequestCode.LITE_PULL_MESSAGE
        ):
            self._without_lite.add(queue.broker_name)
            command = self._command(queue, queue_offset, subscription, commit_offset, how)
            response = await self._session.request(address, command, timeout_ms)
        return self._read(response, queue, subscription, address)

    def request_soon(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData,
        *,
        commit_offset: int | None = None,
        **how: Unpack[PullKeywords],
    ) -> PendingPull | None:
        """Like ``request``, sent at once; None if there is no connection to the broker."""
        found = self._session.find_broker(queue.broker_name, self._suggested.get(queue, 0))
        connection = None if found is None else self._session.connection(found[0])
        if found is None or connection is None:
            return None
        address, is_slave = found
        commit_offset = None if is_slave else commit_offset
        command = self._command(queue, queue_offset, subscription, commit_offset, how)
        self._session.prepare(command)
        future = connection.request_soon(command, how.get("timeout_ms", TIMEOUT_MS))
        return PendingPull(
            future, lambda response: self._read(response, queue, subscription, address)
        )

    def _command(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData,
        commit_offset: int | None,
        how: PullKeywords,
    ) -> RemotingCommand:
        return pull_command(
            self._group,
            queue,
            queue_offset,
            subscription,
            max_messages=how["max_messages"],
            max_bytes=how.get("max_bytes", MAX_PULL_BYTES),
            commit_offset=commit_offset,
            suspend_ms=how.get("suspend_ms", SUSPEND_MS),
            carries_subscription=how.get("carries_subscription", False),
            is_lite=how.get("is_lite", False) and queue.broker_name not in self._without_lite,
        )

    def _read(
        self,
        response: RemotingCommand,
        queue: MessageQueue,
        subscription: SubscriptionData,
        address: str,
    ) -> PullAnswer:
        answer = PullAnswer(response, queue, subscription.tags_set, address)
        if answer.suggested_broker_id:
            self._suggested[queue] = answer.suggested_broker_id
        else:
            self._suggested.pop(queue, None)
        return answer

    def forget(self, queue: MessageQueue) -> None:
        """Pull from the master again when the queue comes back."""
        self._suggested.pop(queue, None)


def pull_command(
    group: str,
    queue: MessageQueue,
    queue_offset: int,
    subscription: SubscriptionData,
    *,
    max_messages: int,
    max_bytes: int = MAX_PULL_BYTES,
    commit_offset: int | None = None,
    suspend_ms: int = SUSPEND_MS,
    carries_subscription: bool = False,
    is_lite: bool = False,
) -> RemotingCommand:
    """The request. Without ``carries_subscription`` the broker uses what the heartbeat said.

    ``is_lite`` makes it LITE_PULL_MESSAGE, which 4.x brokers do not know.
    """
    sys_flag = 0
    if commit_offset is not None:
        sys_flag |= _COMMIT_OFFSET
    if suspend_ms:
        sys_flag |= _SUSPEND
    if carries_subscription:
        sys_flag |= _SUBSCRIPTION
    if is_lite:
        sys_flag |= _LITE
    # The fields of PullRequest, written out for speed.
    fields = {
        "bname": queue.broker_name,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "consumerGroup": group,
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(max_messages),
        "sysFlag": str(sys_flag),
        "commitOffset": str(commit_offset or 0),
        "suspendTimeoutMillis": str(suspend_ms),
        "subVersion": str(subscription.sub_version),
        "expressionType": subscription.expression_type,
        "maxMsgBytes": str(max_bytes),
    }
    if carries_subscription:
        fields["subscription"] = subscription.sub_string
        if is_tag_type(subscription.expression_type):
            # The request carries the expression itself, so there is no version to compare.
            fields["subVersion"] = "0"
    code = RequestCode.LITE_PULL_MESSAGE if is_lite else RequestCode.PULL_MESSAGE
    return RemotingCommand(code, fields)


def read_answer(
    response: RemotingCommand,
    queue: MessageQueue,
    tags: Collection[str] = (),
    address: str = "",
) -> PullResult:
    """The answer to a pull; BrokerError for a code that is not one of PullStatus.

    Messages whose tag is not among ``tags``, if any are given, are left out: brokers compare only
    hashes.
    """
    return PullAnswer(response, queue, tags, address).result()


def decode_messages(
    records: bytes,
    queue: MessageQueue,
    more_properties: bytes = b"",
    *,
    offset_delta: int = 0,
    tags: frozenset[str] = frozenset(),
) -> list[ReceivedMessage]:
    """Decode consecutive stored records as messages of a queue.

    ``more_properties``, which may not have a tag, are added to each message; ``offset_delta`` is
    what a static topic's queue adds to the offsets of its broker. If there are ``tags``, messages
    with other tags or none are left out.
    """
    messages: list[ReceivedMessage] = []
    topic = _ExpectedTopic(queue.topic)
    total = len(records)
    position = 0
    while position < total:
        start = position
        if not offset_delta:
            position = _add_plain(messages, records, start, queue, topic, more_properties, tags)
        if position == start:
            unusual, position = _decode_unusual(
                records, start, queue, offset_delta, more_properties
            )
            messages += [each for each in unusual if not tags or each.tags in tags]
    return messages


class _ExpectedTopic:
    """The topic that most records have: its bytes are compared and not decoded."""

    __slots__ = ("name", "raw")

    def __init__(self, name: str) -> None:
        raw = name.encode("utf-8", "replace")
        if len(raw) > MAX_TOPIC_BYTES_V1:
            name, raw = "", b""
        self.name = name
        self.raw = bytes((len(raw),)) + raw

    def read(self, records: bytes, topic_at: int, end: int) -> int:
        """Expect the topic of this record from now on; returns where its name ends."""
        name_end = topic_at + records[topic_at] + 1
        if name_end + 2 > end or records[topic_at] > MAX_TOPIC_BYTES_V1:
            return end
        self.raw = records[topic_at:name_end]
        self.name = _text(self.raw[1:])
        return name_end


def _add_plain(
    messages: list[ReceivedMessage],
    records: bytes,
    position: int,
    queue: MessageQueue,
    topic: _ExpectedTopic,
    more_properties: bytes,
    tags: frozenset[str],
) -> int:
    """Add messages of the plain records at ``position``; returns where the first other begins."""
    total = len(records)
    queue_id = queue.queue_id
    while position < total:
        if IS_COMPILED:
            position = core_records.add_messages(
                messages,
                records,
                position,
                ReceivedMessage,
                queue,
                queue_id,
                topic.name,
                topic.raw,
                more_properties,
                tags,
            )
            if position == total:
                break
        if total - position < _MIN_BYTES:
            raise ProtocolError(f"{total - position} bytes at the end are not a record")
        size, magic, its_queue_id, queue_offset, sys_flag, born_port, store_port, length = (
            _CHECKED.unpack_from(records, position)
        )
        if magic != MAGIC_V1 or sys_flag & _UNUSUAL or its_queue_id != queue_id:
            break
        end = position + size
        topic_at = position + _HEAD_BYTES + length
        # Each check makes sure that the next one reads within the record.
        if length < 0 or topic_at + 3 > end or end > total or born_port or store_port:
            raise _malformed(records, position)
        if records.startswith(topic.raw, topic_at):
            properties_at = topic_at + len(topic.raw) + 2
        else:
            properties_at = topic.read(records, topic_at, end) + 2
        if properties_at > end:
            raise _malformed(records, position)
        properties_bytes = records[properties_at - 2] << 8 | records[properties_at - 1]
        if properties_at + properties_bytes != end or properties_bytes > MAX_PROPERTIES_BYTES:
            raise _malformed(records, position)
        record = records[position:end]
        message = ReceivedMessage(queue_offset, topic.name, queue, length, record, more_properties)
        if not tags or message.tags in tags:
            messages.append(message)
        position = end
    return position


def _decode_unusual(
    records: bytes, position: int, queue: MessageQueue, offset_delta: int, more_properties: bytes
) -> tuple[list[ReceivedMessage], int]:
    """Decode a record of a long topic, with IPv6 hosts or of a static topic, or a batch that is
    stored as one record; returns its messages and where the next record begins."""
    record, end = decode_record(records, position, check_crc=False)
    # A static topic's queue has another number and other offsets than the broker's own.
    record.queue_id = queue.queue_id
    record.queue_offset += offset_delta
    if record.sys_flag & _WRAPPED != _WRAPPED:
        return [_message(record, queue, more_properties)], end
    body = decompress(record.body, record.sys_flag, MAX_BODY_BYTES)
    record.sys_flag = without_compression(record.sys_flag & ~_WRAPPED)
    return [
        _message(
            replace(
                record,
                body=entry.body,
                properties=entry.properties,
                flag=entry.flag,
                queue_offset=record.queue_offset + index,
            ),
            queue,
            more_properties,
        )
        for index, entry in enumerate(iter_batch(body))
    ], end


def _message(record: Record, queue: MessageQueue, more_properties: bytes) -> ReceivedMessage:
    record.properties = join_properties(record.properties, more_properties)
    message = ReceivedMessage.from_record(record, queue.broker_name)
    message.queue = queue
    return message


def _text(topic: bytes) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the topic of a record is not UTF-8: {error}") from error


def _malformed(records: bytes, position: int) -> ProtocolError:
    head = RECORD_HEAD.unpack_from(records, position)
    return ProtocolError(
        f"a record of {head[0]} bytes is malformed: its body has {head[16]} bytes, its ports are "
        f"{head[10]} and {head[13]}"
    )
