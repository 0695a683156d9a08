"""The consumers for threads and scripts."""

import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

from goddard.client.blocking.client import BlockingClient
from goddard.client.blocking.methods import blocking, constructor, docstring, on_loop
from goddard.client.consume.lite import LitePullConsumer as AsyncLitePullConsumer
from goddard.client.consume.poll_buffer import ThreadBatch
from goddard.client.consume.push import PushConsumer as AsyncPushConsumer
from goddard.client.message import ReceivedMessage
from goddard.client.signals import ended_by_signals
from goddard.client.values import ServiceState

Listener = TypeVar("Listener", bound=Callable[..., Any])


class PushConsumer(BlockingClient[AsyncPushConsumer]):
    __doc__ = docstring(AsyncPushConsumer)

    @constructor(AsyncPushConsumer)
    def __init__(self, core: AsyncPushConsumer) -> None:
        BlockingClient.__init__(self, core)
        self._stopped = threading.Event()

    def wait(self) -> None:
        """Wait until the process gets SIGINT or SIGTERM, or until the consumer is stopped.

        For programs that only consume: ``with consumer: consumer.wait()``.
        """
        if self._thread is None:
            raise self._not_running()
        with ended_by_signals():
            self._stopped.wait()

    async def _stop(self) -> None:
        await super()._stop()
        self._stopped.set()

    @property
    def group(self) -> str:
        """The group as brokers know it, with the namespace."""
        return self._core.group

    @property
    def is_suspended(self) -> bool:
        """Whether ``suspend`` was called, and not ``resume`` since."""
        return self._core.is_suspended

    def listen(self, listener: Listener) -> Listener:
        """Set the listener, before the start; may be used as a decorator."""
        return self._call(lambda: self._core.listen(listener))

    subscribe = on_loop(AsyncPushConsumer.subscribe)
    unsubscribe = on_loop(AsyncPushConsumer.unsubscribe)
    suspend = on_loop(AsyncPushConsumer.suspend)
    resume = on_loop(AsyncPushConsumer.resume)
    assigned_queues = on_loop(AsyncPushConsumer.assigned_queues)


class _ThreadBatches(AsyncLitePullConsumer):
    """A consumer whose messages are also taken in batches, for another thread."""

    async def next_thread_batch(self) -> ThreadBatch | None:
        """The next messages for another thread; None when no more will come."""
        if self._state is ServiceState.STOPPED:
            return None
        queues = self._running().queues
        queues.commit_in_time()
        return await queues.poll_buffer.next_thread_batch()


class LitePullConsumer(BlockingClient[_ThreadBatches]):
    __doc__ = docstring(AsyncLitePullConsumer)

    @constructor(_ThreadBatches)
    def __init__(self, core: _ThreadBatches) -> None:
        BlockingClient.__init__(self, core)
        self._batch: ThreadBatch | None = None

    @property
    def group(self) -> str:
        """The group as brokers know it, with the namespace."""
        return self._core.group

    subscribe = on_loop(AsyncLitePullConsumer.subscribe)
    unsubscribe = on_loop(AsyncLitePullConsumer.unsubscribe)
    assign = on_loop(AsyncLitePullConsumer.assign)
    filter_assigned = on_loop(AsyncLitePullConsumer.filter_assigned)
    assignment = on_loop(AsyncLitePullConsumer.assignment)
    poll = blocking(AsyncLitePullConsumer.poll)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """The next message; waits for it as long as the consumer runs."""
        # The loop is asked for another batch only when this one is used up.
        while self.state is not ServiceState.STOPPED:
            batch = self._batch
            if batch is not None and (message := batch.next()) is not None:
                return message
            self._batch = batch = self._run(self._core.next_thread_batch)
            if batch is None:
                break
        raise StopIteration

    commit = blocking(AsyncLitePullConsumer.commit)
    committed = blocking(AsyncLitePullConsumer.committed)
    seek = blocking(AsyncLitePullConsumer.seek)
    seek_to_begin = blocking(AsyncLitePullConsumer.seek_to_begin)
    seek_to_end = blocking(AsyncLitePullConsumer.seek_to_end)
    offset_for_timestamp = blocking(AsyncLitePullConsumer.offset_for_timestamp)
    pause = on_loop(AsyncLitePullConsumer.pause)
    resume = on_loop(AsyncLitePullConsumer.resume)
    paused = on_loop(AsyncLitePullConsumer.paused)
    fetch_queues = blocking(AsyncLitePullConsumer.fetch_queues)
    listen_to_queues = on_loop(AsyncLitePullConsumer.listen_to_queues)
