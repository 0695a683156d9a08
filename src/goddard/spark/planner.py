"""Where each batch of a stream ends: the driver's side of a streaming query, without Spark.

One planner lives in one process for the whole run of a query, and is asked from one thread. What it
answers is written to the checkpoint before it is read, so only the answers have to be right, not
repeatable. While a query runs, brokers that are away keep their place, and a cluster that does not
answer at all is waited for; when it starts, both are errors at once.
"""

import logging
import time
from collections.abc import Iterable
from typing import Any, Final

from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.spark import offsets
from goddard.spark.cluster import Cluster, is_passing
from goddard.spark.offsets import DataLossError, Offsets
from goddard.spark.options import Place, SourceOptions, Where

_logger: Final = logging.getLogger("goddard.spark")

# Spark asks an idle stream for news some ninety times a second; brokers are asked less often.
_LATEST_EVERY_SECONDS: Final = 0.1
_QUEUES_EVERY_SECONDS: Final = 10.0
# For so long a broker that did not answer is not asked again: the others are not to wait for it.
_AWAY_SECONDS: Final = 5.0
# A place that means the same whenever a query starts.
_EARLIEST: Final = Place(Where.EARLIEST)


class StreamPlanner:
    """Plans the batches of one query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.connecting)
        self._queues: list[MessageQueue] = []
        self._queues_at: float | None = None
        self._latest: Offsets = {}
        self._latest_at: float | None = None
        self._away_until: dict[str, float] = {}
        # Where queues begin that no batch has read yet.
        self._earliest: Offsets = {}
        self._initial: Offsets | None = None
        self._committed: Offsets | None = None
        self._stop_at: Offsets | None = None
        self._last_batch_at: float | None = None
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

    def stop_at_latest(self) -> None:
        """Plan up to what is there now, and nothing that comes later."""
        self._stop_at = self._latest = self._cluster.latest(self._cluster.queues(self._options))
        self._has_answered = True

    def report(self) -> dict[str, Any] | None:
        """How far the queues reach, as far as it is known."""
        return offsets.to_json(self._latest) if self._latest else None

    def next_end(self, start: dict[str, Any], most: int | None) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself when there is none yet.

        Asked of it, a batch that ends at ``start`` is done: so this is where the group's offsets
        are committed, and those of the last batch too.
        """
        begins, began = offsets.from_json(start)
        self._commit(begins)
        if began or begins != self._initial:
            self._has_begun = True
        try:
            latest = self._refreshed(begins)
            first = self._new(begins, latest) | self._anew(begins, latest)
        except GoddardError as error:
            self._bear(error)
            return start
        self._failing_since = None
        self._has_answered = True
        # Until a batch has begun nothing keeps where the query started; "latest" would be another
        # place after a restart. The same of a queue that was created anew. An empty batch does.
        is_written_down = self._has_begun or self._options.start == _EARLIEST
        is_written_down = is_written_down and not first.keys() & begins.keys()
        if not self._has_begun:
            first = begins | first
        # A broker that is away keeps its place until it is back.
        latest = {queue: begins[queue] for queue in begins.keys() - latest.keys()} | latest
        begins = begins | first
        ahead = offsets.available(begins, latest)
        if not ahead or self._waits_for_more(ahead):
            return start if is_written_down else offsets.to_json(begins, first)
        end = latest if most is None else offsets.limited(begins, latest, most)
        return offsets.to_json(end, first or None)

    def _commit(self, begins: Offsets) -> None:
        """Tell the group's offsets; what cannot be told now is told later."""
        group = self._options.group
        if group is None or begins == self._committed:
            return
        if self._committed is None:
            # Where the query starts is nothing that it has read.
            self._committed = begins if begins == self._initial else {}
        now = time.monotonic()
        news = {
            queue: offset
            for queue, offset in begins.items()
            if self._committed.get(queue) != offset and self._is_present(queue, now)
        }
        done = self._cluster.commit(group, news) if news else {}
        self._committed = self._committed | done
        self._note_away({queue.broker_name for queue in news.keys() - done.keys()}, now)

    def _is_present(self, queue: MessageQueue, now: float) -> bool:
        return self._away_until.get(queue.broker_name, 0) <= now

    def _note_away(self, broker_names: set[str], now: float) -> None:
        for name in sorted(broker_names):
            _logger.warning("%s does not answer; it keeps its place", name)
            self._away_until[name] = now + _AWAY_SECONDS

    def _refreshed(self, begins: Offsets) -> Offsets:
        """The latest offsets of the queues whose brokers are there, asked for now and then."""
        if self._stop_at is not None:
            return self._stop_at | self._before_start(self._stop_at, begins)
        now = time.monotonic()
        if self._queues_at is None or now - self._queues_at >= _QUEUES_EVERY_SECONDS:
            self._queues = self._cluster.queues(self._options, is_running=self._has_answered)
            self._queues_at = now
        if self._latest_at is None or now - self._latest_at >= _LATEST_EVERY_SECONDS:
            asked = [queue for queue in self._queues if self._is_present(queue, now)]
            self._latest = self._cluster.latest_of_present(asked or self._queues, begins)
            silent = {queue.broker_name for queue in asked if queue not in self._latest}
            self._note_away(silent, now)
            self._latest_at = now
        return self._latest

    def _before_start(self, stop_at: Offsets, begins: Offsets) -> Offsets:
        """Queues that stop before they begin: with "latest", by what came between the questions."""
        behind = [queue for queue in stop_at if stop_at[queue] < begins.get(queue, 0)]
        latest = self._cluster.latest_of_present(behind, begins)
        return {queue: min(latest.get(queue, begins[queue]), begins[queue]) for queue in behind}

    def _new(self, begins: Offsets, latest: Offsets) -> Offsets:
        """Where queues begin that have appeared since: with their first message."""
        fresh = latest.keys() - begins.keys()
        unknown = fresh - self._earliest.keys()
        if unknown:
            earliest, _ = self._cluster.bounds(unknown)
            self._lost(
                f"{queue} is new and begins at {earliest[queue]}: what it had before was not read"
                for queue in sorted(unknown)
                if earliest[queue]
            )
            self._earliest |= earliest
        return {queue: self._earliest[queue] for queue in fresh}

    def _anew(self, begins: Offsets, latest: Offsets) -> Offsets:
        """Where queues begin that end before they were read to: their topics were created anew."""
        queues = [queue for queue in latest if latest[queue] < begins.get(queue, 0)]
        if not queues:
            return {}
        self._lost(
            f"{queue} ends at {latest[queue]}, before {begins[queue]}: was the topic created anew?"
            for queue in sorted(queues)
        )
        return self._cluster.bounds(queues)[0]

    def _lost(self, losses: Iterable[str]) -> None:
        said = list(losses)
        if said and self._options.fails_on_data_loss:
            raise DataLossError(said)
        for loss in said:
            _logger.warning("messages were lost before they were read: %s", loss)

    def _waits_for_more(self, ahead: int) -> bool:
        """Whether there is too little for a batch. As with Kafka, the first look is for all."""
        now = time.monotonic()
        least = self._options.min_offsets_per_trigger
        last = self._last_batch_at
        if least is None or self._stop_at is not None or last is None or ahead >= least:
            waits = False
        else:
            waits = (now - last) * 1000 < self._options.max_trigger_delay_ms
        if not waits:
            self._last_batch_at = now
        return waits

    def _bear(self, error: GoddardError) -> None:
        """Servers that do not answer for a while are no reason to end a query that runs."""
        # To one that stops at what is there, no news would be the end.
        if not self._has_answered or self._stop_at is not None or not is_passing(error):
            raise error
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if (now - self._failing_since) * 1000 >= self._options.connecting.max_outage_ms:
            raise error
        _logger.warning("the cluster does not answer, waiting for it: %s", error)
