"""The state of consumers, as they report it: as text, and what is wrong with it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from goddard.cli.mqadmin.java_text import boolean, local_time
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_client import (
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
)

_QUEUES: Final = "%-64s  %-32s  %-4s  %-20s"
_OFFSET: Final = "%-32s  %-32s  %-4d  %-20d"
_STATE: Final = "%-64s  %-32s  %-4d  %s"
_POPS: Final = "%-32s  %-32s  %-4s  %-20s"
_POP: Final = "%-32s  %-32s  %-4d  %s"
_RATES: Final = "%-64s  %14s %14s %14s %14s %18s %25s"
_PASSIVE: Final = "CONSUME_PASSIVELY"
_SETTLED_MS: Final = 2 * 60 * 1000
_BLOCKED_MS: Final = 60 * 1000


def info_text(info: ConsumerRunningInfo) -> str:
    """All of it, as Java prints it."""
    parts = ["#Consumer Properties#"]
    parts += [f"{name:<40}: {value}" for name, value in sorted(info.properties.items())]
    parts += ["", "", "#Consumer Subscription#"]
    for number, data in enumerate(sorted(info.subscription_set, key=_topic), 1):
        is_class = boolean(data.class_filter_mode)
        parts.append(
            f"{number:03d} Topic: {data.topic:<40} ClassFilter: {is_class:<8} "
            f"SubExpression: {data.sub_string}"
        )
    queues = sorted((MessageQueue.from_body(key), value) for key, value in _items(info.mq_table))
    header = _QUEUES % ("#Topic", "#Broker Name", "#QID", "#Consumer Offset")
    parts += ["", "", "#Consumer Offset#", header]
    parts += [_OFFSET % (*queue, state.commit_offset) for queue, state in queues]
    header = _QUEUES % ("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo")
    parts += ["", "", "#Consumer MQ Detail#", header]
    parts += [_STATE % (*queue, queue_text(state)) for queue, state in queues]
    header = _POPS % ("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo")
    parts += ["", "", "#Consumer Pop Detail#", header]
    pops = sorted((MessageQueue.from_body(key), value) for key, value in _items(info.mq_pop_table))
    parts += [_POP % (*queue, _pop_text(state)) for queue, state in pops]
    columns = ("#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS")
    header = _RATES % ("#Topic", *columns, "#ConsumeFailedMsgsInHour")
    parts += ["", "", "#Consumer RT&TPS#", header]
    for topic, rates in sorted(info.status_table.items()):
        values = (rates.pull_rt, rates.pull_tps, rates.consume_rt, rates.consume_ok_tps)
        numbers = " ".join(f"{value:14.2f}" for value in values)
        failed = f"{rates.consume_failed_tps:18.2f} {rates.consume_failed_msgs:25d}"
        parts.append(f"{topic:<32}  {numbers} {failed}")
    parts += ["", "", "#User Consume Info#"]
    parts += [f"{name:<40}: {value}" for name, value in sorted(info.user_consumer_info.items())]
    if info.jstack is not None:
        parts += ["", "", "#Consumer jstack#", info.jstack]
    return "\n".join(parts) + "\n"


def _topic(data: SubscriptionData) -> str:
    return data.topic


def _items(table: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return table.items()


def queue_text(state: ProcessQueueInfo) -> str:
    return (
        f"ProcessQueueInfo [commitOffset={state.commit_offset}, "
        f"cachedMsgMinOffset={state.cached_msg_min_offset}, "
        f"cachedMsgMaxOffset={state.cached_msg_max_offset}, "
        f"cachedMsgCount={state.cached_msg_count}, "
        f"cachedMsgSizeInMiB={state.cached_msg_size_in_mib}, "
        f"transactionMsgMinOffset={state.transaction_msg_min_offset}, "
        f"transactionMsgMaxOffset={state.transaction_msg_max_offset}, "
        f"transactionMsgCount={state.transaction_msg_count}, locked={boolean(state.locked)}, "
        f"tryUnlockTimes={state.try_unlock_times}, "
        f"lastLockTimestamp={_time_digits(state.last_lock_timestamp)}, "
        f"droped={boolean(state.droped)}, "
        f"lastPullTimestamp={_time_digits(state.last_pull_timestamp)}, "
        f"lastConsumeTimestamp={_time_digits(state.last_consume_timestamp)}]"
    )


def _pop_text(state: PopProcessQueueInfo) -> str:
    return (
        f"PopProcessQueueInfo [waitAckCount:{state.wait_ack_count}, "
        f"droped:{boolean(state.droped)}, lastPopTimestamp:{state.last_pop_timestamp}]"
    )


def _time_digits(time_ms: int) -> str:
    return local_time(time_ms).strftime("%Y%m%d%H%M%S") + f"{time_ms % 1000:03d}"


def is_push(info: ConsumerRunningInfo) -> bool:
    return info.properties.get("PROP_CONSUME_TYPE") == _PASSIVE


def have_same_subscriptions(infos: Mapping[str, ConsumerRunningInfo], now_ms: int) -> bool:
    """Whether all members subscribe to the same, if they are push consumers that have run for two
    minutes.
    """
    ordered = [info for _, info in sorted(infos.items())]
    started = ordered[0].properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
    is_settled = started.isdecimal() and now_ms - int(started) > _SETTLED_MS
    if not (is_push(ordered[0]) and is_settled):
        return True
    return len({_subscriptions(info) for info in ordered}) == 1


def _subscriptions(info: ConsumerRunningInfo) -> frozenset[bytes]:
    """Without the versions, which are times."""
    return frozenset(
        msgspec.json.encode((one.topic, one.sub_string, sorted(one.tags_set), one.expression_type))
        for one in info.subscription_set
    )


def queue_problems(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> list[str]:
    """Queues of a push consumer that do not progress."""
    if not is_push(info):
        return []
    is_orderly = info.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true"
    problems = []
    for key, state in info.mq_table.items():
        name = f"{client_id} {MessageQueue.from_body(key)}"
        if is_orderly:
            if not state.locked:
                waited_ms = now_ms - state.last_lock_timestamp
                problems.append(f"{name} can't lock for a while, {waited_ms}ms")
            elif state.droped and state.try_unlock_times > 0:
                problems.append(f"{name} unlock {state.try_unlock_times} times, still failed")
        elif state.cached_msg_count > 0 and now_ms - state.last_consume_timestamp > _BLOCKED_MS:
            waited_ms = now_ms - state.last_consume_timestamp
            problems.append(f"{name} can't consume for a while, maybe blocked, {waited_ms}ms")
    return problems
