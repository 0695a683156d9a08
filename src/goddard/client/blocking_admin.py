"""Administration for threads and scripts.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Iterable, Mapping
from typing import Unpack

from goddard.client.admin import Admin as AsyncAdmin
from goddard.client.admin_values import (
    BrokerPlace,
    BrokerProgress,
    FoundMessages,
    GroupProgress,
    MessageTrack,
    Rollback,
    TopicStats,
)
from goddard.client.blocking import BlockingClient
from goddard.client.calls import Boundary
from goddard.client.message import ReceivedMessage
from goddard.client.options import SessionKeywords
from goddard.client.trace import TraceRecord
from goddard.client.values import MessageQueue
from goddard.clock import Clock
from goddard.protocol.bodies import (
    BrokerMemberGroup,
    ClusterInfo,
    RequestMode,
    TopicConfig,
    TopicConfigTable,
    TopicQueueMappingDetail,
    TopicRoute,
)
from goddard.protocol.bodies_admin import (
    AccessKey,
    AccessKeys,
    AclInfo,
    BrokerReplicas,
    BrokerStats,
    Connection,
    ConsumeQueueAnswer,
    ConsumerConnections,
    EpochCache,
    GroupForbidden,
    GroupRetryPolicy,
    HaStatus,
    ProducerInfo,
    QueueTimeSpan,
    RocksdbProgress,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfigAndMapping,
    UserInfo,
)
from goddard.protocol.bodies_client import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    SubscriptionData,
)
from goddard.protocol.codes import Permission
from goddard.protocol.headers_admin import GetAccessInfoResponse
from goddard.protocol.headers_cluster import GetControllerMetadataResponse


class Admin(BlockingClient[AsyncAdmin]):
    """Looks after topics, groups, offsets, brokers and name servers.

    Brokers are given by name, which means the master, or by address ``host:port``. Where a
    method takes ``cluster`` or ``broker``, one of them has to be given, unless it says what
    happens without. Names are as brokers know them, a namespace included.

    A broker or name server that refuses is a BrokerError; one that does not answer a
    RemotingError. Methods that ask several servers ask all of them, and raise
    PartialFailureError if some fail: it says which, and has the answers of the others.
    Arguments that cannot be right are a ConfigError or a TypeError before anybody is asked.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        timeout_ms: int = 5000,
        **options: Unpack[SessionKeywords],
    ) -> None:
        """``timeout_ms`` is for each request; what takes a broker long gets a multiple of it."""
        BlockingClient.__init__(self, AsyncAdmin(name_servers, timeout_ms=timeout_ms, **options))

    @property
    def clock(self) -> Clock:
        """Where the time comes from."""
        return self._core.clock

    @property
    def timeout_ms(self) -> int:
        """How long one request may take."""
        return self._core.timeout_ms

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return self._core.name_servers

    def topics(self, *, cluster: str | None = None) -> list[str]:
        """Every topic that the name server knows, or those of a cluster, sorted [topicList, 206
        or 224].
        """
        return self._run(lambda: self._core.topics(cluster=cluster))

    def topic_route(self, topic: str) -> TopicRoute:
        """Where a topic lives [topicRoute, 105]; NoRouteError if nowhere."""
        return self._run(lambda: self._core.topic_route(topic))

    def topic_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read, sorted [105]."""
        return self._run(lambda: self._core.topic_queues(topic))

    def topic_clusters(self, topic: str) -> list[str]:
        """The clusters that have a topic, sorted [topicClusterList, 105]."""
        return self._run(lambda: self._core.topic_clusters(topic))

    def topic_stats(self, topic: str, *, broker: str | None = None) -> TopicStats:
        """The ends of a topic's queues, on all brokers or one [topicStatus, 202]."""
        return self._run(lambda: self._core.topic_stats(topic, broker=broker))

    def topic_config(self, topic: str, *, broker: str) -> TopicConfigAndMapping:
        """A topic's settings on a broker [351; of a broker before 5.0: 21]."""
        return self._run(lambda: self._core.topic_config(topic, broker=broker))

    def topic_configs(self, broker: str) -> TopicConfigTable:
        """The settings of every topic of a broker, the system's among them [exportMetadata, 21]."""
        return self._run(lambda: self._core.topic_configs(broker))

    def topic_groups(self, topic: str) -> list[str]:
        """The groups that consume a topic or have offsets for it, on any broker, sorted [300]."""
        return self._run(lambda: self._core.topic_groups(topic))

    def create_topic(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        queues: int = 8,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: Permission = Permission.READ | Permission.WRITE,
        order: bool = False,
        unit: bool = False,
        unit_subscribed: bool = False,
        attributes: Mapping[str, str | None] | None = None,
    ) -> list[str]:
        """Make a topic, or change it, on a broker or on every master of a cluster [updateTopic,
        17].

        ``queues`` is the number on each broker, 1 to 65,535; ``read_queues`` and
        ``write_queues`` are for changing it without losing messages. ``attributes`` sets some
        (``{"message.type": "FIFO"}``) and takes away those of None. For an ordered topic the
        name servers are told its queues as well.

        Gives the addresses of the brokers that have it now.
        """
        return self._run(
            lambda: self._core.create_topic(
                topic,
                cluster=cluster,
                broker=broker,
                queues=queues,
                read_queues=read_queues,
                write_queues=write_queues,
                permission=permission,
                order=order,
                unit=unit,
                unit_subscribed=unit_subscribed,
                attributes=attributes,
            )
        )

    def create_topics(
        self,
        configs: Iterable[TopicConfig],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make or change several topics at once [updateTopicList, 18; from 5.2 on]."""
        return self._run(lambda: self._core.create_topics(configs, cluster=cluster, broker=broker))

    def create_static_topic(
        self,
        broker: str,
        config: TopicConfig,
        mapping: TopicQueueMappingDetail,
        *,
        force: bool = False,
    ) -> None:
        """Make a static topic, or move its queues, on one broker [updateStaticTopic, 513]."""
        self._run(lambda: self._core.create_static_topic(broker, config, mapping, force=force))

    def set_topic_permission(
        self,
        topic: str,
        permission: Permission,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Let a topic be read, written, both [updateTopicPerm, 17].

        On the broker, on the cluster, or wherever the topic is. All else of the topic stays,
        which mqadmin does not keep.
        """
        return self._run(
            lambda: self._core.set_topic_permission(
                topic, permission, cluster=cluster, broker=broker
            )
        )

    def delete_topic(self, topic: str, *, cluster: str) -> None:
        """Delete a topic from all brokers of a cluster and from the name servers [deleteTopic,
        215, 216, 102].
        """
        self._run(lambda: self._core.delete_topic(topic, cluster=cluster))

    def delete_topic_in_broker(self, topic: str, broker: str) -> None:
        """Delete a topic from one broker; the name servers learn of it from the broker [215]."""
        self._run(lambda: self._core.delete_topic_in_broker(topic, broker))

    def delete_topic_in_name_servers(self, topic: str, *, cluster: str | None = None) -> None:
        """Have the name servers forget a topic, of one cluster or of all [216].

        Name servers before 5.0 forget it of all.
        """
        self._run(lambda: self._core.delete_topic_in_name_servers(topic, cluster=cluster))

    def register_topic(self, topic: str, found: TopicRoute) -> None:
        """Tell every name server where a topic lives, until the brokers say otherwise [217]."""
        self._run(lambda: self._core.register_topic(topic, found))

    def system_topics(self) -> list[str]:
        """The topics that RocketMQ itself uses, of the name server and of one broker [304, 305]."""
        return self._run(self._core.system_topics)

    def unit_topics(self) -> list[str]:
        """Topics marked as of a unit [311]."""
        return self._run(self._core.unit_topics)

    def unit_subscribed_topics(self, *, without_unit: bool = False) -> list[str]:
        """Topics that a unit subscribes to [312], or only those that are not of a unit [313]."""
        return self._run(lambda: self._core.unit_subscribed_topics(without_unit=without_unit))

    def consume_queue(
        self,
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
        return self._run(
            lambda: self._core.consume_queue(
                queue, index=index, count=count, group=group, broker=broker
            )
        )

    def groups(self, *, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """The names of all groups of a broker, a cluster or everywhere, the system's too [201]."""
        return self._run(lambda: self._core.groups(cluster=cluster, broker=broker))

    def group_config(self, group: str, *, broker: str) -> SubscriptionGroupConfig:
        """A group's settings on a broker [getConsumerConfig, 352; of a broker before 5.0: 201]."""
        return self._run(lambda: self._core.group_config(group, broker=broker))

    def group_configs(self, broker: str) -> SubscriptionGroupTable:
        """The settings of every group of a broker [exportMetadata, 201]."""
        return self._run(lambda: self._core.group_configs(broker))

    def group_topics(self, group: str) -> list[str]:
        """The topics that a group has offsets for, on any of its brokers, sorted [343]."""
        return self._run(lambda: self._core.group_topics(group))

    def group_progress(
        self, group: str, *, topic: str | None = None, broker: str | None = None
    ) -> GroupProgress:
        """Where a group stands in all its topics or one, on all brokers or one
        [consumerProgress, 208].

        A group without offsets, as every broadcasting one is, has no queues.
        """
        return self._run(lambda: self._core.group_progress(group, topic=topic, broker=broker))

    def broker_progress(self, broker: str, *, order: bool = False) -> BrokerProgress:
        """Where every group of a broker stands, or only in ordered topics [brokerConsumeStats,
        317].
        """
        return self._run(lambda: self._core.broker_progress(broker, order=order))

    def consume_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Between which times of its messages a group stands, queue by queue [303]."""
        return self._run(lambda: self._core.consume_time_spans(group, topic))

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What the online consumers of a group want of a topic; None if nothing [345]."""
        return self._run(lambda: self._core.subscription(group, topic))

    def create_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        consume_enabled: bool = True,
        consume_from_min_enabled: bool = True,
        broadcast_enabled: bool = True,
        orderly: bool = False,
        retry_queues: int = 1,
        max_retries: int = 16,
        retry_policy: GroupRetryPolicy | None = None,
        broker_id: int = 0,
        broker_id_when_slow: int = 1,
        notify_consumer_changes: bool = True,
        consume_timeout_minutes: int = 15,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Make or change a group, on a broker or on every master of a cluster [updateSubGroup,
        200].

        ``broker_id_when_slow`` is the replica that consumers are sent to when they lag behind
        memory. Gives the addresses of the brokers that have it now.
        """
        return self._run(
            lambda: self._core.create_group(
                group,
                cluster=cluster,
                broker=broker,
                consume_enabled=consume_enabled,
                consume_from_min_enabled=consume_from_min_enabled,
                broadcast_enabled=broadcast_enabled,
                orderly=orderly,
                retry_queues=retry_queues,
                max_retries=max_retries,
                retry_policy=retry_policy,
                broker_id=broker_id,
                broker_id_when_slow=broker_id_when_slow,
                notify_consumer_changes=notify_consumer_changes,
                consume_timeout_minutes=consume_timeout_minutes,
                attributes=attributes,
            )
        )

    def create_groups(
        self,
        configs: Iterable[SubscriptionGroupConfig],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make or change several groups at once [updateSubGroupList, 225; from 5.2 on]."""
        return self._run(lambda: self._core.create_groups(configs, cluster=cluster, broker=broker))

    def delete_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        remove_offsets: bool = False,
    ) -> list[str]:
        """Delete a group; from a cluster, also its retry and dead-letter topics [deleteSubGroup,
        207].
        """
        return self._run(
            lambda: self._core.delete_group(
                group, cluster=cluster, broker=broker, remove_offsets=remove_offsets
            )
        )

    def set_group_readable(
        self, group: str, topic: str, *, broker: str, readable: bool | None = None
    ) -> GroupForbidden:
        """Let a group read a topic of a broker or not, or just look (None) [353; from 5.0 on]."""
        return self._run(
            lambda: self._core.set_group_readable(group, topic, broker=broker, readable=readable)
        )

    def set_request_mode(
        self,
        group: str,
        topic: str,
        mode: RequestMode,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        pop_share_queues: int = 0,
    ) -> list[str]:
        """Have a group's consumers pull or pop a topic [setConsumeMode, 401]."""
        return self._run(
            lambda: self._core.set_request_mode(
                group,
                topic,
                mode,
                cluster=cluster,
                broker=broker,
                pop_share_queues=pop_share_queues,
            )
        )

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message gets [30]."""
        return self._run(lambda: self._core.max_offset(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that the queue has [31]."""
        return self._run(lambda: self._core.min_offset(queue))

    def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, *, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """The offset of the first message stored at a time or later [29]."""
        return self._run(lambda: self._core.search_offset(queue, timestamp_ms, boundary=boundary))

    def earliest_store_time_ms(self, queue: MessageQueue) -> int:
        """When the queue's oldest message was stored; -1 if it has none [32]."""
        return self._run(lambda: self._core.earliest_store_time_ms(queue))

    def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The offset that a group has consumed a queue up to; None if it has none [14]."""
        return self._run(lambda: self._core.consumer_offset(group, queue))

    def consumer_offsets(self, broker: str) -> dict[tuple[str, str], dict[int, int]]:
        """Every offset that a broker keeps: by topic and group, then queue number [43]."""
        return self._run(lambda: self._core.consumer_offsets(broker))

    def delay_offsets(self, broker: str) -> dict[int, int]:
        """How far a broker has delivered the messages of each delay level [45]."""
        return self._run(lambda: self._core.delay_offsets(broker))

    def update_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Note an offset for a group, as its consumers do [15].

        Consumers that are online do not notice and soon note their own again: see
        ``reset_offset``.
        """
        self._run(lambda: self._core.update_consumer_offset(group, queue, offset))

    def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Have a group consume a queue from an offset on [resetOffsetByTime -b -q -o, 15 and
        222].

        Online consumers follow if the broker resets by itself (useServerSideResetOffset,
        which is the default in 5.3); stop them first at others. They learn of it from the
        answer to the pull that waits: when the next message comes, at the latest after its 15
        seconds.
        """
        self._run(lambda: self._core.reset_offset(group, queue, offset))

    def reset_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Have a group consume several queues from offsets on, as ``reset_offset`` does [15,
        222].
        """
        self._run(lambda: self._core.reset_offsets(group, offsets))

    def reset_offsets_by_time(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        force: bool = True,
        cluster: str | None = None,
    ) -> dict[MessageQueue, int]:
        """Have a group consume a topic from a time on [resetOffsetByTime, 222].

        Without ``force`` offsets only move back, never over messages that are not consumed
        yet. Brokers that leave it to the consumers need them online; for groups that are not,
        offsets are set as by ``reset_offsets_by_time_old``. Gives the new offsets.
        """
        return self._run(
            lambda: self._core.reset_offsets_by_time(
                group, topic, timestamp_ms, force=force, cluster=cluster
            )
        )

    def reset_offsets_by_time_old(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> list[Rollback]:
        """Set a group's offsets to those of a time, without asking its consumers
        [resetOffsetByTimeOld, 208, 29, 15].

        For groups that are not online: consumers would note their own offsets again. Below 0
        is the end.
        """
        return self._run(
            lambda: self._core.reset_offsets_by_time_old(group, topic, timestamp_ms, force=force)
        )

    def skip_accumulated(
        self, group: str, topic: str, *, force: bool = True, cluster: str | None = None
    ) -> dict[MessageQueue, int]:
        """Have a group consume only messages sent from now on [skipAccumulatedMessage, 222]."""
        return self._run(
            lambda: self._core.skip_accumulated(group, topic, force=force, cluster=cluster)
        )

    def clone_offsets(
        self,
        source_group: str,
        target_group: str,
        topic: str | None = None,
        *,
        offline: bool = False,
    ) -> list[str]:
        """Give a group the offsets of another, of one topic or all [cloneGroupOffset, 314].

        ``offline`` takes every topic that the source has offsets for, else only those that
        its consumers want now. Gives the addresses of the brokers that did it.
        """
        return self._run(
            lambda: self._core.clone_offsets(source_group, target_group, topic, offline=offline)
        )

    def correction_offsets(
        self, topic: str, compare_group: str, *, filter_groups: str = "", broker: str
    ) -> dict[int, int]:
        """By queue number, the smallest offset of the groups of a topic on a broker [308]."""
        return self._run(
            lambda: self._core.correction_offsets(
                topic, compare_group, filter_groups=filter_groups, broker=broker
            )
        )

    def consumer_connections(self, group: str, *, broker: str | None = None) -> ConsumerConnections:
        """The consumers of a group that are online, and what they want [consumerConnection,
        203].

        BrokerError with CONSUMER_NOT_ONLINE if there are none.
        """
        return self._run(lambda: self._core.consumer_connections(group, broker=broker))

    def producer_connections(
        self, group: str, topic: str, *, broker: str | None = None
    ) -> list[Connection]:
        """The producers of a group that are online, at the brokers of a topic
        [producerConnection, 204].

        BrokerError with SYSTEM_ERROR if there are none.
        """
        return self._run(lambda: self._core.producer_connections(group, topic, broker=broker))

    def producers(self, broker: str) -> dict[str, list[ProducerInfo]]:
        """Every producer that a broker knows, by group [producer, 328]."""
        return self._run(lambda: self._core.producers(broker))

    def running_info(
        self, group: str, client_id: str, *, with_stacks: bool = False
    ) -> ConsumerRunningInfo:
        """How one consumer is doing, from itself [consumerStatus -i, 307]."""
        return self._run(lambda: self._core.running_info(group, client_id, with_stacks=with_stacks))

    def running_infos(
        self, group: str, *, with_stacks: bool = False
    ) -> dict[str, ConsumerRunningInfo]:
        """How every consumer of a group is doing, by client id [consumerStatus, 203 and 307]."""
        return self._run(lambda: self._core.running_infos(group, with_stacks=with_stacks))

    def consumer_status(
        self, group: str, topic: str, *, client_address: str = ""
    ) -> Mapping[str, dict[MessageQueue, int]]:
        """The offsets that online consumers hold themselves, by client id, of one client or all
        [getConsumerStatus, 223].
        """
        return self._run(
            lambda: self._core.consumer_status(group, topic, client_address=client_address)
        )

    def message(self, topic: str, message_id: str) -> ReceivedMessage:
        """A message by its id, either of the two [queryMsgById, queryMsgByUniqueKey; 33, 12].

        An id that a broker gave (``offset_message_id``) says where the message is, and is
        taken for one if a broker is registered there. One that the client gave
        (``message_id``) is looked up in the index, of the last three days.
        """
        return self._run(lambda: self._core.message(topic, message_id))

    def message_by_offset_id(self, topic: str, offset_message_id: str) -> ReceivedMessage:
        """A message by the id that its broker gave it [queryMsgById, 33]."""
        return self._run(lambda: self._core.message_by_offset_id(topic, offset_message_id))

    def message_by_offset(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage:
        """The message at an offset of a queue [queryMsgByOffset, 11]."""
        return self._run(lambda: self._core.message_by_offset(queue, queue_offset))

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Messages with one of their KEYS, of every broker [queryMsgByKey, 12].

        ``max_count`` is for each broker.
        """
        return self._run(
            lambda: self._core.messages_by_key(
                topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms, cluster=cluster
            )
        )

    def messages_by_unique_key(
        self,
        topic: str,
        unique_key: str,
        *,
        begin_ms: int | None = None,
        end_ms: int = 2**63 - 1,
        cluster: str | None = None,
    ) -> FoundMessages:
        """Messages with an id that the client gave; several, if it was sent again
        [queryMsgByUniqueKey, 12]. Of the last three days unless said otherwise.
        """
        return self._run(
            lambda: self._core.messages_by_unique_key(
                topic, unique_key, begin_ms=begin_ms, end_ms=end_ms, cluster=cluster
            )
        )

    def messages_by_queue(
        self, queue: MessageQueue, queue_offset: int, *, max_count: int = 32, tags: str = "*"
    ) -> list[ReceivedMessage]:
        """Messages of a queue from an offset on; a broker gives up to 32 at a time
        [printMsgByQueue, 11].
        """
        return self._run(
            lambda: self._core.messages_by_queue(
                queue, queue_offset, max_count=max_count, tags=tags
            )
        )

    def message_track(self, one: ReceivedMessage) -> list[MessageTrack]:
        """What became of a message in every group that consumes its topic [queryMsgById, 300,
        203, 208].
        """
        return self._run(lambda: self._core.message_track(one))

    def message_trace(
        self, message_id: str, *, trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    ) -> list[TraceRecord]:
        """What clients with tracing on noted about a message, in that order [queryMsgTraceById,
        12].
        """
        return self._run(lambda: self._core.message_trace(message_id, trace_topic=trace_topic))

    def consume_directly(
        self, group: str, client_id: str, topic: str, message_id: str
    ) -> ConsumeDirectlyResult:
        """Have one consumer consume one message now, whatever its offsets [queryMsgById -g -d,
        309].
        """
        return self._run(lambda: self._core.consume_directly(group, client_id, topic, message_id))

    def resume_transaction_checks(self, message_id: str, topic: str | None = None) -> None:
        """Have a broker ask again about a transaction that it had given up [323].

        The id is the broker's, of the half message.
        """
        self._run(lambda: self._core.resume_transaction_checks(message_id, topic))

    def cluster_info(self) -> ClusterInfo:
        """Clusters, their brokers and the addresses of these [clusterList, 106]."""
        return self._run(self._core.cluster_info)

    def clusters(self) -> list[str]:
        """The names of all clusters, sorted [106]."""
        return self._run(self._core.clusters)

    def brokers(self, *, cluster: str | None = None) -> list[BrokerPlace]:
        """Every broker process of a cluster, or of all, sorted by cluster, name and id [106]."""
        return self._run(lambda: self._core.brokers(cluster=cluster))

    def broker_name(self, address: str) -> str:
        """The name of the broker at an address [106]."""
        return self._run(lambda: self._core.broker_name(address))

    def broker_members(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        """The replicas of one broker, by id; none if there is no such broker [901; from 5.0 on]."""
        return self._run(lambda: self._core.broker_members(cluster, broker_name))

    def broker_config(self, broker: str) -> dict[str, str]:
        """All properties of a broker [getBrokerConfig, 26]."""
        return self._run(lambda: self._core.broker_config(broker))

    def update_broker_config(
        self,
        properties: Mapping[str, str],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change properties of a broker, or of every master of a cluster; gives their addresses
        [updateBrokerConfig, 25].
        """
        return self._run(
            lambda: self._core.update_broker_config(properties, cluster=cluster, broker=broker)
        )

    def broker_runtime(self, broker: str) -> dict[str, str]:
        """A broker's figures, as text: rates, sizes of queues, version and so on [brokerStatus,
        28].
        """
        return self._run(lambda: self._core.broker_runtime(broker))

    def broker_stats(self, stats_name: str, key: str, *, broker: str) -> BrokerStats:
        """One figure over the last minute, hour and day [statsAll, 315].

        Such as ``TOPIC_PUT_NUMS`` of a topic or ``GROUP_GET_NUMS`` of ``topic@group``. A
        broker refuses with SYSTEM_ERROR what it has not counted yet.
        """
        return self._run(lambda: self._core.broker_stats(stats_name, key, broker=broker))

    def clean_expired_consume_queues(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete consume queue files whose messages are gone, everywhere unless said where
        [cleanExpiredCQ, 306].
        """
        return self._run(
            lambda: self._core.clean_expired_consume_queues(cluster=cluster, broker=broker)
        )

    def clean_unused_topics(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete the consume queues of topics that do not exist any more [cleanUnusedTopic,
        316].
        """
        return self._run(lambda: self._core.clean_unused_topics(cluster=cluster, broker=broker))

    def delete_expired_commit_logs(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete commit log files that are old enough now, not at the hour set for it
        [deleteExpiredCommitLog, 329].
        """
        return self._run(
            lambda: self._core.delete_expired_commit_logs(cluster=cluster, broker=broker)
        )

    def ha_status(self, broker: str) -> HaStatus:
        """How far a broker's replicas are, or how far it is as one [haStatus, 907; from 5.0 on]."""
        return self._run(lambda: self._core.ha_status(broker))

    def broker_epochs(self, broker: str) -> EpochCache:
        """When a broker's log changed masters [getBrokerEpoch, 1007; with a controller]."""
        return self._run(lambda: self._core.broker_epochs(broker))

    def reset_master_flush_offset(self, broker: str, physical_offset: int) -> None:
        """Tell a replica how far its master has flushed [resetMasterFlushOffset, 908]."""
        self._run(lambda: self._core.reset_master_flush_offset(broker, physical_offset))

    def add_broker(self, container_address: str, config_path: str) -> None:
        """Have a container start a broker with a configuration file of its machine [addBroker,
        902].
        """
        self._run(lambda: self._core.add_broker(container_address, config_path))

    def remove_broker(
        self, container_address: str, cluster: str, broker_name: str, broker_id: int
    ) -> None:
        """Have a container stop a broker [removeBroker, 903]."""
        self._run(
            lambda: self._core.remove_broker(container_address, cluster, broker_name, broker_id)
        )

    def cold_data_flow(self, broker: str) -> str:
        """How reads of cold data are limited, as JSON text [getColdDataFlowCtrInfo, 2003]."""
        return self._run(lambda: self._core.cold_data_flow(broker))

    def update_cold_data_flow(
        self,
        thresholds: Mapping[str, int],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Limit the cold reads of groups: bytes by group [updateColdDataFlowCtrGroupConfig,
        2001].
        """
        return self._run(
            lambda: self._core.update_cold_data_flow(thresholds, cluster=cluster, broker=broker)
        )

    def remove_cold_data_flow(
        self, group: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Take a group's limit of cold reads away [removeColdDataFlowCtrGroupConfig, 2002]."""
        return self._run(
            lambda: self._core.remove_cold_data_flow(group, cluster=cluster, broker=broker)
        )

    def set_read_ahead_mode(
        self, mode: int, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """How the system reads commit log files ahead: 0 as usual, 1 not
        [setCommitLogReadAheadMode, 2004].
        """
        return self._run(
            lambda: self._core.set_read_ahead_mode(mode, cluster=cluster, broker=broker)
        )

    def rocksdb_progress(self, broker: str, topic: str, *, since_ms: int = 0) -> RocksdbProgress:
        """Whether a topic's queues in RocksDB have all that its files have
        [checkRocksdbCqWriteProgress, 354].
        """
        return self._run(lambda: self._core.rocksdb_progress(broker, topic, since_ms=since_ms))

    def export_rocksdb_config(self, broker: str, kinds: Iterable[str]) -> None:
        """Have a broker write tables that it keeps in RocksDB as JSON files
        [rocksDBConfigToJson, 355].

        Kinds are topics, subscriptionGroups and consumerOffsets.
        """
        self._run(lambda: self._core.export_rocksdb_config(broker, kinds))

    def export_pop_records(self, broker: str) -> None:
        """Have a broker move its records of popped messages from RocksDB to files
        [exportPopRecord, 200056].
        """
        self._run(lambda: self._core.export_pop_records(broker))

    def kv(self, namespace: str, key: str) -> str | None:
        """A value that a name server keeps; None if it has none [101]."""
        return self._run(lambda: self._core.kv(namespace, key))

    def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace; none if there is no such namespace [219]."""
        return self._run(lambda: self._core.kv_list(namespace))

    def set_kv(self, namespace: str, key: str, value: str) -> None:
        """Keep a value at every name server [updateKvConfig, 100]."""
        self._run(lambda: self._core.set_kv(namespace, key, value))

    def delete_kv(self, namespace: str, key: str) -> None:
        """Have every name server forget a value, if it has it [deleteKvConfig, 102]."""
        self._run(lambda: self._core.delete_kv(namespace, key))

    def order_conf(self, topic: str) -> str | None:
        """The queues that producers of an ordered topic use, ``broker:count;...``
        [updateOrderConf -m get, 101].
        """
        return self._run(lambda: self._core.order_conf(topic))

    def set_order_conf(self, topic: str, queue_counts: str) -> None:
        """Say which queues producers of an ordered topic use: ``broker-a:4;broker-b:4``
        [updateOrderConf -m put, 100].
        """
        self._run(lambda: self._core.set_order_conf(topic, queue_counts))

    def set_broker_order_conf(self, topic: str, broker_name: str, queues: int) -> None:
        """The same for one broker; the others' stay [101, 100]."""
        self._run(lambda: self._core.set_broker_order_conf(topic, broker_name, queues))

    def delete_order_conf(self, topic: str) -> None:
        """Let producers of a topic use all its queues again [updateOrderConf -m delete, 102]."""
        self._run(lambda: self._core.delete_order_conf(topic))

    def name_server_config(self, chosen: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
        """The properties of some name servers, or of all, by address [getNamesrvConfig, 319]."""
        return self._run(lambda: self._core.name_server_config(chosen))

    def update_name_server_config(
        self, properties: Mapping[str, str], chosen: Iterable[str] | None = None
    ) -> list[str]:
        """Change properties of some name servers, or of all; gives their addresses
        [updateNamesrvConfig, 318].
        """
        return self._run(lambda: self._core.update_name_server_config(properties, chosen))

    def wipe_write_permission(
        self, broker_name: str, chosen: Iterable[str] | None = None
    ) -> dict[str, int]:
        """Take a broker out of the routes that producers see, so that it can be stopped
        [wipeWritePerm, 205].

        Gives the number of topics by name server. It lasts until the broker changes its
        topics.
        """
        return self._run(lambda: self._core.wipe_write_permission(broker_name, chosen))

    def add_write_permission(
        self, broker_name: str, chosen: Iterable[str] | None = None
    ) -> dict[str, int]:
        """Put a broker back into the routes that producers see [addWritePerm, 327]."""
        return self._run(lambda: self._core.add_write_permission(broker_name, chosen))

    def controller_metadata(self, controller_address: str) -> GetControllerMetadataResponse:
        """The controllers, and which of them leads [getControllerMetaData, 1005]."""
        return self._run(lambda: self._core.controller_metadata(controller_address))

    def sync_state_sets(
        self, controller_address: str, broker_names: Iterable[str]
    ) -> BrokerReplicas:
        """Masters of brokers, and which replicas are in step [getSyncStateSet, 1006]."""
        return self._run(lambda: self._core.sync_state_sets(controller_address, broker_names))

    def elect_master(
        self, controller_address: str, cluster: str, broker_name: str, broker_id: int
    ) -> BrokerMemberGroup:
        """Make a replica the master of its broker; gives the replicas [electMaster, 1002]."""
        return self._run(
            lambda: self._core.elect_master(controller_address, cluster, broker_name, broker_id)
        )

    def clean_broker_data(
        self,
        controller_address: str,
        cluster: str,
        broker_name: str,
        *,
        broker_ids: Iterable[int] | None = None,
        even_if_alive: bool = False,
    ) -> None:
        """Have the controllers forget a broker, or some of its replicas [cleanBrokerMetadata,
        1011].
        """
        self._run(
            lambda: self._core.clean_broker_data(
                controller_address,
                cluster,
                broker_name,
                broker_ids=broker_ids,
                even_if_alive=even_if_alive,
            )
        )

    def controller_config(self, controller_addresses: Iterable[str]) -> dict[str, dict[str, str]]:
        """The properties of controllers, by address [getControllerConfig, 1010]."""
        return self._run(lambda: self._core.controller_config(controller_addresses))

    def update_controller_config(
        self, controller_addresses: Iterable[str], properties: Mapping[str, str]
    ) -> list[str]:
        """Change properties of controllers; gives their addresses [updateControllerConfig,
        1009].
        """
        return self._run(
            lambda: self._core.update_controller_config(controller_addresses, properties)
        )

    def users(self, *, broker: str, containing: str = "") -> list[UserInfo]:
        """The users of a broker, or those whose name contains a text [listUser, 3005]."""
        return self._run(lambda: self._core.users(broker=broker, containing=containing))

    def user(self, username: str, *, broker: str) -> UserInfo | None:
        """A user; None if there is no such user [getUser, 3004]."""
        return self._run(lambda: self._core.user(username, broker=broker))

    def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: str = "Normal",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Make a user, ``Normal`` or ``Super``; gives the brokers' addresses [createUser, 3001]."""
        return self._run(
            lambda: self._core.create_user(
                username, password, user_type=user_type, cluster=cluster, broker=broker
            )
        )

    def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        user_status: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change a user's password, type or status, ``enable`` or ``disable`` [updateUser,
        3002].
        """
        return self._run(
            lambda: self._core.update_user(
                username,
                password=password,
                user_type=user_type,
                user_status=user_status,
                cluster=cluster,
                broker=broker,
            )
        )

    def delete_user(
        self, username: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete a user [deleteUser, 3003]."""
        return self._run(lambda: self._core.delete_user(username, cluster=cluster, broker=broker))

    def acls(
        self, *, broker: str, subject_containing: str = "", resource_containing: str = ""
    ) -> list[AclInfo]:
        """What every subject may do, or some, by parts of their or the resources' names
        [listAcl, 3010].
        """
        return self._run(
            lambda: self._core.acls(
                broker=broker,
                subject_containing=subject_containing,
                resource_containing=resource_containing,
            )
        )

    def acl(self, subject: str, *, broker: str) -> AclInfo | None:
        """What a subject may do; None if nothing is known of it [getAcl, 3009]."""
        return self._run(lambda: self._core.acl(subject, broker=broker))

    def create_acl(
        self, acl_info: AclInfo, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Let a subject (``User:name``) do things; gives the brokers' addresses [createAcl,
        3006].
        """
        return self._run(lambda: self._core.create_acl(acl_info, cluster=cluster, broker=broker))

    def update_acl(
        self, acl_info: AclInfo, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Change what a subject may do [updateAcl, 3007]."""
        return self._run(lambda: self._core.update_acl(acl_info, cluster=cluster, broker=broker))

    def delete_acl(
        self,
        subject: str,
        *,
        resource: str | None = None,
        policy_type: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Take rights away, of one resource or all [deleteAcl, 3008]."""
        return self._run(
            lambda: self._core.delete_acl(
                subject, resource=resource, policy_type=policy_type, cluster=cluster, broker=broker
            )
        )

    def access_keys(self, *, broker: str) -> AccessKeys:
        """The access keys of a broker [getAclConfig of 4.x, 54]."""
        return self._run(lambda: self._core.access_keys(broker=broker))

    def access_key_versions(self, *, broker: str) -> GetAccessInfoResponse:
        """Which version of its access keys a broker has [clusterAclConfigVersion of 4.x, 52]."""
        return self._run(lambda: self._core.access_key_versions(broker=broker))

    def update_access_key(
        self, key: AccessKey, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Make or change an access key [updateAclConfig of 4.x, 50]."""
        return self._run(lambda: self._core.update_access_key(key, cluster=cluster, broker=broker))

    def delete_access_key(
        self, access_key: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete an access key [deleteAccessConfig of 4.x, 51]."""
        return self._run(
            lambda: self._core.delete_access_key(access_key, cluster=cluster, broker=broker)
        )

    def update_white_addresses(
        self, addresses: Iterable[str], *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """From which addresses clients need no access key [updateGlobalWhiteAddr of 4.x, 53]."""
        return self._run(
            lambda: self._core.update_white_addresses(addresses, cluster=cluster, broker=broker)
        )
