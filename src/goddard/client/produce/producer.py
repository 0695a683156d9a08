"""The producer: sends one message or many to a topic, and waits for the results or not.

``send`` waits for the broker; ``send_soon`` returns a future immediately, so that many messages are
sent at a time. Belongs to the event loop that it was started on.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self, Unpack

from goddard.client import queries
from goddard.client.arguments import Count, QueueCount, TimeMs, TimeOrEndMs, checked
from goddard.client.broker_api import Boundary
from goddard.client.checks import check_list, check_new_group, check_new_topic, check_timeout
from goddard.client.errors import (
    BatchFailedError,
    ClientError,
    NotRunningError,
    already_started,
    start_advice,
)
from goddard.client.identity import ProcessGuard
from goddard.client.message import Message, ReceivedMessage
from goddard.client.options import session_options, split_options
from goddard.client.produce.encoding import (
    check_batch,
    check_batch_topic,
    check_body,
    decoded_batch,
    prepare_batch,
    split_batch,
    split_result,
)
from goddard.client.produce.options import ProducerKeywords, ProducerOptions
from goddard.client.produce.request_reply import create_reply
from goddard.client.produce.running import RunningProducer, TransactionChecker
from goddard.client.produce.selectors import Selector
from goddard.client.queries import FoundMessages
from goddard.client.session import Session
from goddard.client.values import MessageQueue, SendResult, ServiceState
from goddard.environment import Environment
from goddard.errors import ConfigError
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.message import PROPERTY_UNIQUE_ID, encode_batch

__all__ = ("Producer", "ProducerKeywords")

_logger: Final = logging.getLogger("goddard.client")

_DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"


class Producer:
    """Sends messages.

    ::

        async with Producer("my-group", name_servers="localhost:9876") as producer:
            result = await producer.send(Message("TopicTest", b"hello"))

    ``group`` names producers of one kind; it matters for transactions. Options are keywords: see
    ProducerOptions for the producer's own and SessionOptions for those of every client. A producer
    starts and stops once.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        check_new_group(group)
        if group == _DEFAULT_GROUP:
            raise ConfigError(
                f"producerGroup can not equal {_DEFAULT_GROUP}, please specify another one."
            )
        # Must be the first attribute: it refuses pickling.
        self._guard = ProcessGuard()
        self._group = group
        self._options, common = split_options(ProducerOptions, options)
        self._environment = common.get("environment") or Environment()
        self._session_options = session_options(name_servers, common).for_process(self._environment)
        self._state = ServiceState.CREATED
        self._running: RunningProducer | None = None
        self._on_check: TransactionChecker | None = None

    # Life

    @property
    def group(self) -> str:
        return self._group

    @property
    def state(self) -> ServiceState:
        """Where the producer is in its life."""
        return self._state

    @property
    def client_id(self) -> str:
        """What brokers know this client by: ``ip@instance``."""
        return self._session_options.client_id

    async def start(self) -> None:
        """Connect to the cluster. A producer starts once."""
        self._guard.check()
        if self._state is not ServiceState.CREATED:
            raise already_started("producer", self._state.value)
        session = Session.shared(self._session_options, environment=self._environment)
        running = RunningProducer(session, self._group, self._options, self._on_check)
        self._state = ServiceState.START_FAILED
        try:
            await self._start_running(running)
        except BaseException:
            if not running.is_member:
                self._state = ServiceState.CREATED
            raise
        self._running = running
        self._state = ServiceState.RUNNING
        _logger.info(
            "the producer [%s] start OK. sendMessageWithVIPChannel=%s",
            self._group,
            str(session.options.vip_channel).lower(),
        )

    async def _start_running(self, running: RunningProducer) -> None:
        """Start the inner part; subclasses add what is theirs."""
        await running.start()

    async def stop(self) -> None:
        """Wait for the sends in progress, at most for their timeouts, leave the cluster and close.

        Does nothing if the producer is not running. Cancelled, it closes without waiting.
        """
        running = self._running
        if running is None:
            return
        running.session.check_loop()
        self._state = ServiceState.STOPPED
        self._running = None
        await running.stop()
        _logger.info("the producer [%s] shutdown OK", self._group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _check_running(self) -> RunningProducer:
        running = self._running
        if running is None:
            self._guard.check()
            raise NotRunningError(
                f"The producer service state not OK, {self._state.value}",
                advice=start_advice(self._state),
            )
        running.session.check_loop()
        return running

    def _timeout_ms(self, given: int | None) -> int:
        """A timeout that was given to a method, or the option."""
        return self._options.send_timeout_ms if given is None else check_timeout(given)

    # Sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until a broker has stored it.

        It goes to the next queue in turn, or to ``queue``, or to the queue that ``selector``
        chooses (which gets ``key``), or to that of the hash of ``key``: equal keys go to one queue,
        in order. A message whose queue is chosen in one of these ways is tried once; any other up
        to ``1 + retries`` times, each time at another broker if there is one. After an error the
        message may still have been stored.

        A status other than SEND_OK is a result, not an error. Raises SendFailedError, BrokerError,
        NoRouteError, InvalidMessageError, TooManyRequestsError.
        """
        running = self._check_running()
        topic = running.check(message)
        if timeout_ms is None:
            batched = running.accumulate(message, queue, selector, key)
            if batched is not None:
                return await batched
            timeout_ms = self._options.send_timeout_ms
        else:
            check_timeout(timeout_ms)
        return await running.sender.send(message, topic, timeout_ms, queue, selector, key)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout_ms: int | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send a message without waiting: the future has its result.

        Many messages share a connection this way and are sent in the order of the calls. A retry
        (up to ``async_retries`` of them, after failures of the connection only) is sent after the
        messages that followed. A RocketMQ broker has many threads and may store messages that
        arrive together in any order: where order matters, wait for each result. The message must
        not be changed until the future is done.

        The future has every error of the send, also those of hooks and selectors. The call itself
        raises only if the producer is not running or an argument is invalid, such as the topic or
        the body.
        """
        running = self._check_running()
        topic = running.check(message)
        if timeout_ms is None:
            batched = running.accumulate(message, queue, selector, key)
            if batched is not None:
                return batched
            timeout_ms = self._options.send_timeout_ms
        else:
            check_timeout(timeout_ms)
        return running.sender.submit(message, topic, timeout_ms, queue, selector, key)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
    ) -> None:
        """Send a message without an answer: the fastest way to send, and messages may be lost."""
        running = self._check_running()
        topic = running.check(message)
        timeout_ms = self._options.send_timeout_ms
        await running.sender.send_oneway(message, topic, timeout_ms, queue, selector, key)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together; the results are theirs, in order.

        They are sent in as few requests as ``max_message_bytes`` allows; the messages of one
        request are stored in one queue, one after the other. Delays and transactions are not
        supported, and all messages must have the same ``wait_store_ok``. ``timeout_ms`` is for each
        request. If one of several requests fails, the BatchFailedError has the results of those
        before it.
        """
        running = self._check_running()
        batch = check_list("messages", messages, Message)
        check_batch(batch)
        first = batch[0]
        topic = running.check(first)
        for message in batch:
            running.check(message)
        timeout_ms = self._timeout_ms(timeout_ms)
        for message in batch:
            if message.message_id is None:
                message.properties[PROPERTY_UNIQUE_ID] = running.session.unique_id()
        results: list[SendResult] = []
        # All of them before the first is sent: nothing is sent of a batch with an invalid message.
        namespace = running.session.options.namespace
        chunks = list(split_batch(batch, namespace, self._options.max_message_bytes))
        for chunk, entries in chunks:
            ids = [message.properties[PROPERTY_UNIQUE_ID] for message in chunk]
            try:
                if len(chunk) == 1:
                    out = await running.sender.encoder.prepare(chunk[0], topic)
                else:
                    body = encode_batch(entries)
                    out = prepare_batch(topic, first.topic, body, ids, wait=first.wait_store_ok)
                result = await running.sender.send_prepared(out, chunk, timeout_ms, queue)
            except ClientError as error:
                if not results:
                    raise
                raise BatchFailedError(error, results) from error
            results += split_result(result, ids)
        return results

    async def request(self, message: Message, *, timeout_ms: int | None = None) -> ReceivedMessage:
        """Send a request message and wait for its reply; the timeout is for both together."""
        running = self._check_running()
        running.check(message)
        timeout_ms = self._timeout_ms(timeout_ms)
        return await running.requests.request(message, timeout_ms)

    async def reply(
        self, request: Message | ReceivedMessage, body: bytes, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Answer a message that was sent by ``request``."""
        return await self.send(create_reply(request, body), timeout_ms=timeout_ms)

    async def publish_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be written to; NoRouteError if there are none."""
        running = self._check_running()
        route = await running.targets.route(running.wire_topic(topic))
        return [queue._replace(topic=topic) for queue in route.queues]

    # Administration, as RocketMQ's producers offer it

    @checked
    async def create_topic(
        self,
        topic: str,
        *,
        queues: QueueCount = 8,
        like: str | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> list[str]:
        """Create or change a topic on every master that has the topic ``like``.

        Without ``like``, this is ``default_topic``, which brokers have that create topics
        automatically. ``queues`` is the number of queues on each broker. ``attributes`` sets
        attributes (``{"message.type": "FIFO"}``) and removes those whose value is None.

        Returns the addresses of the brokers that have the topic now.
        """
        check_new_topic(topic)
        running = self._check_running()
        pattern = self._options.default_topic if like is None else like
        config = TopicConfig(
            topic_name=running.session.with_namespace(topic),
            read_queue_nums=queues,
            write_queue_nums=queues,
        )
        header = queries.topic_header(config, attributes or {})
        found = await queries.route(running, running.session.with_namespace(pattern))
        return await queries.create_topic(running, queries.master_addresses(found), header)

    @checked
    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of the queue gets."""
        running = self._check_running()
        return await queries.max_offset(running, running.wire_queue(queue))

    @checked
    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that the queue has."""
        running = self._check_running()
        return await queries.min_offset(running, running.wire_queue(queue))

    @checked
    async def search_offset(
        self, queue: MessageQueue, timestamp_ms: TimeOrEndMs, *, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """The offset of the first message that was stored at a time or later."""
        running = self._check_running()
        wire_queue = running.wire_queue(queue)
        return await queries.search_offset(running, wire_queue, timestamp_ms, boundary)

    @checked
    async def earliest_store_time_ms(self, queue: MessageQueue) -> int:
        """When the oldest message of the queue was stored; -1 if it has none."""
        running = self._check_running()
        return await queries.earliest_store_time_ms(running, running.wire_queue(queue))

    @checked
    async def message(self, topic: str, message_id: str) -> ReceivedMessage:
        """A message by either of its ids.

        The broker's id (``offset_message_id``) says where the message is; an id counts as such if
        it names a registered broker. The client's id (``message_id``) is looked up in the index of
        the last three days.
        """
        running = self._check_running()
        wire_topic = running.session.with_namespace(topic)
        now_ms = self._environment.clock.now_ms()
        found = await queries.message(running, wire_topic, message_id, now_ms=now_ms)
        found.topic = running.session.without_namespace(found.topic)
        return found

    @checked
    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: Count = queries.MAX_FOUND,
        begin_ms: TimeMs = 0,
        end_ms: TimeMs = queries.END_OF_TIME_MS,
    ) -> FoundMessages:
        """Messages that have a key among their KEYS, of every broker.

        ``max_count`` is the limit for each broker. ``begin_ms`` and ``end_ms`` limit the time of
        storage.
        """
        running = self._check_running()
        found = await queries.find_messages(
            running,
            running.session.with_namespace(topic),
            key,
            max_count=max_count,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        for message in found.messages:
            message.topic = running.session.without_namespace(message.topic)
        return found


class EncodedProducer(Producer):
    """A producer for callers that encode their messages themselves, as Spark's sink does."""

    @property
    def options(self) -> ProducerOptions:
        return self._options

    @property
    def session(self) -> Session:
        """What it shares with the other clients of its client id."""
        return self._check_running().session

    async def send_encoded(
        self, topic: str, batch: bytes, *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages that are already encoded as a batch body, in one request.

        For thousands of messages without a Message object for each. ``protocol.message`` describes
        batch bodies. The caller ensures that each message is valid and has an id, and that there
        are at most ``MAX_BATCH_MESSAGES``. The result has the ids only if the broker sends them.
        """
        running = self._check_running()
        wire_topic = running.wire_topic(topic)
        check_batch_topic(topic)
        check_body(batch, self._options.max_message_bytes)
        messages = decoded_batch(topic, batch) if running.has_hooks else ()
        out = prepare_batch(wire_topic, topic, batch, (), wait=True)
        timeout_ms = self._options.send_timeout_ms
        return await running.sender.send_prepared(out, messages, timeout_ms, queue)
