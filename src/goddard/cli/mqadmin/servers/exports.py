"""Verbs that write what brokers know to JSON files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.java_text import version_text
from goddard.cli.mqadmin.messaging.stats import count_of_day
from goddard.cli.mqadmin.private_files import write_private
from goddard.cli.terminal.mistakes import WrongUsageError
from goddard.client.admin.values import BrokerPlace
from goddard.client.errors import BrokerError
from goddard.errors import GoddardError
from goddard.protocol.bodies import TopicConfigTable
from goddard.protocol.bodies_admin import BrokerStats, SubscriptionGroupTable
from goddard.protocol.codes import CURRENT_VERSION
from goddard.protocol.names import (
    SCHEDULE_TOPIC,
    SYSTEM_GROUPS,
    TRANS_HALF_TOPIC,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
)

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_FOLDER: Final = "/tmp/rocketmq/export"
_PERMISSION_BITS: Final = 7
_PROPERTIES: Final = (
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
)


def _write(call: Call, name: str, value: Any) -> None:
    """Write a JSON file into the folder of the option ``-f``, and say so."""
    path = Path(call.options.text("f", _FOLDER)) / name
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, indent=2)
    write_private(path, f"{text}\n".encode())
    call.line(f"export {path} success")


async def _masters(call: Call) -> list[BrokerPlace]:
    cluster = call.options.text("c")
    return [place for place in await call.admin.brokers(cluster=cluster) if place.is_master]


# --- Topics and groups ----------------------------------------------------------------------------


async def export_metadata(call: Call) -> None:
    options = call.options
    with_special = "s" in options
    if "b" in options:
        address = await call.broker()
        if "t" in options:
            _write(call, "topic.json", await user_topics(call.admin, address, with_special))
        elif "g" in options:
            _write(call, "subscriptionGroup.json", await user_groups(call.admin, address))
        else:
            raise WrongUsageError("-b needs -t (--topic) or -g (--subscriptionGroup)")
        return
    if "c" not in options:
        raise WrongUsageError("-b (--brokerAddr) or -c (--clusterName) must be given")
    masters = [place.address for place in await _masters(call)]
    found: dict[str, Any] = {"exportTime": call.admin.clock.now_ms()}
    if "t" in options or "g" not in options:
        found["topicConfigTable"] = await _all_topics(call.admin, masters, with_special)
    if "g" in options or "t" not in options:
        found["subscriptionGroupTable"] = await _all_groups(call.admin, masters)
    name = "topic" if "t" in options else "subscriptionGroup" if "g" in options else "metadata"
    _write(call, f"{name}.json", found)


async def _all_topics(admin: "Admin", masters: list[str], with_special: bool) -> dict[str, Any]:
    """The topics of all masters; the numbers of queues are added up."""
    merged: dict[str, Any] = {}
    for table in await in_parallel(masters, lambda one: user_topics(admin, one, with_special)):
        for topic, config in table.topic_config_table.items():
            earlier = merged.get(topic)
            if earlier is not None:
                config.read_queue_nums += earlier.read_queue_nums
                config.write_queue_nums += earlier.write_queue_nums
            merged[topic] = config
    return merged


async def _all_groups(admin: "Admin", masters: list[str]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for table in await in_parallel(masters, lambda one: user_groups(admin, one)):
        for group, config in table.subscription_group_table.items():
            earlier = merged.get(group)
            if earlier is not None:
                config.retry_queue_nums += earlier.retry_queue_nums
            merged[group] = config
    return merged


async def user_topics(admin: "Admin", broker: str, with_special: bool) -> TopicConfigTable:
    """The topics of a broker without RocketMQ's own; retry and dead-letter topics if wanted."""
    table = await admin.topic_configs(broker)
    system = frozenset(await admin.broker_system_topics(broker))
    table.topic_config_table = {
        topic: config
        for topic, config in table.topic_config_table.items()
        if topic not in system
        and not is_system_topic(topic)
        and (with_special or not (is_retry_topic(topic) or is_dlq_topic(topic)))
        and 0 <= config.perm <= _PERMISSION_BITS
    }
    return table


async def user_groups(admin: "Admin", broker: str) -> SubscriptionGroupTable:
    """The groups of a broker without RocketMQ's own."""
    table = await admin.group_configs(broker)
    table.subscription_group_table = {
        group: config
        for group, config in table.subscription_group_table.items()
        if not is_system_group(group) and group not in SYSTEM_GROUPS
    }
    return table


# --- Properties and figures -----------------------------------------------------------------------


async def export_configs(call: Call) -> None:
    places = await call.admin.brokers(cluster=call.options.text("c"))
    masters = [place.address for place in places if place.is_master]
    configs = await in_parallel(masters, call.admin.broker_config)
    chosen = {
        config.get("brokerName", address): {
            name: config[name] for name in _PROPERTIES if name in config
        }
        for address, config in zip(masters, configs, strict=True)
    }
    scale = {
        "namesrvSize": len(call.admin.name_servers),
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": len(places) - len(masters),
    }
    _write(call, "configs.json", {"brokerConfigs": chosen, "clusterScale": scale})


async def export_metrics(call: Call) -> None:
    totals_tps = dict.fromkeys(
        ("totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps"), 0.0
    )
    totals_day = dict.fromkeys(
        ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum"), 0
    )
    report: dict[str, Any] = {}
    for place in await _masters(call):
        groups = await user_groups(call.admin, place.address)
        quota = await _quota(call.admin, place.address)
        quota["groupSize"] = len(groups.subscription_group_table)
        for name, rate in quota["tps"].items():
            totals_tps[f"total{name[0].upper()}{name[1:]}"] += rate
        for name, number in quota["oneDayNum"].items():
            totals_day[name] += number
        config = await call.admin.broker_config(place.address)
        figures = await call.admin.broker_runtime(place.address)
        report[place.name] = {
            "runtimeEnv": {
                "cpuNum": config.get("clientCallbackExecutorThreads"),
                "totalMemKBytes": figures.get("totalMemKBytes"),
            },
            "runtimeQuota": quota,
            "runtimeVersion": {
                "rocketmqVersion": version_text(CURRENT_VERSION),
                "clientInfo": await _client_versions(
                    call.admin, list(groups.subscription_group_table), place.address
                ),
            },
        }
    totals = {"totalTps": totals_tps, "totalOneDayNum": totals_day}
    _write(call, "metrics.json", {"evaluateReport": report, "totalData": totals})


async def _quota(admin: "Admin", address: str) -> dict[str, Any]:
    figures = await admin.broker_runtime(address)
    transactions = await _topic_stats(admin, address, TRANS_HALF_TOPIC)
    delayed = await _topic_stats(admin, address, SCHEDULE_TOPIC)
    return {
        "diskRatio": {
            name: figures.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")
        },
        "tps": {
            "normalInTps": _rate(figures, "putTps"),
            "normalOutTps": _rate(figures, "getTransferredTps"),
            "transInTps": transactions.stats_minute.tps,
            "scheduleInTps": delayed.stats_minute.tps,
        },
        "oneDayNum": {
            "normalOneDayInNum": _yesterday(figures, "msgPut"),
            "normalOneDayOutNum": _yesterday(figures, "msgGet"),
            "transOneDayInNum": count_of_day(transactions),
            "scheduleOneDayInNum": count_of_day(delayed),
        },
        "messageAverageSize": figures.get("putMessageAverageSize"),
        "topicSize": len((await user_topics(admin, address, False)).topic_config_table),
    }


def _rate(figures: dict[str, str], name: str) -> float:
    """The rate of the last ten seconds; a broker that has just started has none."""
    rates = figures.get(name, "").split()
    return float(rates[0]) if rates else 0.0


def _yesterday(figures: dict[str, str], name: str) -> int:
    today = int(figures.get(f"{name}TotalTodayMorning", "0"))
    return today - int(figures.get(f"{name}TotalYesterdayMorning", "0"))


async def _topic_stats(admin: "Admin", address: str, topic: str) -> BrokerStats:
    try:
        return await admin.broker_stats("TOPIC_PUT_NUMS", topic, broker=address)
    except BrokerError:
        return BrokerStats()  # nothing was counted yet


async def _client_versions(admin: "Admin", groups: list[str], address: str) -> list[str]:
    async def of_group(group: str) -> list[str]:
        try:
            online = await admin.consumer_connections(group, brokers=[address])
        except GoddardError:
            return []
        return [f"{one.language}%{version_text(one.version)}" for one in online.connection_set]

    return sorted({text for found in await in_parallel(groups, of_group) for text in found})
