"""Headers of the requests to name servers, between brokers, and to controllers.

Fields are in RocketMQ's order. A request code without a class here has no header.
"""

from goddard.protocol.headers.header import Header, Int32, Int64, wire

# --- Routes ---------------------------------------------------------------------------------------


class GetRouteRequest(Header):
    topic: str
    accept_standard_json_only: bool | None = None


class DeleteTopicInNameServerRequest(Header):
    topic: str
    cluster_name: str | None = None


class RegisterTopicRequest(Header):
    topic: str


class GetTopicsByClusterRequest(Header):
    cluster: str


class WipeWritePermissionRequest(Header):
    broker_name: str


class WipeWritePermissionResponse(Header):
    wipe_topic_count: Int32


class AddWritePermissionRequest(Header):
    broker_name: str


class AddWritePermissionResponse(Header):
    add_topic_count: Int32


# --- KV configuration -----------------------------------------------------------------------------


class PutKvRequest(Header):
    namespace: str
    key: str
    value: str


class GetKvRequest(Header):
    namespace: str
    key: str


class GetKvResponse(Header):
    value: str | None = None


class DeleteKvRequest(Header):
    namespace: str
    key: str


class ListKvRequest(Header):
    namespace: str


# --- Brokers at the name server -------------------------------------------------------------------


class RegisterBrokerRequest(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    # Absent: a broker older than 5.0, which has no acting masters.
    enable_acting_master: bool | None = None
    compressed: bool = False
    # CRC-32 of the body as sent, without the sign bit; 0: not checked.
    body_crc32: Int32 = 0
    zone_name: str | None = wire("__ZONE_NAME", default=None)


class RegisterBrokerResponse(Header):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerRequest(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequest(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponse(Header):
    changed: bool


class BrokerHeartbeatRequest(Header):
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    # RocketMQ spells this one "Mills".
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class GetBrokerMemberGroupRequest(Header):
    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdRequest(Header):
    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


# --- Replication ----------------------------------------------------------------------------------


class ExchangeHaInfoRequest(Header):
    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeHaInfoResponse(ExchangeHaInfoRequest): ...


class ResetMasterFlushOffsetRequest(Header):
    master_flush_offset: Int64


class AddBrokerRequest(Header):
    config_path: str | None = None


class RemoveBrokerRequest(Header):
    broker_name: str
    broker_cluster_name: str
    broker_id: Int64


# --- Controller -----------------------------------------------------------------------------------


class AlterSyncStateSetRequest(Header):
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    invoke_time: Int64 | None = None


class AlterSyncStateSetResponse(Header):
    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequest(Header):
    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    designate_elect: bool = False
    invoke_time: Int64 | None = None


class ElectMasterResponse(Header):
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterAtControllerRequest(Header):
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    invoke_time: Int64 | None = None


class RegisterAtControllerResponse(Header):
    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class GetReplicaInfoRequest(Header):
    broker_name: str | None = None


class GetReplicaInfoResponse(Header):
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class GetControllerMetadataResponse(Header):
    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class NotifyBrokerRoleRequest(Header):
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class ChangeRoleRequest(NotifyBrokerRoleRequest):
    """The same request, to a broker of Goddard by an operator.

    The broker at ``master_address`` becomes the master, any other a slave with ``broker_id``; with
    ``force`` also if messages could be lost.
    """

    broker_id: Int64 | None = None
    broker_role: str | None = None
    force: bool = False


class CleanBrokerDataRequest(Header):
    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 | None = None


class GetNextBrokerIdRequest(Header):
    cluster_name: str | None = None
    broker_name: str | None = None


class GetNextBrokerIdResponse(Header):
    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequest(Header):
    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Int64 | None = None
    register_check_code: str | None = None


class ApplyBrokerIdResponse(Header):
    cluster_name: str | None = None
    broker_name: str | None = None
