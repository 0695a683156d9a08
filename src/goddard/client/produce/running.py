"""The inner part of a producer, which exists while it runs.

The public class, the session, the tracer and transactions use it. Belongs to the event loop of its
session.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

from goddard.client import broker_api
from goddard.client.checks import check_queue
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.batching import Accumulator, Batch
from goddard.client.produce.broker_health import BrokerHealth
from goddard.client.produce.encoding import SendSettings, check_body, check_topic, prepare_batch
from goddard.client.produce.hooks import SendHook, SendHooks
from goddard.client.produce.options import ProducerOptions
from goddard.client.produce.request_reply import Requests
from goddard.client.produce.selectors import Selector
from goddard.client.produce.sender import Sender
from goddard.client.produce.targets import Targets
from goddard.client.session import Session
from goddard.client.trace.hooks import SendTracing
from goddard.client.trace.tracer import (
    MAX_TRACE_BYTES,
    SEND_TIMEOUT_MS,
    TraceOptions,
    Tracer,
    trace_group,
)
from goddard.client.values import MessageQueue, SendResult
from goddard.errors import ConfigError, GoddardError, RemotingError
from goddard.protocol.headers.message import CheckTransactionRequest
from goddard.protocol.names import group_problem
from goddard.transport.tasks import Tasks, finish

_logger: Final = logging.getLogger("goddard.client")

_PROBE_SECONDS: Final = 3.0

TransactionChecker: TypeAlias = Callable[
    [Session, ReceivedMessage, CheckTransactionRequest, str], None
]
"""Called with a half message that the broker at an address asks about."""


class RunningProducer:
    """Sends for one group; ``group`` is its name at brokers."""

    def __init__(
        self,
        session: Session,
        group: str,
        options: ProducerOptions,
        on_check: TransactionChecker | None = None,
    ) -> None:
        self.session = session
        self.group = session.with_namespace(group)
        self.options = options
        self._on_check = on_check
        # Whether the session knows this producer, or did.
        self.is_member = False
        self._max_bytes = options.max_message_bytes
        self._clock = session.clock
        self._tasks = Tasks(_logger, logging.DEBUG)
        # Topics that were sent to: the user's name, and the brokers'.
        self._topics: dict[str, str] = {}
        self.tracer = None
        hooks: list[SendHook] = list(options.send_hooks)
        if options.trace is not None:
            self.tracer = open_tracer(options.trace, session, group, "PRODUCE")
            hooks.append(SendTracing(self.tracer, session))
        settings = SendSettings(
            group=self.group,
            namespace=session.options.namespace,
            default_topic=options.default_topic,
            default_queues=options.default_queues,
            is_unit_mode=session.options.unit_mode,
            max_message_bytes=options.max_message_bytes,
            compress_from_bytes=options.compress_from_bytes,
            compression=options.compression,
            compression_level=options.compression_level,
        )
        avoid = options.avoid_slow_brokers
        self._health = None if avoid is None else BrokerHealth(avoid)
        send_hooks = SendHooks(session, settings, hooks, options.forbidden_hooks)
        self.has_hooks = send_hooks.has_any
        self.targets = Targets(session, settings, self._health, detects=options.detect_brokers)
        self.sender = Sender(session, settings, options, self.targets, send_hooks)
        self.requests = Requests(session, self.send_soon)
        self.accumulator: Accumulator | None = None
        if options.accumulate is not None:
            self.accumulator = Accumulator(
                options.accumulate,
                self._send_accumulated,
                self._send_alone,
                clock=self._clock,
                unique_id=session.unique_id,
                alone_from_bytes=options.compress_from_bytes,
                namespace=session.options.namespace,
            )

    @property
    def timeout_ms(self) -> int:
        """How long a request other than a send may take."""
        return self.session.options.api_timeout_ms

    # Life

    async def start(self) -> None:
        """Start the session and join it. If this fails, nothing is left open."""
        session = self.session
        await session.start()
        try:
            session.add_producer(self.group, self)
        except BaseException:
            await session.stop()
            raise
        self.is_member = True
        try:
            await self._join()
        except BaseException:
            await self.stop()
            raise

    async def _join(self) -> None:
        session = self.session
        session.add_reply_listener(self.requests.take)
        if self.tracer is not None:
            await self.tracer.start()
        for topic in self.options.topics:
            try:
                await self.targets.route(self.wire_topic(topic))
            except GoddardError as error:
                _logger.warning("No route of topic %s at the start: %s", topic, error)
        if self._health is not None and self.options.detect_brokers:
            probe = partial(self._probe_brokers, self._health)
            self._tasks.periodic("DetectBrokers", _PROBE_SECONDS, probe)
        await session.heartbeat()

    async def stop(self) -> None:
        """Wait for the sends in progress, leave the session and stop it."""
        session = self.session

        async def stop_requests() -> None:
            session.remove_reply_listener(self.requests.take)
            self.requests.stop()

        await finish(
            *(() if self.accumulator is None else (self.accumulator.flush,)),
            self.sender.drain,
            *(() if self.tracer is None else (self.tracer.stop,)),
            self._tasks.stop,
            stop_requests,
            partial(session.remove_producer, self.group),
            session.stop,
        )

    # As a member of its session

    def published_topics(self) -> Iterable[str]:
        return (*self._topics.values(), self.options.default_topic)

    def check_transaction(
        self, message: ReceivedMessage, header: CheckTransactionRequest, address: str
    ) -> None:
        if self._on_check is None:
            _logger.warning(
                "Broker %s checks a transaction of group %s, whose producer has no transaction "
                "listener",
                address,
                self.group,
            )
        else:
            self._on_check(self.session, message, header, address)

    # Sending

    def check(self, message: Message) -> str:
        """Check a message; the brokers' name of its topic."""
        try:
            topic = self._topics.get(message.topic)
            body = message.body
        except AttributeError:
            raise TypeError(f"a Message is required, not {message!r:.200}") from None
        if topic is None:
            topic = self.wire_topic(message.topic)
        # Without a call for what nearly all messages are.
        if type(body) is not bytes or not 0 < len(body) <= self._max_bytes:
            check_body(body, self._max_bytes)
        return topic

    def wire_topic(self, topic: str) -> str:
        """The brokers' name of a topic that may be sent to."""
        wire_topic = self._topics.get(topic)
        if wire_topic is None:
            wire_topic = check_topic(self.session.with_namespace(check_topic(topic)))
            self._topics[topic] = wire_topic
        return wire_topic

    def wire_queue(self, queue: MessageQueue) -> MessageQueue:
        """A queue with the brokers' name of its topic."""
        topic = check_queue(queue).topic
        return queue._replace(topic=self.session.with_namespace(topic))

    def send_soon(self, message: Message, timeout_ms: int | None = None) -> Awaitable[SendResult]:
        """Send a message alone, without waiting for its result."""
        topic = self.check(message)
        return self.sender.submit(
            message, topic, self.options.send_timeout_ms if timeout_ms is None else timeout_ms
        )

    def accumulate(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None, key: Any
    ) -> "asyncio.Future[SendResult] | None":
        """Send a message with others; None if it has to be sent alone."""
        if self.accumulator is None or selector is not None or key is not None:
            return None
        return self.accumulator.add(message, queue)

    async def _send_accumulated(self, batch: Batch) -> SendResult:
        out = prepare_batch(
            self._topics[batch.topic],
            batch.topic,
            batch.body(),
            batch.ids,
            wait=batch.waits_for_store,
        )
        return await self.sender.send_prepared(
            out, batch.messages, self.options.send_timeout_ms, batch.queue
        )

    def _send_alone(self, message: Message, queue: MessageQueue) -> Awaitable[SendResult]:
        topic = self._topics[message.topic]
        return self.sender.submit(message, topic, self.options.send_timeout_ms, queue)

    async def _probe_brokers(self, health: BrokerHealth) -> None:
        """Find out whether unreachable brokers can be reached again."""
        for broker_name in health.to_check(self._clock.monotonic_ms()):
            address = self.session.broker_address(broker_name)
            topic = next(iter(self._topics.values()), None)
            if address is None or topic is None:
                health.forget(broker_name)
                continue
            queue = MessageQueue(topic, broker_name, 0)
            try:
                await broker_api.max_offset(
                    self.session, address, queue, timeout_ms=self.options.detect_timeout_ms
                )
                is_reachable = True
            except RemotingError:
                is_reachable = False
            except GoddardError:
                # A refusal is an answer too.
                is_reachable = True
            health.checked(
                broker_name,
                self._clock.monotonic_ms(),
                reachable=is_reachable,
                interval_ms=self.options.detect_interval_ms,
            )


def open_tracer(options: TraceOptions, session: Session, group: str, kind: str) -> Tracer:
    """The tracer of a client; ``group`` is the user's name, ``kind`` PRODUCE or CONSUME."""
    own_group = trace_group(group, kind)
    if (problem := group_problem(own_group)) is not None:
        raise ConfigError(f"the group of the traces cannot be used: {problem}")
    own = ProducerOptions(send_timeout_ms=SEND_TIMEOUT_MS, max_message_bytes=MAX_TRACE_BYTES)
    return Tracer(options, RunningProducer(session, own_group, own))
