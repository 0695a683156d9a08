"""``goddard bench`` on a cluster."""

import signal
import subprocess
import sys

from goddard.testing.cluster import Cluster
from tests.support.command_line import CommandLine
from tests.support.commands import environment

TIMEOUT_SECONDS = 60


def test_messages_are_sent_and_received(goddard: CommandLine, topic: str) -> None:
    sent = goddard.json("bench", "produce", topic, "--messages", "500", "--size", "10")
    assert (sent["messages"], sent["failed"]) == (500, 0)
    assert 0 < sent["p50Ms"] <= sent["p99Ms"] <= sent["maxMs"]
    batches = goddard.json("bench", "produce", topic, "--messages", "100", "--batch", "32")
    assert batches["messages"] == 100
    assert sum(row["messages"] for row in goddard.json("topic", "stats", topic)) == 600

    received = goddard.json("bench", "consume", topic, "--messages", "600")
    assert received["messages"] == 600
    groups = {row["group"] for row in goddard.json("group", "list")}
    assert not {name for name in groups if name.startswith("goddard_bench_")}


def test_text_has_charts(goddard: CommandLine, topic: str) -> None:
    done = goddard("bench", "produce", topic, "--messages", "50")
    assert done.code == 0, done.err
    assert "latency of a request, up to" in done.out
    assert "█" in done.out


def test_a_missing_topic_and_failing_sends(goddard: CommandLine, topic: str) -> None:
    for verb in ("produce", "consume"):
        done = goddard("bench", verb, f"{topic}x")
        assert (done.code, done.out) == (1, "")
        assert done.err == (
            f"goddard bench {verb}: there is no topic {topic}x; did you mean {topic}?\n"
        )
    assert goddard("topic", "update", topic, "--permission", "r").code == 0
    done = goddard("bench", "produce", topic, "--messages", "5")
    assert done.code == 1
    assert "no message was sent: " in done.err


def test_ctrl_c_ends_it_with_the_figures_so_far(cluster: Cluster, topic: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "goddard.cli.main", "bench", "produce", topic, "--seconds", "600"],
        env=environment(NAMESRV_ADDR=cluster.namesrv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "/s" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0
    assert out.startswith("messages ")
