"""Sends messages to queues, attempt by attempt, until a broker has them.

``send`` waits for the result; ``submit`` returns a future. A message is sent immediately if its
route, its connection and a permit are ready: then it costs one object and one future, and its
answer is handled when it arrives. Otherwise the caller of ``send``, or a task, waits for what is
missing. Messages are submitted in order; only retries may change it. Belongs to the event loop of
its session.
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
    DEFAULT_REGION,
    Outgoing,
    SendSettings,
    read_result,
    send_command,
)
from goddard.client.produce.frames import SendEncoder
from goddard.client.produce.hooks import SendContext, SendHooks
from goddard.client.produce.options import ProducerOptions
from goddard.client.produce.retry import ATTEMPT_ERRORS, PendingSend, RetryPolicy
from goddard.client.produce.selectors import Selector, check_choice
from goddard.client.produce.targets import Targets
from goddard.client.send_results import SendRequest
from goddard.client.session import Session
from goddard.client.values import MessageQueue, SendMode, SendResult, SendStatus
from goddard.errors import GoddardError, ProtocolError, RemotingError
from goddard.protocol.frame import RemotingCommand
from goddard.transport.ordering import Lines

_logger: Final = logging.getLogger("goddard.client")

_CHOSEN_QUEUE: Final = RetryPolicy()
_STOPPED: Final = "the producer was stopped before the answer came"
_SEND_OK: Final = SendStatus.SEND_OK


class RequestedSend(PendingSend, SendRequest):
    """A send whose first attempt is made immediately; the result is the future's."""

    __slots__ = ("context", "future", "has_permit", "is_finished", "sender")

    context: SendContext | None
    future: "asyncio.Future[SendResult]"
    has_permit: bool
    is_finished: bool
    sender: "Sender"

    def encode(self, opaque: int) -> bytes:
        assert self.out is not None
        assert self.queue is not None
        return self.sender.encoder.frame(self.out, self.queue, opaque)

    def done(self, outcome: RemotingCommand | RemotingError) -> None:
        self.sender.answered(self, outcome)

    def stored(
        self,
        offset_message_id: str,
        queue_id: int,
        queue_offset: int,
        transaction_id: str | None,
        region_id: str | None,
        is_traced: bool,
        recall_handle: str | None,
    ) -> None:
        out, queue = self.out, self.queue
        assert out is not None
        assert queue is not None
        if queue_id != queue.queue_id or out.user_topic != out.topic:
            queue = MessageQueue(out.user_topic, queue.broker_name, queue_id)
        # Faster than SendResult(...).
        result = tuple.__new__(
            SendResult,
            (
                _SEND_OK,
                out.message_id,
                offset_message_id,
                queue,
                queue_offset,
                transaction_id,
                region_id or DEFAULT_REGION,
                is_traced,
                recall_handle,
            ),
        )
        self.sender.succeeded(self, result)


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
        self.encoder = SendEncoder(session, settings)
        self._tasks: set[asyncio.Task[SendResult]] = set()
        self._lines = Lines()
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
        policy = self._policy
        if queue is not None or selector is not None or key is not None:
            queue = check_choice(queue, selector, key, message.topic, topic)
            policy = _CHOSEN_QUEUE
        pending = self._begin(
            policy, SendMode.SYNC, (message,), topic, timeout_ms, queue, selector, key
        )
        return self._send(pending)

    def send_prepared(
        self,
        out: Outgoing,
        messages: Sequence[Message],
        timeout_ms: int,
        queue: MessageQueue | None,
    ) -> Coroutine[Any, Any, SendResult]:
        """Send what is encoded already; ``messages`` are for hooks."""
        policy = self._policy
        if queue is not None:
            queue = check_choice(queue, None, None, out.user_topic, out.topic)
            policy = _CHOSEN_QUEUE
        pending = self._begin(
            policy, SendMode.SYNC, messages, out.topic, timeout_ms, queue, None, None
        )
        pending.out = out
        return self._send(pending)

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
        policy = self._submit_policy
        pending = self._begin(
            policy, SendMode.ASYNC, (message,), topic, timeout_ms, queue, selector, key
        )
        future = pending.future
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

    def _begin(
        self,
        policy: RetryPolicy,
        mode: SendMode,
        messages: Sequence[Message],
        topic: str,
        timeout_ms: int,
        queue: MessageQueue | None,
        selector: Selector | None,
        key: Any,
    ) -> RequestedSend:
        """Begin a send; ``_finish`` must follow."""
        now_ms = self._clock.monotonic_ms()
        pending = RequestedSend(
            policy, mode, messages, topic, now_ms, timeout_ms, queue, selector, key
        )
        pending.sender = self
        pending.future = self._loop.create_future()
        pending.has_permit = pending.is_finished = False
        pending.context = None
        self._in_progress += 1
        return pending

    # Sends that are waited for

    async def _send(self, pending: RequestedSend) -> SendResult:
        """Send and wait. A caller that is cancelled makes no more attempts."""
        try:
            if self._send_now(pending):
                return await pending.future
            await self._resolve(pending)
            return await self._send_with_retries(pending)
        finally:
            self._finish(pending)

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
            encode = partial(self.encoder.frame, out, queue)
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

    def _send_now(self, pending: RequestedSend) -> bool:
        """Send if nothing has to be waited for."""
        if self._permits is not None and pending.mode is SendMode.ASYNC:
            if not self._permits.try_acquire(len(pending.messages[0].body)):
                return False
            pending.has_permit = True
        if not self._resolve_now(pending):
            return False
        out, queue = pending.out, pending.queue
        assert out is not None
        assert queue is not None
        connection = self._session.master_connection(queue.broker_name)
        if connection is None:
            return False
        if self._has_hooks:
            pending.context = self._hooks.before(pending, self._address_of(queue))
        try:
            connection.submit(pending, out.code, pending.begin(pending.started_ms))
        except RemotingError as error:
            self._first_failed(pending, error)
        return True

    def answered(self, pending: RequestedSend, outcome: RemotingCommand | RemotingError) -> None:
        """The outcome of the first attempt, if that was made immediately."""
        out, queue = pending.out, pending.queue
        assert out is not None
        assert queue is not None
        if isinstance(outcome, RemotingError):
            self._first_failed(pending, outcome)
            return
        try:
            result = read_result(out, queue, outcome, self._address_of(queue))
        except (BrokerError, ProtocolError) as error:
            self._first_failed(pending, error)
            return
        self.succeeded(pending, result)

    def _address_of(self, queue: MessageQueue) -> str:
        return self._session.broker_address(queue.broker_name) or ""

    def succeeded(self, pending: RequestedSend, result: SendResult) -> None:
        """The first attempt has a result."""
        if self._records_health:
            assert pending.queue is not None
            self._targets.record_success(pending.queue, pending.started_ms)
        if pending.context is not None:
            self._hooks.after(pending.context, result=result)
        if result.status is SendStatus.SEND_OK or pending.answered(result):
            self._succeed(pending, result)
        else:
            self._try_again(pending)

    def _first_failed(self, pending: RequestedSend, error: GoddardError) -> None:
        assert pending.queue is not None
        self._targets.record_failure(pending.queue, error, pending.started_ms)
        self._hooks.after(pending.context, error=error)
        pending.failed(error)
        self._log_failure(pending, error, pending.started_ms)
        self._try_again(pending)

    def _try_again(self, pending: RequestedSend) -> None:
        """Make the other attempts after the first one, if there are any."""
        now_ms = self._clock.monotonic_ms()
        may_try = pending.may_try(now_ms)
        if may_try and not self._is_closed and not pending.future.done():
            self._spawn(pending, self._send_with_retries(pending))
        elif pending.result is not None:
            self._succeed(pending, pending.result)
        else:
            failure = NotRunningError(_STOPPED) if may_try else pending.failure(now_ms)
            # The broker's own refusal has no other cause.
            failure.__cause__ = pending.error if failure is not pending.error else None
            self._fail(pending, failure)

    def _succeed(self, pending: RequestedSend, result: SendResult) -> None:
        if not pending.future.done():
            pending.future.set_result(result)
        self._finish(pending)

    def _fail(self, pending: RequestedSend, error: BaseException) -> None:
        if not pending.future.done():
            pending.future.set_exception(error)
        self._finish(pending)

    def _finish(self, pending: RequestedSend) -> None:
        if pending.is_finished:
            return
        pending.is_finished = True
        if pending.has_permit and self._permits is not None:
            pending.has_permit = False
            self._permits.release(len(pending.messages[0].body))
        self._end()

    # Submitted sends: sent by a task

    def _spawn(self, pending: RequestedSend, sending: Coroutine[Any, Any, SendResult]) -> None:
        task = self._loop.create_task(sending, name=f"send to {pending.topic}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._task_done, pending))
        # A caller that gives up also gives up the other attempts.
        pending.future.add_done_callback(lambda future: future.cancelled() and task.cancel())

    def _task_done(self, pending: RequestedSend, task: "asyncio.Task[SendResult]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._fail(pending, NotRunningError(_STOPPED))
        elif (error := task.exception()) is not None:
            self._fail(pending, error)
        else:
            self._succeed(pending, task.result())

    async def _send_when_ready(self, pending: RequestedSend) -> SendResult:
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

    async def _acquire_permit(self, pending: RequestedSend) -> None:
        if self._permits is not None and not pending.has_permit:
            left_ms = max(1, pending.left_ms(self._clock.monotonic_ms()))
            await self._permits.acquire(len(pending.messages[0].body), left_ms)
            pending.has_permit = True

    # Preparing

    def _resolve_now(self, pending: PendingSend) -> bool:
        """Prepare the message and choose its queue; False if that has to be waited for."""
        route = self._session.known_publish_route(pending.topic)
        if route is None:
            return False
        if pending.out is None:
            pending.out = self.encoder.prepare_now(pending.messages[0], pending.topic)
            if pending.out is None:
                return False
        if pending.queue is None:
            pending.queue = self._targets.choose(route, pending)
        return True

    async def _resolve(self, pending: PendingSend) -> None:
        """Prepare the message and choose its queue, as far as that is not done."""
        if pending.out is None:
            pending.out = await self.encoder.prepare(pending.messages[0], pending.topic)
        if pending.queue is None:
            left_ms = pending.left_ms(self._clock.monotonic_ms())
            pending.queue = self._targets.choose(
                await self._targets.route(pending.topic, left_ms), pending
            )
