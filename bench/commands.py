"""How long commands take: ours beside RocketMQ's, and the lists of a large cluster.

Each command is a new process, as at a shell; the median of several is reported. RocketMQ's mqadmin
runs with its default JVM settings, except for a smaller heap. Both tools ask the same cluster,
which is Goddard's.
The large cluster has one broker; each group has consumed parts of five topics.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.loadgen import BenchError
from bench.report import Report, Row
from goddard.client.admin.admin import Admin
from goddard.client.values import MessageQueue
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers
from tests.support.java import JavaPeers

_PEER: Final = "5.4.0"
_OURS_RUNS: Final = 9
_PEER_RUNS: Final = 5
_LIST_RUNS: Final = 3
_TIMEOUT_SECONDS: Final = 60
_BROKER: Final = "broker-0"

TOPICS: Final = 10_000
GROUPS: Final = 2_000
_TOPICS_OF_A_GROUP: Final = 5
_AT_ONCE: Final = 500

# The verb of mqadmin, and the command of goddard that shows the same.
_PAIRS: Final = (
    ("topicList", "topic list"),
    ("clusterList", "broker list"),
    ("topicRoute -t TBW102", "topic route TBW102"),
)
_LISTS: Final = ("topic list", "group list", "topic list --format json", "group list --format json")


def run() -> Report:
    """All measurements."""
    report = Report("Commands: seconds from start to end", f"mqadmin {_PEER}")
    with tempfile.TemporaryDirectory() as folder:
        with Cluster(Path(folder) / "small", brokers=1) as cluster:
            _wait(cluster)
            with JavaPeers(_PEER, Path(folder)) as java:
                for verb, command in _PAIRS:
                    peer = _median(_peer_seconds(java, cluster, verb))
                    mqadmin = _median(_seconds("mqadmin", f"{verb} -n {cluster.namesrv}"))
                    goddard = _median(_seconds("goddard", f"{command} -n {cluster.namesrv}"))
                    report.add(Row(f"mqadmin {verb}", "s", mqadmin, peer, more_is_better=False))
                    report.add(Row(f"goddard {command}", "s", goddard, peer, more_is_better=False))
        with Cluster(Path(folder) / "large", brokers=1) as cluster:
            _wait(cluster)
            asyncio.run(_fill(cluster.namesrv))
            for command in _LISTS:
                seconds = _median(
                    _seconds("goddard", f"{command} -n {cluster.namesrv}", _LIST_RUNS)
                )
                title = f"goddard {command}, {TOPICS:,} topics, {GROUPS:,} groups"
                report.add(Row(title, "s", seconds, more_is_better=False))
    return report


def _wait(cluster: Cluster) -> None:
    wait_until(lambda: _BROKER in query_brokers(cluster.namesrv), 30, "the broker is registered")


def _median(seconds: Iterator[float]) -> float:
    return statistics.median(seconds)


def _seconds(program: str, arguments: str, runs: int = _OURS_RUNS) -> Iterator[float]:
    command = [str(Path(sys.executable).with_name(program)), *arguments.split()]
    for _ in range(runs):
        began = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False, env=os.environ
        )
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)}: {done.stderr.decode()}")
        yield time.perf_counter() - began


def _peer_seconds(java: JavaPeers, cluster: Cluster, verb: str) -> Iterator[float]:
    for _ in range(_PEER_RUNS):
        began = time.perf_counter()
        java.mqadmin(*verb.split(), "-n", cluster.namesrv)
        yield time.perf_counter() - began


async def _fill(namesrv: str) -> None:
    """Create topics and groups, and commit offsets of each group."""
    topics = [f"topic-{number:05}" for number in range(TOPICS)]
    groups = [f"group-{number:04}" for number in range(GROUPS)]
    async with Admin(namesrv, timeout_ms=30_000) as admin:
        for first in range(0, TOPICS, _AT_ONCE):
            await admin.create_topics(
                [
                    TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4)
                    for name in topics[first : first + _AT_ONCE]
                ],
                broker=_BROKER,
            )
        for first in range(0, GROUPS, _AT_ONCE):
            await admin.create_groups(
                [
                    SubscriptionGroupConfig(group_name=name)
                    for name in groups[first : first + _AT_ONCE]
                ],
                broker=_BROKER,
            )
        for number, group in enumerate(groups):
            chosen = (
                topics[(number * _TOPICS_OF_A_GROUP + one) % TOPICS]
                for one in range(_TOPICS_OF_A_GROUP)
            )
            await asyncio.gather(
                *(
                    admin.update_consumer_offset(group, MessageQueue(topic, _BROKER, 0), 0)
                    for topic in chosen
                )
            )
