"""Reading as Spark drives it: plan on the driver, read on executors, in batches and in streams.

The driver's side of a stream is in ``planner``; Spark calls it from one thread of one process.
``read`` runs in workers and depends on nothing but the partition and the options.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from goddard.client.values import MessageQueue
from goddard.spark import log, offsets
from goddard.spark.cluster import Cluster
from goddard.spark.columns import MAX_BATCH_BYTES
from goddard.spark.fetch import Pulled, RangeReader, open_session
from goddard.spark.offsets import DataLossError, Offsets, QueueRange
from goddard.spark.options import Place, SourceOptions, Where
from goddard.spark.planner import StreamPlanner
from goddard.spark.pushdown import Wanted, push
from goddard.transport.loop import new_event_loop

_logger: Final = logging.getLogger("goddard.spark")


class QueuePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: QueueRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def read_range(
    wanted: QueueRange, options: SourceOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a range; what a task does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        session = runner.run(open_session(options))
        reader = RangeReader(wanted, options, session)
        pieces = reader.records()
        try:
            held = Pulled()
            while runner.run(_next(pieces, held)):
                if held.count >= options.rows_per_batch or held.size_bytes >= MAX_BATCH_BYTES:
                    yield from _batches(held, wanted.queue, options, names)
                    reader.paused()
                    held = Pulled()
            if held.count:
                yield from _batches(held, wanted.queue, options, names)
        finally:
            runner.run(pieces.aclose())
            runner.run(session.stop())


async def _next(pieces: AsyncGenerator[Pulled, None], held: Pulled) -> bool:
    """Add what comes next; whether there was something.

    It is not returned: the runner describes a task with its result, by all of its bytes, whenever
    it sets its signal handler.
    """
    piece = await anext(pieces, None)
    if piece is None:
        return False
    held.add(piece)
    return True


def _batches(
    held: Pulled, queue: MessageQueue, options: SourceOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    columns = held.columns(queue)
    wanted_tags = options.tags
    if wanted_tags:
        # The broker compares hashes of tags, and two tags may have the same.
        columns = columns.rows(columns.have_tags(wanted_tags))
    return columns.batches(names)


def _rows_of(
    partition: InputPartition, options: SourceOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    # Spark makes up a partition of its own where there is none.
    if not isinstance(partition, QueuePartition):
        return iter(())
    return read_range(partition.wanted, options, names)


class BatchReader(DataSourceReader):
    """``spark.read``."""

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = list(names)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Cluster(options.connecting) as cluster:
            bounds = cluster.bounds(cluster.queues(options))
            start = cluster.resolve(
                options.start,
                bounds,
                group=options.group,
                fails_without_match=options.fails_when_no_timestamp_matches,
            )
            end = cluster.resolve(options.end, bounds)
            start, end = self._within(bounds, start, end)
            ranges, _ = offsets.ranges_between(start, end)
            ranges = self._narrowed(cluster, ranges)
        return [
            QueuePartition(piece)
            for piece in offsets.split(
                ranges,
                min_partitions=options.min_partitions,
                max_records_per_partition=options.max_records_per_partition,
            )
        ]

    def _narrowed(self, cluster: Cluster, ranges: list[QueueRange]) -> list[QueueRange]:
        """For conditions to spare reading; without any nothing changes."""
        return ranges

    def _within(
        self, bounds: tuple[Offsets, Offsets], start: Offsets, end: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Offsets that were given as numbers may lie outside of what the queues have."""
        earliest, latest = bounds
        losses = [
            f"{queue} begins at {earliest[queue]}, {offset} was wanted"
            for queue, offset in start.items()
            if offset < earliest[queue]
        ] + [
            f"{queue} ends at {latest[queue]}, {offset} was wanted: is the number right, or was "
            "the topic created anew?"
            for queue in end
            if (offset := max(start[queue], end[queue])) > latest[queue]
        ]
        if losses and self._options.fails_on_data_loss:
            raise DataLossError(losses)
        for loss in losses:
            _logger.warning("messages were lost before they were read: %s", loss)
        return (
            {queue: max(offset, earliest[queue]) for queue, offset in start.items()},
            {queue: min(offset, latest[queue]) for queue, offset in end.items()},
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows_of(partition, self._options, self._names)


class FilteringReader(BatchReader):
    """``spark.read`` that takes conditions over from Spark.

    A class of its own: Spark refuses readers that can do this unless its configuration allows it.
    """

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        super().__init__(options, names)
        self._wanted = Wanted()

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted, left = push(filters)
        expression = self._wanted.tag_expression
        if expression is not None and self._options.expression == "*":
            self._options = replace(self._options, expression=expression)
        return left

    @override
    def _narrowed(self, cluster: Cluster, ranges: list[QueueRange]) -> list[QueueRange]:
        wanted = self._wanted
        ranges = [wanted.of(each) for each in ranges if wanted.has(each.queue)]
        bounds = (
            {each.queue: each.start for each in ranges},
            {each.queue: each.end for each in ranges},
        )
        starts, ends = bounds
        if wanted.from_ms is not None:
            starts = cluster.resolve(Place(Where.EARLIEST, timestamp_ms=wanted.from_ms), bounds)
        if wanted.until_ms is not None:
            ends = cluster.resolve(Place(Where.LATEST, timestamp_ms=wanted.until_ms), bounds)
        return [QueueRange(each.queue, starts[each.queue], ends[each.queue]) for each in ranges]


class PiecePartition(InputPartition):
    """Which part of which file a task reads."""

    def __init__(self, piece: log.Piece) -> None:
        super().__init__(piece)
        self.piece = piece


class LogReader(DataSourceReader):
    """``spark.read.format("rocketmq-log")``."""

    def __init__(self, options: log.LogOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = list(names)

    def partitions(self) -> Sequence[InputPartition]:
        return [PiecePartition(piece) for piece in log.plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PiecePartition):
            return iter(())
        return log.read_piece(partition.piece, self._options, self._names)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``."""

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = list(names)
        # Made on the driver when first needed: the reader itself is sent to workers.
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    def _planned(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options)
        return self._planner

    @override
    def initialOffset(self) -> dict[str, Any]:
        return offsets.to_json(self._planned().initial())

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._planned().next_end(start, most)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._planned().stop_at_latest()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planned().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        begins, _ = offsets.from_json(start)
        ends, first = offsets.from_json(end)
        ranges, losses = offsets.ranges_between(begins | first, ends)
        if losses and self._options.fails_on_data_loss:
            raise DataLossError(losses)
        return [
            QueuePartition(piece)
            for piece in offsets.split(
                ranges,
                min_partitions=self._options.min_partitions,
                max_records_per_partition=self._options.max_records_per_partition,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows_of(partition, self._options, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark does not say this of the last batch. See StreamPlanner."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None
