"""The guide has every option: ours, and those of Spark's Kafka source beside them."""

import re
from functools import cache
from pathlib import Path

import pytest

from goddard.spark.columns import COLUMNS
from goddard.spark.log import LOG
from goddard.spark.options import SINK, SOURCE
from goddard.spark.rows import COLUMNS as SINK_COLUMNS

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guide" / "spark.md").read_text()
_PROSE = re.sub(r"^```.*?^```", "", GUIDE, flags=re.DOTALL | re.MULTILINE)
_NAMED = set(re.findall(r"`([^`]+)`", _PROSE))

# Of "Structured Streaming + Kafka Integration Guide".
KAFKA = [
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
    "kafka.*",
    "topic",
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
    "spark.kafka.consumer.cache.*",
    "spark.kafka.consumer.fetchedData.cache.*",
    "spark.kafka.producer.cache.*",
    "spark.kafka.clusters.*",
]


def rows() -> list[list[str]]:
    """The cells of the tables of options, but for those of files."""
    tables = GUIDE.partition("## Options")[2].partition("Of `rocketmq-log`")[0]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        for line in tables.splitlines()
        if line.startswith("| ") and "tested by" not in line
    ]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


@cache
def written_in(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))


def test_every_option_of_kafka_and_ours_has_a_row() -> None:
    named = set().union(*(names(cell) for row in rows() for cell in row[:2]))
    assert {*KAFKA, *SOURCE, *SINK} - named == set()


def test_every_row_names_tests_that_exist_or_says_why_there_is_none() -> None:
    wrong = []
    for first, second, _, tested in rows():
        found = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tested)
        if not found and (second != "absent" or len(tested) < 20):
            wrong.append(f"{first}: no test, and no reason")
        wrong += [f"{first}: {path}::{name}" for path, name in found if not exists(path, name)]
    assert wrong == []


def exists(path: str, name: str) -> bool:
    return (ROOT / path).is_file() and name in written_in(ROOT / path)


@pytest.mark.parametrize("name", sorted({*SOURCE, *SINK, *LOG, *KAFKA}))
def test_options(name: str) -> None:
    assert name in _NAMED


@pytest.mark.parametrize("name", sorted({*COLUMNS, *SINK_COLUMNS}))
def test_columns(name: str) -> None:
    assert name in _NAMED
