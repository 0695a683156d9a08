"""JSON bodies of producers and consumers: heartbeats, subscriptions, locks, offsets, popping.

See ``goddard.protocol.bodies`` for how bodies are decoded and encoded.
"""

from goddard.protocol.bodies import (
    Body,
    ConsumeFromWhere,
    ConsumeResult,
    ConsumeType,
    Int32,
    Int64,
    MessageModel,
    MessageQueue,
    RequestMode,
    written,
)

# --- Heartbeats -----------------------------------------------------------------------------------


class SubscriptionData(Body):
    """A subscription to a topic: an expression and, for tags, their names and hashes."""

    class_filter_mode: bool = written(False)
    code_set: list[Int32] = written(list)
    expression_type: str = written("TAG")
    sub_string: str = written("*")
    # Milliseconds; a broker uses the newest subscription of a group.
    sub_version: Int64 = written(0)
    tags_set: list[str] = written(list)
    topic: str = written("")


class ProducerData(Body):
    group_name: str = written("")


class ConsumerData(Body):
    consume_from_where: ConsumeFromWhere = written(ConsumeFromWhere.LAST_OFFSET)
    consume_type: ConsumeType = written(ConsumeType.PASSIVELY)
    group_name: str = written("")
    message_model: MessageModel = written(MessageModel.CLUSTERING)
    subscription_data_set: list[SubscriptionData] = written(list)
    unit_mode: bool = written(False)


class HeartbeatData(Body):
    client_id: str = written("", name="clientID")
    consumer_data_set: list[ConsumerData] = written(list)
    heartbeat_fingerprint: Int32 = written(0)
    producer_data_set: list[ProducerData] = written(list)
    without_sub: bool = written(False)


class CheckClientBody(Body):
    client_id: str = written("")
    group: str = written("")
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumerList(Body):
    consumer_id_list: list[str] = written(list)


# --- Queue locks ----------------------------------------------------------------------------------


class LockQueuesBody(Body):
    """Asks to lock queues for an orderly consumer, or to unlock them."""

    client_id: str = written("")
    consumer_group: str = written("")
    mq_set: list[MessageQueue] = written(list)
    only_this_broker: bool = written(False)


class LockQueuesAnswer(Body):
    locked: list[MessageQueue] = written(list, name="lockOKMQSet")


# --- Offsets of a client --------------------------------------------------------------------------


class ResetOffsetBody(Body):
    offset_table: dict[MessageQueue, Int64] = written(dict)


class QueueOffset(Body):
    broker_name: str = written("")
    offset: Int64 = written(0)
    queue_id: Int32 = written(0)
    topic: str = written("")


class ResetOffsetList(Body):
    """ResetOffsetBody for the C++ client, whose parser does not support object keys."""

    offset_table: list[QueueOffset] = written(list)


class ClientOffsets(Body):
    """The answer to code 221 (Java: GetConsumerStatusBody)."""

    message_queue_table: dict[MessageQueue, Int64] = written(dict)


class GroupOffsets(Body):
    """The answer to code 223, by client id."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = written(dict)


# --- Consuming directly ---------------------------------------------------------------------------


class ConsumeDirectlyResult(Body):
    auto_commit: bool = written(True)
    consume_result: ConsumeResult | None = None
    order: bool = written(False)
    remark: str | None = None
    # RocketMQ spells it "Mills".
    spent_time_mills: Int64 = written(0)


# --- Running information --------------------------------------------------------------------------


class ProcessQueueInfo(Body):
    cached_msg_count: Int32 = written(0)
    cached_msg_max_offset: Int64 = written(0)
    cached_msg_min_offset: Int64 = written(0)
    cached_msg_size_in_mib: Int32 = written(0, name="cachedMsgSizeInMiB")
    commit_offset: Int64 = written(0)
    droped: bool = written(False)
    last_consume_timestamp: Int64 = written(0)
    last_lock_timestamp: Int64 = written(0)
    last_pull_timestamp: Int64 = written(0)
    locked: bool = written(False)
    transaction_msg_count: Int32 = written(0)
    transaction_msg_max_offset: Int64 = written(0)
    transaction_msg_min_offset: Int64 = written(0)
    try_unlock_times: Int64 = written(0)


class PopProcessQueueInfo(Body):
    droped: bool = written(False)
    last_pop_timestamp: Int64 = written(0)
    wait_ack_count: Int32 = written(0)


class ConsumeStatus(Body):
    """Rates of a consumer: RT in milliseconds, TPS in messages per second."""

    consume_failed_msgs: Int64 = written(0)
    consume_failed_tps: float = written(0.0, name="consumeFailedTPS")
    consume_ok_tps: float = written(0.0, name="consumeOKTPS")
    consume_rt: float = written(0.0, name="consumeRT")
    pull_rt: float = written(0.0, name="pullRT")
    pull_tps: float = written(0.0, name="pullTPS")


class ConsumerRunningInfo(Body):
    """The state of a running consumer. Brokers forward the bytes; clients and tools decode them."""

    jstack: str | None = None
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = written(dict)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = written(dict)
    properties: dict[str, str] = written(dict)
    status_table: dict[str, ConsumeStatus] = written(dict)
    subscription_set: list[SubscriptionData] = written(list)
    user_consumer_info: dict[str, str] = written(dict)


# --- Popping --------------------------------------------------------------------------------------


class BatchAck(Body):
    """Acknowledges many messages of one pop. Wire names are short: it is sent often."""

    bits: str = written("", name="b")
    consumer_group: str = written("", name="c")
    invisible_time: Int64 = written(0, name="it")
    pop_time: Int64 = written(0, name="pt")
    queue_id: Int32 = written(0, name="q")
    retry: str = written("0", name="r")
    revive_queue_id: Int32 = written(0, name="rq")
    start_offset: Int64 = written(0, name="so")
    topic: str = written("", name="t")


class BatchAckBody(Body):
    acks: list[BatchAck] = written(list)
    broker_name: str = written("")


class QueryAssignmentBody(Body):
    client_id: str = written("")
    consumer_group: str = written("")
    message_model: MessageModel = written(MessageModel.CLUSTERING)
    strategy_name: str | None = None
    topic: str = written("")


class QueueAssignment(Body):
    attachments: dict[str, str] | None = None
    message_queue: MessageQueue | None = None
    mode: RequestMode = written(RequestMode.PULL)


class QueryAssignmentAnswer(Body):
    # None: keep the current assignment.
    message_queue_assignments: list[QueueAssignment] | None = None


class SetRequestModeBody(Body):
    consumer_group: str = written("")
    mode: RequestMode = written(RequestMode.PULL)
    pop_share_queue_num: Int32 = written(0)
    topic: str = written("")


class RequestModeTable(Body):
    """Request modes by topic, then group."""

    message_request_mode_map: dict[str, dict[str, SetRequestModeBody]] = written(dict)
