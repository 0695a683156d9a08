"""Administration of topics: create, change and delete them, their brokers and their queues.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from goddard.client import broker_api, queries
from goddard.client.admin.brokers import BrokerMethods
from goddard.client.admin.checks import check_topic_config
from goddard.client.admin.name_servers import (
    ORDER_NAMESPACE,
    NameServerMethods,
)
from goddard.client.admin.requests import (
    PAGE_SIZE,
    addresses_of,
    ask,
    ask_each,
    ask_name_server,
    broker_address,
    broker_addresses,
    by_queue,
    check_one_place,
    chosen_brokers,
    in_pages,
    is_address,
    name_servers,
)
from goddard.client.admin.values import TopicStats
from goddard.client.arguments import Count, Offset, QueueCount, QueueCountOrNone
from goddard.client.errors import BrokerError, NoRouteError
from goddard.client.queries import each, route, route_addresses, topic_header
from goddard.client.values import MessageQueue
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
from goddard.protocol.headers.admin import (
    CreateTopicListRequest,
    DeleteTopicRequest,
    GetAllTopicConfigRequest,
    GetAllTopicConfigResponse,
    GetTopicConfigRequest,
    GetTopicStatsRequest,
    QueryConsumeQueueRequest,
    QueryTopicConsumersRequest,
)
from goddard.protocol.headers.cluster import (
    DeleteTopicInNameServerRequest,
    GetTopicsByClusterRequest,
    RegisterTopicRequest,
)

READ_WRITE: Final = Permission.READ | Permission.WRITE
_UNIT: Final = 1
_UNIT_SUBSCRIBED: Final = 2


def merge_topic_stats(answers: Iterable[TopicStatsTable]) -> TopicStats:
    """Merge the statistics of several brokers; queues are sorted."""
    put_tps = 0.0
    queues: dict[MessageQueue, TopicOffset] = {}
    for answer in answers:
        put_tps += answer.topic_put_tps
        queues.update(by_queue(answer.offset_table))
    return TopicStats(put_tps, dict(sorted(queues.items(), key=lambda item: item[0])))


class TopicMethods(BrokerMethods, NameServerMethods):
    """Create, change, list and delete topics, and read their state."""

    async def create_topic(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        queues: QueueCount = 8,
        read_queues: QueueCountOrNone | None = None,
        write_queues: QueueCountOrNone | None = None,
        permission: Permission = READ_WRITE,
        order: bool = False,
        unit: bool = False,
        unit_subscribed: bool = False,
        attributes: Mapping[str, str | None] | None = None,
    ) -> list[str]:
        """Create or change a topic on a broker or on every master of a cluster [updateTopic, 17].

        ``queues`` is the number of queues on each broker, 1 to 65,535. ``read_queues`` and
        ``write_queues`` change this number without losing messages. ``attributes`` sets attributes
        (``{"message.type": "FIFO"}``) and removes those whose value is None. For an ordered topic,
        its queues are also written to the name servers.

        Returns the addresses of the brokers that have the topic now.
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
        header = topic_header(config, attributes or {})
        found = await chosen_brokers(self, broker, cluster)
        done = await queries.create_topic(self, found, header)
        if order and cluster is not None:
            names = sorted(set(found.values()))
            queue_counts = ";".join(f"{name}:{config.write_queue_nums}" for name in names)
            await self.set_order_conf(topic, queue_counts)
        elif order and broker is not None:
            name = broker if not is_address(broker) else await self.broker_name(broker)
            await self.set_broker_order_conf(topic, name, config.write_queue_nums)
        return done

    async def create_topics(
        self,
        configs: Iterable[TopicConfig],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create or change several topics at once [updateTopicList, 18; from 5.2 on]."""
        wanted = list(configs)
        for config in wanted:
            check_topic_config(config)
        body = encode_body(TopicConfigList(topic_config_list=wanted))
        found = await chosen_brokers(self, broker, cluster)
        code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        return await ask_each(self, found, code, CreateTopicListRequest(), body)

    async def create_static_topic(
        self,
        broker: str,
        config: TopicConfig,
        mapping: TopicQueueMappingDetail,
        *,
        force: bool = False,
    ) -> None:
        """Create a static topic, or move its queues, on one broker [updateStaticTopic, 513]."""
        check_topic_config(config)
        header = topic_header(config, {})
        header.force = force
        await ask(
            self,
            await broker_address(self, broker),
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
            header,
            encode_body(mapping, unquoted_int_keys=True),
        )

    async def set_topic_permission(
        self,
        topic: str,
        permission: Permission,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Set whether a topic can be read, written or both [updateTopicPerm, 17].

        The change applies to the broker, to the cluster, or else to all brokers of the topic. All
        other settings of the topic are kept; mqadmin does not keep them.
        """
        check_one_place(broker, cluster)
        if broker is not None:
            addresses = [await broker_address(self, broker)]
        else:
            addresses = list(route_addresses(await route(self, topic), cluster))

        async def change(address: str) -> None:
            known = await self.topic_config(topic, broker=address)
            config = TopicConfig(
                topic_name=topic,
                read_queue_nums=known.read_queue_nums,
                write_queue_nums=known.write_queue_nums,
                perm=int(permission),
                order=known.order,
                topic_sys_flag=known.topic_sys_flag,
                topic_filter_type=known.topic_filter_type,
            )
            await queries.create_topic(self, [address], topic_header(config, {}))

        return list(await each(addresses, change))

    async def delete_topic(self, topic: str, *, cluster: str) -> None:
        """Delete a topic from all brokers of a cluster and from the name servers [deleteTopic; 215,
        216, 102]. NoRouteError if there is no such topic.
        """
        if topic not in await self.topics():
            raise NoRouteError(topic)
        found = await broker_addresses(self, cluster=cluster, with_replicas=True)
        await ask_each(
            self, found, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=topic)
        )
        await self.delete_topic_in_name_servers(topic, cluster=cluster)
        await self.delete_kv(ORDER_NAMESPACE, topic)

    async def delete_topic_in_broker(self, topic: str, broker: str) -> None:
        """Delete a topic from one broker; the broker then tells the name servers [215]."""
        address = await broker_address(self, broker)
        header = DeleteTopicRequest(topic=topic)
        await ask(self, address, RequestCode.DELETE_TOPIC_IN_BROKER, header)

    async def delete_topic_in_name_servers(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic from the name servers, for one cluster or for all clusters [216].

        Name servers before 5.0 delete it for all clusters.
        """
        header = DeleteTopicInNameServerRequest(topic=topic, cluster_name=cluster)
        await ask_each(self, name_servers(self), RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def register_topic(self, topic: str, found: TopicRoute) -> None:
        """Set the route of a topic on all name servers, until a broker registers it again [217]."""
        header = RegisterTopicRequest(topic=topic)
        body = encode_body(found)
        await ask_each(
            self, name_servers(self), RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, body
        )

    # Lists

    async def topics(self, *, cluster: str | None = None) -> list[str]:
        """All topics that the name server knows, or those of a cluster, sorted [topicList, 206 or
        224].
        """
        if cluster is None:
            response = await ask_name_server(self, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            header = GetTopicsByClusterRequest(cluster=cluster)
            response = await ask_name_server(self, RequestCode.GET_TOPICS_BY_CLUSTER, header)
        return sorted((await broker_api.read(response, TopicList)).topic_list)

    async def system_topics(self) -> list[str]:
        """The topics that RocketMQ uses itself, of the name server and of one broker [304, 305]."""
        response = await ask_name_server(self, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        found = await broker_api.read(response, TopicList)
        names = set(found.topic_list)
        if found.broker_addr:
            names.update(await self.broker_system_topics(found.broker_addr))
        return sorted(names)

    async def broker_system_topics(self, broker: str) -> list[str]:
        """The topics that a broker uses itself [305]."""
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return sorted((await broker_api.read(response, TopicList)).topic_list)

    async def unit_topics(self) -> list[str]:
        """The topics that are marked as topics of a unit [311]."""
        response = await ask_name_server(self, RequestCode.GET_UNIT_TOPIC_LIST)
        return sorted((await broker_api.read(response, TopicList)).topic_list)

    async def unit_subscribed_topics(self, *, without_unit: bool = False) -> list[str]:
        """The topics that a unit subscribes to [312]; ``without_unit``: only those that are not
        topics of a unit [313].
        """
        code = (
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
            if without_unit
            else RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST
        )
        response = await ask_name_server(self, code)
        return sorted((await broker_api.read(response, TopicList)).topic_list)

    # One topic

    async def topic_route(self, topic: str) -> TopicRoute:
        """The brokers and queues of a topic [topicRoute, 105]; NoRouteError if it has none."""
        return await route(self, topic)

    async def topic_clusters(self, topic: str) -> list[str]:
        """The clusters that have a topic, sorted [topicClusterList, 105]."""
        return sorted({data.cluster for data in (await route(self, topic)).broker_datas})

    async def topic_stats(
        self, topic: str, *, broker: str | None = None, route_topic: str | None = None
    ) -> TopicStats:
        """The first and last offsets of a topic's queues, on all brokers or on one [topicStatus,
        202].

        ``route_topic`` is another topic whose brokers are asked, such as the parent of a light
        topic, which has no route.
        """
        header = GetTopicStatsRequest(topic=topic)

        async def of_one(address: str) -> TopicStatsTable:
            response = await ask(self, address, RequestCode.GET_TOPIC_STATS_INFO, header)
            return await broker_api.read(response, TopicStatsTable)

        found = await addresses_of(self, [route_topic or topic], broker)
        answers = await each(found, of_one)
        return merge_topic_stats(answers.values())

    async def topic_config(self, topic: str, *, broker: str) -> TopicConfigAndMapping:
        """The settings of a topic on a broker [351; of a broker before 5.0: 21]."""
        address = await broker_address(self, broker)
        # lo: with the queue mapping, if the topic is static.
        header = GetTopicConfigRequest(topic=topic, lo=True)
        try:
            response = await ask(self, address, RequestCode.GET_TOPIC_CONFIG, header)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            table = (await self.topic_configs(address)).topic_config_table
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

    async def topic_configs(self, broker: str) -> TopicConfigTable:
        """The settings of all topics of a broker, system topics included [exportMetadata, 21]."""
        address = await broker_address(self, broker)

        async def read_page(first: int, version: str) -> tuple[TopicConfigTable, int | None]:
            header = GetAllTopicConfigRequest(
                topic_seq=first, data_version=version, max_topic_num=PAGE_SIZE
            )
            response = await ask(self, address, RequestCode.GET_ALL_TOPIC_CONFIG, header)
            page = await broker_api.read(response, TopicConfigTable)
            return page, GetAllTopicConfigResponse.decode(response.fields).total_topic_num

        def join(earlier: TopicConfigTable, page: TopicConfigTable) -> int:
            page.topic_config_table = earlier.topic_config_table | page.topic_config_table
            return len(page.topic_config_table)

        return await in_pages(TopicConfigTable, read_page, join)

    async def topic_groups(self, topic: str, *, brokers: Iterable[str] | None = None) -> list[str]:
        """The groups that consume a topic or have offsets for it, on any broker, sorted [300].

        ``brokers`` are the addresses to ask; if None, the brokers of the topic's route.
        """
        header = QueryTopicConsumersRequest(topic=topic)

        async def of_one(address: str) -> list[str]:
            response = await ask(self, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            return (await broker_api.read(response, GroupList)).group_list

        if brokers is None:
            brokers = route_addresses(await route(self, topic))
        answers = await each(brokers, of_one)
        return sorted({group for groups in answers.values() for group in groups})

    async def consume_queue(
        self,
        queue: MessageQueue,
        *,
        index: Offset,
        count: Count = 10,
        group: str | None = None,
        broker: str | None = None,
    ) -> ConsumeQueueAnswer:
        """Entries of a consume queue, from an index on [queryCq, 321].

        With a group, each entry says whether the filter of the group accepts it.
        """
        address = await broker_address(self, broker or queue.broker_name)
        header = QueryConsumeQueueRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=index,
            count=count,
            consumer_group=group,
        )
        response = await ask(self, address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return await broker_api.read(response, ConsumeQueueAnswer)

    async def topic_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read, sorted [105]."""
        found = await route(self, topic)
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in found.queue_datas
            if data.perm & Permission.READ
            for queue_id in range(data.read_queue_nums)
        )
