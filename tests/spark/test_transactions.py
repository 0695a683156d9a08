"""Streams that write exactly once, with half messages; most tests run without Spark."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from goddard import Admin, MessageQueue
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.message import TransactionType
from goddard.spark.options import SinkOptions, parse_sink
from goddard.spark.writing.transactions import (
    DecisionLog,
    TransactionCommit,
    commit_batch,
    end_all,
    roll_back,
    write_halves,
)
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic
from tests.support.spark_readers import read_numbers, retry_worker_start

_SECONDS = 60


class Target:
    """A topic, and the sink's options to write to it exactly once."""

    def __init__(self, site: Site, label: str) -> None:
        self.topic = NumberedTopic(site, label)
        self.decisions = NumberedTopic(site, f"{label}-decisions", queues=1, is_exact=True)

    def given(self, **more: str) -> dict[str, str]:
        return {
            "nameServers": self.topic.site.namesrv,
            "topic": self.topic.name,
            "deliveryGuarantee": "exactly-once",
            "transactionTopic": self.decisions.name,
            **more,
        }

    @property
    def options(self) -> SinkOptions:
        return parse_sink(self.given())

    def write(self, numbers: Iterable[int], batch: int, query: str = "q") -> TransactionCommit:
        rows = pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in numbers]})
        return write_halves(iter([rows]), self.options, query, batch, f"{query}-{batch}-0")

    def numbers(self) -> list[int]:
        return read_numbers(self.topic.options())


def test_rows_are_visible_after_the_commit_of_their_batch(site: Site) -> None:
    target = Target(site, "once-visible")
    tasks = [target.write(range(20), 0), target.write(range(20, 30), 0)]
    assert target.numbers() == []
    commit_batch(target.options, tasks, 0)
    assert target.numbers() == list(range(30))
    commit_batch(target.options, [target.write(range(30, 40), 1)], 1)
    assert target.numbers() == list(range(40))


def test_repeated_batch_that_was_not_decided_is_written_once(site: Site) -> None:
    target = Target(site, "once-undecided")
    target.write(range(20), 0)
    failed = target.write(range(20), 0)
    roll_back(target.options, [failed], 0)
    commit_batch(target.options, [target.write(range(20), 0)], 0)
    assert target.numbers() == list(range(20))


def test_partly_committed_batch_is_completed(site: Site) -> None:
    """The driver was killed in the middle of the commit."""
    target = Target(site, "once-partly")
    first = target.write(range(20), 0)
    halves = DecisionLog(target.options).decide("q", 0, [first])
    end_all(target.options, halves[:7], TransactionType.COMMIT, is_repeated=False)
    with Admin(name_servers=site.namesrv) as admin:

        def is_found(key: str) -> bool:
            return bool(admin.messages_by_unique_key(target.topic.name, key).messages)

        for half in halves[:7]:
            wait_until(partial(is_found, half.message_id), _SECONDS, "the message is in the index")
    # A failed commit does not roll back what is decided.
    roll_back(target.options, [first], 0)
    # Other partitions than before.
    again = [target.write(range(5), 0), target.write(range(5, 20), 0)]
    assert [each.halves for each in again] == [None, None]
    commit_batch(target.options, again, 0)
    assert target.numbers() == list(range(20))
    # The driver was killed before Spark noted the batch as complete.
    commit_batch(target.options, [target.write(range(20), 0)], 0)
    assert target.numbers() == list(range(20))


def test_decided_batch_with_other_rows_is_refused(site: Site) -> None:
    """A checkpoint was restored, and its next batch has newer messages."""
    target = Target(site, "once-other")
    for batch in (0, 1):
        commit_batch(target.options, [target.write([batch], batch)], batch)
    with pytest.raises(GoddardError, match="batch 1 of query q has other rows than before"):
        commit_batch(target.options, [target.write([5], 1)], 1)
    with pytest.raises(GoddardError, match=r"decision about batch 1.*older than the topic"):
        target.write([0], 0)
    with pytest.raises(ConfigError, match="has decisions of query q; give each query its own"):
        target.write([0], 0, query="other")
    assert target.numbers() == [0, 1]


def test_second_driver_of_a_query_fails(site: Site) -> None:
    target = Target(site, "once-drivers")
    one, two, three = (target.write(range(10), 0) for _ in range(3))

    class Overtaken(DecisionLog):
        """The other driver decides just before this one does."""

        async def _append(self, queue: MessageQueue, entries: Sequence[Any]) -> int:
            await asyncio.to_thread(commit_batch, target.options, [one], 0)
            return await super()._append(queue, entries)

    for log, tasks in ((Overtaken(target.options), two), (DecisionLog(target.options), three)):
        with pytest.raises(GoddardError, match="another driver of query q has decided about batc"):
            log.decide("q", 0, [tasks])
    assert target.numbers() == list(range(10))


def test_incomplete_decision_does_not_count(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(site, "once-parts")
    monkeypatch.setattr("goddard.spark.writing.transactions._HALVES_PER_PART", 3)

    class Killed(DecisionLog):
        """The driver is killed before it writes the last of several messages."""

        async def _append(self, queue: MessageQueue, entries: Sequence[Any]) -> int:
            await super()._append(queue, entries[:-1])
            raise ConnectionResetError

    for batch in (0, 1):
        numbers = range(10 * batch, 10 * batch + 10)
        with pytest.raises(ConnectionResetError):
            Killed(target.options).decide("q", batch, [target.write(numbers, batch)])
        again = target.write(numbers, batch)
        assert len(again.halves or ()) == 10
        commit_batch(target.options, [again], batch)
        assert target.numbers() == list(range(10 * batch + 10))
    # All four parts of the last decision are found again.
    commit_batch(target.options, [target.write(range(10, 20), 1)], 1)
    assert target.numbers() == list(range(20))


def test_transaction_topic_must_have_one_queue(site: Site) -> None:
    target = Target(site, "once-queues")
    target.decisions = NumberedTopic(site, "once-four", queues=4)
    with pytest.raises(ConfigError, match="has 4 queues; create it with one queue on one broker"):
        target.write([0], 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deliveryGuarantee": "exactly-once"}, "must be given together"),
        ({"transactionTopic": "T"}, "must be given together"),
        ({"deliveryGuarantee": "twice"}, "choose one of: at-least-once, exactly-once"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_sink({"nameServers": "127.0.0.1:1", "topic": "T", **options})


def test_stream_writes_exactly_once_although_its_last_batch_is_repeated(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    source, target = NumberedTopic(ours, "once-from"), Target(ours, "once-to")
    source.fill(100)

    def run(**more: str) -> None:
        query = (
            spark.readStream.format("rocketmq")
            .options(**source.options(startingOffsets="earliest", **more))
            .load()
            .select("body", "keys", "tags")
            .writeStream.format("rocketmq")
            .options(**target.given())
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)

    retry_worker_start(run)
    assert target.numbers() == list(range(100))
    # As if the driver had crashed before Spark noted the batch as complete.
    last = max(int(path.name) for path in (tmp_path / "commits").glob("[0-9]*"))
    for path in (tmp_path / "commits").glob(f"*{last}*"):
        path.unlink()
    source.fill(10)
    retry_worker_start(lambda: run(minPartitions="7"))
    assert target.numbers() == list(range(110))


def test_batch_writes_cannot_be_exactly_once(spark: SparkSession, ours: Site) -> None:
    target = Target(ours, "once-batch")
    writer = spark.range(1).selectExpr("'0' AS body").write.format("rocketmq").mode("append")
    with pytest.raises(PySparkException, match="deliveryGuarantee=exactly-once is for streams"):
        writer.options(**target.given()).save()
