"""The processes of one round: two name servers and two pairs of brokers, a node for each."""

import asyncio
import errno
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from goddard.config import format_properties
from goddard.testing.process import Process
from tests.support.faults.control import Control
from tests.support.faults.network import Network
from tests.support.faults.schedule import NAME_SERVERS, PAIRS, Setup
from tests.support.java import JavaPeers

_ROOT: Final = Path(__file__).parents[3]
NAME_SERVER_PORT: Final = 9876
BROKER_PORT: Final = 10911
_HA_PORT: Final = 10912
_START_SECONDS: Final = 90
_DISK_BYTES: Final = 96 << 20
_PAGE_BYTES: Final = 4096
_COMMON: Final[Mapping[str, str]] = {
    "brokerClusterName": "DefaultCluster",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "flushIntervalConsumeQueue": "300",
    "flushConsumerOffsetInterval": "1000",
    "flushDelayOffsetInterval": "1000",
    "defaultTopicQueueNums": "2",
    "messageDelayLevel": "1s 2s 4s",
    "transactionCheckInterval": "3000",
    "transactionTimeOut": "2000",
    "transactionCheckMax": "50",
    "haSendHeartbeatInterval": "1000",
    "haHousekeepingInterval": "5000",
    "slaveTimeout": "1000",
    "registerNameServerPeriod": "10000",
    "deleteWhen": "04",
}


@dataclass
class Node:
    """A machine with one daemon. A broker's node is a master or a slave."""

    name: str
    ip: str
    port: int
    home: Path
    process: Process
    broker: str = ""
    broker_id: int = 0
    control: Control | None = None

    def __post_init__(self) -> None:
        # Who does something to the process holds it; faults of one node do not overlap.
        self.busy = asyncio.Lock()

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"

    @property
    def disk(self) -> Path:
        return self.home / "disk"

    @property
    def store(self) -> Path:
        return self.disk / "store"

    @property
    def configuration(self) -> Path:
        return self.home / "broker.conf"


class Cluster:
    """All nodes of a round. Leaving the context manager kills their processes."""

    def __init__(
        self, setup: Setup, network: Network, directory: Path, *, defect: str = ""
    ) -> None:
        self.setup = setup
        self.network = network
        self.nodes: dict[str, Node] = {}
        self._directory = directory
        self._defect = defect
        self._last_id = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.process.kill()
            if node.broker:
                self.network.unmount_disk(node.disk)

    @property
    def name_servers(self) -> str:
        return ";".join(self.nodes[name].address for name in NAME_SERVERS)

    @property
    def brokers(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.broker]

    def named(self, address: str) -> str:
        """The name of the node with an address, for people."""
        return next((node.name for node in self.nodes.values() if node.address == address), address)

    def start(self) -> None:
        """Start everything, and return when all are ready."""
        for name in NAME_SERVERS:
            self._add_name_server(name)
        for broker, names in PAIRS.items():
            for broker_id, name in enumerate(names):
                self._add_broker(name, broker, broker_id)
        for node in self.nodes.values():
            node.process.launch()
        for node in self.nodes.values():
            node.process.wait_ready()

    def _add_name_server(self, name: str) -> None:
        ip = self.network.add(name, (NAME_SERVER_PORT,))
        home = self._directory / name
        home.mkdir(parents=True)
        configuration = home / "namesrv.conf"
        configuration.write_text(
            format_properties(
                {
                    "listenPort": str(NAME_SERVER_PORT),
                    "bindAddress": self.network.bind_address(name),
                    "scanNotActiveBrokerInterval": "2000",
                }
            )
        )
        command = ("-m", "goddard.cli.main", "namesrv", "-c", str(configuration))
        process = self._process(name, home, [*command, "--home", str(home)])
        self.nodes[name] = Node(name, ip, NAME_SERVER_PORT, home, process)

    def _add_broker(self, name: str, broker: str, broker_id: int) -> None:
        ip = self.network.add(name, (BROKER_PORT, _HA_PORT))
        home = self._directory / name
        home.mkdir(parents=True)
        control_file = home / "control"
        configuration = home / "broker.conf"
        command = ("-m", "tests.support.faults.broker", str(configuration), str(control_file))
        process = self._process(name, home, [*command, str(home), self._defect])
        node = Node(name, ip, BROKER_PORT, home, process, broker, broker_id, Control(control_file))
        self.network.mount_disk(node.disk, _DISK_BYTES)
        self.nodes[name] = node
        self.configure(node, broker_id)

    def _process(self, name: str, home: Path, arguments: list[str]) -> Process:
        return Process(
            name,
            [*self.network.prefix(name), sys.executable, *arguments],
            log=home / "output.log",
            ready="boot success",
            env={**os.environ, "ROCKETMQ_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            cwd=_ROOT,
            start_timeout=_START_SECONDS,
        )

    def configure(self, node: Node, broker_id: int) -> None:
        """Write the configuration of a master (0) or a slave."""
        node.broker_id = broker_id
        node.configuration.write_text(format_properties(self.properties(node)))

    def properties(self, node: Node) -> dict[str, str]:
        mode = self.setup.modes[node.broker]
        master = "SYNC_MASTER" if mode.is_sync_master else "ASYNC_MASTER"
        properties = {
            **_COMMON,
            "brokerName": node.broker,
            "brokerId": str(node.broker_id),
            "brokerRole": "SLAVE" if node.broker_id else master,
            "flushDiskType": "SYNC_FLUSH" if mode.is_sync_flush else "ASYNC_FLUSH",
            "bindAddress": self.network.bind_address(node.name),
            "brokerIP1": node.ip,
            "brokerIP2": node.ip,
            "listenPort": str(node.port),
            "haListenPort": str(_HA_PORT),
            "namesrvAddr": self.name_servers,
            "storePathRootDir": str(node.store),
        }
        if mode.is_sync_master:
            needed = "2" if self.setup.needs_slave else "1"
            properties |= {"inSyncReplicas": "2", "minInSyncReplicas": needed}
        return properties

    def start_java(self, node: Node, version: str) -> JavaPeers:
        """Start RocketMQ's broker instead of Goddard's, which has ended, on the same data."""
        prefix = self.network.prefix(node.name)
        java = JavaPeers(version, node.home / f"java-{node.broker_id}", prefix=prefix)
        properties = {**self.properties(node), "timerWheelEnable": "false"}
        node.process = java.start_broker(
            node.name, port=node.port, store_dir=node.store, properties=properties
        )
        return java

    def lose_disk(self, node: Node) -> None:
        """Delete the data of a broker that has ended, and make it a slave with a new id."""
        shutil.rmtree(node.store, ignore_errors=True)
        self.configure(node, self.new_id())

    def new_id(self) -> int:
        """A broker id that no slave had."""
        self._last_id += 1
        return self._last_id

    def fill_disk(self, node: Node) -> None:
        """Leave no free block on the disk of a broker."""
        assert node.control is not None
        if not self.network.has_disks:
            node.control.has_full_disk = True
            return
        size, step = 0, _DISK_BYTES
        with (node.disk / "filling").open("wb") as file:
            while step >= _PAGE_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
                else:
                    size += step

    def free_disk(self, node: Node) -> None:
        """Undo ``fill_disk``."""
        assert node.control is not None
        node.control.has_full_disk = False
        (node.disk / "filling").unlink(missing_ok=True)
