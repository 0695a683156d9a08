"""Administration of brokers: their addresses, configuration, statistics, maintenance and replicas.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from goddard.client import broker_api, queries
from goddard.client.admin import requests
from goddard.client.admin.requests import (
    AdminBase,
    ask,
    ask_each,
    broker_address,
    broker_addresses,
    chosen_brokers,
    properties_of,
)
from goddard.client.admin.values import BrokerPlace
from goddard.client.arguments import BrokerId, Offset, ReadAheadMode, TimeMs
from goddard.client.checks import did_you_mean
from goddard.config import format_properties
from goddard.errors import ConfigError
from goddard.protocol.bodies import (
    BrokerMemberGroup,
    BrokerMemberGroupAnswer,
    ClusterInfo,
    KvTable,
)
from goddard.protocol.bodies_admin import (
    BrokerStats,
    EpochCache,
    HaStatus,
    RocksdbProgress,
)
from goddard.protocol.codes import RequestCode
from goddard.protocol.headers.admin import (
    CheckRocksdbProgressRequest,
    ExportRocksdbConfigRequest,
    SetReadAheadRequest,
    SwitchTimerEngineRequest,
    ViewBrokerStatsRequest,
)
from goddard.protocol.headers.cluster import (
    AddBrokerRequest,
    ChangeRoleRequest,
    GetBrokerMemberGroupRequest,
    RemoveBrokerRequest,
    ResetMasterFlushOffsetRequest,
)

# The container starts or stops the broker before it answers.
_CONTAINER_TIMEOUT_MS = 20_000
_EXPORT_TIMEOUT_MS = 30_000
# Any combination of the bits for inherit, write and read.
_PERMISSIONS: Final = frozenset(str(bits) for bits in range(8))


class BrokerMethods(AdminBase):
    """List brokers, read and change their configuration, and maintain them."""

    # Clusters and brokers

    async def cluster_info(self) -> ClusterInfo:
        """All clusters, their brokers and the addresses of the brokers [clusterList, 106]."""
        return await queries.cluster_info(self)

    async def brokers(self, *, cluster: str | None = None) -> list[BrokerPlace]:
        """All broker processes of a cluster, or of all clusters, sorted by cluster, name and id
        [106].
        """
        info = await queries.cluster_info(self)
        return sorted(
            (
                BrokerPlace(data.cluster, data.broker_name, broker_id, address)
                for data in requests.brokers_of(info, cluster)
                for broker_id, address in data.broker_addrs.items()
            ),
            key=lambda place: (place.cluster, place.name, place.broker_id),
        )

    async def clusters(self) -> list[str]:
        """The names of all clusters, sorted [106]."""
        return sorted((await queries.cluster_info(self)).cluster_addr_table)

    async def broker_name(self, address: str) -> str:
        """The name of the broker at an address [106]."""
        return await queries.broker_name(self, address)

    async def broker_members(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        """The replicas of a broker, by id; empty if there is no such broker [901; from 5.0 on]."""
        header = GetBrokerMemberGroupRequest(cluster_name=cluster, broker_name=broker_name)
        response = await requests.ask_name_server(self, RequestCode.GET_BROKER_MEMBER_GROUP, header)
        found = (await broker_api.read(response, BrokerMemberGroupAnswer)).broker_member_group
        return found or BrokerMemberGroup(cluster=cluster, broker_name=broker_name)

    # Configuration and statistics

    async def broker_config(self, broker: str) -> dict[str, str]:
        """All properties of a broker [getBrokerConfig, 26]."""
        address = await broker_address(self, broker)
        return properties_of(await ask(self, address, RequestCode.GET_BROKER_CONFIG))

    async def update_broker_config(
        self,
        properties: Mapping[str, str],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change properties of a broker, or of every master of a cluster [updateBrokerConfig, 25].

        Returns the addresses of the brokers. Brokers ignore names that they do not know: then it
        is a ConfigError that names them, and the other properties are changed.
        """
        permission = properties.get("brokerPermission", "6")
        if permission.strip() not in _PERMISSIONS:
            raise ConfigError(f"brokerPermission value: {permission} is invalid.")
        found = await chosen_brokers(self, broker, cluster)
        body = format_properties(properties).encode()
        changed = await ask_each(self, found, RequestCode.UPDATE_BROKER_CONFIG, body=body)
        for address in changed:
            known = await self.broker_config(address)
            unknown = sorted(set(properties) - set(known))
            if unknown:
                raise ConfigError(
                    f"the broker {address} has no property {', '.join(unknown)}"
                    f"{did_you_mean(unknown[0], known)}"
                )
        return changed

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """The runtime figures of a broker, as text: rates, queue sizes, version and so on
        [brokerStatus, 28].
        """
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted((await broker_api.read(response, KvTable)).table.items()))

    async def broker_stats(self, stats_name: str, key: str, *, broker: str) -> BrokerStats:
        """One statistic over the last minute, hour and day [statsAll, 315].

        For example ``TOPIC_PUT_NUMS`` of a topic, or ``GROUP_GET_NUMS`` of ``topic@group``. A
        broker refuses with SYSTEM_ERROR if it has not counted anything for it yet.
        """
        address = await broker_address(self, broker)
        header = ViewBrokerStatsRequest(stats_name=stats_name, stats_key=key)
        response = await ask(self, address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return await broker_api.read(response, BrokerStats)

    # Maintenance

    async def clean_expired_consume_queues(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete consume queue files whose messages are deleted [cleanExpiredCQ, 306].

        On all brokers, unless a cluster or a broker is given.
        """
        found = await broker_addresses(self, broker=broker, cluster=cluster)
        return await ask_each(self, found, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def clean_unused_topics(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete the consume queues of topics that no longer exist [cleanUnusedTopic, 316].

        On all brokers, unless a cluster or a broker is given.
        """
        found = await broker_addresses(self, broker=broker, cluster=cluster)
        return await ask_each(self, found, RequestCode.CLEAN_UNUSED_TOPIC)

    async def delete_expired_commit_logs(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Delete expired commit log files now, not at the configured hour [deleteExpiredCommitLog,
        329].

        On all brokers, unless a cluster or a broker is given.
        """
        found = await broker_addresses(self, broker=broker, cluster=cluster)
        return await ask_each(self, found, RequestCode.DELETE_EXPIRED_COMMITLOG)

    # Replicas

    async def ha_status(self, broker: str) -> HaStatus:
        """The replication state of a broker: of its replicas, or as a replica [haStatus, 907; from
        5.0 on].
        """
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_BROKER_HA_STATUS)
        return await broker_api.read(response, HaStatus)

    async def broker_epochs(self, broker: str) -> EpochCache:
        """The offsets at which the master of a broker changed [getBrokerEpoch, 1007; with a
        controller].
        """
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_BROKER_EPOCH_CACHE)
        return await broker_api.read(response, EpochCache)

    async def reset_master_flush_offset(self, broker: str, physical_offset: Offset) -> None:
        """Tell a replica how far its master has flushed its log [resetMasterFlushOffset, 908]."""
        address = await broker_address(self, broker)
        header = ResetMasterFlushOffsetRequest(master_flush_offset=physical_offset)
        await ask(self, address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)

    async def promote_broker(
        self, broker: str, *, role: str | None = None, force: bool = False
    ) -> None:
        """Make a slave of Goddard, given by its address, the master of its group [1008].

        ``role`` is SYNC_MASTER or ASYNC_MASTER, by default that of its last master. It refuses
        while the master answers, and, without ``force``, if acknowledged messages could be lost.
        """
        address = await broker_address(self, broker)
        header = ChangeRoleRequest(master_address=address, broker_role=role, force=force)
        await ask(self, address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header)

    async def demote_broker(self, broker: str, *, broker_id: BrokerId, force: bool = False) -> None:
        """Make a master of Goddard a slave with this id; it refuses writes from then on [1008].

        Without ``force``, it stays the master if no slave has its whole log within five seconds.
        """
        address = await broker_address(self, broker)
        header = ChangeRoleRequest(broker_id=broker_id, force=force)
        await ask(self, address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header)

    # Broker containers

    async def add_broker(self, container_address: str, config_path: str) -> None:
        """Have a container start a broker, with a configuration file on its machine [addBroker,
        902].
        """
        await ask(
            self,
            container_address,
            RequestCode.ADD_BROKER,
            AddBrokerRequest(config_path=config_path),
            timeout_ms=_CONTAINER_TIMEOUT_MS,
        )

    async def remove_broker(
        self, container_address: str, cluster: str, broker_name: str, broker_id: BrokerId
    ) -> None:
        """Have a container stop a broker [removeBroker, 903]."""
        header = RemoveBrokerRequest(
            broker_name=broker_name, broker_cluster_name=cluster, broker_id=broker_id
        )
        await ask(
            self,
            container_address,
            RequestCode.REMOVE_BROKER,
            header,
            timeout_ms=_CONTAINER_TIMEOUT_MS,
        )

    # Storage of 5.x

    async def cold_data_flow(self, broker: str) -> str:
        """The limits for reads of cold data, as JSON text [getColdDataFlowCtrInfo, 2003]."""
        address = await broker_address(self, broker)
        response = await ask(self, address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        return bytes(response.body).decode("utf-8", "replace")

    async def update_cold_data_flow(
        self,
        thresholds: Mapping[str, int],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Limit the cold reads of groups, in bytes, by group [updateColdDataFlowCtrGroupConfig,
        2001].
        """
        found = await chosen_brokers(self, broker, cluster)
        body = format_properties(
            {group: str(limit) for group, limit in thresholds.items()}
        ).encode()
        return await ask_each(self, found, RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=body)

    async def remove_cold_data_flow(
        self, group: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Remove the limit of a group's cold reads [removeColdDataFlowCtrGroupConfig, 2002]."""
        found = await chosen_brokers(self, broker, cluster)
        code = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
        return await ask_each(self, found, code, body=group.encode())

    async def set_read_ahead_mode(
        self, mode: ReadAheadMode, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Set the read-ahead of commit log files: 0 is normal, 1 is none
        [setCommitLogReadAheadMode, 2004].
        """
        found = await chosen_brokers(self, broker, cluster)
        header = SetReadAheadRequest(mode=mode)
        return await ask_each(self, found, RequestCode.SET_COMMITLOG_READ_MODE, header)

    async def set_broker_read_ahead_mode(self, broker: str, mode: ReadAheadMode) -> str:
        """Like ``set_read_ahead_mode`` for one broker; returns what the broker says about it
        [setCommitLogReadAheadMode, 2004].
        """
        address = await broker_address(self, broker)
        header = SetReadAheadRequest(mode=mode)
        response = await ask(self, address, RequestCode.SET_COMMITLOG_READ_MODE, header)
        return response.remark or ""

    async def switch_timer_engine(
        self, engine: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Choose where brokers keep timed messages: ``R`` in RocksDB, ``F`` in files
        [switchTimerEngine, 5001; from 5.4 on].
        """
        found = await chosen_brokers(self, broker, cluster)
        header = SwitchTimerEngineRequest(engine=engine)
        return await ask_each(self, found, RequestCode.SWITCH_TIMER_ENGINE, header)

    async def export_pop_records(self, broker: str) -> None:
        """Have a broker move its records of popped messages from RocksDB to files [exportPopRecord,
        200056].
        """
        address = await broker_address(self, broker)
        await ask(self, address, RequestCode.POP_ROLLBACK, timeout_ms=_EXPORT_TIMEOUT_MS)

    async def rocksdb_progress(
        self, broker: str, topic: str, *, since_ms: TimeMs = 0
    ) -> RocksdbProgress:
        """Whether the RocksDB queues of a topic have all entries of its files
        [checkRocksdbCqWriteProgress, 354].
        """
        address = await broker_address(self, broker)
        header = CheckRocksdbProgressRequest(topic=topic, check_store_time=since_ms)
        response = await ask(self, address, RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, header)
        return await broker_api.read(response, RocksdbProgress)

    async def export_rocksdb_config(self, broker: str, kinds: Iterable[str]) -> None:
        """Have a broker write tables from RocksDB to JSON files [rocksDBConfigToJson, 355].

        ``kinds`` may contain topics, subscriptionGroups and consumerOffsets.
        """
        address = await broker_address(self, broker)
        header = ExportRocksdbConfigRequest(config_type=";".join(kinds))
        await ask(self, address, RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, header)
