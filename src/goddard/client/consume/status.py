"""How a consumer describes itself to tools (``consumerStatus`` of mqadmin, the dashboard)."""

import faulthandler
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from goddard.client.consume.offsets import Offsets
from goddard.client.consume.queue_buffer import QueueBuffer
from goddard.clock import Clock
from goddard.protocol.bodies import ConsumeType
from goddard.protocol.bodies_client import ConsumerRunningInfo, ConsumeStatus, SubscriptionData

_MAX_STACKS_BYTES: Final = 1024 * 1024
# The commit offset of a queue whose offset is unknown, as in RocketMQ's clients.
_NO_OFFSET: Final = -1
_SLICE_MS: Final = 5_000
_SLICES: Final = 12


def running_info(
    *,
    consume_type: ConsumeType,
    settings: Mapping[str, object],
    name_servers: Iterable[str],
    started_ms: int,
    subscriptions: Iterable[SubscriptionData],
    buffers: Iterable[QueueBuffer],
    offsets: Offsets,
    rates: "ConsumeRates | None",
    clock: Clock,
    with_stacks: bool,
) -> ConsumerRunningInfo:
    """Describe a consumer. ``settings`` have RocketMQ's names; ``started_ms`` is a time of day."""
    now_ms = clock.monotonic_ms()
    epoch_ms = clock.now_ms() - now_ms
    properties = {name: _text(value) for name, value in settings.items()}
    properties |= {
        "PROP_NAMESERVER_ADDR": ";".join(name_servers) + ";",
        "PROP_CONSUME_TYPE": consume_type.value,
        "PROP_CLIENT_VERSION": "V5_4_0",
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
    }
    info = ConsumerRunningInfo(properties=properties, subscription_set=list(subscriptions))
    for buffer in buffers:
        committed = offsets.cached(buffer.queue)
        commit_offset = _NO_OFFSET if committed is None else committed
        info.mq_table[buffer.queue.to_body()] = buffer.info(commit_offset, epoch_ms)
    if rates is not None:
        for one in info.subscription_set:
            info.status_table[one.topic] = rates.status(one.topic, now_ms)
    if with_stacks:
        info.jstack = thread_stacks()
    return info


def thread_stacks() -> str:
    """The stack of every thread of this process."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read(_MAX_STACKS_BYTES).decode("utf-8", "replace")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Slice:
    __slots__ = ("consume_ms", "consumed", "failed", "pull_ms", "pulled", "pulls", "start_ms")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.pulls = 0
        self.pulled = 0
        self.pull_ms = 0
        self.consumed = 0
        self.failed = 0
        self.consume_ms = 0


class ConsumeRates:
    """How fast a consumer pulls and consumes, by topic, over the last minute.

    Counts go into slices of five seconds. ``now_ms`` is of a clock that never jumps.
    """

    def __init__(self) -> None:
        self._topics: dict[str, deque[_Slice]] = {}
        self._failed: dict[str, int] = {}

    def pulled(self, topic: str, count: int, spent_ms: int, now_ms: int) -> None:
        part = self._slice(topic, now_ms)
        part.pulls += 1
        part.pulled += count
        part.pull_ms += spent_ms

    def consumed(self, topic: str, count: int, failed: int, spent_ms: int, now_ms: int) -> None:
        """Count consumed messages, of which ``failed`` failed; their calls took ``spent_ms``."""
        part = self._slice(topic, now_ms)
        part.consumed += count - failed
        part.failed += failed
        part.consume_ms += spent_ms
        if failed:
            self._failed[topic] = self._failed.get(topic, 0) + failed

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        parts = self._topics.get(topic)
        if parts is None:
            return ConsumeStatus()
        recent = [part for part in parts if now_ms - part.start_ms <= _SLICE_MS * _SLICES]
        if not recent:
            return ConsumeStatus(consume_failed_msgs=self._failed.get(topic, 0))
        seconds = max(1.0, (now_ms - recent[0].start_ms) / 1000)
        pulls = sum(part.pulls for part in recent)
        consumed = sum(part.consumed for part in recent)
        failed = sum(part.failed for part in recent)
        return ConsumeStatus(
            pull_rt=sum(part.pull_ms for part in recent) / max(1, pulls),
            pull_tps=sum(part.pulled for part in recent) / seconds,
            consume_rt=sum(part.consume_ms for part in recent) / max(1, consumed + failed),
            consume_ok_tps=consumed / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=self._failed.get(topic, 0),
        )

    def _slice(self, topic: str, now_ms: int) -> _Slice:
        parts = self._topics.get(topic)
        if parts is None:
            parts = self._topics[topic] = deque(maxlen=_SLICES)
        if not parts or now_ms - parts[-1].start_ms >= _SLICE_MS:
            parts.append(_Slice(now_ms))
        return parts[-1]
