"""The session: sharing, name servers, periodic tasks, requests to and from brokers."""

import asyncio
import gc
import http.server
import logging
import os
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Unpack

import pytest

from goddard.client.consume.lite import LitePullConsumer
from goddard.client.errors import (
    BrokerError,
    ClientError,
    ForkedError,
    NameServerError,
    NoNameServerError,
    NoRouteError,
    NotRunningError,
)
from goddard.client.message import Message, ReceivedMessage
from goddard.client.options import SessionKeywords, session_options
from goddard.client.produce.producer import Producer
from goddard.client.session import Session
from goddard.client.values import MessageQueue, SendStatus, ServiceState
from goddard.errors import ConfigError
from goddard.protocol import bodies
from goddard.protocol.bodies import decode_body, encode_body
from goddard.protocol.bodies_client import (
    ClientOffsets,
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ResetOffsetBody,
)
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import GetProducerConnectionsRequest
from goddard.protocol.headers.message import CheckTransactionRequest
from goddard.protocol.message import encode_properties
from goddard.protocol.record import Host, Record, encode_record
from goddard.testing.ports import lease_port
from goddard.testing.site import Site
from goddard.transport.tasks import Tasks
from goddard.transport.tls import TlsOptions
from tests.support.fake_cluster import FakeCluster
from tests.support.members import session_of
from tests.support.polling import until

HOST = Host(bytes((127, 0, 0, 1)), 10911)


def new_session(namesrv: str | None, **keywords: Unpack[SessionKeywords]) -> Session:
    return Session.shared(session_options(namesrv, keywords).for_process())


class FakeConsumer:
    """A consumer that records the calls of its session."""

    def __init__(self, group: str = "cg", topic: str = "T") -> None:
        self.group = group
        self.topic = topic
        self.is_balanced = True
        self.rebalanced = 0
        self.persisted = 0
        self.route_changes = 0
        self.resets: list[tuple[str, dict[MessageQueue, int]]] = []
        self.consumed: list[ReceivedMessage] = []

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(group_name=self.group)

    def subscribed_topics(self) -> Iterable[str]:
        return (self.topic,)

    def route_changed(self) -> None:
        self.route_changes += 1

    async def rebalance(self) -> bool:
        self.rebalanced += 1
        if self.rebalanced == 2:
            raise ValueError("once")
        return self.is_balanced

    async def persist_offsets(self) -> None:
        self.persisted += 1
        if self.persisted == 1:
            raise ValueError("once")

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        self.resets.append((topic, offsets))

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        return {MessageQueue(topic, "a", 1): 17}

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(jstack="stacks" if with_stacks else None)

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        self.consumed.append(message)
        return ConsumeDirectlyResult(remark=message.broker_name)


class FakeProducer:
    """A producer that records the calls of its session."""

    def __init__(self, group: str = "pg", topic: str = "T") -> None:
        self.group = group
        self.topic = topic
        self.checks: list[tuple[ReceivedMessage, CheckTransactionRequest, str]] = []

    def published_topics(self) -> Iterable[str]:
        return (self.topic,)

    def check_transaction(
        self, message: ReceivedMessage, header: CheckTransactionRequest, address: str
    ) -> None:
        self.checks.append((message, header, address))


# --- Sharing --------------------------------------------------------------------------------------


async def test_clients_with_the_same_id_share_a_session(site: Site) -> None:
    name = site.new_group("shared")
    async with Producer("pg-1", name_servers=site.namesrv, instance_name=name) as first:
        async with Producer("pg-2", name_servers=site.namesrv, instance_name=name) as second:
            assert session_of(first) is session_of(second)
            assert (
                first.client_id
                == second.client_id
                == session_of(first).options.client_ip + f"@{name}"
            )
            topic = site.create_topic("shared")
            await second.send(Message(topic, b"x"))
            address = site.broker.address
            assert session_of(first).connection(address) is session_of(second).connection(address)
        shared = session_of(first)
        assert shared.is_running
        assert (await first.send(Message(topic, b"x"))).status is SendStatus.SEND_OK
        own = Producer("pg-2", name_servers=site.namesrv, unit_name="u")
        assert own.client_id.endswith("@u")
        assert own.client_id.split("@")[1].startswith(f"{os.getpid()}#")
        with pytest.raises(ConfigError, match="in use with other options"):
            await Producer(
                "pg-3", name_servers=site.namesrv, instance_name=name, heartbeat_interval_ms=100
            ).start()
    # After the last client stopped, the next one gets a new session.
    async with Producer("pg-1", name_servers=site.namesrv, instance_name=name) as again:
        assert session_of(again) is not shared


async def test_brokers_know_a_producer_only_while_it_runs(site: Site) -> None:
    group = site.new_group("known")
    topic = site.create_topic("known")

    async def known_ids(session: Session) -> set[str]:
        header = GetProducerConnectionsRequest(producer_group=group)
        command = RemotingCommand(RequestCode.GET_PRODUCER_CONNECTION_LIST, header.encode())
        response = await session.request(site.broker.address, command, 3_000)
        if response.code != ResponseCode.SUCCESS:
            return set()
        listed = decode_body(response.body, dict[str, list[dict[str, object]]])
        return {str(each["clientId"]) for each in listed["connectionSet"]}

    async with new_session(site.namesrv) as watcher:
        async with Producer(group, name_servers=site.namesrv, topics=[topic]) as producer:
            assert await known_ids(watcher) == {producer.client_id}
        assert await known_ids(watcher) == set()


def test_session_that_was_never_stopped_is_freed_with_its_loop() -> None:
    async def leave_open() -> weakref.ref[Session]:
        session = new_session("127.0.0.1:1")
        await session.start()
        return weakref.ref(session)

    session = asyncio.run(leave_open())
    gc.collect()
    assert session() is None


def test_client_cannot_be_used_on_another_loop() -> None:
    async def on_first_loop() -> tuple[FakeCluster, Producer]:
        cluster = FakeCluster("a")
        await cluster.__aenter__()
        producer = Producer("g", name_servers=cluster.namesrv)
        await producer.start()
        return cluster, producer

    async def on_second_loop(producer: Producer) -> None:
        # A call raises at once instead of waiting forever.
        async with asyncio.timeout(30):
            for sending in (producer.send, producer.send_oneway):
                with pytest.raises(NotRunningError, match="belongs to another event loop") as error:
                    await sending(Message("T", b"x"))
                assert "in the same asyncio.run" in error.value.advice

    first = asyncio.new_event_loop()
    try:
        cluster, producer = first.run_until_complete(on_first_loop())
        asyncio.run(on_second_loop(producer))
        first.run_until_complete(producer.stop())
        first.run_until_complete(cluster.__aexit__(None, None, None))
    finally:
        first.close()


@pytest.mark.parametrize("name", ["send", "send_soon", "stop"])
async def test_producer_calls_from_another_loop_are_refused(name: str) -> None:
    async with FakeCluster("a") as cluster, Producer("g", name_servers=cluster.namesrv) as producer:

        async def elsewhere() -> None:
            arguments = () if name == "stop" else (Message("T", b"x"),)
            await getattr(producer, name)(*arguments)

        async with asyncio.timeout(20):
            with pytest.raises(NotRunningError, match="belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, elsewhere())
            with pytest.raises(NotRunningError, match="belongs to another event loop"):
                # A thread without a loop.
                await asyncio.to_thread(producer.send_soon, Message("T", b"x"))
        assert producer.state is ServiceState.RUNNING


@pytest.mark.parametrize("name", ["poll", "stop"])
async def test_consumer_calls_from_another_loop_are_refused(name: str) -> None:
    async with (
        FakeCluster("a") as cluster,
        LitePullConsumer("g", name_servers=cluster.namesrv) as consumer,
    ):

        async def elsewhere() -> None:
            await getattr(consumer, name)()

        async with asyncio.timeout(20):
            with pytest.raises(NotRunningError, match="belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, elsewhere())
        assert consumer.state is ServiceState.RUNNING


async def test_client_cannot_be_used_after_a_fork(site: Site) -> None:
    async with Producer(site.new_group("forked"), name_servers=site.namesrv) as producer:
        not_started = Producer(site.new_group("forked"), name_servers=site.namesrv)
        attempts = (
            not_started.start(),
            producer.send(Message("T", b"x")),
            session_of(producer).request_name_server(RemotingCommand(1), 1_000),
        )
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for attempt in attempts:
                    try:
                        attempt.send(None)
                    except ForkedError as error:
                        os.write(write_end, f"{error}\n".encode())
            finally:
                os._exit(0)
        os.close(write_end)
        for attempt in attempts:
            attempt.close()
        await asyncio.to_thread(os.waitpid, child, 0)
        with os.fdopen(read_end, "rb") as pipe:
            errors = pipe.read().decode().splitlines()
        assert len(errors) == 3
        assert all("create clients after the fork" in each for each in errors)
        topic = site.create_topic("forked")
        assert (await producer.send(Message(topic, b"x"))).status is SendStatus.SEND_OK


# --- Name servers ---------------------------------------------------------------------------------


async def test_unreachable_name_servers_are_skipped(site: Site) -> None:
    dead = f"127.0.0.1:{lease_port()}"
    topic = site.create_topic("rotation")
    async with new_session(f"{dead};{site.namesrv};127.0.0.1:{lease_port()}") as session:
        assert len(session.name_servers) == 3
        assert len((await session.publish_route(topic)).queues) == 4
        await session.refresh_route(topic)
    async with new_session(dead) as session:
        with pytest.raises(NoRouteError) as error:
            await session.publish_route(topic)
        assert isinstance(error.value.__cause__, NameServerError)
        assert dead in str(error.value.__cause__)
        # Only the frames of the call itself are printed, not those behind the causes.
        assert "".join(traceback.format_exception(error.value.__cause__)).count("\n") < 10
        # The advice is not to create the topic.
        assert f"no name server answers; code 10005; at {dead}" in str(error.value)
        with pytest.raises(NameServerError):
            await session.refresh_route(topic)


async def test_name_servers_from_the_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"http://{site.namesrv};{site.namesrv}")
    async with new_session(None) as session:
        assert session.name_servers == (site.namesrv,)
        assert (await session.publish_route(site.create_topic("environment"))).queues
    monkeypatch.delenv("NAMESRV_ADDR")
    async with new_session(None) as session:
        with pytest.raises(NoNameServerError):
            await session.publish_route("T")


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[bytes], list[str]]]:
    """An HTTP address, the answer that it gives (the first item), and the requested paths."""
    answers: list[bytes] = []
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[0])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr", answers, paths
        server.shutdown()
        thread.join()


async def test_name_servers_from_an_http_address(
    site: Site, endpoint: tuple[str, list[bytes], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    url, answers, paths = endpoint
    answers.append(f"{site.namesrv}\r\n".encode())
    async with new_session(None, name_server_endpoint=url, unit_name="unit") as session:
        assert session.name_servers == (site.namesrv,)
        assert (await session.publish_route(site.create_topic("endpoint"))).queues
    assert paths == ["/rocketmq/nsaddr-unit?nofix=1"]
    for invalid in (b"", b"<html>", b";" * 100_000):
        answers[0] = invalid
        async with new_session(None, name_server_endpoint=url) as session:
            assert session.name_servers == ()
            with pytest.raises(NoNameServerError):
                await session.publish_route("T")
    assert "did not return a list of name servers" in caplog.text


async def test_intervals_of_periodic_tasks_are_those_of_rocketmq(
    endpoint: tuple[str, list[bytes], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    periods: dict[str, tuple[float | None, float]] = {}
    start_periodic = Tasks.periodic

    def start_fast(
        tasks: Tasks,
        name: str,
        interval_seconds: float,
        action: Callable[[], Awaitable[None] | None],
        *,
        first_seconds: float | None = None,
    ) -> asyncio.Task[None]:
        periods[name] = (first_seconds, interval_seconds)
        return start_periodic(tasks, name, 0.01, action)

    monkeypatch.setattr(Tasks, "periodic", start_fast)
    url, answers, _ = endpoint
    answers.append(b"127.0.0.1:1")
    async with new_session(None, name_server_endpoint=url) as session:
        assert session.name_servers == ("127.0.0.1:1",)
        answers[0] = b"127.0.0.1:2"
        await until(lambda: session.name_servers == ("127.0.0.1:2",))
        answers[0] = b"127.0.0.1:3"
        await until(lambda: session.name_servers == ("127.0.0.1:3",))
    # Seconds until the first run, and between runs.
    assert periods == {
        "FetchNameServers": (10, 120),
        "RefreshRoutes": (0.01, 30),
        "Heartbeat": (1, 30),
        "PersistOffsets": (5, 5),
    }


async def test_missing_route_is_a_warning_except_for_the_default_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster("a", topics=()) as cluster, new_session(cluster.namesrv) as session:
        with pytest.raises(NoRouteError):
            await session.publish_route("Missing")
        assert cluster.route_requests == ["Missing", "TBW102"]
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == ["get Topic [Missing] RouteInfoFromNameServer is not exist value"]


# --- Periodic tasks -------------------------------------------------------------------------------


async def test_routes_are_refreshed_and_consumers_notified() -> None:
    async with (
        FakeCluster("a", "b") as cluster,
        new_session(cluster.namesrv, poll_name_server_interval_ms=20) as session,
    ):
        consumer = FakeConsumer()
        session.add_producer("pg", FakeProducer())
        session.add_consumer("cg", consumer)
        assert len((await session.publish_route("T")).queues) == 8
        cluster.queues = 6
        assert consumer.route_changes == 1
        await until(lambda: consumer.route_changes == 2)
        assert len((await session.publish_route("T")).queues) == 12
        assert len(await session.subscribe_queues("T")) == 12
        # If a topic disappears, its last route stays in use.
        cluster.topics.clear()
        asked = len(cluster.route_requests)
        await until(lambda: len(cluster.route_requests) > asked + 2)
        assert len(await session.subscribe_queues("T")) == 12
        assert not await session.refresh_route("T")
        await session.remove_producer("pg")
        await session.remove_consumer("cg")


async def test_concurrent_callers_share_a_route_request() -> None:
    async with FakeCluster("a") as cluster, new_session(cluster.namesrv) as session:
        routes = await asyncio.gather(*(session.publish_route("T") for _ in range(50)))
        assert cluster.route_requests == ["T"]
        assert len({id(route) for route in routes}) == 1


async def test_brokers_without_a_route_are_removed(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        FakeCluster("a", "b") as cluster,
        new_session(
            cluster.namesrv, poll_name_server_interval_ms=20, heartbeat_interval_ms=20
        ) as session,
    ):
        session.add_producer("pg", FakeProducer())
        await session.publish_route("T")
        assert set(session.broker_addresses()) == {"a", "b"}
        gone = cluster.broker("b")
        with caplog.at_level(logging.INFO):
            cluster.forget("b")
            await until(lambda: set(session.broker_addresses()) == {"a"})
        assert "the broker[b] is offline, remove it" in caplog.text
        assert session.broker_address("b") is None
        assert session.find_broker("b") is None
        await session.remove_producer("pg")
        await gone.server.stop()


async def test_heartbeats_contain_the_members() -> None:
    async with (
        FakeCluster("a") as cluster,
        new_session(cluster.namesrv, heartbeat_interval_ms=50) as session,
    ):
        broker = cluster.broker("a")
        await session.publish_route("T")
        await session.heartbeat()
        assert not broker.requests
        session.add_producer("pg", FakeProducer())
        session.add_consumer("cg", FakeConsumer())
        await session.heartbeat()
        data = decode_body(broker.requests[0].body, HeartbeatData)
        assert data.client_id == session.client_id
        assert [each.group_name for each in data.producer_data_set] == ["pg"]
        assert [each.group_name for each in data.consumer_data_set] == ["cg"]
        await until(lambda: len(broker.requests) >= 3)
        await session.remove_producer("pg")
        await session.remove_consumer("cg")
        left = [r.fields for r in broker.requests if r.code == RequestCode.UNREGISTER_CLIENT]
        assert left == [
            {"clientID": session.client_id, "producerGroup": "pg"},
            {"clientID": session.client_id, "consumerGroup": "cg"},
        ]


async def test_concurrent_start_fails_if_the_first_is_cancelled() -> None:
    asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    # An HTTP server that never answers.
    server = await asyncio.start_server(lambda _, writer: asked.put_nowait(writer), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        session = new_session(None, name_server_endpoint=f"http://127.0.0.1:{port}/rocketmq/nsaddr")
        first = asyncio.create_task(session.start())
        connection = await asked.get()
        second = asyncio.create_task(session.start())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(NotRunningError, match="start the client again"):
            await second
        assert first.cancelled()
        assert not session.is_running
        connection.close()
        await connection.wait_closed()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_heartbeat_is_sent_on_a_new_connection(host: str) -> None:
    async with FakeCluster("a") as cluster, new_session(cluster.namesrv) as session:
        broker = cluster.broker("a")
        address = cluster.address_overrides["a"] = f"{host}:{broker.server.port}"

        def heartbeats() -> int:
            return sum(each.code == RequestCode.HEART_BEAT for each in broker.requests)

        consumer = FakeConsumer()
        session.add_consumer("cg", consumer)
        await session.publish_route("T")
        # The first heartbeat is sent one second after the start, the next one 30 s later.
        await until(lambda: heartbeats() == 1)
        rebalanced = consumer.rebalanced
        broker.connections[0].abort()
        await until(lambda: session.connection(address) is None)
        await session.request(address, RemotingCommand(RequestCode.GET_MIN_OFFSET), 3_000)
        await until(lambda: heartbeats() == 2)
        await until(lambda: consumer.rebalanced > rebalanced)
        await session.remove_consumer("cg")


async def test_consumers_are_rebalanced_and_offsets_persisted() -> None:
    async with (
        FakeCluster("a") as cluster,
        new_session(
            cluster.namesrv, rebalance_interval_ms=30, persist_offsets_interval_ms=20
        ) as session,
    ):
        # Errors of a consumer are logged; the next run calls it again.
        consumer = FakeConsumer()
        session.add_consumer("cg", consumer)
        await until(lambda: consumer.rebalanced >= 4 and consumer.persisted >= 3)
        await session.remove_consumer("cg")


async def test_rebalance_on_request() -> None:
    async with FakeCluster("a") as cluster, new_session(cluster.namesrv) as session:
        consumer = FakeConsumer()
        session.add_consumer("cg", consumer)
        session.wake_rebalance()
        session.wake_rebalance()
        await until(lambda: consumer.rebalanced == 1)
        # Not balanced: the next rebalance is after one second, not twenty.
        consumer.is_balanced = False
        session.wake_rebalance()
        await until(lambda: consumer.rebalanced >= 3)
        await session.remove_consumer("cg")


async def test_group_can_be_registered_only_once() -> None:
    async with FakeCluster("a") as cluster, new_session(cluster.namesrv) as session:
        session.add_consumer("g", FakeConsumer())
        session.add_producer("g", FakeProducer())
        with pytest.raises(ClientError, match=r"The consumer group\[g\] has been created before"):
            session.add_consumer("g", FakeConsumer())
        with pytest.raises(ClientError, match=r"The producer group\[g\] has been created before"):
            session.add_producer("g", FakeProducer())
        await session.remove_consumer("g")
        await session.remove_producer("g")


# --- Requests -------------------------------------------------------------------------------------


async def test_call_raises_broker_error(site: Site) -> None:
    async with new_session(site.namesrv) as session:
        command = RemotingCommand(29_999)
        with pytest.raises(BrokerError) as error:
            await session.call(site.broker.address, command, 3_000)
        assert error.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert error.value.address == site.broker.address
        assert "29999 not supported" in error.value.remark
        assert (await session.request(site.broker.address, command, 3_000)).code == 3
        await session.oneway(site.broker.address, command)


async def test_find_broker() -> None:
    async with FakeCluster("a") as cluster, new_session(cluster.namesrv) as session:
        await session.publish_route("T")
        address = cluster.broker("a").address
        assert session.find_broker("a") == (address, False)
        assert session.find_broker("a", 1) == (address, False)
        assert session.find_broker("a", 1, only_this=True) is None
        assert session.find_broker("x") is None


async def test_vip_channel_uses_the_second_port(site: Site) -> None:
    topic = site.create_topic("vip")
    async with Producer(
        site.new_group("vips"), name_servers=site.namesrv, vip_channel=True
    ) as producer:
        assert (await producer.send(Message(topic, b"x"))).status is SendStatus.SEND_OK
        host, _, port = site.broker.address.rpartition(":")
        assert session_of(producer).connection(f"{host}:{int(port) - 2}") is not None


async def test_tls_without_verification(legacy_site: Site) -> None:
    """RocketMQ's servers accept TLS on the same port, with a self-signed certificate."""
    topic = legacy_site.create_topic("tls")
    async with Producer(
        legacy_site.new_group("tls"), name_servers=legacy_site.namesrv, tls=TlsOptions()
    ) as producer:
        futures = [producer.send_soon(Message(topic, b"x" * 100)) for _ in range(100)]
        results = await asyncio.gather(*futures, producer.send(Message(topic, b"y" * 1_000_000)))
    assert {result.status for result in results} == {SendStatus.SEND_OK}


# --- Requests of brokers --------------------------------------------------------------------------


def record_of(topic: str, body: bytes, properties: dict[str, str]) -> bytes:
    return encode_record(
        Record(
            topic=topic,
            queue_id=1,
            queue_offset=5,
            physical_offset=100,
            store_timestamp_ms=1,
            store_host=HOST,
            born_timestamp_ms=1,
            born_host=HOST,
            body=body,
            properties=encode_properties(properties),
        )
    )


async def test_broker_requests_to_consumers() -> None:
    async with FakeCluster("a") as cluster, new_session(cluster.namesrv) as session:
        consumer = FakeConsumer()
        session.add_consumer("cg", consumer)
        await session.publish_route("T")
        await session.heartbeat()
        broker = cluster.broker("a").connections[0]

        async def ask(
            code: RequestCode, fields: dict[str, str], body: bytes = b""
        ) -> RemotingCommand:
            return await broker.request(RemotingCommand(code, fields, body), 5_000)

        broker.oneway(
            RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "cg"})
        )
        await until(lambda: consumer.rebalanced == 1)

        queue = bodies.MessageQueue(topic="T", broker_name="a", queue_id=2)
        offsets = encode_body(ResetOffsetBody(offset_table={queue: 42}))
        reset = {"topic": "T", "group": "cg", "timestamp": "1", "isForce": "true"}
        broker.oneway(RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, offsets))
        await until(lambda: bool(consumer.resets))
        assert consumer.resets == [("T", {MessageQueue("T", "a", 2): 42})]

        status = await ask(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "cg"}
        )
        table = decode_body(status.body, ClientOffsets).message_queue_table
        assert [(each.broker_name, each.queue_id, at) for each, at in table.items()] == [
            ("a", 1, 17)
        ]

        client = {"consumerGroup": "cg", "clientId": session.client_id}
        info = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {**client, "jstackEnable": "true"})
        assert decode_body(info.body, ConsumerRunningInfo).jstack == "stacks"

        record = record_of("T", b"again", {"TAGS": "A"})
        result = await ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, {**client, "brokerName": "a"}, record
        )
        assert decode_body(result.body, ConsumeDirectlyResult).remark == "a"
        (message,) = consumer.consumed
        assert (message.body, message.tags, message.queue) == (b"again", "A", ("T", "a", 1))

        for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
            unknown = await ask(code, {"consumerGroup": "other", "clientId": "x"}, record)
            assert unknown.code == ResponseCode.SYSTEM_ERROR
            assert unknown.remark == "The Consumer Group <other> not exist in this consumer"
        malformed = await ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, client, b"malformed")
        assert malformed.code == ResponseCode.SYSTEM_ERROR
        await session.remove_consumer("cg")


async def test_broker_requests_to_producers(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster("a") as cluster, new_session(cluster.namesrv) as session:
        producer = FakeProducer()
        session.add_producer("pg", producer)
        await session.publish_route("T")
        await session.heartbeat()
        broker = cluster.broker("a").connections[0]
        fields = {"tranStateTableOffset": "5", "commitLogOffset": "100", "bname": "a"}
        for group in ("pg", "unknown"):
            record = record_of("T", b"half", {"PGROUP": group, "UNIQ_KEY": "id"})
            broker.oneway(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, fields, record))
        await until(lambda: "pick producer by group[unknown] failed" in caplog.text)
        ((message, header, address),) = producer.checks
        assert (message.body, message.message_id, message.broker_name) == (b"half", "id", "a")
        assert header.commit_log_offset == 100
        assert address == cluster.broker("a").address

        replies: list[ReceivedMessage] = []

        def listener(reply: ReceivedMessage) -> bool:
            replies.append(reply)
            return reply.get("CORRELATION_ID") == "c1"

        session.add_reply_listener(listener)
        pushed = {
            "producerGroup": "pg",
            "topic": "DefaultCluster_REPLY_TOPIC",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1",
            "flag": "3",
            "properties": "CORRELATION_ID\x01c1\x02",
            "bornHost": "127.0.0.1:1",
            "storeHost": "127.0.0.1:2",
            "storeTimestamp": "2",
        }
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        answer = await broker.request(RemotingCommand(code, pushed, b"reply"), 5_000)
        assert answer.code == ResponseCode.SUCCESS
        pushed["properties"] = ""
        await broker.request(RemotingCommand(code, pushed, b"reply"), 5_000)
        assert "dropped a reply from" in caplog.text
        session.remove_reply_listener(listener)
        assert [(m.body, m.flag, m.store_host) for m in replies] == [
            (b"reply", 3, "127.0.0.1:2")
        ] * 2
        await session.remove_producer("pg")
