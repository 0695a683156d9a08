"""Messages that are deleted before they are read, and unreachable servers, without Spark.

The tests call the readers as Spark does: they get offsets, plan ranges and read them.
"""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from goddard import Admin, MessageQueue
from goddard.client.errors import ClientError, NameServerError
from goddard.errors import GoddardError
from goddard.spark.options import parse_sink, parse_source
from goddard.spark.reading.cluster import ClusterClient
from goddard.spark.reading.offsets import DataLossError, from_json
from goddard.spark.reading.reader import BatchReader
from goddard.spark.writing.writer import BatchWriter, write_batches
from goddard.testing.cluster import Cluster
from goddard.testing.ports import lease_port
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers, query_route
from tests.support.java import JavaPeers
from tests.support.numbered_topic import NumberedTopic
from tests.support.small_files import SmallFilesCluster
from tests.support.spark_readers import ManualStream, read_numbers, read_rows, write_bodies

_SECONDS = 60
_REFUSAL = r"(?i)signature|credentials"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallFilesCluster]:
    with Cluster(tmp_path) as cluster:
        yield SmallFilesCluster(cluster)


def test_messages_deleted_by_retention_are_data_loss(cluster: SmallFilesCluster) -> None:
    topic = NumberedTopic(cluster.site, "retention", queues=1)
    topic.fill(100)
    options = topic.options(startingOffsets="earliest")
    strict, lenient = ManualStream(options), ManualStream(options | {"failOnDataLoss": "false"})
    assert strict.run_batch(10) == lenient.run_batch(10) == list(range(10))
    first = cluster.expire_old_files(topic)
    assert first > 100
    with pytest.raises(DataLossError, match=rf"it begins at {first}, offset 10 was requested"):
        strict.run_batch()
    assert lenient.run_batch() == list(range(first, topic.count))
    assert lenient.run_batch() == []
    # The same for a batch with a start offset.
    start = json.dumps({topic.name: {cluster.broker_name: {"0": 10}}})
    named = topic.options(startingOffsets=start)
    with pytest.raises(DataLossError, match=rf"begins at {first}, offset 10 was requested"):
        read_numbers(named)
    assert read_numbers(named | {"failOnDataLoss": "false"}) == list(range(first, topic.count))
    # "earliest" requests no deleted message.
    assert read_numbers(topic.options()) == list(range(first, topic.count))


@pytest.mark.parametrize("is_broker_known", [False, True])
def test_new_queue_with_deleted_messages_is_data_loss(
    cluster: SmallFilesCluster, is_broker_known: bool
) -> None:
    if is_broker_known:
        # Otherwise its broker could have been away when the query was started.
        NumberedTopic(cluster.site, "fresh-first", queues=1)
    options = {"nameServers": cluster.site.namesrv, "subscribePattern": "fresh.*"}
    strict, lenient = ManualStream(options), ManualStream(options | {"failOnDataLoss": "false"})
    assert strict.run_batch() == lenient.run_batch() == []
    topic = NumberedTopic(cluster.site, "fresh", queues=1)
    first = cluster.expire_old_files(topic)
    with pytest.raises(DataLossError, match=rf"is new and begins at {first}"):
        wait_until(strict.run_batch, _SECONDS, "it is noticed")
    assert lenient.wait_for_rows() == list(range(first, topic.count))


def test_recreated_topic_is_data_loss(cluster: SmallFilesCluster) -> None:
    topic = NumberedTopic(cluster.site, "recreated", queues=2, is_exact=True)
    topic.fill(40)
    options = topic.options(startingOffsets="earliest", maxOutage="1h")
    strict, lenient = ManualStream(options), ManualStream(options | {"failOnDataLoss": "false"})
    assert strict.run_batch() == lenient.run_batch() == list(range(40))
    with Admin(name_servers=cluster.site.namesrv) as admin:
        admin.delete_topic(topic.name, cluster="DefaultCluster")
    wait_until(
        lambda: query_route(cluster.site.namesrv, topic.name) is None, _SECONDS, "the topic is gone"
    )
    again = NumberedTopic(cluster.site, "recreated", queues=2, is_exact=True)
    again.fill(12)
    with pytest.raises(DataLossError, match="was the topic recreated"):
        wait_until(strict.run_batch, _SECONDS, "the loss is seen")
    assert lenient.wait_for_rows() == list(range(12))
    again.fill(12)
    assert lenient.wait_for_rows() == list(range(12, 24))


class TruncatedQueue:
    """A queue of 100 messages that were all read, of which a failover then lost the last five."""

    def __init__(self, cluster: SmallFilesCluster, name: str) -> None:
        self.cluster = cluster
        self.topic = NumberedTopic(cluster.site, name, queues=1)
        self.topic.fill(95)
        store, copy = cluster.broker.home / "store", cluster.broker.home / "copy"
        cluster.broker.stop()
        shutil.copytree(store, copy)
        cluster.broker.start()
        self.topic.fill(5)
        options = self.topic.options(startingOffsets="earliest", maxOutage="1h")
        self.strict = ManualStream(options)
        self.lenient = ManualStream(options | {"failOnDataLoss": "false"})
        assert self.strict.run_batch() == self.lenient.run_batch() == list(range(100))
        cluster.broker.stop()
        shutil.rmtree(store)
        copy.rename(store)
        cluster.broker.start()


def test_truncated_queue_is_read_from_its_new_end(cluster: SmallFilesCluster) -> None:
    queue = TruncatedQueue(cluster, "truncated")
    with pytest.raises(DataLossError, match=r"ends at 95, before 100: .*truncated by a failover"):
        wait_until(queue.strict.run_batch, _SECONDS, "the loss is seen")

    def is_reset() -> bool:
        assert queue.lenient.run_batch() == []
        return set(from_json(queue.lenient.offset).queues.values()) == {95}

    wait_until(is_reset, _SECONDS, "the new end is the offset")
    queue.topic.fill(10)
    assert queue.lenient.wait_for_rows() == list(range(100, 110))


def test_truncated_queue_that_has_grown_again_loses_nothing(cluster: SmallFilesCluster) -> None:
    queue = TruncatedQueue(cluster, "regrown")
    # The queue ends at 105; without the last store time, the messages 100 to 104 would be lost.
    queue.topic.fill(10)
    vanished = r"before offset 100 was stored at \d+ ms .*, and now is one .* stored at \d+ ms"
    with pytest.raises(DataLossError, match=vanished):
        wait_until(queue.strict.run_batch, _SECONDS, "the loss is seen")
    assert queue.lenient.wait_for_rows() == list(range(100, 110))


def test_truncated_queue_of_equal_length_loses_nothing(cluster: SmallFilesCluster) -> None:
    queue = TruncatedQueue(cluster, "equal")
    queue.topic.fill(5)
    with pytest.raises(DataLossError, match="before offset 100 was stored at"):
        wait_until(queue.strict.run_batch, _SECONDS, "the loss is seen")
    assert queue.lenient.wait_for_rows() == list(range(100, 105))


def test_repeated_batch_notices_vanished_messages(cluster: SmallFilesCluster) -> None:
    """A batch that was planned before the truncation, and is repeated by a restarted query."""
    queue = TruncatedQueue(cluster, "repeated")
    queue.topic.fill(10)
    beginning = {"version": 1, "queues": {}, "first": {}}
    restarted = ManualStream(queue.topic.options(), beginning)
    with pytest.raises(DataLossError, match="before offset 100 was stored at"):
        restarted.read(queue.strict.offset)


def test_queue_that_cannot_be_checked_now_is_read_later(
    cluster: SmallFilesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = NumberedTopic(cluster.site, "unchecked", queues=1)
    topic.fill(10)
    stream = ManualStream(topic.options(startingOffsets="earliest"))
    assert stream.run_batch() == list(range(10))
    topic.fill(5)
    checks: list[Mapping[MessageQueue, int]] = []

    def answer_nothing(
        _: ClusterClient, positions: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int | None]:
        checks.append(positions)
        return {}

    def is_checked() -> bool:
        assert stream.run_batch() == []
        return any(checks)

    with monkeypatch.context() as patched:
        patched.setattr(ClusterClient, "store_times", answer_nothing)
        wait_until(is_checked, _SECONDS, "the new messages are noticed")
    assert stream.wait_for_rows() == list(range(10, 15))


def test_end_of_a_limited_batch_has_the_store_time_of_its_last_message(
    cluster: SmallFilesCluster,
) -> None:
    topic = NumberedTopic(cluster.site, "limited", queues=1)
    topic.fill(10)
    stream = ManualStream(topic.options(startingOffsets="earliest"))
    assert stream.run_batch(4) == list(range(4))
    rows = read_rows(topic.options(), ["queueOffset", "storeTimestamp"])
    (stored_at,) = (row["storeTimestamp"] for row in rows if row["queueOffset"] == 3)
    queue = MessageQueue(topic.name, cluster.broker_name, 0)
    assert from_json(stream.offset).stored_ms == {queue: round(stored_at.timestamp() * 1000)}


def test_stream_continues_after_a_broker_outage(cluster: SmallFilesCluster) -> None:
    topic = NumberedTopic(cluster.site, "away")
    topic.fill(40)
    stream = ManualStream(topic.options(startingOffsets="earliest", requestTimeoutMs="1000"))
    assert stream.run_batch() == list(range(40))
    cluster.broker.kill()
    assert stream.run_batch() == []
    assert stream.run_batch() == []
    cluster.broker.start()
    topic.fill(40)
    assert stream.wait_for_rows() == list(range(40, 80))


def test_task_waits_for_its_broker(cluster: SmallFilesCluster) -> None:
    topic = NumberedTopic(cluster.site, "waiting", queues=1)
    topic.fill(2_000)
    options = topic.options(requestsInFlight="1", messagesPerRequest="32", rowsPerBatch="1")
    reader = BatchReader(parse_source(options, is_streaming=False), ["body"])
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    found = [int(row["body"]) for row in next(batches).to_pylist()]
    assert 0 < len(found) < 2_000
    cluster.broker.kill()
    back = threading.Timer(2.0, cluster.broker.start)
    back.start()
    try:
        found += [int(row["body"]) for rows in batches for row in rows.to_pylist()]
    finally:
        back.join()
    assert found == list(range(2_000))


def test_rows_are_written_although_the_broker_is_killed(cluster: SmallFilesCluster) -> None:
    topic = NumberedTopic(cluster.site, "killed")
    options = parse_sink(
        {"nameServers": cluster.site.namesrv, "topic": topic.name, "batchBytes": "1000"}
    )
    numbers = count()

    def batches() -> Iterator[pa.RecordBatch]:
        for step in range(40):
            if step in (10, 25):
                cluster.broker.kill()
                threading.Timer(1.0, cluster.broker.start).start()
            bodies = [b"%d" % next(numbers) for _ in range(100)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(bodies, pa.binary())], schema=pa.schema([pa.field("body", pa.binary())])
            )

    sent = write_batches(batches(), options, "query-1-0")
    assert sent == 4_000
    found = read_numbers(topic.options())
    # At least once.
    assert sorted(set(found)) == list(range(4_000))


def test_unreachable_name_server_fails_at_once() -> None:
    # An error that were waited for would be waited for longer than this test may take.
    servers = {"nameServers": f"127.0.0.1:{lease_port()}", "maxOutage": "1h"}
    options = servers | {"subscribe": "T"}
    with pytest.raises(NameServerError, match="no name server answers"):
        read_numbers(options)
    with pytest.raises(NameServerError, match="no name server answers"):
        ManualStream(options)
    # A query with a checkpoint does not resolve its start offsets.
    continued = ManualStream(options, {"version": 1, "queues": {"T": {"b": {"0": 1}}}})
    with pytest.raises(NameServerError, match="no name server answers"):
        continued.plan()
    for topic in ({}, {"topic": "T"}):
        with pytest.raises(NameServerError, match="no name server answers"):
            BatchWriter(parse_sink(servers | topic))


def test_write_fails_at_once_if_its_broker_is_unreachable(cluster: SmallFilesCluster) -> None:
    topic = NumberedTopic(cluster.site, "absent")
    options = parse_sink(
        {
            "nameServers": cluster.site.namesrv,
            "topic": topic.name,
            "requestTimeoutMs": "500",
            "maxOutage": "1h",
        }
    )
    BatchWriter(options)
    os.kill(cluster.broker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(GoddardError, match=f"{cluster.broker.address}.*500 ms"):
            BatchWriter(options)
    finally:
        os.kill(cluster.broker.pid, signal.SIGCONT)
    BatchWriter(options)
    cluster.broker.kill()
    wait_until(
        lambda: query_route(cluster.site.namesrv, topic.name) is None, _SECONDS, "it is away"
    )
    with pytest.raises(ClientError, match="No route info of this topic"):
        BatchWriter(options)


def test_missing_topic_fails_at_once(cluster: SmallFilesCluster) -> None:
    options = {"nameServers": cluster.site.namesrv, "subscribe": "Nowhere"}
    with pytest.raises(ClientError, match="No route info of this topic: Nowhere"):
        read_numbers(options)
    with pytest.raises(ClientError, match="No route info of this topic: Nowhere"):
        ManualStream(options)


@pytest.mark.java
def test_wrong_credentials_fail_at_once(tmp_path: Path) -> None:
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
            ManualStream(wrong | {"subscribe": "T"})
        with pytest.raises(GoddardError, match=_REFUSAL):
            write_bodies(wrong | {"topic": "T"}, [b"1"])
