"""Registration of a broker with name servers that start, stop, refuse and hang."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from goddard.broker.registration import Registration
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Topics
from goddard.config import NameServerConfig
from goddard.nameserver.server import NameServer
from goddard.protocol.bodies import KvTable, TopicConfig, decode_register_body, encode_body
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.hashing import body_crc
from goddard.protocol.headers.cluster import RegisterBrokerRequest, UnregisterBrokerRequest
from goddard.store.tables import TopicTable
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.polling import until
from tests.support.rules import ANY_RULE

_TIMEOUT_SECONDS = 10.0


class Recorder:
    """A name server that records registrations."""

    def __init__(self) -> None:
        self.registered: list[tuple[RegisterBrokerRequest, dict[str, TopicConfig]]] = []
        self.unregistered: list[UnregisterBrokerRequest] = []
        self.refusals = 0
        self.order_config: dict[str, str] = {}
        handlers = Handlers()
        handlers.register(RequestCode.REGISTER_BROKER, self._register, ANY_RULE)
        handlers.register(RequestCode.UNREGISTER_BROKER, self._unregister, ANY_RULE)
        self._handlers = handlers
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Recorder"]:
        async with Server(ServerOptions(port=self.port), self._handlers) as server:
            self.port = server.port
            yield self

    def topics(self, place: int) -> set[str]:
        return set(self.registered[place][1])

    def _register(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        if self.refusals:
            self.refusals -= 1
            return request.reply(ResponseCode.SYSTEM_ERROR, "not now")
        header = RegisterBrokerRequest.decode(request.fields)
        assert header.body_crc32 == body_crc(request.body)
        body = decode_register_body(request.body, header.compressed, request.version)
        self.registered.append((header, body.topic_config_serialize_wrapper.topic_config_table))
        answer = encode_body(KvTable(table=self.order_config)) if self.order_config else b""
        return request.reply(body=answer)

    def _unregister(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.unregistered.append(UnregisterBrokerRequest.decode(request.fields))
        return request.reply()


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    async with Recorder().serving() as serving:
        yield serving


@asynccontextmanager
async def registered(
    folder: Path, addresses: str, **properties: str
) -> AsyncIterator[tuple[Topics, Registration, Settings]]:
    settings = Settings(
        BrokerConfig.from_properties(
            {"brokerName": "broker-a", "namesrvAddr": addresses, **properties}
        )
    )
    topics = Topics(TopicTable(folder), settings)
    topics.add_system_topics()
    registration = Registration(settings, topics)
    await registration.start()
    try:
        yield topics, registration, settings
    finally:
        await registration.stop()


async def test_all_topics_are_registered_with_all_name_servers(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    async with first.serving(), second.serving():
        addresses = f"{first.address};{second.address}"
        ips = {"brokerIP1": "10.0.0.7", "brokerIP2": "10.1.0.7"}
        async with registered(tmp_path, addresses, **ips) as (topics, _, _):
            for recorder in (first, second):
                (header, table), *others = recorder.registered
                assert not others
                assert header.broker_name == "broker-a"
                assert header.broker_addr == "10.0.0.7:10911"
                assert header.ha_server_addr == "10.1.0.7:10912"
                assert header.cluster_name == "DefaultCluster"
                assert header.broker_id == 0
                assert table == dict(topics.configs)
        for recorder in (first, second):
            (gone,) = recorder.unregistered
            assert (gone.broker_name, gone.broker_addr) == ("broker-a", "10.0.0.7:10911")


async def test_changed_topics_are_registered_at_once_and_together(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with registered(tmp_path, recorder.address) as (topics, _, _):
        topics.put(TopicConfig(topic_name="one"))
        topics.put(TopicConfig(topic_name="two"))
        await until(lambda: len(recorder.registered) == 2)
        assert recorder.topics(1) == {"one", "two"}
        topics.put(TopicConfig(topic_name="three"))
        await until(lambda: len(recorder.registered) == 3)
        assert recorder.topics(2) == {"three"}


async def test_settled_returns_after_name_servers_have_the_changes(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with registered(tmp_path, recorder.address) as (topics, registration, _):
        for number in range(1, 4):
            topics.put(TopicConfig(topic_name=f"topic-{number}"))
            await registration.settled()
            assert recorder.topics(number) == {f"topic-{number}"}
        recorder.refusals = 1
        topics.put(TopicConfig(topic_name="refused"))
        began = asyncio.get_running_loop().time()
        await registration.settled()  # by now it is known that it does not answer
        topics.put(TopicConfig(topic_name="later"))
        await registration.settled()
        assert asyncio.get_running_loop().time() - began < 0.9
        assert len(recorder.registered) == 4


async def test_a_deleted_topic_is_left_out_of_a_full_registration(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with registered(tmp_path, recorder.address) as (topics, _, _):
        topics.put(TopicConfig(topic_name="one"))
        await until(lambda: len(recorder.registered) == 2)
        topics.delete("one")
        await until(lambda: len(recorder.registered) == 3)
        assert recorder.topics(2) == set(topics.configs)
        assert "one" not in recorder.topics(2)


async def test_many_changes_become_one_full_registration(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with registered(tmp_path, recorder.address, compressedRegister="true") as (
        topics,
        *_,
    ):
        topics.put_all(TopicConfig(topic_name=f"t{number}") for number in range(2_000))
        await until(lambda: len(recorder.registered) == 2)
        assert recorder.topics(1) == set(topics.configs)


async def test_a_broker_without_write_permission_has_no_writable_topics(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with registered(tmp_path, recorder.address) as (topics, registration, settings):
        settings.replace(settings.current.updated({"brokerPermission": "4"}))
        registration.register_all()
        await until(lambda: len(recorder.registered) == 2)
        assert all(not config.perm & 2 for config in recorder.registered[1][1].values())
        assert topics.configs["BenchmarkTest"].perm == 6


async def test_order_configuration_of_a_name_server_is_applied(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.order_config = {"BenchmarkTest": "broker-a:8"}
    async with recorder.serving(), registered(tmp_path, recorder.address) as (topics, _, _):
        await until(lambda: topics.is_ordered("BenchmarkTest"))
        await until(lambda: len(recorder.registered) == 2)
        assert recorder.registered[1][1]["BenchmarkTest"].order


async def test_stopped_and_silent_name_servers_delay_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    hanging = await asyncio.start_server(silent, "127.0.0.1", 0)
    hanging_port = hanging.sockets[0].getsockname()[1]
    closed = await asyncio.start_server(silent, "127.0.0.1", 0)
    closed_port = closed.sockets[0].getsockname()[1]
    closed.close()
    await closed.wait_closed()
    async with hanging, Recorder().serving() as recorder:
        addresses = f"127.0.0.1:{closed_port};127.0.0.1:{hanging_port};{recorder.address}"
        loop = asyncio.get_running_loop()
        async with registered(tmp_path, addresses) as (topics, _, _):
            topics.put(TopicConfig(topic_name="one"))
            await until(lambda: len(recorder.registered) == 2)
            began = loop.time()
        assert loop.time() - began < 15
        assert len(recorder.unregistered) == 1
    refused = f"registerBroker Exception, 127.0.0.1:{closed_port}"
    assert len([text for text in caplog.messages if text.startswith(refused)]) == 1


async def test_a_refused_change_is_registered_with_the_next_one(
    tmp_path: Path, recorder: Recorder
) -> None:
    async with registered(tmp_path, recorder.address) as (topics, _, _):
        recorder.refusals = 1
        topics.put(TopicConfig(topic_name="missed"))
        await until(lambda: recorder.refusals == 0)
        topics.put(TopicConfig(topic_name="next"))
        await until(lambda: len(recorder.registered) == 2)
        assert recorder.topics(1) == {"missed", "next"}


async def test_the_broker_registers_again_with_a_restarted_name_server(tmp_path: Path) -> None:
    recorder = Recorder()
    async with AsyncExitStack() as first_life:
        await first_life.enter_async_context(recorder.serving())
        async with registered(tmp_path, recorder.address) as (topics, _, _):
            await first_life.aclose()
            async with recorder.serving():
                await until(lambda: len(recorder.registered) >= 2)
                assert recorder.topics(1) == set(topics.configs)


async def test_a_real_name_server_has_the_routes(tmp_path: Path) -> None:
    config = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json")
    )
    async with NameServer(config) as server:
        address = f"127.0.0.1:{server.port}"
        async with registered(tmp_path, address) as (topics, _, _):
            topics.put(TopicConfig(topic_name="orders", write_queue_nums=3))
            await until(lambda: server.routes.route("orders") is not None)
        assert server.routes.route("orders") is None
