"""The life cycle of a broker: first start, messages, clean stop, restart, kill, errors."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.config import NameServerConfig
from goddard.errors import StoreError
from goddard.nameserver.server import NameServer
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import CreateTopicRequest, DeleteTopicRequest
from goddard.protocol.headers.message import (
    PullRequest,
    PullResponse,
    SendRequestV2,
    SendResponse,
)
from goddard.protocol.record import iter_records
from goddard.protocol.responses import check
from goddard.store.errors import StoreLockedError
from goddard.store.tables import TopicTable
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import ask, query_brokers, query_route
from goddard.transport.client import Client
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.proxy import FaultProxy
from tests.support.rules import ANY_RULE

_TIMEOUT_MS = 5_000


def config(folder: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "brokerName": "broker-a",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": str(1 << 20),
            "mappedFileSizeConsumeQueue": "6000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            **properties,
        }
    )


def sending(topic: str, body: bytes, queue_id: int = 0) -> RemotingCommand:
    header = SendRequestV2(
        producer_group="producers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
    )
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.encode(), body)


def pulling(topic: str, queue_offset: int = 0, queue_id: int = 0) -> RemotingCommand:
    header = PullRequest(
        consumer_group="readers",
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=4,  # with the subscription
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())


async def send(
    client: Client, address: str, topic: str, body: bytes, queue_id: int = 0
) -> SendResponse:
    request = sending(topic, body, queue_id)
    answer = check(await client.request(address, request, _TIMEOUT_MS), address)
    return SendResponse.decode(answer.fields)


async def bodies(client: Client, address: str, topic: str, queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        request = pulling(topic, len(found), queue_id)
        answer = await client.request(address, request, _TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            return found
        records = list(iter_records(answer.body))
        found += [record.body for record in records]
        assert int(PullResponse.decode(answer.fields).next_begin_offset) == len(found)


@asynccontextmanager
async def name_server(folder: Path) -> AsyncIterator[str]:
    settings = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(folder / "kv.json")
    )
    async with NameServer(settings) as server:
        yield f"127.0.0.1:{server.port}"


async def test_messages_survive_a_restart(tmp_path: Path) -> None:
    async with Client() as client:
        for life in range(3):
            async with Broker(config(tmp_path / "store")) as broker:
                for number in range(10):
                    text = f"{life}-{number}".encode()
                    answer = await send(client, broker.address, "orders", text)
                    assert answer.queue_offset == life * 10 + number
                expected = [f"{a}-{b}".encode() for a in range(life + 1) for b in range(10)]
                assert await bodies(client, broker.address, "orders") == expected
            assert broker.store.report.is_clean
            assert not (tmp_path / "store" / "abort").exists()


async def test_a_new_topic_is_on_disk_before_its_first_message_is_acknowledged(
    tmp_path: Path,
) -> None:
    async with Broker(config(tmp_path)) as broker, Client() as client:

        async def send_new(topic: str) -> str:
            await send(client, broker.address, topic, b"x")
            return (tmp_path / "config" / "topics.json").read_text()

        # Concurrently: requests that arrive during a save wait for the next save.
        topics = [f"new-{number // 2}" for number in range(20)]
        saved = await asyncio.gather(*map(send_new, topics))
        for topic, text in zip(topics, saved, strict=True):
            assert f'"{topic}"' in text


def deleting(topic: str) -> RemotingCommand:
    header = DeleteTopicRequest(topic=topic)
    return RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, header.encode())


async def test_a_crash_does_not_bring_back_a_deleted_topic(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, Client() as client:
        await send(client, broker.address, "orders", b"x")
        # A message of the same millisecond could have been sent after the deletion.
        sent_ms = time.time_ns() // 1_000_000
        await asyncio.to_thread(
            wait_until, lambda: time.time_ns() // 1_000_000 > sent_ms, 60, "the next millisecond"
        )
        check(await client.request(broker.address, deleting("orders"), _TIMEOUT_MS))
        broker.store.abandon()
    async with Broker(config(tmp_path)) as broker:
        assert broker.store.max_offset("orders", 0) == 1, "its message is still in the log"
        assert "orders" not in broker.topics


async def test_a_topic_that_was_not_saved_exists_after_a_crash(tmp_path: Path) -> None:
    table = tmp_path / "config" / "topics.json"
    async with Broker(config(tmp_path)) as broker, Client() as client:
        await send(client, broker.address, "orders", b"before it was deleted")
        check(await client.request(broker.address, deleting("orders"), _TIMEOUT_MS))
        saved = table.read_bytes()
        await send(client, broker.address, "orders", b"after", queue_id=2)
        broker.store.abandon()
    table.write_bytes(saved)
    async with Broker(config(tmp_path)) as broker, Client() as client:
        assert broker.topics.configs["orders"].read_queue_nums >= 3
        assert await bodies(client, broker.address, "orders", queue_id=2) == [b"after"]


async def test_a_new_store_has_the_files_of_rocketmq(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with Broker(config(root)) as broker, Client() as client:
        names = {path.name for path in (root / "config").iterdir()}
        assert names == {
            "consumerFilter.json",
            "consumerOffset.json",
            "delayOffset.json",
            "subscriptionGroup.json",
            "topics.json",
        }
        assert {"abort", "lock"} <= {path.name for path in root.iterdir()}
        await send(client, broker.address, "orders", b"x")
        assert (root / "commitlog" / f"{0:020}").exists()
        text = (root / "config" / "topics.json").read_text
        async with asyncio.timeout(60):
            while True:
                if '"orders"' in text():
                    break
                await asyncio.sleep(0.005)
    assert (root / "consumequeue" / "orders" / "0" / f"{0:020}").exists()
    assert not (root / "abort").exists()
    assert (root / "checkpoint").exists()


async def test_the_commit_log_can_have_its_own_folder(tmp_path: Path) -> None:
    log = tmp_path / "fast disk" / "log"
    settings = config(tmp_path / "store", storePathCommitLog=str(log))
    for _ in range(2):
        async with Broker(settings) as broker, Client() as client:
            await send(client, broker.address, "orders", b"x")
    assert (log / f"{0:020}").exists()
    assert not (tmp_path / "store" / "commitlog").exists()
    async with Broker(settings) as broker, Client() as client:
        assert await bodies(client, broker.address, "orders") == [b"x", b"x"]


async def test_both_ports_serve_and_close(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, Client() as client:
        vip = f"127.0.0.1:{broker.port - 2}"
        await send(client, vip, "orders", b"by the VIP port")
        assert await bodies(client, broker.address, "orders") == [b"by the VIP port"]
    for port in (broker.port, broker.port - 2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1).close()


async def test_name_servers_list_the_broker_while_it_runs(tmp_path: Path) -> None:
    async with name_server(tmp_path) as address, Client() as client:
        async with Broker(config(tmp_path / "store", namesrvAddr=address)) as broker:
            known = await asyncio.to_thread(query_brokers, address)
            assert known == {"broker-a": {0: broker.address}}
            await send(client, broker.address, "orders", b"x")
            async with asyncio.timeout(60):
                while True:
                    if await asyncio.to_thread(query_route, address, "orders") is not None:
                        break
                    await asyncio.sleep(0.01)
        assert await asyncio.to_thread(query_brokers, address) == {}


async def test_services_log_their_start_and_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="goddard"):
        async with Broker(config(tmp_path)):
            # A task that is cancelled before its first step logs nothing.
            await asyncio.sleep(0)
    started = {text for text in caplog.messages if text.endswith(" service started")}
    ended = {text for text in caplog.messages if text.endswith(" service end")}
    assert "ClientHousekeepingService service started" in started
    assert {text.removesuffix("started") + "end" for text in started} == ended


async def test_services_end_within_1000_ms_although_a_name_server_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(request: RemotingCommand, connection: Connection) -> None:
        await asyncio.Event().wait()

    handlers = Handlers()
    handlers.register(
        RequestCode.REGISTER_BROKER, lambda request, connection: request.reply(), ANY_RULE
    )
    handlers.register(RequestCode.UNREGISTER_BROKER, never, ANY_RULE)
    async with Server(ServerOptions(), handlers) as names:
        properties = {"namesrvAddr": f"127.0.0.1:{names.port}"}
        with caplog.at_level(logging.INFO, logger="goddard.broker"):
            async with Broker(config(tmp_path, **properties)):
                stop_seconds = time.time()
    ends = [each.created for each in caplog.records if each.getMessage().endswith(" service end")]
    assert len(ends) >= 5
    assert max(ends) - stop_seconds <= 1.0


async def test_a_second_broker_on_the_same_store_is_refused(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)):
        other = Broker(config(tmp_path))
        with pytest.raises(StoreLockedError):
            await other.start()


async def test_a_port_in_use_leaves_nothing_behind(tmp_path: Path) -> None:
    async with Broker(config(tmp_path / "first")) as first:
        second = config(tmp_path / "second", listenPort=str(first.port))
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            await Broker(second).start()
    # The store was closed cleanly.
    async with Broker(config(tmp_path / "second")) as again:
        assert again.store.report.is_clean


async def test_a_broken_table_stops_the_start_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "topics.json").write_text("{broken")
    with pytest.raises(StoreError, match=r"topics\.json"):
        await Broker(config(tmp_path)).start()
    (folder / "topics.json").unlink()
    async with Broker(config(tmp_path)):
        pass


async def test_a_stop_can_be_repeated_and_needs_no_start(tmp_path: Path) -> None:
    broker = Broker(config(tmp_path))
    await broker.stop()
    await broker.start()
    await broker.stop()
    await broker.stop()


async def test_sends_in_flight_at_the_stop_are_answered(tmp_path: Path) -> None:
    async with Client() as client:
        broker = Broker(config(tmp_path, flushDiskType="SYNC_FLUSH"))
        await broker.start()
        await send(client, broker.address, "orders", b"first")
        requests = [
            asyncio.create_task(client.request(broker.address, sending("orders", b"x"), 5_000))
            for _ in range(50)
        ]
        async with asyncio.timeout(60):
            while True:
                if broker.appender.undurable_requests or any(task.done() for task in requests):
                    break
                await asyncio.sleep(0)
        began = time.monotonic()
        await broker.stop()
        assert time.monotonic() - began < 15
        answers = await asyncio.gather(*requests, return_exceptions=True)
    acknowledged = [
        answer
        for answer in answers
        if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS
    ]
    assert acknowledged
    async with Broker(config(tmp_path)) as again, Client() as client:
        assert len(await bodies(client, again.address, "orders")) >= 1 + len(acknowledged)


async def test_held_pulls_and_a_silent_name_server_do_not_delay_the_stop(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    hanging = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
    async with hanging, Client() as client:
        broker = Broker(config(tmp_path, namesrvAddr=address))
        await broker.start()
        await send(client, broker.address, "orders", b"first")
        request = pulling("orders", 1)
        request.fields.update(sysFlag="6", suspendTimeoutMillis="20000")
        held = asyncio.create_task(client.request(broker.address, request, 30_000))
        async with asyncio.timeout(60):
            while True:
                if len(broker.parked_pulls):
                    break
                await asyncio.sleep(0.005)
        began = time.monotonic()
        await broker.stop()
        assert time.monotonic() - began < 15
        assert (await held).code == ResponseCode.PULL_NOT_FOUND


def creating(topic: str) -> RemotingCommand:
    header = CreateTopicRequest(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=3,
        write_queue_nums=3,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())


async def test_a_created_topic_has_a_route_when_the_request_is_answered(tmp_path: Path) -> None:
    named = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json")
    )
    async with (
        NameServer(named) as server,
        FaultProxy(f"127.0.0.1:{server.port}") as link,
        Broker(config(tmp_path / "store", namesrvAddr=link.address)) as broker,
        Client() as client,
    ):
        link.delay(200)
        for topic in ("orders", "bills"):
            check(await client.request(broker.address, creating(topic), _TIMEOUT_MS))
            assert server.routes.route(topic) is not None
        link.heal()


async def test_a_created_topic_is_on_disk_when_the_request_is_answered(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, Client() as client:
        check(await client.request(broker.address, creating("orders"), _TIMEOUT_MS))
        saved = TopicTable(tmp_path / "config")
        saved.load()
        kept = saved.get("orders")
        assert kept is not None
        assert kept.write_queue_nums == 3


async def test_updated_settings_reach_the_store(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        before = broker.store.config
        await broker.settings.update(
            {"fileReservedTime": "1", "mappedFileSizeCommitLog": "4096"}, "peer", now_ms=1
        )
        assert broker.store.config.reserved_hours == 1
        assert broker.store.config.segment_bytes == before.segment_bytes


def test_the_daemon_stops_quickly_and_restarts(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        assert (
            f"The broker[broker-0, {broker.address}] boot success. serializeType=JSON and name "
            f"server is {cluster.namesrv}"
        ) in broker.output()
        ask(broker.address, sending("orders", b"kept"))
        log = broker.home / "logs" / "broker.log"
        wait_until(lambda: query_route(cluster.namesrv, "orders"), 60, "a route")
        began = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - began < 15
        assert query_brokers(cluster.namesrv) == {}
        assert not (broker.home / "store" / "abort").exists()
        assert "Create new topic by default topic:[TBW102] config:[TopicConfig" in log.read_text()

        broker.start()
        broker.kill()
        assert (broker.home / "store" / "abort").exists()
        broker.start()
        answer = ask(broker.address, pulling("orders"))
        assert [record.body for record in iter_records(answer.body)] == [b"kept"]


def test_sigint_stops_the_daemon(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        os.kill(broker.pid, signal.SIGINT)
        wait_until(lambda: not broker.is_running, 60, "the end")
        assert broker.exit_code == 0
