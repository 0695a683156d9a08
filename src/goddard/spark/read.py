"""Reading as Spark drives it: plan on the driver, read on executors, in batches and in streams.

The driver's side of a stream lives in one process for the whole query; Spark calls it from one
thread. ``read`` runs in workers and depends on nothing but the partition and the options.
"""

import asyncio
import logging
import time
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
from goddard.errors import GoddardError
from goddard.spark import log, offsets
from goddard.spark.cluster import Cluster, is_passing
from goddard.spark.fetch import Pulled, RangeReader, open_session
from goddard.spark.offsets import DataLossError, Offsets, QueueRange
from goddard.spark.options import Place, SourceOptions, Where
from goddard.spark.pushdown import Wanted, push
from goddard.transport.loop import new_event_loop

_logger: Final = logging.getLogger("goddard.spark")

# Spark asks an idle stream for news some ninety times a second; brokers are asked less often.
_LATEST_EVERY_SECONDS: Final = 0.1
_QUEUES_EVERY_SECONDS: Final = 10.0
# An Arrow batch of large messages is cut before it has all its rows.
_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
# A place that means the same whenever a query starts.
_EARLIEST: Final = Place(Where.EARLIEST)


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
        pieces = RangeReader(wanted, options, session).records()
        try:
            held = Pulled()
            while runner.run(_next(pieces, held)):
                if held.count >= options.rows_per_batch or held.size_bytes >= _MAX_BATCH_BYTES:
                    yield _batch(held, wanted.queue, options, names)
                    held = Pulled()
            if held.count:
                yield _batch(held, wanted.queue, options, names)
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


def _batch(
    held: Pulled, queue: MessageQueue, options: SourceOptions, names: Sequence[str]
) -> pa.RecordBatch:
    columns = held.columns(queue)
    wanted_tags = options.tags
    if wanted_tags:
        # The broker compares hashes of tags, and two tags may have the same.
        columns = columns.rows(columns.have_tags(wanted_tags))
    return columns.batch(names)


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
            ranges, _ = offsets.ranges_between(start, end, {})
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
            f"{queue} ends at {latest[queue]}, {offset} was wanted"
            for queue, offset in end.items()
            if offset > latest[queue]
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
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None}

    def _at_driver(self) -> "_Driver":
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    @override
    def initialOffset(self) -> dict[str, Any]:
        return offsets.to_json(self._at_driver().initial())

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._at_driver().next_end(start, most)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._at_driver().stop_at_latest()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._at_driver().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        begins, _ = offsets.from_json(start)
        ends, first = offsets.from_json(end)
        ranges, losses = offsets.ranges_between(begins | first, ends, {})
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
        """Nothing: Spark does not say this of the last batch. See ``_Driver.next_end``."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """The planning side of a stream."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.connecting)
        self._queues: list[MessageQueue] = []
        self._queues_at = 0.0
        self._earliest: Offsets = {}
        self._latest: Offsets = {}
        self._latest_at = 0.0
        self._initial: Offsets | None = None
        self._last: Offsets = {}
        self._committed: Offsets | None = None
        self._stop_at: Offsets | None = None
        self._last_batch_at = time.monotonic()
        # Whether a batch was planned, by this process or one before it.
        self._has_begun = False
        self._has_answered = False
        self._failing_since: float | None = None

    def close(self) -> None:
        self._cluster.close()

    def initial(self) -> Offsets:
        """Where a new query starts. Spark asks more than once; the answer stays the same."""
        if self._initial is None:
            options = self._options
            self._queues = self._cluster.queues(options)
            self._queues_at = time.monotonic()
            bounds = self._cluster.bounds(self._queues)
            self._initial = self._cluster.resolve(
                options.start,
                bounds,
                group=options.group,
                fails_without_match=options.fails_when_no_timestamp_matches,
            )
            self._has_answered = True
        return self._initial

    def next_end(self, start: dict[str, Any], most: int | None) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself when there is none yet.

        Asked of it, a batch that ends at ``start`` is done: so this is where the group's offsets
        are committed, and those of the last batch too.
        """
        begins, began = offsets.from_json(start)
        self._commit(begins)
        try:
            latest = self._refreshed(begins)
        except GoddardError as error:
            self._bear(error)
            return start
        self._failing_since = None
        self._has_answered = True
        if began or begins != self._initial:
            self._has_begun = True
        is_written_down = self._has_begun or self._options.start == _EARLIEST
        begins, latest, first = self._since(begins, latest)
        ahead = offsets.available(begins, latest)
        if not ahead or self._waits_for_more(ahead):
            # Until a batch has begun nothing keeps where the query started; "latest" would be
            # another place after a restart. An empty batch writes it down.
            return start if is_written_down else offsets.to_json(begins, begins)
        end = latest if most is None else offsets.limited(begins, latest, most)
        self._last_batch_at = time.monotonic()
        return offsets.to_json(end, {queue: first[queue] for queue in first if queue in end})

    def _commit(self, begins: Offsets) -> None:
        group = self._options.group
        if group is None or begins == self._committed:
            return
        before = self._committed
        self._committed = begins
        if before is None and begins == self._initial:
            return  # nothing was read yet
        news = {
            queue: offset
            for queue, offset in begins.items()
            if before is None or before.get(queue) != offset
        }
        self._cluster.commit(group, news)

    def _refreshed(self, begins: Offsets) -> Offsets:
        """The latest offsets, asked for now and then."""
        now = time.monotonic()
        if not self._queues_at or now - self._queues_at >= _QUEUES_EVERY_SECONDS:
            self._queues = self._cluster.queues(self._options)
            self._queues_at = now
            new = [queue for queue in self._queues if queue not in begins]
            self._earliest = self._cluster.bounds(new)[0] if new else {}
        if not self._latest_at or now - self._latest_at >= _LATEST_EVERY_SECONDS:
            self._latest = self._cluster.latest(self._queues)
            self._latest_at = now
        return self._latest

    def _since(self, begins: Offsets, latest: Offsets) -> tuple[Offsets, Offsets, Offsets]:
        """Begin, end and first offsets of all queues, those included that came or are away."""
        gone_back = [queue for queue in latest if latest[queue] < begins.get(queue, 0)]
        if self._stop_at is not None:
            latest = {
                queue: min(offset, self._stop_at[queue])
                for queue, offset in latest.items()
                if queue in self._stop_at
            }
        first: Offsets = {}
        if not self._has_begun:
            first |= begins
        fresh = latest.keys() - begins.keys()
        if fresh - self._earliest.keys():
            self._earliest |= self._cluster.bounds(fresh - self._earliest.keys())[0]
        for queue in fresh:
            first[queue] = self._earliest[queue]
        if gone_back:
            first |= self._anew(gone_back, begins, latest)
        # A broker that is away keeps its place until it is back.
        absent = {queue: begins[queue] for queue in begins.keys() - latest.keys()}
        if absent:
            _logger.info("%d queues are away; they are read on when they are back", len(absent))
        return begins | first, latest | absent, first

    def _anew(self, queues: list[MessageQueue], begins: Offsets, latest: Offsets) -> Offsets:
        """A queue that ends before it was read to is another one: its topic was created anew."""
        losses = [
            f"{queue} ends at {latest[queue]}, before {begins[queue]}: was the topic created anew?"
            for queue in sorted(queues)
        ]
        if self._options.fails_on_data_loss:
            raise DataLossError(losses)
        for loss in losses:
            _logger.warning("messages were lost before they were read: %s", loss)
        return self._cluster.bounds(queues)[0]

    def _waits_for_more(self, ahead: int) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or ahead >= least or self._stop_at is not None:
            return False
        waited_ms = (time.monotonic() - self._last_batch_at) * 1000
        return waited_ms < self._options.max_trigger_delay_ms

    def _bear(self, error: GoddardError) -> None:
        """Servers that do not answer for a while are no reason to end a query that runs."""
        if not self._has_answered:
            raise error
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        outage_ms = (now - self._failing_since) * 1000
        if not is_passing(error) or outage_ms >= self._options.connecting.max_outage_ms:
            raise error
        _logger.warning("the cluster does not answer, waiting for it: %s", error)

    def stop_at_latest(self) -> None:
        self._queues = self._cluster.queues(self._options)
        self._queues_at = time.monotonic()
        self._stop_at = self._cluster.latest(self._queues)

    def report(self) -> dict[str, Any] | None:
        return offsets.to_json(self._latest) if self._latest else None
