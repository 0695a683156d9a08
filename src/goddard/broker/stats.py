"""What passed through a broker: sums, rates and averages, for mqadmin and the log.

Sends and pulls only add to counters. ``sample``, called about once a second, takes
snapshots of them; every figure is the difference of two snapshots, as RocketMQ computes it: the
last minute from snapshots 10 s apart, the last hour from 10 min, the last day from 1 h. Until the
first snapshot of its kind a figure is zero. Rates "10s 1m 10m" come from snapshots of each second.

Belongs to the loop, but for ``stored``, which the store calls from the one thread that dispatches.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable
from itertools import accumulate, chain
from typing import Final, NamedTuple

from goddard.protocol.bodies_admin import BrokerStats, StatsItem
from goddard.store.log.block import Placed, count_messages

_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
# How far apart the snapshots of a minute, an hour and a day are.
_PERIODS_MS: Final = (10 * _SECOND_MS, 10 * _MINUTE_MS, _HOUR_MS)
_SNAPSHOTS: Final = (7, 7, 25)
_RATE_SECONDS: Final = (10, 60, 600)
# Each takes some kilobytes in the course of a day.
_MAX_LATENCIES: Final = 10_000
# Pairs of topic and group beyond these have no figures of their own.
_MAX_PAIRS: Final = 200_000
_TIME_RANGES: Final = {
    "[<=0ms]": 1,
    "[0~10ms]": 10,
    "[10~50ms]": 50,
    "[50~100ms]": 100,
    "[100~200ms]": 200,
    "[200~500ms]": 500,
    "[500ms~1s]": 1_000,
    "[1~2s]": 2_000,
    "[2~3s]": 3_000,
    "[3~4s]": 4_000,
    "[4~5s]": 5_000,
    "[5~10s]": 10_000,
    "[10s~]": 2**63,
}
_TIME_RANGE_ENDS: Final = tuple(_TIME_RANGES.values())[:-1]
# Percentiles are found within steps that grow: width in ms, number of steps.
_STEPS: Final = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1_000, 9))
_CEILINGS: Final = tuple(accumulate(width for width, times in _STEPS for _ in range(times)))


class _Snapshot(NamedTuple):
    time_ms: int
    times: int
    messages: int
    size: int


class Flow:
    """Messages of one kind: how often some came, how many, and how many bytes."""

    __slots__ = ("is_user", "messages", "size", "snapshots", "times")

    def __init__(self, *, is_user: bool = True) -> None:
        self.times = 0
        self.messages = 0
        self.size = 0
        # Whether these are messages of users, not RocketMQ's own.
        self.is_user = is_user
        self.snapshots: tuple[deque[_Snapshot], ...] = tuple(
            deque(maxlen=length) for length in _SNAPSHOTS
        )

    def sample(self, kind: int, now_ms: int) -> None:
        snapshots = self.snapshots[kind]
        if not snapshots:
            # What came before the first snapshot counts from one period ago.
            snapshots.append(_Snapshot(now_ms - _PERIODS_MS[kind], 0, 0, 0))
        snapshots.append(_Snapshot(now_ms, self.times, self.messages, self.size))

    def figures(self, kind: int, *, of_size: bool) -> StatsItem:
        snapshots = self.snapshots[kind]
        if not snapshots:
            return StatsItem()
        first, last = snapshots[0], snapshots[-1]
        total = last.size - first.size if of_size else last.messages - first.messages
        times = last.times - first.times
        elapsed_ms = max(1, last.time_ms - first.time_ms)
        return StatsItem(
            sum=total, tps=total * 1000 / elapsed_ms, avgpt=total / times if times else 0.0
        )

    @property
    def rate(self) -> float:
        """Messages a second over the last minute."""
        return self.figures(0, of_size=False).tps


class _Totals(NamedTuple):
    time_ms: int
    stored: int
    found: int
    missed: int
    transferred: int


class DayTotals(NamedTuple):
    """How many messages of users there were by yesterday's and today's morning, and are now."""

    yesterday_morning: int
    today_morning: int
    now: int


class PutTimes:
    """How long the store takes for messages, in RocketMQ's figures of the last whole minute.

    Call ``add`` at every append and ``roll`` every minute. Before the end of the first minute there
    is no distribution, and percentiles are zero.
    """

    def __init__(self) -> None:
        self.max_ms = 0
        self._current: Counter[int] = Counter()
        self._last: Counter[int] | None = None

    def add(self, count: int, took_ms: int) -> None:
        """``count`` messages were stored together in this time."""
        self._current[took_ms] += count
        if took_ms > self.max_ms:
            self.max_ms = took_ms

    def roll(self) -> None:
        """Begin the next minute."""
        self._last, self._current = self._current, Counter()

    def distribution(self) -> str:
        if self._last is None:
            return "null"
        counts = [0] * len(_TIME_RANGES)
        for took_ms, count in self._last.items():
            counts[bisect_right(_TIME_RANGE_ENDS, took_ms)] += count
        pairs = zip(_TIME_RANGES, counts, strict=True)
        return "".join(f"{name}:{count} " for name, count in pairs)

    def percentile(self, share: float) -> str:
        """The milliseconds within which this share of the messages was stored."""
        counts = [0] * (len(_CEILINGS) + 1)
        for took_ms, count in (self._last or {}).items():
            counts[bisect_left(_CEILINGS, took_ms)] += count
        wanted = int(sum(counts) * share)
        floor_ms = 0
        for ceiling_ms, count in zip(_CEILINGS, counts, strict=False):
            if wanted <= count:
                part = wanted / count if count else 0.0
                return f"{floor_ms + (ceiling_ms - floor_ms) * part:.2f}"
            wanted -= count
            floor_ms = ceiling_ms
        return f"{floor_ms:.2f}"


class Stats:
    """The counters of a broker. ``is_system`` tells RocketMQ's own topics from those of users."""

    def __init__(self, cluster: str, is_system: Callable[[str], bool]) -> None:
        self._cluster = cluster
        self._is_system = is_system
        self._puts: dict[str, Flow] = {}
        self._gets: dict[tuple[str, str], Flow] = {}
        self._send_backs: dict[tuple[str, str], Flow] = {}
        self._dead_letters: dict[tuple[str, str], Flow] = {}
        # By queue id, topic and group; what is summed up are milliseconds.
        self._get_latencies: dict[tuple[int, str, str], Flow] = {}
        # Per broker: everything, and what users sent and got.
        self._all_puts, self._all_gets = Flow(), Flow()
        self._user_puts, self._user_gets = Flow(), Flow()
        self._put_mornings = self._get_mornings = (0, 0)
        self._day: int | None = None
        self.stored_count = 0
        self.failed_count = 0
        self.put_times = PutTimes()
        self._put_times_due_ms: int | None = None
        self.longest_get_ms = 0
        self._found = 0
        self._missed = 0
        self._seconds: deque[_Totals] = deque(maxlen=_RATE_SECONDS[-1] + 1)
        self._due_ms: list[int] = []

    # Counting

    def put(self, topic: str, count: int, size: int, requests: int = 1) -> None:
        """Messages of so many requests were stored for a topic."""
        flow = self._puts.get(topic)
        if flow is None:
            flow = self._puts[topic] = Flow(is_user=not self._is_system(topic))
        flow.times += requests
        flow.messages += count
        flow.size += size
        self._all_puts.messages += count
        if flow.is_user:
            self._user_puts.messages += count

    def get(self, topic: str, group: str, count: int, size: int) -> None:
        """A group got messages with one request."""
        flow = self._gets.get((topic, group))
        if flow is None:
            flow = Flow(is_user=not self._is_system(topic))
            if len(self._gets) < _MAX_PAIRS:
                self._gets[topic, group] = flow
        flow.times += 1
        flow.messages += count
        flow.size += size
        self._found += 1
        self._all_gets.messages += count
        if flow.is_user:
            self._user_gets.messages += count

    def get_took(self, queue_id: int, topic: str, group: str, took_ms: int) -> None:
        """What a group got of a queue was looked up in this time."""
        if took_ms > self.longest_get_ms:
            self.longest_get_ms = took_ms
        key = (queue_id, topic, group)
        flow = self._get_latencies.get(key)
        if flow is None:
            if len(self._get_latencies) >= _MAX_LATENCIES:
                return
            flow = self._get_latencies[key] = Flow()
        flow.times += 1
        flow.messages += took_ms

    def miss(self) -> None:
        """A request for messages found none."""
        self._missed += 1

    def sendback(self, topic: str, group: str) -> None:
        """A group sent a message of a topic back to have it again later."""
        _count_pair(self._send_backs, topic, group)

    def dead(self, topic: str, group: str) -> None:
        """A message that a group sent back went to its dead letters instead."""
        _count_pair(self._dead_letters, topic, group)

    def stored(self, placed: Placed) -> None:
        """Count stored records, of any origin; a listener of the store."""
        self.stored_count += count_messages(placed)

    def appended(self, count: int, took_ms: int) -> None:
        """The store took messages, all together in this time."""
        self.put_times.add(count, took_ms)

    def failed(self, count: int) -> None:
        """The store did not take messages."""
        self.failed_count += count

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Drop the figures of a topic or a group that is deleted."""
        if topic is not None:
            self._puts.pop(topic, None)
        for table in (self._gets, self._send_backs, self._dead_letters):
            doomed = [key for key in table if key[0] == topic or key[1] == group]
            for key in doomed:
                del table[key]
        for queue in [key for key in self._get_latencies if key[1] == topic or key[2] == group]:
            del self._get_latencies[queue]

    # Sampling

    def sample(self, now_ms: int, day: int) -> None:
        """Take the snapshots that are due. ``now_ms`` never goes back; ``day`` differs each day."""
        if day != self._day:
            if self._day is not None:
                self._put_mornings = (self._put_mornings[1], self._user_puts.messages)
                self._get_mornings = (self._get_mornings[1], self._user_gets.messages)
            self._day = day
        totals = _Totals(
            now_ms, self.stored_count, self._found, self._missed, self._all_gets.messages
        )
        self._seconds.append(totals)
        if not self._due_ms:
            # The first are due at once, as RocketMQ's are.
            self._due_ms = [now_ms] * len(_PERIODS_MS)
        if self._put_times_due_ms is None:
            self._put_times_due_ms = now_ms + _MINUTE_MS
        elif now_ms >= self._put_times_due_ms:
            self._put_times_due_ms = now_ms + _MINUTE_MS
            self.put_times.roll()
        for kind, period_ms in enumerate(_PERIODS_MS):
            if now_ms >= self._due_ms[kind]:
                late_periods = (now_ms - self._due_ms[kind]) // period_ms
                self._due_ms[kind] += (late_periods + 1) * period_ms
                self._sample_flows(kind, now_ms)

    def _sample_flows(self, kind: int, now_ms: int) -> None:
        for flow in chain(
            self._puts.values(),
            self._gets.values(),
            self._send_backs.values(),
            self._dead_letters.values(),
            self._get_latencies.values(),
        ):
            flow.sample(kind, now_ms)
        for flow in (self._all_puts, self._all_gets, self._user_puts, self._user_gets):
            if flow.messages:
                flow.sample(kind, now_ms)

    # Figures

    def view(self, name: str, key: str) -> BrokerStats | None:
        """The minute, hour and day of a statistic under RocketMQ's name and key."""
        flow = self._find(name, key)
        if flow is None:
            return None
        of_size = name.endswith("_SIZE")
        minute, hour, day = (flow.figures(kind, of_size=of_size) for kind in range(3))
        return BrokerStats(stats_minute=minute, stats_hour=hour, stats_day=day)

    def _find(self, name: str, key: str) -> Flow | None:
        topic, _, group = key.partition("@")
        match name:
            case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE":
                return self._puts.get(key)
            case "GROUP_GET_NUMS" | "GROUP_GET_SIZE":
                return self._gets.get((topic, group))
            case "SNDBCK_PUT_NUMS":
                return self._send_backs.get((topic, group))
            case "SNDBCK2DLQ_TIMES":  # owner@topic@group@SEND_BACK_TO_DLQ
                parts = key.split("@")
                return self._dead_letters.get((parts[1], parts[2])) if len(parts) == 4 else None
            case "GROUP_GET_LATENCY":  # queueId@topic@group
                parts = key.split("@")
                if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()):
                    return None
                return self._get_latencies.get((int(parts[0][:10]), parts[1], parts[2]))
            case "BROKER_PUT_NUMS":
                flow = self._all_puts
            case "BROKER_GET_NUMS":
                flow = self._all_gets
            case "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC":
                flow = self._user_puts
            case "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC":
                flow = self._user_gets
            case _:
                return None
        return flow if key == self._cluster and flow.messages else None

    def put_rate(self, topic: str) -> float:
        """Messages a second that came for a topic in the last minute."""
        flow = self._puts.get(topic)
        return 0.0 if flow is None else flow.rate

    def get_rate(self, topic: str, group: str) -> float:
        """Messages a second that a group got of a topic in the last minute."""
        flow = self._gets.get((topic, group))
        return 0.0 if flow is None else flow.rate

    @property
    def put_totals(self) -> DayTotals:
        return DayTotals(*self._put_mornings, self._user_puts.messages)

    @property
    def get_totals(self) -> DayTotals:
        return DayTotals(*self._get_mornings, self._user_gets.messages)

    def rates(self) -> dict[str, str]:
        """RocketMQ's texts of rates: over 10 s, 1 min and 10 min; empty where it is too early."""
        pairs = [self._ends(seconds) for seconds in _RATE_SECONDS]
        texts = {
            "putTps": [_rate(pair, lambda totals: totals.stored) for pair in pairs],
            "getFoundTps": [_rate(pair, lambda totals: totals.found) for pair in pairs],
            "getMissTps": [_rate(pair, lambda totals: totals.missed) for pair in pairs],
            "getTransferredTps": [_rate(pair, lambda totals: totals.transferred) for pair in pairs],
            # This one alone is never empty.
            "getTotalTps": [
                _rate(pair, lambda totals: totals.found + totals.missed) or "0.0" for pair in pairs
            ],
        }
        return {name: " ".join(parts) for name, parts in texts.items()}

    def _ends(self, seconds: int) -> tuple[_Totals, _Totals] | None:
        if len(self._seconds) <= seconds:
            return None
        return self._seconds[-seconds - 1], self._seconds[-1]


def _count_pair(flows: dict[tuple[str, str], Flow], topic: str, group: str) -> None:
    flow = flows.get((topic, group))
    if flow is None:
        if len(flows) >= _MAX_PAIRS:
            return
        flow = flows[topic, group] = Flow()
    flow.times += 1
    flow.messages += 1


def _rate(pair: tuple[_Totals, _Totals] | None, amount: Callable[[_Totals], int]) -> str:
    if pair is None:
        return ""
    first, last = pair
    elapsed_ms = max(1, last.time_ms - first.time_ms)
    return str((amount(last) - amount(first)) / elapsed_ms * 1000)
