"""Administration of brokers: which there are, their configuration, figures, upkeep and replicas.

Every function is a method of ``Admin``; see there. A docstring's brackets give the verb of mqadmin
and the request code.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from goddard.client import broker_api
from goddard.client.admin import requests as admin_link
from goddard.client.admin.requests import (
    AdminLink,
    ask,
    ask_each,
    broker_address,
    broker_addresses,
    chosen_brokers,
    properties_of,
)
from goddard.client.admin.values import BrokerPlace
from goddard.client.errors import BrokerNotFoundError
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
from goddard.protocol.headers_admin import (
    CheckRocksdbProgressRequest,
    ExportRocksdbConfigRequest,
    SetReadAheadRequest,
    ViewBrokerStatsRequest,
)
from goddard.protocol.headers_cluster import (
    AddBrokerRequest,
    GetBrokerMemberGroupRequest,
    RemoveBrokerRequest,
    ResetMasterFlushOffsetRequest,
)

# A container starts or stops a whole broker within the request.
_CONTAINER_TIMEOUT_MS = 20_000
_EXPORT_TIMEOUT_MS = 30_000
# None, or any of inherit, write and read.
_PERMISSIONS: Final = frozenset(str(bits) for bits in range(8))


# --- Which there are ------------------------------------------------------------------------------


async def cluster_info(admin: AdminLink) -> ClusterInfo:
    """Clusters, their brokers and the addresses of these [clusterList, 106]."""
    return await admin_link.cluster_info(admin)


async def brokers(admin: AdminLink, *, cluster: str | None = None) -> list[BrokerPlace]:
    """Every broker process of a cluster, or of all, sorted by cluster, name and id [106]."""
    info = await admin_link.cluster_info(admin)
    return sorted(
        (
            BrokerPlace(data.cluster, data.broker_name, broker_id, address)
            for data in admin_link.brokers_of(info, cluster)
            for broker_id, address in data.broker_addrs.items()
        ),
        key=lambda place: (place.cluster, place.name, place.broker_id),
    )


async def clusters(admin: AdminLink) -> list[str]:
    """The names of all clusters, sorted [106]."""
    return sorted((await admin_link.cluster_info(admin)).cluster_addr_table)


async def broker_name(admin: AdminLink, address: str) -> str:
    """The name of the broker at an address [106]."""
    info = await admin_link.cluster_info(admin)
    for data in info.broker_addr_table.values():
        if address in data.broker_addrs.values():
            return data.broker_name
    raise BrokerNotFoundError(address)


async def broker_members(admin: AdminLink, cluster: str, broker_name: str) -> BrokerMemberGroup:
    """The replicas of one broker, by id; none if there is no such broker [901; from 5.0 on]."""
    header = GetBrokerMemberGroupRequest(cluster_name=cluster, broker_name=broker_name)
    response = await admin_link.ask_name_server(admin, RequestCode.GET_BROKER_MEMBER_GROUP, header)
    found = (await broker_api.read(response, BrokerMemberGroupAnswer)).broker_member_group
    return found or BrokerMemberGroup(cluster=cluster, broker_name=broker_name)


# --- Configuration and figures --------------------------------------------------------------------


async def broker_config(admin: AdminLink, broker: str) -> dict[str, str]:
    """All properties of a broker [getBrokerConfig, 26]."""
    address = await broker_address(admin, broker)
    return properties_of(await ask(admin, address, RequestCode.GET_BROKER_CONFIG))


async def update_broker_config(
    admin: AdminLink,
    properties: Mapping[str, str],
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Change properties of a broker, or of every master of a cluster; gives their addresses
    [updateBrokerConfig, 25]."""
    permission = properties.get("brokerPermission", "6")
    if permission.strip() not in _PERMISSIONS:
        raise ConfigError(f"brokerPermission value: {permission} is invalid.")
    found = await chosen_brokers(admin, broker, cluster)
    body = format_properties(properties).encode()
    return await ask_each(admin, found, RequestCode.UPDATE_BROKER_CONFIG, body=body)


async def broker_runtime(admin: AdminLink, broker: str) -> dict[str, str]:
    """A broker's figures, as text: rates, sizes of queues, version and so on [brokerStatus, 28]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return dict(sorted((await broker_api.read(response, KvTable)).table.items()))


async def broker_stats(admin: AdminLink, stats_name: str, key: str, *, broker: str) -> BrokerStats:
    """One figure over the last minute, hour and day [statsAll, 315].

    Such as ``TOPIC_PUT_NUMS`` of a topic or ``GROUP_GET_NUMS`` of ``topic@group``. A broker refuses
    with SYSTEM_ERROR what it has not counted yet.
    """
    address = await broker_address(admin, broker)
    header = ViewBrokerStatsRequest(stats_name=stats_name, stats_key=key)
    response = await ask(admin, address, RequestCode.VIEW_BROKER_STATS_DATA, header)
    return await broker_api.read(response, BrokerStats)


# --- Upkeep ---------------------------------------------------------------------------------------


async def clean_expired_consume_queues(
    admin: AdminLink, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Delete consume queue files whose messages are gone, everywhere unless said where
    [cleanExpiredCQ, 306]."""
    found = await broker_addresses(admin, broker=broker, cluster=cluster)
    return await ask_each(admin, found, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


async def clean_unused_topics(
    admin: AdminLink, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Delete the consume queues of topics that do not exist any more [cleanUnusedTopic, 316]."""
    found = await broker_addresses(admin, broker=broker, cluster=cluster)
    return await ask_each(admin, found, RequestCode.CLEAN_UNUSED_TOPIC)


async def delete_expired_commit_logs(
    admin: AdminLink, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Delete commit log files that are old enough now, not at the hour set for it
    [deleteExpiredCommitLog, 329]."""
    found = await broker_addresses(admin, broker=broker, cluster=cluster)
    return await ask_each(admin, found, RequestCode.DELETE_EXPIRED_COMMITLOG)


# --- Replicas -------------------------------------------------------------------------------------


async def ha_status(admin: AdminLink, broker: str) -> HaStatus:
    """How far a broker's replicas are, or how far it is as one [haStatus, 907; from 5.0 on]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.GET_BROKER_HA_STATUS)
    return await broker_api.read(response, HaStatus)


async def broker_epochs(admin: AdminLink, broker: str) -> EpochCache:
    """When a broker's log changed masters [getBrokerEpoch, 1007; with a controller]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.GET_BROKER_EPOCH_CACHE)
    return await broker_api.read(response, EpochCache)


async def reset_master_flush_offset(admin: AdminLink, broker: str, physical_offset: int) -> None:
    """Tell a replica how far its master has flushed [resetMasterFlushOffset, 908]."""
    address = await broker_address(admin, broker)
    header = ResetMasterFlushOffsetRequest(master_flush_offset=physical_offset)
    await ask(admin, address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)


# --- Broker containers ----------------------------------------------------------------------------


async def add_broker(admin: AdminLink, container_address: str, config_path: str) -> None:
    """Have a container start a broker with a configuration file of its machine [addBroker, 902]."""
    await ask(
        admin,
        container_address,
        RequestCode.ADD_BROKER,
        AddBrokerRequest(config_path=config_path),
        timeout_ms=_CONTAINER_TIMEOUT_MS,
    )


async def remove_broker(
    admin: AdminLink, container_address: str, cluster: str, broker_name: str, broker_id: int
) -> None:
    """Have a container stop a broker [removeBroker, 903]."""
    header = RemoveBrokerRequest(
        broker_name=broker_name, broker_cluster_name=cluster, broker_id=broker_id
    )
    await ask(
        admin,
        container_address,
        RequestCode.REMOVE_BROKER,
        header,
        timeout_ms=_CONTAINER_TIMEOUT_MS,
    )


# --- Storage of 5.x -------------------------------------------------------------------------------


async def cold_data_flow(admin: AdminLink, broker: str) -> str:
    """How reads of cold data are limited, as JSON text [getColdDataFlowCtrInfo, 2003]."""
    address = await broker_address(admin, broker)
    response = await ask(admin, address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    return bytes(response.body).decode("utf-8", "replace")


async def update_cold_data_flow(
    admin: AdminLink,
    thresholds: Mapping[str, int],
    *,
    cluster: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Limit the cold reads of groups: bytes by group [updateColdDataFlowCtrGroupConfig, 2001]."""
    found = await chosen_brokers(admin, broker, cluster)
    body = format_properties({group: str(limit) for group, limit in thresholds.items()}).encode()
    return await ask_each(admin, found, RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=body)


async def remove_cold_data_flow(
    admin: AdminLink, group: str, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """Take a group's limit of cold reads away [removeColdDataFlowCtrGroupConfig, 2002]."""
    found = await chosen_brokers(admin, broker, cluster)
    code = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
    return await ask_each(admin, found, code, body=group.encode())


async def set_read_ahead_mode(
    admin: AdminLink, mode: int, *, cluster: str | None = None, broker: str | None = None
) -> list[str]:
    """How the system reads commit log files ahead: 0 as usual, 1 not [setCommitLogReadAheadMode,
    2004]."""
    found = await chosen_brokers(admin, broker, cluster)
    header = SetReadAheadRequest(mode=mode)
    return await ask_each(admin, found, RequestCode.SET_COMMITLOG_READ_MODE, header)


async def export_pop_records(admin: AdminLink, broker: str) -> None:
    """Have a broker move its records of popped messages from RocksDB to files [exportPopRecord,
    200056]."""
    address = await broker_address(admin, broker)
    await ask(admin, address, RequestCode.POP_ROLLBACK, timeout_ms=_EXPORT_TIMEOUT_MS)


async def rocksdb_progress(
    admin: AdminLink, broker: str, topic: str, *, since_ms: int = 0
) -> RocksdbProgress:
    """Whether a topic's queues in RocksDB have all that its files have
    [checkRocksdbCqWriteProgress, 354]."""
    address = await broker_address(admin, broker)
    header = CheckRocksdbProgressRequest(topic=topic, check_store_time=since_ms)
    response = await ask(admin, address, RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, header)
    return await broker_api.read(response, RocksdbProgress)


async def export_rocksdb_config(admin: AdminLink, broker: str, kinds: Iterable[str]) -> None:
    """Have a broker write tables that it keeps in RocksDB as JSON files [rocksDBConfigToJson, 355].

    Kinds are topics, subscriptionGroups and consumerOffsets.
    """
    address = await broker_address(admin, broker)
    header = ExportRocksdbConfigRequest(config_type=";".join(kinds))
    await ask(admin, address, RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, header)
