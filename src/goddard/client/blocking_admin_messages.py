"""Administration of messages: finding them, and what became of them.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.admin.values import FoundMessages, MessageTrack
from goddard.client.blocking import BlockingClient
from goddard.client.message import ReceivedMessage
from goddard.client.trace.records import TraceRecord
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_client import ConsumeDirectlyResult


class AdminMessages(BlockingClient[AsyncAdmin]):
    def message(self, topic: str, message_id: str) -> ReceivedMessage:
        """A message by its id, either of the two [queryMsgById, queryMsgByUniqueKey; 33, 12].

        An id that a broker gave (``offset_message_id``) says where the message is, and is
        taken for one if a broker is registered there. One that the client gave
        (``message_id``) is looked up in the index, of the last three days.
        """
        return self._run(lambda: self._core.message(topic, message_id))

    def message_by_offset_id(self, topic: str, offset_message_id: str) -> ReceivedMessage:
        """A message by the id that its broker gave it [queryMsgById, 33]."""
        return self._run(lambda: self._core.message_by_offset_id(topic, offset_message_id))

    def message_by_offset(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage:
        """The message at an offset of a queue [queryMsgByOffset, 11]."""
        return self._run(lambda: self._core.message_by_offset(queue, queue_offset))

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Messages with one of their KEYS, of every broker [queryMsgByKey, 12].

        ``max_count`` is for each broker.
        """
        return self._run(
            lambda: self._core.messages_by_key(
                topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms, cluster=cluster
            )
        )

    def messages_by_unique_key(
        self,
        topic: str,
        unique_key: str,
        *,
        begin_ms: int | None = None,
        end_ms: int = 2**63 - 1,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Messages with an id that the client gave; several, if it was sent again
        [queryMsgByUniqueKey, 12]. Of the last three days unless said otherwise.
        """
        return self._run(
            lambda: self._core.messages_by_unique_key(
                topic, unique_key, begin_ms=begin_ms, end_ms=end_ms, cluster=cluster
            )
        )

    def messages_by_queue(
        self, queue: MessageQueue, queue_offset: int, *, max_count: int = 32, tags: str = "*"
    ) -> list[ReceivedMessage]:
        """Messages of a queue from an offset on; a broker gives up to 32 at a time
        [printMsgByQueue, 11].
        """
        return self._run(
            lambda: self._core.messages_by_queue(
                queue, queue_offset, max_count=max_count, tags=tags
            )
        )

    def message_track(self, one: ReceivedMessage) -> list[MessageTrack]:
        """What became of a message in every group that consumes its topic [queryMsgById, 300,
        203, 208].
        """
        return self._run(lambda: self._core.message_track(one))

    def message_trace(
        self, message_id: str, *, trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    ) -> list[TraceRecord]:
        """What clients with tracing on noted about a message, in that order [queryMsgTraceById,
        12].
        """
        return self._run(lambda: self._core.message_trace(message_id, trace_topic=trace_topic))

    def consume_directly(
        self, group: str, client_id: str, topic: str, message_id: str
    ) -> ConsumeDirectlyResult:
        """Have one consumer consume one message now, whatever its offsets [queryMsgById -g -d,
        309].
        """
        return self._run(lambda: self._core.consume_directly(group, client_id, topic, message_id))

    def resume_transaction_checks(self, message_id: str, topic: str | None = None) -> None:
        """Have a broker ask again about a transaction that it had given up [323].

        The id is the broker's, of the half message.
        """
        self._run(lambda: self._core.resume_transaction_checks(message_id, topic))
