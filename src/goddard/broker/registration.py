"""Registration with the name servers: every 30 seconds, and at once when topics change.

Each name server has a task of its own, so that a dead one delays nobody. A change is told with the
changed topics only. A name server takes a table of topics only when its data version is new, so
what one of them missed is sent to it again with the next change, never left to the next full
registration. State changes of a name server (gone, back) are logged once.

Belongs to the loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Topics
from goddard.clock import Clock
from goddard.errors import ConfigError, ProtocolError, RemotingError
from goddard.protocol.bodies import (
    KvTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_body,
    encode_register_body,
)
from goddard.protocol.codes import Permission, RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.hashing import body_crc
from goddard.protocol.headers.cluster import (
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from goddard.protocol.responses import ResponseError, check
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.tasks import Tasks

_log = logging.getLogger(__name__)

# With more changed topics than this, all of them are registered.
_MAX_SINGLE_TOPICS: Final = 500
# A name server that cannot be reached is tried again after this long, not after a whole period.
_RETRY_SECONDS: Final = 3.0
_RETURN_SECONDS: Final = 1.0
# How long a start waits for name servers, and a stop for their answers.
_FIRST_SECONDS: Final = 3.0
_UNREGISTER_SECONDS: Final = 0.5
# How long an administrator waits for them to know of a change.
_SETTLE_SECONDS: Final = 1.0
_FAILURES: Final = (RemotingError, ConfigError, ResponseError, ProtocolError)
_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)


class Registration:
    """Keeps this broker registered from ``start`` to ``stop``."""

    def __init__(self, settings: Settings, topics: Topics, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._topics = topics
        self._tasks = Tasks(_log)
        self._client = Client(ClientOptions(), on_close=self._connection_closed, clock=clock)
        self._name_servers: list[_NameServer] = []
        self._is_stopping = False
        self._started = asyncio.Event()
        self._full: tuple[object, bytes] | None = None
        # Called when a name server tells a slave of another master.
        self.on_master_changed: Callable[[], None] = lambda: None
        topics.add_listener(self.topics_changed)

    async def start(self) -> None:
        """Register everywhere; name servers that do not answer soon are left to the background.

        Once is enough.
        """
        if self.is_started or self._is_stopping:
            return
        addresses = self._settings.current.name_servers
        self._name_servers = [_NameServer(address) for address in addresses]
        for server in self._name_servers:
            self._tasks.spawn(self._keep_registered(server), f"register at {server.address}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_SECONDS):
                for server in self._name_servers:
                    await server.settled.wait()
        self._started.set()

    async def stop(self) -> None:
        """Tell every name server that this broker goes; one that is dead is not waited for."""
        self._is_stopping = True
        await self._tasks.stop()
        for server in self._name_servers:
            server.settled.set()
        config = self._settings.current
        await asyncio.gather(*(self._unregister(server, config) for server in self._name_servers))
        await self._client.close(_UNREGISTER_SECONDS)

    @property
    def is_started(self) -> bool:
        return bool(self._name_servers)

    @property
    def is_unheard(self) -> bool:
        """Whether there are name servers and none of them has answered."""
        servers = self._name_servers
        return bool(servers) and not any(server.is_reachable for server in servers)

    async def find_master(self) -> tuple[str, str]:
        """Ask the name servers for a slave's master: its HA address and its address.

        Both are empty if they know none. They tell with the answer to a registration.
        """
        await self._started.wait()
        for server in self._name_servers:
            server.is_full_due = True
            server.wake_up()
        await self.settled()
        return self.master

    @property
    def master(self) -> tuple[str, str]:
        """As ``find_master``, from the last answers."""
        found = [server.master for server in self._name_servers if server.is_reachable]
        return max(found, key=lambda master: (bool(master[0]), bool(master[1])), default=("", ""))

    def topics_changed(self, topics: Iterable[str]) -> None:
        """Tell the name servers of changed topics; all changes of this tick go in one request."""
        for server in self._name_servers:
            server.changed.update(dict.fromkeys(topics))
            server.wake_up()

    def register_all(self) -> None:
        """Register everything at once, as after a change of the broker's permission."""
        self._full = None
        for server in self._name_servers:
            server.is_full_due = True
            server.wake_up()

    async def settled(self) -> None:
        """Until every name server that answers knows what changed so far, or a second is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                for server in self._name_servers:
                    if server.is_reachable:
                        await server.settled.wait()

    def _connection_closed(self, connection: Connection) -> None:
        # A name server that restarts knows nothing of us until we register again; a moment later,
        # so that one which closes every connection does not keep us busy.
        if not self._is_stopping:
            asyncio.get_running_loop().call_later(_RETURN_SECONDS, self.register_all)

    async def _keep_registered(self, server: "_NameServer") -> None:
        while True:
            server.wake.clear()
            is_known = await self._register(server)
            if not is_known or not server.wake.is_set():
                server.settled.set()
            delay = self._settings.current.register_seconds if is_known else _RETRY_SECONDS
            if not is_known:
                await asyncio.sleep(delay)
                continue
            try:
                async with asyncio.timeout(delay):
                    await server.wake.wait()
            except TimeoutError:
                server.is_full_due = True

    async def _register(self, server: "_NameServer") -> bool:
        """Send what this name server lacks; false when it did not take it."""
        changed, is_full = server.changed, server.is_full_due
        server.changed, server.is_full_due = {}, False
        config = self._settings.current
        existing = [topic for topic in changed if topic in self._topics]
        if len(existing) < len(changed) or len(existing) > _MAX_SINGLE_TOPICS:
            is_full = True
        if not is_full and not existing:
            return True
        body = self._whole_body(config) if is_full else self._body(config, existing)
        try:
            answer = check(
                await self._client.request(
                    server.address, _registration(config, body), config.register_timeout_ms
                ),
                server.address,
            )
            order_config = decode_body(answer.body, KvTable) if answer.body else None
            header = RegisterBrokerResponse.decode(answer.fields)
        except _FAILURES as error:
            server.changed |= changed
            server.is_full_due = server.is_full_due or is_full
            if server.is_reachable is not False:
                _log.warning("registerBroker Exception, %s: %s", server.address, error)
            server.is_reachable = False
            return False
        if not server.is_reachable:
            _log.info(
                "Registering current broker to name server completed. TargetHost=%s", server.address
            )
        server.is_reachable = True
        master = header.ha_server_addr or "", header.master_addr or ""
        if config.is_slave and master != server.master:
            server.master = master
            self.on_master_changed()
        if order_config is not None:
            self._topics.set_ordered(order_config.table)
        return True

    def _whole_body(self, config: BrokerConfig) -> bytes:
        key = (self._topics.data_version, config.broker_permission, config.register_compressed)
        if self._full is None or self._full[0] != key:
            self._full = (key, self._body(config, self._topics.configs))
        return self._full[1]

    def _body(self, config: BrokerConfig, topics: Iterable[str]) -> bytes:
        table = {name: self._shown(name, config.broker_permission) for name in topics}
        wrapper = TopicConfigTable(data_version=self._topics.data_version, topic_config_table=table)
        return encode_register_body(
            RegisterBrokerBody(topic_config_serialize_wrapper=wrapper),
            compressed=config.register_compressed,
        )

    def _shown(self, name: str, permission: int) -> TopicConfig:
        """A topic as clients may use it: a broker that takes no messages has no writable topic."""
        config = self._topics.configs[name]
        if permission & _READ_WRITE == _READ_WRITE:
            return config
        return msgspec.structs.replace(config, perm=config.perm & permission)

    async def _unregister(self, server: "_NameServer", config: BrokerConfig) -> None:
        header = UnregisterBrokerRequest(
            broker_name=config.broker_name,
            broker_addr=config.broker_address,
            cluster_name=config.cluster_name,
            broker_id=config.broker_id,
        )
        request = RemotingCommand(RequestCode.UNREGISTER_BROKER, header.encode())
        try:
            timeout_ms = int(_UNREGISTER_SECONDS * 1000)
            check(await self._client.request(server.address, request, timeout_ms), server.address)
        except _FAILURES as error:
            _log.warning("unregisterBroker Exception, %s: %s", server.address, error)
        else:
            _log.info("unregisterBroker OK, NamesrvAddr: %s", server.address)


class _NameServer:
    """What one name server knows of us. ``settled``: everything, or it does not answer."""

    __slots__ = ("address", "changed", "is_full_due", "is_reachable", "master", "settled", "wake")

    def __init__(self, address: str) -> None:
        self.address = address
        self.changed: dict[str, None] = {}
        self.is_full_due = True
        self.is_reachable: bool | None = None
        # A slave's master: its HA address and its address.
        self.master = ("", "")
        self.wake = asyncio.Event()
        self.settled = asyncio.Event()

    def wake_up(self) -> None:
        self.settled.clear()
        self.wake.set()


def _registration(config: BrokerConfig, body: bytes) -> RemotingCommand:
    acting = config.enable_slave_acting_master
    header = RegisterBrokerRequest(
        broker_name=config.broker_name,
        broker_addr=config.broker_address,
        cluster_name=config.cluster_name,
        ha_server_addr=config.ha_address,
        broker_id=config.broker_id,
        heartbeat_timeout_millis=config.broker_not_active_timeout_ms if acting else None,
        enable_acting_master=acting,
        compressed=config.register_compressed,
        body_crc32=body_crc(body),
    )
    return RemotingCommand(RequestCode.REGISTER_BROKER, header.encode(), body)
