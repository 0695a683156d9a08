"""Finding the master of a slave, and asking it what it is.

The name servers tell a slave at each registration where its master is. ``haMasterAddress`` switches
that off: then only the HA address is known. A master, ours or RocketMQ's, is asked for its names,
the size of its segments and the range of its log, so that the slave can compare before it follows.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from goddard.broker.settings import Settings
from goddard.config import parse_properties
from goddard.errors import ConfigError, GoddardError, ProtocolError
from goddard.protocol.bodies import ClusterInfo, KvTable, decode_body
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import check
from goddard.replication.decisions import LogRange
from goddard.replication.following import BrokerIdentity, MasterRefusedError
from goddard.replication.promotion import LastMaster, Replica, replicas_per_message
from goddard.replication.slave import Master
from goddard.transport.client import Client, split_address

_TIMEOUT_MS: Final = 3_000
# What RocketMQ answers to a question for its figures as long as its log is empty.
_EMPTY_LOG: Final = "java.util.NoSuchElementException"
# RocketMQ takes a shorter haMasterAddress for none.
_LEAST_ADDRESS: Final = 6


class MasterSearch:
    """Finds the master for a ``Follower``.

    ``ask_name_servers`` returns its HA address and its address, which are empty if it is unknown.
    """

    def __init__(
        self,
        settings: Settings,
        client: Client,
        ask_name_servers: Callable[[], Awaitable[tuple[str, str]]],
    ) -> None:
        self._settings = settings
        self._client = client
        self._ask_name_servers = ask_name_servers
        # The master that was asked last, its configuration, and what it acknowledges.
        self.address = ""
        # HA address and address of a master that goes online and is not registered yet.
        self._announced = ("", "")
        self.properties: Mapping[str, str] = {}
        self.last: LastMaster | None = None

    def announce(self, ha_address: str, address: str) -> None:
        """A master that is not registered yet is there."""
        self._announced = (ha_address, address)

    def confirm(self, address: str) -> bool:
        """This master is registered; true if it was announced before."""
        if not address or address != self._announced[1]:
            return False
        self._announced = ("", "")
        return True

    @property
    def is_master_online(self) -> bool:
        """Whether the master that was found is registered, as far as is known."""
        return not self._announced[0]

    async def find(self) -> Master | None:
        """The master to follow now; None if no name server knows one."""
        configured = (self._settings.current.ha_master_address or "").strip()
        ha_address, address = await self._ask_name_servers()
        if ha_address:
            self._announced = ("", "")
        else:
            ha_address, address = self._announced
        if len(configured) >= _LEAST_ADDRESS:
            ha_address = configured
        if not ha_address or address == self._settings.current.broker_address:
            self.address = ""
            return None
        self.address = address
        if not address:
            return Master(ha_address)
        properties = await self._properties(address)
        identity = _identity(address, properties)
        self.properties = properties
        return Master(ha_address, identity, await self.log_range(address))

    async def _properties(self, address: str) -> dict[str, str]:
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
        try:
            return parse_properties(str(answer.body, "utf-8"))
        except (UnicodeDecodeError, ConfigError) as error:
            raise MasterRefusedError(f"its configuration cannot be read: {error}") from error

    async def log_range(self, address: str) -> LogRange:
        """Which bytes the log of the master has."""
        info = await self._figures(address)
        self._note_master(address, info)
        low, high = _number(info, "commitLogMinOffset"), _number(info, "commitLogMaxOffset")
        # RocketMQ has a minimum of -1 as long as its log is empty.
        segment_bytes = _number(self.properties, "mappedFileSizeCommitLog")
        return LogRange(max(0, low), max(0, low, high), segment_bytes)

    async def _figures(self, address: str) -> Mapping[str, str]:
        try:
            answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        except MasterRefusedError as error:
            if _EMPTY_LOG in str(error):
                return {"commitLogMinOffset": "0", "commitLogMaxOffset": "0"}
            raise
        return decode_body(answer.body, KvTable).table

    async def find_others(self) -> list[Replica]:
        """The other brokers of the group, as far as the name servers know them."""
        config = self._settings.current
        own_address = config.broker_address
        addresses: set[str] = set()
        for name_server in config.name_servers:
            request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            with contextlib.suppress(GoddardError):
                answer = check(await self._client.request(name_server, request, _TIMEOUT_MS))
                known = decode_body(answer.body, ClusterInfo).broker_addr_table
                if config.broker_name in known:
                    addresses.update(known[config.broker_name].broker_addrs.values())
        if self.address:
            addresses.add(self.address)
        return [await self._look_at(address) for address in sorted(addresses - {own_address})]

    async def _look_at(self, address: str) -> Replica:
        try:
            is_slave = (await self._properties(address)).get("brokerRole") == "SLAVE"
            end_offset = _number(await self._figures(address), "commitLogMaxOffset")
        except (MasterRefusedError, ProtocolError):
            return Replica(address, is_slave=True, end_offset=None)
        return Replica(address, is_slave, end_offset)

    def _note_master(self, address: str, info: Mapping[str, str]) -> None:
        """Keep what a promotion has to know when the master is gone."""
        if "replicasPerMessage" in info:  # only Goddard's masters say so
            replicas = _number(info, "replicasPerMessage")
            slave_count = _number(info, "connectedSlaves")
        else:
            replicas, slave_count = replicas_per_message(self.properties), 1
        if self.last is not None and self.last.address == address:
            slave_count = max(slave_count, self.last.slave_count)
        self.last = LastMaster(address, replicas, slave_count)

    async def _ask(self, address: str, code: int) -> RemotingCommand:
        try:
            split_address(address)
            request = RemotingCommand(code)
            return check(await self._client.request(address, request, _TIMEOUT_MS), address)
        except (GoddardError, ProtocolError) as error:
            raise MasterRefusedError(f"{address} does not answer: {error}") from error


def _identity(address: str, properties: Mapping[str, str]) -> BrokerIdentity:
    if properties.get("brokerRole") == "SLAVE":
        raise MasterRefusedError(f"the broker at {address} is a slave itself")
    return BrokerIdentity(
        properties.get("brokerClusterName", ""),
        properties.get("brokerName", ""),
        _number(properties, "mappedFileSizeCommitLog"),
    )


def _number(values: Mapping[str, str], name: str) -> int:
    text = values.get(name, "")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise MasterRefusedError(f"its {name} is not a number: {text[:80]!r}")
    return int(text)
