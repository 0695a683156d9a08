# The public names of goddard: this list is the only one. Type checkers read it as it is, and
# __init__.py reads it to import a name when it is first used.

from goddard.client.blocking.admin import Admin as Admin
from goddard.client.blocking.consumers import LitePullConsumer as LitePullConsumer
from goddard.client.blocking.consumers import PushConsumer as PushConsumer
from goddard.client.blocking.producers import Producer as Producer
from goddard.client.blocking.producers import TransactionProducer as TransactionProducer
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
from goddard.client.produce.request_reply import create_reply as create_reply
from goddard.client.produce.transactions import TransactionListener as TransactionListener
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

__version__: str
