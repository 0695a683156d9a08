"""One try of a send: a prepared message to one queue, its hooks, and the broker's answer.

Whether to try again, and where, is the producer's business. Belongs to the loop of its session.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

from goddard.client.errors import BrokerNotFoundError, ClientError, TooManyRequestsError
from goddard.client.message import Message
from goddard.client.produce.broker_health import Faults, next_queue
from goddard.client.produce.encoding import (
    FrameTemplate,
    Outgoing,
    SendSettings,
    compress_body,
    has_template,
    prepare,
    read_result,
    send_command,
)
from goddard.client.produce.hooks import (
    ForbiddenContext,
    ForbiddenHook,
    SendContext,
    SendHook,
    SendMode,
    call_after,
    call_before,
    message_type,
)
from goddard.client.produce.selectors import Selector, by_hash
from goddard.client.routes import PublishRoute
from goddard.client.session import Session
from goddard.client.values import MessageQueue, SendResult
from goddard.errors import RemotingError
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.message import PROPERTY_UNIQUE_ID

# Bodies from here on are compressed by a thread; shorter ones take less than a millisecond.
COMPRESS_BY_THREAD_BYTES: Final = 32 * 1024
# Templates are made anew when there are more queues than this.
_MAX_TEMPLATES: Final = 16_384


class Courier:
    """Carries messages to queues for one producer."""

    def __init__(
        self,
        session: Session,
        settings: SendSettings,
        *,
        faults: Faults | None,
        detects: bool,
        send_hooks: Sequence[SendHook],
        forbidden_hooks: Sequence[ForbiddenHook],
    ) -> None:
        self.session = session
        self.settings = settings
        self._faults = faults
        self._detects = detects
        self._send_hooks = tuple(send_hooks)
        self._forbidden_hooks = tuple(forbidden_hooks)
        self.has_hooks = bool(send_hooks or forbidden_hooks)
        self._signs = session.signs
        self._templates: dict[tuple[str, MessageQueue], FrameTemplate] = {}
        # Round robin, by topic; the start is random so that many producers do not march in step.
        self._positions: dict[str, int] = {}

    def choose(self, route: PublishRoute, last_broker: str | None = None) -> MessageQueue:
        """The next queue in turn; of another broker than the last one, if there is one."""
        topic = route.topic
        position = self._positions.get(topic)
        if position is None:
            position = random.randrange(1 << 16)
        self._positions[topic] = position + 1
        if self._faults is not None:
            now_ms = self.session.clock.monotonic_ms()
            return self._faults.choose(route, position, last_broker, now_ms)
        if last_broker is None:
            queues = route.queues
            return queues[position % len(queues)]
        return next_queue(route, position, last_broker)

    def select(
        self, route: PublishRoute, message: Message, selector: Selector | None, key: Any
    ) -> MessageQueue:
        """The queue that a selector chooses; without one, the key's hash does."""
        queues: Sequence[MessageQueue] = route.queues
        if message.topic != route.topic:
            # A selector sees what its user knows: no namespace.
            queues = [queue._replace(topic=message.topic) for queue in queues]
        try:
            chosen = (selector or by_hash)(queues, message, key)
        except Exception as error:
            raise ClientError(f"select message queue threw exception. {error!r}") from error
        return self.fixed(chosen, message.topic, route.topic)

    def fixed(self, queue: object, user_topic: str, topic: str) -> MessageQueue:
        """A queue that the user chose, by the brokers' name of its topic."""
        if not isinstance(queue, MessageQueue):
            raise ClientError(
                f"select message queue return null. Not a MessageQueue: {queue!r:.200}"
            )
        if queue.topic not in (user_topic, topic):
            raise ClientError("message's topic not equal mq's topic")
        return queue if queue.topic == topic else queue._replace(topic=topic)

    # Preparing

    def prepare(self, message: Message, topic: str) -> Outgoing:
        """A valid message as it will be sent; it gets its id here."""
        settings = self.settings
        compressed = None
        if len(message.body) >= settings.compress_from_bytes:
            compressed = compress_body(message.body, settings)
        return prepare(message, topic, self._message_id(message), settings, compressed)

    async def prepare_anyhow(self, message: Message, topic: str) -> Outgoing:
        """The same; a thread does what would take long."""
        if len(message.body) < COMPRESS_BY_THREAD_BYTES:
            return self.prepare(message, topic)
        settings = self.settings
        compressed = None
        if len(message.body) >= settings.compress_from_bytes:
            compressed = await asyncio.to_thread(compress_body, message.body, settings)
        return prepare(message, topic, self._message_id(message), settings, compressed)

    def _message_id(self, message: Message) -> str:
        properties = message.properties
        message_id = properties.get(PROPERTY_UNIQUE_ID)
        if message_id is None:
            message_id = properties[PROPERTY_UNIQUE_ID] = self.session.unique_id()
        return message_id

    async def route(self, topic: str, timeout_ms: int | None = None) -> PublishRoute:
        """Where a topic can be written to; TooManyRequestsError if that takes too long."""
        known = self.session.known_publish_route(topic)
        if known is not None:
            return known
        settings = self.settings
        try:
            async with _within(timeout_ms):
                return await self.session.publish_route(
                    topic,
                    default_topic=settings.default_topic,
                    default_queues=settings.default_queues,
                )
        except TimeoutError as error:
            raise TooManyRequestsError(
                f"sendDefaultImpl call timeout, no route of {topic} within {timeout_ms} ms",
                advice="do the name servers answer? Or give the send more time",
            ) from error

    # The way

    async def locate(self, queue: MessageQueue, topic: str, timeout_ms: int | None = None) -> str:
        """The address of a queue's broker; the route is asked for again if there is none."""
        address = self.session.broker_address(queue.broker_name)
        if address is None:
            try:
                async with _within(timeout_ms):
                    await self.session.refresh_route(topic)
            except (ClientError, RemotingError, TimeoutError) as error:
                raise BrokerNotFoundError(queue.broker_name) from error
            address = self.session.broker_address(queue.broker_name)
            if address is None:
                raise BrokerNotFoundError(queue.broker_name)
        return address

    def frame(self, out: Outgoing, queue: MessageQueue, opaque: int) -> bytes:
        born_ms = self.session.clock.now_ms()
        if self._signs or not has_template(out):
            command = self.command(out, queue, born_ms)
            command.opaque = opaque
            return encode_frame(command)
        key = (out.topic, queue)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = FrameTemplate(out.topic, queue, self.settings)
        return template.frame(out, born_ms, opaque)

    def command(self, out: Outgoing, queue: MessageQueue, born_ms: int) -> RemotingCommand:
        command = send_command(out, queue, born_ms, self.settings)
        self.session.prepare(command)
        return command

    # One try

    async def carry(
        self,
        out: Outgoing,
        messages: Sequence[Message],
        queue: MessageQueue,
        timeout_ms: int,
        mode: SendMode,
    ) -> SendResult:
        """Send and wait for the answer. Raises RemotingError, BrokerError, ProtocolError or what a
        hook raised; the broker's faults are written down."""
        clock = self.session.clock
        started_ms = clock.monotonic_ms()
        address = self.session.broker_address(queue.broker_name)
        if address is None:
            address = await self.locate(queue, out.topic, timeout_ms)
            timeout_ms -= clock.monotonic_ms() - started_ms
        context = self.before(out, messages, queue, address, mode)
        try:
            response = await self._exchange(out, queue, address, timeout_ms)
            result = read_result(out, queue, response, address)
        except Exception as error:
            self.failed(queue, error, started_ms)
            self.after(context, error=error)
            raise
        self.succeeded(queue, started_ms)
        self.after(context, result=result)
        return result

    async def _exchange(
        self, out: Outgoing, queue: MessageQueue, address: str, timeout_ms: int
    ) -> RemotingCommand:
        session, clock = self.session, self.session.clock
        connection = session.connection(address)
        if connection is None:
            ends_ms = clock.monotonic_ms() + timeout_ms
            connection = await session.connect(address, max(1, timeout_ms))
            timeout_ms = ends_ms - clock.monotonic_ms()
        return await connection.request_encoded(
            lambda opaque: self.frame(out, queue, opaque), out.code, max(1, timeout_ms)
        )

    async def carry_oneway(
        self, out: Outgoing, messages: Sequence[Message], queue: MessageQueue
    ) -> None:
        address = await self.locate(queue, out.topic)
        context = self.before(out, messages, queue, address, SendMode.ONEWAY)
        try:
            command = send_command(out, queue, self.session.clock.now_ms(), self.settings)
            await self.session.oneway(address, command)
        except Exception as error:
            self.after(context, error=error)
            raise
        self.after(context)

    # Hooks

    def before(
        self,
        out: Outgoing,
        messages: Sequence[Message],
        queue: MessageQueue,
        address: str,
        mode: SendMode,
    ) -> SendContext | None:
        """Ask the hooks; what a ForbiddenHook raises is raised."""
        if not self.has_hooks:
            return None
        session = self.session
        user_queue = queue._replace(topic=out.user_topic)
        for hook in self._forbidden_hooks:
            hook.check(
                ForbiddenContext(
                    name_servers=session.name_servers,
                    group=self.settings.group,
                    mode=mode,
                    broker_address=address,
                    message=messages[0],
                    queue=user_queue,
                    is_unit_mode=self.settings.is_unit_mode,
                )
            )
        if not self._send_hooks:
            return None
        context = SendContext(
            group=self.settings.group,
            message=messages[0],
            messages=tuple(messages),
            queue=user_queue,
            broker_address=address,
            mode=mode,
            message_type=message_type(messages[0]),
            namespace=session.options.namespace,
            started_ms=session.clock.now_ms(),
        )
        call_before(self._send_hooks, context)
        return context

    def after(
        self,
        context: SendContext | None,
        *,
        result: SendResult | None = None,
        error: Exception | None = None,
    ) -> None:
        if context is not None:
            context.result = result
            context.error = error
            context.ended_ms = self.session.clock.now_ms()
            call_after(self._send_hooks, context)

    # Faults

    def succeeded(self, queue: MessageQueue, started_ms: int) -> None:
        if self._faults is not None:
            now_ms = self.session.clock.monotonic_ms()
            self._faults.record(queue.broker_name, now_ms - started_ms, now_ms)

    def failed(self, queue: MessageQueue, error: Exception, started_ms: int) -> None:
        """A client's own mistake says nothing about the broker."""
        if self._faults is None or isinstance(error, BrokerNotFoundError):
            return
        now_ms = self.session.clock.monotonic_ms()
        # As in RocketMQ: without a detector nobody would find out that a link works again.
        reachable = isinstance(error, RemotingError) and not self._detects
        self._faults.record(
            queue.broker_name, now_ms - started_ms, now_ms, isolate=True, reachable=reachable
        )


def _within(timeout_ms: int | None) -> asyncio.Timeout:
    return asyncio.timeout(None if timeout_ms is None else max(1, timeout_ms) / 1000)
