"""Administration of messages: find them, and find their consumption status.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from typing import Final

from goddard.client import broker_api, queries
from goddard.client.admin.clients import FORWARDED_TIMEOUT_MS, ClientMethods
from goddard.client.admin.groups import GroupMethods
from goddard.client.admin.requests import ask, broker_address
from goddard.client.admin.values import GroupProgress, MessageTrack, TrackKind
from goddard.client.arguments import Count, Offset, Text, TimeMs
from goddard.client.consume.pull import pull_command
from goddard.client.consume.subscriptions import subscription
from goddard.client.errors import BrokerError
from goddard.client.message import ReceivedMessage
from goddard.client.queries import (
    END_OF_TIME_MS,
    MAX_FOUND,
    FoundMessages,
    each,
    messages_of,
    no_message,
    queue_address,
)
from goddard.client.trace.records import TraceRecord, decode_trace
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.bodies import ConsumeType, MessageModel
from goddard.protocol.bodies_admin import ConsumerConnections
from goddard.protocol.bodies_client import ConsumeDirectlyResult
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers.admin import ConsumeDirectlyRequest, ResumeCheckHalfMessageRequest
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.names import TRACE_TOPIC

_TOOLS_GROUP: Final = "TOOLS_CONSUMER"


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
    """Find messages and their consumption status."""

    # Finding

    async def message(self, topic: str, message_id: str) -> ReceivedMessage:
        """A message by either of its ids [queryMsgById, queryMsgByUniqueKey; 33, 12].

        The broker's id (``offset_message_id``) says where the message is; an id counts as such if
        it names a registered broker. The client's id (``message_id``) is looked up in the index of
        the last three days.
        """
        return await queries.message(self, topic, message_id, now_ms=self.clock.now_ms())

    async def message_by_offset_id(self, topic: str, offset_message_id: str) -> ReceivedMessage:
        """A message by the id that its broker gave it [queryMsgById, 33]."""
        return await queries.message_by_offset_id(self, topic, offset_message_id)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: Count = MAX_FOUND,
        begin_ms: TimeMs = 0,
        end_ms: TimeMs = END_OF_TIME_MS,
        cluster: str | None = None,
        by_tag: bool = False,
        last_key: Text | None = None,
    ) -> FoundMessages:
        """Messages that have a key among their KEYS, of every broker [queryMsgByKey, 12].

        ``max_count`` is the limit for each broker. ``by_tag`` looks for a tag instead, and
        ``last_key`` is where a previous result ended; brokers from 5.4 on with an index in RocksDB
        know both.
        """
        return await queries.find_messages(
            self,
            topic,
            key,
            max_count=max_count,
            begin_ms=begin_ms,
            end_ms=end_ms,
            cluster=cluster,
            by_tag=by_tag,
            last_key=last_key,
        )

    async def messages_by_unique_key(
        self,
        topic: str,
        unique_key: str,
        *,
        begin_ms: TimeMs | None = None,
        end_ms: TimeMs = END_OF_TIME_MS,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Messages by the id that the client gave; several if the message was sent again
        [queryMsgByUniqueKey, 12].

        Without ``begin_ms``, only the last three days are searched.
        """
        return await queries.messages_by_unique_key(
            self,
            topic,
            unique_key,
            now_ms=self.clock.now_ms(),
            begin_ms=begin_ms,
            end_ms=end_ms,
            cluster=cluster,
        )

    async def message_by_offset(self, queue: MessageQueue, queue_offset: Offset) -> ReceivedMessage:
        """The message at an offset of a queue [queryMsgByOffset, 11]."""
        messages = await self.messages_by_queue(queue, queue_offset, max_count=1)
        if not messages:
            raise no_message(f"{queue} has no message at offset {queue_offset}")
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
            raise broker_api.broker_error(response, address)
        return messages_of(bytes(response.body), queue.broker_name)

    # Their consumption

    async def message_track(self, one: ReceivedMessage) -> list[MessageTrack]:
        """Find the consumption status of a message in each group that consumes its topic
        [queryMsgById; 300, 203, 208].
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
        self,
        message_id: str,
        *,
        trace_topic: str = TRACE_TOPIC,
        max_count: Count = MAX_FOUND,
        begin_ms: TimeMs = 0,
        end_ms: TimeMs = END_OF_TIME_MS,
    ) -> list[TraceRecord]:
        """The trace records of a message, in the order of storage [queryMsgTraceById, 12]."""
        found = await self.messages_by_key(
            trace_topic, message_id, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms
        )
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
