"""Retries, timeouts and headers of sends, at fake brokers with scripted answers."""

import asyncio
import contextlib
import logging
import re
import time
from typing import Any, cast

import pytest

from goddard.client.errors import (
    BatchFailedError,
    BrokerError,
    ClientCode,
    ClientError,
    InvalidMessageError,
    NoNameServerError,
    NotRunningError,
    SendFailedError,
    TooManyRequestsError,
)
from goddard.client.message import Message
from goddard.client.options import Credentials, session_options
from goddard.client.produce.broker_health import TIMES_4, TIMES_5, BrokerHealth, FaultTimes
from goddard.client.produce.encoding import SendSettings
from goddard.client.produce.hooks import ForbiddenContext, SendContext, SendHooks
from goddard.client.produce.options import RETRY_CODES, ProducerOptions
from goddard.client.produce.producer import Producer
from goddard.client.produce.sender import Sender
from goddard.client.produce.targets import Targets
from goddard.client.session import Session
from goddard.client.trace.tracer import TraceOptions
from goddard.client.values import MessageQueue, SendMode, SendStatus, ServiceState
from goddard.environment import Environment
from goddard.errors import (
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    ProtocolError,
    RequestTimeoutError,
    ServerShuttingDownError,
)
from goddard.protocol.acl import verify
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import decode_send
from goddard.protocol.message import decode_properties, iter_batch
from tests.support.fake_cluster import Answerer, FakeCluster, mute
from tests.support.members import session_of
from tests.support.polling import until


def refusing(code: int) -> Answerer:
    return lambda request: request.reply(code, "no")


def answering(fields: dict[str, str]) -> Answerer:
    return lambda request: request.reply(ext_fields=fields)


def brokers_of(cluster: FakeCluster) -> dict[str, int]:
    return {broker.name: len(broker.sends) for broker in cluster.brokers}


async def test_retry_goes_to_another_broker(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster("a", "b") as cluster:
        cluster.broker("a").answer = refusing(ResponseCode.SYSTEM_BUSY)
        async with Producer("g", name_servers=cluster.namesrv) as producer:
            with caplog.at_level(logging.WARNING):
                results = [await producer.send(Message("T", b"x")) for _ in range(8)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert brokers_of(cluster)["b"] == 8
    assert 1 <= brokers_of(cluster)["a"] <= 8
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == brokers_of(cluster)["a"]
    for line in warned:
        assert re.fullmatch(
            r"sendKernelImpl exception, resend at once, InvokeID: \d+, RT: \d+ms, "
            r"Broker: MessageQueue .topic=T, brokerName=a, queueId=\d.: "
            r"SYSTEM_BUSY: no; code 2; at 127\.0\.0\.1:\d+; .+",
            line,
        )


async def test_attempts_alternate_between_brokers_and_then_fail() -> None:
    async with FakeCluster("a", "b") as cluster:
        for broker in cluster.brokers:
            broker.answer = refusing(ResponseCode.SERVICE_NOT_AVAILABLE)
        async with Producer("g", name_servers=cluster.namesrv, retries=4) as producer:
            with pytest.raises(SendFailedError) as failed:
                await producer.send(Message("T", b"x"))
    assert failed.value.tries == 5
    assert failed.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert failed.value.message.startswith("Send [5] times, still failed, cost [")
    reason = "SERVICE_NOT_AVAILABLE: no"
    assert failed.value.message.endswith(
        (
            f"Topic: T, BrokersSent: [a, b, a, b, a]: {reason}",
            f"Topic: T, BrokersSent: [b, a, b, a, b]: {reason}",
        )
    )
    assert isinstance(failed.value.__cause__, BrokerError)


@pytest.mark.parametrize("code", sorted(RETRY_CODES | {3, 13, 26, 29, 9999}))
async def test_which_answers_are_retried(code: int) -> None:
    async with FakeCluster("a") as cluster:
        cluster.broker("a").answer = refusing(code)
        async with Producer("g", name_servers=cluster.namesrv, retries=1) as producer:
            with pytest.raises(ClientError) as failed:
                await producer.send(Message("T", b"x"))
        sends = len(cluster.broker("a").sends)
    assert failed.value.code == code
    assert sends == (2 if code in RETRY_CODES else 1)
    assert isinstance(failed.value, SendFailedError if code in RETRY_CODES else BrokerError)


async def test_reconnect_after_go_away_is_neither_attempt_nor_fault() -> None:
    async with FakeCluster("a", "b") as cluster:
        broker = cluster.broker("a")
        answers = [refusing(ResponseCode.GO_AWAY), broker.store] * 2

        def answer(request: RemotingCommand) -> Any:
            return answers.pop(0)(request) if answers else broker.store(request)

        broker.answer = answer
        async with Producer(
            "g",
            name_servers=cluster.namesrv,
            retries=0,
            async_retries=0,
            avoid_slow_brokers=FaultTimes((0, 60_000), (0, 600_000), 60_000),
        ) as producer:
            queue = MessageQueue("T", "a", 0)
            await producer.send(Message("T", b"x"), queue=queue)
            await producer.send_soon(Message("T", b"x"), queue=queue)
            assert len(broker.sends) == 4
            assert len(broker.connections) >= 3
            # A broker with a fault gets only messages with a chosen queue.
            names = {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)}
            assert names == {"a", "b"}


async def test_broker_that_shuts_down_is_replaced_by_another() -> None:
    async with FakeCluster("a", "b") as cluster:
        cluster.broker("a").answer = refusing(ResponseCode.GO_AWAY)
        async with Producer(
            "g", name_servers=cluster.namesrv, retries=1, async_retries=1
        ) as producer:
            for sending in (producer.send, producer.send_soon):
                results = [await sending(Message("T", b"x")) for _ in range(8)]
                assert {result.queue.broker_name for result in results} == {"b"}
            at_once = await asyncio.gather(
                *(producer.send_soon(Message("T", b"x")) for _ in range(8))
            )
            assert {result.queue.broker_name for result in at_once} == {"b"}
            queue = MessageQueue("T", "a", 0)
            for sending in (producer.send, producer.send_soon):
                with pytest.raises(SendFailedError) as failed:
                    await sending(Message("T", b"x"), queue=queue)
                assert failed.value.code == ResponseCode.GO_AWAY
                assert isinstance(failed.value.__cause__, ServerShuttingDownError)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
async def test_other_statuses_are_results_unless_retried(
    code: ResponseCode, status: SendStatus
) -> None:
    async with FakeCluster("a", "b") as cluster:
        for broker in cluster.brokers:
            broker.answer = broker.stored_as(code)
        async with Producer("g", name_servers=cluster.namesrv) as producer:
            assert (await producer.send(Message("T", b"x"))).status is status
            assert (await producer.send_soon(Message("T", b"x"))).status is status
        assert sum(brokers_of(cluster).values()) == 2
        async with Producer(
            "g", name_servers=cluster.namesrv, retry_when_not_stored=True
        ) as producer:
            assert (await producer.send(Message("T", b"x"))).status is status
            assert sum(brokers_of(cluster).values()) == 5
            cluster.broker("b").answer = cluster.broker("b").store
            again = await producer.send(Message("T", b"x"))
        assert (again.status, again.queue.broker_name) == (SendStatus.SEND_OK, "b")


async def test_timeout_covers_all_attempts() -> None:
    async with FakeCluster("a", "b") as cluster:
        for broker in cluster.brokers:
            broker.answer = mute
        async with Producer("g", name_servers=cluster.namesrv) as producer:
            started = time.monotonic()
            with pytest.raises(SendFailedError) as failed:
                await producer.send(Message("T", b"x"), timeout_ms=300)
            assert time.monotonic() - started < 10
            assert failed.value.message.startswith("sendDefaultImpl call timeout. Send [1] times")
            assert failed.value.code == ClientCode.ACCESS_BROKER_TIMEOUT
            assert isinstance(failed.value.__cause__, RequestTimeoutError)
            assert sum(brokers_of(cluster).values()) == 1
            with pytest.raises(
                SendFailedError, match=r"Send \[1\] times, still failed, cost \["
            ) as soon:
                await producer.send_soon(Message("T", b"x"), timeout_ms=300)
            assert soon.value.code == ClientCode.ACCESS_BROKER_TIMEOUT


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("soon", [False, True])
async def test_timeout_covers_the_route_lookup(key: str | None, soon: bool) -> None:
    async with FakeCluster("a") as cluster:
        cluster.answer_route = mute
        # Without the timeout of the send, the lookup may take half a minute.
        async with Producer("g", name_servers=cluster.namesrv, api_timeout_ms=30_000) as producer:
            started = time.monotonic()
            send = producer.send_soon if soon else producer.send
            with pytest.raises(TooManyRequestsError, match="no route of T within"):
                await send(Message("T", b"x"), key=key, timeout_ms=200)
            assert time.monotonic() - started < 20


async def test_timeout_covers_the_broker_lookup() -> None:
    async with (
        FakeCluster("a") as cluster,
        Producer("g", name_servers=cluster.namesrv, api_timeout_ms=30_000) as producer,
    ):
        await producer.send(Message("T", b"x"))
        cluster.answer_route = mute
        gone = MessageQueue("T", "gone", 0)
        started = time.monotonic()
        with pytest.raises(SendFailedError) as failed:
            await producer.send(Message("T", b"x"), queue=gone, timeout_ms=200)
        assert failed.value.code == ClientCode.BROKER_NOT_EXIST
        assert time.monotonic() - started < 20


async def test_timeout_of_an_attempt_leaves_time_for_the_next() -> None:
    async with FakeCluster("a", "b") as cluster:
        cluster.broker("a").answer = mute
        async with Producer(
            "g", name_servers=cluster.namesrv, send_timeout_ms=60_000, max_timeout_per_try_ms=100
        ) as producer:
            results = [await producer.send(Message("T", b"x")) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_unreachable_broker_fails_or_is_avoided() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.broker("a").server.stop()
        async with Producer("g", name_servers=cluster.namesrv) as producer:
            for _ in range(4):
                assert (await producer.send(Message("T", b"x"))).queue.broker_name == "b"
                assert (await producer.send_soon(Message("T", b"x"))).queue.broker_name == "b"
            with pytest.raises(SendFailedError) as failed:
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "a", 0))
            assert (failed.value.code, failed.value.tries) == (ClientCode.CONNECT_BROKER, 1)
            assert isinstance(failed.value.__cause__, ConnectFailedError)
            with pytest.raises(SendFailedError, match=r"Send \[3\] times, still failed"):
                await producer.send_soon(Message("T", b"x"), queue=MessageQueue("T", "a", 0))
            with pytest.raises(SendFailedError, match=r"Send \[1\] times, still failed"):
                await producer.send_oneway(Message("T", b"x"), queue=MessageQueue("T", "a", 0))


async def test_send_soon_retries_lost_connections_but_not_refusals() -> None:
    async with FakeCluster("a", "b") as cluster:
        broker = cluster.broker("a")

        def cut(request: RemotingCommand) -> None:
            broker.connections[-1].abort()

        broker.answer = cut
        async with Producer("g", name_servers=cluster.namesrv) as producer:
            futures = [producer.send_soon(Message("T", b"x")) for _ in range(20)]
            results = await asyncio.gather(*futures)
            assert {result.queue.broker_name for result in results} == {"b"}
            broker.answer = refusing(ResponseCode.SYSTEM_BUSY)
            outcomes = await asyncio.gather(
                *(producer.send_soon(Message("T", b"x")) for _ in range(8)), return_exceptions=True
            )
    assert sum(isinstance(outcome, BrokerError) for outcome in outcomes) == 4


class Recorder:
    """A send hook that records the ended attempts."""

    def __init__(self) -> None:
        self.ended: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        pass

    def after_send(self, context: SendContext) -> None:
        self.ended.append(context)


async def test_hooks_are_called_after_failed_attempts() -> None:
    recorder = Recorder()
    async with (
        FakeCluster("a", "b") as cluster,
        Producer("g", name_servers=cluster.namesrv, send_hooks=[recorder]) as producer,
    ):
        broker = cluster.broker("a")
        queue = MessageQueue("T", "a", 0)
        await producer.send(Message("T", b"x"), queue=queue)
        broker.answer = refusing(ResponseCode.SYSTEM_BUSY)
        # Sent immediately, over the open connection.
        with pytest.raises(BrokerError) as refused:
            await producer.send_soon(Message("T", b"x"), queue=queue)
        assert [each.error for each in recorder.ended] == [None, refused.value]
        assert recorder.ended[1].result is None
        await broker.server.stop()
        await until(lambda: broker.connections[-1].is_closed)
        await until(lambda: session_of(producer).connection(broker.address) is None)
        with pytest.raises(SendFailedError) as failed:
            await producer.send_oneway(Message("T", b"x"), queue=queue)
        assert isinstance(failed.value.__cause__, ConnectFailedError)
        assert recorder.ended[2].mode is SendMode.ONEWAY
        assert recorder.ended[2].error is failed.value.__cause__
        assert len(recorder.ended) == 3


async def test_invalid_answers_are_retried_at_another_broker() -> None:
    async with FakeCluster("a", "b") as cluster:
        for fields in ({}, {"msgId": "x"}, {"msgId": "x", "queueId": "many", "queueOffset": "-1"}):
            cluster.broker("a").answer = answering(fields)
            async with Producer("g", name_servers=cluster.namesrv) as producer:
                assert (await producer.send(Message("T", b"x"))).queue.broker_name == "b"
                queue = MessageQueue("T", "a", 0)
                with pytest.raises(SendFailedError) as failed:
                    await producer.send(Message("T", b"x"), queue=queue)
                assert isinstance(failed.value.__cause__, ProtocolError)
                with pytest.raises(SendFailedError, match=r"Send \[3\] times, still failed"):
                    await producer.send_soon(Message("T", b"x"), queue=queue)


async def test_result_has_what_the_answer_says() -> None:
    answer = {
        "msgId": "AB",
        "queueId": "7",
        "queueOffset": "5",
        "MSG_REGION": "here",
        "TRACE_ON": "false",
        "transactionId": "CD",
        "recallHandle": "EF",
    }
    async with (
        FakeCluster("a") as cluster,
        Producer("g", name_servers=cluster.namesrv) as producer,
    ):
        first = Message("T", b"x")
        await producer.send(first)
        cluster.broker("a").answer = answering(answer)
        results = [await producer.send(first), await producer.send_soon(first)]
        # A name that is not ASCII is read in another way.
        cluster.broker("a").answer = answering(answer | {"é": ""})
        results += [await producer.send(first), await producer.send_soon(first)]
    for result in results:
        assert result == (
            *(SendStatus.SEND_OK, first.message_id, "AB", MessageQueue("T", "a", 7), 5),
            *("CD", "here", False, "EF"),
        )


async def test_send_soon_keeps_the_order() -> None:
    async with FakeCluster("a") as cluster:
        async with Producer("g", name_servers=cluster.namesrv) as producer:
            futures = [producer.send_soon(Message("T", b"%d" % number)) for number in range(500)]
            await asyncio.sleep(0)
            futures += [
                producer.send_soon(Message("T", b"%d" % number)) for number in range(500, 1000)
            ]
            await asyncio.gather(*futures)
        bodies = [int(bytes(request.body)) for request in cluster.broker("a").sends]
    assert bodies == list(range(1000))


async def test_messages_of_a_queue_keep_their_order_while_its_broker_is_looked_up() -> None:
    async with (
        FakeCluster("a", topics=("T", "U")) as cluster,
        FakeCluster("b") as other,
        Producer("g", name_servers=cluster.namesrv, topics=["T", "U"]) as producer,
    ):
        answered, asked = asyncio.Event(), asyncio.Event()
        broker = other.broker("b")

        async def late(request: RemotingCommand) -> RemotingCommand:
            asked.set()
            await answered.wait()
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no")

        await producer.send(Message("T", b"x"))
        await producer.send(Message("U", b"x"))
        # The first message waits for its broker's address.
        cluster.answer_route = late
        futures = [producer.send_soon(Message("T", b"1"), queue=MessageQueue("T", "b", 0))]
        await asyncio.wait_for(asked.wait(), 60)
        # Meanwhile the address becomes known, from the route of another topic.
        cluster.answer_route = None
        cluster.address_overrides["b"] = broker.address
        await session_of(producer).refresh_route("U")
        u_queue = MessageQueue("U", "b", 0)
        await producer.send(Message("U", b"x"), queue=u_queue)
        futures.append(producer.send_soon(Message("T", b"2"), queue=MessageQueue("T", "b", 0)))
        for _ in range(5):
            await producer.send(Message("U", b"x"), queue=u_queue)
        answered.set()
        await asyncio.wait_for(asyncio.gather(*futures), 60)
        sends = [request for request in broker.sends if bytes(request.body) != b"x"]
        assert [bytes(request.body) for request in sends] == [b"1", b"2"]


async def test_large_and_small_messages_keep_their_order() -> None:
    async with FakeCluster("a", queues=1) as cluster:
        async with Producer("g", name_servers=cluster.namesrv) as producer:
            await producer.send(Message("T", b"first"))
            # The large ones are compressed in a thread.
            sizes = [2_000_000, 10, 500_000, 20, 30]
            await asyncio.gather(*(producer.send_soon(Message("T", b"x" * n)) for n in sizes))
        flags = [decode_send(request.fields) for request in cluster.broker("a").sends[1:]]
        assert [bool(header.sys_flag) for header in flags] == [True, False, True, False, False]


async def test_cancelled_start_leaves_nothing_open() -> None:
    async with FakeCluster("a") as cluster:
        broker = cluster.broker("a")
        broker.silent.add(RequestCode.HEART_BEAT)
        producer = Producer("g", name_servers=cluster.namesrv, topics=["T"], trace=TraceOptions())
        starting = asyncio.create_task(producer.start())
        await broker.asked[RequestCode.HEART_BEAT].wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert producer.state is ServiceState.START_FAILED
        await until(lambda: all(each.is_closed for each in broker.connections))


async def test_failed_start_leaves_no_session() -> None:
    async with FakeCluster("a") as cluster:
        # The group of its traces, which contains this group, is too long.
        failing = Producer(
            "g" * 240, name_servers=cluster.namesrv, instance_name="i", trace=TraceOptions()
        )
        with pytest.raises(ConfigError, match="longer than"):
            await failing.start()
        # Refused if the session still existed: the same client id with other options.
        async with Producer(
            "g", name_servers=cluster.namesrv, instance_name="i", heartbeat_interval_ms=5_000
        ) as producer:
            await producer.send(Message("T", b"x"))


def sender_of(session: Session, health: BrokerHealth | None = None) -> Sender:
    settings, options = SendSettings(group="g"), ProducerOptions()
    targets = Targets(session, settings, health, detects=False)
    return Sender(session, settings, options, targets, SendHooks(session, settings, (), ()))


async def test_cancelled_drain_ends_the_sends_before_it_returns() -> None:
    async with (
        FakeCluster("a") as cluster,
        Session(session_options(cluster.namesrv, {}), environment=Environment()) as session,
    ):
        cluster.answer_route = mute
        sender = sender_of(session)
        unanswered = sender.submit(Message("T", b"x"), "T", 60_000)
        draining = asyncio.create_task(sender.drain())
        await asyncio.sleep(0)
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert unanswered.done()
        with pytest.raises(NotRunningError, match="was stopped"):
            await unanswered


async def test_send_is_not_retried_after_a_cancelled_drain() -> None:
    async with (
        FakeCluster("a", "b") as cluster,
        Session(session_options(cluster.namesrv, {}), environment=Environment()) as session,
    ):
        broker = cluster.broker("a")
        sender = sender_of(session)
        queue = MessageQueue("T", "a", 0)
        await sender.submit(Message("T", b"x"), "T", 60_000, queue)
        broker.answer = mute
        # Sent immediately, without a task.
        unanswered = sender.submit(Message("T", b"x"), "T", 60_000, queue)
        await until(lambda: len(broker.sends) == 2)
        draining = asyncio.create_task(sender.drain())
        await asyncio.sleep(0)
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        broker.connections[-1].abort()
        with pytest.raises(NotRunningError, match="was stopped") as stopped:
            await asyncio.wait_for(unanswered, 60)
        assert isinstance(stopped.value.__cause__, ConnectionLostError)
        assert len(sender) == 0
        assert brokers_of(cluster) == {"a": 2, "b": 0}


async def test_cancelled_stop_leaves_nothing_open() -> None:
    async with FakeCluster("a") as cluster:
        broker = cluster.broker("a")
        broker.silent.add(RequestCode.UNREGISTER_CLIENT)
        producer = Producer("g", name_servers=cluster.namesrv)
        await producer.start()
        await producer.send(Message("T", b"x"))
        broker.answer = mute
        unanswered = producer.send_soon(Message("T", b"x"))
        stopping = asyncio.create_task(producer.stop())
        await until(lambda: len(broker.sends) == 2)
        # The first cancellation ends the pending send, the second the unregistration.
        stopping.cancel()
        await broker.asked[RequestCode.UNREGISTER_CLIENT].wait()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        with pytest.raises(NotRunningError, match="was stopped"):
            await unanswered
        assert producer.state is ServiceState.STOPPED
        await until(lambda: all(each.is_closed for each in broker.connections))


async def test_cancelled_send_does_not_affect_others() -> None:
    async with (
        FakeCluster("a") as cluster,
        Producer("g", name_servers=cluster.namesrv) as producer,
    ):
        await producer.send(Message("T", b"x"))
        gone = producer.send_soon(Message("T", b"1"))
        kept = producer.send_soon(Message("T", b"2"))
        gone.cancel()
        assert (await kept).status is SendStatus.SEND_OK
        waiting = asyncio.create_task(producer.send(Message("T", b"3")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await producer.send(Message("T", b"4"))).status is SendStatus.SEND_OK


async def test_stop_does_not_wait_for_a_cancelled_send() -> None:
    async with FakeCluster("a") as cluster:
        broker = cluster.broker("a")
        async with Producer("g", name_servers=cluster.namesrv, send_timeout_ms=60_000) as producer:
            await producer.send(Message("T", b"x"))
            broker.answer = mute
            waiting = asyncio.create_task(producer.send(Message("T", b"x")))
            await until(lambda: len(broker.sends) == 2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            async with asyncio.timeout(20):
                await producer.stop()


@pytest.mark.parametrize("soon", [False, True])
async def test_cancelled_send_is_not_tried_again(soon: bool) -> None:
    async with (
        FakeCluster("a", "b") as cluster,
        Producer("g", name_servers=cluster.namesrv, send_timeout_ms=60_000) as producer,
    ):
        first, second = cluster.brokers
        for broker in cluster.brokers:
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", broker.name, 0))
            # The first attempt loses its connection, at either broker; the second has no answer.
            broker.answer = mute
        if soon:
            sending = producer.send_soon(Message("T", b"x"))
        else:
            sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
        await until(lambda: len(first.sends) + len(second.sends) == 3)
        tried = first if len(first.sends) == 2 else second
        other = second if tried is first else first
        tried.connections[-1].abort()
        await until(lambda: len(other.sends) == 2)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        other.connections[-1].abort()
        for broker in cluster.brokers:
            broker.answer = broker.store
            before = len(broker.sends)
            while len(broker.sends) == before:  # until the loss of the connection is known
                with contextlib.suppress(SendFailedError):
                    await producer.send(Message("T", b"x"), queue=MessageQueue("T", broker.name, 0))
        assert brokers_of(cluster) == {"a": 3, "b": 3}


async def test_headers_of_all_ways_of_sending() -> None:
    async with FakeCluster("a", topics=("T", "%RETRY%g2")) as cluster:
        async with Producer(
            "g", name_servers=cluster.namesrv, unit_mode=True, default_queues=7
        ) as producer:
            plain = Message("T", b"x", tags="TagA", keys="k", flag=5, properties={"ä": 'b"\\'})
            soon = await producer.send_soon(plain, queue=MessageQueue("T", "a", 2))
            sync = await producer.send(plain, queue=MessageQueue("T", "a", 2))
            half = Message("T", b"x")
            half.properties["TRAN_MSG"] = "true"
            await producer.send(half)
            reply = Message("T", b"x")
            reply.properties["MSG_TYPE"] = "reply"
            await producer.send(reply)
            retry = Message("%RETRY%g2", b"x")
            retry.properties |= {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16"}
            await producer.send(retry)
            await producer.send_batch([Message("T", b"1"), Message("T", b"2", flag=1)])
        sends = cluster.broker("a").sends

    assert soon.message_id == sync.message_id
    first, second = sends[0], sends[1]
    assert list(first.fields) == list("abcdefghijkmn")
    header = decode_send(first.fields)
    assert first.code == RequestCode.SEND_MESSAGE_V2
    assert (header.producer_group, header.topic, header.default_topic) == ("g", "T", "TBW102")
    assert (header.default_topic_queue_nums, header.queue_id, header.flag) == (7, 2, 5)
    assert (header.sys_flag, header.reconsume_times, header.batch) == (0, 0, False)
    assert header.unit_mode is True
    assert header.bname == "a"
    assert decode_properties(header.properties or "") == {
        "KEYS": "k",
        "WAIT": "true",
        "TAGS": "TagA",
        "ä": 'b"\\',
        "UNIQ_KEY": soon.message_id,
    }
    # Both ways of sending write the same header.
    unequal = {name for name in first.fields if first.fields[name] != second.fields[name]}
    assert unequal <= {"g"}
    assert (first.language, first.version) == (second.language, second.version)
    assert [request.code for request in sends[2:]] == [310, 325, 310, 320]
    assert decode_send(sends[2].fields).sys_flag == 4
    lifted = decode_send(sends[4].fields)
    assert (lifted.reconsume_times, lifted.max_reconsume_times) == (3, 16)
    assert set(decode_properties(lifted.properties or "")) == {"WAIT", "UNIQ_KEY"}
    batch = decode_send(sends[5].fields)
    assert batch.batch is True
    assert [(entry.body, entry.flag) for entry in iter_batch(sends[5].body)] == [
        (b"1", 0),
        (b"2", 1),
    ]


async def test_all_ways_of_sending_are_signed() -> None:
    credentials = Credentials("user", "secret", "token")
    async with FakeCluster("a") as cluster:
        async with Producer(
            "g", name_servers=cluster.namesrv, credentials=credentials, namespace_v2="space"
        ) as producer:
            await producer.send(Message("T", b"1"))
            await producer.send_soon(Message("T", b"2"))
            await producer.send_oneway(Message("T", b"3"))
            await producer.send_batch([Message("T", b"4"), Message("T", b"5")])
        requests = cluster.broker("a").requests
    assert {request.code for request in requests} >= {310, 320, 35}
    for request in requests:
        assert verify(request, "secret")
        assert request.fields["AccessKey"] == "user"
        assert request.fields["SecurityToken"] == "token"
        assert (request.fields["ns"], request.fields["nsd"]) == ("space", "true")


async def test_invalid_messages_are_not_sent() -> None:
    async with FakeCluster("a") as cluster:
        async with Producer("g", name_servers=cluster.namesrv, max_message_bytes=100) as producer:
            surrogate = Message("T", b"x")
            surrogate.put("a", "\ud800")
            separator = Message("T", b"x")
            separator.put("a", "x\x02y")
            for message, text in (
                (Message("", b"x"), r"The specified topic is blank\."),
                (Message("a b", b"x"), "contains illegal characters"),
                (Message("x" * 128, b"x"), "is longer than topic max length: 127"),
                (Message("SCHEDULE_TOPIC_XXXX", b"x"), r"Sending message to topic\[SCHEDULE_"),
                (Message("T", b""), "the message body length is zero"),
                (Message("T", b"x" * 101), "the message body size over max value, MAX: 100"),
                (Message("T", b"x", properties={"a": "x" * 32767}), "properties of 3"),
                (surrogate, "are not text"),
                (separator, "contains a separator"),
            ):
                for sending in (producer.send, producer.send_soon, producer.send_oneway):
                    with pytest.raises(InvalidMessageError, match=text) as invalid:
                        await sending(message)
                    assert invalid.value.code == ResponseCode.MESSAGE_ILLEGAL
            for name, value in (("a", 5), ("a", None), (None, "x")):
                changed: Any = Message("T", b"x")
                changed.properties[name] = value
                for sending in (producer.send, producer.send_soon, producer.send_oneway):
                    with pytest.raises(TypeError, match=f"of the property {name!r} must be str"):
                        await sending(changed)
                with pytest.raises(TypeError, match="must be str"):
                    await producer.send_batch([changed])
            with pytest.raises(TypeError, match=r"body\.encode\(\)"):
                await producer.send(Message("T", cast("bytes", "text")))
            one: Any = Message("T", b"x")
            with pytest.raises(TypeError, match="a list of Message, not one Message"):
                await producer.send_batch(one)
            text_alone: Any = "text"
            with pytest.raises(TypeError, match="messages must be a list of Message, not 'te"):
                await producer.send_batch(text_alone)
            with pytest.raises(InvalidMessageError, match="it is empty"):
                await producer.send_batch(iter([]))
            assert (await producer.send(Message("T", b"x" * 100))).status is SendStatus.SEND_OK
        assert len(cluster.broker("a").sends) == 1


class Forbidding:
    """A hook that prevents sends."""

    def check(self, context: ForbiddenContext) -> None:
        if context.message.body == b"forbidden":
            raise PermissionError("not this one")


@pytest.mark.parametrize("is_connected", [False, True])
async def test_send_soon_reports_errors_in_its_future(is_connected: bool) -> None:
    def select(*_: object) -> MessageQueue:
        raise KeyError("no queue")

    async with (
        FakeCluster("a") as cluster,
        Producer("g", name_servers=cluster.namesrv, forbidden_hooks=[Forbidding()]) as producer,
    ):
        if is_connected:
            await producer.send(Message("T", b"x"))
        selected = producer.send_soon(Message("T", b"x"), selector=select)
        forbidden = producer.send_soon(Message("T", b"forbidden"))
        long = producer.send_soon(Message("T", b"x", properties={"a": "x" * 32_767}))
        with pytest.raises(ClientError, match="no queue"):
            await selected
        with pytest.raises(PermissionError, match="not this one"):
            await forbidden
        with pytest.raises(InvalidMessageError, match="properties of 3"):
            await long
        # Topic and body are checked before.
        with pytest.raises(InvalidMessageError, match="body length is zero"):
            producer.send_soon(Message("T", b""))
        assert (await producer.send_soon(Message("T", b"x"))).status is SendStatus.SEND_OK


async def test_missing_name_servers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    async with Producer("g") as producer:
        for sending in (producer.send, producer.send_soon, producer.send_oneway):
            with pytest.raises(NoNameServerError) as lacking:
                await sending(Message("T", b"x"))
            assert lacking.value.message == "No name server address, please set it."
            assert lacking.value.code == ClientCode.NO_NAME_SERVER


async def test_batch_error_has_the_results_of_sent_parts() -> None:
    async with FakeCluster("a", queues=1) as cluster:
        broker = cluster.broker("a")

        def second_fails(request: RemotingCommand) -> RemotingCommand:
            if len(broker.sends) == 2:
                return request.reply(ResponseCode.MESSAGE_ILLEGAL, "no")
            return broker.store(request)

        broker.answer = second_fails
        async with Producer("g", name_servers=cluster.namesrv, max_message_bytes=300) as producer:
            with pytest.raises(BatchFailedError) as failed:
                await producer.send_batch([Message("T", b"x" * 50) for _ in range(6)])
    assert 1 <= len(failed.value.results) <= 3
    assert failed.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert isinstance(failed.value.__cause__, BrokerError)


@pytest.mark.parametrize("value", ["x" * 32_767, "x\x02y", "\ud800"])
async def test_batch_with_an_invalid_message_is_not_sent(value: str) -> None:
    invalid = Message("T", b"x")
    invalid.properties["own"] = value
    async with FakeCluster("a") as cluster:
        async with Producer("g", name_servers=cluster.namesrv, max_message_bytes=300) as producer:
            with pytest.raises(InvalidMessageError, match="propert"):
                await producer.send_batch([*(Message("T", b"x" * 50) for _ in range(9)), invalid])
        assert cluster.broker("a").sends == []


@pytest.mark.parametrize("times", [TIMES_4, TIMES_5], ids=["4", "5"])
async def test_failing_brokers_are_avoided(times: FaultTimes) -> None:
    async with FakeCluster("a", "b") as cluster:
        cluster.broker("a").answer = refusing(ResponseCode.SYSTEM_BUSY)
        async with Producer(
            "g", name_servers=cluster.namesrv, avoid_slow_brokers=times
        ) as producer:
            for _ in range(20):
                await producer.send(Message("T", b"x"))
            # After its first refusal it is avoided for seconds or minutes.
            assert brokers_of(cluster)["a"] == 1
            cluster.broker("b").answer = refusing(ResponseCode.SYSTEM_BUSY)
            with pytest.raises(SendFailedError):
                await producer.send(Message("T", b"x"))
            # If all brokers are avoided, all are used.
            assert brokers_of(cluster)["a"] >= 2


async def test_latencies_of_immediate_sends_are_recorded() -> None:
    async with (
        FakeCluster("a", "b") as cluster,
        Session(session_options(cluster.namesrv, {}), environment=Environment()) as session,
    ):
        # Every latency makes a broker unavailable for an hour.
        health = BrokerHealth(FaultTimes((0,), (3_600_000,), 0))
        sender = sender_of(session, health)
        await session.refresh_route("T")
        await session.connect(cluster.broker("a").address, 60_000)
        now_ms = session.clock.monotonic_ms()
        assert health.is_available("a", now_ms)
        await sender.submit(Message("T", b"x"), "T", 60_000, MessageQueue("T", "a", 0))
        assert not health.is_available("a", now_ms)
        assert health.is_available("b", now_ms)


async def test_broker_is_used_again_when_reachable() -> None:
    async with FakeCluster("a", "b") as cluster:
        broker = cluster.broker("a")
        broker.answer = mute
        broker.silent.add(RequestCode.GET_MAX_OFFSET)
        async with Producer(
            "g",
            name_servers=cluster.namesrv,
            # Every send makes its broker unavailable for an hour: only reachability counts.
            avoid_slow_brokers=FaultTimes((0,), (3_600_000,), 0),
            detect_brokers=True,
            detect_interval_ms=10,
            max_timeout_per_try_ms=100,
            send_timeout_ms=60_000,
        ) as producer:
            async with asyncio.timeout(60):
                while not broker.sends:
                    await producer.send(Message("T", b"x"))
                # It is probed and does not answer.
                await broker.asked[RequestCode.GET_MAX_OFFSET].wait()
                for _ in range(8):
                    assert (await producer.send(Message("T", b"x"))).queue.broker_name == "b"
                broker.silent.clear()
                broker.answer = broker.store
                while (await producer.send(Message("T", b"x"))).queue.broker_name != "a":
                    pass


async def test_unknown_broker_refreshes_the_route() -> None:
    async with (
        FakeCluster("a") as cluster,
        Producer("g", name_servers=cluster.namesrv) as producer,
    ):
        await producer.send(Message("T", b"x"))
        # The session refreshes its routes once soon after its start.
        await until(lambda: cluster.route_requests.count("T") == 2)
        await session_of(producer).refresh_route("T")
        before = cluster.route_requests.count("T")
        with pytest.raises(SendFailedError, match=r"BrokersSent: \[b\]") as failed:
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", "b", 0))
        assert failed.value.code == ClientCode.BROKER_NOT_EXIST
        assert cluster.route_requests.count("T") == before + 1


async def test_new_topic_looks_up_the_default_topic() -> None:
    async with (
        FakeCluster("a", topics=("TBW102",), queues=8) as cluster,
        Producer("g", name_servers=cluster.namesrv) as producer,
    ):
        # The session looks it up once, soon after its start.
        await until(lambda: session_of(producer).route("TBW102") is not None)
        del cluster.route_requests[:]
        assert len(await producer.publish_queues("fresh")) == 4
        assert cluster.route_requests == ["fresh", "TBW102"]
        await producer.send(Message("fresh", b"x"))
        assert cluster.route_requests == ["fresh", "TBW102"]
