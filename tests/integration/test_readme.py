"""The programs in README.md run unchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path

from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers

README = Path(__file__).parents[2] / "README.md"


SERVER, CLIENT, _SPARK = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(program: str, folder: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_name_server_inside_a_program(tmp_path: Path) -> None:
    assert re.fullmatch(r"name server on port \d+\n", run(SERVER, tmp_path))


def test_the_client(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", brokers=1) as cluster:
        wait_until(lambda: query_brokers(cluster.namesrv), 30, "the broker is registered")
        assert run(CLIENT, tmp_path, NAMESRV_ADDR=cluster.namesrv) == "SEND_OK\nHello, world\n"


def test_every_link_points_to_a_file() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
