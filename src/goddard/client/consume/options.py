"""Options of the consumers, with RocketMQ's defaults, checked when a consumer is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from goddard.client.checks import check_function, check_hooks, check_range, check_type
from goddard.client.consume.allocation import AllocationStrategy, Averagely
from goddard.client.listeners.hooks import ConsumeHook
from goddard.client.options import SessionKeywords
from goddard.client.trace.tracer import TraceOptions
from goddard.client.values import ConsumeFrom, MessageModel, MessageQueue
from goddard.errors import ArgumentTypeError, ConfigError

QueuesListener: TypeAlias = Callable[[str, set[MessageQueue]], None]
"""Called on the event loop with a topic and all its queues."""

AssignmentListener: TypeAlias = Callable[[str, set[MessageQueue], set[MessageQueue]], None]
"""Called on the event loop with a topic, its queues, and those of them that are this consumer's."""

MIB: Final = 1024 * 1024
_MAX_QUEUE_MESSAGES: Final = 65_535
_MAX_TOPIC_MESSAGES: Final = 6_553_500
_MAX_MIB: Final = 1_024
# RocketMQ's defaults.
_CONCURRENT_RECONSUME_TIMES: Final = 16
_DEFAULT_START_AGO_MS: Final = 30 * 60 * 1000


class ConsumerKeywords(SessionKeywords, total=False):
    """The keywords that every consumer has; see ConsumerOptions and SessionOptions."""

    message_model: MessageModel
    consume_from: ConsumeFrom
    consume_timestamp_ms: int | None
    pull_batch_size: int
    pull_error_delay_ms: int
    pull_threshold_for_queue: int
    pull_threshold_mib_for_queue: int
    max_span: int
    allocation: AllocationStrategy | None
    offsets_folder: str | Path | None
    consume_hooks: Sequence[ConsumeHook]


class PushKeywords(ConsumerKeywords, total=False):
    """The keywords of PushConsumer; see PushOptions, ConsumerOptions and SessionOptions."""

    orderly: bool
    consume_threads: int
    consume_batch_size: int
    consume_timeout_ms: int
    max_reconsume_times: int
    suspend_queue_ms: int
    pull_batch_bytes: int
    pull_interval_ms: int
    pull_threshold_for_topic: int
    pull_threshold_mib_for_topic: int
    await_termination_ms: int
    on_assignment: AssignmentListener | None
    trace: TraceOptions | None


class LiteKeywords(ConsumerKeywords, total=False):
    """The keywords of LitePullConsumer; see LiteOptions, ConsumerOptions and SessionOptions."""

    pull_threshold_for_all: int
    poll_timeout_ms: int
    broker_suspend_ms: int
    pull_timeout_ms: int
    auto_commit: bool
    auto_commit_interval_ms: int
    queue_check_interval_ms: int


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """What every consumer does.

    With ``message_model`` CLUSTERING the members of a group share the queues of a topic, as
    ``allocation`` says (None: ``Averagely``), and brokers keep the offsets. With BROADCASTING every
    member reads all queues, and offsets are kept in a file below ``offsets_folder``
    (None: ``~/.rocketmq_offsets``).

    A group without offsets begins at ``consume_from``; TIMESTAMP means ``consume_timestamp_ms``
    (None: half an hour before the start).

    A pull brings at most ``pull_batch_size`` messages. After an error the next pull waits
    ``pull_error_delay_ms``. Pulling pauses while a queue holds more than
    ``pull_threshold_for_queue`` messages, more than ``pull_threshold_mib_for_queue`` mebibytes, or
    messages whose offsets are more than ``max_span`` apart.

    ``consume_hooks`` are called before and after messages are consumed.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp_ms: int | None = None
    pull_batch_size: int = 32
    pull_error_delay_ms: int = 1_000
    pull_threshold_for_queue: int = 1_000
    pull_threshold_mib_for_queue: int = 100
    max_span: int = 2_000
    allocation: AllocationStrategy | None = None
    offsets_folder: str | Path | None = None
    consume_hooks: Sequence[ConsumeHook] = ()

    def __post_init__(self) -> None:
        check_type("message_model", self.message_model, MessageModel)
        check_type("consume_from", self.consume_from, ConsumeFrom)
        if self.consume_timestamp_ms is not None:
            check_range("consume_timestamp_ms", self.consume_timestamp_ms, 0, 2**62)
        check_range("pull_batch_size", self.pull_batch_size, 1, 1_024)
        check_range("pull_error_delay_ms", self.pull_error_delay_ms, 1)
        _check_queue_threshold("pull_threshold_for_queue", self.pull_threshold_for_queue)
        check_range("pull_threshold_mib_for_queue", self.pull_threshold_mib_for_queue, 1, _MAX_MIB)
        _check_queue_threshold("max_span", self.max_span)
        if self.allocation is not None:
            _check_allocation(self.allocation)
        if self.offsets_folder is not None:
            _check_folder("offsets_folder", self.offsets_folder)
        # A copy: the caller may change its list later.
        methods = ("before_consume", "after_consume")
        hooks = check_hooks("consume_hooks", self.consume_hooks, *methods)
        object.__setattr__(self, "consume_hooks", hooks)

    @property
    def is_broadcast(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    @property
    def strategy(self) -> AllocationStrategy | None:
        """How members share queues; None if they do not."""
        return None if self.is_broadcast else self.allocation or Averagely()

    def start_timestamp_ms(self, now_ms: int) -> int:
        """Where a new group begins that starts by time."""
        if self.consume_timestamp_ms is None:
            return max(0, now_ms - _DEFAULT_START_AGO_MS)
        return self.consume_timestamp_ms


@dataclass(frozen=True, kw_only=True)
class PushOptions(ConsumerOptions):
    """What a push consumer does.

    The listener gets at most ``consume_batch_size`` messages. A plain function runs in at most
    ``consume_threads`` threads; of a coroutine function as many calls run on the loop at a time. A
    call of a concurrent listener that takes longer than ``consume_timeout_ms`` counts as failed;
    a call of an orderly listener is waited for.

    With ``orderly`` the messages of a queue are consumed one batch after the other, and each queue
    by one member of the group at a time. A failed batch is consumed again after
    ``suspend_queue_ms``, before all that follow it.

    A failed message is delivered again up to ``max_reconsume_times`` and then goes to the group's
    dead-letter topic; -1 means 16 times, and for orderly consumers without limit.

    A pull asks for at most ``pull_batch_bytes``, and waits ``pull_interval_ms`` after the one
    before. ``pull_threshold_for_topic`` and ``pull_threshold_mib_for_topic``, unless -1, are
    divided among the queues and replace the thresholds for a queue. ``max_span`` does not apply to
    orderly consumers.

    ``on_assignment`` is called when this consumer's queues of a topic change. ``trace`` records
    when each message was consumed, and with what result. ``stop`` waits up to
    ``await_termination_ms`` for running calls of the listener.
    """

    orderly: bool = False
    consume_threads: int = 20
    consume_batch_size: int = 1
    consume_timeout_ms: int = 15 * 60 * 1000
    max_reconsume_times: int = -1
    suspend_queue_ms: int = 1_000
    pull_batch_bytes: int = 256 * 1024
    pull_interval_ms: int = 0
    pull_threshold_for_topic: int = -1
    pull_threshold_mib_for_topic: int = -1
    await_termination_ms: int = 0
    on_assignment: AssignmentListener | None = None
    trace: TraceOptions | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("orderly", self.orderly, bool)
        check_range("consume_threads", self.consume_threads, 1, 1_000)
        check_range("consume_batch_size", self.consume_batch_size, 1, 1_024)
        check_range("consume_timeout_ms", self.consume_timeout_ms, 1)
        check_range("max_reconsume_times", self.max_reconsume_times, -1)
        check_range("suspend_queue_ms", self.suspend_queue_ms, 10, 30_000)
        check_range("pull_batch_bytes", self.pull_batch_bytes, 1_024)
        check_range("pull_interval_ms", self.pull_interval_ms, 0, 65_535)
        _check_topic_threshold("pull_threshold_for_topic", self.pull_threshold_for_topic)
        _check_topic_threshold("pull_threshold_mib_for_topic", self.pull_threshold_mib_for_topic)
        check_range("await_termination_ms", self.await_termination_ms, 0)
        if self.on_assignment is not None:
            check_function("on_assignment", self.on_assignment)
        if self.trace is not None:
            check_type("trace", self.trace, TraceOptions)

    @property
    def reconsume_limit(self) -> int:
        """How often a failed message is delivered again; -1 is without limit."""
        if self.max_reconsume_times < 0 and not self.orderly:
            return _CONCURRENT_RECONSUME_TIMES
        return self.max_reconsume_times


@dataclass(frozen=True, kw_only=True)
class LiteOptions(ConsumerOptions):
    """What a lite pull consumer does.

    ``poll`` waits ``poll_timeout_ms`` for messages, unless it is told otherwise. With
    ``auto_commit`` offsets are committed every ``auto_commit_interval_ms``, when the user asks for
    messages.

    Pulling pauses while more than ``pull_threshold_for_all`` messages wait in all queues together.
    A broker holds a pull that finds nothing for ``broker_suspend_ms``; its answer is waited for up
    to ``pull_timeout_ms``.

    Every ``queue_check_interval_ms`` the consumer looks for queues that were added or removed (see
    ``listen_to_queues``).
    """

    pull_batch_size: int = 10
    pull_threshold_for_all: int = 10_000
    poll_timeout_ms: int = 5_000
    broker_suspend_ms: int = 20_000
    pull_timeout_ms: int = 30_000
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    queue_check_interval_ms: int = 30_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("pull_threshold_for_all", self.pull_threshold_for_all, 1)
        check_range("poll_timeout_ms", self.poll_timeout_ms, 0)
        check_range("broker_suspend_ms", self.broker_suspend_ms, 1)
        check_range("pull_timeout_ms", self.pull_timeout_ms, 1)
        check_type("auto_commit", self.auto_commit, bool)
        check_range("auto_commit_interval_ms", self.auto_commit_interval_ms, 1)
        check_range("queue_check_interval_ms", self.queue_check_interval_ms, 10)
        if self.pull_timeout_ms < self.broker_suspend_ms:
            raise ConfigError(
                f"pull_timeout_ms is {self.pull_timeout_ms}; it must be at least "
                f"broker_suspend_ms, {self.broker_suspend_ms}"
            )


def _check_queue_threshold(option: str, value: int) -> None:
    check_range(option, value, 1, _MAX_QUEUE_MESSAGES)


def _check_topic_threshold(option: str, value: int) -> None:
    if value != -1:
        check_range(option, value, 1, _MAX_TOPIC_MESSAGES)


def _check_allocation(strategy: object) -> None:
    """ArgumentTypeError unless it has the members of an AllocationStrategy and is not a class."""
    if isinstance(strategy, type):
        name = strategy.__name__
        raise ArgumentTypeError(f"allocation is the class {name}; give an instance: {name}()")
    has_name = isinstance(getattr(strategy, "name", None), str)
    if not has_name or not callable(getattr(strategy, "allocate", None)):
        raise ArgumentTypeError(
            f"allocation is {strategy!r:.200}; it must be an object with `name` and `allocate`, "
            "such as AveragelyByCircle()"
        )


def _check_folder(option: str, folder: object) -> None:
    if not isinstance(folder, str | Path):
        raise ArgumentTypeError(f"{option} is {folder!r:.200}; it must be a str or Path")
