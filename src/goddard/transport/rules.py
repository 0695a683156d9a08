"""What a request of a code does, and to what: its rule; and the gate that decides by rules.

Every handler of a server is registered with the rule of its code. The gate is asked before each
handler, and by the fast lanes, which take requests before handlers see them.
"""

import sys
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from goddard.protocol.frame import RemotingCommand

if TYPE_CHECKING:
    from goddard.transport.connection import Connection


class Action(Enum):
    """What a request does, in the words of RocketMQ's access control."""

    PUB = auto()
    SUB = auto()
    CREATE = auto()
    UPDATE = auto()
    DELETE = auto()
    GET = auto()
    LIST = auto()


class FromHeader(NamedTuple):
    """These fields of the header, by their names on the wire, name the topic and the groups."""

    topic: str | None = None
    groups: tuple[str, ...] = ()


class FromBody(NamedTuple):
    """The body names topics or groups."""


class FromRecord(NamedTuple):
    """The topic is that of the stored record that the request points to.

    A topic that the header names is not trusted. ``groups`` are fields of the header.
    """

    groups: tuple[str, ...] = ()


class Cluster(NamedTuple):
    """The server itself, not one topic or group."""


Resources: TypeAlias = FromHeader | FromBody | FromRecord | Cluster


class Rule(NamedTuple):
    """``is_write``: it changes what replicas share: messages, topics, groups, offsets, locks.

    ``stores_messages``: it adds messages to the log, so an overloaded server refuses it.
    """

    action: Action
    resources: Resources
    is_write: bool
    stores_messages: bool


class Gate(Protocol):
    """Decides whether requests are handled. Belongs to the loop, and must be fast."""

    def refusal(
        self, request: RemotingCommand, rule: Rule, connection: "Connection"
    ) -> RemotingCommand | None:
        """The response that refuses a request; None to handle it."""

    def room(self, rule: Rule) -> int:
        """How many requests with this rule a fast lane may take without asking ``refusal``."""


class OpenGate:
    """Refuses nothing."""

    def refusal(
        self, request: RemotingCommand, rule: Rule, connection: "Connection"
    ) -> RemotingCommand | None:
        return None

    def room(self, rule: Rule) -> int:
        return sys.maxsize


# Of the requests that a server sends to its clients; a client does what its servers ask for.
FROM_SERVER: Final = Rule(Action.UPDATE, Cluster(), is_write=False, stores_messages=False)
