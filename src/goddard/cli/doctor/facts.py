"""What ``goddard doctor`` knows about a cluster; values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from goddard.client.admin.values import BrokerPlace


class Severity(StrEnum):
    """Errors need an operator now; warnings need one soon."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` is the name of the check, ``subject`` the server, topic or group it is about.

    ``is_unread`` says that facts are missing: every other check may have found less than there is.
    """

    check: str
    severity: Severity
    subject: str
    problem: str
    advice: str
    is_unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From when on a number is a finding."""

    max_lag: int = 10_000
    message_bytes: int = 1024 * 1024
    clock_seconds: int = 5
    open_files: int = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerLook:
    """One name server; ``problem`` says why it could not be asked."""

    address: str
    problem: str | None = None
    brokers: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLook:
    """One broker process. ``asked_ms`` is the time here when ``runtime`` was read."""

    place: BrokerPlace
    problem: str | None = None
    runtime: Mapping[str, str] = field(default_factory=dict)
    asked_ms: int = 0

    @property
    def title(self) -> str:
        return f"{self.place.name} ({self.place.address})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What changes quickly; the doctor looks twice."""

    at_ms: int
    name_servers: Sequence[NameServerLook] = ()
    brokers: Sequence[BrokerLook] = ()
    lags: Mapping[str, int] = field(default_factory=dict)

    @property
    def answering(self) -> list[BrokerLook]:
        return [one for one in self.brokers if one.problem is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFact:
    """A topic on one broker; ``perm`` has the bits of RocketMQ."""

    broker: str
    topic: str
    perm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFact:
    """A group; ``subscriptions`` are those of each online member, where it says them."""

    name: str
    consumes: bool = True
    members: int = 0
    subscriptions: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProcess:
    """A server of the cluster that runs on this machine as a process that we may look into."""

    address: str
    pid: int
    open_files: int
    max_open_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything; what could not be read is in ``unread``, with the reason."""

    first: Look
    second: Look
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    topics: Sequence[TopicFact] = ()
    # Topics of the name servers that have no broker, and brokers whose write permission is wiped.
    topics_without_broker: Sequence[str] = ()
    wiped_brokers: Sequence[str] = ()
    groups: Sequence[GroupFact] = ()
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    # The largest recent message of a topic, in bytes as stored.
    largest: Mapping[str, int] = field(default_factory=dict)
    processes: Sequence[LocalProcess] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
