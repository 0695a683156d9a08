"""Small immutable values of the client's interface."""

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
    """One queue of a topic on one broker. Sorts as RocketMQ sorts: topic, broker, number."""

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
        """The queue that a request or a response names."""
        return cls(queue.topic, queue.broker_name, queue.queue_id)

    def to_body(self) -> bodies.MessageQueue:
        """The queue as requests and responses write it."""
        return bodies.MessageQueue(
            broker_name=self.broker_name, queue_id=self.queue_id, topic=self.topic
        )


class SendStatus(Enum):
    """How far a message got. Anything but SEND_OK is stored, but less safe than was asked for."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendMode(Enum):
    """How a message is sent: waiting for the result, with a future, or without an answer."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


class SendResult(NamedTuple):
    """Where a message went.

    ``message_id`` is the unique id that the client gave it (of a batch: all, joined by commas);
    ``offset_message_id`` is the broker's, and says where the message is stored.
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
    """Where a new group starts to read; the values travel in heartbeats."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class TransactionState(Enum):
    """What becomes of a half message. The values are RocketMQ's names."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    # Not known yet: the broker asks later.
    UNKNOWN = "UNKNOW"


class ServiceState(Enum):
    """The life of every client. The values are RocketMQ's names, which its texts show."""

    CREATED = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    STOPPED = "SHUTDOWN_ALREADY"
