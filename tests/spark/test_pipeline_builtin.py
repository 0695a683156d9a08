"""The built-in pipelines, as users run them."""

import datetime as dt
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession

from goddard import ConsumeContext, ConsumeFrom, PushConsumer, ReceivedMessage
from goddard.errors import ConfigError
from goddard.pipelines.builtin import find_job
from goddard.pipelines.builtin.dead_letter import REPLAYED, replay
from goddard.pipelines.builtin.traffic import read_slots
from goddard.pipelines.files import Files
from goddard.pipelines.lakehouse import append_rows, read_delta
from goddard.pipelines.monitoring import Progress
from goddard.pipelines.runner import Pipeline
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic, numbers

_SECONDS = 100


def run(spark: SparkSession, name: str, changes: dict[str, str]) -> tuple[Pipeline, int]:
    progress: list[Progress] = []
    pipeline = Pipeline(find_job(name, changes), spark)
    pipeline.run(progress.append)
    return pipeline, sum(each.rows or 0 for each in progress)


def table_at(spark: SparkSession, path: str) -> DataFrame:
    found = read_delta(spark, path)
    assert found is not None
    return found


def changes_of(site: Site, folder: Path, **more: str) -> dict[str, str]:
    return {
        "source.nameServers": site.namesrv,
        "sink.path": str(folder / "table"),
        "run.checkpoint": str(folder / "checkpoint"),
        **more,
    }


def test_archive_writes_all_topics_and_compacts(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    first, second = NumberedTopic(ours, "archive-a"), NumberedTopic(ours, "archive-b")
    changes = changes_of(ours, tmp_path) | {
        "source.subscribePattern": f"{first.name}|{second.name}",
        "source.maxOffsetsPerTrigger": "20",
        "source.group": ours.new_group("archive"),
    }
    for _ in range(2):
        first.fill(20)
        second.fill(10)
        run(spark, "archive", changes)
    table = table_at(spark, str(tmp_path / "table"))
    assert numbers(table.where(table["topic"] == first.name)) == list(range(40))
    assert numbers(table.where(table["topic"] == second.name)) == list(range(20))
    assert len(table.select("day").distinct().collect()) in (1, 2)
    # Small files of several batches are one.
    files = deltalake.DeltaTable(str(tmp_path / "table")).file_uris()
    assert len(files) == len(table.select("day", "topic").distinct().collect())


def test_dead_letters_are_written_and_replayed(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(site, "dead")
    topic.fill(6)
    group = site.new_group("giving-up")
    seen: set[bytes] = set()
    consumer = PushConsumer(
        group,
        name_servers=site.namesrv,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        max_reconsume_times=0,
    )
    consumer.subscribe(topic.name)

    @consumer.listen
    def refuse(messages: list[ReceivedMessage], _context: ConsumeContext) -> bool:
        seen.update(message.body for message in messages)
        return False

    changes = changes_of(site, tmp_path) | {"source.subscribePattern": f"%DLQ%{group}"}
    options = {
        "nameServers": site.namesrv,
        "subscribePattern": f"%DLQ%{group}",
        "includeSystemTopics": "true",
    }
    with consumer:
        wait_until(lambda: len(seen) == 6, _SECONDS, "six refused messages")
        dead = spark.read.format("rocketmq").options(**options)
        wait_until(lambda: dead.load().count() == 6, _SECONDS, "six dead letters")
    run(spark, "dead-letter", changes)
    letters = table_at(spark, str(tmp_path / "table")).collect()
    assert sorted(int(row["body"]) for row in letters) == list(range(6))
    assert {row["originTopic"] for row in letters} == {topic.name}
    assert {row["consumerGroup"] for row in letters} == {group}
    assert {row["reason"] for row in letters} == {"given up without a retry"}
    assert all(row["originMessageId"] for row in letters)
    job = find_job("dead-letter", changes)
    odd = "tags = 'odd'"
    assert replay(job, spark, where=odd, only_show=True).rows == {topic.name: 3}
    assert replay(job, spark, where=odd).total == 3
    assert replay(job, spark, where="true").total == 3
    assert replay(job, spark, where="true").total == 0
    again = spark.read.format("rocketmq").options(**topic.options()).load()
    assert numbers(again) == sorted([*range(6), *range(6)])
    row = again.where(f"properties['{REPLAYED}'] IS NOT NULL AND keys = 'key3'").collect()[0]
    assert (row["tags"], row["properties"]["number"], row["body"]) == ("odd", "3", b"3")


def test_replay_of_several_groups_and_of_replayed_letters(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("again")
    folder = tmp_path / "a b"
    job = find_job("dead-letter", changes_of(ours, folder))
    with pytest.raises(ConfigError, match=r"there is no table at .* yet; run the pipeline first"):
        replay(job, spark, where="true")
    letters = [
        ("first", "id-1", {"a": "1"}),
        ("second", "id-1", {"a": "1"}),
        ("first", "id-2", {"a": "2", REPLAYED: "id-0", "UNIQ_KEY": "id-2"}),
    ]
    rows = [(group, topic, id_, b"x", None, None, more) for group, id_, more in letters]
    columns = "consumerGroup string, originTopic string, msgId string, body binary, keys string"
    frame = spark.createDataFrame(rows, f"{columns}, tags string, properties map<string,string>")
    append_rows(Files(spark, str(folder / "table")).root, frame.toArrow())
    assert replay(job, spark, where="true").rows == {topic: 2}
    assert replay(job, spark, where="consumerGroup = 'second'").total == 0
    assert replay(job, spark, where="consumerGroup = 'second'", again=True).total == 1
    options = {"nameServers": ours.namesrv, "subscribe": topic}
    sent = spark.read.format("rocketmq").options(**options).load().collect()
    found = [(row["properties"]["a"], row["properties"][REPLAYED]) for row in sent]
    assert sorted(found) == [("1", "id-1"), ("1", "id-1"), ("2", "id-2")]
    assert "id-2" not in {row["msgId"] for row in sent}


def test_traffic_is_counted_and_drawn(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
    first, second = NumberedTopic(ours, "traffic-a"), NumberedTopic(ours, "traffic-b")
    first.fill(30)
    second.fill(12)
    changes = changes_of(ours, tmp_path) | {
        "source.subscribePattern": f"{first.name}|{second.name}",
        "source.group": ours.new_group("traffic"),
    }
    run(spark, "traffic", changes)
    first.fill(10)
    pipeline, rows = run(spark, "traffic", changes)
    assert rows == 10
    table = table_at(spark, str(tmp_path / "table")).collect()
    counted = {
        name: sum(row["messages"] for row in table if row["topic"] == name)
        for name in (first.name, second.name)
    }
    assert counted == {first.name: 40, second.name: 12}
    assert len(table) == len({(row["windowStart"], row["topic"]) for row in table})
    assert sum(row["bytes"] for row in table) == 10 + 2 * 30 + 10 + 2 * 2
    assert all(0 <= row["latencyP50Ms"] <= row["latencyP99Ms"] for row in table)
    lags = table_at(spark, str(tmp_path / "table_lag")).where(
        f"consumerGroup = '{changes['source.group']}'"
    )
    assert {row["topic"] for row in lags.collect()} == {first.name, second.name}
    assert pipeline.summary == f"chart: {tmp_path}/table.svg"
    assert not (tmp_path / ".table.svg.crc").exists()
    text = (tmp_path / "table.svg").read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    assert "52 messages, 84 B, 2 topics" in text


def test_traffic_times_are_utc_in_every_time_zone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table{1}")
    rows = spark.sql(
        "SELECT timestamp'2026-01-31 12:00:00Z' AS windowStart, "
        "timestamp'2026-01-31 12:01:00Z' AS windowEnd, 't' AS topic, 5L AS messages, 7L AS bytes, "
        "-3L AS latencyP50Ms, 2L AS latencyP95Ms, 3L AS latencyP99Ms"
    )
    append_rows(Files(spark, path).root, rows.toArrow())
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        (slot,) = read_slots(spark, path)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert slot.at == dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert slot.length == dt.timedelta(minutes=1)
    # The clocks of producers may be ahead, which gives negative latencies.
    assert (slot.p50_ms, slot.p99_ms) == (0, 3)
