"""Administration of topics: making and deleting them, where they live, what they hold.

Every function is a method of ``Admin``; see there. A docstring's brackets give the verb of mqadmin
and the request code.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from goddard.client import broker_api
from goddard.client.admin.brokers import broker_name
from goddard.client.admin.checks import check_topic_config
from goddard.client.admin.name_servers import (
    ORDER_NAMESPACE,
    delete_kv,
    set_broker_order_conf,
    set_order_conf,
)
from goddard.client.admin.requests import (
    PAGE_SIZE,
    AdminLink,
    addresses_of,
    ask,
    ask_each,
    ask_name_server,
    broker_address,
    broker_addresses,
    by_queue,
    chosen_brokers,
    each,
    in_pages,
    is_address,
    name_servers,
    one_of,
    route,
    route_addresses,
)
from goddard.client.admin.values import TopicStats
from goddard.client.checks import several
from goddard.client.errors import BrokerError
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.protocol.bodies import (
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicQueueMappingDetail,
    TopicRoute,
    encode_body,
)
from goddard.protocol.bodies_admin import (
    ConsumeQueueAnswer,
    GroupList,
    TopicConfigAndMapping,
    TopicConfigList,
    TopicOffset,
    TopicStatsTable,
)
from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.headers_admin import (
    CreateTopicListRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    GetAllTopicConfigRequest,
    GetAllTopicConfigResponse,
    GetTopicConfigRequest,
    GetTopicStatsRequest,
    QueryConsumeQueueRequest,
    QueryTopicConsumersRequest,
)
from goddard.protocol.headers_cluster import (
    DeleteTopicInNameServerRequest,
    GetTopicsByClusterRequest,
    RegisterTopicRequest,
)
from goddard.protocol.names import AUTO_CREATE_TOPIC

READ_WRITE: Final = Permission.READ | Permission.WRITE
_UNIT: Final = 1
_UNIT_SUBSCRIBED: Final = 2


# --- Making and deleting --------------------------------------------------------------------------


def format_attributes(changes: Mapping[str, str | None]) -> str:
    """Attributes as a request has them: ``+key=value`` sets one, ``-key`` (None) takes it away."""
    for key, value in changes.items():
        if not key or any(mark in key + (value or "") for mark in ",="):
            raise ConfigError(f"the attribute {key!r} or its value is empty or has a comma or =")
    return ",".join(
        f"-{key}" if value is None else f"+{key}={value}" for key, value in changes.items()
    )


def _create_request(
    config: TopicConfig, attributes: Mapping[str, str | None]
) -> CreateTopicRequest:
    return CreateTopicRequest(
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=format_attributes(attributes),
    )


async def create_topic(
    admin: AdminLink,
    topic: str,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    queues: int = 8,
    read_queues: int | None = None,
    write_queues: int | None = None,
    permission: Permission = READ_WRITE,
    order: bool = False,
    unit: bool = False,
    unit_subscribed: bool = False,
    attributes: Mapping[str, str | None] | None = None,
) -> list[str]:
    """Make a topic, or change it, on a broker or on every master of a cluster [updateTopic, 17].

    ``queues`` is the number on each broker, 1 to 65,535; ``read_queues`` and ``write_queues`` are
    for changing it without losing messages. ``attributes`` sets some
    (``{"message.type": "FIFO"}``) and takes away those of None. For an ordered topic the name
    servers are told its queues as well.

    Gives the addresses of the brokers that have it now.
    """
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=queues if read_queues is None else read_queues,
        write_queue_nums=queues if write_queues is None else write_queues,
        perm=int(permission),
        order=order,
        topic_sys_flag=unit * _UNIT | unit_subscribed * _UNIT_SUBSCRIBED,
    )
    check_topic_config(config)
    header = _create_request(config, attributes or {})
    found = await chosen_brokers(admin, broker, cluster)
    done = await ask_each(admin, found, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    if order and cluster is not None:
        names = sorted(set(found.values()))
        queue_counts = ";".join(f"{name}:{config.write_queue_nums}" for name in names)
        await set_order_conf(admin, topic, queue_counts)
    elif order and broker is not None:
        name = broker if not is_address(broker) else await broker_name(admin, broker)
        await set_broker_order_conf(admin, topic, name, config.write_queue_nums)
    return done


async def create_topics(
    admin: AdminLink,
    configs: Iterable[TopicConfig],
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Make or change several topics at once [updateTopicList, 18; from 5.2 on]."""
    wanted = several("configs", configs, TopicConfig)
    for config in wanted:
        check_topic_config(config)
    body = encode_body(TopicConfigList(topic_config_list=wanted))
    found = await chosen_brokers(admin, broker, cluster)
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    return await ask_each(admin, found, code, CreateTopicListRequest(), body)


async def create_static_topic(
    admin: AdminLink,
    broker: str,
    config: TopicConfig,
    mapping: TopicQueueMappingDetail,
    *,
    force: bool = False,
) -> None:
    """Make a static topic, or move its queues, on one broker [updateStaticTopic, 513]."""
    check_topic_config(config)
    header = _create_request(config, {})
    header.force = force
    await ask(
        admin,
        await broker_address(admin, broker),
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        header,
        encode_body(mapping, unquoted_int_keys=True),
    )


async def set_topic_permission(
    admin: AdminLink,
    topic: str,
    permission: Permission,
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Let a topic be read, written, both [updateTopicPerm, 17].

    On the broker, on the cluster, or wherever the topic is. All else of the topic stays, which
    mqadmin does not keep.
    """
    one_of(broker, cluster)
    if broker is not None:
        addresses = [await broker_address(admin, broker)]
    else:
        addresses = list(route_addresses(await route(admin, topic), cluster))

    async def change(address: str) -> None:
        known = await topic_config(admin, topic, broker=address)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=known.read_queue_nums,
            write_queue_nums=known.write_queue_nums,
            perm=int(permission),
            order=known.order,
            topic_sys_flag=known.topic_sys_flag,
            topic_filter_type=known.topic_filter_type,
        )
        header = _create_request(config, {})
        await ask(admin, address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    return list(await each(addresses, change))


async def delete_topic(admin: AdminLink, topic: str, *, cluster: str) -> None:
    """Delete a topic from all brokers of a cluster and from the name servers [deleteTopic, 215,
    216, 102]."""
    found = await broker_addresses(admin, cluster=cluster, with_replicas=True)
    await ask_each(
        admin, found, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=topic)
    )
    await delete_topic_in_name_servers(admin, topic, cluster=cluster)
    await delete_kv(admin, ORDER_NAMESPACE, topic)


async def delete_topic_in_broker(admin: AdminLink, topic: str, broker: str) -> None:
    """Delete a topic from one broker; the name servers learn of it from the broker [215]."""
    address = await broker_address(admin, broker)
    header = DeleteTopicRequest(topic=topic)
    await ask(admin, address, RequestCode.DELETE_TOPIC_IN_BROKER, header)


async def delete_topic_in_name_servers(
    admin: AdminLink, topic: str, *, cluster: str | None = None
) -> None:
    """Have the name servers forget a topic, of one cluster or of all [216].

    Name servers before 5.0 forget it of all.
    """
    header = DeleteTopicInNameServerRequest(topic=topic, cluster_name=cluster)
    await ask_each(admin, name_servers(admin), RequestCode.DELETE_TOPIC_IN_NAMESRV, header)


async def register_topic(admin: AdminLink, topic: str, found: TopicRoute) -> None:
    """Tell every name server where a topic lives, until the brokers say otherwise [217]."""
    header = RegisterTopicRequest(topic=topic)
    body = encode_body(found)
    await ask_each(admin, name_servers(admin), RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, body)


# --- Lists ----------------------------------------------------------------------------------------


async def topics(admin: AdminLink, *, cluster: str | None = None) -> list[str]:
    """Every topic that the name server knows, or those of a cluster, sorted [topicList, 206 or
    224]."""
    if cluster is None:
        response = await ask_name_server(admin, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    else:
        header = GetTopicsByClusterRequest(cluster=cluster)
        response = await ask_name_server(admin, RequestCode.GET_TOPICS_BY_CLUSTER, header)
    return sorted((await broker_api.read(response, TopicList)).topic_list)


async def system_topics(admin: AdminLink) -> list[str]:
    """The topics that RocketMQ itself uses, of the name server and of one broker [304, 305]."""
    response = await ask_name_server(admin, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    found = await broker_api.read(response, TopicList)
    names = set(found.topic_list)
    if found.broker_addr:
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        response = await ask(admin, found.broker_addr, code)
        names.update((await broker_api.read(response, TopicList)).topic_list)
    return sorted(names)


async def unit_topics(admin: AdminLink) -> list[str]:
    """Topics marked as of a unit [311]."""
    response = await ask_name_server(admin, RequestCode.GET_UNIT_TOPIC_LIST)
    return sorted((await broker_api.read(response, TopicList)).topic_list)


async def unit_subscribed_topics(admin: AdminLink, *, without_unit: bool = False) -> list[str]:
    """Topics that a unit subscribes to [312], or only those that are not of a unit [313]."""
    code = (
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
        if without_unit
        else RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST
    )
    response = await ask_name_server(admin, code)
    return sorted((await broker_api.read(response, TopicList)).topic_list)


# --- One topic ------------------------------------------------------------------------------------


async def topic_route(admin: AdminLink, topic: str) -> TopicRoute:
    """Where a topic lives [topicRoute, 105]; NoRouteError if nowhere."""
    return await route(admin, topic)


async def topic_clusters(admin: AdminLink, topic: str) -> list[str]:
    """The clusters that have a topic, sorted [topicClusterList, 105]."""
    return sorted({data.cluster for data in (await route(admin, topic)).broker_datas})


async def topic_stats(admin: AdminLink, topic: str, *, broker: str | None = None) -> TopicStats:
    """The ends of a topic's queues, on all brokers or one [topicStatus, 202]."""
    header = GetTopicStatsRequest(topic=topic)

    async def of_one(address: str) -> TopicStatsTable:
        response = await ask(admin, address, RequestCode.GET_TOPIC_STATS_INFO, header)
        return await broker_api.read(response, TopicStatsTable)

    answers = await each(await addresses_of(admin, [topic], broker), of_one)
    return merge_topic_stats(answers.values())


def merge_topic_stats(answers: Iterable[TopicStatsTable]) -> TopicStats:
    """The statistics of several brokers as one, queues sorted."""
    put_tps = 0.0
    queues: dict[MessageQueue, TopicOffset] = {}
    for answer in answers:
        put_tps += answer.topic_put_tps
        queues.update(by_queue(answer.offset_table))
    return TopicStats(put_tps, dict(sorted(queues.items(), key=lambda item: item[0])))


async def topic_config(admin: AdminLink, topic: str, *, broker: str) -> TopicConfigAndMapping:
    """A topic's settings on a broker [351; of a broker before 5.0: 21]."""
    address = await broker_address(admin, broker)
    header = GetTopicConfigRequest(topic=topic)
    try:
        response = await ask(admin, address, RequestCode.GET_TOPIC_CONFIG, header)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        table = (await topic_configs(admin, address)).topic_config_table
        known = table.get(topic)
        if known is None:
            text = f"No topic in this broker. topic: {topic}"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text, address) from error
        return TopicConfigAndMapping(
            topic_name=topic,
            read_queue_nums=known.read_queue_nums,
            write_queue_nums=known.write_queue_nums,
            perm=known.perm,
            order=known.order,
            topic_sys_flag=known.topic_sys_flag,
            topic_filter_type=known.topic_filter_type,
        )
    return await broker_api.read(response, TopicConfigAndMapping)


async def topic_configs(admin: AdminLink, broker: str) -> TopicConfigTable:
    """The settings of every topic of a broker, the system's among them [exportMetadata, 21]."""
    address = await broker_address(admin, broker)

    async def read_page(first: int, version: str) -> tuple[TopicConfigTable, int | None]:
        header = GetAllTopicConfigRequest(
            topic_seq=first, data_version=version, max_topic_num=PAGE_SIZE
        )
        response = await ask(admin, address, RequestCode.GET_ALL_TOPIC_CONFIG, header)
        page = await broker_api.read(response, TopicConfigTable)
        return page, GetAllTopicConfigResponse.decode(response.fields).total_topic_num

    def join(earlier: TopicConfigTable, page: TopicConfigTable) -> int:
        page.topic_config_table = earlier.topic_config_table | page.topic_config_table
        return len(page.topic_config_table)

    return await in_pages(TopicConfigTable, read_page, join)


async def topic_groups(admin: AdminLink, topic: str) -> list[str]:
    """The groups that consume a topic or have offsets for it, on any broker, sorted [300]."""
    header = QueryTopicConsumersRequest(topic=topic)

    async def of_one(address: str) -> list[str]:
        response = await ask(admin, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return (await broker_api.read(response, GroupList)).group_list

    answers = await each(route_addresses(await route(admin, topic)), of_one)
    return sorted({group for groups in answers.values() for group in groups})


async def consume_queue(
    admin: AdminLink,
    queue: MessageQueue,
    *,
    index: int,
    count: int = 10,
    group: str | None = None,
    broker: str | None = None,
) -> ConsumeQueueAnswer:
    """Entries of a consume queue from an offset on [queryCq, 321].

    With a group each entry says whether the group's filter takes it.
    """
    address = await broker_address(admin, broker or queue.broker_name)
    header = QueryConsumeQueueRequest(
        topic=queue.topic, queue_id=queue.queue_id, index=index, count=count, consumer_group=group
    )
    response = await ask(admin, address, RequestCode.QUERY_CONSUME_QUEUE, header)
    return await broker_api.read(response, ConsumeQueueAnswer)


async def topic_queues(admin: AdminLink, topic: str) -> list[MessageQueue]:
    """The queues of a topic that can be read, sorted [105]."""
    found = await route(admin, topic)
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in found.queue_datas
        if data.perm & Permission.READ
        for queue_id in range(data.read_queue_nums)
    )
