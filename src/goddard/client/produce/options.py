"""The options of a producer, with RocketMQ's defaults; checked when it is created."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from goddard.client.checks import (
    check_hooks,
    check_list,
    check_new_topic,
    check_range,
    check_type,
)
from goddard.client.options import SessionKeywords
from goddard.client.produce.broker_health import FaultTimes
from goddard.client.produce.hooks import ForbiddenHook, SendHook
from goddard.client.trace.tracer import TraceOptions
from goddard.protocol.codes import ResponseCode
from goddard.protocol.compression import COMPRESS_FROM_BYTES, COMPRESSION_LEVEL, CompressionKind
from goddard.protocol.names import AUTO_CREATE_TOPIC
from goddard.protocol.record import MAX_BODY_BYTES

RETRY_CODES: Final = frozenset(
    {
        int(code)
        for code in (
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.SYSTEM_BUSY,
            ResponseCode.NO_PERMISSION,
            ResponseCode.NO_BUYER_ID,
            ResponseCode.NOT_IN_CURRENT_UNIT,
        )
    }
)
"""Answers of a broker after which the send is tried again, at another broker if there is one."""

_MAX_TRIES: Final = 1_000
_LEVELS: Final = {
    CompressionKind.ZLIB: (0, 9),
    CompressionKind.LZ4: (0, 16),
    CompressionKind.ZSTD: (1, 22),
}
_MAX_DELAY_MS: Final = 30_000
_MAX_BATCH_BYTES: Final = 2 * 1024 * 1024
_MIN_MESSAGES: Final = 10
_MIN_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BackPressureOptions:
    """Limits for sends without a result yet. Defaults and minimums are RocketMQ's."""

    max_messages: int = 1024
    max_bytes: int = 100 * 1024 * 1024

    def __post_init__(self) -> None:
        check_range("max_messages of the back-pressure", self.max_messages, _MIN_MESSAGES)
        check_range("max_bytes of the back-pressure", self.max_bytes, _MIN_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorOptions:
    """How long messages wait for others, and how large a batch is. Defaults are those of RocketMQ's
    ``autoBatch``.

    ``max_held_bytes`` is for all messages that have no result yet; beyond it messages are sent
    alone.
    """

    max_delay_ms: int = 10
    max_batch_bytes: int = 32 * 1024
    max_held_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        check_range("max_delay_ms of the accumulator", self.max_delay_ms, 1, _MAX_DELAY_MS)
        check_range("max_batch_bytes of the accumulator", self.max_batch_bytes, 1, _MAX_BATCH_BYTES)
        check_range("max_held_bytes of the accumulator", self.max_held_bytes, 1)


_KINDS: Final[dict[str, type[object]]] = {
    "avoid_slow_brokers": FaultTimes,
    "back_pressure": BackPressureOptions,
    "accumulate": AccumulatorOptions,
    "trace": TraceOptions,
}


class ProducerKeywords(SessionKeywords, total=False):
    """The keywords of Producer; see ProducerOptions and SessionOptions for what they mean."""

    send_timeout_ms: int
    max_timeout_per_try_ms: int | None
    retries: int
    async_retries: int
    retry_when_not_stored: bool
    retry_codes: frozenset[int]
    compress_from_bytes: int
    compression: CompressionKind
    compression_level: int
    max_message_bytes: int
    default_topic: str
    default_queues: int
    topics: Sequence[str]
    avoid_slow_brokers: FaultTimes | None
    detect_brokers: bool
    detect_interval_ms: int
    detect_timeout_ms: int
    send_hooks: Sequence[SendHook]
    forbidden_hooks: Sequence[ForbiddenHook]
    back_pressure: BackPressureOptions | None
    accumulate: AccumulatorOptions | None
    trace: TraceOptions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer sends messages.

    ``send_timeout_ms`` is for all attempts of a send together; ``max_timeout_per_try_ms`` limits
    each attempt but the last. ``retries`` are those of ``send``, ``async_retries`` those of
    ``send_soon``. ``retry_when_not_stored`` also retries when a broker stored the message less
    safely than configured (any status but SEND_OK), which may store it twice. ``retry_codes`` are
    the refusals after which ``send`` tries another broker, by default TOPIC_NOT_EXIST,
    SERVICE_NOT_AVAILABLE, SYSTEM_ERROR, SYSTEM_BUSY, NO_PERMISSION, NO_BUYER_ID and
    NOT_IN_CURRENT_UNIT. ``topics``: their routes are fetched at the start. ``default_topic`` and
    ``default_queues`` are for topics that brokers create automatically.

    ``avoid_slow_brokers`` avoids slow and failing brokers for a time, given by
    ``broker_health.TIMES_5`` or ``broker_health.TIMES_4``; ``detect_brokers`` then probes
    unreachable brokers periodically. ``back_pressure`` limits the messages of ``send_soon`` that
    have no result yet, ``accumulate`` sends messages of many callers in one request, ``trace``
    records every send in a trace topic.
    """

    send_timeout_ms: int = 3_000
    max_timeout_per_try_ms: int | None = None
    retries: int = 2
    async_retries: int = 2
    retry_when_not_stored: bool = False
    retry_codes: frozenset[int] = RETRY_CODES
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    compression: CompressionKind = CompressionKind.ZLIB
    compression_level: int = COMPRESSION_LEVEL
    max_message_bytes: int = 4 * 1024 * 1024
    default_topic: str = AUTO_CREATE_TOPIC
    default_queues: int = 4
    topics: Sequence[str] = ()
    avoid_slow_brokers: FaultTimes | None = None
    detect_brokers: bool = False
    detect_interval_ms: int = 2_000
    detect_timeout_ms: int = 200
    send_hooks: Sequence[SendHook] = ()
    forbidden_hooks: Sequence[ForbiddenHook] = ()
    back_pressure: BackPressureOptions | None = None
    accumulate: AccumulatorOptions | None = None
    trace: TraceOptions | None = None

    def __post_init__(self) -> None:
        check_range("send_timeout_ms", self.send_timeout_ms, 1)
        if self.max_timeout_per_try_ms is not None:
            check_range("max_timeout_per_try_ms", self.max_timeout_per_try_ms, 1)
        check_range("retries", self.retries, 0, _MAX_TRIES)
        check_range("async_retries", self.async_retries, 0, _MAX_TRIES)
        check_type("retry_when_not_stored", self.retry_when_not_stored, bool)
        check_type("detect_brokers", self.detect_brokers, bool)
        check_range("compress_from_bytes", self.compress_from_bytes, 0)
        # Leaves room for the header in a frame.
        check_range("max_message_bytes", self.max_message_bytes, 1, MAX_BODY_BYTES - 1024 * 1024)
        check_range("default_queues", self.default_queues, 1, 65_535)
        check_range("detect_interval_ms", self.detect_interval_ms, 10)
        check_range("detect_timeout_ms", self.detect_timeout_ms, 1)
        check_type("compression", self.compression, CompressionKind)
        check_range("compression_level", self.compression_level, *_LEVELS[self.compression])
        for option, wanted in _KINDS.items():
            value = getattr(self, option)
            if value is not None:
                check_type(option, value, wanted)
        lists = {
            "topics": tuple(check_list("topics", self.topics, str)),
            "retry_codes": frozenset(check_list("retry_codes", self.retry_codes, int)),
            "send_hooks": check_hooks("send_hooks", self.send_hooks, "before_send", "after_send"),
            "forbidden_hooks": check_hooks("forbidden_hooks", self.forbidden_hooks, "check"),
        }
        for option, given in lists.items():
            # Copies, because the caller may change its own lists later.
            object.__setattr__(self, option, given)
        for topic in (self.default_topic, *self.topics):
            check_new_topic(topic)
