"""The requests of planning and of tasks, counted at a fake broker, without Spark."""

import asyncio
import time

from goddard.protocol.bodies import MessageQueue as QueueKey
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import TopicOffset, TopicStatsTable
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.record import Host, Record, encode_record
from goddard.spark.options import parse_source
from goddard.spark.reading.offsets import from_json
from goddard.spark.reading.reader import BatchReader
from goddard.spark.reading.sessions import close_idle
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.spark_readers import ManualStream

_QUEUES = 2_000
_OFFSET = 7
_HOST = Host.parse("127.0.0.1:10911")


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


def pulled(request: RemotingCommand) -> RemotingCommand:
    """One record at the requested offset."""
    offset = int(request.fields["queueOffset"])
    record = Record("T", 0, offset, 0, 0, _HOST, 0, _HOST, b"%d" % offset, b"")
    fields = {"minOffset": "0", "maxOffset": str(_OFFSET), "suggestWhichBrokerId": "0"}
    fields["nextBeginOffset"] = str(offset + 1)
    return request.reply(body=encode_record(record), ext_fields=fields)


async def test_short_ranges_of_many_queues_are_few_tasks_with_one_connection() -> None:
    async with FakeCluster("a", queues=_QUEUES) as cluster:
        broker = cluster.broker("a")
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = statistics
        broker.answers[RequestCode.PULL_MESSAGE] = pulled

        def read_all() -> tuple[int, int]:
            options = {"nameServers": cluster.namesrv, "subscribe": "T"}
            partitions = BatchReader(parse_source(options, is_streaming=False), ["body"])
            planned = partitions.partitions()
            connections = len(broker.connections)
            broker.requests.clear()
            rows = [
                row["body"]
                for partition in planned
                for batch in partitions.read(partition)
                for row in batch.to_pylist()
            ]
            assert len(rows) == _QUEUES * _OFFSET
            close_idle()
            return len(planned), len(broker.connections) - connections

        tasks, connections = await asyncio.to_thread(read_all)
        assert tasks <= 64
        assert connections == 1


async def test_pulls_in_flight_are_limited_for_each_broker() -> None:
    async with FakeCluster("a", queues=_QUEUES) as cluster:
        broker = cluster.broker("a")
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = statistics
        pending = most = 0

        async def pull(request: RemotingCommand) -> RemotingCommand:
            nonlocal pending, most
            pending += 1
            most = max(most, pending)
            # Other pulls that were sent arrive before this one is answered.
            for _ in range(20):
                await asyncio.sleep(0)
            pending -= 1
            return pulled(request)

        broker.answers[RequestCode.PULL_MESSAGE] = pull

        def read_first(**more: str) -> int:
            options = {"nameServers": cluster.namesrv, "subscribe": "T", **more}
            reader = BatchReader(parse_source(options, is_streaming=False), ["body"])
            partitions = reader.partitions()
            assert sum(batch.num_rows for batch in reader.read(partitions[0])) > 0
            close_idle()
            return len(partitions)

        tasks = await asyncio.to_thread(read_first)
        assert 2 < most <= 8
        most = 0
        await asyncio.to_thread(read_first, requestsInFlightPerBroker=str(2 * tasks))
        assert most == 2


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
