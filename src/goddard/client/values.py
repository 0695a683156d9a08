"""Immutable values in the client's public API."""

from enum import Enum
from typing import NamedTuple, Self

from goddard.protocol import bodies
from goddard.protocol.bodies import MessageModel

__all__ = (
    "ConsumeFrom",
    "MessageModel",
    "MessageQueue",
    "SendMode",
    "SendResult",
    "SendStatus",
    "ServiceState",
    "TransactionState",
)


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Sorted as in RocketMQ: by topic, broker, number."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, "
            f"queueId={self.queue_id}]"
        )

    @classmethod
    def from_body(cls, queue: bodies.MessageQueue) -> Self:
        """The queue from the body of a request or response."""
        return cls(queue.topic, queue.broker_name, queue.queue_id)

    def to_body(self) -> bodies.MessageQueue:
        """The queue for the body of a request or response."""
        return bodies.MessageQueue(
            broker_name=self.broker_name, queue_id=self.queue_id, topic=self.topic
        )


class SendStatus(Enum):
    """How safely a message is stored.

    With any status but SEND_OK it is stored, but was not flushed to disk or replicated in time.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendMode(Enum):
    """How a message is sent: synchronously, asynchronously, or without a response."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


class SendResult(NamedTuple):
    """Where a message is stored.

    ``message_id`` is the unique id assigned by the client; for a batch, the ids of all messages,
    separated by commas. ``offset_message_id`` is assigned by the broker and contains its address
    and the physical offset.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    recall_handle: str | None = None

    def __str__(self) -> str:
        return (
            f"SendResult [sendStatus={self.status.name}, msgId={self.message_id}, "
            f"offsetMsgId={self.offset_message_id}, messageQueue={self.queue}, "
            f"queueOffset={self.queue_offset}]"
        )


class ConsumeFrom(Enum):
    """Where a group without offsets starts. The values are those in heartbeats."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class TransactionState(Enum):
    """The state of a transaction. The values are RocketMQ's names."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    # Not known yet: the broker checks again later.
    UNKNOWN = "UNKNOW"


class ServiceState(Enum):
    """The states of a client. The values are RocketMQ's names, which error texts contain."""

    CREATED = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    STOPPED = "SHUTDOWN_ALREADY"
