"""Spark's readers: they plan on the driver and read on executors, for batches and streams.

``micro_batch`` plans streams; Spark calls it from one thread of one process. ``read`` runs in
Python workers and depends only on the partition and the options.
"""

import logging
from collections import Counter
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
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from goddard.spark import log
from goddard.spark.columns import MAX_BATCH_BYTES
from goddard.spark.options import OffsetMode, OffsetSpec, SourceOptions
from goddard.spark.reading import offsets
from goddard.spark.reading.cluster import Bounds, ClusterClient
from goddard.spark.reading.micro_batch import MicroBatchPlanner
from goddard.spark.reading.offsets import DataLossError, Offsets, QueueRange
from goddard.spark.reading.pull import Chunk, PulledRecords, RangesReader
from goddard.spark.reading.pushdown import PushedFilters, push_filters
from goddard.spark.reading.sessions import worker_session

_logger: Final = logging.getLogger("goddard.spark")


class QueueRangePartition(InputPartition):
    """The ranges that one task reads, and the number of its concurrent pulls."""

    def __init__(self, ranges: Sequence[QueueRange], requests_in_flight: int) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)
        self.requests_in_flight = requests_in_flight


def plan_tasks(ranges: list[QueueRange], options: SourceOptions) -> list[QueueRangePartition]:
    """The partitions of a query or batch."""
    parts = offsets.split(
        ranges,
        min_partitions=options.min_partitions,
        max_records_per_partition=options.max_records_per_partition,
    )
    tasks = offsets.combine(parts, max(offsets.MIN_COMBINED_TASKS, options.min_partitions or 0))
    brokers = [{each.queue.broker_name for each in task} for task in tasks]
    task_counts = Counter(name for names in brokers for name in names)
    partitions = []
    for task, names in zip(tasks, brokers, strict=True):
        share = options.requests_in_flight_per_broker // max(task_counts[name] for name in names)
        in_flight = max(1, min(options.requests_in_flight, share))
        partitions.append(QueueRangePartition(task, in_flight))
    return partitions


def read_ranges(
    partition: QueueRangePartition, options: SourceOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Runs in a task. A batch has messages of one topic and broker."""
    with worker_session(options.connection) as worker:
        run = worker.runner.run
        reader = RangesReader(
            partition.ranges, options, worker.session, partition.requests_in_flight
        )
        chunks = reader.chunks()
        try:
            read: list[Chunk] = []
            queue = partition.ranges[0].queue
            buffer = PulledRecords()
            while run(_read_next(chunks, read)):
                chunk = read.pop()
                if buffer.count and chunk.queue[:2] != queue[:2]:
                    yield from buffer.batches(queue, names, options.tags)
                    reader.note_pause()
                    buffer = PulledRecords()
                queue = chunk.queue
                buffer.add(chunk.pulled)
                if buffer.count >= options.rows_per_batch or buffer.size_bytes >= MAX_BATCH_BYTES:
                    yield from buffer.batches(queue, names, options.tags)
                    reader.note_pause()
                    buffer = PulledRecords()
            if buffer.count:
                yield from buffer.batches(queue, names, options.tags)
        finally:
            run(chunks.aclose())


async def _read_next(chunks: AsyncGenerator[Chunk, None], read: list[Chunk]) -> bool:
    """Add the next chunk to ``read``; False at the end.

    It is not returned: asyncio.Runner formats the task with its result, all bytes of it, each time
    it installs its signal handler.
    """
    chunk = await anext(chunks, None)
    if chunk is None:
        return False
    read.append(chunk)
    return True


def _rows_of(
    partition: InputPartition, options: SourceOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    # Spark creates a partition of its own if the reader returns none.
    if not isinstance(partition, QueueRangePartition):
        return iter(())
    return read_ranges(partition, options, names)


class BatchReader(DataSourceReader):
    """``spark.read``."""

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = list(names)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with ClusterClient(options.connection) as cluster:
            bounds = cluster.bounds(cluster.queues(options))
            start = cluster.resolve(
                options.start,
                bounds,
                group=options.group,
                fails_without_match=options.fails_when_no_timestamp_matches,
            )
            end = cluster.resolve(options.end, bounds)
            start, end = self._clamp(bounds, start, end)
            ranges, _ = offsets.ranges_between(start, end)
            ranges = self._narrow(cluster, ranges)
        return plan_tasks(ranges, options)

    def _narrow(self, cluster: ClusterClient, ranges: list[QueueRange]) -> list[QueueRange]:
        """Hook for filter push-down; without it the ranges stay as they are."""
        return ranges

    def _clamp(self, bounds: Bounds, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Limit offsets from the options to the queues' bounds; offsets outside are data loss."""
        earliest, latest = bounds.earliest, bounds.latest
        losses = [
            f"{queue} begins at {earliest[queue]}, offset {offset} was requested"
            for queue, offset in start.items()
            if offset < earliest[queue]
        ] + [
            f"{queue} ends at {latest[queue]}, offset {offset} was requested: is the offset "
            "correct, or was the topic recreated?"
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
    """``spark.read`` with filter push-down.

    A separate class, because Spark rejects readers with ``pushFilters`` unless its configuration
    enables push-down.
    """

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        super().__init__(options, names)
        self._pushed = PushedFilters()

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pushed, unaccepted = push_filters(filters)
        expression = self._pushed.tag_expression
        if expression is not None and self._options.expression == "*":
            self._options = replace(self._options, expression=expression)
        return unaccepted

    @override
    def _narrow(self, cluster: ClusterClient, ranges: list[QueueRange]) -> list[QueueRange]:
        pushed = self._pushed
        ranges = [pushed.narrow(each) for each in ranges if pushed.matches_queue(each.queue)]
        starts = {each.queue: each.start for each in ranges}
        ends = {each.queue: each.end for each in ranges}
        bounds = Bounds(starts, ends, {})
        if pushed.from_ms is not None:
            since = OffsetSpec(OffsetMode.EARLIEST, timestamp_ms=pushed.from_ms)
            starts = cluster.resolve(since, bounds)
        if pushed.until_ms is not None:
            until = OffsetSpec(OffsetMode.LATEST, timestamp_ms=pushed.until_ms)
            ends = cluster.resolve(until, bounds)
        return [QueueRange(each.queue, starts[each.queue], ends[each.queue]) for each in ranges]


class FileSplitPartition(InputPartition):
    """The part of a commit-log file that one task reads."""

    def __init__(self, split: log.FileSplit) -> None:
        super().__init__(split)
        self.split = split


class LogReader(DataSourceReader):
    """``spark.read.format("rocketmq-log")``."""

    def __init__(self, options: log.LogOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = list(names)

    def partitions(self) -> Sequence[InputPartition]:
        return [FileSplitPartition(split) for split in log.plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FileSplitPartition):
            return iter(())
        return log.read_split(partition.split, self._options, self._names)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``."""

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = list(names)
        # Created on the driver on first use, because Spark sends the reader to workers.
        self._planner: MicroBatchPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    def _get_planner(self) -> MicroBatchPlanner:
        if self._planner is None:
            self._planner = MicroBatchPlanner(self._options)
        return self._planner

    @override
    def initialOffset(self) -> dict[str, Any]:
        return self._get_planner().initial()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        max_rows = self._options.max_offsets_per_trigger
        if max_rows is None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadMaxRows(max_rows)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Trigger.Once reads everything, whatever the limits are.
        if isinstance(limit, ReadAllAvailable):
            return self._get_planner().next_end(start, None, None)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._get_planner().next_end(start, max_rows, self._options.max_bytes_per_trigger)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._get_planner().stop_at_latest()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._get_planner().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        planner = self._get_planner()
        planner.check_repeated(start, end)
        begins, ends = offsets.from_json(start), planner.parse(end)
        ranges, losses = offsets.ranges_between(begins.queues | ends.first, ends.queues)
        if losses and self._options.fails_on_data_loss:
            raise DataLossError(losses)
        return plan_tasks(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows_of(partition, self._options, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        """Not used: Spark does not call this for the last batch. See MicroBatchPlanner."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None
