"""The verb ``statsAll``: rates and lags of all topics and groups."""

from typing import TYPE_CHECKING, Final

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.java_text import front
from goddard.client.errors import BrokerError
from goddard.client.queries import master_addresses
from goddard.errors import GoddardError
from goddard.protocol.bodies_admin import BrokerStats
from goddard.protocol.codes import ResponseCode
from goddard.protocol.names import is_dlq_topic, is_retry_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_HEADER: Final = "%-64s  %-64s %12s %11s %11s %14s %14s"

Row = tuple[str, str, int, str, str, int, str]


def count_of_day(stats: BrokerStats) -> int:
    """The messages of the last day, or of the longest period that was counted."""
    return stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum


async def stats_all(call: Call) -> None:
    only_active, wanted = "a" in call.options, call.options.get("t")
    topics = [
        topic
        for topic in await call.admin.topics()
        if not (is_retry_topic(topic) or is_dlq_topic(topic)) and wanted in (None, "", topic)
    ]

    async def rows_of(topic: str) -> list[Row]:
        try:
            return await _rows(call.admin, topic)
        except GoddardError:
            # Topics without a route or a master have nothing to show.
            return []

    found = await in_parallel(topics, rows_of)
    columns = ("#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour")
    call.row(_HEADER, "#Topic", "#Consumer Group", *columns)
    for rows in found:
        for row in rows:
            has_traffic = row[5] > 0 or (row[6].isdecimal() and int(row[6]) > 0)
            if has_traffic or not only_active:
                call.row(_HEADER, front(row[0], 64), front(row[1], 64), *row[2:])


async def _rows(admin: "Admin", topic: str) -> list[Row]:
    masters = list(master_addresses(await admin.topic_route(topic)))
    groups = await admin.topic_groups(topic)
    in_rate, in_count = await _traffic(admin, masters, "TOPIC_PUT_NUMS", topic)
    rate = f"{in_rate:.2f}"
    if not groups:
        return [(topic, "", 0, rate, "", in_count, "NO_CONSUMER")]
    rows = []
    for group in groups:
        key = f"{topic}@{group}"
        out_rate, out_count = await _traffic(admin, masters, "GROUP_GET_NUMS", key)
        try:
            lag = max(0, (await admin.group_progress(group, topic=topic)).lag)
        except GoddardError:
            lag = 0
        rows.append((topic, group, lag, rate, f"{out_rate:.2f}", in_count, str(out_count)))
    return rows


async def _traffic(admin: "Admin", masters: list[str], name: str, key: str) -> tuple[float, int]:
    """The rate of the last minute and the count of the last day, of all masters."""
    rate, count = 0.0, 0
    for address in masters:
        try:
            stats = await admin.broker_stats(name, key, broker=address)
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            continue  # nothing was counted yet
        rate += stats.stats_minute.tps
        count += count_of_day(stats)
    return rate, count
