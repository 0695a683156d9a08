"""Real Goddard daemons on free loopback ports, below one folder.

    with Cluster(tmp_path) as cluster:
        first = cluster.start_name_server()
        second = cluster.start_name_server(properties={"scanNotActiveBrokerInterval": "500"})
        client = connect(cluster.namesrv)          # "127.0.0.1:…;127.0.0.1:…"
        first.kill()                               # SIGKILL; also stop(), pause(), resume()
        first.start()                              # again, on the same port and files

Each daemon is what a user starts from the shell: a process of this Python with a properties file
and a home of its own. Whatever still runs when the cluster is closed is killed.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from goddard.config import format_properties
from goddard.testing.ports import lease_port
from goddard.testing.process import Process

_BOOT_SUCCESS = "boot success"
_START_TIMEOUT_SECONDS = 20


class Daemon(Process):
    """One daemon; its configuration, data and logs are below `home`."""

    home: Path = Path()


class Cluster:
    """Starts daemons and ends them all when closed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name_servers: list[Daemon] = []

    def __enter__(self) -> Self:
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
        """All name servers, as clients and brokers are told of them."""
        return ";".join(server.address for server in self.name_servers)

    def close(self) -> None:
        while self.name_servers:
            self.name_servers.pop().kill()

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
