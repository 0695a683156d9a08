"""Headers of sending, pulling, popping, acknowledging, transactions, offsets and membership.

Fields are in RocketMQ's order. A request code without a class here or in the other ``headers_*``
modules has no header.
"""

from collections.abc import Mapping

from goddard.protocol.headers.header import Header, Int32, Int64, wire


class RpcRequest(Header):
    """The fields that 5.x adds to most requests: namespace, broker name, one-way."""

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None


class TopicRequest(RpcRequest):
    """Requests about a topic; ``lo`` says whether the queue is a logical one of a static topic."""

    lo: bool | None = None


class QueueRequest(TopicRequest):
    topic: str
    queue_id: Int32


class OffsetResponse(Header):
    offset: Int64


# --- Sending --------------------------------------------------------------------------------------


class SendRequest(TopicRequest):
    producer_group: str
    topic: str
    # The topic whose settings an auto-created topic gets.
    default_topic: str
    default_topic_queue_nums: Int32
    # Negative: any queue.
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None


class SendRequestV2(Header):
    """SendRequest with one-letter wire names."""

    producer_group: str = wire("a")
    topic: str = wire("b")
    default_topic: str = wire("c")
    default_topic_queue_nums: Int32 = wire("d")
    queue_id: Int32 = wire("e")
    sys_flag: Int32 = wire("f")
    born_timestamp: Int64 = wire("g")
    flag: Int32 = wire("h")
    properties: str | None = wire("i", default=None)
    reconsume_times: Int32 | None = wire("j", default=None)
    unit_mode: bool | None = wire("k", default=None)
    max_reconsume_times: Int32 | None = wire("l", default=None)
    batch: bool | None = wire("m", default=None)
    bname: str | None = wire("n", default=None)
    ns: str | None = None
    nsd: bool | None = None
    oway: bool | None = None
    lo: bool | None = None

    @classmethod
    def from_v1(cls, header: SendRequest) -> "SendRequestV2":
        return cls(**vars(header))

    @classmethod
    def decode_v1(cls, fields: Mapping[str, str]) -> SendRequest:
        """Decode short wire names into the header with the long ones."""
        header = SendRequest.__new__(SendRequest)
        header.__dict__ = cls._decode_values(fields)
        return header


def decode_send(fields: Mapping[str, str]) -> SendRequest:
    """Decode a send header by its names: clients send short and long ones with any send code."""
    return SendRequestV2.decode_v1(fields) if "b" in fields else SendRequest.decode(fields)


class SendResponse(Header):
    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)


class ReplyRequest(TopicRequest):
    """A reply, pushed to the client that sent the request."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


class SendBackRequest(RpcRequest):
    # The physical offset.
    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    # Goddard's own: why the consumer failed. RocketMQ's brokers ignore it.
    consume_failure: str | None = None


class RecallRequest(TopicRequest):
    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallResponse(Header):
    msg_id: str


# --- Transactions ---------------------------------------------------------------------------------


class EndTransactionRequest(RpcRequest):
    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    # The transaction bits of a system flag: 0 unknown, 8 commit, 12 roll back.
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class CheckTransactionRequest(RpcRequest):
    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


# --- Pulling --------------------------------------------------------------------------------------


class PullRequest(QueueRequest):
    consumer_group: str
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    # RocketMQ spells it "Froward".
    proxy_froward_client_id: str | None = None


class PullResponse(Header):
    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


# --- Popping --------------------------------------------------------------------------------------


class PopRequest(QueueRequest):
    consumer_group: str
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopResponse(Header):
    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekRequest(QueueRequest):
    max_msg_nums: Int32
    consumer_group: str


class AckRequest(QueueRequest):
    consumer_group: str
    extra_info: str
    offset: Int64


class ChangeInvisibleTimeRequest(QueueRequest):
    consumer_group: str
    extra_info: str
    offset: Int64
    invisible_time: Int64


class ChangeInvisibleTimeResponse(Header):
    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequest(QueueRequest):
    consumer_group: str
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None


class NotificationResponse(Header):
    has_msg: bool
    polling_full: bool = False


class PollingInfoRequest(QueueRequest):
    consumer_group: str


class PollingInfoResponse(Header):
    polling_num: Int32


# --- Offsets --------------------------------------------------------------------------------------


class QueryConsumerOffsetRequest(QueueRequest):
    consumer_group: str
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetRequest(QueueRequest):
    consumer_group: str
    commit_offset: Int64


class SearchOffsetRequest(QueueRequest):
    timestamp: Int64
    # LOWER or UPPER.
    boundary_type: str | None = None


class GetMaxOffsetRequest(QueueRequest):
    committed: bool | None = None


class GetMinOffsetRequest(QueueRequest): ...


class GetEarliestStoreTimeRequest(QueueRequest): ...


class GetEarliestStoreTimeResponse(Header):
    timestamp: Int64


# --- Looking up messages --------------------------------------------------------------------------


class QueryMessageRequest(TopicRequest):
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    # K: keys, U: unique key, T: tag.
    index_type: str | None = None
    # Where the previous page of the result ended.
    last_key: str | None = None
    by_unique_key: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)


class QueryMessageResponse(Header):
    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequest(Header):
    topic: str | None = None
    # The physical offset.
    offset: Int64


# --- Membership -----------------------------------------------------------------------------------


class HeartbeatRequest(RpcRequest): ...


class HeartbeatResponse(Header):
    supports_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    subscription_changed: bool | None = wire("IS_SUB_CHANGE", default=None)


class UnregisterClientRequest(RpcRequest):
    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListRequest(RpcRequest):
    consumer_group: str


class NotifyConsumerIdsRequest(RpcRequest):
    consumer_group: str


class LockQueuesRequest(RpcRequest): ...


class UnlockQueuesRequest(RpcRequest): ...
