"""Counters, and the statistics that RocketMQ computes from snapshots."""

import pytest

import goddard.broker.stats as stats_module
from goddard.broker.stats import PutTimes, Stats
from goddard.protocol.bodies_admin import BrokerStats, StatsItem

CLUSTER = "DefaultCluster"
ZERO = StatsItem()


def is_system(topic: str) -> bool:
    return topic.startswith("rmq_sys_")


def run(stats: Stats, first_second: int, last_second: int, day: int = 1) -> None:
    for second in range(first_second, last_second + 1):
        stats.sample(second * 1000, day)


def view(stats: Stats, name: str, key: str) -> BrokerStats:
    figures = stats.view(name, key)
    assert figures is not None
    return figures


def test_unknown_topics_and_groups_have_no_statistics() -> None:
    stats = Stats(CLUSTER, is_system)
    run(stats, 0, 20)
    for name in ("TOPIC_PUT_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS", "BROKER_PUT_NUMS", "X"):
        assert stats.view(name, "T") is None
    assert stats.view("BROKER_PUT_NUMS", CLUSTER) is None
    assert (stats.put_rate("T"), stats.get_rate("T", "G")) == (0.0, 0.0)


def test_a_minute_is_the_difference_of_snapshots_ten_seconds_apart() -> None:
    stats = Stats(CLUSTER, is_system)
    run(stats, 0, 4)
    stats.put("T", 5, 500)
    stats.put("T", 1, 100)
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_minute == ZERO  # no snapshot yet
    run(stats, 5, 10)
    # The first snapshot counts from a period before it.
    figures = view(stats, "TOPIC_PUT_NUMS", "T")
    assert figures.stats_minute == StatsItem(sum=6, tps=0.6, avgpt=3.0)
    assert view(stats, "TOPIC_PUT_SIZE", "T").stats_minute == StatsItem(
        sum=600, tps=60.0, avgpt=300.0
    )
    assert (figures.stats_hour, figures.stats_day) == (ZERO, ZERO)
    assert stats.put_rate("T") == 0.6


def test_messages_older_than_a_minute_do_not_count() -> None:
    stats = Stats(CLUSTER, is_system)
    stats.put("T", 10, 1000)
    run(stats, 0, 59)
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_minute.sum == 10
    run(stats, 60, 70)
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_minute == ZERO


def test_hours_and_days() -> None:
    stats = Stats(CLUSTER, is_system)
    stats.sample(0, 1)
    for hour in range(30):
        stats.get("T", "G", 60, 6)
        stats.sample(hour * 3_600_000 + 600_000, 1)
        stats.sample((hour + 1) * 3_600_000, 1)
    figures = view(stats, "GROUP_GET_NUMS", "T@G")
    assert figures.stats_day.sum == 24 * 60
    assert figures.stats_day.tps == 24 * 60 / 86_400
    assert figures.stats_day.avgpt == 60.0
    assert stats.view("GROUP_GET_NUMS", "T@H") is None


def test_a_paused_clock_takes_one_snapshot_later() -> None:
    stats = Stats(CLUSTER, is_system)
    stats.put("T", 1, 1)
    stats.sample(0, 1)
    stats.sample(1_000_000, 1)
    stats.sample(1_000_500, 1)
    # Two snapshots and the assumed first one: the interval of the second includes the pause.
    assert view(stats, "TOPIC_PUT_NUMS", "T").stats_minute.tps == 1 * 1000 / 1_010_000


def test_totals_of_the_broker_with_and_without_system_topics() -> None:
    stats = Stats(CLUSTER, is_system)
    stats.put("T", 3, 30)
    stats.put("rmq_sys_wheel_timer", 4, 40)
    stats.get("T", "G", 2, 20)
    stats.get("rmq_sys_wheel_timer", "G", 1, 10)
    stats.sendback("T", "G")
    run(stats, 0, 0)
    for name, total in (
        ("BROKER_PUT_NUMS", 7),
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", 3),
        ("BROKER_GET_NUMS", 3),
        ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", 2),
    ):
        assert view(stats, name, CLUSTER).stats_minute.sum == total
        assert stats.view(name, "OtherCluster") is None
    assert view(stats, "SNDBCK_PUT_NUMS", "T@G").stats_minute == StatsItem(
        sum=1, tps=0.1, avgpt=1.0
    )


def test_totals_of_yesterday_and_today() -> None:
    stats = Stats(CLUSTER, is_system)
    stats.put("T", 10, 1)
    stats.get("T", "G", 4, 1)
    stats.sample(0, 365)
    assert stats.put_totals == (0, 0, 10)
    stats.sample(1000, 1)  # a new year is a new day, too
    stats.put("T", 5, 1)
    assert stats.put_totals == (0, 10, 15)
    assert stats.get_totals == (0, 4, 4)
    stats.sample(2000, 2)
    assert stats.put_totals == (10, 15, 15)
    assert stats.get_totals == (4, 4, 4)


def test_rates_are_empty_until_there_are_enough_samples() -> None:
    stats = Stats(CLUSTER, is_system)
    assert stats.rates()["putTps"] == "  "
    assert stats.rates()["getTotalTps"] == "0.0 0.0 0.0"
    run(stats, 0, 9)
    assert stats.rates()["putTps"] == "  "
    stats.stored([])
    stats.stored_count += 20
    stats.get("T", "G", 30, 300)
    stats.miss()
    run(stats, 10, 10)
    assert stats.rates() == {
        "putTps": "2.0  ",
        "getFoundTps": "0.1  ",
        "getMissTps": "0.1  ",
        "getTransferredTps": "3.0  ",
        "getTotalTps": "0.2 0.0 0.0",
    }
    run(stats, 11, 600)
    assert stats.rates()["putTps"] == f"0.0 0.0 {20 / 600_000 * 1000}"


def test_deleted_topics_and_groups_are_removed() -> None:
    stats = Stats(CLUSTER, is_system)
    for topic in ("T", "U"):
        stats.put(topic, 1, 1)
        for group in ("G", "H"):
            stats.get(topic, group, 1, 1)
            stats.sendback(topic, group)
    stats.forget(topic="T")
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("GROUP_GET_NUMS", "T@G") is None
    assert stats.view("GROUP_GET_NUMS", "U@G") is not None
    stats.forget(group="G")
    assert stats.view("GROUP_GET_NUMS", "U@G") is None
    assert stats.view("SNDBCK_PUT_NUMS", "U@G") is None
    assert stats.view("SNDBCK_PUT_NUMS", "U@H") is not None
    assert stats.put_totals.now == 2  # totals stay


class TestPutTimes:
    def test_no_percentiles_before_a_minute_is_over(self) -> None:
        times = PutTimes()
        times.add(10, 3)
        assert (times.distribution(), times.percentile(0.99), times.max_ms) == ("null", "0.00", 3)

    def test_ranges(self) -> None:
        times = PutTimes()
        for took_ms in (0, 0, 1, 9, 10, 49, 999, 1_000, 9_999, 10_000, 10**9):
            times.add(2, took_ms)
        times.roll()
        times.add(1, 5)  # of the next minute
        assert times.distribution() == (
            "[<=0ms]:4 [0~10ms]:4 [10~50ms]:4 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 "
            "[500ms~1s]:2 [1~2s]:2 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:2 [10s~]:4 "
        )
        assert times.max_ms == 10**9

    def test_percentiles(self) -> None:
        times = PutTimes()
        times.roll()
        assert times.percentile(0.99) == "0.00"
        times.add(90, 1)
        times.add(10, 30)
        times.roll()
        assert times.percentile(0.5) == "0.56"  # 50 of 90 into the first millisecond
        assert times.percentile(0.9) == "1.00"
        assert times.percentile(0.99) == "29.80"  # 9 of 10 into 28 to 30
        times.add(1, 10**9)
        times.roll()
        assert times.percentile(1.0) == "10000.00"

    def test_put_times_roll_with_the_samples(self) -> None:
        stats = Stats(CLUSTER, is_system)
        stats.sample(0, 1)
        stats.appended(7, 0)
        run(stats, 1, 59)
        assert stats.put_times.distribution() == "null"
        run(stats, 60, 60)
        assert stats.put_times.distribution().startswith("[<=0ms]:7 ")
        run(stats, 61, 120)
        assert stats.put_times.distribution().startswith("[<=0ms]:0 ")


def test_latencies_of_gets() -> None:
    stats = Stats(CLUSTER, is_system)
    for took_ms in (0, 3, 9):
        stats.get_took(2, "T", "G", took_ms)
    stats.get_took(2, "T", "H", 7)
    assert stats.longest_get_ms == 9
    run(stats, 0, 1)
    figures = view(stats, "GROUP_GET_LATENCY", "2@T@G")
    assert figures.stats_minute == StatsItem(sum=12, tps=1.2, avgpt=4.0)
    for key in ("1@T@G", "T@G", "x@T@G", "2@T", "", "@@", "9" * 5000 + "@T@G"):
        assert stats.view("GROUP_GET_LATENCY", key) is None
    stats.forget(group="G")
    assert stats.view("GROUP_GET_LATENCY", "2@T@G") is None
    assert stats.view("GROUP_GET_LATENCY", "2@T@H") is not None


def test_the_number_of_queues_with_latencies_is_limited() -> None:
    stats = Stats(CLUSTER, is_system)
    for queue_id in range(10_001):
        stats.get_took(queue_id, "T", "G", 1)
    assert stats.view("GROUP_GET_LATENCY", "9999@T@G") is not None
    assert stats.view("GROUP_GET_LATENCY", "10000@T@G") is None


def test_dead_letters_are_counted_by_their_original_topic() -> None:
    stats = Stats(CLUSTER, is_system)
    stats.dead("T", "G")
    run(stats, 0, 1)
    figures = view(stats, "SNDBCK2DLQ_TIMES", "null@T@G@SEND_BACK_TO_DLQ")
    assert figures.stats_minute.sum == 1
    assert stats.view("SNDBCK2DLQ_TIMES", "T@G") is None
    stats.forget(topic="T")
    assert stats.view("SNDBCK2DLQ_TIMES", "null@T@G@SEND_BACK_TO_DLQ") is None


def test_the_number_of_pairs_with_figures_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "_MAX_PAIRS", 2)
    stats = Stats("DefaultCluster", is_system)
    for group in ("A", "B", "C"):
        stats.get("T", group, 1, 100)
        stats.sendback("T", group)
        stats.dead("T", group)
    run(stats, 0, 1)
    for name in ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS"):
        assert stats.view(name, "T@B") is not None
        assert stats.view(name, "T@C") is None
    assert stats.get_totals.now == 3, "the totals count all"
