"""Start and end offsets by time, with brokers of RocketMQ 4 and 5 and Goddard, without Spark."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.spark.options import OffsetMode, OffsetSpec, SourceOptions, parse_source
from goddard.spark.reading.cluster import ClusterClient
from goddard.spark.reading.offsets import QueueRange
from goddard.spark.reading.reader import QueueRangePartition, read_ranges
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.java import JavaPeers, start_java_broker
from tests.support.numbered_topic import NumberedTopic
from tests.support.spark_readers import ManualStream, read_numbers


@pytest.fixture(
    params=[
        "goddard",
        pytest.param("5.4.0", marks=pytest.mark.java),
        pytest.param("4.9.4", marks=pytest.mark.java),
    ]
)
def any_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    shared = {"goddard": "ours", "5.4.0": "javas"}.get(request.param)
    if shared is not None:
        yield request.getfixturevalue(shared)
        return
    with JavaPeers(request.param, tmp_path) as java:
        site = Site(java.start_name_server())
        start_java_broker(site, java)
        yield site


def test_offset_of_every_time_is_exact(any_site: Site) -> None:
    topic = NumberedTopic(any_site, "times", queues=1)
    for _ in range(4):
        topic.fill(50)  # many messages per millisecond
        gap_ends = time.monotonic() + 0.05
        while time.monotonic() < gap_ends:
            time.sleep(0.005)
    options = parse_source(topic.options(), is_streaming=False)
    (broker,) = any_site.brokers
    queue = MessageQueue(topic.name, broker, 0)
    stored = store_times(options, queue, topic.count)
    assert len(set(stored)) >= 4
    times_ms = sorted({t + more for t in stored for more in (-20, -1, 0, 1, 20)})
    with ClusterClient(options.connection) as client:
        bounds = client.bounds([queue])
        found = {
            time_ms: client.resolve(OffsetSpec(OffsetMode.EARLIEST, timestamp_ms=time_ms), bounds)[
                queue
            ]
            for time_ms in times_ms
        }
    assert found == {time_ms: sum(t < time_ms for t in stored) for time_ms in times_ms}


def test_precedence_of_offset_options(site: Site) -> None:
    topic, other = NumberedTopic(site, "times-first", queues=1), NumberedTopic(site, "times-other")
    topic.fill(5)
    options = parse_source(topic.options(), is_streaming=False)
    (broker,) = site.brokers
    queue = MessageQueue(topic.name, broker, 0)
    cut_ms = store_times(options, queue, 5)[-1] + 1
    wait_until(lambda: time.time() * 1000 > cut_ms, 60, "a moment later")
    topic.fill(5)
    by_number = {"startingOffsets": json.dumps({topic.name: {broker: {"0": 8}}})}
    by_topic = {"startingOffsetsByTimestamp": json.dumps({topic.name: cut_ms})}
    by_queue = {"startingOffsetsByTimestamp": json.dumps({topic.name: {broker: {"0": cut_ms}}})}
    all_topics = {"startingTimestamp": "0"}
    assert read_numbers(topic.options(**by_number)) == [8, 9]
    assert read_numbers(topic.options(**by_number, **by_topic)) == [5, 6, 7, 8, 9]
    assert read_numbers(topic.options(**by_number, **by_queue)) == [5, 6, 7, 8, 9]
    assert read_numbers(topic.options(**by_number, **by_topic, **all_topics)) == list(range(10))
    # The same for end offsets.
    until_number = {"endingOffsets": json.dumps({topic.name: {broker: {"0": 2}}})}
    until_topic = {"endingOffsetsByTimestamp": json.dumps({topic.name: cut_ms})}
    assert read_numbers(topic.options(**until_number)) == [0, 1]
    assert read_numbers(topic.options(**until_number, **until_topic)) == list(range(5))
    until_all = {"endingTimestamp": str(cut_ms + 3_600_000)}
    assert read_numbers(topic.options(**until_topic, **until_all)) == list(range(10))
    for wrong in (
        {other.name: cut_ms},
        {topic.name: {broker: {"1": cut_ms}}},
        {topic.name: {"nobody": {"0": cut_ms}}},
    ):
        with pytest.raises(ConfigError, match=r"the timestamps name .* this query does not read"):
            read_numbers(topic.options(startingOffsetsByTimestamp=json.dumps(wrong)))
    unknown = {topic.name: {broker: {"7": 1}}}
    with pytest.raises(ConfigError, match=r"the offsets name .* this query does not read"):
        read_numbers(topic.options(startingOffsets=json.dumps(unknown)))
    # As in Spark's Kafka source, every queue must be named.
    both = {"nameServers": site.namesrv, "subscribe": f"{topic.name},{other.name}"}
    with pytest.raises(ConfigError, match=r"do not name .*times-other.* and 3 more; name every"):
        read_numbers(both | by_number)
    with pytest.raises(ConfigError, match="do not name"):
        read_numbers(both | until_number)
    # Queues with a timestamp need no offset.
    others = {"startingOffsetsByTimestamp": json.dumps({other.name: 0})}
    others["startingOffsetsByTimestampStrategy"] = "latest"
    assert read_numbers(both | by_number | others) == [8, 9]


def test_start_at_group_offsets(site: Site) -> None:
    topic = NumberedTopic(site, "times-group", queues=2)
    topic.fill(10)
    group = site.new_group("times")
    options = topic.options(group=group, startingOffsets="earliest")
    stream = ManualStream(options)
    # The group has no offsets yet, so everything is read.
    assert read_numbers(options | {"startingOffsets": "group"}) == list(range(10))
    assert stream.run_batch(4) == list(range(4))
    assert stream.run_batch(4) == list(range(4, 8))
    stream.plan()
    assert read_numbers(options | {"startingOffsets": "group"}) == [8, 9]


def store_times(options: SourceOptions, queue: MessageQueue, end: int) -> list[int]:
    return [
        round(row["storeTimestamp"].timestamp() * 1000)
        for rows in read_ranges(
            QueueRangePartition([QueueRange(queue, 0, end)], 8), options, ["storeTimestamp"]
        )
        for row in rows.to_pylist()
    ]
