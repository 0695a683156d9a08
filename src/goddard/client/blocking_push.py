"""The push consumer for threads and scripts.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from goddard.client.blocking import BlockingClient
from goddard.client.consume.allocation import AllocationStrategy
from goddard.client.consume.push import _L
from goddard.client.consume.push import PushConsumer as AsyncPushConsumer
from goddard.client.consume.queue_changes import AssignmentListener
from goddard.client.consume.subscriptions import Expression
from goddard.client.listeners.hooks import ConsumeHook
from goddard.client.options import SessionKeywords
from goddard.client.trace.tracer import TraceOptions
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.protocol.bodies import MessageModel


class PushConsumer(BlockingClient[AsyncPushConsumer]):
    """Calls a listener with the messages of its topics.

    The listener is a function of ``(messages, context)``, plain (it runs in one of at most
    ``consume_threads`` threads) or a coroutine function (as many at a time, on the loop). It
    gets ``consume_batch_size`` messages at most. See ``goddard.client.listeners.listener``
    for what its result means: None or True is success; False, RECONSUME_LATER or an exception
    mean that the messages come again, after a delay that grows, until ``max_reconsume_times``
    (16 if -1; for orderly consumers -1 is for ever) was reached and they go to the group's
    dead-letter topic. A call of a concurrent listener that takes longer than
    ``consume_timeout_ms`` is given up as failed; a call of an orderly listener is waited for.

    With ``orderly`` the messages of a queue are consumed one batch after the other, each
    queue by one member of the group at a time; a batch that failed is consumed again after
    ``suspend_queue_ms``, before all that follow it.

    A group without offsets begins at ``consume_from``; TIMESTAMP means
    ``consume_timestamp_ms``, half an hour ago if left out. With ``MessageModel.BROADCASTING``
    every member gets all messages, there are no retries, and offsets are kept in a file below
    ``offsets_folder`` (``~/.rocketmq_offsets``).

    Pulling pauses while a queue holds more than ``pull_threshold_for_queue`` messages,
    ``pull_threshold_mib_for_queue`` mebibytes or, unless orderly, a stretch of ``max_span``
    offsets. Thresholds for a topic, unless -1, are divided among the queues.

    ``consume_hooks`` are called around the listener; ``trace`` writes down when each message
    was consumed, and how that ended.

    ``stop`` waits ``await_termination_ms`` for calls of the listener that run.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        listener: Callable[..., Any] | None = None,
        orderly: bool = False,
        message_model: MessageModel = MessageModel.CLUSTERING,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        consume_threads: int = 20,
        consume_batch_size: int = 1,
        consume_timeout_ms: int = 15 * 60 * 1000,
        max_reconsume_times: int = -1,
        suspend_queue_ms: int = 1000,
        pull_batch_size: int = 32,
        pull_batch_bytes: int = 256 * 1024,
        pull_interval_ms: int = 0,
        pull_error_delay_ms: int = 1000,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_mib_for_queue: int = 100,
        pull_threshold_for_topic: int = -1,
        pull_threshold_mib_for_topic: int = -1,
        max_span: int = 2000,
        await_termination_ms: int = 0,
        allocation: AllocationStrategy | None = None,
        offsets_folder: Path | None = None,
        on_assignment: AssignmentListener | None = None,
        consume_hooks: Sequence[ConsumeHook] = (),
        trace: TraceOptions | None = None,
        **options: Unpack[SessionKeywords],
    ) -> None:
        BlockingClient.__init__(
            self,
            AsyncPushConsumer(
                group,
                name_servers=name_servers,
                listener=listener,
                orderly=orderly,
                message_model=message_model,
                consume_from=consume_from,
                consume_timestamp_ms=consume_timestamp_ms,
                consume_threads=consume_threads,
                consume_batch_size=consume_batch_size,
                consume_timeout_ms=consume_timeout_ms,
                max_reconsume_times=max_reconsume_times,
                suspend_queue_ms=suspend_queue_ms,
                pull_batch_size=pull_batch_size,
                pull_batch_bytes=pull_batch_bytes,
                pull_interval_ms=pull_interval_ms,
                pull_error_delay_ms=pull_error_delay_ms,
                pull_threshold_for_queue=pull_threshold_for_queue,
                pull_threshold_mib_for_queue=pull_threshold_mib_for_queue,
                pull_threshold_for_topic=pull_threshold_for_topic,
                pull_threshold_mib_for_topic=pull_threshold_mib_for_topic,
                max_span=max_span,
                await_termination_ms=await_termination_ms,
                allocation=allocation,
                offsets_folder=offsets_folder,
                on_assignment=on_assignment,
                consume_hooks=consume_hooks,
                trace=trace,
                **options,
            ),
        )

    @property
    def group(self) -> str:
        """The group as brokers know it: with the namespace."""
        return self._core.group

    def listen(self, listener: _L) -> _L:
        """Set the listener; may be used as a decorator. Before the start."""
        return self._do(lambda: self._core.listen(listener))

    def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Want a topic's messages: all, those with some tags, or those that fulfil a condition.

        May be called at any time. What another call said about the same topic is replaced.
        """
        self._do(lambda: self._core.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Want a topic's messages no more; its queues are given up by the next rebalance."""
        self._do(lambda: self._core.unsubscribe(topic))

    def suspend(self) -> None:
        """Pull no more until ``resume``; what was pulled is consumed."""
        self._do(self._core.suspend)

    def resume(self) -> None:
        self._do(self._core.resume)

    @property
    def is_suspended(self) -> bool:
        return self._core.is_suspended

    def assigned_queues(self) -> set[MessageQueue]:
        """The queues that this consumer works on now."""
        return self._do(self._core.assigned_queues)
