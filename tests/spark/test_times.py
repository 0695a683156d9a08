"""Offsets by time at brokers of both generations, asked without Spark."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.client.values import MessageQueue
from goddard.spark.cluster import Cluster as Reach
from goddard.spark.offsets import QueueRange
from goddard.spark.options import Place, SourceOptions, Where, parse_source
from goddard.spark.read import read_range
from goddard.testing.cluster import Cluster
from goddard.testing.java import JavaPeers
from goddard.testing.numbered import NumberedTopic
from goddard.testing.site import Site


@pytest.fixture(
    params=[
        "goddard",
        pytest.param("5.4.0", marks=pytest.mark.java),
        pytest.param("4.9.4", marks=pytest.mark.java),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "goddard":
        with Cluster(tmp_path) as cluster:
            site = Site(cluster.start_name_server())
            site.start_goddard_broker(cluster)
            yield site
        return
    with JavaPeers(request.param, tmp_path) as java:
        site = Site(java.start_name_server())
        site.start_java_broker(java)
        yield site


def test_times_are_exact(place: Site) -> None:
    topic = NumberedTopic(place, "times", queues=1)
    for _ in range(4):
        topic.fill(50)  # many of one millisecond
        gap_ends = time.monotonic() + 0.05
        while time.monotonic() < gap_ends:
            time.sleep(0.005)
    options = parse_source(topic.options(), is_streaming=False)
    (broker,) = place.brokers
    queue = MessageQueue(topic.name, broker, 0)
    stored = store_times(options, queue, topic.count)
    assert len(set(stored)) >= 4
    asked = sorted({t + more for t in stored for more in (-20, -1, 0, 1, 20)})
    with Reach(options.connecting) as reach:
        bounds = reach.bounds([queue])
        found = {
            time_ms: reach.resolve(Place(Where.EARLIEST, timestamp_ms=time_ms), bounds)[queue]
            for time_ms in asked
        }
    assert found == {time_ms: sum(t < time_ms for t in stored) for time_ms in asked}


def store_times(options: SourceOptions, queue: MessageQueue, end: int) -> list[int]:
    return [
        round(row["storeTimestamp"].timestamp() * 1000)
        for rows in read_range(QueueRange(queue, 0, end), options, ["storeTimestamp"])
        for row in rows.to_pylist()
    ]
