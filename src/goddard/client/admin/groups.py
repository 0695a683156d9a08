"""Administration of consumer groups: create, change and delete them, and their progress.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping

from goddard.client import broker_api
from goddard.client.admin.checks import check_group_config
from goddard.client.admin.requests import (
    PAGE_SIZE,
    addresses_of,
    ask,
    ask_each,
    broker_address,
    broker_addresses,
    by_queue,
    chosen_brokers,
    group_addresses,
    in_pages,
)
from goddard.client.admin.topics import TopicMethods
from goddard.client.admin.values import BrokerProgress, GroupProgress
from goddard.client.arguments import BrokerId, Count, CountOrNoLimit, QueueCountOrNone
from goddard.client.errors import BrokerError, NoRouteError
from goddard.client.queries import each, route, route_addresses
from goddard.client.values import MessageQueue
from goddard.protocol.bodies import RequestMode, TopicList, encode_body
from goddard.protocol.bodies_admin import (
    BrokerConsumeStats,
    ConsumeOffsets,
    ConsumeStats,
    ConsumeTimeSpans,
    GroupForbidden,
    GroupRetryPolicy,
    QueueTimeSpan,
    SubscriptionAnswer,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from goddard.protocol.bodies_client import SetRequestModeBody, SubscriptionData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers.admin import (
    DeleteGroupRequest,
    GetAllGroupConfigRequest,
    GetAllGroupConfigResponse,
    GetBrokerConsumeStatsRequest,
    GetConsumeStatsRequest,
    GetGroupConfigRequest,
    QueryConsumeTimeSpanRequest,
    QuerySubscriptionRequest,
    QueryTopicsByConsumerRequest,
    UpdateGroupForbiddenRequest,
)
from goddard.protocol.names import dlq_topic, retry_topic


def merge_progress(answers: Iterable[ConsumeStats]) -> GroupProgress:
    """Merge the progress on several brokers; queues are sorted."""
    consume_tps = 0.0
    queues: dict[MessageQueue, ConsumeOffsets] = {}
    for answer in answers:
        consume_tps += answer.consume_tps
        queues.update(by_queue(answer.offset_table))
    return GroupProgress(consume_tps, dict(sorted(queues.items(), key=lambda item: item[0])))


class GroupMethods(TopicMethods):
    """Create, change, list and delete consumer groups, and read their progress."""

    # Creating and deleting

    async def create_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        consume_enabled: bool = True,
        consume_from_min_enabled: bool = True,
        broadcast_enabled: bool = True,
        orderly: bool = False,
        retry_queues: QueueCountOrNone = 1,
        max_retries: CountOrNoLimit = 16,
        retry_policy: GroupRetryPolicy | None = None,
        broker_id: BrokerId = 0,
        broker_id_when_slow: BrokerId = 1,
        notify_consumer_changes: bool = True,
        consume_timeout_minutes: Count = 15,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create or change a group on a broker or on every master of a cluster [updateSubGroup,
        200].

        ``broker_id_when_slow`` is the replica that consumers read from when they lag so far behind
        that the master would have to read from disk. Returns the addresses of the brokers that have
        the group now.
        """
        config = SubscriptionGroupConfig(
            group_name=group,
            consume_enable=consume_enabled,
            consume_from_min_enable=consume_from_min_enabled,
            consume_broadcast_enable=broadcast_enabled,
            consume_message_orderly=orderly,
            retry_queue_nums=retry_queues,
            retry_max_times=max_retries,
            group_retry_policy=retry_policy or GroupRetryPolicy(),
            broker_id=broker_id,
            which_broker_when_consume_slowly=broker_id_when_slow,
            notify_consumer_ids_changed_enable=notify_consumer_changes,
            consume_timeout_minute=consume_timeout_minutes,
            attributes=dict(attributes or {}),
        )
        check_group_config(config)
        found = await chosen_brokers(self, broker, cluster)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return await ask_each(self, found, code, body=encode_body(config))

    async def create_groups(
        self,
        configs: Iterable[SubscriptionGroupConfig],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create or change several groups at once [updateSubGroupList, 225; from 5.2 on]."""
        wanted = list(configs)
        for config in wanted:
            check_group_config(config)
        body = encode_body(SubscriptionGroupList(group_config_list=wanted))
        found = await chosen_brokers(self, broker, cluster)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        return await ask_each(self, found, code, body=body)

    async def delete_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        remove_offsets: bool = False,
    ) -> list[str]:
        """Delete a group; from a cluster, its retry and dead-letter topics too [deleteSubGroup,
        207].
        """
        found = await chosen_brokers(self, broker, cluster)
        # 4.9 and 5.x have different names for it.
        header = DeleteGroupRequest(
            group_name=group, clean_offset=remove_offsets, remove_offset=remove_offsets
        )
        done = await ask_each(self, found, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        if cluster is not None:
            for topic in (retry_topic(group), dlq_topic(group)):
                # A group without failures has no dead-letter topic.
                with contextlib.suppress(NoRouteError):
                    await route(self, topic)
                    await self.delete_topic(topic, cluster=cluster)
        return done

    async def set_group_readable(
        self, group: str, topic: str, *, broker: str, readable: bool | None = None
    ) -> GroupForbidden:
        """Set whether a group may read a topic of a broker; None only reads the setting [353; from
        5.0 on].
        """
        header = UpdateGroupForbiddenRequest(group=group, topic=topic, readable=readable)
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
        return await broker_api.read(response, GroupForbidden)

    async def set_request_mode(
        self,
        group: str,
        topic: str,
        mode: RequestMode,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        pop_share_queues: CountOrNoLimit = 0,
    ) -> list[str]:
        """Set whether the consumers of a group pull or pop a topic [setConsumeMode, 401]."""
        body = SetRequestModeBody(
            consumer_group=group, topic=topic, mode=mode, pop_share_queue_num=pop_share_queues
        )
        found = await chosen_brokers(self, broker, cluster)
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        return await ask_each(self, found, code, body=encode_body(body))

    # Settings

    async def group_configs(self, broker: str) -> SubscriptionGroupTable:
        """The settings of all groups of a broker [exportMetadata, 201]."""
        address = await broker_address(self, broker)

        async def read_page(first: int, version: str) -> tuple[SubscriptionGroupTable, int | None]:
            header = GetAllGroupConfigRequest(
                group_seq=first, data_version=version, max_group_num=PAGE_SIZE
            )
            response = await ask(
                self, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header
            )
            page = await broker_api.read(response, SubscriptionGroupTable)
            return page, GetAllGroupConfigResponse.decode(response.fields).total_group_num

        def join(earlier: SubscriptionGroupTable, page: SubscriptionGroupTable) -> int:
            page.subscription_group_table = (
                earlier.subscription_group_table | page.subscription_group_table
            )
            page.forbidden_table = earlier.forbidden_table | page.forbidden_table
            return len(page.subscription_group_table)

        return await in_pages(SubscriptionGroupTable, read_page, join)

    async def groups(self, *, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """The names of all groups of a broker, of a cluster or of all brokers, system groups
        included [201].
        """

        async def of_one(address: str) -> Collection[str]:
            return (await self.group_configs(address)).subscription_group_table

        found = await broker_addresses(self, broker=broker, cluster=cluster)
        answers = await each(found, of_one)
        return sorted({name for names in answers.values() for name in names})

    async def group_config(self, group: str, *, broker: str) -> SubscriptionGroupConfig:
        """The settings of a group on a broker [getConsumerConfig, 352; of a broker before 5.0:
        201].
        """
        address = await broker_address(self, broker)
        header = GetGroupConfigRequest(group=group)
        try:
            response = await ask(self, address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            known = (await self.group_configs(address)).subscription_group_table.get(group)
            if known is None:
                text = f"subscription group not exist: {group}"
                code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
                raise BrokerError(code, text, address) from error
            return known
        return await broker_api.read(response, SubscriptionGroupConfig)

    # Topics and subscriptions

    async def group_topics(self, group: str) -> list[str]:
        """The topics that a group has offsets for, on any of its brokers, sorted [343]."""
        header = QueryTopicsByConsumerRequest(group=group)

        async def of_one(address: str) -> list[str]:
            response = await ask(self, address, RequestCode.QUERY_TOPICS_BY_CONSUMER, header)
            return (await broker_api.read(response, TopicList)).topic_list

        answers = await each(await group_addresses(self, group), of_one)
        return sorted({topic for topics in answers.values() for topic in topics})

    async def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The subscription of the online consumers of a group to a topic; None if there is none
        [345].
        """
        header = QuerySubscriptionRequest(group=group, topic=topic)

        async def of_one(address: str) -> SubscriptionData | None:
            response = await ask(self, address, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
            return (await broker_api.read(response, SubscriptionAnswer)).subscription_data

        answers = await each(route_addresses(await route(self, topic)), of_one)
        found = [answer for answer in answers.values() if answer is not None]
        return max(found, key=lambda data: data.sub_version) if found else None

    # Progress

    async def group_progress(
        self,
        group: str,
        *,
        topic: str | None = None,
        broker: str | None = None,
        route_topic: str | None = None,
    ) -> GroupProgress:
        """How far a group has consumed, in all its topics or one, on all brokers or one
        [consumerProgress, 208].

        A group without offsets, such as a broadcasting group, has no queues. ``route_topic`` is a
        topic whose brokers are asked if neither the group nor ``topic`` has a route.
        """
        header = GetConsumeStatsRequest(consumer_group=group, topic=topic)

        async def of_one(address: str) -> ConsumeStats:
            response = await ask(
                self,
                address,
                RequestCode.GET_CONSUME_STATS,
                header,
                timeout_ms=self.timeout_ms * 3,
            )
            return await broker_api.read(response, ConsumeStats)

        try:
            found = await group_addresses(self, group, topic=topic, broker=broker)
        except NoRouteError:
            if route_topic is None:
                raise
            found = await addresses_of(self, [route_topic])
        return merge_progress((await each(found, of_one)).values())

    async def broker_progress(
        self, broker: str, *, order: bool = False, timeout_ms: Count | None = None
    ) -> BrokerProgress:
        """How far the groups of a broker have consumed; ``order``: only in ordered topics
        [brokerConsumeStats, 317].
        """
        address = await broker_address(self, broker)
        response = await ask(
            self,
            address,
            RequestCode.GET_BROKER_CONSUME_STATS,
            GetBrokerConsumeStatsRequest(is_order=order),
            timeout_ms=timeout_ms or self.timeout_ms * 10,
        )
        answer = await broker_api.read(response, BrokerConsumeStats)
        found: dict[str, list[GroupProgress]] = {}
        for item in answer.consume_stats_list:
            for group, stats in item.items():
                found.setdefault(group, []).extend(merge_progress([one]) for one in stats)
        return BrokerProgress(
            answer.broker_addr or address, answer.total_diff, answer.total_inflight_diff, found
        )

    async def consume_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """For each queue, the store times of its messages and of the group's position [303]."""
        header = QueryConsumeTimeSpanRequest(topic=topic, group=group)

        async def of_one(address: str) -> list[QueueTimeSpan]:
            response = await ask(self, address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            return (await broker_api.read(response, ConsumeTimeSpans)).consume_time_span_set

        answers = await each(route_addresses(await route(self, topic)), of_one)
        return [span for spans in answers.values() for span in spans]
