"""Messages that are gone before they are read, and servers that are away: readers without Spark.

The readers are driven as Spark drives them: offsets are asked for, ranges planned and read.
"""

import json
import os
import signal
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.java import JavaPeers
from tests.support.numbered import NumberedTopic
from tests.support.sparkreads import Stream, read_numbers, write_bodies

from goddard import Admin, MessageQueue
from goddard.client.errors import ClientError, NameServerError
from goddard.errors import GoddardError
from goddard.spark.offsets import DataLossError
from goddard.spark.options import parse_sink, parse_source
from goddard.spark.read import BatchReader
from goddard.spark.write import BatchWriter, write_batches
from goddard.testing.cluster import Cluster, Daemon
from goddard.testing.ports import lease_port
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from goddard.testing.wire import query_brokers, query_route

_SECONDS = 60
_FILE_BYTES = 1024 * 1024
_REFUSAL = r"(?i)signature|credentials"


class Place:
    """A cluster of one broker whose files are small."""

    def __init__(self, cluster: Cluster) -> None:
        self.site = Site(cluster.start_name_server())
        self.site.start_goddard_broker(
            cluster, properties={"mappedFileSizeCommitLog": str(_FILE_BYTES)}
        )
        self.broker: Daemon = cluster.brokers[0]
        (self.broker_name,) = self.site.brokers

    def forget_old_files(self, topic: NumberedTopic) -> int:
        """Have retention delete all files but the last; where the first queue begins then."""
        while len(self._files()) < 3:
            topic.fill(4_000)
        queue = MessageQueue(topic.name, self.broker_name, 0)
        with Admin(name_servers=self.site.namesrv) as admin:

            def first() -> int:
                # Again and again: what is not on disk yet does not go.
                for path in self._files()[:-1]:
                    os.utime(path, (0, 0))
                admin.delete_expired_commit_logs(broker=self.broker_name)
                return admin.min_offset(queue)

            wait_until(lambda: first() and len(self._files()) == 1, _SECONDS, "old files are gone")
            return first()

    def _files(self) -> list[Path]:
        return sorted(
            path
            for path in (self.broker.home / "store" / "commitlog").iterdir()
            if path.name.isdigit() and any(path.read_bytes()[:8])
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Cluster(tmp_path) as cluster:
        yield Place(cluster)


def test_retention_passes_where_reading_goes_on(place: Place) -> None:
    topic = NumberedTopic(place.site, "retention", queues=1)
    topic.fill(100)
    options = topic.options(startingOffsets="earliest")
    strict, forgiving = Stream(options), Stream(options | {"failOnDataLoss": "false"})
    assert strict.step(10) == forgiving.step(10) == list(range(10))
    first = place.forget_old_files(topic)
    assert first > 100
    with pytest.raises(DataLossError, match=rf"it begins at {first}, 10 was wanted"):
        strict.step()
    assert forgiving.step() == list(range(first, topic.count))
    assert forgiving.step() == []
    # The same of a batch that names where it begins.
    start = json.dumps({topic.name: {place.broker_name: {"0": 10}}})
    named = topic.options(startingOffsets=start)
    with pytest.raises(DataLossError, match=rf"begins at {first}, 10 was wanted"):
        read_numbers(named)
    assert read_numbers(named | {"failOnDataLoss": "false"}) == list(range(first, topic.count))
    # "earliest" names no message that could be lost.
    assert read_numbers(topic.options()) == list(range(first, topic.count))


def test_a_new_queue_that_has_lost_messages_already(place: Place) -> None:
    options = {"nameServers": place.site.namesrv, "subscribePattern": "fresh.*"}
    strict, forgiving = Stream(options), Stream(options | {"failOnDataLoss": "false"})
    assert strict.step() == forgiving.step() == []
    topic = NumberedTopic(place.site, "fresh", queues=1)
    first = place.forget_old_files(topic)
    with pytest.raises(DataLossError, match=rf"is new and begins at {first}"):
        wait_until(strict.step, _SECONDS, "it is noticed")
    assert forgiving.until_something_comes() == list(range(first, topic.count))


def test_a_topic_that_is_deleted_and_created_anew(place: Place) -> None:
    topic = NumberedTopic(place.site, "anew", queues=2, is_exact=True)
    topic.fill(40)
    options = topic.options(startingOffsets="earliest", maxOutage="1h")
    strict, forgiving = Stream(options), Stream(options | {"failOnDataLoss": "false"})
    assert strict.step() == forgiving.step() == list(range(40))
    with Admin(name_servers=place.site.namesrv) as admin:
        admin.delete_topic(topic.name, cluster="DefaultCluster")
    wait_until(
        lambda: query_route(place.site.namesrv, topic.name) is None, _SECONDS, "the topic is gone"
    )
    again = NumberedTopic(place.site, "anew", queues=2, is_exact=True)
    again.fill(12)
    with pytest.raises(DataLossError, match="was the topic created anew"):
        wait_until(strict.step, _SECONDS, "the loss is seen")
    assert forgiving.until_something_comes() == list(range(12))
    again.fill(12)
    assert forgiving.until_something_comes() == list(range(12, 24))


def test_a_broker_that_is_away_for_a_while(place: Place) -> None:
    topic = NumberedTopic(place.site, "away")
    topic.fill(40)
    stream = Stream(topic.options(startingOffsets="earliest", requestTimeoutMs="1000"))
    assert stream.step() == list(range(40))
    place.broker.kill()
    assert stream.step() == []
    assert stream.step() == []
    place.broker.start()
    topic.fill(40)
    assert stream.until_something_comes() == list(range(40, 80))


def test_a_task_waits_for_its_broker(place: Place) -> None:
    topic = NumberedTopic(place.site, "waiting", queues=1)
    topic.fill(2_000)
    options = topic.options(requestsInFlight="1", messagesPerRequest="32", rowsPerBatch="1")
    reader = BatchReader(parse_source(options, is_streaming=False), ["body"])
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    found = [int(row["body"]) for row in next(batches).to_pylist()]
    assert 0 < len(found) < 2_000
    place.broker.kill()
    back = threading.Timer(2.0, place.broker.start)
    back.start()
    try:
        found += [int(row["body"]) for rows in batches for row in rows.to_pylist()]
    finally:
        back.join()
    assert found == list(range(2_000))


def test_rows_reach_the_topic_though_the_broker_is_killed(place: Place) -> None:
    topic = NumberedTopic(place.site, "killed")
    options = parse_sink(
        {"nameServers": place.site.namesrv, "topic": topic.name, "batchBytes": "1000"}
    )
    numbers = count()

    def batches() -> Iterator[pa.RecordBatch]:
        for step in range(40):
            if step in (10, 25):
                place.broker.kill()
                threading.Timer(1.0, place.broker.start).start()
            bodies = [b"%d" % next(numbers) for _ in range(100)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(bodies, pa.binary())], schema=pa.schema([pa.field("body", pa.binary())])
            )

    sent = write_batches(batches(), options, "query-1-0")
    assert sent == 4_000
    found = read_numbers(topic.options())
    # At least once.
    assert sorted(set(found)) == list(range(4_000))


def test_name_servers_that_nobody_runs_are_one_error_soon() -> None:
    # An error that were waited for would be waited for longer than this test may take.
    servers = {"nameServers": f"127.0.0.1:{lease_port()}", "maxOutage": "1h"}
    options = servers | {"subscribe": "T"}
    with pytest.raises(NameServerError, match="no name server answers"):
        read_numbers(options)
    with pytest.raises(NameServerError, match="no name server answers"):
        Stream(options)
    # A query that goes on from its checkpoint, which does not ask where to begin.
    going_on = Stream(options, {"version": 1, "queues": {"T": {"b": {"0": 1}}}})
    with pytest.raises(NameServerError, match="no name server answers"):
        going_on.plan()
    for topic in ({}, {"topic": "T"}):
        with pytest.raises(NameServerError, match="no name server answers"):
            BatchWriter(parse_sink(servers | topic))


def test_brokers_that_are_away_when_a_write_begins_are_one_error_soon(place: Place) -> None:
    topic = NumberedTopic(place.site, "absent")
    options = parse_sink(
        {
            "nameServers": place.site.namesrv,
            "topic": topic.name,
            "requestTimeoutMs": "500",
            "maxOutage": "1h",
        }
    )
    BatchWriter(options)
    os.kill(place.broker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(GoddardError, match=f"{place.broker.address}.*500 ms"):
            BatchWriter(options)
    finally:
        os.kill(place.broker.pid, signal.SIGCONT)
    BatchWriter(options)
    place.broker.kill()
    wait_until(lambda: query_route(place.site.namesrv, topic.name) is None, _SECONDS, "it is away")
    with pytest.raises(ClientError, match="No route info of this topic"):
        BatchWriter(options)


def test_a_topic_that_does_not_exist_is_one_error_soon(place: Place) -> None:
    options = {"nameServers": place.site.namesrv, "subscribe": "Nowhere"}
    with pytest.raises(ClientError, match="No route info of this topic: Nowhere"):
        read_numbers(options)
    with pytest.raises(ClientError, match="No route info of this topic: Nowhere"):
        Stream(options)


@pytest.mark.java
def test_wrong_credentials_are_one_error_soon(tmp_path: Path) -> None:
    user = '{"username":"goddard","password":"12345678"}'
    providers = "org.apache.rocketmq.auth.authentication.provider."
    guarded = {
        "authenticationEnabled": "true",
        "authenticationProvider": providers + "DefaultAuthenticationProvider",
        "authenticationMetadataProvider": providers + "LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": user,
        "innerClientAuthenticationCredentials": user.replace("username", "accessKey").replace(
            "password", "secretKey"
        ),
    }
    with JavaPeers("5.4.0", tmp_path) as java:
        namesrv = java.start_name_server().address
        java.start_broker("guarded", namesrv=namesrv, properties=guarded)
        wait_until(lambda: "guarded" in query_brokers(namesrv), _SECONDS, "guarded is registered")
        right = {"nameServers": namesrv, "accessKey": "goddard", "secretKey": "12345678"}
        # An error that were waited for would be waited for longer than this test may take.
        wrong = right | {"secretKey": "87654321", "maxOutage": "1h"}
        assert write_bodies(right | {"topic": "T"}, [b"1"]) == 1
        assert read_numbers(right | {"subscribe": "T"}) == [1]
        with pytest.raises(GoddardError, match=_REFUSAL):
            read_numbers(wrong | {"subscribe": "T"})
        with pytest.raises(GoddardError, match=_REFUSAL):
            Stream(wrong | {"subscribe": "T"})
        with pytest.raises(GoddardError, match=_REFUSAL):
            write_bodies(wrong | {"topic": "T"}, [b"1"])
