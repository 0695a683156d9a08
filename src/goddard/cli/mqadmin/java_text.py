"""Values as RocketMQ's Java tools print them: times, columns, objects and JSON. Pure.

Java prints an object with its own ``toString``, a map in the order of its hash table, and JSON as
fastjson does.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from goddard.nameserver.javamap import in_map_order
from goddard.protocol.codes import Permission

if TYPE_CHECKING:
    from goddard.client.message import ReceivedMessage
    from goddard.protocol.bodies import TopicConfig
    from goddard.protocol.bodies_admin import (
        GroupRetryPolicy,
        SubscriptionGroupConfig,
        TopicConfigAndMapping,
    )

# The capacity that Java's decoder gives to the map of a message's properties.
_PROPERTIES_CAPACITY: Final = 128
_HIGHEST_VERSION: Final = 612
# Its number, major, minor and patch release, and patch releases of each minor one; newest first.
_VERSIONS: Final = ((212, 4, 0, 0, 10), (86, 3, 3, 1, 9), (46, 3, 1, 0, 10))
_PERMISSIONS: Final = ((Permission.READ, "R"), (Permission.WRITE, "W"), (Permission.INHERIT, "X"))


# --- Times ----------------------------------------------------------------------------------------


def local_time(time_ms: int) -> datetime:
    """In the zone of this machine."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone()


def seconds_text(time_ms: int) -> str:
    """``2026-11-18 10:30:00``."""
    return local_time(time_ms - time_ms % 1000).strftime("%Y-%m-%d %H:%M:%S")


def millis_text(time_ms: int) -> str:
    """``2026-11-18 10:30:00,123``."""
    return f"{seconds_text(time_ms)},{time_ms % 1000:03d}"


# --- Columns --------------------------------------------------------------------------------------


def front(text: str, size: int) -> str:
    """The beginning of a name that is longer than its column."""
    return text[:size]


def boolean(value: bool | None) -> str:
    return "null" if value is None else "true" if value else "false"


def text_or_null(value: object) -> str:
    return "null" if value is None else str(value)


def map_text(values: Mapping[str, str], capacity: int = 16) -> str:
    """``{a=1, b=2}`` in the order of a HashMap."""
    items = ", ".join(f"{key}={values[key]}" for key in in_map_order(values, capacity))
    return f"{{{items}}}"


# --- JSON -----------------------------------------------------------------------------------------


def pretty_json(value: Any) -> str:
    """Indented as fastjson does: tabs, no spaces, and unquoted keys that are numbers."""
    return "\n".join(_json_lines(value, ""))


def _json_lines(value: Any, indent: str) -> list[str]:
    if isinstance(value, Mapping):
        items = [(_json_key(key) + ":", item) for key, item in value.items()]
        return _block("{", items, "}", indent)
    if isinstance(value, (list, tuple)):
        return _block("[", [("", item) for item in value], "]", indent)
    return [json.dumps(value, ensure_ascii=False)]


def _json_key(key: Any) -> str:
    return str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)


def _block(begin: str, items: Sequence[tuple[str, Any]], end: str, indent: str) -> list[str]:
    inner = indent + "\t"
    lines = [begin]
    for number, (prefix, item) in enumerate(items, 1):
        first, *others = _json_lines(item, inner)
        lines += [f"{inner}{prefix}{first}", *others]
        if number < len(items):
            lines[-1] += ","
    if not items:
        lines.append(inner)
    return [*lines, indent + end]


# --- Objects --------------------------------------------------------------------------------------


def version_text(version: int) -> str:
    """The name of a client's version, such as V5_4_0.

    The number counts releases, each after its snapshot: ten patch releases of each minor one, ten
    minor releases of each major one. 3.3 to 3.9 have no patch release 0, and 3.0 has others.
    """
    for first, major, minor, patch, patches in _VERSIONS:
        if first <= version < _HIGHEST_VERSION:
            minors, patches_since = divmod((version - first) // 2, patches)
            majors, minor_now = divmod(minor + minors, 10)
            snapshot = "_SNAPSHOT" if (version - first) % 2 == 0 else ""
            return f"V{major + majors}_{minor_now}_{patch + patches_since}{snapshot}"
    return "V3_0_0" if 0 <= version < _HIGHEST_VERSION else "HIGHER_VERSION"


def number_text(value: float) -> str:
    """A double."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = f"{value:.17E}".partition("E")
    digits = repr(value * 10.0 ** -int(exponent)) if exponent else mantissa
    return f"{digits}E{int(exponent)}"


def permission_text(bits: int) -> str:
    """``RW-``."""
    return "".join(letter if bits & bit else "-" for bit, letter in _PERMISSIONS)


def topic_text(config: "TopicConfig | TopicConfigAndMapping") -> str:
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={permission_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={boolean(config.order)}, attributes={map_text(config.attributes)}]"
    )


def group_fields(config: "SubscriptionGroupConfig") -> list[tuple[str, str]]:
    """The fields of a group in Java's order."""
    attributes = config.attributes
    return [
        ("groupName", config.group_name),
        ("consumeEnable", boolean(config.consume_enable)),
        ("consumeFromMinEnable", boolean(config.consume_from_min_enable)),
        ("consumeBroadcastEnable", boolean(config.consume_broadcast_enable)),
        ("consumeMessageOrderly", boolean(config.consume_message_orderly)),
        ("retryQueueNums", str(config.retry_queue_nums)),
        ("retryMaxTimes", str(config.retry_max_times)),
        ("groupRetryPolicy", retry_policy_text(config.group_retry_policy)),
        ("brokerId", str(config.broker_id)),
        ("whichBrokerWhenConsumeSlowly", str(config.which_broker_when_consume_slowly)),
        ("notifyConsumerIdsChangedEnable", boolean(config.notify_consumer_ids_changed_enable)),
        ("groupSysFlag", str(config.group_sys_flag)),
        ("consumeTimeoutMinute", str(config.consume_timeout_minute)),
        ("subscriptionDataSet", text_or_null(config.subscription_data_set)),
        ("attributes", map_text(attributes)),
    ]


def group_text(config: "SubscriptionGroupConfig") -> str:
    fields = ", ".join(f"{name}={value}" for name, value in group_fields(config))
    return f"SubscriptionGroupConfig{{{fields}}}"


def retry_policy_text(policy: "GroupRetryPolicy") -> str:
    exponential, customized = policy.exponential_retry_policy, policy.customized_retry_policy
    first = second = "null"
    if exponential is not None:
        first = (
            f"ExponentialRetryPolicy{{initial={exponential.initial}, max={exponential.max}, "
            f"multiplier={exponential.multiplier}}}"
        )
    if customized is not None:
        delays = ", ".join(map(str, customized.next))
        second = f"CustomizedRetryPolicy{{next=[{delays}]}}"
    return (
        f"GroupRetryPolicy{{type={policy.type}, exponentialRetryPolicy={first}, "
        f"customizedRetryPolicy={second}}}"
    )


def properties_text(properties: Mapping[str, str]) -> str:
    return map_text(properties, _PROPERTIES_CAPACITY)


def message_text(
    one: "ReceivedMessage", properties: Mapping[str, str], *, with_body: bool = True
) -> str:
    """``properties`` may have more than those of the message."""
    signed = (byte - 256 if byte > 127 else byte for byte in one.body)
    body = f"[{', '.join(map(str, signed))}]" if with_body else "null"
    transaction = properties.get("__transactionId__")
    return (
        f"MessageExt [brokerName={one.broker_name or 'null'}, queueId={one.queue_id}, "
        f"storeSize={one.store_size_bytes}, queueOffset={one.queue_offset}, "
        f"sysFlag={one.sys_flag}, bornTimestamp={one.born_timestamp_ms}, "
        f"bornHost=/{one.born_host}, storeTimestamp={one.store_timestamp_ms}, "
        f"storeHost=/{one.store_host}, msgId={one.offset_message_id}, "
        f"commitLogOffset={one.physical_offset}, bodyCRC={one.body_crc}, "
        f"reconsumeTimes={one.reconsume_times}, "
        f"preparedTransactionOffset={one.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{one.topic}', flag={one.flag}, "
        f"properties={properties_text(properties)}, body={body}, "
        f"transactionId='{text_or_null(transaction)}'}}]"
    )
