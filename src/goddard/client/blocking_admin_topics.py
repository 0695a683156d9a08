"""Administration of topics: making and deleting them, where they live, what they hold.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Iterable, Mapping

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.admin.values import TopicStats
from goddard.client.blocking import BlockingClient
from goddard.client.values import MessageQueue
from goddard.protocol.bodies import (
    TopicConfig,
    TopicConfigTable,
    TopicQueueMappingDetail,
    TopicRoute,
)
from goddard.protocol.bodies_admin import ConsumeQueueAnswer, TopicConfigAndMapping
from goddard.protocol.codes import Permission


class AdminTopics(BlockingClient[AsyncAdmin]):
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
