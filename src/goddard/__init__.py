"""Goddard: RocketMQ in Python, with Spark built in.

    from goddard import Message, Producer

    with Producer("greeters", name_servers="127.0.0.1:9876") as producer:
        print(producer.send(Message("greetings", b"Hello")))

These clients block, and may be used from any thread; ``goddard.aio`` has the same for asyncio. The
names are imported when they are first used, so that ``import goddard`` costs next to nothing.
"""

__version__ = "0.2.0"

# As in `typing`, which takes longer to import than all of this.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from goddard.client.blocking_admin import Admin
    from goddard.client.blocking_lite import LitePullConsumer
    from goddard.client.blocking_producer import Producer, TransactionProducer
    from goddard.client.blocking_push import PushConsumer
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
    from goddard.client.produce.request_reply import create_reply
    from goddard.client.produce.transactions import (
        TransactionListener,
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
else:
    from importlib import import_module

    _HOMES = {
        "client.produce.batching": ("AccumulatorOptions",),
        "client.produce.backpressure": ("BackPressureOptions",),
        "client.blocking_admin": ("Admin",),
        "client.blocking_lite": ("LitePullConsumer",),
        "client.blocking_producer": ("Producer", "TransactionProducer"),
        "client.blocking_push": ("PushConsumer",),
        "client.errors": (
            "BatchFailedError",
            "BrokerError",
            "BrokerNotFoundError",
            "ClientError",
            "ClusterNotFoundError",
            "ForkedError",
            "InvalidMessageError",
            "NameServerError",
            "NoNameServerError",
            "NoReplyAddressError",
            "NoRouteError",
            "NotRunningError",
            "OffsetNotFoundError",
            "PartialFailureError",
            "RequestReplyTimeoutError",
            "SendFailedError",
            "TooManyRequestsError",
        ),
        "client.listeners.listener": ("ConsumeContext", "ConsumeResult", "OrderlyContext"),
        "client.message": ("Message", "ReceivedMessage"),
        "client.options": ("Credentials",),
        "client.produce.request_reply": ("create_reply",),
        "client.consume.subscriptions": ("Sql", "Tags"),
        "client.trace.tracer": ("TraceOptions",),
        "client.produce.transactions": (
            "TransactionListener",
            "TransactionResult",
            "TransactionState",
        ),
        "client.values": (
            "ConsumeFrom",
            "MessageModel",
            "MessageQueue",
            "SendResult",
            "SendStatus",
            "ServiceState",
        ),
        "errors": ("ConfigError", "GoddardError", "RemotingError"),
        "protocol.compression": ("CompressionKind",),
        "transport.tls": ("TlsOptions",),
    }
    _HOME_OF = {name: f"goddard.{module}" for module, names in _HOMES.items() for name in names}

    def __getattr__(name):
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *_HOME_OF})


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
    "__version__",
    "create_reply",
]
