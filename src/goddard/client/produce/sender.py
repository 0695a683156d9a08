"""Sends messages to queues, attempt by attempt, until a broker has them.

``send`` waits for the result; ``submit`` returns a future. A submitted message is sent immediately
if its route, its connection and a permit are ready: then it costs one object and one future, and
its answer is handled when it arrives. Otherwise a task waits for what is missing. Messages are sent
in the order of submission; only retries may change it. Belongs to the event loop of its session.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

from goddard.client.errors import BrokerError, BrokerNotFoundError, ClientError, NotRunningError
from goddard.client.message import Message
from goddard.client.produce.backpressure import SendPermits
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
from goddard.client.produce.hooks import SendContext, SendHooks
from goddard.client.produce.options import ProducerOptions
from goddard.client.produce.ordering import Lines
from goddard.client.produce.retry import ATTEMPT_ERRORS, PendingSend, RetryPolicy
from goddard.client.produce.selectors import Selector, check_choice
from goddard.client.produce.targets import Targets
from goddard.client.session import Session
from goddard.client.values import MessageQueue, SendMode, SendResult
from goddard.errors import GoddardError, ProtocolError, RemotingError
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.message import PROPERTY_DELAY, PROPERTY_UNIQUE_ID

_logger: Final = logging.getLogger("goddard.client")

# Longer bodies are compressed in a thread; shorter ones take less than a millisecond.
_COMPRESS_IN_THREAD_BYTES: Final = 32 * 1024
# With more queues than this, the templates are discarded and made again.
_MAX_TEMPLATES: Final = 16_384
# RocketMQ's default messageDelayLevel has levels 1 to 18.
_MAX_DEFAULT_DELAY_LEVEL: Final = 18
_MAX_WARNED_LEVELS: Final = 1_000
_CHOSEN_QUEUE: Final = RetryPolicy()
_STOPPED: Final = "the producer was stopped before the answer came"


class SubmittedSend(PendingSend):
    """A send whose result is the future's."""

    __slots__ = ("address", "context", "future", "has_permit", "sender")

    address: str
    context: SendContext | None
    future: "asyncio.Future[SendResult]"
    has_permit: bool
    sender: "Sender"

    def encode(self, opaque: int) -> bytes:
        return self.sender.frame(self, opaque)

    def done(self, outcome: RemotingCommand | RemotingError) -> None:
        self.sender.answered(self, outcome)


class Sender:
    """All sends of one producer."""

    def __init__(
        self,
        session: Session,
        settings: SendSettings,
        options: ProducerOptions,
        targets: Targets,
        hooks: SendHooks,
    ) -> None:
        self._session = session
        self._settings = settings
        self._clock = session.clock
        self._loop = asyncio.get_running_loop()
        self._targets = targets
        self._records_health = targets.health is not None
        self._hooks = hooks
        self._has_hooks = hooks.has_any
        self._policy = RetryPolicy(
            max_attempts=1 + options.retries,
            retry_codes=options.retry_codes,
            retries_unsafe=options.retry_when_not_stored,
            max_timeout_per_attempt_ms=options.max_timeout_per_try_ms,
        )
        # As in RocketMQ: only failures of the connection are tried again.
        self._submit_policy = RetryPolicy(
            max_attempts=1 + options.async_retries, retries_overload=False
        )
        limits = options.back_pressure
        self._permits = None if limits is None else SendPermits(limits)
        self._signs = session.signs
        self._templates: dict[tuple[str, MessageQueue], FrameTemplate] = {}
        self._tasks: set[asyncio.Task[SendResult]] = set()
        self._lines = Lines()
        # Each is logged once.
        self._warned_levels: set[int] = set()
        # How many submitted messages wait to be sent; later ones may not overtake them.
        self._waiting = 0
        self._in_progress = 0
        self._is_closed = False
        self._idle: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """How many sends are in progress."""
        return self._in_progress

    async def drain(self) -> None:
        """Wait until no send is in progress; nothing may be sent after that.

        Cancelled, it ends the submitted sends that have a task. The others, whose first attempt was
        sent immediately, end with that attempt: they are not retried.
        """
        try:
            while self._in_progress:
                self._idle = self._loop.create_future()
                await self._idle
        finally:
            self._is_closed = True
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    # Ways of sending

    def send(
        self,
        message: Message,
        topic: str,
        timeout_ms: int,
        queue: MessageQueue | None,
        selector: Selector | None,
        key: Any,
    ) -> Coroutine[Any, Any, SendResult]:
        """Send a valid message; ``topic`` is the brokers' name of its topic.

        A message whose queue is chosen is tried once.
        """
        is_chosen = queue is not None or selector is not None or key is not None
        if is_chosen:
            queue = check_choice(queue, selector, key, message.topic, topic)
        started_ms = self._clock.monotonic_ms()
        policy = _CHOSEN_QUEUE if is_chosen else self._policy
        pending = PendingSend(
            policy, SendMode.SYNC, (message,), topic, started_ms, timeout_ms, queue, selector, key
        )
        return self._complete(pending)

    def send_prepared(
        self,
        out: Outgoing,
        messages: Sequence[Message],
        timeout_ms: int,
        queue: MessageQueue | None,
    ) -> Coroutine[Any, Any, SendResult]:
        """Send what is encoded already; ``messages`` are for hooks."""
        if queue is not None:
            queue = check_choice(queue, None, None, out.user_topic, out.topic)
        started_ms = self._clock.monotonic_ms()
        policy = self._policy if queue is None else _CHOSEN_QUEUE
        pending = PendingSend(
            policy, SendMode.SYNC, messages, out.topic, started_ms, timeout_ms, queue
        )
        pending.out = out
        return self._complete(pending)

    async def send_oneway(
        self,
        message: Message,
        topic: str,
        timeout_ms: int,
        queue: MessageQueue | None,
        selector: Selector | None,
        key: Any,
    ) -> None:
        """Send a message that is not answered; the time is for finding its queue."""
        if queue is not None or selector is not None or key is not None:
            queue = check_choice(queue, selector, key, message.topic, topic)
        started_ms = self._clock.monotonic_ms()
        pending = PendingSend(
            _CHOSEN_QUEUE,
            *(SendMode.ONEWAY, (message,), topic, started_ms, timeout_ms, queue, selector, key),
        )
        self._in_progress += 1
        try:
            await self._resolve(pending)
            pending.begin(started_ms)
            try:
                await self._write_oneway(pending)
            except ATTEMPT_ERRORS as error:
                pending.failed(error)
                raise pending.failure(self._clock.monotonic_ms()) from error
        finally:
            self._end()

    def submit(
        self,
        message: Message,
        topic: str,
        timeout_ms: int,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
    ) -> "asyncio.Future[SendResult]":
        """Send a valid message without waiting; ``topic`` is the brokers' name of its topic.

        Every failure is the future's, except those of invalid arguments.
        """
        if queue is not None or selector is not None or key is not None:
            queue = check_choice(queue, selector, key, message.topic, topic)
        pending = SubmittedSend(
            self._submit_policy,
            SendMode.ASYNC,
            (message,),
            topic,
            self._clock.monotonic_ms(),
            timeout_ms,
            queue,
            selector,
            key,
        )
        pending.sender = self
        future = pending.future = self._loop.create_future()
        pending.has_permit = False
        pending.context = None
        self._in_progress += 1
        try:
            is_sent = not self._waiting and self._send_now(pending)
        except Exception as error:
            _logger.debug("a send to %s failed at once", topic, exc_info=True)
            self._fail(pending, error)
            return future
        if not is_sent:
            self._waiting += 1
            self._spawn(pending, self._send_when_ready(pending))
        return future

    # Sends that are waited for

    async def _complete(self, pending: PendingSend) -> SendResult:
        self._in_progress += 1
        try:
            if not self._resolve_now(pending):
                await self._resolve(pending)
            return await self._send_with_retries(pending)
        finally:
            self._end()

    def _end(self) -> None:
        self._in_progress -= 1
        if not self._in_progress and self._idle is not None:
            if not self._idle.done():
                self._idle.set_result(None)
            self._idle = None

    async def _send_with_retries(self, pending: PendingSend) -> SendResult:
        """Make attempts, each at another broker if there is one, until one ends the send."""
        clock = self._clock
        while pending.may_try(clock.monotonic_ms()):
            if pending.attempts and not pending.is_queue_chosen:
                try:
                    route = await self._targets.route(
                        pending.topic, pending.left_ms(clock.monotonic_ms())
                    )
                except ClientError:
                    # The earlier error explains more.
                    break
                pending.queue = self._targets.choose(route, pending)
            started_ms = clock.monotonic_ms()
            try:
                result = await self._send_once(pending, pending.begin(started_ms))
            except ATTEMPT_ERRORS as error:
                pending.failed(error)
                self._log_failure(pending, error, started_ms)
            else:
                if pending.answered(result):
                    return result
        return pending.outcome(clock.monotonic_ms())

    def _log_failure(self, pending: PendingSend, error: GoddardError, started_ms: int) -> None:
        if pending.policy.retries(error):
            # Thousands of submitted messages fail together when a connection is lost.
            level = logging.WARNING if pending.mode is SendMode.SYNC else logging.DEBUG
            _logger.log(
                level,
                "sendKernelImpl exception, resend at once, InvokeID: %d, RT: %dms, Broker: %s: %s",
                pending.started_ms,
                self._clock.monotonic_ms() - started_ms,
                pending.queue,
                error,
            )

    async def _send_once(self, pending: PendingSend, timeout_ms: int) -> SendResult:
        """One attempt. Raises one of ATTEMPT_ERRORS, or what a hook raised."""
        session, clock = self._session, self._clock
        out, queue = pending.out, pending.queue
        assert out is not None
        assert queue is not None
        started_ms = clock.monotonic_ms()
        ends_ms = started_ms + timeout_ms
        address = session.broker_address(queue.broker_name)
        if address is None:
            address = await self._targets.locate(queue, timeout_ms)
        context = self._hooks.before(pending, address) if self._has_hooks else None
        try:
            connection = session.connection(address)
            if connection is None:
                left_ms = max(1, ends_ms - clock.monotonic_ms())
                connection = await session.connect(address, left_ms)
            left_ms = max(1, ends_ms - clock.monotonic_ms())
            encode = partial(self.frame, pending)
            response = await connection.request_encoded(encode, out.code, left_ms)
            result = read_result(out, queue, response, address)
        except Exception as error:
            self._targets.record_failure(queue, error, started_ms)
            self._hooks.after(context, error=error)
            raise
        self._targets.record_success(queue, started_ms)
        if context is not None:
            self._hooks.after(context, result=result)
        return result

    async def _write_oneway(self, pending: PendingSend) -> None:
        out, queue = pending.out, pending.queue
        assert out is not None
        assert queue is not None
        address = await self._targets.locate(queue, None)
        context = self._hooks.before(pending, address) if self._has_hooks else None
        try:
            command = send_command(out, queue, self._clock.now_ms(), self._settings)
            await self._session.oneway(address, command)
        except Exception as error:
            self._hooks.after(context, error=error)
            raise
        self._hooks.after(context)

    # Submitted sends: sent immediately

    def _send_now(self, pending: SubmittedSend) -> bool:
        """Send if nothing has to be waited for."""
        if self._permits is not None:
            if not self._permits.try_acquire(len(pending.messages[0].body)):
                return False
            pending.has_permit = True
        if not self._resolve_now(pending):
            return False
        out, queue = pending.out, pending.queue
        assert out is not None
        assert queue is not None
        address = self._session.broker_address(queue.broker_name)
        if address is None:
            return False
        connection = self._session.connection(address)
        if connection is None:
            return False
        pending.address = address
        if self._has_hooks:
            pending.context = self._hooks.before(pending, address)
        pending.attempts = 1
        try:
            connection.submit(pending, out.code, pending.timeout_ms)
        except RemotingError as error:
            self._first_failed(pending, error)
        return True

    def answered(self, pending: SubmittedSend, outcome: RemotingCommand | RemotingError) -> None:
        """The outcome of the first attempt, if that was made immediately."""
        out, queue = pending.out, pending.queue
        assert out is not None
        assert queue is not None
        if isinstance(outcome, RemotingError):
            self._first_failed(pending, outcome)
            return
        try:
            result = read_result(out, queue, outcome, pending.address)
        except (BrokerError, ProtocolError) as error:
            self._first_failed(pending, error)
            return
        if self._records_health:
            self._targets.record_success(queue, pending.started_ms)
        if pending.context is not None:
            self._hooks.after(pending.context, result=result)
        self._succeed(pending, result)

    def _first_failed(self, pending: SubmittedSend, error: GoddardError) -> None:
        assert pending.queue is not None
        self._targets.record_failure(pending.queue, error, pending.started_ms)
        self._hooks.after(pending.context, error=error)
        pending.failed(error)
        now_ms = self._clock.monotonic_ms()
        may_try = pending.may_try(now_ms)
        if may_try and not self._is_closed and not pending.future.done():
            self._spawn(pending, self._send_with_retries(pending))
            return
        failure = NotRunningError(_STOPPED) if may_try else pending.failure(now_ms)
        if failure is not error:
            failure.__cause__ = error
        self._fail(pending, failure)

    def _succeed(self, pending: SubmittedSend, result: SendResult) -> None:
        if not pending.future.done():
            pending.future.set_result(result)
        self._finish(pending)

    def _fail(self, pending: SubmittedSend, error: BaseException) -> None:
        if not pending.future.done():
            pending.future.set_exception(error)
        self._finish(pending)

    def _finish(self, pending: SubmittedSend) -> None:
        if pending.has_permit and self._permits is not None:
            pending.has_permit = False
            self._permits.release(len(pending.messages[0].body))
        self._end()

    # Submitted sends: sent by a task

    def _spawn(self, pending: SubmittedSend, sending: Coroutine[Any, Any, SendResult]) -> None:
        task = self._loop.create_task(sending, name=f"send to {pending.topic}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._task_done, pending))

    def _task_done(self, pending: SubmittedSend, task: "asyncio.Task[SendResult]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._fail(pending, NotRunningError(_STOPPED))
        elif (error := task.exception()) is not None:
            self._fail(pending, error)
        else:
            self._succeed(pending, task.result())

    async def _send_when_ready(self, pending: SubmittedSend) -> SendResult:
        try:
            # A large body takes longer to prepare than a small one that follows.
            with self._lines.join(pending.topic) as place:
                await self._acquire_permit(pending)
                await self._resolve(pending)
                await place.turn()
            queue = pending.queue
            assert queue is not None
            with self._lines.join(queue) as place:
                # What fails here fails the first attempt too, which another one follows.
                with contextlib.suppress(RemotingError, BrokerNotFoundError):
                    left_ms = max(1, pending.left_ms(self._clock.monotonic_ms()))
                    address = await self._targets.locate(queue, left_ms)
                    left_ms = max(1, pending.left_ms(self._clock.monotonic_ms()))
                    await self._session.connect(address, left_ms)
                await place.turn()
        finally:
            self._waiting -= 1
        return await self._send_with_retries(pending)

    async def _acquire_permit(self, pending: SubmittedSend) -> None:
        if self._permits is not None and not pending.has_permit:
            left_ms = max(1, pending.left_ms(self._clock.monotonic_ms()))
            await self._permits.acquire(len(pending.messages[0].body), left_ms)
            pending.has_permit = True

    # Preparing

    def _resolve_now(self, pending: PendingSend) -> bool:
        """Prepare the message and choose its queue; False if that has to be waited for."""
        if pending.out is not None:
            return pending.queue is not None
        message = pending.messages[0]
        size = len(message.body)
        if size >= _COMPRESS_IN_THREAD_BYTES and size >= self._settings.compress_from_bytes:
            return False
        route = self._session.known_publish_route(pending.topic)
        if route is None:
            return False
        pending.out = self._prepare(message, pending.topic)
        if pending.queue is None:
            pending.queue = self._targets.choose(route, pending)
        return True

    async def _resolve(self, pending: PendingSend) -> None:
        """Prepare the message and choose its queue, as far as that is not done."""
        if pending.out is None:
            pending.out = await self.prepare(pending.messages[0], pending.topic)
        if pending.queue is None:
            left_ms = pending.left_ms(self._clock.monotonic_ms())
            pending.queue = self._targets.choose(
                await self._targets.route(pending.topic, left_ms), pending
            )

    def _prepare(self, message: Message, topic: str) -> Outgoing:
        settings = self._settings
        if PROPERTY_DELAY in message.properties:
            self._warn_of_level(message.delay_level)
        compressed = None
        if len(message.body) >= settings.compress_from_bytes:
            compressed = compress_body(message.body, settings)
        return prepare(message, topic, self._message_id(message), settings, compressed)

    async def prepare(self, message: Message, topic: str) -> Outgoing:
        """Encode a valid message, which gets its id here; a thread compresses large bodies."""
        settings = self._settings
        if len(message.body) < max(_COMPRESS_IN_THREAD_BYTES, settings.compress_from_bytes):
            return self._prepare(message, topic)
        if PROPERTY_DELAY in message.properties:
            self._warn_of_level(message.delay_level)
        compressed = await asyncio.to_thread(compress_body, message.body, settings)
        return prepare(message, topic, self._message_id(message), settings, compressed)

    def _warn_of_level(self, level: int) -> None:
        if level > _MAX_DEFAULT_DELAY_LEVEL and level not in self._warned_levels:
            if len(self._warned_levels) < _MAX_WARNED_LEVELS:
                self._warned_levels.add(level)
            _logger.warning(
                "Delay level %d is higher than %d, the highest of RocketMQ's default "
                "configuration; a broker without this level uses its highest one",
                *(level, _MAX_DEFAULT_DELAY_LEVEL),
            )

    def _message_id(self, message: Message) -> str:
        properties = message.properties
        message_id = properties.get(PROPERTY_UNIQUE_ID)
        if message_id is None:
            message_id = properties[PROPERTY_UNIQUE_ID] = self._session.unique_id()
        return message_id

    def frame(self, pending: PendingSend, opaque: int) -> bytes:
        """The bytes of a send."""
        out, queue = pending.out, pending.queue
        assert out is not None
        assert queue is not None
        born_ms = self._clock.now_ms()
        if self._signs or not has_template(out):
            command = send_command(out, queue, born_ms, self._settings)
            self._session.prepare(command)
            command.opaque = opaque
            return encode_frame(command)
        key = (out.topic, queue)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = FrameTemplate(out.topic, queue, self._settings)
        return template.frame(out, born_ms, opaque)
