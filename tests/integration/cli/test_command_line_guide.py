"""The commands of the page "The command line" do what the page says, from top to bottom."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "command-line.md"
PROGRAMS = Path(sys.executable).parent


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=1) as cluster:
        wait_until(lambda: "broker-0" in query_brokers(cluster.namesrv), 30, "registered")
        yield cluster


def test_the_commands_of_the_page(new_cluster: Cluster) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    script = "set -e -o pipefail\n" + "\n".join(blocks)
    done = subprocess.run(
        ["bash", "-c", script.replace("127.0.0.1:9876", new_cluster.namesrv)],
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 messages consumed, 1 failed" in done.stderr
    assert "ChildProcessError: exit code 1: Expecting value" in done.stdout
    assert "1 message sent to group billing" in done.stderr
    assert "group billing is reset: 0 messages skipped, 5 repeated" in done.stderr
    assert "dead-letters: billing" in done.stdout
