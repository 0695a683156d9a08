"""The guide documents every option: ours, and those of Spark's Kafka source."""

import re
from functools import cache
from pathlib import Path

import pytest

from goddard.spark.columns import COLUMNS
from goddard.spark.log import LOG_OPTIONS
from goddard.spark.options import SINK_OPTIONS, SOURCE_OPTIONS
from goddard.spark.rows import COLUMNS as SINK_COLUMNS

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guide" / "spark.md").read_text()
_PROSE = re.sub(r"^```.*?^```", "", GUIDE, flags=re.DOTALL | re.MULTILINE)
_NAMED = set(re.findall(r"`([^`]+)`", _PROSE))

# From the "Structured Streaming + Kafka Integration Guide".
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
    """The cells of the option tables, without the table of rocketmq-log."""
    tables = GUIDE.partition("## Options")[2].partition("Options of `rocketmq-log`")[0]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        for line in tables.splitlines()
        if line.startswith("| ") and "tested by" not in line
    ]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


@cache
def defined_tests(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))


def test_every_option_has_a_row() -> None:
    named = set().union(*(names(cell) for row in rows() for cell in row[:2]))
    assert {*KAFKA, *SOURCE_OPTIONS, *SINK_OPTIONS} - named == set()


def test_every_row_names_existing_tests_or_a_reason() -> None:
    wrong = []
    for first, second, _, tested in rows():
        found = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tested)
        if not found and (second != "absent" or len(tested) < 20):
            wrong.append(f"{first}: neither a test nor a reason")
        wrong += [f"{first}: {path}::{name}" for path, name in found if not exists(path, name)]
    assert wrong == []


def exists(path: str, name: str) -> bool:
    return (ROOT / path).is_file() and name in defined_tests(ROOT / path)


@pytest.mark.parametrize("name", sorted({*SOURCE_OPTIONS, *SINK_OPTIONS, *LOG_OPTIONS, *KAFKA}))
def test_option_is_documented(name: str) -> None:
    assert name in _NAMED


@pytest.mark.parametrize("name", sorted({*COLUMNS, *SINK_COLUMNS}))
def test_column_is_documented(name: str) -> None:
    assert name in _NAMED
