"""Headers of the administration requests: topics, groups, statistics, users and ACLs.

Fields are in RocketMQ's order. A request code without a class here or in the other ``headers_*``
modules has no header.
"""

from goddard.protocol.headers.header import Header, Int32, Int64, wire
from goddard.protocol.headers.message import RpcRequest, TopicRequest

# --- Brokers --------------------------------------------------------------------------------------


class GetBrokerConfigResponse(Header):
    # A DataVersion as JSON.
    version: str


class ViewBrokerStatsRequest(Header):
    stats_name: str
    stats_key: str


class SetReadAheadRequest(Header):
    # 0: the system's default (MADV_NORMAL), 1: no read-ahead (MADV_RANDOM).
    mode: Int32 = wire("READ_AHEAD_MODE")


class SwitchTimerEngineRequest(Header):
    # R: RocksDB, F: files.
    engine: str = wire("E_T")


# --- Topics ---------------------------------------------------------------------------------------


class CreateTopicRequest(TopicRequest):
    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    # The changes: "+key=value,-key".
    attributes: str | None = None
    force: bool | None = None


class CreateTopicListRequest(RpcRequest): ...


class DeleteTopicRequest(TopicRequest):
    topic: str


class GetTopicConfigRequest(TopicRequest):
    topic: str


class GetTopicStatsRequest(TopicRequest):
    topic: str


class GetAllTopicConfigRequest(Header):
    topic_seq: Int32 | None = None
    # A DataVersion as JSON, or empty.
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class GetAllTopicConfigResponse(Header):
    total_topic_num: Int32 | None = None


class QueryTopicConsumersRequest(TopicRequest):
    topic: str


class QueryConsumeQueueRequest(TopicRequest):
    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class ResumeCheckHalfMessageRequest(Header):
    topic: str | None = None
    msg_id: str | None = None


# --- Groups and clients ---------------------------------------------------------------------------


class GetAllGroupConfigRequest(Header):
    group_seq: Int32 | None = None
    # A DataVersion as JSON, or empty.
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetAllGroupConfigResponse(Header):
    total_group_num: Int32 | None = None


class GetGroupConfigRequest(RpcRequest):
    group: str


class DeleteGroupRequest(RpcRequest):
    group_name: str
    clean_offset: bool | None = None
    # The name of clean_offset in 4.9.
    remove_offset: bool | None = None


class GetConsumerConnectionsRequest(RpcRequest):
    consumer_group: str


class GetProducerConnectionsRequest(RpcRequest):
    producer_group: str


class GetConsumeStatsRequest(TopicRequest):
    consumer_group: str
    topic: str | None = None
    # Several, joined by ";".
    topic_list: str | None = None


class GetBrokerConsumeStatsRequest(Header):
    is_order: bool


class GetConsumerRunningInfoRequest(RpcRequest):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyRequest(TopicRequest):
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class QueryTopicsByConsumerRequest(RpcRequest):
    group: str


class QuerySubscriptionRequest(TopicRequest):
    group: str
    topic: str | None = None


class QueryConsumeTimeSpanRequest(TopicRequest):
    topic: str
    group: str


class UpdateGroupForbiddenRequest(TopicRequest):
    group: str
    topic: str
    readable: bool | None = None


# --- Consumer offsets -----------------------------------------------------------------------------


class ResetOffsetRequest(TopicRequest):
    group: str
    topic: str
    queue_id: Int32 | None = None
    # None or -1: use the timestamp.
    offset: Int64 | None = None
    # Negative: the end.
    timestamp: Int64
    is_force: bool = False


class GetConsumerStatusRequest(TopicRequest):
    topic: str
    group: str
    client_addr: str | None = None


class QueryCorrectionOffsetRequest(TopicRequest):
    filter_groups: str | None = None
    compare_group: str
    topic: str


class CloneGroupOffsetRequest(RpcRequest):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


# --- RocksDB --------------------------------------------------------------------------------------


class CheckRocksdbProgressRequest(Header):
    topic: str
    check_store_time: Int64 = 0


class ExportRocksdbConfigRequest(Header):
    config_type: str


# --- Users and ACLs (5.3 and later) ---------------------------------------------------------------


class UserRequest(Header):
    username: str | None = None


class ListUsersRequest(Header):
    filter: str | None = None


class AclRequest(Header):
    subject: str | None = None


class DeleteAclRequest(Header):
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequest(Header):
    subject_filter: str | None = None
    resource_filter: str | None = None


# --- Access keys (4.5 to 5.3) ---------------------------------------------------------------------


class UpdateAccessKeyRequest(Header):
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    # Several, joined by ",".
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccessKeyRequest(Header):
    access_key: str


class GetAccessInfoResponse(Header):
    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


class UpdateWhiteAddressesRequest(Header):
    global_white_addrs: str
    acl_file_full_path: str | None = None
