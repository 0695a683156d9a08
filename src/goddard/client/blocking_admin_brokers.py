"""Administration of brokers: which there are, their configuration, figures, upkeep and replicas.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Iterable, Mapping

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.admin.values import BrokerPlace
from goddard.client.blocking import BlockingClient
from goddard.protocol.bodies import BrokerMemberGroup, ClusterInfo
from goddard.protocol.bodies_admin import BrokerStats, EpochCache, HaStatus, RocksdbProgress


class AdminBrokers(BlockingClient[AsyncAdmin]):
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
