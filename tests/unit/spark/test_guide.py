"""The guide has every option: ours, and those of Spark's Kafka source beside them."""

import re
from pathlib import Path

import pytest

from goddard.spark.columns import COLUMNS
from goddard.spark.log import LOG
from goddard.spark.options import SINK, SOURCE
from goddard.spark.rows import COLUMNS as SINK_COLUMNS

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "spark.md").read_text()
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
    "spark.kafka.consumer.cache.*",
    "spark.kafka.consumer.fetchedData.cache.*",
    "spark.kafka.producer.cache.*",
    "spark.kafka.clusters.*",
]


@pytest.mark.parametrize("name", sorted({*SOURCE, *SINK, *LOG, *KAFKA}))
def test_options(name: str) -> None:
    assert name in _NAMED


@pytest.mark.parametrize("name", sorted({*COLUMNS, *SINK_COLUMNS}))
def test_columns(name: str) -> None:
    assert name in _NAMED
