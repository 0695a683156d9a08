"""Admin without a cluster: finding brokers, merging their answers, pages, errors.

A scripted cluster stands for the network: its brokers are functions from command to answer.
"""

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from goddard.client.admin.admin import Admin
from goddard.client.admin.clients import known_to
from goddard.client.admin.groups import merge_progress
from goddard.client.admin.messages import track_kind
from goddard.client.admin.name_servers import merge_order_conf
from goddard.client.admin.offsets import rollback_offset
from goddard.client.admin.requests import broker_address, broker_addresses
from goddard.client.admin.values import GroupProgress, TrackKind
from goddard.client.errors import (
    BrokerError,
    BrokerNotFoundError,
    ClusterNotFoundError,
    PartialFailureError,
)
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, ConnectFailedError, GoddardError
from goddard.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    MessageModel,
    QueueData,
    RequestMode,
    TopicConfig,
    TopicConfigTable,
    TopicQueueMappingDetail,
    TopicRoute,
    encode_body,
)
from goddard.protocol.bodies_admin import (
    AccessKey,
    AclInfo,
    ConsumeOffsets,
    ConsumerConnections,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.record import Host, Record

Broker = Callable[[RemotingCommand], RemotingCommand]

NAME_SERVER = "10.0.0.100:9876"
A, B, A_REPLICA = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
INFO = ClusterInfo(
    broker_addr_table={
        "a": BrokerData(broker_name="a", cluster="one", broker_addrs={0: A, 1: A_REPLICA}),
        "b": BrokerData(broker_name="b", cluster="two", broker_addrs={0: B}),
        "orphan": BrokerData(broker_name="orphan", cluster="two", broker_addrs={2: "10.0.0.9:1"}),
    },
    cluster_addr_table={"one": ["a"], "two": ["b", "orphan"], "empty": []},
)
ROUTE = TopicRoute(
    broker_datas=[INFO.broker_addr_table["b"], INFO.broker_addr_table["a"]],
    queue_datas=[QueueData(broker_name=name, perm=6, read_queue_nums=2) for name in "ab"],
)


class ScriptedCluster:
    """A session whose servers are functions; a server that is None is down."""

    def __init__(self, brokers: Mapping[str, Broker | None] | None = None) -> None:
        self.brokers = dict(brokers or {})
        self.name_server: Broker | None = None
        self.routes_are_bad = False
        self.asked: list[tuple[str, RemotingCommand]] = []

    @property
    def name_servers(self) -> Sequence[str]:
        return (NAME_SERVER,)

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        self.asked.append((address, command))
        broker = self.brokers[address]
        if broker is None:
            raise ConnectFailedError(f"no connection to {address}", address)
        return broker(command)

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        answer = await self.request(address, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, address)
        return answer

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        raise AssertionError("administration sends no one-way requests")

    async def request_name_server(
        self, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        if self.routes_are_bad and self.name_server is not None:
            return self.name_server(command)
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return command.reply(body=encode_body(INFO, unquoted_int_keys=True))
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if command.fields["topic"].startswith("No"):
                return command.reply(ResponseCode.TOPIC_NOT_EXIST)
            return command.reply(body=encode_body(ROUTE))
        if self.name_server is None:
            raise AssertionError(f"unexpected {command}")
        return self.name_server(command)


class ScriptedAdmin(Admin):
    """Administration of a ScriptedCluster."""

    def __init__(self, brokers: Mapping[str, Broker | None] | None = None) -> None:
        super().__init__(NAME_SERVER, timeout_ms=1_000)
        self.cluster = ScriptedCluster(brokers)

    @property
    def session(self) -> Any:
        return self.cluster


def answering(body: object) -> Broker:
    return lambda command: command.reply(body=encode_body(body))


def refusing(code: ResponseCode, remark: str = "no") -> Broker:
    return lambda command: command.reply(code, remark)


# --- Asking several -------------------------------------------------------------------------------


async def test_brokers_that_do_not_know_the_client_are_skipped() -> None:
    unknown = ResponseCode.CONSUMER_NOT_ONLINE

    async def ask(address: str) -> str:
        if address == A:
            raise BrokerError(unknown, "who?", address)
        if address == "down":
            raise ConnectFailedError("down", address)
        return address

    assert await known_to([A, B], ask, unknown) == {B: B}
    with pytest.raises(BrokerError, match=r"who\?"):
        await known_to([A], ask, unknown)
    assert await known_to([A, B, "down"], ask, unknown) == {B: B}
    with pytest.raises(ConnectFailedError):
        await known_to([A, "down"], ask, unknown)
    with pytest.raises(PartialFailureError, match=r"who\?"):
        await known_to([A, B], ask)


# --- Finding brokers ------------------------------------------------------------------------------


async def test_brokers_are_found_by_name_address_and_cluster() -> None:
    admin = ScriptedAdmin()
    assert await broker_addresses(admin, broker="a") == {A: "a"}
    assert await broker_addresses(admin, broker="somewhere:1") == {"somewhere:1": ""}
    assert await broker_addresses(admin, cluster="two") == {B: "b"}
    assert await broker_addresses(admin) == {A: "a", B: "b"}
    everyone = await broker_addresses(admin, cluster="one", with_replicas=True)
    assert everyone == {A: "a", A_REPLICA: "a"}
    with pytest.raises(BrokerNotFoundError, match="nobody"):
        await broker_addresses(admin, broker="nobody")
    with pytest.raises(ClusterNotFoundError, match="empty, one, two"):
        await broker_addresses(admin, cluster="three")
    with pytest.raises(Exception, match="no master of empty is registered"):
        await broker_addresses(admin, cluster="empty")
    with pytest.raises(ConfigError, match="not both"):
        await broker_addresses(admin, broker="a", cluster="one")


async def test_broker_without_master_is_asked_at_a_replica() -> None:
    assert await broker_address(ScriptedAdmin(), "orphan") == "10.0.0.9:1"


# --- Merging --------------------------------------------------------------------------------------


def queue_table(broker: str, topic: str, values: Sequence[Mapping[str, int]]) -> str:
    """A table by queue as Java writes it, with objects as keys."""
    pairs = (
        f'{{"brokerName":"{broker}","queueId":{queue_id},"topic":"{topic}"}}:{json.dumps(value)}'
        for queue_id, value in enumerate(values)
    )
    return "{" + ",".join(pairs) + "}"


def stats_body(broker: str, max_offsets: Sequence[int]) -> Broker:
    table = queue_table(broker, "T", [{"minOffset": 1, "maxOffset": end} for end in max_offsets])
    body = f'{{"offsetTable":{table},"topicPutTps":1.5}}'.encode()
    return lambda command: command.reply(body=body)


async def test_stats_of_several_brokers_are_merged() -> None:
    admin = ScriptedAdmin({A: stats_body("a", [5, 6]), B: stats_body("b", [7])})
    stats = await admin.topic_stats("T")
    assert list(stats.queues) == [
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("T", "b", 0),
    ]
    assert (stats.put_tps, stats.message_count) == (3.0, 4 + 5 + 6)
    with pytest.raises(PartialFailureError, match=B) as failure:
        await ScriptedAdmin({A: stats_body("a", [5]), B: None}).topic_stats("T")
    assert list(failure.value.results) == [A]


async def test_progress_on_several_brokers_is_merged() -> None:
    def progress(broker: str, consumed: int) -> Broker:
        values = [{"brokerOffset": 10, "consumerOffset": consumed, "pullOffset": consumed + 1}]
        table = queue_table(broker, "T", values)
        body = f'{{"consumeTps":2.0,"offsetTable":{table}}}'.encode()
        return lambda command: command.reply(body=body)

    admin = ScriptedAdmin({A: progress("a", 4), B: progress("b", 9)})
    merged = await admin.group_progress("g")
    assert [queue.broker_name for queue in merged.queues] == ["a", "b"]
    assert (merged.consume_tps, merged.lag, merged.in_flight) == (4.0, 7, 2)
    assert merge_progress([]) == GroupProgress(0.0, {})


async def test_connections_to_several_brokers_are_listed_once() -> None:
    def connections(*clients: str) -> dict[str, object]:
        return {
            "connectionSet": [{"clientId": client, "clientAddr": "x"} for client in clients],
            "subscriptionTable": {"T": {"topic": "T"}},
            "consumeType": "CONSUME_PASSIVELY",
        }

    admin = ScriptedAdmin(
        {A: answering(connections("2", "1")), B: answering(connections("2", "3"))}
    )
    found = await admin.consumer_connections("g")
    assert [connection.client_id for connection in found.connection_set] == ["1", "2", "3"]
    producers = await admin.producer_connections("p", "T")
    assert [connection.client_id for connection in producers] == ["1", "2", "3"]
    offline = refusing(ResponseCode.CONSUMER_NOT_ONLINE)
    partly = ScriptedAdmin({A: offline, B: answering(connections("1"))})
    assert len((await partly.consumer_connections("g")).connection_set) == 1
    with pytest.raises(BrokerError):
        await ScriptedAdmin({A: offline, B: offline}).consumer_connections("g")


def message(
    offset: int, *, store_ms: int = 1, properties: bytes = b"", queue_id: int = 0
) -> ReceivedMessage:
    host = Host.parse(A)
    record = Record(
        topic="T",
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=offset,
        store_timestamp_ms=store_ms,
        store_host=host,
        born_timestamp_ms=1,
        born_host=host,
        body=b"body",
        properties=properties,
    )
    return ReceivedMessage.from_record(record, "a")


@pytest.mark.parametrize(
    ("consumed", "tags", "model", "kind"),
    [
        (None, (), MessageModel.CLUSTERING, TrackKind.NOT_CONSUMED_YET),
        (4, (), MessageModel.CLUSTERING, TrackKind.NOT_CONSUMED_YET),
        (5, (), MessageModel.CLUSTERING, TrackKind.CONSUMED),
        (5, ("x",), MessageModel.CLUSTERING, TrackKind.CONSUMED),
        (5, ("y",), MessageModel.CLUSTERING, TrackKind.CONSUMED_BUT_FILTERED),
        (5, (), MessageModel.BROADCASTING, TrackKind.BROADCASTING),
    ],
)
def test_message_track(
    consumed: int | None, tags: tuple[str, ...], model: MessageModel, kind: TrackKind
) -> None:
    online = ConsumerConnections(
        message_model=model,
        subscription_table={"T": SubscriptionData(topic="T", tags_set=list(tags))},
    )
    queues = {}
    if consumed is not None:
        queues[MessageQueue("T", "a", 0)] = ConsumeOffsets(consumer_offset=consumed)
    one = message(4, properties=b"TAGS\x01x\x02")
    assert track_kind(one, online, GroupProgress(0.0, queues)) is kind


def test_order_configuration_of_one_broker_is_merged() -> None:
    assert merge_order_conf(None, "a", 4) == "a:4"
    assert merge_order_conf("b:2;a:1", "a", 4) == "b:2;a:4"
    assert merge_order_conf("b:2", "a", 4) == "b:2;a:4"


def test_offsets_go_back_unless_forced() -> None:
    assert rollback_offset(3, 5, force=False) == 3
    assert rollback_offset(7, 5, force=False) == 5
    assert rollback_offset(7, 5, force=True) == 7


# --- Paging ---------------------------------------------------------------------------------------


class Pages:
    """A broker that returns its topics in pages of two; ``versions`` are those of the answers."""

    def __init__(self, count: int, versions: Sequence[int] = (), *, total: bool = True) -> None:
        self.names = [f"T{number}" for number in range(count)]
        self.versions = list(versions)
        self.has_total = total
        self.starts: list[int] = []

    def __call__(self, command: RemotingCommand) -> RemotingCommand:
        is_topics = command.code == RequestCode.GET_ALL_TOPIC_CONFIG
        start = int(command.fields["topicSeq" if is_topics else "groupSeq"])
        self.starts.append(start)
        version = DataVersion(counter=self.versions.pop(0) if self.versions else 1)
        page = self.names[start : start + 2] if self.has_total else self.names
        body: TopicConfigTable | SubscriptionGroupTable
        if is_topics:
            body = TopicConfigTable(
                data_version=version,
                topic_config_table={name: TopicConfig(topic_name=name) for name in page},
            )
        else:
            body = SubscriptionGroupTable(
                data_version=version,
                subscription_group_table={
                    name: SubscriptionGroupConfig(group_name=name) for name in page
                },
            )
        total = "totalTopicNum" if is_topics else "totalGroupNum"
        fields = {total: str(len(self.names))} if self.has_total else None
        return command.reply(ext_fields=fields, body=encode_body(body))


async def listed(pages: Pages) -> list[str]:
    """Read topics and groups from the same pages; both must be equal."""
    versions = list(pages.versions)
    topics = (await ScriptedAdmin({A: pages}).topic_configs(A)).topic_config_table
    starts, pages.starts, pages.versions = pages.starts, [], versions
    groups = (await ScriptedAdmin({A: pages}).group_configs(A)).subscription_group_table
    assert list(groups) == list(topics)
    assert pages.starts == starts
    return list(topics)


async def test_tables_are_read_page_by_page() -> None:
    pages = Pages(5)
    assert await listed(pages) == pages.names
    assert pages.starts == [0, 2, 4]


async def test_table_of_a_broker_without_pages_is_read_at_once() -> None:
    pages = Pages(5, total=False)
    assert await listed(pages) == pages.names
    assert pages.starts == [0]


async def test_changed_table_is_read_again() -> None:
    pages = Pages(3, versions=[1, 2, 2, 2])
    assert await listed(pages) == pages.names
    assert pages.starts == [0, 2, 0, 2]


async def test_incomplete_table_does_not_loop() -> None:
    def short(command: RemotingCommand) -> RemotingCommand:
        table = TopicConfigTable(topic_config_table={"T": TopicConfig(topic_name="T")})
        return command.reply(ext_fields={"totalTopicNum": "9"}, body=encode_body(table))

    admin = ScriptedAdmin({A: short})
    assert list((await admin.topic_configs(A)).topic_config_table) == ["T"]
    assert len(admin.cluster.asked) == 2


# --- Bad answers ----------------------------------------------------------------------------------

ARGUMENTS: dict[str, object] = {
    "topic": "T",
    "group": "g",
    "broker": A,
    "queue": MessageQueue("T", "a", 0),
    "offset": 1,
    "offsets": {MessageQueue("T", "a", 0): 1},
    "timestamp_ms": 5,
    "message_id": "0A000001" + "00002A9F" + "0" * 16,
    "offset_message_id": "0A000001" + "00002A9F" + "0" * 16,
    "queue_offset": 0,
    "index": 0,
    "properties": {"a": "b"},
    "thresholds": {"g": 1},
    "configs": [],
    "config": TopicConfig(topic_name="T"),
    "mapping": TopicQueueMappingDetail(),
    "permission": Permission.READ,
    "mode": 1,
    "found": TopicRoute(),
    "kinds": ["topics"],
    "acl_info": AclInfo(subject="User:ann"),
    "key": "key",
    "controller_addresses": [A],
    "controller_address": A,
    "container_address": A,
    "broker_names": ["a"],
    "broker_id": 1,
    "physical_offset": 1,
    "queues": 1,
    "addresses": ["10.*"],
    "cluster": "one",
}
# The other methods take text.
EXAMPLES = {"key": AccessKey(access_key="key")}

BAD_ANSWERS: list[tuple[dict[str, str] | None, bytes]] = [
    (None, b""),
    (None, b"null"),
    (None, b"[]"),
    (None, b"{"),
    (None, b'"text"'),
    (None, b"\xff\x00\xfe"),
    (None, b"[" * 5_000),
    (None, b'{"offsetTable":{"a":"b"},"table":[1],"topicList":{"a":1},"groupList":7}'),
    (None, b'{"consumerTable":3,"connectionSet":[1],"data":{"g":3},"consumeStatsList":[3]}'),
    (None, b'{"topicConfigTable":{"T":3},"subscriptionGroupTable":[],"mappingDetail":5}'),
    ({"offset": "x", "timestamp": "", "version": "{"}, b"key=\\uXYZW"),
    ({"offset": "9" * 30, "totalTopicNum": "-1", "totalGroupNum": "-1"}, b'{"$ref":"$"}'),
    ({"indexLastUpdateTimestamp": "1", "indexLastUpdatePhyoffset": "1"}, b"\x00\x00\x00\x05abc"),
    ({"wipeTopicCount": "many", "addTopicCount": "1e9", "value": "v"}, b"\x7f\xff\xff\xff" * 9),
]


def admin_methods() -> dict[str, Callable[..., object]]:
    return {
        name: method
        for name, method in inspect.getmembers(Admin, inspect.isfunction)
        if not name.startswith("_") and name not in ("start", "stop")
    }


def arguments_of(name: str, method: Callable[..., object]) -> dict[str, object]:
    given: dict[str, object] = {}
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.default is not inspect.Parameter.empty:
            if parameter.name == "cluster" and "broker" in inspect.signature(method).parameters:
                given["cluster"] = "one"
            continue
        if name == "update_access_key":
            given[parameter.name] = EXAMPLES[parameter.name]
        elif name == "set_request_mode" and parameter.name == "mode":
            given["mode"] = RequestMode.POP
        elif parameter.name == "one":
            given["one"] = message(1)
        else:
            given[parameter.name] = ARGUMENTS.get(parameter.name, "text")
    return given


@pytest.mark.parametrize("name", sorted(admin_methods()))
async def test_bad_answers_raise_only_goddard_errors(name: str) -> None:
    method = getattr(Admin, name)
    arguments = arguments_of(name, method)
    answered = 0
    for fields, body in BAD_ANSWERS:

        def answer(
            command: RemotingCommand,
            fields: dict[str, str] | None = fields,
            body: bytes = body,
        ) -> RemotingCommand:
            nonlocal answered
            answered += 1
            return command.reply(ext_fields=fields, body=body)

        admin = ScriptedAdmin(dict.fromkeys((A, B, A_REPLICA, NAME_SERVER), answer))
        admin.cluster.name_server = answer
        with contextlib.suppress(GoddardError):
            await method(admin, **arguments)
        # Routes and clusters are bad answers, too.
        admin.cluster.routes_are_bad = True
        with contextlib.suppress(GoddardError):
            await method(admin, **arguments)
    assert answered >= len(BAD_ANSWERS)


# --- The interface --------------------------------------------------------------------------------

# The request codes of administration; brokers forward 307 and 309 to clients.
ADMIN_CODES = {
    *(11, 12, 14, 15, 17, 18, 21, 25, 26, 28, 29, 30, 31, 32, 33, 43, 45, 100, 101, 102),
    *(105, 106, 200, 201, 202, 203, 204, 205, 206, 207, 208, 215, 216, 217, 219, 222, 223, 224),
    *(225, 300, 303, 304, 305, 306, 307, 308, 309, 311, 312, 313, 314, 315, 316, 317, 318),
    *(319, 321, 323, 327, 328, 329, 343, 345, 351, 352, 353, 354, 355, 401, 513, 901, 902, 903),
    *(907, 908, 1002, 1005, 1006, 1007, 1009, 1010, 1011, 2001, 2002, 2003, 2004, 5001),
    *range(3001, 3011),
    *(50, 51, 52, 53, 54),
    200056,
}


def test_guide_names_exactly_the_methods() -> None:
    page = (Path(__file__).parents[4] / "docs" / "guide" / "mqadmin.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[2])}
    assert named == set(admin_methods())


def test_methods_are_coroutines_and_name_their_requests() -> None:
    codes: set[int] = set()
    for name, method in admin_methods().items():
        assert inspect.iscoroutinefunction(method), name
        doc = inspect.getdoc(method) or ""
        brackets = " ".join(re.findall(r"\[([^\]]+)\]", doc))
        assert brackets, f"{name} does not say which request it makes"
        codes |= {int(code) for code in re.findall(r"(?<![\d.])\d{2,6}(?![\d.])", brackets)}
    assert codes >= ADMIN_CODES
    assert all(code in RequestCode._value2member_map_ for code in codes)
