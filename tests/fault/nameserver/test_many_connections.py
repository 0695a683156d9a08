"""Five thousand idle connections: they use little memory, and others are not affected."""

import re
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.ports import lease_port
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import ask

CONNECTIONS = 5_000


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files(process: Process) -> int:
    return sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())


@pytest.mark.usefixtures("many_files")
def test_idle_connections_use_little_memory(tmp_path: Path) -> None:
    port = lease_port()
    options = ["--port", str(port), "--home", str(tmp_path / "home")]
    process = Process(
        "name server",
        [sys.executable, "-m", "goddard.cli.main", "namesrv", *options],
        log=tmp_path / "output.log",
        ready="boot success",
        port=port,
        start_timeout=60,
    )
    idle: list[socket.socket] = []
    with process.start():
        before = open_files(process)
        try:
            idle.extend(
                socket.create_connection(("127.0.0.1", port), 10) for _ in range(CONNECTIONS)
            )
            wait_until(lambda: open_files(process) >= before + CONNECTIONS, 60, "all are accepted")
            for _ in range(20):
                command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
                assert ask(process.address, command).code == 0
            status = Path(f"/proc/{process.pid}/status").read_text()
            resident = re.search(r"VmRSS:\s+(\d+) kB", status)
            assert resident is not None
            # About 10 KB each, in addition to the memory without them.
            assert int(resident[1]) < (60 + 90) * 1024
        finally:
            for connection in idle:
                connection.close()
        wait_until(lambda: open_files(process) <= before + 5, 60, "all are closed again")
        assert process.stop() == 0
