"""The producers for threads and scripts."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from goddard.client.blocking.client import BlockingClient
from goddard.client.blocking.methods import blocking, constructor, docstring
from goddard.client.message import Message
from goddard.client.produce.producer import Producer as AsyncProducer
from goddard.client.produce.selectors import Selector
from goddard.client.produce.transactions import TransactionProducer as AsyncTransactionProducer
from goddard.client.values import MessageQueue, SendResult


class Producer(BlockingClient[AsyncProducer]):
    __doc__ = docstring(AsyncProducer)

    @constructor(AsyncProducer)
    def __init__(self, core: AsyncProducer) -> None:
        BlockingClient.__init__(self, core)

    @property
    def group(self) -> str:
        """The group as it was given, without the namespace."""
        return self._core.group

    send = blocking(AsyncProducer.send)

    def send_async(
        self,
        message: Message,
        *,
        callback: Callable[[Future[SendResult]], object] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """Send a message without waiting: the future has its result.

        Many messages share a connection this way and are sent in the order of the calls. A retry
        (up to ``async_retries`` of them, after failures of the connection only) is sent after the
        messages that followed. A RocketMQ broker has many threads and may store messages that
        arrive together in any order: where order matters, wait for each result. The message must
        not be changed until the future is done.

        The future has every error of the send, also InvalidMessageError and those of hooks and
        selectors. The call itself raises only if the producer is not running.

        ``callback`` is called with the future when it is done, in a thread for callbacks: it may
        block and use clients. Functions that are added to the future itself run on the loop and
        must not block.
        """
        return self._submit(
            lambda: self._core.send_soon(
                message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms
            ),
            callback,
        )

    send_oneway = blocking(AsyncProducer.send_oneway)
    send_batch = blocking(AsyncProducer.send_batch)
    request = blocking(AsyncProducer.request)
    reply = blocking(AsyncProducer.reply)
    publish_queues = blocking(AsyncProducer.publish_queues)
    create_topic = blocking(AsyncProducer.create_topic)
    max_offset = blocking(AsyncProducer.max_offset)
    min_offset = blocking(AsyncProducer.min_offset)
    search_offset = blocking(AsyncProducer.search_offset)
    earliest_store_time_ms = blocking(AsyncProducer.earliest_store_time_ms)
    message = blocking(AsyncProducer.message)
    messages_by_key = blocking(AsyncProducer.messages_by_key)


class TransactionProducer(Producer):
    __doc__ = docstring(AsyncTransactionProducer)

    _core: AsyncTransactionProducer

    @constructor(AsyncTransactionProducer)
    def __init__(self, core: AsyncTransactionProducer) -> None:
        BlockingClient.__init__(self, core)

    send_in_transaction = blocking(AsyncTransactionProducer.send_in_transaction)
    send_half = blocking(AsyncTransactionProducer.send_half)
    end_transaction = blocking(AsyncTransactionProducer.end_transaction)
