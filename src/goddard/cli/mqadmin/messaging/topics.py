"""Verbs about topics."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.java_text import (
    boolean,
    front,
    millis_text,
    number_text,
    pretty_json,
    text_or_null,
    topic_text,
)
from goddard.cli.mqadmin.options import Options
from goddard.cli.terminal.mistakes import FailedError
from goddard.client.admin.values import BrokerPlace
from goddard.client.consume.allocation import Averagely
from goddard.client.errors import NoRouteError
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, ProtocolError
from goddard.protocol.bodies import TopicConfig, decode_body
from goddard.protocol.codes import MASTER_ID, Permission
from goddard.protocol.names import is_dlq_topic, is_retry_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

T = TypeVar("T")

_MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_ALL_BITS: Final = 15
_DEFAULT_QUEUES: Final = 8
_READ_WRITE: Final = 6
_UNIT: Final = 1
_UNIT_SUBSCRIBED: Final = 2
_ROUTE: Final = "%-45s %-32s %-50s %-10s %-11s %-5s"
_ROUTE_WIDTH: Final = 158
_STATUS: Final = "%-32s  %-4s  %-20s  %-20s    %s"
_QUEUE_LINE: Final = "======================================"


def parse_attributes(options: Options, name: str) -> dict[str, str | None]:
    """``+name=value,-name``: values to set, and None for those to remove."""
    found: dict[str, str | None] = {}
    for part in options.words(name):
        key, equals, value = part.partition("=")
        if key.startswith("+") and equals and len(key) > 1:
            found[key[1:]] = value
        elif key.startswith("-") and not equals and len(key) > 1:
            found[key[1:]] = None
        else:
            raise options.wrong(name, f"takes +name=value or -name, not {part!r}")
    return found


async def update_topic(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    attributes = parse_attributes(options, "a")
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=options.number("r", _DEFAULT_QUEUES, least=0),
        write_queue_nums=options.number("w", _DEFAULT_QUEUES, least=0),
        perm=options.number("p", _READ_WRITE),
        order=options.boolean("o"),
        topic_sys_flag=options.boolean("u") * _UNIT | options.boolean("s") * _UNIT_SUBSCRIBED,
        attributes={
            f"-{key}" if value is None else f"+{key}": value or ""
            for key, value in attributes.items()
        },
    )
    change = call.admin.create_topic(
        topic,
        **call.place(),
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=permission_of(options, "p", _READ_WRITE),
        unit=options.boolean("u"),
        unit_subscribed=options.boolean("s"),
        order=config.order,
        attributes=attributes,
    )
    addresses = await call.changed(change, lambda one: f"create topic to {one} success.")
    if config.order:
        names = sorted([await call.admin.broker_name(address) for address in addresses])
        conf = ";".join(f"{name}:{config.write_queue_nums}" for name in names)
        where = "cluster" if "c" in options else "broker"
        call.line(f"set {where} orderConf. isOrder=true, orderConf=[{conf}]")
    call.line(topic_text(config))


def permission_of(options: Options, name: str, default: int = 0) -> Permission:
    """The bits of a permission."""
    bits = options.number(name, default)
    if not 0 <= bits <= _ALL_BITS:
        raise options.wrong(name, f"takes 2 (write), 4 (read) or 6 (both), not {bits}")
    return Permission(bits)


async def update_topic_list(call: Call) -> None:
    configs = read_file(call.options, "f", list[TopicConfig])
    change = call.admin.create_topics(configs, **call.place())
    await call.changed(
        change,
        lambda one: (
            f"submit batch of topic config to {one} success, please check the result later."
        ),
    )


def read_file(options: Options, name: str, kind: type[T]) -> T:
    """The value in a JSON file; ConfigError if the file has something else."""
    path = Path(options.text(name))
    try:
        return decode_body(path.read_bytes(), kind, max_dialect_bytes=_MAX_FILE_BYTES)
    except ProtocolError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error


async def delete_topic(call: Call) -> None:
    topic, cluster = call.options.text("t"), call.options.text("c")
    await call.admin.delete_topic(topic, cluster=cluster)
    call.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
    call.line(f"delete topic [{topic}] from NameServer success.")


async def update_topic_permission(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    permission = permission_of(options, "p")
    route = await call.admin.topic_route(topic)
    old = {data.broker_name: data.perm for data in route.queue_datas}
    masters = {
        data.broker_addrs[MASTER_ID]: old.get(data.broker_name, 0)
        for data in route.broker_datas
        if MASTER_ID in data.broker_addrs
    }
    addresses = await call.masters()
    if "b" in options and addresses[0] not in masters:
        raise FailedError(f"{addresses[0]} is not a master of topic {topic}")
    if "b" in options and masters[addresses[0]] == permission:
        call.line("new perm equals to the old one!")
        return
    chosen = [address for address in addresses if address in masters]

    async def change(address: str) -> None:
        await call.admin.set_topic_permission(topic, permission, broker=address)

    await call.on_each(
        chosen,
        change,
        lambda one: f"update topic perm from {masters[one]} to {int(permission)} in {one} success.",
    )
    if "b" in options:
        config = await call.admin.topic_config(topic, broker=addresses[0])
        call.line(f"{topic_text(config)}.")


async def topic_route(call: Call) -> None:
    route = await call.admin.topic_route(call.options.text("t"))
    if "l" not in call.options:
        call.line(pretty_json(msgspec.to_builtins(route)))
        return
    queues = {data.broker_name: data for data in route.queue_datas}
    call.row(
        _ROUTE, "#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"
    )
    for data in sorted(route.broker_datas, key=lambda one: one.broker_name):
        own = queues[data.broker_name]
        addresses = ", ".join(
            f"{number}={one}" for number, one in sorted(data.broker_addrs.items())
        )
        read, write = own.read_queue_nums, own.write_queue_nums
        call.row(_ROUTE, data.cluster, data.broker_name, f"{{{addresses}}}", read, write, own.perm)
    call.line("-" * _ROUTE_WIDTH)
    reads = sum(queues[data.broker_name].read_queue_nums for data in route.broker_datas)
    writes = sum(queues[data.broker_name].write_queue_nums for data in route.broker_datas)
    call.row(_ROUTE, "Total:", len(queues), "", reads, writes, "")


async def topic_status(call: Call) -> None:
    topic, cluster = call.options.text("t"), call.options.get("c")
    stats = await call.admin.topic_stats(topic, route_topic=cluster)
    if not stats.queues and cluster is None:
        raise FailedError(f"the brokers of topic {topic} have no queues of it")
    call.row(_STATUS, "#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated")
    for queue, at in stats.queues.items():
        updated = millis_text(at.last_update_timestamp) if at.last_update_timestamp > 0 else ""
        name = front(queue.broker_name, 32)
        call.row(_STATUS, name, queue.queue_id, at.min_offset, at.max_offset, updated)
    call.line()
    call.line(f"Topic Put TPS: {number_text(stats.put_tps)}")


async def topic_cluster_list(call: Call) -> None:
    for name in await call.admin.topic_clusters(call.options.text("t")):
        call.line(name)


async def topic_list(call: Call) -> None:
    topics = await call.admin.topics()
    if "c" not in call.options:
        call.text("".join(f"{topic}\n" for topic in topics))
        return
    topics = [one for one in topics if not (is_retry_topic(one) or is_dlq_topic(one))]
    places = await _places(call.admin)

    async def groups_of(topic: str) -> list[str]:
        addresses = [place.address for place in places.get(topic, [])]
        return await call.admin.topic_groups(topic, brokers=addresses) if addresses else []

    async def cluster_of(topic: str) -> str:
        if topic in places:
            return min(place.cluster for place in places[topic])
        try:  # deleted in the brokers, but the name server still has its route
            return (await call.admin.topic_clusters(topic))[0]
        except NoRouteError:
            return ""

    groups = await in_parallel(topics, groups_of)
    clusters = await in_parallel(topics, cluster_of)
    call.row("%-20s  %-48s  %-48s", "#Cluster Name", "#Topic", "#Consumer Group")
    for topic, cluster, names in zip(topics, clusters, groups, strict=True):
        for group in names or [""]:
            call.row("%-20s  %-64s  %-64s", front(cluster, 20), front(topic, 64), front(group, 64))


async def _places(admin: "Admin") -> dict[str, list[BrokerPlace]]:
    """The masters that have each topic."""
    masters = [place for place in await admin.brokers() if place.is_master]
    tables = await in_parallel(masters, lambda place: admin.topic_configs(place.address))
    found: dict[str, list[BrokerPlace]] = {}
    for place, table in zip(masters, tables, strict=True):
        for topic in table.topic_config_table:
            found.setdefault(topic, []).append(place)
    return found


async def update_order_conf(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    method = options.choice("m", ("get", "put", "delete"))
    if method == "get":
        conf = await call.admin.order_conf(topic)
        if conf is None:
            raise FailedError(f"topic {topic} has no orderConf")
        call.text(f"get orderConf success. topic=[{topic}], orderConf=[{conf}] ")
    elif method == "put":
        conf = options.text("v")
        if not conf:
            raise options.wrong("v", "must be given with -m put")
        await call.admin.set_order_conf(topic, conf)
        call.text(f"update orderConf success. topic=[{topic}], orderConf=[{conf}]")
    else:
        await call.admin.delete_order_conf(topic)
        call.text(f"delete orderConf success. topic=[{topic}]")


async def allocate_queues(call: Call) -> None:
    names = call.options.words("i")
    queues = await call.admin.topic_queues(call.options.text("t"))
    shares = {
        name: [
            msgspec.to_builtins(queue.to_body())
            for queue in Averagely().allocate("", name, queues, names)
        ]
        for name in names
    }
    call.line(json.dumps({"result": shares}, ensure_ascii=False, separators=(",", ":")))


async def query_consume_queue(call: Call) -> None:
    options = call.options
    topic, index = options.text("t"), options.number("i")
    broker = options.get("b")
    if broker is None:
        broker = (await call.admin.topic_route(topic)).broker_datas[0].broker_addrs[MASTER_ID]
    answer = await call.admin.consume_queue(
        MessageQueue(topic, "", options.number("q", least=0)),
        index=index,
        count=options.number("c", 10, least=0),
        group=options.get("g"),
        broker=broker,
    )
    if answer.subscription_data is not None:
        call.line("Subscription data: ")
        call.line(pretty_json(msgspec.to_builtins(answer.subscription_data)))
        call.line(_QUEUE_LINE)
    if answer.filter_data is not None:
        call.line(f"Filter data: \n{answer.filter_data}")
        call.line(_QUEUE_LINE)
    call.line(f"Queue data: \nmax: {answer.max_queue_index}, min: {answer.min_queue_index}")
    call.line(_QUEUE_LINE)
    for number, one in enumerate(answer.queue_data, index):
        call.line(f"idx: {number}")
        call.line(
            f"ConsumeQueueData{{physicOffset={one.physic_offset}, physicSize={one.physic_size}, "
            f"tagsCode={one.tags_code}, extendDataJson='{text_or_null(one.extend_data_json)}', "
            f"bitMap='{text_or_null(one.bit_map)}', eval={boolean(one.eval)}, "
            f"msg='{text_or_null(one.msg)}'}}"
        )
        call.line(_QUEUE_LINE)
