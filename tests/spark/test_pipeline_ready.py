"""The pipelines that come with Goddard, as their users run them."""

from pathlib import Path
from xml.etree import ElementTree as ET

from pyspark.sql import SparkSession

from goddard import ConsumeContext, ConsumeFrom, PushConsumer, ReceivedMessage
from goddard.pipelines.ready import find_job
from goddard.pipelines.ready.dead_letter import REPLAYED, replay
from goddard.pipelines.running import Pipeline, Progress
from goddard.testing.numbered import NumberedTopic, numbers
from goddard.testing.process import wait_until
from goddard.testing.site import Site

_SECONDS = 100


def run(spark: SparkSession, name: str, changes: dict[str, str]) -> tuple[Pipeline, int]:
    told: list[Progress] = []
    pipeline = Pipeline(find_job(name, changes), spark)
    pipeline.run(told.append)
    return pipeline, sum(each.rows for each in told)


def changes_of(site: Site, folder: Path, **more: str) -> dict[str, str]:
    return {
        "source.nameServers": site.namesrv,
        "sink.path": str(folder / "table"),
        "run.checkpoint": str(folder / "checkpoint"),
        **more,
    }


def test_archive(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
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
    table = spark.read.parquet(str(tmp_path / "table"))
    assert numbers(table.where(table["topic"] == first.name)) == list(range(40))
    assert numbers(table.where(table["topic"] == second.name)) == list(range(20))
    assert len(table.select("day").distinct().collect()) in (1, 2)
    assert list((tmp_path / "table").rglob("merged-*.parquet"))


def test_dead_letters_and_their_replay(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(ours, "dead")
    topic.fill(6)
    group = ours.new_group("giving-up")
    seen: set[bytes] = set()
    consumer = PushConsumer(
        group,
        name_servers=ours.namesrv,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        max_reconsume_times=0,
    )
    consumer.subscribe(topic.name)

    @consumer.listen
    def refuse(messages: list[ReceivedMessage], _context: ConsumeContext) -> bool:
        seen.update(message.body for message in messages)
        return False

    changes = changes_of(ours, tmp_path) | {"source.subscribePattern": f"%DLQ%{group}"}
    options = {
        "nameServers": ours.namesrv,
        "subscribePattern": f"%DLQ%{group}",
        "includeSystemTopics": "true",
    }
    with consumer:
        wait_until(lambda: len(seen) == 6, _SECONDS, "six refused messages")
        dead = spark.read.format("rocketmq").options(**options)
        wait_until(lambda: dead.load().count() == 6, _SECONDS, "six dead letters")
    run(spark, "dead-letter", changes)
    letters = spark.read.parquet(str(tmp_path / "table")).collect()
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


def test_traffic_and_its_chart(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
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
    table = spark.read.parquet(str(tmp_path / "table")).collect()
    counted = {
        name: sum(row["messages"] for row in table if row["topic"] == name)
        for name in (first.name, second.name)
    }
    assert counted == {first.name: 40, second.name: 12}
    assert sum(row["bytes"] for row in table) == 10 + 2 * 30 + 10 + 2 * 2
    assert all(0 <= row["latencyP50Ms"] <= row["latencyP99Ms"] for row in table)
    lags = spark.read.parquet(str(tmp_path / "table_lag")).where(
        f"consumerGroup = '{changes['source.group']}'"
    )
    assert {row["topic"] for row in lags.collect()} == {first.name, second.name}
    assert pipeline.last_words == f"chart: {tmp_path}/table.svg"
    text = (tmp_path / "table.svg").read_text()
    assert ET.fromstring(text).tag.endswith("svg")
