"""Ten thousand topics and a hundred thousand queues work like few, only slower."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from goddard.protocol.bodies import TopicConfig, encode_body
from goddard.protocol.bodies_admin import TopicConfigList
from goddard.protocol.codes import RequestCode
from goddard.protocol.responses import check
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_route
from goddard.transport.client import Client, ClientOptions
from tests.support.broker_client import BrokerClient
from tests.support.process_resources import descriptors, private_bytes

MIB = 1 << 20
_LIST = 500
_QUEUES_WRITTEN = 2_000


async def create(dialogue: BrokerClient, topics: list[str], queues: int) -> None:
    for start in range(0, len(topics), _LIST):
        configs = [
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
            for name in topics[start : start + _LIST]
        ]
        body = encode_body(TopicConfigList(topic_config_list=configs))
        code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        check(await dialogue.ask(code, {}, body, timeout_ms=60_000))


def places(topics: list[str], queues: int, count: int) -> list[tuple[str, int]]:
    """This number of queues, spread over all topics."""
    return [
        (topics[number * 7 % len(topics)], number // len(topics) % queues)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "queues"), [(10_000, 4), (1_000, 100)], ids=["10,000 topics", "100,000 queues"]
)
async def test_many_topics_and_queues(
    tmp_path: Path, count: int, queues: int, record_property: Callable[[str, object], None]
) -> None:
    topics = [f"many-{number}" for number in range(count)]
    written = list(dict.fromkeys(places(topics, queues, _QUEUES_WRITTEN)))
    figures: dict[str, float] = {}

    def timed(what: str, begun: float) -> None:
        figures[what] = round(time.monotonic() - begun, 2)

    with Cluster(tmp_path, brokers=1, properties={"mappedFileSizeConsumeQueue": "2000"}) as cluster:
        (broker,) = cluster.brokers
        before = private_bytes(broker.pid)
        begun = time.monotonic()
        async with Client(ClientOptions()) as client:
            dialogue = BrokerClient(client, broker.address)
            await create(dialogue, topics, queues)
            timed("created_s", begun)
            begun = time.monotonic()
            for topic, queue_id in written:
                await dialogue.send(topic, f"{topic}/{queue_id}".encode(), queue_id=queue_id)
            timed("sent_s", begun)
        await asyncio.to_thread(
            wait_until,
            lambda: query_route(cluster.namesrv, topics[-1]),
            60,
            "the name server knows the last topic",
        )
        figures["grown_mib"] = (private_bytes(broker.pid) - before) // MIB
        figures["descriptors"] = descriptors(broker.pid)
        begun = time.monotonic()
        assert await asyncio.to_thread(broker.stop, 60) == 0
        timed("stop_s", begun)
        begun = time.monotonic()
        await asyncio.to_thread(broker.start)
        timed("start_s", begun)
        async with Client(ClientOptions()) as client:
            dialogue = BrokerClient(client, broker.address)
            for topic, queue_id in written[:: len(written) // 200]:
                (record,) = await dialogue.receive(topic, 1, queue_id=queue_id)
                assert record.body == f"{topic}/{queue_id}".encode()
            fields = {"topic": topics[-1]}
            check(await dialogue.ask(RequestCode.GET_TOPIC_STATS_INFO, fields))
        route = query_route(cluster.namesrv, topics[0])
        assert route is not None
        assert route["queueDatas"][0]["writeQueueNums"] == queues
    for name, value in figures.items():
        record_property(name, value)
    print(count, queues, figures)
    assert figures["grown_mib"] < 150
