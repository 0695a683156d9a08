"""Name servers, brokers and clients on simulated machines."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.config import NameServerConfig
from goddard.environment import Environment
from goddard.errors import GoddardError
from goddard.nameserver.server import NameServer
from tests.support.simulation.loop import SimulatedLoop
from tests.support.simulation.network import Network
from tests.support.simulation.node import Node
from tests.support.simulation.trace import Trace

NAME_SERVER_PORT: Final = 9876
BROKER_PORT: Final = 10911
BROKER_NAME: Final = "broker-a"
_RETRY_SECONDS: Final = 1.0
# Small files, so that segments roll; frequent work, so that faults meet it.
_SMALL: Final[Mapping[str, str]] = {
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "64",
    "maxIndexNum": "200",
    "flushIntervalConsumeQueue": "300",
    "flushConsumerOffsetInterval": "1000",
    "flushDelayOffsetInterval": "1000",
    "defaultTopicQueueNums": "2",
    "messageDelayLevel": "1s 2s 4s",
    "transactionCheckInterval": "3000",
    "transactionTimeOut": "2000",
    "haSendHeartbeatInterval": "500",
    "slaveTimeout": "1000",
}


class Cluster:
    """All machines of one run."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.trace = Trace()
        self.loop = SimulatedLoop(Random(f"{seed} loop"), self.trace)
        self.trace.now = self.loop.time
        self.network = Network(self.loop, Random(f"{seed} network"), self.trace)
        self.nodes: dict[str, Node] = {}
        self.brokers: dict[str, Broker] = {}
        self.starting: dict[str, asyncio.Task[None]] = {}
        self._configs: dict[str, BrokerConfig] = {}
        self._clients: dict[str, Callable[[Environment], Awaitable[None]]] = {}
        self._name_servers: list[str] = []

    def add_node(self, name: str) -> Node:
        address = f"10.0.0.{len(self.nodes) + 1}"
        node = Node(self.loop, self.network, self.trace, name, address, self.seed)
        self.nodes[name] = node
        return node

    @property
    def name_servers(self) -> str:
        return ";".join(
            f"{self.nodes[name].address}:{NAME_SERVER_PORT}" for name in self._name_servers
        )

    def add_name_server(self, name: str) -> None:
        self.add_node(name)
        self._name_servers.append(name)

    def add_broker(self, name: str, **properties: str) -> None:
        node = self.add_node(name)
        given = {
            "brokerName": BROKER_NAME,
            "bindAddress": node.address,
            "brokerIP1": node.address,
            "brokerIP2": node.address,
            "listenPort": str(BROKER_PORT),
            "namesrvAddr": self.name_servers,
            "storePathRootDir": f"/{name}/store",
            **_SMALL,
            **properties,
        }
        self._configs[name] = BrokerConfig.from_properties(given)

    def add_client(self, name: str, main: Callable[[Environment], Awaitable[None]]) -> None:
        """A machine whose process runs a coroutine function; again after each start."""
        self.add_node(name)
        self._clients[name] = main

    def configure(self, name: str, **properties: str) -> None:
        """Other properties from the next start on."""
        given = {**self._configs[name].properties(), **properties}
        self._configs[name] = BrokerConfig.from_properties(given)

    def start(self, name: str) -> None:
        """Start the daemon of a machine; it is started again until that succeeds."""
        node = self.nodes[name]

        async def run() -> None:
            if name in self._configs:
                await self._run_broker(node, environment)
            elif name in self._clients:
                await self._clients[name](environment)
            else:
                await self._run_name_server(node, environment)

        environment = node.new_life()
        self.trace.note(f"{name} starts")
        self.starting[name] = node.run(run)

    async def _run_broker(self, node: Node, environment: Environment) -> None:
        broker = Broker(self._configs[node.name], environment=environment)
        try:
            await broker.start()
        except (GoddardError, OSError) as error:
            self.trace.note(f"{node.name} cannot start: {error}")
            life = node.life
            self.network.later(self.loop.time() + _RETRY_SECONDS, self._start_again, node, life)
            node.stopped()
            return
        self.brokers[node.name] = broker

    def _start_again(self, node: Node, life: object) -> None:
        if node.life is life and not node.is_lost:
            self.start(node.name)

    async def _run_name_server(self, node: Node, environment: Environment) -> None:
        server = NameServer(
            NameServerConfig(
                bind_address=node.address,
                listen_port=NAME_SERVER_PORT,
                kv_config_path=f"/{node.name}/kvConfig.json",
                config_store_path=f"/{node.name}/namesrv.properties",
            ),
            environment=environment,
        )
        await server.start()

    async def stop(self, name: str) -> None:
        """Stop a broker as an operator does."""
        node, broker = self.nodes[name], self.brokers.get(name)
        if broker is None or not node.is_running:
            return
        life = node.life
        self.trace.note(f"{name} stops")
        await asyncio.wait((node.run(broker.stop),), timeout=60)
        if node.life is life:
            node.stopped()

    def close(self) -> None:
        """Give back what the disks hold; nothing runs any more."""
        for node in self.nodes.values():
            node.life.end()
        self.loop.close()
        for node in self.nodes.values():
            node.disk.close()
