"""A name server, a master and its slaves in the loop of a test, with small files.

async with broker_group(tmp_path) as group:
    master = await group.start(0)
    slave = await group.start(1)
    await group.client(master).send("T", b"body")
    await group.level(slave)
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.config import NameServerConfig
from goddard.nameserver.server import NameServer
from goddard.store.store import MessageStore
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.polling import until

SEGMENT_BYTES = 64 << 10
_SMALL_FILES = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "haSendHeartbeatInterval": "200",
}


class BrokerGroup:
    """The brokers of one name; ``brokers`` has those that run, by id."""

    def __init__(self, directory: Path, name_server: NameServer, client: Client) -> None:
        self._directory = directory
        self._client = client
        self.name_server = name_server
        self.brokers: dict[int, Broker] = {}

    def config(self, broker_id: int, **properties: str) -> BrokerConfig:
        role = {"brokerRole": "SLAVE"} if broker_id else {}
        return BrokerConfig.from_properties(
            {
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "brokerName": "broker-a",
                "brokerId": str(broker_id),
                "namesrvAddr": f"127.0.0.1:{self.name_server.port}",
                "storePathRootDir": str(self._directory / str(broker_id)),
                **role,
                **_SMALL_FILES,
                **properties,
            }
        )

    async def start(self, broker_id: int, **properties: str) -> Broker:
        broker = Broker(self.config(broker_id, **properties))
        await broker.start()
        self.brokers[broker_id] = broker
        return broker

    async def stop(self, broker_id: int) -> None:
        await self.brokers.pop(broker_id).stop()

    def client(self, broker: Broker) -> BrokerClient:
        return BrokerClient(self._client, broker.address)

    async def level(self, slave: Broker) -> None:
        """Wait until a slave has the log of the master, and compare the two."""
        master = self.brokers[0]

        def is_level() -> bool:
            status = slave.roles.follow_status
            return (
                status is not None
                and status.is_following
                and slave.store.log_max_offset == master.store.log_max_offset
            )

        await until(is_level, lambda: f"{slave.roles.follow_status}")
        assert log_bytes(slave.store) == log_bytes(master.store)


def log_bytes(store: MessageStore) -> bytes:
    start, pieces = store.log_min_offset, b""
    while view := store.read_log(start + len(pieces), 1 << 20):
        pieces += view
    return pieces


@asynccontextmanager
async def broker_group(directory: Path) -> AsyncIterator[BrokerGroup]:
    """Stops all brokers at the end, slaves first."""
    home = directory / "namesrv"
    config = NameServerConfig(
        rocketmq_home=str(home),
        kv_config_path=str(home / "kvConfig.json"),
        config_store_path=str(home / "namesrv.properties"),
        bind_address="127.0.0.1",
        listen_port=0,
    )
    async with NameServer(config) as name_server, Client() as client:
        group = BrokerGroup(directory, name_server, client)
        try:
            yield group
        finally:
            for broker_id in sorted(group.brokers, reverse=True):
                await group.stop(broker_id)
