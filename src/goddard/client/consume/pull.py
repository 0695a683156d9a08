"""Pulling: a pull request out, its answer in, and the stored records in it as messages.

``pull_command``, ``read_answer`` and ``decode_messages`` do no I/O. ``Puller`` asks a queue's
brokers on behalf of a group and remembers which of them it was told to ask next; it belongs to the
event loop.

Decoding is made for speed, as every message consumed comes through it: one unpacking checks a
record and one slice copies it; what is in it is read when somebody asks (``ReceivedMessage``). It
trusts nothing: malformed records raise ProtocolError.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum
from struct import Struct
from typing import Final, Protocol, Required, TypedDict, Unpack

from goddard.client import broker_api
from goddard.client.errors import BrokerError, BrokerNotFoundError
from goddard.client.message import RECORD_HEAD, ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import ProtocolError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.compression import decompress, without_compression
from goddard.protocol.filter import is_tag_type
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers_message import PullResponse
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

# RocketMQ's defaults: how long a broker may hold a push consumer's pull, and how long we wait.
SUSPEND_MS: Final = 15_000
TIMEOUT_MS: Final = 30_000
MAX_PULL_BYTES: Final = 256 * 1024

# PullSysFlag's bits.
_COMMIT_OFFSET: Final = 0x1
_SUSPEND: Final = 0x2
_SUBSCRIPTION: Final = 0x4
_LITE: Final = 0x10

# Of the fixed part of a record: size, magic, queue, queue offset and system flag, what must be 0 of
# the two ports (their upper halves), and the length of the body.
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
    """``messages`` are those that passed the filter: there may be none of them even when FOUND."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    messages: list[ReceivedMessage]


class PullAnswer:
    """The answer to a pull, with the records in it as they came: they are read by ``result``."""

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
            raise ProtocolError(f"{header.next_begin_offset} is no offset to pull from next")
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
        """With its messages; ProtocolError if they cannot be read.

        Those whose tag is not wanted are left out, if any are: brokers compare hashes.
        """
        header = self._header
        messages: list[ReceivedMessage] = []
        if self._records:
            # As properties: how far the queue reached when it was pulled tells the lag.
            bounds = b"MIN_OFFSET\x01%d\x02MAX_OFFSET\x01%d\x02" % (
                header.min_offset,
                header.max_offset,
            )
            messages = decode_messages(
                self._records, self._queue, bounds, offset_delta=header.offset_delta or 0
            )
            if self._tags:
                wanted = frozenset(self._tags)
                messages = [message for message in messages if message.tags in wanted]
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

    async def refresh_route(self, topic: str) -> bool: ...

    def prepare(self, command: RemotingCommand) -> None: ...

    def connection(self, address: str) -> Connection | None: ...


class PullKeywords(TypedDict, total=False):
    """See ``pull_command``."""

    max_messages: Required[int]
    max_bytes: int
    suspend_ms: int
    carries_subscription: bool
    is_lite: bool


class PullUnderWay:
    """A pull that was sent, and is to be waited for or given up."""

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

    def give_up(self) -> None:
        self._future.cancel()


class Puller:
    """The pulls of one group."""

    __slots__ = ("_group", "_session", "_suggested")

    def __init__(self, session: Brokers, group: str) -> None:
        self._session = session
        self._group = group
        # Ids of the brokers to ask; the master's, 0, is left out.
        self._suggested: dict[MessageQueue, int] = {}

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData,
        *,
        timeout_ms: int = TIMEOUT_MS,
        commit_offset: int | None = None,
        **how: Unpack[PullKeywords],
    ) -> PullResult:
        """The next messages of a queue.

        The broker holds the request up to ``suspend_ms`` when there is nothing new (0: it answers
        at once) and notes ``commit_offset``, if given, as the group's. Any code but the four of
        PullStatus raises BrokerError.
        """
        answer = await self.ask(
            queue,
            queue_offset,
            subscription,
            timeout_ms=timeout_ms,
            commit_offset=commit_offset,
            **how,
        )
        return answer.result()

    async def ask(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData,
        *,
        timeout_ms: int = TIMEOUT_MS,
        commit_offset: int | None = None,
        **how: Unpack[PullKeywords],
    ) -> PullAnswer:
        """As ``pull``, but the messages are left to be read."""
        address, is_slave = await self._find(queue)
        command = pull_command(
            self._group,
            queue,
            queue_offset,
            subscription,
            # Only a master keeps offsets.
            commit_offset=None if is_slave else commit_offset,
            **how,
        )
        response = await self._session.request(address, command, timeout_ms)
        return self._read(response, queue, subscription, address)

    def ask_soon(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData,
        *,
        timeout_ms: int = TIMEOUT_MS,
        commit_offset: int | None = None,
        **how: Unpack[PullKeywords],
    ) -> "PullUnderWay | None":
        """As ``ask``, sent at once; None if there is no connection to the broker."""
        found = self._session.find_broker(queue.broker_name, self._suggested.get(queue, 0))
        connection = None if found is None else self._session.connection(found[0])
        if found is None or connection is None:
            return None
        address, is_slave = found
        command = pull_command(
            self._group,
            queue,
            queue_offset,
            subscription,
            commit_offset=None if is_slave else commit_offset,
            **how,
        )
        self._session.prepare(command)
        future = connection.request_soon(command, timeout_ms)
        return PullUnderWay(
            future, lambda response: self._read(response, queue, subscription, address)
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
        """Ask the master again when the queue comes back."""
        self._suggested.pop(queue, None)

    async def _find(self, queue: MessageQueue) -> tuple[str, bool]:
        wanted = self._suggested.get(queue, 0)
        found = self._session.find_broker(queue.broker_name, wanted)
        if found is None:
            await self._session.refresh_route(queue.topic)
            found = self._session.find_broker(queue.broker_name, wanted)
        if found is None:
            raise BrokerNotFoundError(queue.broker_name)
        return found


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
    """The request. Without ``carries_subscription`` the broker takes what the heartbeat said.

    A lite consumer's is LITE_PULL_MESSAGE, which 4.x brokers do not know: for them, ``is_lite`` is
    left out and nothing else changes.
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
    # PullRequest's fields; written out because this is done for every few messages.
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
            # Nothing to compare it with: the expression itself is there.
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

    Messages whose tag is not among ``tags`` are left out, if there are any: brokers compare hashes.
    """
    return PullAnswer(response, queue, tags, address).result()


def decode_messages(
    records: bytes, queue: MessageQueue, more_properties: bytes = b"", *, offset_delta: int = 0
) -> list[ReceivedMessage]:
    """Stored records back to back, as messages of a queue.

    ``more_properties`` are given to each of them; ``offset_delta`` is what a static topic's queue
    adds to the offsets of its broker.
    """
    messages: list[ReceivedMessage] = []
    add = messages.append
    unpack = _CHECKED.unpack_from
    queue_id = queue.queue_id
    # Most often all records have one topic, the queue's own: it is compared and not decoded.
    topic = queue.topic
    raw_topic = topic.encode("utf-8", "replace")
    if len(raw_topic) > MAX_TOPIC_BYTES_V1:
        topic, raw_topic = "", b""
    topic_bytes = bytes((len(raw_topic),)) + raw_topic
    total = len(records)
    position = 0
    while position < total:
        if total - position < _MIN_BYTES:
            raise ProtocolError(f"{total - position} bytes at the end are no record")
        size, magic, its_queue_id, queue_offset, sys_flag, born_port, store_port, length = unpack(
            records, position
        )
        if magic != MAGIC_V1 or sys_flag & _UNUSUAL or its_queue_id != queue_id or offset_delta:
            unusual, position = _decode_unusual(
                records, position, queue, offset_delta, more_properties
            )
            messages += unusual
            continue
        end = position + size
        topic_at = position + _HEAD_BYTES + length
        # What each of the checks lets through, the next one can read: it is within the record.
        if length < 0 or topic_at + 3 > end or end > total or born_port or store_port:
            raise _misfit(records, position)
        if records.startswith(topic_bytes, topic_at):
            properties_at = topic_at + len(topic_bytes) + 2
        else:
            properties_at = topic_at + records[topic_at] + 3
            if properties_at > end or records[topic_at] > MAX_TOPIC_BYTES_V1:
                raise _misfit(records, position)
            topic_bytes = records[topic_at : properties_at - 2]
            topic = _text(topic_bytes[1:])
        if properties_at > end:
            raise _misfit(records, position)
        properties_length = records[properties_at - 2] << 8 | records[properties_at - 1]
        if properties_at + properties_length != end or properties_length > MAX_PROPERTIES_BYTES:
            raise _misfit(records, position)
        record = records[position:end]
        add(ReceivedMessage(queue_offset, topic, queue, length, record, more_properties))
        position = end
    return messages


def _decode_unusual(
    records: bytes, position: int, queue: MessageQueue, offset_delta: int, more_properties: bytes
) -> tuple[list[ReceivedMessage], int]:
    """Records of long topics, with IPv6 hosts, of static topics, and batches that are stored as
    one record; the last become the messages that they hold."""
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


def _misfit(records: bytes, position: int) -> ProtocolError:
    head = RECORD_HEAD.unpack_from(records, position)
    return ProtocolError(
        f"the parts of a record of {head[0]} bytes do not fit: a body of {head[16]}, "
        f"ports {head[10]} and {head[13]}"
    )
