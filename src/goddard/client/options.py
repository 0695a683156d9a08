"""Options that all clients share, checked when a client is made.

A client class takes its own options as keywords and passes the rest (``SessionKeywords``) on to
``session_options``. What is wrong is a ConfigError that names option, value and range.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, TypedDict, TypeVar, cast
from urllib.parse import urlsplit

from goddard.client.identity import local_ip, process_instance
from goddard.client.name_servers import parse_name_servers
from goddard.clock import Clock
from goddard.errors import ConfigError
from goddard.transport.tls import TlsOptions

DEFAULT_INSTANCE: Final = "DEFAULT"
_MAX_MS: Final = 2**31 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who signs the requests (RocketMQ's access control)."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r}, secret_key=...)"


class SessionKeywords(TypedDict, total=False):
    """The keywords of every client class; see SessionOptions for what they mean."""

    namespace: str
    namespace_v2: str
    unit_name: str | None
    unit_mode: bool
    instance_name: str
    client_ip: str | None
    vip_channel: bool
    tls: TlsOptions | None
    credentials: Credentials | None
    name_server_endpoint: str | None
    poll_name_server_interval_ms: int
    heartbeat_interval_ms: int
    persist_offsets_interval_ms: int
    rebalance_interval_ms: int
    api_timeout_ms: int
    connect_timeout_ms: int
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What a session is made of; clients with equal ``client_id`` share one.

    ``name_servers`` empty: the list comes from ``name_server_endpoint``, an HTTP address that
    answers with it. ``namespace`` is put before topics and groups; ``namespace_v2`` travels beside
    them instead, for 5.x servers. ``vip_channel`` uses the broker's second port, two below the
    first.
    """

    name_servers: tuple[str, ...] = ()
    name_server_endpoint: str | None = None
    namespace: str = ""
    namespace_v2: str = ""
    unit_name: str | None = None
    unit_mode: bool = False
    instance_name: str = DEFAULT_INSTANCE
    client_ip: str = ""
    vip_channel: bool = False
    tls: TlsOptions | None = None
    credentials: Credentials | None = None
    poll_name_server_interval_ms: int = 30_000
    heartbeat_interval_ms: int = 30_000
    persist_offsets_interval_ms: int = 5_000
    rebalance_interval_ms: int = 20_000
    # For routes, heartbeats, consumer lists and the like.
    api_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000

    @property
    def client_id(self) -> str:
        """``ip@instance``, and ``@unit`` if there is one."""
        unit = f"@{self.unit_name}" if self.unit_name else ""
        return f"{self.client_ip}@{self.instance_name}{unit}"

    def for_process(self) -> Self:
        """With an instance name of this process's own, unless one was given.

        Producers and clustering consumers have this; broadcasting consumers keep the plain name,
        because the file of their offsets is named after it.
        """
        if self.instance_name != DEFAULT_INSTANCE:
            return self
        return replace(self, instance_name=process_instance())


def session_options(name_servers: str | None, keywords: SessionKeywords) -> SessionOptions:
    """Check the common keywords of a client; ``clock`` is left to the client itself."""
    given: dict[str, Any] = {name: value for name, value in keywords.items() if name != "clock"}
    unknown = given.keys() - SessionKeywords.__annotations__.keys()
    if unknown:
        # As Python says it of any other function.
        raise TypeError(f"got an unexpected keyword argument {min(unknown)!r}")
    for name in ("poll_name_server_interval_ms", "heartbeat_interval_ms"):
        check_range(name, given.get(name, 30_000), 10, _MAX_MS)
    check_range("persist_offsets_interval_ms", given.get("persist_offsets_interval_ms", 5_000), 10)
    check_range("rebalance_interval_ms", given.get("rebalance_interval_ms", 20_000), 10)
    check_range("api_timeout_ms", given.get("api_timeout_ms", 3_000), 1)
    check_range("connect_timeout_ms", given.get("connect_timeout_ms", 3_000), 1)
    endpoint = given.get("name_server_endpoint")
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(f"name_server_endpoint is {endpoint!r}; write it as http://host/path")
    if not given.get("instance_name", DEFAULT_INSTANCE):
        raise ConfigError("instance_name is empty; leave it out or give a name")
    given["client_ip"] = given.get("client_ip") or local_ip()
    addresses = parse_name_servers(name_servers, use_environment=endpoint is None)
    return SessionOptions(name_servers=addresses, **given)


def split_options(kind: type[T], keywords: Mapping[str, Any]) -> tuple[T, SessionKeywords]:
    """A client's own options, a dataclass of this kind, and the keywords of its session."""
    names = {field.name for field in fields(cast("Any", kind))}
    own = {name: value for name, value in keywords.items() if name in names}
    common = {name: value for name, value in keywords.items() if name not in names}
    return kind(**own), cast("SessionKeywords", common)


def check_kind(option: str, value: object, kind: type[object]) -> None:
    """ConfigError unless the value is of a class; None has to be let through before."""
    if not isinstance(value, kind):
        raise ConfigError(f"{option} is {value!r}; {kind.__name__} is wanted")


def check_range(option: str, value: Any, low: int, high: int = _MAX_MS) -> int:
    """The value, if it is a whole number within the range."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{option} is {value!r}; a whole number is wanted")
    if not low <= value <= high:
        raise ConfigError(f"{option} is {value}; it must be {low} to {high}")
    return value
