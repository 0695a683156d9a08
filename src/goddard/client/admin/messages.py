"""Administration of messages: finding them, and what became of them.

Every function is a method of ``Admin``; see there. A docstring's brackets give the verb of mqadmin
and the request code.
"""

from collections.abc import Iterable
from typing import Final

from goddard.client import broker_api
from goddard.client.admin.brokers import broker_name
from goddard.client.admin.clients import FORWARDED_TIMEOUT_MS, consumer_connections
from goddard.client.admin.groups import group_progress
from goddard.client.admin.requests import (
    AdminLink,
    ask,
    broker_address,
    each,
    queue_address,
    route,
    route_addresses,
)
from goddard.client.admin.topics import topic_groups
from goddard.client.admin.values import FoundMessages, GroupProgress, MessageTrack, TrackKind
from goddard.client.consume.pull import pull_command
from goddard.client.consume.subscriptions import subscription
from goddard.client.errors import BrokerError, BrokerNotFoundError, ClientError
from goddard.client.message import ReceivedMessage
from goddard.client.trace.records import TraceRecord, decode_trace
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError, ProtocolError
from goddard.protocol.bodies import ConsumeType, MessageModel
from goddard.protocol.bodies_admin import ConsumerConnections
from goddard.protocol.bodies_client import ConsumeDirectlyResult
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers_admin import ConsumeDirectlyRequest, ResumeCheckHalfMessageRequest
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.names import TRACE_TOPIC
from goddard.protocol.record import iter_records

MAX_FOUND: Final = 64
# RocketMQ's for unique keys: the index may have several, as the same id is written by retries.
_MAX_SAME_ID: Final = 32
_LOOK_BACK_MS: Final = 3 * 24 * 60 * 60 * 1000
_END_OF_TIME_MS: Final = 2**63 - 1
_TOOLS_GROUP: Final = "TOOLS_CONSUMER"


def _messages(records: bytes, broker_name: str) -> list[ReceivedMessage]:
    return [ReceivedMessage.from_record(record, broker_name) for record in iter_records(records)]


# --- Finding --------------------------------------------------------------------------------------


async def message(admin: AdminLink, topic: str, message_id: str) -> ReceivedMessage:
    """A message by its id, either of the two [queryMsgById, queryMsgByUniqueKey; 33, 12].

    An id that a broker gave (``offset_message_id``) says where the message is, and is taken for
    one if a broker is registered there. One that the client gave (``message_id``) is looked up in
    the index, of the last three days.
    """
    try:
        host, _ = parse_offset_message_id(message_id)
        await broker_name(admin, str(host))
        return await message_by_offset_id(admin, topic, message_id)
    except (ProtocolError, BrokerNotFoundError):
        pass
    except BrokerError as error:
        # Both kinds look alike: a client's may name a broker, and a place where no message is.
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
    found = await messages_by_unique_key(admin, topic, message_id)
    if not found.messages:
        raise _no_message(f"no message of {topic} has the id {message_id}")
    return found.messages[0]


def _no_message(text: str) -> ClientError:
    return ClientError(
        f"query message finished, but no message: {text}",
        code=ResponseCode.NO_MESSAGE,
        advice="it may be deleted already, or not in the index yet",
    )


async def message_by_offset_id(
    admin: AdminLink, topic: str, offset_message_id: str
) -> ReceivedMessage:
    """A message by the id that its broker gave it [queryMsgById, 33]."""
    host, physical_offset = parse_offset_message_id(offset_message_id)
    address = str(host)
    try:
        name = await broker_name(admin, address)
    except BrokerNotFoundError:
        name = ""  # registered under another address, such as a host's name
    record = await broker_api.view_message(
        admin.session, address, physical_offset, topic=topic, timeout_ms=admin.timeout_ms
    )
    (found,) = _messages(record, name)
    return found


async def messages_by_key(
    admin: AdminLink,
    topic: str,
    key: str,
    *,
    max_count: int = MAX_FOUND,
    begin_ms: int = 0,
    end_ms: int = _END_OF_TIME_MS,
    cluster: str | None = None,
) -> FoundMessages:
    """Messages with one of their KEYS, of every broker [queryMsgByKey, 12].

    ``max_count`` is for each broker.
    """
    return await _search(
        admin,
        topic,
        key,
        max_count=max_count,
        begin_ms=begin_ms,
        end_ms=end_ms,
        cluster=cluster,
        by_unique_key=False,
    )


async def messages_by_unique_key(
    admin: AdminLink,
    topic: str,
    unique_key: str,
    *,
    begin_ms: int | None = None,
    end_ms: int = _END_OF_TIME_MS,
    cluster: str | None = None,
) -> FoundMessages:
    """Messages with an id that the client gave; several, if it was sent again
    [queryMsgByUniqueKey, 12]. Of the last three days unless said otherwise."""
    return await _search(
        admin,
        topic,
        unique_key,
        max_count=_MAX_SAME_ID,
        begin_ms=admin.clock.now_ms() - _LOOK_BACK_MS if begin_ms is None else begin_ms,
        end_ms=end_ms,
        cluster=cluster,
        by_unique_key=True,
    )


async def _search(
    admin: AdminLink,
    topic: str,
    key: str,
    *,
    max_count: int,
    begin_ms: int,
    end_ms: int,
    cluster: str | None,
    by_unique_key: bool,
) -> FoundMessages:
    found = route_addresses(await route(admin, topic), cluster)

    async def of_one(address: str) -> FoundMessages:
        answer = await broker_api.query_messages(
            admin.session,
            address,
            topic,
            key,
            max_count=max_count,
            begin_ms=begin_ms,
            end_ms=end_ms,
            by_unique_key=by_unique_key,
            timeout_ms=admin.timeout_ms * 3,
        )
        return FoundMessages(
            _messages(answer.records, found[address]), answer.index_last_update_timestamp_ms
        )

    answers = await each(found, of_one)
    return merge_found(answers.values(), topic, key, by_unique_key=by_unique_key)


def merge_found(
    answers: Iterable[FoundMessages], topic: str, key: str, *, by_unique_key: bool
) -> FoundMessages:
    """What several brokers found, oldest first, without those that only share the key's hash."""
    messages: list[ReceivedMessage] = []
    index_last_update_ms = 0
    for answer in answers:
        index_last_update_ms = max(index_last_update_ms, answer.index_last_update_ms)
        messages += (
            one
            for one in answer.messages
            if (one.message_id == key if by_unique_key else key in one.keys and one.topic == topic)
        )
    messages.sort(key=lambda one: (one.store_timestamp_ms, one.queue, one.queue_offset))
    return FoundMessages(messages, index_last_update_ms)


async def message_by_offset(
    admin: AdminLink, queue: MessageQueue, queue_offset: int
) -> ReceivedMessage:
    """The message at an offset of a queue [queryMsgByOffset, 11]."""
    messages = await messages_by_queue(admin, queue, queue_offset, max_count=1)
    if not messages:
        raise _no_message(f"{queue} has none at {queue_offset}")
    return messages[0]


async def messages_by_queue(
    admin: AdminLink,
    queue: MessageQueue,
    queue_offset: int,
    *,
    max_count: int = 32,
    tags: str = "*",
) -> list[ReceivedMessage]:
    """Messages of a queue from an offset on; a broker gives up to 32 at a time
    [printMsgByQueue, 11]."""
    command = pull_command(
        _TOOLS_GROUP,
        queue,
        queue_offset,
        subscription(queue.topic, tags, version_ms=0),
        max_messages=max_count,
        suspend_ms=0,
        carries_subscription=True,
    )
    address = await queue_address(admin, queue)
    response = await admin.session.request(address, command, admin.timeout_ms)
    if response.code in (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    ):
        return []
    if response.code != ResponseCode.SUCCESS:
        raise broker_api.refusal(response, address)
    return _messages(bytes(response.body), queue.broker_name)


# --- What became of them --------------------------------------------------------------------------


async def message_track(admin: AdminLink, one: ReceivedMessage) -> list[MessageTrack]:
    """What became of a message in every group that consumes its topic [queryMsgById, 300, 203,
    208]."""

    async def of_group(group: str) -> MessageTrack:
        try:
            online = await consumer_connections(admin, group)
            if online.consume_type is not ConsumeType.PASSIVELY:
                is_pull = online.consume_type is ConsumeType.ACTIVELY
                return MessageTrack(group, TrackKind.PULL if is_pull else TrackKind.UNKNOWN)
            progress = await group_progress(admin, group)
        except BrokerError as error:
            is_offline = error.code == ResponseCode.CONSUMER_NOT_ONLINE
            kind = TrackKind.NOT_ONLINE if is_offline else TrackKind.UNKNOWN
            return MessageTrack(group, kind, f"CODE:{error.code} DESC:{error.remark}")
        except GoddardError as error:
            return MessageTrack(group, TrackKind.UNKNOWN, str(error))
        return MessageTrack(group, track_kind(one, online, progress))

    tracks = await each(await topic_groups(admin, one.topic), of_group)
    return list(tracks.values())


def track_kind(
    one: ReceivedMessage, online: ConsumerConnections, progress: GroupProgress
) -> TrackKind:
    """What became of a message in a group of push consumers that stands where it stands."""
    if online.message_model is MessageModel.BROADCASTING:
        return TrackKind.BROADCASTING
    standing = progress.queues.get(one.queue)
    if standing is None or standing.consumer_offset <= one.queue_offset:
        return TrackKind.NOT_CONSUMED_YET
    wanted = online.subscription_table.get(one.topic)
    if wanted is None or not wanted.tags_set or "*" in wanted.tags_set:
        return TrackKind.CONSUMED
    return TrackKind.CONSUMED if one.tags in wanted.tags_set else TrackKind.CONSUMED_BUT_FILTERED


async def message_trace(
    admin: AdminLink, message_id: str, *, trace_topic: str = TRACE_TOPIC
) -> list[TraceRecord]:
    """What clients with tracing on noted about a message, in that order [queryMsgTraceById, 12]."""
    found = await messages_by_key(admin, trace_topic, message_id)
    records = (
        record
        for one in found.messages
        for record in decode_trace(one.body.decode("utf-8", "replace"))
    )
    return [record for record in records if record.message_id == message_id]


async def consume_directly(
    admin: AdminLink, group: str, client_id: str, topic: str, message_id: str
) -> ConsumeDirectlyResult:
    """Have one consumer consume one message now, whatever its offsets [queryMsgById -g -d, 309]."""
    one = await message(admin, topic, message_id)
    header = ConsumeDirectlyRequest(
        consumer_group=group, client_id=client_id, msg_id=one.offset_message_id, topic=topic
    )
    response = await ask(
        admin,
        await broker_address(admin, one.broker_name) if one.broker_name else one.store_host,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        header,
        timeout_ms=max(admin.timeout_ms, FORWARDED_TIMEOUT_MS),
    )
    return await broker_api.read(response, ConsumeDirectlyResult)


async def resume_transaction_checks(
    admin: AdminLink, message_id: str, topic: str | None = None
) -> None:
    """Have a broker ask again about a transaction that it had given up [323].

    The id is the broker's, of the half message.
    """
    host, _ = parse_offset_message_id(message_id)
    header = ResumeCheckHalfMessageRequest(topic=topic, msg_id=message_id)
    await ask(admin, str(host), RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
