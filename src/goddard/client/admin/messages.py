"""Administration of messages: find them, and what became of them.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from collections.abc import Iterable
from typing import Final

from goddard.client import broker_api
from goddard.client.admin.checks import Count, Offset, Text, TimeMs
from goddard.client.admin.clients import FORWARDED_TIMEOUT_MS, ClientMethods
from goddard.client.admin.groups import GroupMethods
from goddard.client.admin.requests import (
    ask,
    broker_address,
    each,
    queue_address,
    route,
    route_addresses,
)
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
# RocketMQ's limit for unique keys. Retries write the same id, so the index may have several.
_MAX_SAME_ID: Final = 32
_LOOK_BACK_MS: Final = 3 * 24 * 60 * 60 * 1000
_END_OF_TIME_MS: Final = 2**63 - 1
_TOOLS_GROUP: Final = "TOOLS_CONSUMER"


def _messages(records: bytes, broker_name: str) -> list[ReceivedMessage]:
    return [ReceivedMessage.from_record(record, broker_name) for record in iter_records(records)]


def _no_message(text: str) -> ClientError:
    return ClientError(
        f"query message finished, but no message: {text}",
        code=ResponseCode.NO_MESSAGE,
        advice="the message may be deleted, or not yet in the index",
    )


def merge_found(
    answers: Iterable[FoundMessages], topic: str, key: str, *, by_unique_key: bool
) -> FoundMessages:
    """Merge what several brokers found, oldest first; drops messages that only share the key's
    hash.
    """
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


def track_kind(
    one: ReceivedMessage, online: ConsumerConnections, progress: GroupProgress
) -> TrackKind:
    """The consumption status of a message in a group of push consumers."""
    if online.message_model is MessageModel.BROADCASTING:
        return TrackKind.BROADCASTING
    offsets = progress.queues.get(one.queue)
    if offsets is None or offsets.consumer_offset <= one.queue_offset:
        return TrackKind.NOT_CONSUMED_YET
    wanted = online.subscription_table.get(one.topic)
    if wanted is None or not wanted.tags_set or "*" in wanted.tags_set:
        return TrackKind.CONSUMED
    return TrackKind.CONSUMED if one.tags in wanted.tags_set else TrackKind.CONSUMED_BUT_FILTERED


class MessageMethods(ClientMethods, GroupMethods):
    """Find messages, and find out what became of them."""

    # Finding

    async def message(self, topic: str, message_id: str) -> ReceivedMessage:
        """A message by either of its ids [queryMsgById, queryMsgByUniqueKey; 33, 12].

        The broker's id (``offset_message_id``) says where the message is; an id counts as such if
        it names a registered broker. The client's id (``message_id``) is looked up in the index of
        the last three days.
        """
        try:
            host, _ = parse_offset_message_id(message_id)
            await self.broker_name(str(host))
            return await self.message_by_offset_id(topic, message_id)
        except (ProtocolError, BrokerNotFoundError):
            pass
        except BrokerError as error:
            # An id of a client may look like an id of a broker, with an offset without a message.
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
        found = await self.messages_by_unique_key(topic, message_id)
        if not found.messages:
            raise _no_message(f"no message of {topic} has the id {message_id}")
        return found.messages[0]

    async def message_by_offset_id(self, topic: str, offset_message_id: str) -> ReceivedMessage:
        """A message by the id that its broker gave it [queryMsgById, 33]."""
        host, physical_offset = parse_offset_message_id(offset_message_id)
        address = str(host)
        try:
            name = await self.broker_name(address)
        except BrokerNotFoundError:
            name = ""  # registered under another address, such as a host's name
        record = await broker_api.view_message(
            self.session, address, physical_offset, topic=topic, timeout_ms=self.timeout_ms
        )
        (found,) = _messages(record, name)
        return found

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: Count = MAX_FOUND,
        begin_ms: TimeMs = 0,
        end_ms: TimeMs = _END_OF_TIME_MS,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Messages that have a key among their KEYS, of every broker [queryMsgByKey, 12].

        ``max_count`` is the limit for each broker.
        """
        return await self._search(
            topic,
            key,
            max_count=max_count,
            begin_ms=begin_ms,
            end_ms=end_ms,
            cluster=cluster,
            by_unique_key=False,
        )

    async def messages_by_unique_key(
        self,
        topic: str,
        unique_key: str,
        *,
        begin_ms: TimeMs | None = None,
        end_ms: TimeMs = _END_OF_TIME_MS,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Messages by the id that the client gave; several if the message was sent again
        [queryMsgByUniqueKey, 12].

        Without ``begin_ms``, only the last three days are searched.
        """
        return await self._search(
            topic,
            unique_key,
            max_count=_MAX_SAME_ID,
            begin_ms=self.clock.now_ms() - _LOOK_BACK_MS if begin_ms is None else begin_ms,
            end_ms=end_ms,
            cluster=cluster,
            by_unique_key=True,
        )

    async def _search(
        self,
        topic: str,
        key: str,
        *,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        cluster: str | None,
        by_unique_key: bool,
    ) -> FoundMessages:
        found = route_addresses(await route(self, topic), cluster)

        async def of_one(address: str) -> FoundMessages:
            answer = await broker_api.query_messages(
                self.session,
                address,
                topic,
                key,
                max_count=max_count,
                begin_ms=begin_ms,
                end_ms=end_ms,
                by_unique_key=by_unique_key,
                timeout_ms=self.timeout_ms * 3,
            )
            return FoundMessages(
                _messages(answer.records, found[address]), answer.index_last_update_timestamp_ms
            )

        answers = await each(found, of_one)
        return merge_found(answers.values(), topic, key, by_unique_key=by_unique_key)

    async def message_by_offset(self, queue: MessageQueue, queue_offset: Offset) -> ReceivedMessage:
        """The message at an offset of a queue [queryMsgByOffset, 11]."""
        messages = await self.messages_by_queue(queue, queue_offset, max_count=1)
        if not messages:
            raise _no_message(f"{queue} has no message at offset {queue_offset}")
        return messages[0]

    async def messages_by_queue(
        self,
        queue: MessageQueue,
        queue_offset: Offset,
        *,
        max_count: Count = 32,
        tags: Text = "*",
    ) -> list[ReceivedMessage]:
        """Messages of a queue from an offset on; a broker returns up to 32 at a time
        [printMsgByQueue, 11].
        """
        command = pull_command(
            _TOOLS_GROUP,
            queue,
            queue_offset,
            subscription(queue.topic, tags, version_ms=0),
            max_messages=max_count,
            suspend_ms=0,
            carries_subscription=True,
        )
        address = await queue_address(self, queue)
        response = await self.session.request(address, command, self.timeout_ms)
        if response.code in (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            return []
        if response.code != ResponseCode.SUCCESS:
            raise broker_api.refusal(response, address)
        return _messages(bytes(response.body), queue.broker_name)

    # Their consumption

    async def message_track(self, one: ReceivedMessage) -> list[MessageTrack]:
        """What became of a message in each group that consumes its topic [queryMsgById; 300, 203,
        208].
        """

        async def of_group(group: str) -> MessageTrack:
            try:
                online = await self.consumer_connections(group)
                if online.consume_type is not ConsumeType.PASSIVELY:
                    is_pull = online.consume_type is ConsumeType.ACTIVELY
                    return MessageTrack(group, TrackKind.PULL if is_pull else TrackKind.UNKNOWN)
                progress = await self.group_progress(group)
            except BrokerError as error:
                is_offline = error.code == ResponseCode.CONSUMER_NOT_ONLINE
                kind = TrackKind.NOT_ONLINE if is_offline else TrackKind.UNKNOWN
                return MessageTrack(group, kind, f"CODE:{error.code} DESC:{error.remark}")
            except GoddardError as error:
                return MessageTrack(group, TrackKind.UNKNOWN, str(error))
            return MessageTrack(group, track_kind(one, online, progress))

        tracks = await each(await self.topic_groups(one.topic), of_group)
        return list(tracks.values())

    async def message_trace(
        self, message_id: str, *, trace_topic: str = TRACE_TOPIC
    ) -> list[TraceRecord]:
        """The trace records of a message, in the order of storage [queryMsgTraceById, 12]."""
        found = await self.messages_by_key(trace_topic, message_id)
        records = (
            record
            for one in found.messages
            for record in decode_trace(one.body.decode("utf-8", "replace"))
        )
        return [record for record in records if record.message_id == message_id]

    async def consume_directly(
        self, group: str, client_id: str, topic: str, message_id: str
    ) -> ConsumeDirectlyResult:
        """Have one consumer consume one message now, whatever its offsets are [queryMsgById -g -d,
        309].
        """
        one = await self.message(topic, message_id)
        header = ConsumeDirectlyRequest(
            consumer_group=group, client_id=client_id, msg_id=one.offset_message_id, topic=topic
        )
        response = await ask(
            self,
            await broker_address(self, one.broker_name) if one.broker_name else one.store_host,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout_ms=max(self.timeout_ms, FORWARDED_TIMEOUT_MS),
        )
        return await broker_api.read(response, ConsumeDirectlyResult)

    async def resume_transaction_checks(self, message_id: str, topic: str | None = None) -> None:
        """Have a broker resume the checks of a transaction that it has given up [323].

        The id is the offset message id of the half message.
        """
        host, _ = parse_offset_message_id(message_id)
        header = ResumeCheckHalfMessageRequest(topic=topic, msg_id=message_id)
        await ask(self, str(host), RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
