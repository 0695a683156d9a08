"""The producer: one message or many to a topic, waiting for the broker, or not.

``send`` tries again at another broker until its time is over (see ``tries``); ``send_soon`` returns
at once and keeps many messages under way (see ``flights``). Each try is a ``courier``'s. Belongs to
the loop it was started on.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Self, Unpack

from goddard.client import broker_api
from goddard.client.checks import several
from goddard.client.errors import (
    BatchFailedError,
    ClientError,
    NotRunningError,
    SendFailedError,
    TooManyRequestsError,
    already_started,
)
from goddard.client.identity import ProcessGuard
from goddard.client.message import Message, ReceivedMessage
from goddard.client.options import session_options
from goddard.client.produce.backpressure import SendPermits
from goddard.client.produce.batching import Accumulator, Batch
from goddard.client.produce.broker_health import Faults
from goddard.client.produce.encoding import (
    Outgoing,
    SendSettings,
    batch_of,
    batch_results,
    check_batch,
    check_batch_topic,
    check_body,
    check_topic,
    decoded_batch,
    prepare_batch,
    split_batch,
)
from goddard.client.produce.hooks import SendHook
from goddard.client.produce.options import ProducerKeywords, split_keywords
from goddard.client.produce.pending import Flights
from goddard.client.produce.request_reply import Requests, create_reply
from goddard.client.produce.retry import Tries, code_of
from goddard.client.produce.selectors import Selector
from goddard.client.produce.sender import Courier
from goddard.client.routes import PublishRoute
from goddard.client.session import Session
from goddard.client.trace.hooks import SendTracing
from goddard.client.trace.tracer import MAX_TRACE_BYTES, SEND_TIMEOUT_MS, Tracer, trace_group
from goddard.client.values import MessageQueue, SendResult, ServiceState
from goddard.clock import Clock, SystemClock
from goddard.errors import (
    ConfigError,
    GoddardError,
    OverloadedError,
    RemotingError,
)
from goddard.protocol.headers_message import CheckTransactionRequest
from goddard.protocol.message import PROPERTY_UNIQUE_ID
from goddard.protocol.names import group_problem
from goddard.transport.tasks import Tasks, finish

__all__ = ("Producer", "ProducerKeywords")

_logger: Final = logging.getLogger("goddard.client")

_DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
_DETECTOR_SECONDS: Final = 3.0


class _Running:
    """What a producer has while it runs."""

    __slots__ = ("accumulator", "courier", "flights", "requests", "session", "tracer", "tries")

    def __init__(
        self,
        session: Session,
        courier: Courier,
        tries: Tries,
        flights: Flights,
        requests: Requests,
        tracer: Tracer | None,
    ) -> None:
        self.session = session
        self.courier = courier
        self.tries = tries
        self.flights = flights
        self.requests = requests
        self.tracer = tracer
        self.accumulator: Accumulator | None = None


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
        if (problem := group_problem(group)) is not None:
            raise ConfigError(problem)
        if group == _DEFAULT_GROUP:
            raise ConfigError(
                f"producerGroup can not equal {_DEFAULT_GROUP}, please specify another one."
            )
        self._group = group
        self.options, common = split_keywords(options)
        self._clock: Clock = common.get("clock") or SystemClock()
        self._session_options = session_options(name_servers, common).for_process()
        self._guard = ProcessGuard()
        self._state = ServiceState.CREATED
        self._running: _Running | None = None
        self._tasks = Tasks(_logger, logging.DEBUG)
        avoid = self.options.avoid_slow_brokers
        self._faults = None if avoid is None else Faults(avoid)
        # Topics that were sent to: the user's name, and the brokers'.
        self._topics: dict[str, str] = {}

    @classmethod
    def within(cls, session: Session, group: str, **options: Unpack[ProducerKeywords]) -> Self:
        """A producer that shares the session of another client, for that client's own use."""
        producer = cls(group, name_servers="", **options)
        producer._session_options = session.options
        producer._clock = session.clock
        return producer

    # Life

    @property
    def group(self) -> str:
        return self._group

    @property
    def wire_group(self) -> str:
        """The group as brokers know it."""
        return self.session.with_namespace(self._group)

    @property
    def state(self) -> ServiceState:
        """Where the producer is in its life."""
        return self._state

    @property
    def client_id(self) -> str:
        """What brokers know this client by: ``ip@instance``."""
        return self._session_options.client_id

    @property
    def session(self) -> Session:
        """What it shares with the other clients of its client id."""
        return self._check_running().session

    @property
    def tracer(self) -> Tracer | None:
        """What writes its traces, if the option ``trace`` is set."""
        return None if self._running is None else self._running.tracer

    async def start(self) -> None:
        """Connect to the cluster. A producer starts once."""
        self._guard.check()
        if self._state is not ServiceState.CREATED:
            raise already_started("producer", self._state.value)
        session = Session.shared(self._session_options, clock=self._clock)
        group = session.with_namespace(self._group)
        running = self._assemble(session, group)
        self._state = ServiceState.START_FAILED
        await session.start()
        try:
            session.add_producer(group, self)
        except ClientError:
            self._state = ServiceState.CREATED
            await session.stop()
            raise
        try:
            await self._join(running)
        except BaseException:
            await self._leave(running)
            raise
        self._running = running
        self._state = ServiceState.RUNNING
        _logger.info(
            "the producer [%s] start OK. sendMessageWithVIPChannel=%s",
            self._group,
            str(session.options.vip_channel).lower(),
        )

    def _assemble(self, session: Session, group: str) -> _Running:
        own = self.options
        hooks: list[SendHook] = list(own.send_hooks)
        tracer = None
        if own.trace is not None:
            inner = Producer.within(
                session,
                trace_group(self._group, "PRODUCE"),
                send_timeout_ms=SEND_TIMEOUT_MS,
                max_message_bytes=MAX_TRACE_BYTES,
            )
            tracer = Tracer(own.trace, inner)
            hooks.append(SendTracing(tracer, session))
        settings = SendSettings(
            group=group,
            namespace=session.options.namespace,
            default_topic=own.default_topic,
            default_queues=own.default_queues,
            is_unit_mode=session.options.unit_mode,
            max_message_bytes=own.max_message_bytes,
            compress_from_bytes=own.compress_from_bytes,
            compression=own.compression,
            compression_level=own.compression_level,
        )
        courier = Courier(
            session,
            settings,
            faults=self._faults,
            detects=own.detect_brokers,
            send_hooks=hooks,
            forbidden_hooks=own.forbidden_hooks,
        )
        permits = None if own.back_pressure is None else SendPermits(own.back_pressure)
        running = _Running(
            session,
            courier,
            Tries(courier, own, self._clock),
            Flights(courier, retries=own.async_retries, permits=permits),
            Requests(session, self._send_request),
            tracer,
        )
        if own.accumulate is not None:
            running.accumulator = Accumulator(
                own.accumulate,
                partial(self._send_accumulated, running),
                partial(self._send_after_batch, running),
                clock=self._clock,
                unique_id=session.unique_id,
                alone_from_bytes=own.compress_from_bytes,
                namespace=session.options.namespace,
            )
        return running

    async def _join(self, running: _Running) -> None:
        session = running.session
        session.add_reply_listener(running.requests.take)
        if running.tracer is not None:
            await running.tracer.start()
        for topic in self.options.topics:
            wire_topic = session.with_namespace(topic)
            self._topics[topic] = wire_topic
            try:
                await running.courier.route(wire_topic)
            except GoddardError as error:
                _logger.warning("the route of %s is not there at the start: %s", topic, error)
        if self._faults is not None and self.options.detect_brokers:
            self._tasks.periodic("DetectBrokers", _DETECTOR_SECONDS, self._detect)
        await session.heartbeat()

    async def stop(self) -> None:
        """Wait for what is under way (each send ends in its own time), leave the cluster and close.

        Does nothing if the producer is not running. Cancelled, it waits no more and closes.
        """
        running = self._running
        if running is None:
            return
        self._state = ServiceState.STOPPED
        self._running = None
        await self._leave(running)
        _logger.info("the producer [%s] shutdown OK", self._group)

    async def _leave(self, running: _Running) -> None:
        session = running.session

        async def hang_up() -> None:
            session.remove_reply_listener(running.requests.take)
            running.requests.stop()

        await finish(
            *(() if running.accumulator is None else (running.accumulator.flush,)),
            running.flights.drain,
            *(() if running.tracer is None else (running.tracer.stop,)),
            self._tasks.stop,
            hang_up,
            partial(session.remove_producer, running.courier.settings.group),
            session.stop,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _check_running(self) -> _Running:
        self._guard.check()
        running = self._running
        if running is None:
            raise NotRunningError(
                f"The producer service state not OK, {self._state.value}",
                advice="start it first (async with, or start); a stopped one does not start again",
            )
        return running

    # As a member of its session

    def published_topics(self) -> Iterable[str]:
        return (*self._topics.values(), self.options.default_topic)

    def route_changed(self, topic: str, route: PublishRoute) -> None:
        pass

    async def check_transaction(
        self, message: ReceivedMessage, header: CheckTransactionRequest, address: str
    ) -> None:
        """A TransactionProducer answers this; any other has no transactions."""
        _logger.warning("%s asks about a transaction, but %s has none", address, self._group)

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

        It goes to the next queue in turn, or to ``queue``, or to the one that ``selector`` chooses
        (it gets ``key``), or to the one that the hash of ``key`` says: equal keys in one queue, in
        order. A message whose queue is chosen so is tried once; any other up to ``1 + retries``
        times, each time at another broker if there is one. After an error the message may still
        have been stored.

        A status other than SEND_OK is a result, not an error. Raises SendFailedError, BrokerError,
        NoRouteError, InvalidMessageError, TooManyRequestsError.
        """
        running = self._check_running()
        topic = self._check(message)
        if timeout_ms is None:
            if running.accumulator is not None and selector is None and key is None:
                batched = running.accumulator.add(message, queue)
                if batched is not None:
                    return await batched
            timeout_ms = self.options.send_timeout_ms
        started_ms = self._clock.monotonic_ms()
        courier = running.courier
        running.flights.begin()
        try:
            out = await courier.prepare_anyhow(message, topic)
            if queue is not None:
                queue = courier.fixed(queue, message.topic, topic)
            elif selector is not None or key is not None:
                route = await courier.route(topic, timeout_ms)
                queue = courier.select(route, message, selector, key)
            return await running.tries.deliver(out, (message,), queue, started_ms, timeout_ms)
        finally:
            running.flights.end()

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

        Many messages share a connection this way, and leave in the order of the calls. What is
        tried again (up to ``async_retries`` times, after failures of the connection only) comes
        after its followers, and RocketMQ's broker, which has many threads, may store what comes at
        once in any order: where order counts, wait for each result. The message must not be
        changed until the future is done.
        """
        running = self._check_running()
        topic = self._check(message)
        if timeout_ms is None:
            if running.accumulator is not None and selector is None and key is None:
                batched = running.accumulator.add(message, queue)
                if batched is not None:
                    return batched
            timeout_ms = self.options.send_timeout_ms
        return running.flights.launch(message, topic, timeout_ms, queue, selector, key)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
    ) -> None:
        """Send a message that no broker answers for: the fastest way, and it may be lost."""
        running = self._check_running()
        topic = self._check(message)
        courier = running.courier
        out = await courier.prepare_anyhow(message, topic)
        if queue is not None:
            chosen = courier.fixed(queue, message.topic, topic)
        else:
            route = await courier.route(topic)
            if selector is not None or key is not None:
                chosen = courier.select(route, message, selector, key)
            else:
                chosen = courier.choose(route)
        try:
            await courier.carry_oneway(out, (message,), chosen)
        except OverloadedError as error:
            raise TooManyRequestsError(str(error), address=error.address) from error
        except RemotingError as error:
            raise SendFailedError(
                "send request failed", code=code_of(error), tries=1, address=error.address
            ) from error

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together; the results are theirs, in order.

        They share as few requests as ``max_message_bytes`` allows; those of one request are stored
        in one queue, one after the other. No delays, no transactions, all with the same
        ``wait_store_ok``. ``timeout_ms`` is for each request. If one of several requests fails, the
        BatchFailedError has the results of those before it.
        """
        running = self._check_running()
        batch = several("messages", messages, Message)
        check_batch(batch)
        first = batch[0]
        topic = self._check(first)
        for message in batch:
            self._check(message)
        courier = running.courier
        if queue is not None:
            queue = courier.fixed(queue, first.topic, topic)
        timeout_ms = self.options.send_timeout_ms if timeout_ms is None else timeout_ms
        for message in batch:
            if message.message_id is None:
                message.properties[PROPERTY_UNIQUE_ID] = running.session.unique_id()
        results: list[SendResult] = []
        chunks = split_batch(
            batch, running.session.options.namespace, self.options.max_message_bytes
        )
        for chunk, entries in chunks:
            ids = ",".join(message.properties[PROPERTY_UNIQUE_ID] for message in chunk)
            try:
                if len(chunk) == 1:
                    out = await courier.prepare_anyhow(chunk[0], topic)
                else:
                    out = prepare_batch(topic, first.topic, entries, ids, wait=first.wait_store_ok)
                result = await self._deliver(running, out, chunk, queue, timeout_ms)
            except ClientError as error:
                if not results:
                    raise
                raise BatchFailedError(error, results) from error
            results += batch_results(result, len(chunk))
        return results

    async def send_encoded(
        self, topic: str, batch: bytes, *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages that are a batch body already, in one request.

        For whoever has thousands of them and no Message of any. ``protocol.message`` says what a
        batch body is; that each message in it is valid and has an id, and that there are not more
        than ``MAX_BATCH_MESSAGES``, is the caller's care. The result names no ids unless the broker
        does.
        """
        running = self._check_running()
        wire_topic = self._wire_topic(topic)
        check_batch_topic(topic)
        check_body(batch, self.options.max_message_bytes)
        courier = running.courier
        messages = decoded_batch(topic, batch) if courier.has_hooks else ()
        if queue is not None:
            queue = courier.fixed(queue, topic, wire_topic)
        out = batch_of(wire_topic, topic, batch, "", wait=True)
        return await self._deliver(running, out, messages, queue, self.options.send_timeout_ms)

    async def request(self, message: Message, *, timeout_ms: int | None = None) -> ReceivedMessage:
        """Send a message that asks, and wait for its reply; the time is for both together."""
        requests = self._check_running().requests
        self._check(message)
        timeout_ms = self.options.send_timeout_ms if timeout_ms is None else timeout_ms
        return await requests.ask(message, timeout_ms)

    async def reply(
        self, request: Message | ReceivedMessage, body: bytes, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Answer a message that was sent by ``request``."""
        return await self.send(create_reply(request, body), timeout_ms=timeout_ms)

    async def publish_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be written to; NoRouteError if there are none."""
        running = self._check_running()
        route = await running.courier.route(self._wire_topic(topic))
        return [queue._replace(topic=topic) for queue in route.queues]

    # What sending is made of

    def _check(self, message: Message) -> str:
        """The brokers' name of the topic of a valid message."""
        try:
            topic = self._topics.get(message.topic)
        except AttributeError:
            raise TypeError(f"a Message is wanted to send, not {message!r:.200}") from None
        if topic is None:
            topic = self._wire_topic(message.topic)
        check_body(message.body, self.options.max_message_bytes)
        return topic

    def _wire_topic(self, topic: str) -> str:
        wire_topic = self._topics.get(topic)
        if wire_topic is None:
            wire_topic = check_topic(self.session.with_namespace(check_topic(topic)))
            self._topics[topic] = wire_topic
        return wire_topic

    async def _deliver(
        self,
        running: _Running,
        out: Outgoing,
        messages: Sequence[Message],
        fixed: MessageQueue | None,
        timeout_ms: int,
    ) -> SendResult:
        started_ms = self._clock.monotonic_ms()
        running.flights.begin()
        try:
            return await running.tries.deliver(out, messages, fixed, started_ms, timeout_ms)
        finally:
            running.flights.end()

    async def _send_accumulated(self, running: _Running, batch: Batch) -> SendResult:
        topic = self._topics[batch.topic]
        out = batch_of(
            topic, batch.topic, batch.body(), ",".join(batch.ids), wait=batch.waits_for_store
        )
        queue = batch.queue
        if queue is not None:
            queue = running.courier.fixed(queue, batch.topic, topic)
        return await self._deliver(
            running, out, batch.messages, queue, self.options.send_timeout_ms
        )

    def _send_after_batch(
        self, running: _Running, message: Message, queue: MessageQueue
    ) -> "asyncio.Future[SendResult]":
        topic = self._topics[message.topic]
        timeout_ms = self.options.send_timeout_ms
        return running.flights.launch(message, topic, timeout_ms, queue, None, None)

    async def _send_request(self, message: Message, timeout_ms: int) -> SendResult:
        return await self.send_soon(message, timeout_ms=timeout_ms)

    async def _detect(self) -> None:
        """Ask brokers that could not be reached whether they can be now."""
        faults, running = self._faults, self._running
        if faults is None or running is None:
            return
        session = running.session
        for broker_name in faults.to_check(self._clock.monotonic_ms()):
            address = session.broker_address(broker_name)
            topic = next(iter(self._topics.values()), None)
            if address is None or topic is None:
                faults.forget(broker_name)
                continue
            queue = MessageQueue(topic, broker_name, 0)
            try:
                await broker_api.max_offset(
                    session, address, queue, timeout_ms=self.options.detect_timeout_ms
                )
                reachable = True
            except RemotingError:
                reachable = False
            except GoddardError:
                # It answers; that is all that was asked.
                reachable = True
            faults.checked(
                broker_name,
                self._clock.monotonic_ms(),
                reachable=reachable,
                interval_ms=self.options.detect_interval_ms,
            )
