"""Real Goddard daemons on free loopback ports, with all their files in one folder.

    with Cluster(tmp_path, brokers=2) as cluster:      # also starts a name server
        second = cluster.start_name_server(properties={"scanNotActiveBrokerInterval": "500"})
        third = cluster.start_broker(properties={"flushDiskType": "SYNC_FLUSH"})
        client = connect(cluster.namesrv)          # "127.0.0.1:…;127.0.0.1:…"
        third.kill()                               # SIGKILL; also stop(), pause(), resume()
        third.start()                              # with the same port and files

Each daemon is a process as users start it from the shell, with its own properties file and home
folder, run by the Python of the caller. ``close`` kills all daemons that still run.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from goddard.config import format_properties
from goddard.extras import require
from goddard.testing.ports import lease_port
from goddard.testing.process import Process

_BOOT_SUCCESS = "boot success"
_START_TIMEOUT_SECONDS = 20
# Small files are created quickly, and a few messages are enough to start the next file.
_SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}


class Daemon(Process):
    """One daemon; its configuration, data and logs are below `home`."""

    home: Path = Path()


class Cluster:
    """Starts daemons, and kills them all when closed."""

    def __init__(
        self, directory: Path, *, brokers: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Entering starts a name server and ``brokers`` brokers with these ``properties``.

        With ``brokers=0`` it starts nothing. Raises MissingExtraError if a package that daemons
        need is not installed.
        """
        require("server", "click", "numpy")
        self.directory = directory
        self.name_servers: list[Daemon] = []
        self.brokers: list[Daemon] = []
        self._wanted_brokers = brokers
        self._broker_properties = properties

    def __enter__(self) -> Self:
        try:
            if self._wanted_brokers:
                self.start_name_server()
            for _ in range(self._wanted_brokers):
                self.start_broker(properties=self._broker_properties)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def namesrv(self) -> str:
        """The addresses of all name servers, separated by semicolons."""
        return ";".join(server.address for server in self.name_servers)

    def close(self) -> None:
        for daemons in (self.brokers, self.name_servers):
            while daemons:
                daemons.pop().kill()

    def start_name_server(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Daemon:
        """Start one more name server; `properties` are those of its configuration file."""
        port = lease_port()
        settings = {"listenPort": str(port), "bindAddress": "127.0.0.1", **(properties or {})}
        name = f"namesrv-{len(self.name_servers)}"
        server = self._daemon("namesrv", name, port, settings, env or {})
        self.name_servers.append(server)
        return server.start()

    def start_broker(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Daemon:
        """Start one more broker, named broker-0, broker-1 and so on.

        It registers with the name servers that run now. Its data is in ``home / "store"``; files
        are small unless ``properties`` set other sizes.
        """
        port = lease_port(-2, 1)
        name = f"broker-{len(self.brokers)}"
        settings = {
            "brokerName": name,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": str(port),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.directory / name / "store"),
            **_SMALL_FILES,
            **(properties or {}),
        }
        broker = self._daemon("broker", name, port, settings, env or {})
        self.brokers.append(broker)
        return broker.start()

    def _daemon(
        self,
        command: str,
        name: str,
        port: int,
        settings: Mapping[str, str],
        env: Mapping[str, str],
    ) -> Daemon:
        home = self.directory / name
        home.mkdir(parents=True)
        config = home / f"{command}.conf"
        config.write_text(format_properties(settings))
        arguments = ("-m", "goddard.cli.main", command, "-c", str(config), "--home", str(home))
        daemon = Daemon(
            f"Goddard {name}",
            [sys.executable, *arguments],
            log=home / "output.log",
            ready=_BOOT_SUCCESS,
            port=port,
            env={**os.environ, "ROCKETMQ_HOME": str(home), "PYTHONUNBUFFERED": "1", **env},
            start_timeout=_START_TIMEOUT_SECONDS,
        )
        daemon.home = home
        return daemon
