"""Requests of clients and administrators: lists, permissions, KV, order settings, configuration."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from goddard.config import parse_properties
from goddard.nameserver.server import NameServer
from goddard.protocol.codes import RequestCode, ResponseCode
from tests.support.clock import ManualClock
from tests.support.name_server_client import NameServerClient, loads

Start = Callable[..., Awaitable[NameServer]]
Connect = Callable[[NameServer], NameServerClient]

ORDER = "ORDER_TOPIC_CONFIG"


async def put(peer: NameServerClient, namespace: str, key: str, value: str) -> None:
    fields = {"namespace": namespace, "key": key, "value": value}
    answer = await peer.ask(RequestCode.PUT_KV_CONFIG, fields)
    assert (answer.code, answer.remark, answer.ext_fields) == (0, None, None)


async def update(peer: NameServerClient, text: str) -> tuple[int, str | None]:
    answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, text.encode())
    return answer.code, answer.remark


async def configuration(peer: NameServerClient) -> dict[str, str]:
    answer = await peer.ask(RequestCode.GET_NAMESRV_CONFIG)
    return parse_properties(str(answer.body, "utf-8"))


# Lists


async def test_topic_lists(server: NameServer, connect: Connect) -> None:
    peer = connect(server)
    await peer.register("T1", "T2")
    topics = loads(await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert sorted(topics["topicList"]) == ["T1", "T2"]
    fields = {"cluster": "DefaultCluster"}
    topics = loads(await peer.ask(RequestCode.GET_TOPICS_BY_CLUSTER, fields))
    assert sorted(topics["topicList"]) == ["T1", "T2"]
    topics = loads(await peer.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "Nowhere"}))
    assert topics == {"topicList": []}
    topics = loads(await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))
    assert sorted(topics["topicList"]) == ["DefaultCluster", "broker-a"]
    assert topics["brokerAddr"] == "10.0.0.1:10911"
    for code in (
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ):
        assert loads(await peer.ask(code)) == {"topicList": []}


async def test_lists_can_be_switched_off_while_running(peer: NameServerClient) -> None:
    assert await update(peer, "enableTopicList=false\nenableAllTopicList=false") == (0, None)
    for code, fields in (
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
        (RequestCode.GET_UNIT_TOPIC_LIST, None),
    ):
        answer = await peer.ask(code, fields)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")


# Permissions and topics


async def test_write_permission_is_wiped_and_added(peer: NameServerClient) -> None:
    await peer.register("T1", "T2", "T3")
    fields = {"brokerName": "broker-a"}
    answer = await peer.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, fields)
    assert answer.ext_fields == {"wipeTopicCount": "3"}
    route = await peer.route("T1")
    assert route is not None
    assert route["queueDatas"][0]["perm"] == 4
    answer = await peer.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, fields)
    assert answer.ext_fields == {"addTopicCount": "3"}
    route = await peer.route("T1")
    assert route is not None
    assert route["queueDatas"][0]["perm"] == 6


async def test_topics_are_deleted_and_registered(peer: NameServerClient) -> None:
    await peer.register("T1", "T2")
    route = await peer.route("T1")
    fields = {"topic": "T1", "clusterName": "DefaultCluster"}
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)).code == 0
    assert await peer.route("T1") is None
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T2"})).code == 0
    assert await peer.route("T2") is None
    body = json.dumps(route).encode()
    assert (await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T1"}, body)).code == 0
    assert await peer.route("T1") == route
    unknown = body.replace(b"broker-a", b"broker-z")
    answer = await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T5"}, unknown)
    assert answer.code == 0
    assert await peer.route("T5") is None


# Key-value configuration


async def test_kv_pairs_are_put_listed_and_deleted(peer: NameServerClient) -> None:
    key = {"namespace": "NSX", "key": "k1"}
    answer = await peer.ask(RequestCode.GET_KV_CONFIG, key)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "No config item, Namespace: NSX Key: k1"
    answer = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "NSX"})
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "No config item, Namespace: NSX"
    await put(peer, "NSX", "k1", "v1")
    answer = await peer.ask(RequestCode.GET_KV_CONFIG, key)
    assert answer.ext_fields == {"value": "v1"}
    answer = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "NSX"})
    assert loads(answer) == {"table": {"k1": "v1"}}
    assert (await peer.ask(RequestCode.DELETE_KV_CONFIG, key)).code == 0
    assert (await peer.ask(RequestCode.GET_KV_CONFIG, key)).code == ResponseCode.QUERY_NOT_FOUND
    answer = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "NSX"})
    assert loads(answer) == {"table": {}}


async def test_kv_pairs_survive_a_restart(start: Start, connect: Connect) -> None:
    server = await start()
    peer = connect(server)
    await asyncio.gather(*(put(peer, "NS", f"k{n}", f"ü{n}\n") for n in range(100)))
    await server.stop()
    again = await start()
    answer = await connect(again).ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "NS"})
    assert loads(answer) == {"table": {f"k{n}": f"ü{n}\n" for n in range(100)}}


async def test_order_settings_reach_clients_and_brokers(peer: NameServerClient) -> None:
    await peer.register()
    await put(peer, ORDER, "T1", "broker-a:4")
    # Clients get them if order messages are enabled, brokers unless that is disabled.
    route = await peer.route("T1")
    assert route is not None
    assert "orderTopicConf" not in route
    assert await update(peer, "orderMessageEnable=true") == (0, None)
    route = await peer.route("T1")
    assert route is not None
    assert route["orderTopicConf"] == "broker-a:4"
    assert loads(await peer.register()) == {"table": {"T1": "broker-a:4"}}
    await put(peer, ORDER, "T1", "broker-a:8")
    route = await peer.route("T1")
    assert route is not None
    assert route["orderTopicConf"] == "broker-a:8"
    assert await update(peer, "returnOrderTopicConfigToBroker=false") == (0, None)
    assert bytes((await peer.register()).body) == b""


async def test_a_kv_request_without_its_fields_is_refused(peer: NameServerClient) -> None:
    answer = await peer.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "value": "v"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "the header field key is missing"
    answer = await peer.ask(RequestCode.PUT_KV_CONFIG)
    assert answer.code == ResponseCode.SYSTEM_ERROR


# Configuration


async def test_the_configuration_has_rocketmqs_names(
    server: NameServer, peer: NameServerClient
) -> None:
    shown = await configuration(peer)
    assert shown["listenPort"] == str(server.port)
    assert shown["scanNotActiveBrokerInterval"] == "5000"
    assert len(shown) == 40


async def test_an_update_takes_effect_is_stored_and_ignores_unknown_names(
    server: NameServer, peer: NameServerClient
) -> None:
    text = "needWaitForService=true\nunheardOf=1\nscanNotActiveBrokerInterval=1000\n"
    assert await update(peer, text) == (0, None)
    answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
    shown = await configuration(peer)
    assert shown["scanNotActiveBrokerInterval"] == "1000"
    assert "unheardOf" not in shown
    kept = parse_properties(_text(Path(server.settings.current.config_store_path)))
    assert kept["needWaitForService"] == "true"
    assert kept["listenPort"] == "0"
    assert await update(peer, "") == (0, None)


async def test_routes_are_refused_until_brokers_had_time_to_register(
    start: Start, connect: Connect, clock: ManualClock
) -> None:
    server = await start(need_wait_for_service=True, wait_seconds_for_service=45)
    peer = connect(server)
    await peer.register()
    answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"})
    assert answer.remark == "name server not ready"
    clock.advance(45_000)
    assert await peer.route("T1") is not None


async def test_a_shorter_scan_interval_takes_effect_immediately(
    start: Start, connect: Connect, clock: ManualClock
) -> None:
    server = await start(scan_interval_ms=3_600_000)
    peer = connect(server)
    await peer.register()
    clock.advance(120_001)
    assert await update(peer, "scanNotActiveBrokerInterval=10") == (0, None)
    async with asyncio.timeout(60):
        connection = await peer.client.connection(peer.address)
        await connection.wait_closed()
    assert not server.routes.live


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            "scanNotActiveBrokerInterval=soon",
            "scanNotActiveBrokerInterval=soon: a whole number is needed",
        ),
        ("enableTopicList=maybe", "enableTopicList=maybe: true or false is needed"),
        ("a=\\u12", "malformed \\uxxxx escape: \\u12"),
    ],
)
async def test_a_wrong_value_changes_nothing(
    peer: NameServerClient, text: str, remark: str
) -> None:
    before = await configuration(peer)
    code, found = await update(peer, f"orderMessageEnable=true\n{text}")
    assert (code, found) == (ResponseCode.SYSTEM_ERROR, remark)
    assert await configuration(peer) == before


@pytest.mark.parametrize(
    "text",
    [
        "configStorePath={place}\nproductEnvName=* * * * * root touch /tmp/owned",
        "orderMessageEnable=true\nconfigStorePath={place}",
        "ConfigStorePath={place}",
        "configStorePath\\ ={place}",
        "\\u0063onfigStorePath={place}",
        "config\\\n StorePath={place}",
        "configStorePath=a\nconfigStorePath={place}",
        "kvConfigPath={place}",
        "rocketmqHome={place}",
        "configBlackList=",
        "listenPort=1",
        "bindAddress=0.0.0.0",
        "tls.server.keyPath={place}",
    ],
)
async def test_the_attack_of_cve_2023_37582_is_refused(
    server: NameServer, peer: NameServerClient, tmp_path: Path, text: str
) -> None:
    """A peer sets the path of the configuration file, and its content."""
    place = tmp_path / "place" / "crontab"
    before = await configuration(peer)
    code, remark = await update(peer, text.format(place=place))
    assert code == ResponseCode.NO_PERMISSION
    assert remark is not None
    assert remark.startswith("Can not update config in black list.")
    assert "may not be set over the network" in remark
    assert await configuration(peer) == before
    # The next allowed update and a KV write do not write there, either.
    assert await update(peer, "enableTopicList=false") == (0, None)
    await put(peer, "n", "k", "v")
    assert not _exists(place)
    assert parse_properties(_text(Path(server.settings.current.config_store_path)))


async def test_a_line_break_in_a_value_is_refused(peer: NameServerClient) -> None:
    code, remark = await update(peer, "productEnvName=x\\nkvConfigPath\\=/tmp/evil")
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark == "productEnvName: a value may not contain control characters"


async def test_a_configuration_that_cannot_be_stored_is_not_applied(
    start: Start, connect: Connect, tmp_path: Path
) -> None:
    blocked = _file_instead_of_folder(tmp_path)
    server = await start(config_store_path=str(blocked / "namesrv.properties"))
    peer = connect(server)
    code, remark = await update(peer, "enableTopicList=false")
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark is not None
    assert remark.startswith("the configuration was not stored")
    assert (await configuration(peer))["enableTopicList"] == "true"


def _text(path: Path) -> str:
    return path.read_text()


def _exists(path: Path) -> bool:
    return path.exists() or path.parent.exists()


def _file_instead_of_folder(folder: Path) -> Path:
    blocked = folder / "blocked"
    blocked.write_text("")
    return blocked
