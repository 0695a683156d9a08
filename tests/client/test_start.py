"""Start and stop of clients: order of steps, log lines, requests to servers, cancellation."""

import asyncio
import logging
from collections.abc import Collection
from typing import Any

import pytest

from goddard.aio import (
    ClientError,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ServiceState,
    TraceOptions,
)
from goddard.client.consume.assignment import Assignment
from goddard.client.consume.consumer import GroupMember
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_client import ConsumerList, LockQueuesAnswer
from goddard.protocol.codes import RequestCode
from tests.support.fake_cluster import FakeCluster

WAIT_SECONDS = 30


async def test_route_of_the_default_topic_is_fetched_at_the_start() -> None:
    async with FakeCluster("a", topics=("TBW102",)) as cluster:
        async with Producer("early", name_servers=cluster.namesrv):
            async with asyncio.timeout(WAIT_SECONDS):
                await cluster.broker("a").asked[RequestCode.HEART_BEAT].wait()
        assert cluster.route_requests[0] == "TBW102"


async def test_producer_start_and_stop_in_order_with_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "goddard.client")
    async with FakeCluster("a", topics=("known",)) as cluster:
        producer = Producer("ordered", name_servers=cluster.namesrv, topics=["known"])
        async with producer:
            await producer.send(Message("known", b"body"))
        codes = [request.code for request in cluster.broker("a").requests]
    assert "known" in cluster.route_requests
    heartbeat = codes.index(RequestCode.HEART_BEAT)
    send = codes.index(RequestCode.SEND_MESSAGE_V2)
    unregister = codes.index(RequestCode.UNREGISTER_CLIENT)
    assert heartbeat < send < unregister
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    lines = [
        f"the client factory [{producer.client_id}] start OK",
        "the producer [ordered] start OK. sendMessageWithVIPChannel=false",
        f"the client factory [{producer.client_id}] shutdown OK",
        "the producer [ordered] shutdown OK",
    ]
    assert [line for line in messages if line in lines] == lines


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "lite"])
async def test_parts_of_a_consumer_start_in_order_of_rocketmq(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Periodic tasks, rebalance task, routes; then the heartbeat; then the first rebalance, which
    starts the pulls. RocketMQ also starts an internal producer for messages that are sent back;
    these consumers use their session for that.
    """
    queue = MessageQueue("T", "a", 0)
    started: list[asyncio.Task[Any]] = []

    def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        task = asyncio.Task(coroutine, loop=loop, **options)
        started.append(task)
        return task

    # A new connection gets a heartbeat anyway; these are the consumer's own steps.
    steps: list[str] = []
    heartbeat, rebalance = GroupMember.heartbeat, Assignment.rebalance

    async def note_heartbeat(member: GroupMember[Any]) -> list[str]:
        new_topics = await heartbeat(member)
        steps.append("heartbeat")
        return new_topics

    async def note_rebalance(assignment: Assignment[Any], topics: Collection[str]) -> bool:
        steps.append("rebalance")
        return await rebalance(assignment, topics)

    monkeypatch.setattr(GroupMember, "heartbeat", note_heartbeat)
    monkeypatch.setattr(Assignment, "rebalance", note_rebalance)
    async with FakeCluster("a", queues=1) as cluster:
        broker = cluster.broker("a")
        consumer = consumer_of(kind, cluster)
        members = encode_body(ConsumerList(consumer_id_list=[consumer.client_id]))
        locked = encode_body(LockQueuesAnswer(locked=[queue.to_body()]))
        broker.answers = {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda request: request.reply(body=members),
            RequestCode.LOCK_BATCH_MQ: lambda request: request.reply(body=locked),
            RequestCode.QUERY_CONSUMER_OFFSET: lambda request: request.reply(
                ext_fields={"offset": "0"}
            ),
        }
        pull = RequestCode.LITE_PULL_MESSAGE if kind == "lite" else RequestCode.PULL_MESSAGE
        asyncio.get_running_loop().set_task_factory(make_task)
        try:
            async with asyncio.timeout(WAIT_SECONDS), consumer:
                await broker.asked[pull].wait()
        finally:
            asyncio.get_running_loop().set_task_factory(None)
        asked = [request.code for request in broker.requests]
    tasks = ["RefreshRoutes", "Heartbeat", "PersistOffsets", "Rebalance", "route of T"]
    tasks.append(f"pull {queue}")
    # Names are set after the task factory returns.
    names = [task.get_name() for task in started]
    assert [name for name in dict.fromkeys(names) if name in tasks] == tasks
    codes = [
        RequestCode.HEART_BEAT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        *([RequestCode.LOCK_BATCH_MQ] if kind == "orderly" else []),
        RequestCode.QUERY_CONSUMER_OFFSET,
        pull,
    ]
    assert [code for code in dict.fromkeys(asked) if code in codes] == codes
    assert steps[:2] == ["heartbeat", "rebalance"]


async def consume(messages: object, context: object) -> None:
    """A listener."""


def consumer_of(kind: str, cluster: FakeCluster, **options: Any) -> PushConsumer | LitePullConsumer:
    consumer: PushConsumer | LitePullConsumer
    if kind == "lite":
        consumer = LitePullConsumer("g", name_servers=cluster.namesrv, **options)
    else:
        options["trace"] = TraceOptions()
        consumer = PushConsumer(
            "g",
            name_servers=cluster.namesrv,
            listener=print if kind == "orderly" else consume,
            orderly=kind == "orderly",
            **options,
        )
    consumer.subscribe("T")
    return consumer


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "lite"])
@pytest.mark.parametrize("at", [RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP])
async def test_cancelled_consumer_start_closes_connections(kind: str, at: RequestCode) -> None:
    async with FakeCluster("a") as cluster:
        broker = cluster.broker("a")
        broker.silent.add(at)
        consumer = consumer_of(kind, cluster)
        starting = asyncio.create_task(consumer.start())
        async with asyncio.timeout(WAIT_SECONDS):
            await broker.asked[at].wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            await asyncio.wait([each.closed for each in broker.connections])
        assert consumer.state is ServiceState.START_FAILED


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "lite"])
async def test_cancelled_consumer_stop_closes_connections(kind: str) -> None:
    async with FakeCluster("a") as cluster:
        broker = cluster.broker("a")
        consumer = consumer_of(kind, cluster)
        await consumer.start()
        broker.silent |= {RequestCode.UNREGISTER_CLIENT, RequestCode.UPDATE_CONSUMER_OFFSET}
        stopping = asyncio.create_task(consumer.stop())
        async with asyncio.timeout(WAIT_SECONDS):
            await broker.asked[RequestCode.UNREGISTER_CLIENT].wait()
            stopping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stopping
            await asyncio.wait([each.closed for each in broker.connections])
        assert consumer.state is ServiceState.STOPPED


@pytest.mark.parametrize("kind", ["concurrent", "lite"])
async def test_consumer_can_start_after_its_group_was_in_use(kind: str) -> None:
    async with FakeCluster("a") as cluster:
        second = consumer_of(kind, cluster, instance_name="one")
        async with consumer_of(kind, cluster, instance_name="one"):
            with pytest.raises(ClientError, match="has been created before"):
                await second.start()
            states = [second.state]
        async with second:
            states.append(second.state)
        assert states == [ServiceState.CREATED, ServiceState.RUNNING]
