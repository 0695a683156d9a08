"""Plan the micro-batches of a streaming query: the driver's part, independent of Spark.

One planner exists for the whole run of a query and is used from one thread. Spark writes each
planned end offset to the checkpoint before the batch is read, so planning need not be repeatable.

Messages that were read may vanish: an unclean failover truncates queues, and a topic may be deleted
and created again. The checkpoint has the store time of the last message of each queue that was
read. Before more of the queue is read, that message is read once more. If another message is in its
place, or none, the messages that are left are those that were stored up to then, and reading goes
on behind them.

When a query starts, an unreachable server is an error. While it runs, the offsets of an unreachable
broker stay as they are until it returns, and an unreachable cluster is tolerated for ``maxOutage``.
"""

import heapq
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, GoddardError
from goddard.spark.options import OffsetMode, OffsetSpec, SourceOptions
from goddard.spark.reading import offsets
from goddard.spark.reading.cluster import Bounds, ClusterClient, is_retriable
from goddard.spark.reading.offsets import DataLossError, Offsets, SourceOffset

_logger: Final = logging.getLogger("goddard.spark")

# Spark polls an idle stream about ninety times a second; brokers are polled less often: the more
# rarely, the more requests it takes and the longer they take.
_MIN_POLL_SECONDS: Final = 0.1
_MAX_POLL_SECONDS: Final = 1.0
_REQUESTS_PER_SECOND: Final = 20
_MAX_POLLING_SHARE: Final = 0.1
_QUEUES_EVERY_SECONDS: Final = 10.0
# How long an unreachable broker is not contacted again, so that it does not delay the others.
_UNREACHABLE_SECONDS: Final = 5.0
# Fewer messages than this are read whatever their size. Larger batches are limited by their bytes,
# with a sample of the messages of some queues.
_MESSAGES_WITHOUT_SAMPLE: Final = 10_000
_SAMPLED_QUEUES: Final = 16
_UNKNOWN_RECORD_BYTES: Final = 1_024
# This start does not depend on when the query starts.
_EARLIEST: Final = OffsetSpec(OffsetMode.EARLIEST)


class MicroBatchPlanner:
    """Plans the batches of one query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = ClusterClient(options.connection)
        self._queues: list[MessageQueue] = []
        self._queues_at: float | None = None
        self._latest: Bounds | None = None
        self._poll_at = 0.0
        self._unreachable_until: dict[str, float] = {}
        # Start offsets of queues that no batch has read yet.
        self._new_starts: Offsets = {}
        self._initial: SourceOffset | None = None
        self._committed: Offsets | None = None
        self._stop_at: Bounds | None = None
        self._last_batch_at: float | None = None
        # Whether a batch was planned, by this process or an earlier one.
        self._has_begun = False
        # Whether the topics of the checkpoint were compared with those of the options.
        self._is_checked = False
        self._has_answered = False
        self._failing_since: float | None = None
        # The last start or end offset as JSON, and parsed.
        self._parsed: tuple[dict[str, Any], SourceOffset] | None = None
        # The start for which nothing was available at the last poll.
        self._idle_at: dict[str, Any] | None = None

    def close(self) -> None:
        self._cluster.close()

    def initial(self) -> dict[str, Any]:
        """The start offsets of a new query. Spark calls this repeatedly; the result is kept."""
        if self._initial is None:
            options = self._options
            started_ms = time.time_ns() // 1_000_000
            self._queues = self._cluster.queues(options)
            self._queues_at = time.monotonic()
            bounds = self._cluster.bounds(self._queues)
            queues = self._cluster.resolve(
                options.start,
                bounds,
                group=options.group,
                fails_without_match=options.fails_when_no_timestamp_matches,
            )
            self._initial = SourceOffset(queues, {}, {}, started_ms)
            self._has_answered = True
        return offsets.to_json(self._initial.queues, started_ms=self._initial.started_ms)

    def stop_at_latest(self) -> None:
        """Plan batches up to the latest offsets of now (the AvailableNow trigger)."""
        self._stop_at = self._latest = self._cluster.bounds(self._cluster.queues(self._options))
        self._idle_at = None
        self._has_answered = True

    def report(self) -> dict[str, Any] | None:
        """The latest known offsets, for Spark's progress reports."""
        return offsets.to_json(self._latest.latest) if self._latest is not None else None

    def parse(self, value: dict[str, Any]) -> SourceOffset:
        """Parse offsets of the checkpoint; the last result is kept, because Spark repeats them."""
        if self._parsed is None or self._parsed[0] != value:
            self._parsed = (value, offsets.from_json(value))
        return self._parsed[1]

    def next_end(
        self, start: dict[str, Any], max_messages: int | None, max_bytes: int | None
    ) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself if there is nothing to read yet.

        When Spark calls this, the batch that ends at ``start`` is complete. So the offsets of the
        consumer group are committed here, including those of the last batch.
        """
        if time.monotonic() < self._poll_at and start == self._idle_at:
            return start
        begins = self.parse(start)
        if not self._is_checked:
            self._check_topics(begins.queues)
            self._is_checked = True
        self._commit(begins.queues)
        if begins.first or self._initial is None or begins.queues != self._initial.queues:
            self._has_begun = True
        try:
            end = self._plan(begins, max_messages, max_bytes)
        except GoddardError as error:
            self._tolerate_outage(error)
            end = None
        self._idle_at = start if end is None else None
        return start if end is None else end

    def _check_topics(self, begins: Offsets) -> None:
        """Refuse a checkpoint of other topics: their unread messages would never be read."""
        topics = {queue.topic for queue in begins}
        if topics and not any(map(self._options.selects_topic, topics)):
            raise ConfigError(
                f"the checkpoint has offsets of {', '.join(sorted(topics)[:5])}, which this query "
                "does not read; use a checkpoint of its own for other topics"
            )

    def _plan(
        self, begins: SourceOffset, max_messages: int | None, max_bytes: int | None
    ) -> dict[str, Any] | None:
        """The end of the next batch as JSON; None if there is nothing to read yet."""
        bounds = self._latest_bounds(begins.queues)
        new = self._starts_of_new_queues(begins, bounds)
        first = new | self._continue_after_loss(begins, bounds, _replaced(begins, bounds))
        self._failing_since = None
        self._has_answered = True
        # The checkpoint does not contain the start offsets before the first batch, nor the new
        # start of a recreated queue. "latest" would be a different offset after a restart, so an
        # empty batch writes these offsets to the checkpoint.
        is_start_persisted = self._has_begun or self._options.start == _EARLIEST
        is_start_persisted = is_start_persisted and not first.keys() & begins.queues.keys()
        is_start_persisted = is_start_persisted and not any(new.values())
        if not self._has_begun:
            first = begins.queues | first
        # The offsets of unreachable brokers stay as they are.
        absent = begins.queues.keys() - bounds.latest.keys()
        latest = {queue: begins.queues[queue] for queue in absent} | bounds.latest
        position = begins.queues | first
        available = offsets.count_available(position, latest)
        if not available or self._waits_for_more(available):
            if is_start_persisted:
                return None
            return self._to_json(begins, bounds, position, first)
        first = first | self._check_last_messages(begins, bounds, latest, first)
        position = begins.queues | first
        end = latest
        if max_bytes is not None and available > _MESSAGES_WITHOUT_SAMPLE:
            fitting = max(1, max_bytes // self._record_bytes(position, latest))
            max_messages = min(max_messages or fitting, fitting)
        if max_messages is not None:
            end = offsets.limit_batch(position, latest, max_messages)
        return self._to_json(begins, bounds, end, first or None)

    def _record_bytes(self, position: Offsets, latest: Offsets) -> int:
        """The mean size of the messages to read, by samples of the queues with the most of them."""
        lags = {queue: offset - position.get(queue, offset) for queue, offset in latest.items()}
        longest = heapq.nlargest(_SAMPLED_QUEUES, lags, key=lambda queue: (lags[queue], queue))
        sampled = self._cluster.record_bytes({queue: position[queue] for queue in longest})
        weight = sum(lags[queue] for queue in sampled)
        if not weight:
            return _UNKNOWN_RECORD_BYTES
        return max(1, sum(size * lags[queue] for queue, size in sampled.items()) // weight)

    def _to_json(
        self, begins: SourceOffset, bounds: Bounds, end: Offsets, first: Offsets | None
    ) -> dict[str, Any]:
        """The end of a batch as JSON, with the store times of the messages before it."""
        stored_ms: Offsets = {}
        unknown: Offsets = {}
        for queue, offset in end.items():
            is_unchanged = offset == begins.queues.get(queue) and queue not in (first or {})
            if is_unchanged and queue in begins.stored_ms:
                stored_ms[queue] = begins.stored_ms[queue]
            elif offset == bounds.latest.get(queue) and queue in bounds.last_stored_ms:
                stored_ms[queue] = bounds.last_stored_ms[queue]
            elif offset and not is_unchanged:
                unknown[queue] = offset - 1
        found = self._cluster.store_times(unknown) if unknown else {}
        stored_ms |= {queue: time_ms for queue, time_ms in found.items() if time_ms is not None}
        value = offsets.to_json(end, first, stored_ms, begins.started_ms)
        self._parsed = (value, SourceOffset(end, first or {}, stored_ms, begins.started_ms))
        return value

    def check_repeated(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Report messages of a batch that have vanished since it was planned before a restart."""
        if self._parsed is not None and self._parsed[0] == end:
            return
        begins, planned = offsets.from_json(start), offsets.from_json(end)
        marks = {queue: (planned.queues[queue] - 1, ms) for queue, ms in planned.stored_ms.items()}
        found = self._cluster.store_times({queue: offset for queue, (offset, _) in marks.items()})
        self._report_losses(
            _vanished(queue, offset + 1, expected_ms, found_ms)
            for queue, (offset, expected_ms) in sorted(marks.items())
            if planned.queues[queue] != begins.queues.get(queue)
            and (found_ms := found.get(queue)) is not None
            and found_ms != expected_ms
        )

    def _commit(self, begins: Offsets) -> None:
        """Commit the offsets of the consumer group; failed commits are repeated later."""
        group = self._options.group
        if group is None or begins == self._committed:
            return
        if self._committed is None:
            # The query has not read anything before its start offsets.
            is_initial = self._initial is not None and begins == self._initial.queues
            self._committed = begins if is_initial else {}
        now = time.monotonic()
        changed = {
            queue: offset
            for queue, offset in begins.items()
            if self._committed.get(queue) != offset and self._is_reachable(queue, now)
        }
        answered = self._cluster.commit(group, changed) if changed else {}
        self._committed = self._committed | answered
        failed = changed.keys() - answered.keys()
        self._mark_unreachable({queue.broker_name for queue in failed}, now)

    def _is_reachable(self, queue: MessageQueue, now: float) -> bool:
        return self._unreachable_until.get(queue.broker_name, 0) <= now

    def _mark_unreachable(self, broker_names: set[str], now: float) -> None:
        for name in sorted(broker_names):
            _logger.warning(
                "Broker %s is unreachable; its offsets stay as they are until it returns", name
            )
            self._unreachable_until[name] = now + _UNREACHABLE_SECONDS

    def _latest_bounds(self, begins: Offsets) -> Bounds:
        """The bounds of the queues of reachable brokers; cached for a short time."""
        if self._stop_at is not None:
            return self._limit_to_start(self._stop_at, begins)
        now = time.monotonic()
        if self._queues_at is None or now - self._queues_at >= _QUEUES_EVERY_SECONDS:
            self._queues = self._cluster.queues(self._options, is_running=self._has_answered)
            self._queues_at = now
        if self._latest is None or now >= self._poll_at:
            reachable = [queue for queue in self._queues if self._is_reachable(queue, now)]
            asked = reachable or self._queues
            self._latest = self._cluster.bounds_of_reachable(asked, begins)
            failed = {queue.broker_name for queue in reachable if queue not in self._latest.latest}
            self._mark_unreachable(failed, now)
            requests = len({(queue.topic, queue.broker_name) for queue in asked})
            polled = time.monotonic()
            pause = max((polled - now) / _MAX_POLLING_SHARE, requests / _REQUESTS_PER_SECOND)
            self._poll_at = polled + min(max(pause, _MIN_POLL_SECONDS), _MAX_POLL_SECONDS)
        return self._latest

    def _limit_to_start(self, stop_at: Bounds, begins: Offsets) -> Bounds:
        """New stop offsets for queues whose stop is before their start.

        With "latest", messages may arrive between the requests for stop and start.
        """
        behind = [
            queue for queue, offset in stop_at.latest.items() if offset < begins.get(queue, 0)
        ]
        if not behind:
            return stop_at
        latest = self._cluster.bounds_of_reachable(behind, begins).latest
        limited = {queue: min(latest.get(queue, begins[queue]), begins[queue]) for queue in behind}
        stored_ms = {
            queue: time_ms
            for queue, time_ms in stop_at.last_stored_ms.items()
            if queue not in limited
        }
        return Bounds(stop_at.earliest, stop_at.latest | limited, stored_ms)

    # Queues that appear while the query runs

    def _starts_of_new_queues(self, begins: SourceOffset, bounds: Bounds) -> Offsets:
        """The start offsets of queues that no batch has read.

        A broker that was away when the query was started has queues that are as old as the others:
        they follow startingOffsets. Queues that were created later follow newQueues.
        """
        new = bounds.latest.keys() - begins.queues.keys()
        if unknown := new - self._new_starts.keys():
            brokers = {queue.broker_name for queue in begins.queues}
            spec = self._start_of_late_brokers(begins)
            is_late = spec is not None
            late = {queue for queue in unknown if is_late and queue.broker_name not in brokers}
            if spec is not None and late:
                self._new_starts |= self._resolve_late(spec, begins, bounds.only(late))
            self._new_starts |= self._starts_of_created(bounds.only(unknown - late))
        return {queue: self._new_starts[queue] for queue in new}

    def _start_of_late_brokers(self, begins: SourceOffset) -> OffsetSpec | None:
        """Where to start on brokers that were away; None if startingOffsets does not say.

        For "latest", with the messages that were stored since the query was started.
        """
        start = self._options.start
        if begins.started_ms is None or start.offsets or start.timestamps_ms:
            return None
        if start.mode is OffsetMode.LATEST and start.timestamp_ms is None:
            return OffsetSpec(OffsetMode.EARLIEST, timestamp_ms=begins.started_ms)
        return start

    def _resolve_late(self, spec: OffsetSpec, begins: SourceOffset, bounds: Bounds) -> Offsets:
        starts = self._cluster.resolve(spec, bounds, group=self._options.group)
        # If the oldest message that is left was stored after the start of the query, others that
        # the query should have read may have been deleted.
        begun = [
            queue
            for queue, offset in starts.items()
            if 0 < offset == bounds.earliest[queue] < bounds.latest[queue]
        ]
        since = OffsetSpec(OffsetMode.EARLIEST, timestamp_ms=begins.started_ms)
        at_start = self._cluster.resolve(since, bounds.only(begun))
        self._report_deleted(
            bounds, [queue for queue in begun if at_start[queue] == bounds.earliest[queue]]
        )
        return starts

    def _starts_of_created(self, bounds: Bounds) -> Offsets:
        if self._options.new_queues is OffsetMode.LATEST:
            return bounds.latest
        self._report_deleted(bounds, [queue for queue, offset in bounds.earliest.items() if offset])
        return bounds.earliest

    def _report_deleted(self, bounds: Bounds, queues: Iterable[MessageQueue]) -> None:
        self._report_losses(
            f"{queue} is new and begins at {bounds.earliest[queue]}: earlier messages were not read"
            for queue in sorted(queues)
        )

    # Messages that vanish after they were read

    def _check_last_messages(
        self, begins: SourceOffset, bounds: Bounds, latest: Offsets, first: Offsets
    ) -> Offsets:
        """New start offsets of queues whose last message that was read is not there any more.

        A queue that cannot be checked now is not read: its offset in ``latest`` is reset.
        """
        expected = {
            queue: time_ms
            for queue, time_ms in begins.stored_ms.items()
            if queue not in first and latest[queue] > begins.queues[queue]
        }
        found = self._cluster.store_times({queue: begins.queues[queue] - 1 for queue in expected})
        if self._stop_at is None:
            # With AvailableNow, a batch without new offsets would end the query.
            for queue in expected.keys() - found.keys():
                latest[queue] = begins.queues[queue]
        replaced = {
            queue: time_ms
            for queue, time_ms in found.items()
            if time_ms is not None and time_ms != expected[queue]
        }
        return self._continue_after_loss(begins, bounds, replaced)

    def _continue_after_loss(
        self, begins: SourceOffset, bounds: Bounds, found: Mapping[MessageQueue, int | None]
    ) -> Offsets:
        """The start offsets behind the messages that are left, for queues that lost messages.

        ``found``: the store time of the message before the offset; None if the queue ends there.
        """
        if not found:
            return {}
        self._report_losses(
            f"{queue} ends at {bounds.latest[queue]}, before {begins.queues[queue]}: "
            "was the topic recreated, or truncated by a failover?"
            if found_ms is None
            else _vanished(queue, begins.queues[queue], begins.stored_ms[queue], found_ms)
            for queue, found_ms in sorted(found.items())
        )
        times_ms = {queue: begins.stored_ms[queue] for queue in found if queue in begins.stored_ms}
        after = self._cluster.offsets_after(times_ms, bounds)
        return {
            queue: max(
                bounds.earliest[queue],
                min(begins.queues[queue], after.get(queue, bounds.latest[queue])),
            )
            for queue in found
        }

    def _report_losses(self, losses: Iterable[str]) -> None:
        texts = list(losses)
        if texts and self._options.fails_on_data_loss:
            raise DataLossError(texts)
        for text in texts:
            _logger.warning("messages were lost before they were read: %s", text)

    def _waits_for_more(self, available: int) -> bool:
        """Whether fewer than minOffsetsPerTrigger messages are available.

        As in Spark's Kafka source, the first batch does not wait.
        """
        now = time.monotonic()
        minimum = self._options.min_offsets_per_trigger
        last = self._last_batch_at
        if minimum is None or self._stop_at is not None or last is None or available >= minimum:
            waits = False
        else:
            waits = (now - last) * 1000 < self._options.max_trigger_delay_ms
        if not waits:
            self._last_batch_at = now
        return waits

    def _tolerate_outage(self, error: GoddardError) -> None:
        """Log an outage that a running query waits for; raise the error if it must not wait."""
        # With AvailableNow, returning no new offsets would end the query.
        if not self._has_answered or self._stop_at is not None or not is_retriable(error):
            raise error
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if (now - self._failing_since) * 1000 >= self._options.connection.max_outage_ms:
            raise error
        _logger.warning("cluster is unreachable, waiting for it: %s", error)


def _replaced(begins: SourceOffset, bounds: Bounds) -> dict[MessageQueue, int | None]:
    """Queues that show by their bounds alone that messages have vanished that were read.

    The value is the store time of the message before the offset; None if the queue ends there.
    """
    found: dict[MessageQueue, int | None] = {}
    for queue, latest in bounds.latest.items():
        offset = begins.queues.get(queue, 0)
        if latest < offset:
            found[queue] = None
        elif latest == offset and queue in begins.stored_ms and queue in bounds.last_stored_ms:
            last_stored_ms = bounds.last_stored_ms[queue]
            if last_stored_ms != begins.stored_ms[queue]:
                found[queue] = last_stored_ms
    return found


def _vanished(queue: MessageQueue, offset: int, expected_ms: int, found_ms: int) -> str:
    return (
        f"the message of {queue} before offset {offset} was stored at {expected_ms} ms when it was "
        f"read, and now is one that was stored at {found_ms} ms: was the topic recreated, or "
        "truncated by a failover?"
    )
