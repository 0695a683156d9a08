"""Brokers, topics and queues that appear and disappear while a stream runs, without Spark."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from goddard import Admin, Message, MessageQueue, Producer
from goddard.client.errors import ClientError
from goddard.protocol.codes import ResponseCode
from goddard.spark.reading.offsets import DataLossError, from_json
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from goddard.testing.wire import query_brokers, query_route
from tests.support.name_server_client import NameServerClient
from tests.support.spark_readers import ManualStream

_SECONDS = 60
_QUEUES = 2


class Pair:
    """A cluster with two brokers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.site = Site(cluster.start_name_server())
        self.start("first")
        self.start("second")

    def start(self, name: str) -> None:
        self.site.start_goddard_broker(self.cluster, name)

    def stop(self, name: str) -> None:
        """Kill a broker and wait until the name server has removed it."""
        self.site.brokers[name].kill()
        wait_until(lambda: name not in query_brokers(self.namesrv), _SECONDS, f"{name} is removed")

    def restart(self, name: str) -> None:
        """Start a stopped broker and wait until it is registered."""
        self.site.brokers[name].start()
        wait_until(lambda: name in query_brokers(self.namesrv), _SECONDS, f"{name} is registered")

    @property
    def namesrv(self) -> str:
        return self.site.namesrv

    def create_topic(self, name: str, *brokers: str) -> str:
        with Admin(name_servers=self.namesrv) as admin:
            for broker in brokers:
                admin.create_topic(name, broker=broker, read_queues=_QUEUES, write_queues=_QUEUES)
        wait_until(
            lambda: self._brokers_with(name) == set(brokers), _SECONDS, f"{name} is on {brokers}"
        )
        return name

    def create_group(self, name: str, *brokers: str) -> None:
        with Admin(name_servers=self.namesrv) as admin:
            for broker in brokers:
                admin.create_group(name, broker=broker)

    def _brokers_with(self, topic: str) -> set[str]:
        route = query_route(self.namesrv, topic)
        return {data["brokerName"] for data in route["queueDatas"]} if route else set()

    def fill(self, topic: str, broker: str, numbers: range, *, queue_id: int = 0) -> None:
        """Send numbered messages to a queue of a broker."""
        with Producer("fillers", name_servers=self.namesrv) as producer:
            messages = [Message(topic, b"%d" % number) for number in numbers]
            producer.send_batch(messages, queue=MessageQueue(topic, broker, queue_id))

    def committed(self, group: str, topic: str) -> dict[str, int | None]:
        with Admin(name_servers=self.namesrv) as admin:
            return {
                broker: admin.consumer_offset(group, MessageQueue(topic, broker, 0))
                for broker in self._brokers_with(topic)
            }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Cluster(tmp_path_factory.mktemp("pair")) as cluster:
        yield Pair(cluster)


@pytest.mark.parametrize("option", ["subscribe", "assign"])
def test_offsets_of_a_stopped_broker_are_kept(pair: Pair, option: str) -> None:
    topic = pair.create_topic(f"Leaving-{option}", "first", "second")
    pair.fill(topic, "first", range(5))
    pair.fill(topic, "second", range(10, 15))
    assignment = {"first": [0, 1], "second": [0, 1]}
    options = {
        "nameServers": pair.namesrv,
        option: topic if option == "subscribe" else json.dumps({topic: assignment}),
        "startingOffsets": "earliest",
        "group": f"leavers-{option}",
        "maxOutage": "1h",
    }
    # A group that pulls create implicitly may be lost when the broker is killed right after.
    pair.create_group(options["group"], "first", "second")
    stream = ManualStream(options)
    assert stream.run_batch() == [*range(5), *range(10, 15)]
    pair.stop("second")
    # The other broker is read, and its offsets are committed.
    pair.fill(topic, "first", range(5, 10))
    assert stream.wait_for_rows() == list(range(5, 10))
    assert stream.run_batch() == []
    assert pair.committed(f"leavers-{option}", topic) == {"first": 10}
    pair.restart("second")

    def is_committed_at_both() -> bool:
        assert stream.run_batch() == []
        return pair.committed(f"leavers-{option}", topic) == {"first": 10, "second": 5}

    wait_until(is_committed_at_both, _SECONDS, "both are committed")
    pair.fill(topic, "second", range(15, 20))
    assert stream.wait_for_rows() == list(range(15, 20))


def test_lagging_slave_does_not_reset_offsets(pair: Pair) -> None:
    topic = pair.create_topic("Followed", "first", "second")
    pair.fill(topic, "first", range(10))
    pair.fill(topic, "second", range(4))
    options = {
        "nameServers": pair.namesrv,
        "assign": json.dumps({topic: {"first": [0]}}),
        "startingOffsets": "earliest",
    }
    stream = ManualStream(options)
    assert stream.run_batch() == list(range(10))
    # The second broker is registered as a slave of the first, under another address.
    address = f"localhost:{pair.site.brokers['second'].port}"
    slave = NameServerClient(pair.site.name_server.port)
    with asyncio.Runner() as runner:
        answer = runner.run(slave.register(topic, "T", name="first", broker_id=1, address=address))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        try:
            pair.site.brokers["first"].kill()
            wait_until(
                lambda: query_brokers(pair.namesrv).get("first") == {1: address},
                _SECONDS,
                "only the slave is registered",
            )
            strict = ManualStream(options, stream.offset)
            lenient = ManualStream(options | {"failOnDataLoss": "false"}, stream.offset)
            available_now = ManualStream(options, stream.offset)
            available_now.reader.prepareForTriggerAvailableNow()
            for again in (strict, lenient, available_now):
                assert again.run_batch() == []
                assert again.offset == stream.offset
            pair.fill(topic, "second", range(4, 14))
            assert ManualStream(options, stream.offset).run_batch() == list(range(10, 14))
        finally:
            runner.run(slave.close())
            pair.restart("first")


def test_topics_of_other_brokers_are_read_during_an_outage(pair: Pair) -> None:
    one, other = pair.create_topic("One", "first"), pair.create_topic("Other", "second")
    pair.fill(one, "first", range(5))
    pair.fill(other, "second", range(10, 15))
    options = {
        "nameServers": pair.namesrv,
        "subscribe": f"{one},{other}",
        "startingOffsets": "earliest",
        "maxOutage": "1h",
    }
    stream = ManualStream(options)
    assert stream.run_batch() == [*range(5), *range(10, 15)]
    pair.stop("first")
    pair.fill(other, "second", range(15, 20))
    assert stream.wait_for_rows() == list(range(15, 20))
    # A query that starts now cannot know which messages it would miss.
    with pytest.raises(ClientError, match="No route info of this topic: One"):
        ManualStream(options)
    pair.restart("first")
    pair.fill(one, "first", range(5, 9))
    assert stream.wait_for_rows() == list(range(5, 9))


def test_new_broker_is_read_from_its_first_message(pair: Pair) -> None:
    topic = pair.create_topic("Growing", "first")
    pair.fill(topic, "first", range(5))
    stream = ManualStream({"nameServers": pair.namesrv, "subscribe": topic})
    assert stream.run_batch() == []
    pair.start("third")
    with Admin(name_servers=pair.namesrv) as admin:
        admin.create_topic(topic, broker="third", read_queues=_QUEUES, write_queues=_QUEUES)
    wait_until(
        lambda: len((query_route(pair.namesrv, topic) or {"queueDatas": []})["queueDatas"]) == 2,
        _SECONDS,
        "both have the topic",
    )
    pair.fill(topic, "third", range(5, 12))
    assert stream.wait_for_rows() == list(range(5, 12))


def test_broker_that_was_away_at_the_start_follows_starting_offsets(pair: Pair) -> None:
    topic = pair.create_topic("Away", "first", "second")
    pair.fill(topic, "second", range(5))
    pair.stop("second")
    options = {"nameServers": pair.namesrv, "subscribe": topic}
    latest = ManualStream(options)
    earliest = ManualStream(options | {"startingOffsets": "earliest"})
    assert latest.run_batch() == earliest.run_batch() == []
    pair.restart("second")
    assert earliest.wait_for_rows() == list(range(5))
    queue = MessageQueue(topic, "second", 0)

    def is_found() -> bool:
        assert latest.run_batch() == []
        return from_json(latest.offset).queues.get(queue) == 5

    wait_until(is_found, _SECONDS, "the broker is found")
    pair.fill(topic, "second", range(5, 9))
    assert latest.wait_for_rows() == list(range(5, 9))
    # A restart before the broker was found gives the same.
    again = ManualStream(options, earliest.reader.initialOffset())
    again.offset = {**again.offset, "queues": {topic: {"first": {"0": 0, "1": 0}}}}
    assert again.wait_for_rows() == list(range(5, 9))


@pytest.mark.parametrize("option", ["earliest", "latest"])
def test_queues_created_later_follow_new_queues(pair: Pair, option: str) -> None:
    topic = pair.create_topic(f"Added-{option}", "first")
    options = {"nameServers": pair.namesrv, "subscribe": topic, "newQueues": option}
    stream = ManualStream(options)
    assert stream.run_batch() == []
    with Admin(name_servers=pair.namesrv) as admin:
        admin.create_topic(topic, broker="first", read_queues=4, write_queues=4)
    queue = MessageQueue(topic, "first", 3)
    pair.fill(topic, "first", range(5), queue_id=3)

    rows: list[int] = []

    def is_found() -> bool:
        rows.extend(stream.run_batch())
        return from_json(stream.offset).queues.get(queue) == 5

    wait_until(is_found, _SECONDS, "the queue is found")
    assert rows == (list(range(5)) if option == "earliest" else [])
    pair.fill(topic, "first", range(5, 9), queue_id=3)
    # The checkpoint has the start of the queue, so that a restart continues there.
    restarted = ManualStream(options, stream.offset)
    assert restarted.run_batch() == list(range(5, 9))


def test_topic_created_after_the_start_is_read_from_its_beginning(pair: Pair) -> None:
    options = {"nameServers": pair.namesrv, "subscribePattern": "Later.*"}
    stream = ManualStream(options)
    assert stream.run_batch() == []
    # "latest" was determined before the topic existed; a restart continues from there.
    topic = pair.create_topic("LaterOn", "first")
    pair.fill(topic, "first", range(5))
    again = ManualStream(options, stream.offset)
    assert again.wait_for_rows() == list(range(5))


def test_recreated_topic_seen_empty_is_read_from_its_beginning(pair: Pair) -> None:
    topic = pair.create_topic("Recreated", "first")
    pair.fill(topic, "first", range(5))
    stream = ManualStream(
        {
            "nameServers": pair.namesrv,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        }
    )
    assert stream.run_batch() == list(range(5))
    with Admin(name_servers=pair.namesrv) as admin:
        admin.delete_topic(topic, cluster="DefaultCluster")
    wait_until(lambda: query_route(pair.namesrv, topic) is None, _SECONDS, "the topic is deleted")
    pair.create_topic(topic, "first")
    queue = MessageQueue(topic, "first", 0)

    def is_seen_empty() -> bool:
        assert stream.run_batch() == []
        return from_json(stream.offset).queues[queue] == 0

    wait_until(is_seen_empty, _SECONDS, "the recreated topic is seen")
    offset = stream.offset
    assert stream.run_batch() == []
    assert stream.offset == offset, "only one empty batch"
    # More messages than the old topic had, so that offsets alone do not show the change.
    pair.fill(topic, "first", range(20, 30))
    assert stream.wait_for_rows() == list(range(20, 30))


def test_deleted_topic_of_a_planned_batch_is_data_loss(pair: Pair) -> None:
    gone, kept = pair.create_topic("Deleted", "first"), pair.create_topic("Kept", "first")
    pair.fill(gone, "first", range(5))
    pair.fill(kept, "first", range(5, 10))
    options = {
        "nameServers": pair.namesrv,
        "subscribe": f"{gone},{kept}",
        "startingOffsets": "earliest",
        "maxOutage": "1h",
    }
    strict, lenient = ManualStream(options), ManualStream(options | {"failOnDataLoss": "false"})
    end = strict.plan()
    assert strict.read(end) == lenient.read(end) == list(range(10))
    with Admin(name_servers=pair.namesrv) as admin:
        admin.delete_topic(gone, cluster="DefaultCluster")
    wait_until(lambda: query_route(pair.namesrv, gone) is None, _SECONDS, "the topic is deleted")
    # Spark repeats a planned batch even if its topics were deleted.
    with pytest.raises(DataLossError, match=r"Deleted.*its topic was deleted"):
        strict.read(end)
    assert lenient.read(end) == list(range(5, 10))


def test_queue_added_during_a_batch_is_not_in_its_repetition(pair: Pair) -> None:
    topic = pair.create_topic("Repeated", "first")
    pair.fill(topic, "first", range(5))
    options = {"nameServers": pair.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    stream = ManualStream(options)
    end = stream.plan()
    assert stream.read(end) == list(range(5))
    with Admin(name_servers=pair.namesrv) as admin:
        admin.create_topic(topic, broker="first", read_queues=4, write_queues=4)
    # The first batch was not committed: its start is resolved again and has two more queues.
    again = ManualStream(options)
    assert len(from_json(again.offset).queues) == 4
    assert again.read(end) == list(range(5))


def test_min_offsets_per_trigger_after_the_first_batch(pair: Pair) -> None:
    topic = pair.create_topic("Little", "first")
    pair.fill(topic, "first", range(3))
    options = {
        "nameServers": pair.namesrv,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "10",
    }
    waiting = ManualStream(options | {"maxTriggerDelay": "1h"})
    impatient = ManualStream(options | {"maxTriggerDelay": "1ms"})
    assert waiting.run_batch() == impatient.run_batch() == list(range(3))
    pair.fill(topic, "first", range(3, 8))
    assert impatient.wait_for_rows() == list(range(3, 8))
    for _ in range(3):
        assert waiting.run_batch() == []
    pair.fill(topic, "first", range(8, 13))
    assert waiting.wait_for_rows() == list(range(3, 13))
    # AvailableNow does not wait for minOffsetsPerTrigger.
    pair.fill(topic, "first", range(13, 15))
    waiting.reader.prepareForTriggerAvailableNow()
    assert waiting.run_batch() == [13, 14]


def test_available_now_stops_at_the_offsets_of_its_start(pair: Pair) -> None:
    topic = pair.create_topic("Now", "first")
    pair.fill(topic, "first", range(5))
    options = {"nameServers": pair.namesrv, "subscribe": topic}
    stream = ManualStream(options | {"startingOffsets": "earliest"})
    stream.reader.prepareForTriggerAvailableNow()
    pair.fill(topic, "first", range(5, 10))
    assert stream.run_batch(3) == list(range(3))
    # No new offsets would end the query, so planning must not depend on reachable brokers.
    pair.stop("first")
    end = stream.plan(3)
    assert end != stream.offset
    pair.restart("first")
    assert stream.read(end) == [3, 4]
    stream.offset = end
    assert stream.run_batch(3) == []
    # The stop offsets are determined before "latest" is resolved.
    late = ManualStream(options | {"startingOffsets": "earliest"})
    late.reader.prepareForTriggerAvailableNow()
    late.offset = {"version": 1, "queues": {topic: {"first": {"0": 10, "1": 0}}}}
    assert late.run_batch() == []
    late.reader.prepareForTriggerAvailableNow()
    late.offset = {"version": 1, "queues": {topic: {"first": {"0": 11, "1": 0}}}}
    with pytest.raises(DataLossError, match="ends at 10, before 11"):
        late.run_batch()
