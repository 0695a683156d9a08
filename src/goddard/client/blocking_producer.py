"""Producers for threads and scripts.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Unpack

from goddard.client.blocking import BlockingClient
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.options import ProducerKeywords
from goddard.client.produce.producer import Producer as AsyncProducer
from goddard.client.produce.selectors import Selector
from goddard.client.produce.transaction_hooks import EndTransactionHook, TransactionState
from goddard.client.produce.transactions import TransactionListener, TransactionResult
from goddard.client.produce.transactions import TransactionProducer as AsyncTransactionProducer
from goddard.client.values import MessageQueue, SendResult


class Producer(BlockingClient[AsyncProducer]):
    """Sends messages.

    ::

        with Producer("my-group", name_servers="localhost:9876") as producer:
            result = producer.send(Message("TopicTest", b"hello"))

    ``group`` names producers of one kind; it matters for transactions. Options are keywords:
    see ProducerOptions for the producer's own and SessionOptions for those of every client. A
    producer starts and stops once.
    """

    def __init__(
        self, group: str, *, name_servers: str | None = None, **options: Unpack[ProducerKeywords]
    ) -> None:
        BlockingClient.__init__(self, AsyncProducer(group, name_servers=name_servers, **options))

    @property
    def group(self) -> str:
        return self._core.group

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until a broker has stored it.

        It goes to the next queue in turn, or to ``queue``, or to the one that ``selector``
        chooses (it gets ``key``), or to the one that the hash of ``key`` says: equal keys in
        one queue, in order. A message whose queue is chosen so is tried once; any other up to
        ``1 + retries`` times, each time at another broker if there is one. After an error the
        message may still have been stored.

        A status other than SEND_OK is a result, not an error. Raises SendFailedError,
        BrokerError, NoRouteError, InvalidMessageError, TooManyRequestsError.
        """
        return self._run(
            lambda: self._core.send(
                message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms
            )
        )

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

        Many messages share a connection this way, and leave in the order of the calls. What
        is tried again (up to ``async_retries`` times, after failures of the connection only)
        comes after its followers, and RocketMQ's broker, which has many threads, may store
        what comes at once in any order: where order counts, wait for each result. The message
        must not be changed until the future is done.

        ``callback`` is called with the future when it is done, in a thread that is there for
        callbacks: they may block, and use clients. What is added to the future itself runs on
        the loop instead.
        """
        return self._submit(
            lambda: self._core.send_soon(
                message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms
            ),
            callback,
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
    ) -> None:
        """Send a message that no broker answers for: the fastest way, and it may be lost."""
        self._run(lambda: self._core.send_oneway(message, queue=queue, selector=selector, key=key))

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together; the results are theirs, in order.

        They share as few requests as ``max_message_bytes`` allows; those of one request are
        stored in one queue, one after the other. No delays, no transactions, all with the
        same ``wait_store_ok``. ``timeout_ms`` is for each request. If one of several requests
        fails, the BatchFailedError has the results of those before it.
        """
        return self._run(
            lambda: self._core.send_batch(messages, queue=queue, timeout_ms=timeout_ms)
        )

    def request(self, message: Message, *, timeout_ms: int | None = None) -> ReceivedMessage:
        """Send a message that asks, and wait for its reply; the time is for both together."""
        return self._run(lambda: self._core.request(message, timeout_ms=timeout_ms))

    def reply(
        self, request: Message | ReceivedMessage, body: bytes, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Answer a message that was sent by ``request``."""
        return self._run(lambda: self._core.reply(request, body, timeout_ms=timeout_ms))

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be written to; NoRouteError if there are none."""
        return self._run(lambda: self._core.publish_queues(topic))


class TransactionProducer(Producer):
    """A producer of messages that belong to local transactions.

    ``check_threads`` checks run at a time and ``max_waiting_checks`` wait for their turn;
    ``execute_threads`` is how many plain ``execute`` methods run at a time.
    """

    _core: AsyncTransactionProducer

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        *,
        check_threads: int = 1,
        max_waiting_checks: int = 2000,
        execute_threads: int = 20,
        end_hooks: Sequence[EndTransactionHook] = (),
        name_servers: str | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        BlockingClient.__init__(
            self,
            AsyncTransactionProducer(
                group,
                listener,
                check_threads=check_threads,
                max_waiting_checks=max_waiting_checks,
                execute_threads=execute_threads,
                end_hooks=end_hooks,
                name_servers=name_servers,
                **options,
            ),
        )

    def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send a half message, run ``execute``, and tell the broker what it decided.

        A half that is not stored safely (any status but SEND_OK) is rolled back unexecuted.
        Raises what ``send`` raises if there is no half message; ``execute`` was not called
        then.
        """
        return self._run(
            lambda: self._core.send_in_transaction(message, argument, timeout_ms=timeout_ms)
        )

    def send_half(self, message: Message, *, timeout_ms: int | None = None) -> SendResult:
        """The first half of ``send_in_transaction``, for those who do the local work themselves.

        ``end_transaction`` has to follow; without it the broker asks ``check``.
        """
        return self._run(lambda: self._core.send_half(message, timeout_ms=timeout_ms))

    def end_transaction(
        self,
        message: Message,
        sent: SendResult,
        state: TransactionState,
        failure: Exception | None = None,
    ) -> None:
        """Tell the broker what was decided about a half. What fails is logged: it will ask."""
        self._run(lambda: self._core.end_transaction(message, sent, state, failure))
