"""The clients for asyncio: the names of ``goddard``, one for one.

    async with Producer("greeters", name_servers="127.0.0.1:9876") as producer:
        print(await producer.send(Message("greetings", b"Hello")))

Methods that wait are coroutines; ``send_soon`` returns a future at once. A client belongs to the
event loop that it was started on.
"""

from goddard.client.admin.admin import Admin as Admin
from goddard.client.consume.lite import LitePullConsumer as LitePullConsumer
from goddard.client.consume.push import PushConsumer as PushConsumer
from goddard.client.consume.subscriptions import Sql as Sql
from goddard.client.consume.subscriptions import Tags as Tags
from goddard.client.errors import BatchFailedError as BatchFailedError
from goddard.client.errors import BrokerError as BrokerError
from goddard.client.errors import BrokerNotFoundError as BrokerNotFoundError
from goddard.client.errors import ClientError as ClientError
from goddard.client.errors import ClusterNotFoundError as ClusterNotFoundError
from goddard.client.errors import ForkedError as ForkedError
from goddard.client.errors import InvalidMessageError as InvalidMessageError
from goddard.client.errors import NameServerError as NameServerError
from goddard.client.errors import NoNameServerError as NoNameServerError
from goddard.client.errors import NoReplyAddressError as NoReplyAddressError
from goddard.client.errors import NoRouteError as NoRouteError
from goddard.client.errors import NotRunningError as NotRunningError
from goddard.client.errors import OffsetNotFoundError as OffsetNotFoundError
from goddard.client.errors import PartialFailureError as PartialFailureError
from goddard.client.errors import RequestReplyTimeoutError as RequestReplyTimeoutError
from goddard.client.errors import SendFailedError as SendFailedError
from goddard.client.errors import TooManyRequestsError as TooManyRequestsError
from goddard.client.listeners.listener import ConsumeContext as ConsumeContext
from goddard.client.listeners.listener import ConsumeResult as ConsumeResult
from goddard.client.listeners.listener import OrderlyContext as OrderlyContext
from goddard.client.message import Message as Message
from goddard.client.message import ReceivedMessage as ReceivedMessage
from goddard.client.options import Credentials as Credentials
from goddard.client.produce.options import AccumulatorOptions as AccumulatorOptions
from goddard.client.produce.options import BackPressureOptions as BackPressureOptions
from goddard.client.produce.producer import Producer as Producer
from goddard.client.produce.request_reply import create_reply as create_reply
from goddard.client.produce.transactions import TransactionListener as TransactionListener
from goddard.client.produce.transactions import TransactionProducer as TransactionProducer
from goddard.client.produce.transactions import TransactionResult as TransactionResult
from goddard.client.trace.tracer import TraceOptions as TraceOptions
from goddard.client.values import ConsumeFrom as ConsumeFrom
from goddard.client.values import MessageModel as MessageModel
from goddard.client.values import MessageQueue as MessageQueue
from goddard.client.values import SendResult as SendResult
from goddard.client.values import SendStatus as SendStatus
from goddard.client.values import ServiceState as ServiceState
from goddard.client.values import TransactionState as TransactionState
from goddard.errors import ConfigError as ConfigError
from goddard.errors import GoddardError as GoddardError
from goddard.errors import RemotingError as RemotingError
from goddard.protocol.compression import CompressionKind as CompressionKind
from goddard.transport.tls import TlsOptions as TlsOptions
