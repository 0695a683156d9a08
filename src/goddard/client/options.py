"""Options that all clients share, checked when a client is created.

A client class takes its own options as keywords and passes the others (``SessionKeywords``) to
``session_options``. A wrong option is a ConfigError that names the option, its value and what is
allowed.
"""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar, cast
from urllib.parse import urlsplit

from goddard.client.checks import check_range, check_type, did_you_mean
from goddard.client.identity import process_instance
from goddard.client.name_servers import parse_name_servers
from goddard.environment import Environment
from goddard.errors import ConfigError
from goddard.transport.sockets import local_ip
from goddard.transport.tls import TlsOptions

if TYPE_CHECKING:
    from goddard.contexts import Context

DEFAULT_INSTANCE: Final = "DEFAULT"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys that requests are signed with (RocketMQ's access control)."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            if value is None and name == "security_token":
                continue
            check_type(name, value, str, is_secret=name != "access_key")
            if not value.strip():
                raise ConfigError(f"{name} is blank")

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
    environment: Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a session. Clients with the same ``client_id`` share a session.

    If ``name_servers`` is empty, the list is fetched from ``name_server_endpoint``, an HTTP
    address. ``namespace`` is a prefix of topics and groups; ``namespace_v2`` is a separate header
    field instead, for 5.x servers. ``vip_channel`` sends to the broker's second port, whose number
    is two less than that of the first. ``unit_name`` and ``unit_mode`` are RocketMQ's, for units
    of one service. ``api_timeout_ms`` is for requests about routes, heartbeats and members.
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
    api_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000

    @property
    def client_id(self) -> str:
        """``ip@instance``, or ``ip@instance@unit`` if there is a ``unit_name``."""
        unit = f"@{self.unit_name}" if self.unit_name else ""
        return f"{self.client_ip}@{self.instance_name}{unit}"

    def for_process(self, environment: Environment | None = None) -> Self:
        """The same options with an instance name unique to this client, unless one was given.

        For producers and clustering consumers. Broadcasting consumers keep the default name,
        because the path of their offsets file contains the client id.
        """
        if self.instance_name != DEFAULT_INSTANCE:
            return self
        return replace(self, instance_name=process_instance(environment or Environment()))


# The types of options that are not numbers, and what to give instead of another type.
_TYPES: Final[dict[str, tuple[type[object], str]]] = {
    "namespace": (str, ""),
    "namespace_v2": (str, ""),
    "unit_name": (str, ""),
    "unit_mode": (bool, ""),
    "instance_name": (str, ""),
    "client_ip": (str, ""),
    "vip_channel": (bool, ""),
    "tls": (
        TlsOptions,
        "give TlsOptions() to encrypt, TlsOptions(verify_peer=True, trust=Path('ca.pem')) to also "
        "verify the servers",
    ),
    "credentials": (Credentials, "give Credentials('access key', 'secret key')"),
    "name_server_endpoint": (str, ""),
}
_NULLABLE: Final = frozenset(
    {"unit_name", "client_ip", "tls", "credentials", "name_server_endpoint"}
)
# The lowest values that are allowed.
_INTERVALS: Final[dict[str, int]] = {
    "poll_name_server_interval_ms": 10,
    "heartbeat_interval_ms": 10,
    "persist_offsets_interval_ms": 10,
    "rebalance_interval_ms": 10,
    "api_timeout_ms": 1,
    "connect_timeout_ms": 1,
}


def session_options(name_servers: str | None, keywords: SessionKeywords) -> SessionOptions:
    """Check the common keywords of a client; ``environment`` is not among the options."""
    given: dict[str, Any] = {
        name: value for name, value in keywords.items() if name != "environment"
    }
    _check_known(given, SessionKeywords.__annotations__)
    for name, value in given.items():
        if name in _INTERVALS:
            check_range(name, value, _INTERVALS[name])
        elif value is not None or name not in _NULLABLE:
            kind, advice = _TYPES[name]
            check_type(name, value, kind, advice=advice, is_secret=name == "credentials")
    endpoint = given.get("name_server_endpoint")
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(f"name_server_endpoint is {endpoint!r}; write it as http://host/path")
    if not given.get("instance_name", DEFAULT_INSTANCE):
        raise ConfigError("instance_name is empty; leave it out or give a name")
    given["client_ip"] = given.get("client_ip") or local_ip()
    addresses = parse_name_servers(name_servers, use_environment=endpoint is None)
    if name_servers is None and endpoint is None and not addresses:
        addresses = _use_context(given)
    return SessionOptions(name_servers=addresses, **given)


def _use_context(given: dict[str, Any]) -> tuple[str, ...]:
    """The name servers of the selected context; adds its credentials and TLS to the options."""
    # Imported when needed: most programs say where the cluster is.
    context = importlib.import_module("goddard.contexts").selected_context()
    if context is None:
        return ()
    for name, value in context_keywords(context).items():
        if given.get(name) is None:
            given[name] = value
    return parse_name_servers(context.name_servers, use_environment=False)


def context_keywords(context: "Context") -> SessionKeywords:
    """The credentials and TLS options of a context."""
    keywords: SessionKeywords = {}
    if context.access_key is not None:
        keywords["credentials"] = Credentials(
            context.access_key, context.secret_key or "", context.security_token
        )
    if context.tls:
        keywords["tls"] = TlsOptions(
            trust=Path(context.trust) if context.trust else None,
            certificate=Path(context.certificate) if context.certificate else None,
            key=Path(context.key) if context.key else None,
            verify_peer=context.trust is not None,
        )
    return keywords


def _check_known(given: Iterable[str], known: Iterable[str]) -> None:
    """TypeError with Python's text for an unknown keyword, and the most similar one."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], [*known, "name_servers"])
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}{hint}")


def split_options(kind: type[T], keywords: Mapping[str, Any]) -> tuple[T, SessionKeywords]:
    """Split keywords into a client's own options, a dataclass of this kind, and its session's."""
    names = {field.name for field in fields(cast("Any", kind))}
    _check_known(keywords, names | SessionKeywords.__annotations__.keys())
    own = {name: value for name, value in keywords.items() if name in names}
    common = {name: value for name, value in keywords.items() if name not in names}
    return kind(**own), cast("SessionKeywords", common)
