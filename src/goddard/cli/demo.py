"""``goddard demo``: what there is, at work, in a few seconds, in a folder that is then deleted."""

import tempfile
import time
from pathlib import Path
from typing import Final

import click

from goddard.cli.render import print_table
from goddard.config import NameServerConfig
from goddard.nameserver.server import NameServer
from goddard.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRoute,
    decode_body,
    encode_register_body,
)
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers_cluster import GetRouteRequest, RegisterBrokerRequest
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import encode_properties
from goddard.protocol.record import Host, decode_record
from goddard.protocol.responses import TopicNotExistError, check
from goddard.store.config import StoreConfig
from goddard.store.inspect import StoreView
from goddard.store.records import PreparedRecord
from goddard.store.store import MessageStore
from goddard.store.verify import verify
from goddard.transport.client import Client
from goddard.transport.loop import run

_TOPICS: Final = {"orders": 4, "payments": 8, "audit": 1}
_MESSAGES: Final = 20_000
_GROUP: Final = 32
_MAX_ASKS: Final = 10_000
_TIMEOUT_MS: Final = 3_000
_HOST: Final = Host.parse("127.0.0.1:10911")


@click.command()
def demo() -> None:
    """Show a name server and a store at work; takes seconds and cleans up after itself."""
    with tempfile.TemporaryDirectory(prefix="goddard-demo-") as folder:
        run(_show_name_server(Path(folder)))
        _show_store(Path(folder) / "store")
    click.secho(
        "\nThat was Goddard. Next: goddard namesrv, goddard store --help, make test.", bold=True
    )


def _step(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


async def _show_name_server(folder: Path) -> None:
    _step("1. A name server starts, inside this process, on a free port")
    config = NameServerConfig().updated(
        {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(folder / "kvConfig.json"),
            "configStorePath": str(folder / "namesrv.properties"),
        }
    )
    began = time.perf_counter()
    async with NameServer(config) as server:
        took_ms = (time.perf_counter() - began) * 1000
        address = f"127.0.0.1:{server.port}"
        click.echo(f"   {address} serves after {took_ms:.0f} ms")

        _step("2. A broker registers its topics; a client asks where they are")
        async with Client() as broker, Client() as client:
            check(await broker.request(address, _registration(), _TIMEOUT_MS), address)
            rows = []
            for topic in _TOPICS:
                route = await _route(client, address, topic)
                for queues in route.queue_datas:
                    addresses = route.broker_datas[0].broker_addrs
                    rows.append((topic, queues.broker_name, addresses[0], queues.write_queue_nums))
            print_table("", ("topic", "broker", "master", "queues"), rows)

            _step("3. The broker goes away; its routes go with it, at once")
            await broker.close()
            began = time.perf_counter()
            for _ in range(_MAX_ASKS):
                if not await _is_known(client, address, "orders"):
                    break
            took_ms = (time.perf_counter() - began) * 1000
            click.echo(
                f"   nobody is sent to a dead broker: the routes were gone after {took_ms:.0f} ms"
            )


def _registration() -> RemotingCommand:
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        for name, queues in _TOPICS.items()
    }
    header = RegisterBrokerRequest(
        broker_name="broker-a",
        broker_addr=str(_HOST),
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:10912",
        broker_id=0,
    )
    table = TopicConfigTable(topic_config_table=topics, data_version=DataVersion(counter=1))
    body = encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=table))
    return RemotingCommand(RequestCode.REGISTER_BROKER, header.encode(), body)


async def _route(client: Client, address: str, topic: str) -> TopicRoute:
    header = GetRouteRequest(topic=topic)
    request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
    response = check(await client.request(address, request, _TIMEOUT_MS), address)
    return decode_body(response.body, TopicRoute)


async def _is_known(client: Client, address: str, topic: str) -> bool:
    try:
        await _route(client, address, topic)
    except TopicNotExistError:
        return False
    return True


def _show_store(folder: Path) -> None:
    _step(f"4. A store takes {_MESSAGES:,} messages of 1 KB, in RocketMQ's own files")
    config = StoreConfig(root=folder, segment_bytes=16 << 20)
    store = MessageStore(config)
    store.open()
    try:
        body = b"x" * 1024
        names = list(_TOPICS)
        began = time.perf_counter()
        for first in range(0, _MESSAGES, _GROUP):
            store.put_many(
                [_message(number, names, body) for number in range(first, first + _GROUP)]
            )
        store.flush()
        seconds = time.perf_counter() - began
        click.echo(f"   {_MESSAGES / seconds:,.0f} messages/s, on disk")
        rows = [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in store.queues]
        print_table("", ("topic", "queue", "first", "next"), sorted(rows))

        _step("5. One of them, found again by its key")
        found = store.query("payments", "key-4321", 8).records
        record, _ = decode_record(found[0])
        message_id = offset_message_id(_HOST, record.physical_offset)
        click.echo(
            f"   key-4321 is in queue {record.queue_id} at offset {record.queue_offset}, "
            f"its id is {message_id}"
        )
    finally:
        store.close()

    _step("6. Every byte of it, checked")
    report = verify(StoreView(folder))
    click.echo(f"   {report.records:,} records, {'no damage' if report.is_clean else 'DAMAGE'}")


def _message(number: int, topics: list[str], body: bytes) -> PreparedRecord:
    topic = topics[number % len(topics)]
    return PreparedRecord(
        topic=topic,
        queue_id=number // len(topics) % _TOPICS[topic],
        body=body,
        properties=encode_properties({"KEYS": f"key-{number}", "TAGS": "demo"}),
        born_timestamp_ms=time.time_ns() // 1_000_000,
        born_host=_HOST,
        store_host=_HOST,
    )
