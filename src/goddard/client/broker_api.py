"""The requests that clients make to brokers and name servers, one function for each.

Every function takes the object that makes the request (``Caller``, usually the Session) and the
address to send it to. A response with an error code raises BrokerError, one that cannot be decoded
ProtocolError, and a request without a response RemotingError. The functions have no state and do
not retry. The numbers in their docstrings are request codes.
"""

import asyncio
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from goddard.client.errors import BrokerError
from goddard.client.values import MessageQueue
from goddard.errors import ProtocolError
from goddard.protocol.bodies import (
    MAX_SLOW_BYTES,
    ClusterInfo,
    TopicRoute,
    decode_body,
    encode_body,
)
from goddard.protocol.bodies_client import (
    CheckClientBody,
    ConsumerList,
    HeartbeatData,
    LockQueuesAnswer,
    LockQueuesBody,
    SubscriptionData,
)
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import MAX_FRAME_BYTES, RemotingCommand
from goddard.protocol.headers.cluster import GetRouteRequest
from goddard.protocol.headers.header import Header
from goddard.protocol.headers.message import (
    EndTransactionRequest,
    GetConsumerListRequest,
    GetEarliestStoreTimeRequest,
    GetEarliestStoreTimeResponse,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    HeartbeatResponse,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    QueryMessageRequest,
    QueryMessageResponse,
    SearchOffsetRequest,
    SendBackRequest,
    UnregisterClientRequest,
    UpdateConsumerOffsetRequest,
    ViewMessageRequest,
)

# RocketMQ's mqClientApiTimeout.
API_TIMEOUT_MS: Final = 3_000

T = TypeVar("T")


class Caller(Protocol):
    """Makes requests to brokers."""

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response, whatever its code."""

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response, if its code is SUCCESS; otherwise BrokerError."""

    async def oneway(self, address: str, command: RemotingCommand) -> None: ...


class NameServerCaller(Protocol):
    """Makes requests to the first name server that answers."""

    async def request_name_server(
        self, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response, whatever its code."""


class Boundary(enum.StrEnum):
    """Which message a search by time finds if several were stored in the same millisecond."""

    LOWER = "LOWER"
    UPPER = "UPPER"


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The records found in a broker's index, one after the other, and its last update."""

    records: bytes
    index_last_update_timestamp_ms: int
    index_last_update_physical_offset: int


def command(code: RequestCode, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand(code, header.encode() if header is not None else None, body)


def broker_error(response: RemotingCommand, address: str) -> BrokerError:
    """The error for a response whose code is not SUCCESS."""
    return BrokerError(response.code, response.remark or "", address)


async def read(response: RemotingCommand, kind: type[T]) -> T:
    """Decode the JSON body of a response. A long one is decoded in a thread, because the decoder
    of fastjson's dialect is slow.
    """
    if len(response.body) <= MAX_SLOW_BYTES:
        return decode_body(response.body, kind)
    return await asyncio.to_thread(
        decode_body, response.body, kind, max_dialect_bytes=MAX_FRAME_BYTES
    )


# --- Name server ----------------------------------------------------------------------------------


async def topic_route(
    caller: NameServerCaller, topic: str, *, timeout_ms: int = API_TIMEOUT_MS
) -> TopicRoute | None:
    """The route of a topic (105); None if the name server does not know the topic."""
    header = GetRouteRequest(topic=topic, accept_standard_json_only=True)
    response = await caller.request_name_server(
        command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header), timeout_ms
    )
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response, "")
    if not response.body:
        return None
    return await read(response, TopicRoute)


async def cluster_info(
    caller: NameServerCaller, *, timeout_ms: int = API_TIMEOUT_MS
) -> ClusterInfo:
    """All clusters and brokers (106)."""
    response = await caller.request_name_server(
        command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout_ms
    )
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response, "")
    return await read(response, ClusterInfo)


# --- Offsets of a queue ---------------------------------------------------------------------------


async def max_offset(
    caller: Caller, address: str, queue: MessageQueue, *, timeout_ms: int = API_TIMEOUT_MS
) -> int:
    """The queue offset that the next message will get (30); 0 if the queue does not exist."""
    header = GetMaxOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name, committed=True
    )
    response = await caller.call(address, command(RequestCode.GET_MAX_OFFSET, header), timeout_ms)
    return OffsetResponse.decode(response.fields).offset


async def min_offset(
    caller: Caller, address: str, queue: MessageQueue, *, timeout_ms: int = API_TIMEOUT_MS
) -> int:
    """The queue offset of the oldest message still stored (31)."""
    header = GetMinOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
    )
    response = await caller.call(address, command(RequestCode.GET_MIN_OFFSET, header), timeout_ms)
    return OffsetResponse.decode(response.fields).offset


async def search_offset(
    caller: Caller,
    address: str,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    boundary: Boundary = Boundary.LOWER,
    timeout_ms: int = API_TIMEOUT_MS,
) -> int:
    """The queue offset of the first message stored at or after a time (29)."""
    header = SearchOffsetRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        bname=queue.broker_name,
        timestamp=timestamp_ms,
        boundary_type=boundary.value,
    )
    response = await caller.call(
        address, command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header), timeout_ms
    )
    return OffsetResponse.decode(response.fields).offset


async def earliest_store_time_ms(
    caller: Caller, address: str, queue: MessageQueue, *, timeout_ms: int = API_TIMEOUT_MS
) -> int:
    """The store time of the oldest message of a queue (32); -1 if the queue is empty."""
    header = GetEarliestStoreTimeRequest(
        topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
    )
    response = await caller.call(
        address, command(RequestCode.GET_EARLIEST_MSG_STORETIME, header), timeout_ms
    )
    return GetEarliestStoreTimeResponse.decode(response.fields).timestamp


# --- Offsets of a group ---------------------------------------------------------------------------


async def query_consumer_offset(
    caller: Caller,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    set_zero_if_not_found: bool | None = None,
    timeout_ms: int = API_TIMEOUT_MS,
) -> int | None:
    """The offset of a group in a queue (14); None if the broker has none.

    Unless ``set_zero_if_not_found`` is False, a broker answers 0 for a group without an offset if
    the first message of the queue is still in memory.
    """
    header = QueryConsumerOffsetRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        bname=queue.broker_name,
        set_zero_if_not_found=set_zero_if_not_found,
    )
    response = await caller.request(
        address, command(RequestCode.QUERY_CONSUMER_OFFSET, header), timeout_ms
    )
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response, address)
    return OffsetResponse.decode(response.fields).offset


def _update_offset_command(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    header = UpdateConsumerOffsetRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        bname=queue.broker_name,
    )
    return command(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def update_consumer_offset(
    caller: Caller,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    timeout_ms: int = API_TIMEOUT_MS,
) -> None:
    """Commit the offset of a group in a queue (15), and wait for the response."""
    await caller.call(address, _update_offset_command(group, queue, offset), timeout_ms)


async def update_consumer_offset_oneway(
    caller: Caller, address: str, group: str, queue: MessageQueue, offset: int
) -> None:
    """Commit the offset of a group in a queue (15) without a response, as consumers do every few
    seconds.
    """
    await caller.oneway(address, _update_offset_command(group, queue, offset))


# --- Membership -----------------------------------------------------------------------------------


async def heartbeat(
    caller: Caller, address: str, data: HeartbeatData, *, timeout_ms: int = API_TIMEOUT_MS
) -> tuple[int, HeartbeatResponse]:
    """Register a client at a broker (34); returns the broker's version and its response header."""
    response = await caller.call(
        address, command(RequestCode.HEART_BEAT, body=encode_body(data)), timeout_ms
    )
    return response.version, HeartbeatResponse.decode(response.fields)


async def unregister_client(
    caller: Caller,
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout_ms: int = API_TIMEOUT_MS,
) -> None:
    """Remove a client from its groups at a broker (35)."""
    header = UnregisterClientRequest(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    await caller.call(address, command(RequestCode.UNREGISTER_CLIENT, header), timeout_ms)


async def consumer_ids(
    caller: Caller, address: str, group: str, *, timeout_ms: int = API_TIMEOUT_MS
) -> list[str]:
    """The client ids of a group's consumers (38).

    BrokerError with SYSTEM_ERROR if the broker knows no consumer of the group.
    """
    header = GetConsumerListRequest(consumer_group=group)
    response = await caller.call(
        address, command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header), timeout_ms
    )
    return (await read(response, ConsumerList)).consumer_id_list


async def check_client_config(
    caller: Caller,
    address: str,
    client_id: str,
    group: str,
    subscription: SubscriptionData,
    *,
    namespace: str | None = None,
    timeout_ms: int = API_TIMEOUT_MS,
) -> None:
    """Have a broker compile a subscription's expression (46); BrokerError if it is not valid."""
    body = CheckClientBody(
        client_id=client_id, group=group, namespace=namespace, subscription_data=subscription
    )
    await caller.call(
        address, command(RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body)), timeout_ms
    )


# --- Queue locks ----------------------------------------------------------------------------------


def _lock_body(
    group: str, client_id: str, queues: Iterable[MessageQueue], only_this_broker: bool
) -> bytes:
    return encode_body(
        LockQueuesBody(
            client_id=client_id,
            consumer_group=group,
            mq_set=[queue.to_body() for queue in queues],
            only_this_broker=only_this_broker,
        )
    )


async def lock_queues(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    only_this_broker: bool = False,
    timeout_ms: int = 1_000,
) -> set[MessageQueue]:
    """Lock queues for an orderly consumer (41) for 60 s; returns those that were locked."""
    body = _lock_body(group, client_id, queues, only_this_broker)
    response = await caller.call(address, command(RequestCode.LOCK_BATCH_MQ, body=body), timeout_ms)
    if not response.body:
        return set()
    answer = await read(response, LockQueuesAnswer)
    return set(map(MessageQueue.from_body, answer.locked))


async def unlock_queues_oneway(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    only_this_broker: bool = False,
) -> None:
    """Unlock queues (42) without a response."""
    body = _lock_body(group, client_id, queues, only_this_broker)
    await caller.oneway(address, command(RequestCode.UNLOCK_BATCH_MQ, body=body))


# --- Messages -------------------------------------------------------------------------------------


async def send_back(
    caller: Caller,
    address: str,
    group: str,
    physical_offset: int,
    *,
    delay_level: int,
    max_reconsume_times: int,
    message_id: str | None = None,
    topic: str | None = None,
    broker_name: str | None = None,
    unit_mode: bool = False,
    failure: str | None = None,
    timeout_ms: int = 5_000,
) -> None:
    """Send a message back, so that the broker delivers it again later (36).

    With ``delay_level`` 0 the broker chooses the delay by the number of deliveries so far; below 0
    the message goes to the dead-letter topic. ``failure`` is why it was not consumed.
    """
    header = SendBackRequest(
        offset=physical_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message_id,
        origin_topic=topic,
        unit_mode=unit_mode,
        max_reconsume_times=max_reconsume_times,
        consume_failure=failure,
        bname=broker_name,
    )
    await caller.call(address, command(RequestCode.CONSUMER_SEND_MSG_BACK, header), timeout_ms)


async def end_transaction_oneway(
    caller: Caller, address: str, header: EndTransactionRequest, *, remark: str | None = None
) -> None:
    """Commit or roll back a transaction (37) without a response, as producers do: if the request is
    lost, the broker checks the transaction again.

    ``remark`` is the error of a listener that failed.
    """
    request = command(RequestCode.END_TRANSACTION, header)
    request.remark = remark
    await caller.oneway(address, request)


async def view_message(
    caller: Caller,
    address: str,
    physical_offset: int,
    *,
    topic: str | None = None,
    timeout_ms: int = API_TIMEOUT_MS,
) -> bytes:
    """The stored record at a physical offset (33)."""
    header = ViewMessageRequest(topic=topic, offset=physical_offset)
    response = await caller.call(
        address, command(RequestCode.VIEW_MESSAGE_BY_ID, header), timeout_ms
    )
    if not response.body:
        raise ProtocolError(f"{address} answered with no message at {physical_offset}")
    return bytes(response.body)


async def query_messages(
    caller: Caller,
    address: str,
    topic: str,
    key: str,
    *,
    max_count: int,
    begin_ms: int,
    end_ms: int,
    by_unique_key: bool = False,
    index_type: str | None = None,
    last_key: str | None = None,
    timeout_ms: int = API_TIMEOUT_MS,
) -> FoundRecords:
    """The records with a key in a broker's index (12), and any other records with the same hash.

    ``index_type`` is K for keys, U for unique keys, T for tags (from 5.4 on). ``last_key`` is where
    the previous page ended (from 5.4 on, for indexes in RocksDB).
    """
    header = QueryMessageRequest(
        topic=topic,
        key=key,
        max_num=max_count,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        index_type=index_type or ("U" if by_unique_key else "K"),
        last_key=last_key,
        by_unique_key=by_unique_key,
    )
    response = await caller.request(address, command(RequestCode.QUERY_MESSAGE, header), timeout_ms)
    if response.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
        raise broker_error(response, address)
    if response.code == ResponseCode.QUERY_NOT_FOUND and not response.fields:
        return FoundRecords(b"", 0, 0)
    freshness = QueryMessageResponse.decode(response.fields)
    return FoundRecords(
        bytes(response.body),
        freshness.index_last_update_timestamp,
        freshness.index_last_update_phyoffset,
    )
