"""Names of topics and groups: allowed characters, reserved prefixes, system topics.

``topic_problem`` and ``group_problem`` return RocketMQ's own texts, because they are sent as
remarks and clients show them. Lengths are counted in characters, as Java does; the allowed ones are
ASCII.
"""

import re
from typing import Final

MAX_TOPIC_LENGTH: Final = 127
# The names of retry and dead-letter topics are a prefix and the name of a group.
MAX_RETRY_TOPIC_LENGTH: Final = 255
# RocketMQ 5.4 allows 120; every release before it allowed 255, and such groups exist.
MAX_GROUP_LENGTH: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
NAMESPACE_SEPARATOR: Final = "%"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
SYNC_BROKER_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
# The broker name that stands for the logical queues of a static topic.
LOGICAL_BROKER_PREFIX: Final = "__syslo__"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_TRANS_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
"""The system topics of every cluster. A broker adds topics named after itself and its cluster."""

SYSTEM_GROUPS: Final = frozenset(
    {
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
        "CID_ONS-HTTP-PROXY",
        "CLIENT_INNER_PRODUCER",
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "SELF_TEST_P_GROUP",
        "TOOLS_CONSUMER",
        "__MONITOR_CONSUMER",
    }
)
"""Groups of RocketMQ's brokers, clients and tools; others begin with ``SYSTEM_GROUP_PREFIX``."""

UNSENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Topics that only a broker writes to."""

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch
_ALLOWED_TEXT: Final = "^[%|a-zA-Z0-9_-]+$"


def topic_problem(topic: object) -> str | None:
    """Why this is not a valid topic name, in RocketMQ's words; None if it is valid."""
    if isinstance(topic, str) and len(topic) <= MAX_TOPIC_LENGTH and _ALLOWED(topic):
        return None  # the usual case, at once
    if not isinstance(topic, str):
        return f"The specified topic is {topic!r}; it has to be text"
    if not topic.strip():
        return "The specified topic is blank."
    if not _ALLOWED(topic):
        return (
            f"The specified topic: {topic}, contains illegal characters, "
            f"allowing only {_ALLOWED_TEXT}"
        )
    if is_retry_topic(topic) or is_dlq_topic(topic):
        if len(topic) > MAX_RETRY_TOPIC_LENGTH:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, "
                f"and it's longer than topic max length: {MAX_RETRY_TOPIC_LENGTH}"
            )
    elif len(topic) > MAX_TOPIC_LENGTH:
        return f"The specified topic: {topic}, is longer than topic max length: {MAX_TOPIC_LENGTH}"
    return None


def group_problem(group: object) -> str | None:
    """Why this is not a valid group name, in RocketMQ's words; None if it is valid."""
    if not isinstance(group, str):
        return f"The specified group is {group!r}; it has to be text"
    if not group.strip():
        return "The specified group is blank."
    if not _ALLOWED(group):
        return (
            f"The specified group: {group}, contains illegal characters, "
            f"allowing only {_ALLOWED_TEXT}"
        )
    if len(group) > MAX_GROUP_LENGTH:
        return f"The specified group: {group}, is longer than group max length: {MAX_GROUP_LENGTH}"
    return None


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def is_internal_topic(topic: str) -> bool:
    """Whether brokers create the topic for themselves, for retries or for dead letters."""
    return is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic)


def is_lmq(topic: str) -> bool:
    return topic.startswith(LMQ_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def pop_retry_topic(group: str, topic: str, *, is_v2: bool = False) -> str:
    """POP's retry topic of one topic; V2 separates group and topic unambiguously."""
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def reply_topic(cluster: str) -> str:
    return cluster + REPLY_TOPIC_SUFFIX


def revive_topic(cluster: str) -> str:
    return REVIVE_TOPIC_PREFIX + cluster


def with_namespace(name: str, namespace: str) -> str:
    """Add the namespace to a topic or group as 4.x clients do; system names are unchanged."""
    if not namespace or not name or is_system_topic(name) or is_system_group(name):
        return name
    prefix, bare = _split_prefix(name)
    if bare.startswith(namespace + NAMESPACE_SEPARATOR):
        return name
    return f"{prefix}{namespace}{NAMESPACE_SEPARATOR}{bare}"


def without_namespace(name: str, namespace: str) -> str:
    prefix, bare = _split_prefix(name)
    return prefix + bare.removeprefix(namespace + NAMESPACE_SEPARATOR) if namespace else name


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
