"""Producers whose servers crash, hang or send invalid bytes: no acknowledged message is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path

import pytest

from goddard.client.errors import ClientError, NoRouteError, SendFailedError
from goddard.client.message import Message
from goddard.client.produce.producer import Producer
from goddard.client.values import SendResult, SendStatus
from goddard.errors import ConnectionLostError, RequestTimeoutError
from goddard.protocol.codes import RequestCode
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.fake_cluster import FakeCluster, mute
from tests.support.idle_consumer import eventually
from tests.support.process_resources import open_tcp_sockets
from tests.support.proxy import FaultProxy
from tests.support.topic_reader import TopicReader

MANY = 2_000


@pytest.fixture(autouse=True)
async def no_socket_is_left() -> AsyncIterator[None]:
    before = set(open_tcp_sockets())
    yield

    async def all_closed() -> bool:
        return set(open_tcp_sockets()) <= before

    await eventually(all_closed)


class Sending:
    """Sends until stopped; records acknowledged messages and counts failures."""

    def __init__(self, producer: Producer, topic: str, *, soon: bool) -> None:
        self._producer = producer
        self._topic = topic
        self._soon = soon
        self._stop = asyncio.Event()
        self.results: list[SendResult] = []
        self.failures = 0
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._stop.set()
        await self._task

    async def acknowledged(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.results) >= count

        await eventually(enough, 60)

    async def failed(self) -> None:
        async def enough() -> bool:
            return self.failures > before

        before = self.failures
        await eventually(enough, 60)

    async def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            sends: list[Awaitable[SendResult]] = []
            for _ in range(50 if self._soon else 5):
                message = Message(self._topic, b"%d" % number)
                number += 1
                sends.append(
                    self._producer.send_soon(message)
                    if self._soon
                    else self._producer.send(message)
                )
            for outcome in await asyncio.gather(*sends, return_exceptions=True):
                if isinstance(outcome, SendResult):
                    self.results.append(outcome)
                else:
                    assert isinstance(outcome, ClientError), outcome
                    self.failures += 1
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("soon", [False, True], ids=["send", "send_soon"])
async def test_broker_is_killed_during_sends(tmp_path: Path, *, soon: bool) -> None:
    with Cluster(tmp_path) as cluster:
        site = Site(cluster.start_name_server())
        broker = site.start_goddard_broker(cluster)
        topic = site.create_topic("killed")
        async with Producer("g", name_servers=site.namesrv, send_timeout_ms=500) as producer:
            sending = Sending(producer, topic, soon=soon)
            for _ in range(2):
                await sending.acknowledged(len(sending.results) + 100)
                broker.kill()
                await sending.failed()
                await asyncio.to_thread(broker.restart)
                # The broker is available again when a send succeeds.
                await eventually(partial(sent, producer, topic), 60)
            await sending.stop()
        results = sending.results
        acknowledged = {result.message_id for result in results}
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        async with TopicReader(site.namesrv, topic) as reader:
            received = await reader.until_true(
                lambda messages: acknowledged <= {message.message_id for message in messages}
            )
        lost = acknowledged - {message.message_id for message in received}
        assert not lost
        assert len(acknowledged) >= 200


async def sent(producer: Producer, topic: str) -> bool:
    try:
        await producer.send(Message(topic, b"back?"))
    except ClientError:
        return False
    return True


async def test_sends_continue_without_name_servers(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        topic = site.create_topic("alone")
        async with Producer(
            "g",
            name_servers=site.namesrv,
            poll_name_server_interval_ms=20,
            heartbeat_interval_ms=20,
            api_timeout_ms=200,
        ) as producer:
            await producer.send(Message(topic, b"x"))
            site.name_server.kill()
            for _ in range(20):
                assert (await producer.send(Message(topic, b"x"))).status is SendStatus.SEND_OK
                await asyncio.sleep(0.01)
            with pytest.raises(NoRouteError):
                await producer.send(Message("unknown", b"x"))
            await asyncio.to_thread(site.name_server.restart)
            await eventually(partial(sent, producer, "made-later"), 60)


async def test_unreachable_name_server_is_skipped() -> None:
    async with (
        FakeCluster("a", topics=("T", "T2", "T3")) as cluster,
        FaultProxy(cluster.namesrv) as broken,
        FaultProxy(cluster.namesrv) as refusing,
    ):
        await refusing.refuse()
        broken.half_open()
        names = f"{broken.address};{refusing.address};{cluster.namesrv}"
        for _ in range(4):
            async with Producer("g", name_servers=names, api_timeout_ms=600) as producer:
                # The silent name server gets only its share of the timeout.
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
                assert (await producer.send(Message("T2", b"x"))).status is SendStatus.SEND_OK


@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_connections_break_during_sends(tmp_path: Path, how: str) -> None:
    with Cluster(tmp_path) as cluster:
        site = Site(cluster.start_name_server())
        broker = site.start_goddard_broker(cluster)
        topic = site.create_topic("links")
        async with FaultProxy(broker.address) as proxy, FakeCluster(topics=(topic,)) as routes:
            routes.address_overrides["broker-goddard"] = proxy.address
            async with Producer(
                "g", name_servers=routes.namesrv, async_retries=100, send_timeout_ms=60_000
            ) as producer:
                futures = []
                for number in range(MANY):
                    futures.append(producer.send_soon(Message(topic, b"%d" % number)))
                    if number % 500 == 250:
                        await futures[-200]
                        await (proxy.cut() if how == "cut" else proxy.reset())
                results = await asyncio.gather(*futures)
        async with TopicReader(site.namesrv, topic) as reader:
            received = await reader.until(MANY)
    assert len({result.message_id for result in results}) == MANY
    # At least once: a message that was stored when the connection broke is sent again.
    assert {message.message_id for message in received} == {each.message_id for each in results}


async def test_silent_broker_is_replaced_by_another() -> None:
    async with (
        FakeCluster("a", "b", queues=1) as cluster,
        FaultProxy(cluster.broker("a").address) as proxy,
    ):
        cluster.address_overrides["a"] = proxy.address
        async with Producer(
            "g", name_servers=cluster.namesrv, max_timeout_per_try_ms=1_000, send_timeout_ms=60_000
        ) as producer:
            results = [await producer.send(Message("T", b"x")) for _ in range(2)]
            assert {result.queue.broker_name for result in results} == {"a", "b"}
            before = proxy.connections_made
            proxy.half_open()
            results = [await producer.send(Message("T", b"x")) for _ in range(2)]
            assert {result.queue.broker_name for result in results} == {"b"}
            # The silent connection was closed; a new one works.
            proxy.heal()
            results = [await producer.send(Message("T", b"x")) for _ in range(2)]
            assert {result.queue.broker_name for result in results} == {"a", "b"}
            assert proxy.connections_made > before


async def test_pending_sends_of_a_silent_connection_fail_together() -> None:
    async with FakeCluster("a") as cluster, FaultProxy(cluster.broker("a").address) as proxy:
        cluster.address_overrides["a"] = proxy.address
        async with Producer(
            "g", name_servers=cluster.namesrv, async_retries=0, retries=0
        ) as producer:
            await producer.send(Message("T", b"x"))
            proxy.half_open()
            first = producer.send_soon(Message("T", b"x"), timeout_ms=1_000)
            others = [producer.send_soon(Message("T", b"x"), timeout_ms=90_000) for _ in range(50)]
            outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    causes = [outcome.__cause__ for outcome in outcomes if isinstance(outcome, SendFailedError)]
    assert isinstance(causes[0], RequestTimeoutError)
    assert len(causes) == 51
    assert all(isinstance(cause, ConnectionLostError) for cause in causes[1:])


async def test_slow_connection_delays_sends() -> None:
    async with FakeCluster("a") as cluster, FaultProxy(cluster.broker("a").address) as proxy:
        cluster.address_overrides["a"] = proxy.address
        proxy.delay(50)
        async with Producer("g", name_servers=cluster.namesrv, send_timeout_ms=60_000) as producer:
            results = await asyncio.gather(
                *(producer.send_soon(Message("T", b"x" * 1000)) for _ in range(500))
            )
    assert len(results) == 500


async def test_servers_with_invalid_bytes(caplog: pytest.LogCaptureFixture) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\xff" * 1000)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with FakeCluster("a", "b") as cluster:
            cluster.address_overrides["a"] = address
            names = f"{address};{cluster.namesrv}"
            async with Producer("g", name_servers=names) as producer:
                with caplog.at_level(logging.WARNING):
                    for _ in range(4):
                        result = await producer.send(Message("T", b"x"))
                        assert result.queue.broker_name == "b"
                        result = await producer.send_soon(Message("T", b"x"))
                        assert result.queue.broker_name == "b"
    finally:
        server.close()
        await server.wait_closed()
    assert "sent malformed data" in caplog.text


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"queueDatas":7}', b'{"brokerDatas":[{"brokerAddrs":{"x":1}}]}'],
)
async def test_invalid_routes_are_errors(body: bytes) -> None:
    async with FakeCluster("a") as cluster:
        cluster.answer_route = lambda request: request.reply(body=body)
        async with Producer("g", name_servers=cluster.namesrv) as producer:
            with pytest.raises(NoRouteError):
                await producer.send(Message("T", b"x"))


async def test_queue_counts_are_limited() -> None:
    async with (
        FakeCluster("a", queues=2**31 - 1) as cluster,
        Producer("g", name_servers=cluster.namesrv) as producer,
    ):
        assert len(await producer.publish_queues("T")) == 65_536


async def test_stop_while_all_servers_are_silent() -> None:
    async with FakeCluster("a") as cluster:
        cluster.broker("a").answer = mute
        producer = Producer("g", name_servers=cluster.namesrv, send_timeout_ms=500)
        await producer.start()
        waiting = asyncio.create_task(producer.send(Message("T", b"x")))
        futures = [producer.send_soon(Message("T", b"x")) for _ in range(100)]
        await cluster.broker("a").asked[RequestCode.SEND_MESSAGE_V2].wait()
        async with asyncio.timeout(30):
            await producer.stop()
        outcomes = await asyncio.gather(waiting, *futures, return_exceptions=True)
    assert all(isinstance(outcome, SendFailedError) for outcome in outcomes)
