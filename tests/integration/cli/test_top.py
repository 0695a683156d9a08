"""``goddard top`` on a cluster: a snapshot, and the screen at a terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

from goddard.testing.cluster import Cluster
from tests.support.command_line import CommandLine

TIMEOUT_SECONDS = 60


def test_a_snapshot_has_rates_and_lag(goddard: CommandLine, topic: str, group: str) -> None:
    assert goddard("produce", topic, stdin="1\n2\n3\n").code == 0
    assert goddard("consume", topic, "--group", group, "--count", "1").code == 0
    (row,) = goddard.json("top", "-o", "-", "--interval", "0.2", "--filter", topic)
    assert (row["topic"], row["in/s"], row["messages"]) == (topic, 0.0, 3)
    (shown,) = goddard.json("top", "-o", "-", "-i", "0.2", "--view", "groups", "--filter", group)
    assert (shown["group"], shown["lag"]) == (group, 2)
    topics = {row["topic"] for row in goddard.json("top", "-o", "-", "-i", "0.2")}
    assert topics.isdisjoint({"DefaultCluster", "broker-0", "TBW102"})
    brokers = goddard.json("top", "-o", "-", "-i", "0.2", "--view", "brokers")
    assert {row["broker"] for row in brokers} == {"broker-0", "broker-1"}


def test_a_snapshot_in_a_file(goddard: CommandLine, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "top.csv"
    done = goddard("top", "-o", str(file), "-i", "0.2", "--filter", topic, "--format", "csv")
    assert (done.code, done.out) == (0, "")
    header, line = file.read_text().splitlines()
    assert header.startswith("topic,in/s,out/s,messages")
    assert line.startswith(f"{topic},0.0,")


def test_without_a_terminal(goddard: CommandLine) -> None:
    done = goddard("top")
    assert done.code == 2
    assert (
        done.err
        == "goddard top: standard input and output must be a terminal; -o - prints one snapshot\n"
    )


def test_the_screen_at_a_terminal(cluster: Cluster, topic: str) -> None:
    """It shows the topic, opens the groups on g, and restores the terminal on q."""
    main, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "goddard.cli.main", "top", "-i", "0.2", "--filter", topic],
        env={**os.environ, "NAMESRV_ADDR": cluster.namesrv, "TERM": "xterm", "COLUMNS": "120"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        try:
            screen = read_until(main, f"filter: {topic}")
            assert "topics: 1" in screen
            os.write(main, b"g")
            assert "groups: " in read_until(main, "groups: ")
            os.write(main, b"q")
            # The alternate screen ends, and the cursor is visible again.
            assert "\x1b[?1049l" in read_until(main, "\x1b[?25h")
            assert process.wait(TIMEOUT_SECONDS) == 0
        finally:
            process.kill()
            os.close(main)


def read_until(descriptor: int, text: str) -> str:
    """What the program prints until a text."""
    printed = ""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while text not in printed:
        ready, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
        assert ready, f"{text!r} did not appear in {printed!r}"
        printed += os.read(descriptor, 65_536).decode(errors="replace")
    return printed
