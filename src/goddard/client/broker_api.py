"""The requests that clients make, one function each: typed values in, typed values out.

Every function takes who makes the request (``Caller``, usually the Session) and where it goes. A
broker that refuses is a BrokerError; an answer that cannot be read is a ProtocolError; a request
that got no answer is a RemotingError. Nothing is kept here, nothing is retried.
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
    """Who makes requests to brokers."""

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response, whatever its code."""

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response that says success; BrokerError for any other."""

    async def oneway(self, address: str, command: RemotingCommand) -> None: ...


class NameServerCaller(Protocol):
    """Who makes requests to whichever name server answers."""

    async def request_name_server(
        self, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response, whatever its code."""


class Boundary(enum.StrEnum):
    """Which of several messages stored in the same millisecond a search by time means."""

    LOWER = "LOWER"
    UPPER = "UPPER"


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """What a broker's index knows of a key: stored records back to back, and how fresh it is."""

    records: bytes
    index_last_update_timestamp_ms: int
    index_last_update_physical_offset: int


def command(code: RequestCode, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand(code, header.encode() if header is not None else None, body)


def refusal(response: RemotingCommand, address: str) -> BrokerError:
    """The error that a response which does not say success stands for."""
    return BrokerError(response.code, response.remark or "", address)


async def read(response: RemotingCommand, kind: type[T]) -> T:
    """The JSON body of a response; a long one is read by a thread, as fastjson's dialect is slow to
    read."""
    if len(response.body) <= MAX_SLOW_BYTES:
        return decode_body(response.body, kind)
    return await asyncio.to_thread(
        decode_body, response.body, kind, max_dialect_bytes=MAX_FRAME_BYTES
    )


# --- Name server ----------------------------------------------------------------------------------


async def topic_route(
    caller: NameServerCaller, topic: str, *, timeout_ms: int = API_TIMEOUT_MS
) -> TopicRoute | None:
    """Where a topic lives (105); None if the name server does not know it."""
    header = GetRouteRequest(topic=topic, accept_standard_json_only=True)
    response = await caller.request_name_server(
        command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header), timeout_ms
    )
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if response.code != ResponseCode.SUCCESS:
        raise refusal(response, "")
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
        raise refusal(response, "")
    return await read(response, ClusterInfo)


# --- Offsets of a queue ---------------------------------------------------------------------------


async def max_offset(
    caller: Caller, address: str, queue: MessageQueue, *, timeout_ms: int = API_TIMEOUT_MS
) -> int:
    """The queue offset that the next message gets (30); 0 of a queue that does not exist."""
    header = GetMaxOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name, committed=True
    )
    response = await caller.call(address, command(RequestCode.GET_MAX_OFFSET, header), timeout_ms)
    return OffsetResponse.decode(response.fields).offset


async def min_offset(
    caller: Caller, address: str, queue: MessageQueue, *, timeout_ms: int = API_TIMEOUT_MS
) -> int:
    """The queue offset of the oldest message that is kept (31)."""
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
    """The queue offset of the first message stored at a time or later (29)."""
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
    """When the oldest message of a queue was stored (32); -1 if there is none."""
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
    """Where a group stands in a queue (14); None if the broker knows of no offset.

    Unless ``set_zero_if_not_found`` is False a broker answers 0 for a group that is new to a queue
    whose first message is still in memory.
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
        raise refusal(response, address)
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
    """Say where a group stands in a queue (15), and wait for the broker to know."""
    await caller.call(address, _update_offset_command(group, queue, offset), timeout_ms)


async def update_consumer_offset_oneway(
    caller: Caller, address: str, group: str, queue: MessageQueue, offset: int
) -> None:
    """Say where a group stands in a queue (15), as consumers do every few seconds."""
    await caller.oneway(address, _update_offset_command(group, queue, offset))


# --- Membership -----------------------------------------------------------------------------------


async def heartbeat(
    caller: Caller, address: str, data: HeartbeatData, *, timeout_ms: int = API_TIMEOUT_MS
) -> tuple[int, HeartbeatResponse]:
    """Tell a broker who we are (34); gives its version, and what it says about subscriptions."""
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
    """Leave groups of a broker (35)."""
    header = UnregisterClientRequest(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    await caller.call(address, command(RequestCode.UNREGISTER_CLIENT, header), timeout_ms)


async def consumer_ids(
    caller: Caller, address: str, group: str, *, timeout_ms: int = API_TIMEOUT_MS
) -> list[str]:
    """The client ids of a group's consumers (38).

    A broker that knows none refuses with SYSTEM_ERROR: that is a BrokerError here too.
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
    """Have a broker compile a subscription's expression (46); BrokerError if it cannot."""
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
    """Lock queues for an orderly consumer (41), for 60 s; gives those that are ours now."""
    body = _lock_body(group, client_id, queues, only_this_broker)
    response = await caller.call(address, command(RequestCode.LOCK_BATCH_MQ, body=body), timeout_ms)
    if not response.body:
        return set()
    answer = await read(response, LockQueuesAnswer)
    return set(map(MessageQueue.from_body, answer.locked))


async def unlock_queues(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    only_this_broker: bool = False,
    timeout_ms: int = 1_000,
) -> None:
    """Give locked queues back (42), and wait for the broker to know."""
    body = _lock_body(group, client_id, queues, only_this_broker)
    await caller.call(address, command(RequestCode.UNLOCK_BATCH_MQ, body=body), timeout_ms)


async def unlock_queues_oneway(
    caller: Caller,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    only_this_broker: bool = False,
) -> None:
    """Give locked queues back (42)."""
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
    timeout_ms: int = 5_000,
) -> None:
    """Have a broker deliver a message again later (36).

    ``delay_level`` 0 lets the broker choose by the tries so far; below 0 is the dead-letter topic.
    """
    header = SendBackRequest(
        offset=physical_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message_id,
        origin_topic=topic,
        unit_mode=unit_mode,
        max_reconsume_times=max_reconsume_times,
        bname=broker_name,
    )
    await caller.call(address, command(RequestCode.CONSUMER_SEND_MSG_BACK, header), timeout_ms)


async def end_transaction_oneway(
    caller: Caller, address: str, header: EndTransactionRequest, *, remark: str | None = None
) -> None:
    """Commit or roll back (37), as producers do: the broker asks again if it does not arrive.

    ``remark`` says why, if the listener failed.
    """
    ending = command(RequestCode.END_TRANSACTION, header)
    ending.remark = remark
    await caller.oneway(address, ending)


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
    timeout_ms: int = API_TIMEOUT_MS,
) -> FoundRecords:
    """Records that a broker's index has under a key (12); may include others of the same hash.

    ``index_type`` is K for keys, U for unique keys, T for tags (from 5.4 on).
    """
    header = QueryMessageRequest(
        topic=topic,
        key=key,
        max_num=max_count,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        index_type=index_type or ("U" if by_unique_key else "K"),
        by_unique_key=by_unique_key,
    )
    response = await caller.request(address, command(RequestCode.QUERY_MESSAGE, header), timeout_ms)
    if response.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
        raise refusal(response, address)
    if response.code == ResponseCode.QUERY_NOT_FOUND and not response.fields:
        return FoundRecords(b"", 0, 0)
    freshness = QueryMessageResponse.decode(response.fields)
    return FoundRecords(
        bytes(response.body),
        freshness.index_last_update_timestamp,
        freshness.index_last_update_phyoffset,
    )
