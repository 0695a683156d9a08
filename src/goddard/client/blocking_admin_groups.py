"""Administration of consumer groups: making and deleting them, what they consume, how far they are.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Iterable, Mapping

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.admin.values import BrokerProgress, GroupProgress
from goddard.client.blocking import BlockingClient
from goddard.protocol.bodies import RequestMode
from goddard.protocol.bodies_admin import (
    GroupForbidden,
    GroupRetryPolicy,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from goddard.protocol.bodies_client import SubscriptionData


class AdminGroups(BlockingClient[AsyncAdmin]):
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
