"""Brokers, topics and queues that come and go while a stream runs: readers without Spark."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from tests.support.registrant import Registrant
from tests.support.sparkreads import Stream

from goddard import Admin, Message, MessageQueue, Producer
from goddard.client.errors import ClientError
from goddard.protocol.codes import ResponseCode
from goddard.spark.offsets import DataLossError, from_json
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from goddard.testing.wire import query_brokers, query_route

_SECONDS = 60
_QUEUES = 2


class Pair:
    """Two brokers of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.site = Site(cluster.start_name_server())
        self.start("first")
        self.start("second")

    def start(self, name: str) -> None:
        self.site.start_goddard_broker(self.cluster, name)

    def stop(self, name: str) -> None:
        """Until the name server has forgotten it."""
        self.site.brokers[name].kill()
        wait_until(lambda: name not in query_brokers(self.namesrv), _SECONDS, f"{name} is away")

    def start_again(self, name: str) -> None:
        """Until the name server knows it."""
        self.site.brokers[name].start()
        wait_until(lambda: name in query_brokers(self.namesrv), _SECONDS, f"{name} is back")

    @property
    def namesrv(self) -> str:
        return self.site.namesrv

    def topic_on(self, name: str, *brokers: str) -> str:
        with Admin(name_servers=self.namesrv) as admin:
            for broker in brokers:
                admin.create_topic(name, broker=broker, read_queues=_QUEUES, write_queues=_QUEUES)
        wait_until(lambda: self._served(name) == set(brokers), _SECONDS, f"{name} is on {brokers}")
        return name

    def group_on(self, name: str, *brokers: str) -> None:
        with Admin(name_servers=self.namesrv) as admin:
            for broker in brokers:
                admin.create_group(name, broker=broker)

    def _served(self, topic: str) -> set[str]:
        route = query_route(self.namesrv, topic)
        return {data["brokerName"] for data in route["queueDatas"]} if route else set()

    def fill(self, topic: str, broker: str, numbers: range) -> None:
        """Numbered messages into the first queue of a broker."""
        with Producer("fillers", name_servers=self.namesrv) as producer:
            messages = [Message(topic, b"%d" % number) for number in numbers]
            producer.send_batch(messages, queue=MessageQueue(topic, broker, 0))

    def committed(self, group: str, topic: str) -> dict[str, int | None]:
        with Admin(name_servers=self.namesrv) as admin:
            return {
                broker: admin.consumer_offset(group, MessageQueue(topic, broker, 0))
                for broker in self._served(topic)
            }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Cluster(tmp_path_factory.mktemp("pair")) as cluster:
        yield Pair(cluster)


@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_a_broker_that_leaves_keeps_its_place(pair: Pair, way: str) -> None:
    topic = pair.topic_on(f"Leaving-{way}", "first", "second")
    pair.fill(topic, "first", range(5))
    pair.fill(topic, "second", range(10, 15))
    chosen = {"first": [0, 1], "second": [0, 1]}
    options = {
        "nameServers": pair.namesrv,
        way: topic if way == "subscribe" else json.dumps({topic: chosen}),
        "startingOffsets": "earliest",
        "group": f"leavers-{way}",
        "maxOutage": "1h",
    }
    # One that pulls make may be lost when the broker is killed right after.
    pair.group_on(options["group"], "first", "second")
    stream = Stream(options)
    assert stream.step() == [*range(5), *range(10, 15)]
    pair.stop("second")
    # What the other has is read; what is read is committed, as far as there is somebody to tell.
    pair.fill(topic, "first", range(5, 10))
    assert stream.until_something_comes() == list(range(5, 10))
    assert stream.step() == []
    assert pair.committed(f"leavers-{way}", topic) == {"first": 10}
    pair.start_again("second")

    def has_told_all() -> bool:
        assert stream.step() == []
        return pair.committed(f"leavers-{way}", topic) == {"first": 10, "second": 5}

    wait_until(has_told_all, _SECONDS, "both are committed")
    pair.fill(topic, "second", range(15, 20))
    assert stream.until_something_comes() == list(range(15, 20))


def test_a_slave_that_is_behind_takes_nothing_back(pair: Pair) -> None:
    topic = pair.topic_on("Followed", "first", "second")
    pair.fill(topic, "first", range(10))
    pair.fill(topic, "second", range(4))
    options = {
        "nameServers": pair.namesrv,
        "assign": json.dumps({topic: {"first": [0]}}),
        "startingOffsets": "earliest",
    }
    stream = Stream(options)
    assert stream.step() == list(range(10))
    # The second broker stands in for a slave of the first; name servers tell them apart by address.
    address = f"localhost:{pair.site.brokers['second'].port}"
    slave = Registrant(pair.site.name_server.port)
    with asyncio.Runner() as runner:
        answer = runner.run(slave.register(topic, "T", name="first", broker_id=1, address=address))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        try:
            pair.site.brokers["first"].kill()
            wait_until(
                lambda: query_brokers(pair.namesrv).get("first") == {1: address},
                _SECONDS,
                "there is only the slave",
            )
            strict = Stream(options, stream.at)
            forgiving = Stream(options | {"failOnDataLoss": "false"}, stream.at)
            stopping = Stream(options, stream.at)
            stopping.reader.prepareForTriggerAvailableNow()
            for again in (strict, forgiving, stopping):
                assert again.step() == []
                assert again.at == stream.at
            pair.fill(topic, "second", range(4, 14))
            assert Stream(options, stream.at).step() == list(range(10, 14))
        finally:
            runner.run(slave.close())
            pair.start_again("first")


def test_topics_of_other_brokers_are_read_while_one_is_away(pair: Pair) -> None:
    one, other = pair.topic_on("One", "first"), pair.topic_on("Other", "second")
    pair.fill(one, "first", range(5))
    pair.fill(other, "second", range(10, 15))
    options = {
        "nameServers": pair.namesrv,
        "subscribe": f"{one},{other}",
        "startingOffsets": "earliest",
        "maxOutage": "1h",
    }
    stream = Stream(options)
    assert stream.step() == [*range(5), *range(10, 15)]
    pair.stop("first")
    pair.fill(other, "second", range(15, 20))
    assert stream.until_something_comes() == list(range(15, 20))
    # A query that begins now would not know what it misses.
    with pytest.raises(ClientError, match="No route info of this topic: One"):
        Stream(options)
    pair.start_again("first")
    pair.fill(one, "first", range(5, 9))
    assert stream.until_something_comes() == list(range(5, 9))


def test_a_new_broker_is_read_from_its_first_message(pair: Pair) -> None:
    topic = pair.topic_on("Growing", "first")
    pair.fill(topic, "first", range(5))
    stream = Stream({"nameServers": pair.namesrv, "subscribe": topic})
    assert stream.step() == []
    pair.start("third")
    with Admin(name_servers=pair.namesrv) as admin:
        admin.create_topic(topic, broker="third", read_queues=_QUEUES, write_queues=_QUEUES)
    wait_until(
        lambda: len((query_route(pair.namesrv, topic) or {"queueDatas": []})["queueDatas"]) == 2,
        _SECONDS,
        "both have the topic",
    )
    pair.fill(topic, "third", range(5, 12))
    assert stream.until_something_comes() == list(range(5, 12))


def test_a_pattern_that_nothing_matches_yet(pair: Pair) -> None:
    options = {"nameServers": pair.namesrv, "subscribePattern": "Later.*"}
    stream = Stream(options)
    assert stream.step() == []
    # "latest" is where the query began, before there was a topic; a restart goes on from there.
    topic = pair.topic_on("LaterOn", "first")
    pair.fill(topic, "first", range(5))
    again = Stream(options, stream.at)
    assert again.until_something_comes() == list(range(5))


def test_a_topic_that_is_seen_empty_is_read_from_its_beginning(pair: Pair) -> None:
    topic = pair.topic_on("Anew", "first")
    pair.fill(topic, "first", range(5))
    stream = Stream(
        {
            "nameServers": pair.namesrv,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        }
    )
    assert stream.step() == list(range(5))
    with Admin(name_servers=pair.namesrv) as admin:
        admin.delete_topic(topic, cluster="DefaultCluster")
    wait_until(lambda: query_route(pair.namesrv, topic) is None, _SECONDS, "the topic is gone")
    pair.topic_on(topic, "first")
    queue = MessageQueue(topic, "first", 0)

    def is_seen() -> bool:
        assert stream.step() == []
        return from_json(stream.at)[0][queue] == 0

    wait_until(is_seen, _SECONDS, "that it is empty")
    at = stream.at
    assert stream.step() == []
    assert stream.at == at, "said once"
    # More than the old one had: their numbers tell nothing any more.
    pair.fill(topic, "first", range(20, 30))
    assert stream.until_something_comes() == list(range(20, 30))


def test_a_topic_that_is_deleted_before_its_batch_is_read(pair: Pair) -> None:
    gone, left = pair.topic_on("Deleted", "first"), pair.topic_on("Left", "first")
    pair.fill(gone, "first", range(5))
    pair.fill(left, "first", range(5, 10))
    options = {
        "nameServers": pair.namesrv,
        "subscribe": f"{gone},{left}",
        "startingOffsets": "earliest",
        "maxOutage": "1h",
    }
    strict, forgiving = Stream(options), Stream(options | {"failOnDataLoss": "false"})
    end = strict.plan()
    assert strict.read(end) == forgiving.read(end) == list(range(10))
    with Admin(name_servers=pair.namesrv) as admin:
        admin.delete_topic(gone, cluster="DefaultCluster")
    wait_until(lambda: query_route(pair.namesrv, gone) is None, _SECONDS, "the topic is gone")
    # Spark repeats a batch that it has written down, whatever has become of the topics.
    with pytest.raises(DataLossError, match=r"Deleted.*its topic is deleted"):
        strict.read(end)
    assert forgiving.read(end) == list(range(5, 10))


def test_a_queue_that_came_during_a_batch_does_not_disturb_its_repetition(pair: Pair) -> None:
    topic = pair.topic_on("Repeated", "first")
    pair.fill(topic, "first", range(5))
    options = {"nameServers": pair.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    stream = Stream(options)
    end = stream.plan()
    assert stream.read(end) == list(range(5))
    with Admin(name_servers=pair.namesrv) as admin:
        admin.create_topic(topic, broker="first", read_queues=4, write_queues=4)
    # The first batch was not committed: where it starts is asked again, and has two queues more.
    again = Stream(options)
    assert len(from_json(again.at)[0]) == 4
    assert again.read(end) == list(range(5))


def test_little_is_waited_for_but_not_at_first(pair: Pair) -> None:
    topic = pair.topic_on("Little", "first")
    pair.fill(topic, "first", range(3))
    options = {
        "nameServers": pair.namesrv,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "10",
    }
    patient = Stream(options | {"maxTriggerDelay": "1h"})
    hasty = Stream(options | {"maxTriggerDelay": "1ms"})
    assert patient.step() == hasty.step() == list(range(3))
    pair.fill(topic, "first", range(3, 8))
    assert hasty.until_something_comes() == list(range(3, 8))
    for _ in range(3):
        assert patient.step() == []
    pair.fill(topic, "first", range(8, 13))
    assert patient.until_something_comes() == list(range(3, 13))
    # What stops at what is there waits for nothing.
    pair.fill(topic, "first", range(13, 15))
    patient.reader.prepareForTriggerAvailableNow()
    assert patient.step() == [13, 14]


def test_available_now_is_what_was_there_at_the_start(pair: Pair) -> None:
    topic = pair.topic_on("Now", "first")
    pair.fill(topic, "first", range(5))
    options = {"nameServers": pair.namesrv, "subscribe": topic}
    stream = Stream(options | {"startingOffsets": "earliest"})
    stream.reader.prepareForTriggerAvailableNow()
    pair.fill(topic, "first", range(5, 10))
    assert stream.step(3) == list(range(3))
    # Nothing new would be the end of the query: so it does not depend on who answers now.
    pair.stop("first")
    at, end = stream.at, stream.plan(3)
    assert end != at
    pair.start_again("first")
    assert stream.read(end) == [3, 4]
    stream.at = end
    assert stream.step(3) == []
    # "latest" is asked for after where to stop.
    late = Stream(options | {"startingOffsets": "earliest"})
    late.reader.prepareForTriggerAvailableNow()
    late.at = {"version": 1, "queues": {topic: {"first": {"0": 10, "1": 0}}}}
    assert late.step() == []
    late.reader.prepareForTriggerAvailableNow()
    late.at["queues"][topic]["first"]["0"] = 11
    with pytest.raises(DataLossError, match="ends at 10, before 11"):
        late.step()
