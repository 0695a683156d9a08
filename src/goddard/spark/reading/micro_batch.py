"""Plan the micro-batches of a streaming query: the driver's part, independent of Spark.

One planner exists for the whole run of a query and is used from one thread. Spark writes each
planned end offset to the checkpoint before the batch is read, so planning need not be repeatable.
When a query starts, an unreachable server is an error. While it runs, the offsets of an unreachable
broker stay as they are until it returns, and an unreachable cluster is tolerated for ``maxOutage``.
"""

import logging
import time
from collections.abc import Iterable
from typing import Any, Final

from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.spark.options import OffsetMode, OffsetSpec, SourceOptions
from goddard.spark.reading import offsets
from goddard.spark.reading.cluster import ClusterClient, is_retriable
from goddard.spark.reading.offsets import DataLossError, Offsets

_logger: Final = logging.getLogger("goddard.spark")

# Spark polls an idle stream about ninety times a second; brokers are polled less often.
_LATEST_EVERY_SECONDS: Final = 0.1
_QUEUES_EVERY_SECONDS: Final = 10.0
# How long an unreachable broker is not contacted again, so that it does not delay the others.
_UNREACHABLE_SECONDS: Final = 5.0
# This start does not depend on when the query starts.
_EARLIEST: Final = OffsetSpec(OffsetMode.EARLIEST)


class MicroBatchPlanner:
    """Plans the batches of one query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = ClusterClient(options.connection)
        self._queues: list[MessageQueue] = []
        self._queues_at: float | None = None
        self._latest: Offsets = {}
        self._latest_at: float | None = None
        self._unreachable_until: dict[str, float] = {}
        # Start offsets of queues that no batch has read yet.
        self._earliest: Offsets = {}
        self._initial: Offsets | None = None
        self._committed: Offsets | None = None
        self._stop_at: Offsets | None = None
        self._last_batch_at: float | None = None
        # Whether a batch was planned, by this process or an earlier one.
        self._has_begun = False
        self._has_answered = False
        self._failing_since: float | None = None

    def close(self) -> None:
        self._cluster.close()

    def initial(self) -> Offsets:
        """The start offsets of a new query. Spark calls this repeatedly; the result is kept."""
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

    def stop_at_latest(self) -> None:
        """Plan batches up to the latest offsets of now (the AvailableNow trigger)."""
        self._stop_at = self._latest = self._cluster.latest(self._cluster.queues(self._options))
        self._has_answered = True

    def report(self) -> dict[str, Any] | None:
        """The latest known offsets, for Spark's progress reports."""
        return offsets.to_json(self._latest) if self._latest else None

    def next_end(self, start: dict[str, Any], max_messages: int | None) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself if there is nothing to read yet.

        When Spark calls this, the batch that ends at ``start`` is complete. So the offsets of the
        consumer group are committed here, including those of the last batch.
        """
        begins, began = offsets.from_json(start)
        self._commit(begins)
        if began or begins != self._initial:
            self._has_begun = True
        try:
            latest = self._latest_offsets(begins)
            first = self._new_queues(begins, latest) | self._recreated_queues(begins, latest)
        except GoddardError as error:
            self._tolerate_outage(error)
            return start
        self._failing_since = None
        self._has_answered = True
        # The checkpoint does not contain the start offsets before the first batch, nor the new
        # start of a recreated queue. "latest" would be a different offset after a restart, so an
        # empty batch writes these offsets to the checkpoint.
        is_start_persisted = self._has_begun or self._options.start == _EARLIEST
        is_start_persisted = is_start_persisted and not first.keys() & begins.keys()
        if not self._has_begun:
            first = begins | first
        # The offsets of unreachable brokers stay as they are.
        latest = {queue: begins[queue] for queue in begins.keys() - latest.keys()} | latest
        begins = begins | first
        available = offsets.count_available(begins, latest)
        if not available or self._waits_for_more(available):
            return start if is_start_persisted else offsets.to_json(begins, first)
        end = latest
        if max_messages is not None:
            end = offsets.limit_batch(begins, latest, max_messages)
        return offsets.to_json(end, first or None)

    def _commit(self, begins: Offsets) -> None:
        """Commit the offsets of the consumer group; failed commits are repeated later."""
        group = self._options.group
        if group is None or begins == self._committed:
            return
        if self._committed is None:
            # The query has not read anything before its start offsets.
            self._committed = begins if begins == self._initial else {}
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

    def _latest_offsets(self, begins: Offsets) -> Offsets:
        """The latest offsets of the queues of reachable brokers; cached for a short time."""
        if self._stop_at is not None:
            return self._stop_at | self._limit_to_start(self._stop_at, begins)
        now = time.monotonic()
        if self._queues_at is None or now - self._queues_at >= _QUEUES_EVERY_SECONDS:
            self._queues = self._cluster.queues(self._options, is_running=self._has_answered)
            self._queues_at = now
        if self._latest_at is None or now - self._latest_at >= _LATEST_EVERY_SECONDS:
            reachable = [queue for queue in self._queues if self._is_reachable(queue, now)]
            self._latest = self._cluster.latest_of_reachable(reachable or self._queues, begins)
            failed = {queue.broker_name for queue in reachable if queue not in self._latest}
            self._mark_unreachable(failed, now)
            self._latest_at = now
        return self._latest

    def _limit_to_start(self, stop_at: Offsets, begins: Offsets) -> Offsets:
        """New stop offsets for queues whose stop is before their start.

        With "latest", messages may arrive between the requests for stop and start.
        """
        behind = [queue for queue in stop_at if stop_at[queue] < begins.get(queue, 0)]
        latest = self._cluster.latest_of_reachable(behind, begins)
        return {queue: min(latest.get(queue, begins[queue]), begins[queue]) for queue in behind}

    def _new_queues(self, begins: Offsets, latest: Offsets) -> Offsets:
        """The start offsets of queues that appeared while the query runs: their earliest."""
        new = latest.keys() - begins.keys()
        unknown = new - self._earliest.keys()
        if unknown:
            earliest, _ = self._cluster.bounds(unknown)
            self._report_losses(
                f"{queue} is new and begins at {earliest[queue]}: earlier messages were not read"
                for queue in sorted(unknown)
                if earliest[queue]
            )
            self._earliest |= earliest
        return {queue: self._earliest[queue] for queue in new}

    def _recreated_queues(self, begins: Offsets, latest: Offsets) -> Offsets:
        """The start offsets of queues that end before ``begins``: their topics were recreated."""
        queues = [queue for queue in latest if latest[queue] < begins.get(queue, 0)]
        if not queues:
            return {}
        self._report_losses(
            f"{queue} ends at {latest[queue]}, before {begins[queue]}: was the topic recreated?"
            for queue in sorted(queues)
        )
        return self._cluster.bounds(queues)[0]

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
