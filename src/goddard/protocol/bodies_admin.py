"""JSON bodies of administration: groups, connections, statistics, offset tables, users, replicas.

See ``goddard.protocol.bodies`` for how bodies are decoded and encoded.
"""

from typing import Any

from goddard.protocol.bodies import (
    Body,
    ConsumeFromWhere,
    ConsumeType,
    DataVersion,
    Int32,
    Int64,
    MessageModel,
    MessageQueue,
    TopicConfig,
    TopicQueueMappingDetail,
    written,
)
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import Permission

# --- Topics ---------------------------------------------------------------------------------------


class TopicConfigList(Body):
    topic_config_list: list[TopicConfig] = written(list)


class TopicConfigAndMapping(Body):
    """A TopicConfig with the queue mapping of a static topic."""

    attributes: dict[str, str] = written(dict)
    mapping_detail: TopicQueueMappingDetail | None = None
    order: bool = written(False)
    perm: Int32 = written(int(Permission.READ | Permission.WRITE))
    read_queue_nums: Int32 = written(16)
    topic_filter_type: str = written("SINGLE_TAG")
    topic_name: str = written("")
    topic_sys_flag: Int32 = written(0)
    write_queue_nums: Int32 = written(16)


class StaticTopicPlan(Body):
    """The mappings of a static topic on all brokers, and the brokers that gain or lose queues
    (Java: TopicRemappingDetailWrapper).
    """

    broker_config_map: dict[str, TopicConfigAndMapping] = written(dict)
    broker_to_map_in: list[str] = written(list)
    broker_to_map_out: list[str] = written(list)
    epoch: Int64 = written(0)
    topic: str = written("")
    type: str = written("")


class TopicOffset(Body):
    last_update_timestamp: Int64 = written(0)
    max_offset: Int64 = written(0)
    min_offset: Int64 = written(0)


class TopicStatsTable(Body):
    offset_table: dict[MessageQueue, TopicOffset] = written(dict)
    topic_put_tps: float = written(0.0)


class ConsumeQueueData(Body):
    bit_map: str | None = None
    eval: bool = written(False)
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Int64 = written(0)
    physic_size: Int32 = written(0)
    tags_code: Int64 = written(0)


class ConsumeQueueAnswer(Body):
    filter_data: str | None = None
    max_queue_index: Int64 = written(0)
    min_queue_index: Int64 = written(0)
    queue_data: list[ConsumeQueueData] = written(list)
    subscription_data: SubscriptionData | None = None


# --- Groups ---------------------------------------------------------------------------------------


class ExponentialRetryPolicy(Body):
    """Delays in milliseconds."""

    initial: Int64 = written(5_000)
    max: Int64 = written(7_200_000)
    multiplier: Int64 = written(2)


class CustomizedRetryPolicy(Body):
    """Delays in milliseconds, one for each retry."""

    next: list[Int64] = written(list)


class GroupRetryPolicy(Body):
    customized_retry_policy: CustomizedRetryPolicy | None = None
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    type: str = written("CUSTOMIZED")


class SimpleSubscription(Body):
    expression: str | None = None
    expression_type: str | None = None
    topic: str = written("")
    version: Int64 = written(0)


class SubscriptionGroupConfig(Body):
    attributes: dict[str, str] = written(dict)
    broker_id: Int64 = written(0)
    consume_broadcast_enable: bool = written(True)
    consume_enable: bool = written(True)
    consume_from_min_enable: bool = written(True)
    consume_message_orderly: bool = written(False)
    consume_timeout_minute: Int32 = written(15)
    group_name: str = written("")
    group_retry_policy: GroupRetryPolicy = written(GroupRetryPolicy)
    group_sys_flag: Int32 = written(0)
    notify_consumer_ids_changed_enable: bool = written(True)
    retry_max_times: Int32 = written(16)
    retry_queue_nums: Int32 = written(1)
    subscription_data_set: list[SimpleSubscription] | None = None
    which_broker_when_consume_slowly: Int64 = written(1)


class SubscriptionGroupList(Body):
    group_config_list: list[SubscriptionGroupConfig] = written(list)


class SubscriptionGroupTable(Body):
    data_version: DataVersion = written(DataVersion)
    # Group, then topic: bits of the forbidden operations.
    forbidden_table: dict[str, dict[str, Int32]] = written(dict)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = written(dict)


class GroupForbidden(Body):
    group: str = written("")
    readable: bool | None = None
    topic: str = written("")


class GroupList(Body):
    group_list: list[str] = written(list)


class SubscriptionAnswer(Body):
    group: str = written("")
    subscription_data: SubscriptionData | None = None
    topic: str | None = None


# --- Connections ----------------------------------------------------------------------------------


class Connection(Body):
    client_addr: str = written("")
    client_id: str = written("")
    language: str = written("JAVA")
    version: Int32 = written(0)


class ConsumerConnections(Body):
    connection_set: list[Connection] = written(list)
    consume_from_where: ConsumeFromWhere | None = None
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    subscription_table: dict[str, SubscriptionData] = written(dict)


class ProducerConnections(Body):
    connection_set: list[Connection] = written(list)


class ProducerInfo(Body):
    client_id: str = written("")
    language: str = written("JAVA")
    last_update_timestamp: Int64 = written(0)
    remote_ip: str = written("", name="remoteIP")
    version: Int32 = written(0)


class ProducerTable(Body):
    """All producers, by group."""

    data: dict[str, list[ProducerInfo]] = written(dict)


# --- Consumption ----------------------------------------------------------------------------------


class ConsumeOffsets(Body):
    """The offsets of a group in one queue (Java: OffsetWrapper)."""

    broker_offset: Int64 = written(0)
    consumer_offset: Int64 = written(0)
    last_timestamp: Int64 = written(0)
    pull_offset: Int64 = written(0)


class ConsumeStats(Body):
    consume_tps: float = written(0.0)
    offset_table: dict[MessageQueue, ConsumeOffsets] = written(dict)


class BrokerConsumeStats(Body):
    """The statistics of every group, each in a separate object (Java: ConsumeStatsList)."""

    broker_addr: str = written("")
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = written(list)
    total_diff: Int64 = written(0)
    total_inflight_diff: Int64 = written(0)


class QueueTimeSpan(Body):
    """Times in milliseconds, and as ``yyyy-MM-dd#HH:mm:ss:SSS`` for tools."""

    consume_time_stamp: Int64 = written(0)
    consume_time_stamp_str: str | None = None
    delay_time: Int64 = written(0)
    max_time_stamp: Int64 = written(0)
    max_time_stamp_str: str | None = None
    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = written(0)
    min_time_stamp_str: str | None = None


class ConsumeTimeSpans(Body):
    consume_time_span_set: list[QueueTimeSpan] = written(list)


class StatsItem(Body):
    avgpt: float = written(0.0)
    sum: Int64 = written(0)
    tps: float = written(0.0)


class BrokerStats(Body):
    stats_day: StatsItem = written(StatsItem)
    stats_hour: StatsItem = written(StatsItem)
    stats_minute: StatsItem = written(StatsItem)


# --- Offset tables --------------------------------------------------------------------------------


class ConsumerOffsetTable(Body):
    """Offsets by ``topic@group``, then queue; also the file consumerOffset.json."""

    data_version: DataVersion | None = None
    group_topic_map: dict[str, list[str]] | None = None
    offset_table: dict[str, dict[Int32, Int64]] = written(dict)
    pull_offset_table: dict[str, dict[Int32, Int64]] | None = None
    reset_offset_table: dict[str, dict[Int32, Int64]] | None = None
    topic_group_map: dict[str, list[str]] | None = None


class DelayOffsetTable(Body):
    """Offsets by delay level; also the file delayOffset.json."""

    data_version: DataVersion | None = None
    offset_table: dict[Int32, Int64] = written(dict)


class CorrectionOffsets(Body):
    correction_offsets: dict[Int32, Int64] = written(dict)


# --- Users and ACLs -------------------------------------------------------------------------------


class UserInfo(Body):
    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None

    def __repr__(self) -> str:
        """Omits the password, because a repr may be logged."""
        return f"UserInfo({self.username!r}, {self.user_type}, {self.user_status})"


class PolicyEntry(Body):
    actions: list[str] | None = None
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class Policy(Body):
    entries: list[PolicyEntry] = written(list)
    policy_type: str | None = None


class AclInfo(Body):
    policies: list[Policy] = written(list)
    subject: str | None = None


# --- Access keys (4.5 to 5.3) ---------------------------------------------------------------------


class AccessKey(Body):
    access_key: str | None = None
    admin: bool = written(False)
    default_group_perm: str | None = None
    default_topic_perm: str | None = None
    group_perms: list[str] | None = None
    secret_key: str | None = None
    topic_perms: list[str] | None = None
    white_remote_address: str | None = None

    def __repr__(self) -> str:
        """Omits the secret, because a repr may be logged."""
        return f"AccessKey({self.access_key!r}, admin={self.admin})"


class AccessKeys(Body):
    global_white_addrs: list[str] = written(list)
    plain_access_configs: list[AccessKey] = written(list)


# --- Replication ----------------------------------------------------------------------------------


class HaConnection(Body):
    addr: str = written("")
    diff: Int64 = written(0)
    in_sync: bool = written(False)
    slave_ack_offset: Int64 = written(0)
    transfer_from_where: Int64 = written(0)
    transferred_byte_in_second: Int64 = written(0)


class HaClient(Body):
    activated: bool | None = None
    last_read_timestamp: Int64 = written(0)
    last_write_timestamp: Int64 = written(0)
    master_addr: str | None = None
    master_flush_offset: Int64 = written(0)
    max_offset: Int64 = written(0)
    transferred_byte_in_second: Int64 = written(0)


class HaStatus(Body):
    ha_client_runtime_info: HaClient = written(HaClient)
    ha_connection_info: list[HaConnection] = written(list)
    in_sync_slave_nums: Int32 = written(0)
    master: bool = written(False)
    master_commit_log_max_offset: Int64 = written(0)


class EpochEntry(Body):
    end_offset: Int64 = written(2**63 - 1)
    epoch: Int32 = written(0)
    start_offset: Int64 = written(0)


class EpochCache(Body):
    broker_id: Int64 = written(0)
    broker_name: str = written("")
    cluster_name: str = written("")
    epoch_list: list[EpochEntry] = written(list)
    max_offset: Int64 = written(0)


class ReplicaIdentity(Body):
    """A replica in the metadata of a controller."""

    alive: bool | None = None
    broker_address: str | None = None
    broker_id: Int64 | None = None
    broker_name: str | None = None


class ReplicasInfo(Body):
    in_sync_replicas: list[ReplicaIdentity] = written(list)
    master_address: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    not_in_sync_replicas: list[ReplicaIdentity] = written(list)
    sync_state_set_epoch: Int32 | None = None


class BrokerReplicas(Body):
    """By broker name (Java: BrokerReplicasInfo)."""

    replicas_info_table: dict[str, ReplicasInfo] = written(dict)


class SyncStateSet(Body):
    sync_state_set: list[Int64] = written(list)
    sync_state_set_epoch: Int32 = written(0)


# --- RocksDB --------------------------------------------------------------------------------------


class RocksdbProgress(Body):
    """``check_status``: 0 OK, 1 not OK, 2 still running, 3 failed."""

    check_result: str | None = None
    check_status: Int32 = written(0)


# --- Timers ---------------------------------------------------------------------------------------


class TimerMetrics(Body):
    """Forwarded unchanged: a slave copies the metrics of its master."""

    data_version: DataVersion | None = None
    timing_count: dict[str, Any] = written(dict)
