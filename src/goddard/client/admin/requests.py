"""What all administration shares: requests to one server or to several, and finding the servers.

Requests to several servers run concurrently, and all of them are made: if some fail, the
PartialFailureError names these servers and has the answers of the others.

A broker is given by its name, which means the master, or by an address ``host:port``.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from goddard.client import broker_api
from goddard.client.arguments import checked
from goddard.client.checks import did_you_mean
from goddard.client.errors import (
    BrokerNotFoundError,
    ClientError,
    ClusterNotFoundError,
    NoNameServerError,
    NoRouteError,
)
from goddard.client.queries import Requester, address_to_ask, cluster_info, each, route_addresses
from goddard.client.values import MessageQueue
from goddard.clock import Clock
from goddard.config import parse_properties
from goddard.errors import ConfigError, GoddardError, ProtocolError
from goddard.protocol import bodies
from goddard.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    TopicList,
    TopicRoute,
    encode_body,
)
from goddard.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.header import Header
from goddard.protocol.names import RETRY_PREFIX, is_retry_topic, pop_retry_topic, retry_topic

# The configuration of a broker has a few hundred properties of tens of bytes each.
MAX_PROPERTIES_BYTES: Final = 4 * 1024 * 1024

# RocketMQ's maxPageSizeInGetMetadata.
PAGE_SIZE: Final = 2_000
# A table that changes while its pages are read is read again; this many pages in all.
_MAX_PAGES: Final = 1_000

T = TypeVar("T")


class ServerCaller(Requester, Protocol):
    """Makes requests to brokers and name servers; a Session does."""

    @property
    def name_servers(self) -> Sequence[str]: ...


class AdminBase(ABC):
    """The base of all groups of methods: what they need to make requests.

    Arguments of public coroutine methods are checked by their annotations; see ``arguments``.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if not name.startswith("_") and inspect.iscoroutinefunction(method):
                setattr(cls, name, checked(method))

    @property
    @abstractmethod
    def session(self) -> ServerCaller:
        """Makes the requests; NotRunningError unless started."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The source of the time."""

    @property
    @abstractmethod
    def timeout_ms(self) -> int:
        """How long one request may take."""


# --- Requests -------------------------------------------------------------------------------------


async def ask(
    admin: AdminBase,
    address: str,
    code: RequestCode,
    header: Header | None = None,
    body: bytes = b"",
    *,
    timeout_ms: int | None = None,
) -> RemotingCommand:
    """Send a request to a broker or to one name server; returns the successful response."""
    wanted_ms = admin.timeout_ms if timeout_ms is None else timeout_ms
    return await admin.session.call(address, broker_api.command(code, header, body), wanted_ms)


async def ask_name_server(
    admin: AdminBase, code: RequestCode, header: Header | None = None, body: bytes = b""
) -> RemotingCommand:
    """Send a request to the name servers in turn; returns the first successful response."""
    command = broker_api.command(code, header, body)
    response = await admin.session.request_name_server(command, admin.timeout_ms)
    if response.code != ResponseCode.SUCCESS:
        raise broker_api.broker_error(response, "")
    return response


async def ask_each(
    admin: AdminBase,
    addresses: Iterable[str],
    code: RequestCode,
    header: Header | None = None,
    body: bytes = b"",
) -> list[str]:
    """Send a request to several servers; returns their addresses."""

    async def ask_one(address: str) -> None:
        await ask(admin, address, code, header, body)

    return list(await each(addresses, ask_one))


def name_servers(admin: AdminBase, chosen: Iterable[str] | None = None) -> list[str]:
    """The chosen name servers; all, if None."""
    addresses = list(admin.session.name_servers) if chosen is None else list(chosen)
    if not addresses:
        raise NoNameServerError
    return addresses


class Table(Protocol):
    """A table that brokers return in pages; pages of the same version belong together."""

    data_version: DataVersion


Page = TypeVar("Page", bound=Table)


async def in_pages(
    empty: Callable[[], Page],
    read_page: Callable[[int, str], Awaitable[tuple[Page, int | None]]],
    join: Callable[[Page, Page], int],
) -> Page:
    """Read a whole table; starts again if the table changes meanwhile.

    ``read_page`` gets the number of the first wanted entry and the version of the earlier entries.
    It returns a page and the number of entries in the table, None if the page is the whole table.
    ``join`` adds the entries of earlier pages to a page and returns the number of entries.
    """
    whole, known, version = empty(), 0, ""
    for _ in range(_MAX_PAGES):
        page, total = await read_page(known, version)
        page_version = encode_body(page.data_version).decode()
        if version and page_version != version:
            whole, known, version = empty(), 0, page_version
            continue
        version = page_version
        before, known = known, join(whole, page)
        whole = page
        if total is None or known >= total or known == before:
            break
    return whole


# --- Servers --------------------------------------------------------------------------------------


def check_one_place(broker: str | None, cluster: str | None) -> None:
    """ConfigError if both a broker and a cluster are given."""
    if broker is not None and cluster is not None:
        raise ConfigError("give a broker or a cluster, not both")


def is_address(broker: str) -> bool:
    return ":" in broker


def brokers_of(info: ClusterInfo, cluster: str | None) -> list[BrokerData]:
    """The brokers of a cluster, or of all clusters, sorted by name."""
    if cluster is None:
        names: Iterable[str] = info.broker_addr_table
    elif cluster in info.cluster_addr_table:
        names = info.cluster_addr_table[cluster]
    else:
        raise ClusterNotFoundError(cluster, info.cluster_addr_table)
    return [
        info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table
    ]


async def broker_addresses(
    admin: AdminBase,
    *,
    broker: str | None = None,
    cluster: str | None = None,
    with_replicas: bool = False,
) -> dict[str, str]:
    """The masters of a broker, of a cluster or of all clusters: broker names by address.

    The name is empty if the broker is given by its address.
    """
    check_one_place(broker, cluster)
    if broker is not None and is_address(broker):
        return {broker: ""}
    info = await cluster_info(admin)
    if broker is not None:
        data = info.broker_addr_table.get(broker)
        if data is None:
            raise BrokerNotFoundError(broker)
        chosen = [data]
    else:
        chosen = brokers_of(info, cluster)
    found: dict[str, str] = {}
    for data in chosen:
        for broker_id, address in sorted(data.broker_addrs.items()):
            if with_replicas or broker_id == MASTER_ID:
                found[address] = data.broker_name
    if not found:
        raise ClientError(
            f"no master of {broker or cluster or 'any cluster'} is registered",
            advice="check that a master is running and that the name server is the right one",
        )
    return found


async def chosen_brokers(
    admin: AdminBase, broker: str | None, cluster: str | None
) -> dict[str, str]:
    """Like ``broker_addresses``, but requires a broker or a cluster, for changes."""
    if broker is None and cluster is None:
        raise ConfigError("neither cluster nor broker is given; give one of them")
    return await broker_addresses(admin, broker=broker, cluster=cluster)


async def broker_address(admin: AdminBase, broker: str) -> str:
    """The address of a broker given by name or address."""
    if is_address(broker):
        return broker
    data = (await cluster_info(admin)).broker_addr_table.get(broker)
    address = address_to_ask(data) if data is not None else None
    if address is None:
        raise BrokerNotFoundError(broker)
    return address


async def first_route(admin: AdminBase, topics: Sequence[str]) -> TopicRoute:
    """The route of the first topic that has one; NoRouteError for the first topic if none has."""
    for topic in topics:
        found = await broker_api.topic_route(admin.session, topic, timeout_ms=admin.timeout_ms)
        if found is not None and route_addresses(found):
            return found
    raise NoRouteError(topics[0])


async def addresses_of(
    admin: AdminBase, topics: Sequence[str], broker: str | None = None
) -> dict[str, str]:
    """The given broker; if None, the brokers of the first topic that has a route."""
    if broker is not None:
        return {await broker_address(admin, broker): broker}
    return route_addresses(await first_route(admin, topics))


async def group_addresses(
    admin: AdminBase, group: str, *, topic: str | None = None, broker: str | None = None
) -> dict[str, str]:
    """The brokers of a group's retry topic, or of a topic that it consumes if that has no route."""
    places = [retry_topic(group)]
    if topic is not None:
        places += [topic, pop_retry_topic(group, topic)]
    try:
        return await addresses_of(admin, places, broker)
    except NoRouteError as error:
        error.advice = (
            f"no consumer of {group} was online yet; the first one creates this topic"
            if topic is None
            else f"neither a consumer of {group} nor the topic {topic} is known"
        ) + await _similar_group(admin, group)
        raise


async def _similar_group(admin: AdminBase, group: str) -> str:
    """``; did you mean 'X'?``, of the groups that had consumers online; nothing if none is."""
    try:
        response = await ask_name_server(admin, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        topics = (await broker_api.read(response, TopicList)).topic_list
    except GoddardError:
        return ""
    groups = [name.removeprefix(RETRY_PREFIX) for name in topics if is_retry_topic(name)]
    return did_you_mean(group, groups)


# --- Values ---------------------------------------------------------------------------------------


def by_queue(table: Mapping[bodies.MessageQueue, T]) -> dict[MessageQueue, T]:
    """A table by queue, sorted."""
    return dict(
        sorted(
            ((MessageQueue.from_body(key), value) for key, value in table.items()), key=_queue_key
        )
    )


def _queue_key(item: tuple[MessageQueue, object]) -> MessageQueue:
    return item[0]


def properties_of(response: RemotingCommand) -> dict[str, str]:
    """Parse the body of a response as properties."""
    if len(response.body) > MAX_PROPERTIES_BYTES:
        raise ProtocolError(
            f"the properties have {len(response.body)} bytes, more than {MAX_PROPERTIES_BYTES}"
        )
    try:
        return parse_properties(bytes(response.body).decode())
    except (UnicodeDecodeError, ConfigError) as error:
        raise ProtocolError(f"the properties cannot be read: {error}") from error
