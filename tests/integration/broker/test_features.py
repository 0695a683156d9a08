"""Behaviours of RocketMQ in docs/FEATURES.md that no other test covers."""

import asyncio
import contextlib
import dataclasses
import logging
import random
import re
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from goddard.broker import settings
from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.config import NameServerConfig
from goddard.environment import Environment
from goddard.environment.files import Data
from goddard.nameserver.server import NameServer
from goddard.protocol import fastjson
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import RegisterBrokerRequest
from goddard.protocol.responses import check
from goddard.store.log.segment import Segment
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers, query_route
from goddard.transport.client import Client, ClientOptions, split_address
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.broker_client import BrokerClient
from tests.support.clock import ManualClock
from tests.support.rules import ANY_RULE

SEGMENT = 1 << 20


def config(folder: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder / "store"),
            "mappedFileSizeCommitLog": str(SEGMENT),
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            **properties,
        }
    )


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(ClientOptions()) as opened:
        yield opened


async def appears(path: Path) -> None:
    await asyncio.to_thread(wait_until, path.exists, 10, f"{path} exists")


async def test_servers_listen_on_the_ports_of_rocketmq(tmp_path: Path) -> None:
    # The default ports, on a random loopback address, where no other test listens.
    host = ".".join(["127", *(str(random.randint(1, 254)) for _ in range(3))])
    names = NameServerConfig(rocketmq_home=str(tmp_path), bind_address=host)
    properties = {"bindAddress": host, "brokerIP1": host, "namesrvAddr": f"{host}:9876"}
    default_port = dataclasses.replace(
        config(tmp_path, **properties), listen_port=BrokerConfig().listen_port
    )
    async with NameServer(names), Broker(default_port), asyncio.timeout(60):
        for port in (9876, 10911, 10909, 10912):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await writer.wait_closed()


async def test_every_registered_address_accepts_connections(tmp_path: Path) -> None:
    """A broker tells the name servers no address that nothing listens on."""
    registered: list[RegisterBrokerRequest] = []

    def register(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        registered.append(RegisterBrokerRequest.decode(request.fields))
        return request.reply()

    handlers = Handlers()
    handlers.register(RequestCode.REGISTER_BROKER, register, ANY_RULE)
    async with Server(ServerOptions(), handlers) as names:
        properties = {"namesrvAddr": f"127.0.0.1:{names.port}"}
        async with Broker(config(tmp_path, **properties)) as broker, asyncio.timeout(60):
            header = registered[0]
            assert header.broker_addr == broker.address
            for address in (header.broker_addr, header.ha_server_addr):
                _, writer = await asyncio.open_connection(*split_address(address))
                writer.close()
                await writer.wait_closed()


async def test_from_the_name_server_to_the_consumer(tmp_path: Path, client: Client) -> None:
    """The complete path: name server, brokers, a topic on one of them, send, consume."""
    with Cluster(tmp_path, brokers=2) as cluster:
        addresses = {name: ids[0] for name, ids in query_brokers(cluster.namesrv).items()}
        assert addresses.keys() == {"broker-0", "broker-1"}
        chosen = BrokerClient(client, addresses["broker-1"])
        fields = {
            "topic": "Orders",
            "defaultTopic": "TBW102",
            "readQueueNums": 2,
            "writeQueueNums": 2,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        check(await chosen.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        route = await asyncio.to_thread(
            wait_until, lambda: query_route(cluster.namesrv, "Orders"), 10, "the route of Orders"
        )
        assert [data["brokerName"] for data in route["queueDatas"]] == ["broker-1"]
        (place,) = route["brokerDatas"]
        assert place["brokerAddrs"] == {"0": addresses["broker-1"]}
        await chosen.send("Orders", b"tea")
        (record,) = await chosen.receive("Orders", 1)
        assert record.body == b"tea"


async def test_a_store_after_the_first_message(tmp_path: Path, client: Client) -> None:
    root = tmp_path / "store"
    async with Broker(config(tmp_path)) as broker:
        dialogue = BrokerClient(client, broker.address)
        await dialogue.send("Orders", bytes(1000), {"KEYS": "k"}, queue_id=2)
        # The next segment is created before it is needed.
        await appears(root / "commitlog" / f"{SEGMENT:020}")
        assert (root / "commitlog" / f"{0:020}").stat().st_size == SEGMENT
    assert (root / "consumequeue" / "Orders" / "2" / f"{0:020}").is_file()
    (index,) = (root / "index").iterdir()
    assert re.fullmatch(r"20\d{15}", index.name), "year to millisecond"
    assert (root / "config" / "subscriptionGroup.json").is_file()


def test_abort_remains_after_a_kill_and_not_after_a_stop(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        abort = broker.home / "store" / "abort"
        assert abort.exists()
        broker.kill()
        assert abort.exists()
        broker.start()
        assert broker.stop() == 0
        assert not abort.exists()


def test_the_log_is_mapped_into_memory(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers

        async def send_and_read() -> None:
            async with Client(ClientOptions()) as client:
                dialogue = BrokerClient(client, broker.address)
                await dialogue.send("Orders", b"tea")
                await dialogue.receive("Orders", 1)

        asyncio.run(send_and_read())
        maps = Path(f"/proc/{broker.pid}/maps").read_text()
    assert re.search(rf"store/commitlog/{0:020}$", maps, re.MULTILINE)


async def test_queues_and_index_are_rebuilt_from_the_log(tmp_path: Path, client: Client) -> None:
    """One log for all topics; the files derived from it can be deleted."""
    root = tmp_path / "store"
    topics = ("Orders", "Bills", "Letters")
    async with Broker(config(tmp_path)) as broker:
        dialogue = BrokerClient(client, broker.address)
        for number in range(30):
            await dialogue.send(topics[number % 3], b"%d" % number, {"KEYS": f"k{number}"})
    queues = [root / "consumequeue" / topic / "0" / f"{0:020}" for topic in topics]
    before = [path.read_bytes() for path in queues]
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    async with Broker(config(tmp_path)) as broker:
        dialogue = BrokerClient(client, broker.address)
        for number, topic in enumerate(topics):
            bodies = [record.body for record in await dialogue.pull(topic)]
            assert bodies == [b"%d" % each for each in range(number, 30, 3)]
        fields = {
            "topic": "Bills",
            "key": "k7",
            "maxNum": 32,
            "beginTimestamp": 0,
            "endTimestamp": 2**62,
        }
        check(await dialogue.ask(RequestCode.QUERY_MESSAGE, fields))
    assert [path.read_bytes() for path in queues] == before


async def test_a_created_topic_has_the_settings_of_rocketmq(tmp_path: Path, client: Client) -> None:
    async with Broker(config(tmp_path)) as broker:
        await BrokerClient(client, broker.address).send("Orders", b"tea")
        topics = tmp_path / "store" / "config" / "topics.json"
        await asyncio.to_thread(
            wait_until, lambda: '"Orders"' in topics.read_text(), 10, "Orders in topics.json"
        )
    table = broker.topics.get("Orders")
    assert table is not None
    assert (table.read_queue_nums, table.write_queue_nums, table.perm) == (4, 4, 6)
    assert (table.topic_filter_type, table.topic_sys_flag, table.order) == ("SINGLE_TAG", 0, False)


async def test_sends_do_not_wait_for_pulls(tmp_path: Path, client: Client) -> None:
    """With a thousand held pulls and many that read megabytes, a send takes its usual time."""
    async with Broker(config(tmp_path)) as broker, Client(ClientOptions()) as other:
        dialogue = BrokerClient(client, broker.address)
        for _ in range(8):
            await dialogue.send("Large", bytes(100_000))
        await dialogue.send("Orders", b"first", queue_id=1)
        reader = BrokerClient(other, broker.address)
        pulls = [
            asyncio.create_task(reader.pull("Orders", 0, queue_id=0, wait_ms=20_000))
            for _ in range(1_000)
        ]
        pulls += [asyncio.create_task(reader.pull("Large")) for _ in range(50)]
        took: list[float] = []
        for _ in range(50):
            began = time.monotonic()
            await dialogue.send("Orders", b"tea", queue_id=1)
            took.append(time.monotonic() - began)
        assert sorted(took)[25] < 0.2
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)


async def test_log_lines_of_a_send(
    tmp_path: Path, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """At level DEBUG the log has every send and every stored message."""
    async with Broker(config(tmp_path)) as broker:
        dialogue = BrokerClient(client, broker.address)
        with caplog.at_level(logging.INFO, logger="goddard.broker"):
            await dialogue.send("Orders", b"tea")
        text = "\n".join(caplog.messages)
        assert "the topic Orders not exist, producer: 127.0.0.1:" in text
        assert "Create new topic by default topic:[TBW102] config:[TopicConfig [topicName=" in text
        assert "receive SendMessage" not in text
        with caplog.at_level(logging.DEBUG, logger="goddard.broker"):
            await dialogue.send("Orders", b"tea", {"TAGS": "green"})
    text = "\n".join(caplog.messages)
    assert re.search(
        r"receive SendMessage request command, RemotingCommand \[code=310, language=JAVA, "
        r"version=\d+, opaque=\d+, flag\(B\)=0, remark=null, extFields=\{.*b=Orders.*\}, "
        r"serializeTypeCurrentRPC=JSON\]",
        text,
    )
    assert re.search(r"the msgInner's content is:MessageExt \[queueId=0, .*TAGS=green", text)


async def test_a_slow_append_is_logged(
    tmp_path: Path,
    client: Client,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    async with Broker(config(tmp_path), environment=Environment(clock=clock)) as broker:
        write = Segment.write

        def write_slowly(segment: Segment, position: int, data: Data) -> None:
            clock.advance(501)
            write(segment, position, data)

        monkeypatch.setattr(Segment, "write", write_slowly)
        dialogue = BrokerClient(client, broker.address)
        await dialogue.send("Orders", b"tea")
        assert re.search(r"not in lock elapsed time\(ms\)=501, bodyLength=\d+", caplog.text)
        answer = check(await dialogue.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
        assert b'"putMessageEntireTimeMax":"501"' in bytes(answer.body)


async def test_registrations_are_repeated_with_every_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BrokerConfig().register_seconds == 30
    monkeypatch.setattr(settings, "_REGISTER_PERIOD_MS", (50, 60_000))
    counts = [0, 0]
    servers = []

    def counting(number: int) -> Handlers:
        def register(request: RemotingCommand, connection: Connection) -> RemotingCommand:
            counts[number] += 1
            return request.reply()

        handlers = Handlers()
        handlers.register(RequestCode.REGISTER_BROKER, register, ANY_RULE)
        return handlers

    async with contextlib.AsyncExitStack() as stack:
        for number in range(2):
            server = Server(ServerOptions(), counting(number))
            servers.append(await stack.enter_async_context(server))
        addresses = ";".join(f"127.0.0.1:{server.port}" for server in servers)
        properties = {"namesrvAddr": addresses, "registerNameServerPeriod": "50"}
        async with Broker(config(tmp_path, **properties)):
            await asyncio.to_thread(wait_until, lambda: min(counts) >= 4, 10, "registrations")


async def test_appends_of_many_clients_leave_no_gap(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, contextlib.AsyncExitStack() as stack:

        async def send_all(number: int) -> None:
            client = await stack.enter_async_context(Client(ClientOptions()))
            dialogue = BrokerClient(client, broker.address)
            for _ in range(25):
                await dialogue.send(f"T{number}", bytes(1 + number))

        await asyncio.gather(*map(send_all, range(8)))
        offset = 0
        entries = list(broker.store.log.scan(0))
        for entry in entries:
            assert entry.physical_offset == offset
            offset = entry.end_offset
        assert len(entries) == 8 * 25


async def test_statistics_count_what_clients_send_and_pull(tmp_path: Path, client: Client) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    async with Broker(config(tmp_path), environment=Environment(clock=clock)) as broker:
        dialogue = BrokerClient(client, broker.address)

        async def runtime(*names: str) -> list[int]:
            answer = check(await dialogue.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
            table = fastjson.loads(bytes(answer.body))["table"]
            return [int(table[name]) for name in names]

        totals = ("msgPutTotalTodayNow", "msgGetTotalTodayNow", "putMessageSizeTotal")
        assert await runtime(*totals) == [0, 0, 0]
        for number in range(5):
            await dialogue.send("Orders", bytes(100 + number))
        assert await runtime("putMessageTimesTotal") == [5]
        assert len(await dialogue.pull("Orders")) == 5
        assert len(await dialogue.pull("Orders", 3)) == 2
        assert await runtime(*totals) == [5, 7, broker.store.log_max_offset]
        await dialogue.send("Orders", b"the sixth")
        assert await runtime(*totals) == [6, 7, broker.store.log_max_offset]
        assert await runtime("putMessageTimesTotal") == [6]

        # Sums are the differences of samples, which are taken every 10 s of the broker's clock.
        clock.advance(10_000)
        for name, key, expected in (
            ("TOPIC_PUT_NUMS", "Orders", 6),
            ("GROUP_GET_NUMS", "Orders@G", 7),
        ):
            async with asyncio.timeout(60):
                count = -1
                while count != expected:
                    fields = {"statsName": name, "statsKey": key}
                    answer = await dialogue.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)
                    if answer.code == ResponseCode.SUCCESS:
                        count = fastjson.loads(bytes(answer.body))["statsMinute"]["sum"]
