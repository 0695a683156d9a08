"""The clients for asyncio, and everything that goes with them: ``goddard``'s names, one for one.

    async with Producer("greeters", name_servers="127.0.0.1:9876") as producer:
        print(await producer.send(Message("greetings", b"Hello")))

What waits is a coroutine; ``send_soon`` gives a future at once. A client belongs to the event loop
that it was started on.
"""

from goddard.client.admin.admin import Admin
from goddard.client.consume.lite import LitePullConsumer
from goddard.client.consume.push import PushConsumer
from goddard.client.consume.subscriptions import Sql, Tags
from goddard.client.errors import (
    BatchFailedError,
    BrokerError,
    BrokerNotFoundError,
    ClientError,
    ClusterNotFoundError,
    ForkedError,
    InvalidMessageError,
    NameServerError,
    NoNameServerError,
    NoReplyAddressError,
    NoRouteError,
    NotRunningError,
    OffsetNotFoundError,
    PartialFailureError,
    RequestReplyTimeoutError,
    SendFailedError,
    TooManyRequestsError,
)
from goddard.client.listeners.listener import ConsumeContext, ConsumeResult, OrderlyContext
from goddard.client.message import Message, ReceivedMessage
from goddard.client.options import Credentials
from goddard.client.produce.backpressure import BackPressureOptions
from goddard.client.produce.batching import AccumulatorOptions
from goddard.client.produce.producer import Producer
from goddard.client.produce.request_reply import create_reply
from goddard.client.produce.transactions import (
    TransactionListener,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from goddard.client.trace.tracer import TraceOptions
from goddard.client.values import (
    ConsumeFrom,
    MessageModel,
    MessageQueue,
    SendResult,
    SendStatus,
    ServiceState,
)
from goddard.errors import ConfigError, GoddardError, RemotingError
from goddard.protocol.compression import CompressionKind
from goddard.transport.tls import TlsOptions

__all__ = [
    "AccumulatorOptions",
    "Admin",
    "BackPressureOptions",
    "BatchFailedError",
    "BrokerError",
    "BrokerNotFoundError",
    "ClientError",
    "ClusterNotFoundError",
    "CompressionKind",
    "ConfigError",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeResult",
    "Credentials",
    "ForkedError",
    "GoddardError",
    "InvalidMessageError",
    "LitePullConsumer",
    "Message",
    "MessageModel",
    "MessageQueue",
    "NameServerError",
    "NoNameServerError",
    "NoReplyAddressError",
    "NoRouteError",
    "NotRunningError",
    "OffsetNotFoundError",
    "OrderlyContext",
    "PartialFailureError",
    "Producer",
    "PushConsumer",
    "ReceivedMessage",
    "RemotingError",
    "RequestReplyTimeoutError",
    "SendFailedError",
    "SendResult",
    "SendStatus",
    "ServiceState",
    "Sql",
    "Tags",
    "TlsOptions",
    "TooManyRequestsError",
    "TraceOptions",
    "TransactionListener",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "create_reply",
]
