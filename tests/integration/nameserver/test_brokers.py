"""Brokers register, send heartbeats and leave; clients see the resulting routes."""

import asyncio
import itertools
import json
import zlib
from collections.abc import Awaitable, Callable

import pytest

from goddard.nameserver.routes import RouteTable
from goddard.nameserver.server import NameServer
from goddard.protocol.bodies import encode_body, encode_register_body
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.clock import ManualClock
from tests.support.name_server_client import NameServerClient, loads, registration
from tests.support.polling import until
from tests.support.rules import ANY_RULE
from tests.support.stream_peer import StreamPeer

Start = Callable[..., Awaitable[NameServer]]
Connect = Callable[[NameServer], NameServerClient]

IDENTITY = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
}


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registered_broker_is_in_the_route_and_the_cluster(
    peer: NameServerClient, compressed: bool
) -> None:
    answer = await peer.register("T1", "T2", compressed=compressed)
    assert (answer.code, answer.remark, answer.ext_fields) == (0, None, {})
    route = await peer.route("T1")
    assert route is not None
    assert route["queueDatas"] == [
        {
            "brokerName": "broker-a",
            "perm": 6,
            "readQueueNums": 4,
            "topicSysFlag": 0,
            "writeQueueNums": 4,
        }
    ]
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    info = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert bytes(info.body) == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}},'
        b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )


async def test_two_brokers_with_four_queues_give_eight(
    server: NameServer, connect: Connect
) -> None:
    first, second = connect(server), connect(server)
    await first.register("T1", "T2")
    await second.register("T1", "T3", name="broker-b", address="10.0.0.2:10911")
    route = await first.route("T1")
    assert route is not None
    assert sum(data["writeQueueNums"] for data in route["queueDatas"]) == 8
    assert len(route["brokerDatas"]) == 2


async def test_a_missing_topic_gets_rocketmqs_response(peer: NameServerClient) -> None:
    answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Missing"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == (
        "No topic route info in name server for the topic: Missing\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


@pytest.mark.parametrize(
    ("version", "fields", "quoted"),
    [
        (493, {}, True),
        (401, {}, True),
        (399, {}, False),
        (399, {"acceptStandardJsonOnly": "true"}, True),
        (399, {"acceptStandardJsonOnly": "false"}, False),
        (0, {}, False),
    ],
)
async def test_broker_ids_are_quoted_for_clients_that_support_it(
    peer: NameServerClient, version: int, fields: dict[str, str], quoted: bool
) -> None:
    await peer.register()
    answer = await peer.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1", **fields}, version=version
    )
    expected = b'{"0":"10.0.0.1:10911"}' if quoted else b'{0:"10.0.0.1:10911"}'
    assert expected in bytes(answer.body)


async def test_a_body_whose_checksum_is_wrong_is_refused(peer: NameServerClient) -> None:
    body = encode_register_body(registration("T1", "T2"))
    crc = zlib.crc32(body) & 0x7FFFFFFF
    good = await peer.register("T1", "T2", fields={"bodyCrc32": str(crc)})
    assert good.code == ResponseCode.SUCCESS
    bad = await peer.register("T1", "T2", fields={"bodyCrc32": str(crc ^ 1)})
    assert (bad.code, bad.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")


async def test_a_single_topic_before_a_full_registration_is_rejected(
    peer: NameServerClient,
) -> None:
    answer = await peer.register("T1")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "register broker failed")
    info = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert bytes(info.body) == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


async def test_the_body_of_the_oldest_brokers_is_the_topic_table(peer: NameServerClient) -> None:
    table = registration("T1", "T2").topic_config_serialize_wrapper
    fields = {**IDENTITY, "haServerAddr": "10.0.0.1:10912"}
    answer = await peer.ask(RequestCode.REGISTER_BROKER, fields, encode_body(table), version=36)
    assert answer.code == ResponseCode.SUCCESS
    assert await peer.route("T2") is not None


async def test_a_slave_receives_its_master(server: NameServer, connect: Connect) -> None:
    await connect(server).register()
    answer = await connect(server).register(broker_id=1, address="10.0.0.2:10911")
    assert answer.ext_fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


async def test_query_data_version_reports_changes(peer: NameServerClient) -> None:
    version = json.dumps({"counter": 1, "stateVersion": 0, "timestamp": 1}).encode()
    answer = await peer.ask(RequestCode.QUERY_DATA_VERSION, IDENTITY, version)
    assert (answer.ext_fields, bytes(answer.body)) == ({"changed": "true"}, b"")
    await peer.register(counter=1)
    answer = await peer.ask(RequestCode.QUERY_DATA_VERSION, IDENTITY, version)
    assert answer.ext_fields == {"changed": "false"}
    assert loads(answer) == {"counter": 1, "stateVersion": 0, "timestamp": 1}
    await peer.register(counter=2)
    answer = await peer.ask(RequestCode.QUERY_DATA_VERSION, IDENTITY, version)
    assert answer.ext_fields == {"changed": "true"}


async def test_unregistering_takes_effect_before_the_response(peer: NameServerClient) -> None:
    await peer.register()
    answer = await peer.ask(RequestCode.UNREGISTER_BROKER, IDENTITY)
    assert answer.code == ResponseCode.SUCCESS
    assert await peer.route("T1") is None


async def test_many_unregister_at_once(server: NameServer, connect: Connect) -> None:
    peer = connect(server)
    names = [f"broker-{number}" for number in range(50)]
    for number, name in enumerate(names):
        await peer.register(name=name, address=f"10.0.1.{number}:10911")
    await asyncio.gather(
        *(
            peer.ask(
                RequestCode.UNREGISTER_BROKER,
                {**IDENTITY, "brokerName": name, "brokerAddr": f"10.0.1.{number}:10911"},
            )
            for number, name in enumerate(names)
        )
    )
    assert not server.routes.brokers
    assert not server.routes.topic_queues
    assert not server.routes.live


async def test_a_closed_connection_drops_its_broker_at_once(
    server: NameServer, connect: Connect
) -> None:
    """All tables are updated as soon as the connection is closed."""
    broker, client = connect(server), connect(server)
    await broker.register()
    assert await client.route("T1") is not None
    await broker.close()
    await until(lambda: not server.routes.live)
    assert await client.route("T1") is None
    assert not server.routes.brokers
    assert not server.routes.clusters
    assert not server.routes.topic_queues


async def test_closing_an_old_connection_does_not_remove_a_reconnected_broker(
    server: NameServer, connect: Connect
) -> None:
    first, second = connect(server), connect(server)
    await first.register()
    await second.register()
    await first.close()
    assert await second.route("T1") is not None
    await second.close()
    await until(lambda: not server.routes.live)


async def test_a_silent_broker_expires_and_is_disconnected(
    start: Start, connect: Connect, clock: ManualClock
) -> None:
    server = await start(scan_interval_ms=10)
    broker, client = connect(server), connect(server)
    await broker.register()
    connection = await broker.client.connection(broker.address)
    clock.advance(119_000)
    assert (await broker.ask(RequestCode.BROKER_HEARTBEAT, IDENTITY)).code == 0
    clock.advance(120_000)
    # Exactly 120 s without a heartbeat are allowed.
    assert server.routes.expired(clock.monotonic_ms()) == []
    assert await client.route("T1") is not None
    clock.advance(1)
    await until(lambda: not server.routes.live)
    assert await client.route("T1") is None
    async with asyncio.timeout(60):
        await connection.wait_closed()


async def test_scanning_continues_after_a_failure(
    start: Start, connect: Connect, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start(scan_interval_ms=10)
    await connect(server).register()
    failed = asyncio.Event()

    def fail(_: RouteTable, now_ms: int) -> None:
        failed.set()
        raise RuntimeError("an internal error")

    with monkeypatch.context() as patched:
        patched.setattr(RouteTable, "expired", fail)
        await asyncio.wait_for(failed.wait(), 5)
    clock.advance(120_001)
    await until(lambda: not server.routes.live)


async def test_a_broker_may_set_a_shorter_timeout(
    start: Start, connect: Connect, clock: ManualClock
) -> None:
    server = await start(scan_interval_ms=10)
    await connect(server).register(fields={"heartbeatTimeoutMillis": "10000"})
    clock.advance(10_001)
    await until(lambda: not server.routes.live)


async def test_the_member_group_lists_ids_and_addresses(
    server: NameServer, connect: Connect
) -> None:
    peer = connect(server)
    await peer.register()
    await peer.register(broker_id=1, address="10.0.0.2:10911")
    fields = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    answer = await peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, fields)
    assert bytes(answer.body) == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster"}}'
    )


async def test_brokers_are_notified_of_a_new_smallest_id(start: Start, connect: Connect) -> None:
    server = await start(notify_min_broker_id_changed=True)
    notified: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    def take(request: RemotingCommand, connection: Connection) -> None:
        assert request.is_oneway
        notified.put_nowait(request.fields)

    handlers = Handlers()
    handlers.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, take, ANY_RULE)
    async with Server(ServerOptions(), handlers) as slave, asyncio.timeout(60):
        address = f"127.0.0.1:{slave.port}"
        acting = {"enableActingMaster": "true"}
        master = connect(server)
        await connect(server).register(broker_id=1, address=address, fields=acting)
        await master.register(fields=acting)
        assert await notified.get() == {
            "minBrokerId": "0",
            "brokerName": "broker-a",
            "minBrokerAddr": "10.0.0.1:10911",
            "haBrokerAddr": "10.0.0.1:10912",
        }
        await master.close()
        assert await notified.get() == {
            "minBrokerId": "1",
            "brokerName": "broker-a",
            "minBrokerAddr": address,
            "offlineBrokerAddr": "10.0.0.1:10911",
        }


async def test_routes_are_never_pushed(server: NameServer, connect: Connect) -> None:
    """A client sees a change only when it queries: it receives responses and no requests."""
    broker = connect(server)
    opaques = itertools.count(1)
    async with await StreamPeer.connect(f"127.0.0.1:{server.port}") as client:

        async def ask_route(topic: str) -> int:
            command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            command.opaque = next(opaques)
            answer = await client.ask(command)
            assert answer is not None
            return answer.code

        assert await ask_route("T1") == ResponseCode.TOPIC_NOT_EXIST
        await broker.register()
        assert await ask_route("T1") == ResponseCode.SUCCESS
        await broker.register("T1", "T2", "T3", counter=2)
        assert await ask_route("T3") == ResponseCode.SUCCESS
        await broker.close()
        await until(lambda: not server.routes.topic_queues)
        assert await ask_route("T1") == ResponseCode.TOPIC_NOT_EXIST
        await server.stop()
        async with asyncio.timeout(60):
            await client.receive([next(opaques)])  # until the end of the connection
        assert client.is_closed
        assert client.requests == []


async def test_queries_are_answered_during_a_large_registration(
    server: NameServer, connect: Connect
) -> None:
    """A broker registers 50,000 topics; a hundred readers of another broker do not wait for it."""
    small, large = connect(server), connect(server)
    await small.register("T1", "T2")
    readers = [connect(server) for _ in range(10)]
    names = [f"topic-with-a-name-of-usual-length-{number}" for number in range(50_000)]
    registering = asyncio.ensure_future(
        large.register(*names, name="broker-b", address="10.0.0.2:10911")
    )
    routes = await asyncio.gather(*(reader.route("T1") for reader in readers for _ in range(10)))
    assert all(route is not None for route in routes)
    assert (await registering).code == ResponseCode.SUCCESS
    assert await small.route(names[-1]) is not None
    assert len(server.routes.topic_queues) == 50_002
    await large.close()
    await until(lambda: len(server.routes.topic_queues) == 2)


async def test_registrations_of_one_connection_take_effect_in_order(
    server: NameServer, connect: Connect
) -> None:
    """A thread decodes a large one; the small one after it does not overtake it."""
    broker = connect(server)
    names = [f"topic-{number}" for number in range(3_000)]
    answers = await asyncio.gather(
        broker.register(*names, counter=1),
        broker.register("T1", "T2", counter=2),
        broker.register(*names, "T9", counter=3),
        broker.ask(RequestCode.UNREGISTER_BROKER, IDENTITY),
    )
    assert [answer.code for answer in answers] == [0, 0, 0, 0]
    assert not server.routes.topic_queues
    assert not server.routes.live


async def test_a_oneway_registration_takes_effect_without_a_response(
    peer: NameServerClient,
) -> None:
    await peer.register("T1", "T2")
    body = encode_register_body(registration("T9", counter=2))
    fields = {**IDENTITY, "haServerAddr": "10.0.0.1:10912"}
    await peer.client.oneway(
        peer.address, RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)
    )
    assert await peer.route("T9") is not None


async def test_a_zone_route_has_its_own_brokers(server: NameServer, connect: Connect) -> None:
    near, far = connect(server), connect(server)
    await near.register(name="near", fields={"__ZONE_NAME": "z1"})
    await far.register(name="far", address="10.0.0.2:10911", fields={"__ZONE_NAME": "z2"})
    zone = {"topic": "T1", "__ZONE_MODE": "true", "__ZONE_NAME": "z1"}
    answer = await near.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, zone)
    assert [data["brokerName"] for data in loads(answer)["brokerDatas"]] == ["near"]
    complete = await near.route("T1")
    assert complete is not None
    assert len(complete["brokerDatas"]) == 2


async def test_name_servers_share_no_state(start: Start, connect: Connect) -> None:
    first = await start()
    second = await start()
    to_first, to_second = connect(first), connect(second)
    await to_first.register()
    assert await to_second.route("T1") is None
    await to_second.register()
    await first.stop()
    assert await to_second.route("T1") is not None
