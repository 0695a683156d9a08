"""Pulling: a pull request out, its answer in, and the stored records in it as messages.

``pull_command``, ``read_answer`` and ``decode_messages`` do no I/O. ``Puller`` asks a queue's
brokers on behalf of a group and remembers which of them it was told to ask next; it belongs to the
event loop.

Decoding is made for speed, as every message consumed comes through it: one unpacking for the fixed
part of a record, plain slices for the rest; properties, hosts, ids and compressed bodies stay as
they are until somebody asks for them. It trusts nothing: malformed records raise ProtocolError.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from goddard.client import calls
from goddard.client.errors import BrokerError, BrokerNotFoundError
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import ProtocolError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.filter import is_tag_type
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers_message import PullRequest, PullResponse

# RocketMQ's defaults: how long a broker may hold a push consumer's pull, and how long we wait.
SUSPEND_MS: Final = 15_000
TIMEOUT_MS: Final = 30_000
MAX_PULL_BYTES: Final = 256 * 1024


class PullStatus(Enum):
    FOUND = "FOUND"
    NO_NEW_MESSAGES = "NO_NEW_MSG"
    NO_MATCHED_MESSAGES = "NO_MATCHED_MSG"
    # The queue does not have the offset; ``next_offset`` is one that it has.
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@dataclass(frozen=True, slots=True)
class PullResult:
    """``messages`` are those that passed the filter: there may be none of them even when FOUND."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    messages: list[ReceivedMessage]


class Puller:
    """The pulls of one group."""

    def __init__(self, session: "Brokers", group: str) -> None: ...

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        subscription: SubscriptionData,
        *,
        max_messages: int,
        max_bytes: int = MAX_PULL_BYTES,
        commit_offset: int | None = None,
        suspend_ms: int = SUSPEND_MS,
        timeout_ms: int = TIMEOUT_MS,
        carries_subscription: bool = False,
        is_lite: bool = False,
    ) -> PullResult:
        """The next messages of a queue.

        The broker holds the request up to ``suspend_ms`` when there is nothing new (0: it answers
        at once) and notes ``commit_offset``, if given, as the group's. Any code but the four of
        PullStatus raises BrokerError.
        """
        raise NotImplementedError

    def forget(self, queue: MessageQueue) -> None:
        """Ask the master again when the queue comes back."""
