"""The requests that planning a stream makes, counted at a fake broker, without Spark."""

import asyncio
import time

from goddard.protocol.bodies import MessageQueue as QueueKey
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import TopicOffset, TopicStatsTable
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.spark.reading.offsets import from_json
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.spark_readers import ManualStream

_QUEUES = 2_000
_OFFSET = 7


def statistics(request: RemotingCommand) -> RemotingCommand:
    table = TopicStatsTable()
    for queue_id in range(_QUEUES):
        key = QueueKey("a", queue_id, request.fields["topic"])
        table.offset_table[key] = TopicOffset(min_offset=0, max_offset=_OFFSET)
    return request.reply(body=encode_body(table))


def offset_requests(broker: FakeBroker) -> list[int]:
    return [request.code for request in broker.requests]


async def test_idle_stream_asks_once_for_each_topic_and_broker() -> None:
    async with FakeCluster("a", queues=_QUEUES) as cluster:
        broker = cluster.broker("a")
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = statistics

        def poll_for(seconds: float) -> None:
            stream = ManualStream({"nameServers": cluster.namesrv, "subscribe": "T"})
            stream.offset = stream.plan()
            assert set(from_json(stream.offset).queues.values()) == {_OFFSET}
            broker.requests.clear()
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                assert stream.plan() == stream.offset
            stream.reader.stop()

        await asyncio.to_thread(poll_for, 2.0)
        assert set(offset_requests(broker)) == {RequestCode.GET_TOPIC_STATS_INFO}
        assert len(broker.requests) <= 2 * 20


async def test_queues_are_asked_for_one_by_one_if_statistics_are_refused() -> None:
    async with FakeCluster("a", queues=3) as cluster:
        broker = cluster.broker("a")
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = lambda request: request.reply(
            ResponseCode.NO_PERMISSION, "no permission"
        )
        broker.answers[RequestCode.GET_MIN_OFFSET] = lambda request: request.reply(
            ext_fields={"offset": "0"}
        )
        broker.answers[RequestCode.GET_MAX_OFFSET] = lambda request: request.reply(
            ext_fields={"offset": str(_OFFSET)}
        )
        broker.answers[RequestCode.PULL_MESSAGE] = lambda request: request.reply(
            ResponseCode.PULL_NOT_FOUND
        )

        def plan() -> None:
            stream = ManualStream({"nameServers": cluster.namesrv, "subscribe": "T"})
            queues = from_json(stream.plan()).queues
            assert sorted(queues.values()) == [_OFFSET] * 3
            stream.reader.stop()

        await asyncio.to_thread(plan)
        # A broker that refused once is not asked again.
        assert offset_requests(broker).count(RequestCode.GET_TOPIC_STATS_INFO) == 1
