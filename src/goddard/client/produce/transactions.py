"""Messages that are delivered if, and only if, the application's own transaction succeeds.

A message is first sent as a *half*, which no consumer receives. Then the listener's ``execute``
does the local work and decides whether the half is committed. If the decision does not reach the
broker, because the process died or the state was not known, the broker later asks a producer of the
group (check-back), and ``check`` must find out. Decisions are one-way requests: after a lost one
the broker asks again.

Coroutine listeners run on the loop, others in threads. The number of checks that wait is limited;
checks beyond it are dropped, because the broker asks again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, Unpack

from goddard.client import broker_api
from goddard.client.checks import check_hooks, check_range
from goddard.client.errors import BrokerNotFoundError, NotRunningError
from goddard.client.listeners.listener import is_async
from goddard.client.listeners.workers import Threads, Worker
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.hooks import (
    EndTransactionContext,
    EndTransactionHook,
    call_end_hooks,
)
from goddard.client.produce.options import ProducerKeywords
from goddard.client.produce.producer import Producer
from goddard.client.produce.running import RunningProducer
from goddard.client.session import Session
from goddard.client.trace.hooks import TransactionTracing
from goddard.client.values import SendResult, SendStatus, TransactionState
from goddard.environment import Environment
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.headers.message import CheckTransactionRequest, EndTransactionRequest
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.message import (
    PROPERTY_DELAY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    TransactionType,
)
from goddard.transport.tasks import Tasks, finish

__all__ = ("TransactionListener", "TransactionProducer", "TransactionResult")

_logger: Final = logging.getLogger("goddard.client")

_MAX_REMARK_CHARS: Final = 500
_MAX_THREADS: Final = 1_000
_FLAGS: Final = {
    TransactionState.COMMIT: TransactionType.COMMIT,
    TransactionState.ROLLBACK: TransactionType.ROLLBACK,
    TransactionState.UNKNOWN: TransactionType.NONE,
}

Decision: TypeAlias = TransactionState | None


class TransactionListener(Protocol):
    """The application's side of transactions. Both methods may be coroutine functions.

    None counts as UNKNOWN, and so does an exception.
    """

    def execute(self, message: Message, argument: Any) -> Decision | Awaitable[Decision]:
        """Do the local work that belongs to the message. Called when its half is stored.

        ``argument`` is what was given to ``send_in_transaction``.
        """

    def check(self, message: ReceivedMessage) -> Decision | Awaitable[Decision]:
        """Determine the state of the transaction, possibly of another process of the group."""


class TransactionResult(NamedTuple):
    """Where the half message is stored, and what was decided about it."""

    sent: SendResult
    state: TransactionState

    @property
    def message_id(self) -> str:
        return self.sent.message_id


def state_of(outcome: object) -> TransactionState:
    """The decision that a listener's return value stands for."""
    if isinstance(outcome, TransactionState):
        return outcome
    if outcome is not None:
        _logger.error(
            "A transaction listener returned %.200r, which is not a TransactionState; the broker "
            "will ask again",
            outcome,
        )
    return TransactionState.UNKNOWN


class _Call:
    """A call of a listener's method in a thread."""

    __slots__ = ("_error", "_function", "_result", "future")

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._result: object = None
        self._error: Exception | None = None
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def run(self, worker: Worker["_Call"]) -> None:
        try:
            self._result = self._function()
        except Exception as error:
            _logger.debug("a transaction listener raised an exception", exc_info=True)
            self._error = error

    def give_up(self) -> None:
        if not self.future.done():
            text = "the producer was stopped before its transaction listener returned"
            self.future.set_exception(NotRunningError(text))

    def finish(self) -> None:
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)


def _finish(done: list[_Call]) -> None:
    for call in done:
        call.finish()


class ListenerCalls:
    """Calls a transaction listener, on the loop or in threads; ``execute`` and ``check`` each have
    their own threads."""

    def __init__(
        self, listener: TransactionListener, *, execute_threads: int, check_threads: int
    ) -> None:
        self._listener = listener
        self._max_threads = {"execute": execute_threads, "check": check_threads}
        self._pools: dict[str, Threads[_Call]] = {}
        self._calls: set[_Call] = set()
        self._is_closed = False

    async def execute(
        self, message: Message, argument: Any, environment: Environment
    ) -> TransactionState:
        call = partial(self._listener.execute, message, argument)
        return state_of(await self._call("execute", call, environment))

    async def check(self, message: ReceivedMessage, environment: Environment) -> TransactionState:
        call = partial(self._listener.check, message)
        return state_of(await self._call("check", call, environment))

    async def close(self) -> None:
        """Make no more calls; fail those that do not return at once."""
        self._is_closed = True
        try:
            for pool in self._pools.values():
                await pool.close(0)
        finally:
            for call in self._calls:
                call.give_up()

    async def _call(
        self, kind: str, method: "partial[Decision | Awaitable[Decision]]", environment: Environment
    ) -> object:
        if self._is_closed:
            raise NotRunningError("the producer was stopped before its listener was called")
        if is_async(method):
            outcome = method()
            return await outcome if isinstance(outcome, Awaitable) else outcome
        pool = self._pools.get(kind)
        if pool is None:
            pool = self._pools[kind] = Threads(
                f"goddard-{kind}",
                _Call.run,
                _finish,
                max_threads=self._max_threads[kind],
                environment=environment,
            )
        call = _Call(method)
        self._calls.add(call)
        try:
            pool.submit([call])
            return await call.future
        finally:
            self._calls.discard(call)


class TransactionChecks:
    """Answers brokers that ask about half messages, so many at a time."""

    def __init__(
        self,
        calls: ListenerCalls,
        end_hooks: list[EndTransactionHook],
        *,
        max_running: int,
        max_waiting: int,
    ) -> None:
        self._calls = calls
        self._end_hooks = end_hooks
        self._max_waiting = max_waiting
        self._slots = asyncio.Semaphore(max_running)
        self._tasks = Tasks(_logger, logging.DEBUG)

    async def stop(self) -> None:
        await self._tasks.stop()

    def submit(
        self,
        session: Session,
        message: ReceivedMessage,
        header: CheckTransactionRequest,
        address: str,
    ) -> None:
        """Check a half message. Send the answer to the broker as a separate request."""
        if len(self._tasks) >= self._max_waiting:
            _logger.warning(
                "%d transaction checks already wait; a check of topic %s is dropped, the broker "
                "asks again",
                len(self._tasks),
                message.topic,
            )
            return
        # Not a task of the connection: the answer counts even if the connection is lost.
        self._tasks.spawn(
            self._answer(session, message, header, address), f"check of {message.message_id}"
        )

    async def _answer(
        self,
        session: Session,
        message: ReceivedMessage,
        header: CheckTransactionRequest,
        address: str,
    ) -> None:
        failure: Exception | None = None
        async with self._slots:
            try:
                state = await self._calls.check(message, session.environment)
            except Exception as error:
                _logger.exception(
                    "Broker call checkTransactionState, but checkLocalTransactionState exception"
                )
                state, failure = TransactionState.UNKNOWN, error
        if state is not TransactionState.COMMIT:
            _logger.info("when broker check, client answers %s: %r", state.value, message)
        ending = EndTransactionRequest(
            topic=header.topic,
            producer_group=message.get(PROPERTY_PRODUCER_GROUP) or "",
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=_FLAGS[state],
            from_transaction_check=True,
            msg_id=message.message_id,
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        _call_hooks(self._end_hooks, message, ending, address, state)
        try:
            remark = _remark("checkLocalTransactionState Exception", failure)
            await broker_api.end_transaction_oneway(session, address, ending, remark=remark)
        except GoddardError as error:
            _logger.warning("endTransactionOneway exception: %s", error)


class TransactionProducer(Producer):
    """A producer of messages that belong to local transactions.

    ``check_threads`` checks run at a time and ``max_waiting_checks`` wait for their turn;
    ``execute_threads`` is how many plain ``execute`` methods run at a time.
    """

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
        super().__init__(group, name_servers=name_servers, **options)
        for name in ("execute", "check"):
            if not callable(getattr(listener, name, None)):
                raise ConfigError(f"the transaction listener has no method {name!r}")
        check_range("check_threads", check_threads, 1, _MAX_THREADS)
        check_range("execute_threads", execute_threads, 1, _MAX_THREADS)
        check_range("max_waiting_checks", max_waiting_checks, 1)
        self._own_end_hooks: Sequence[EndTransactionHook] = check_hooks(
            "end_hooks", end_hooks, "end_transaction"
        )
        # They and the tracing; the checks have the same list.
        self._end_hooks = list(self._own_end_hooks)
        self._calls = ListenerCalls(
            listener, execute_threads=execute_threads, check_threads=check_threads
        )
        self._checks = TransactionChecks(
            self._calls,
            self._end_hooks,
            max_running=check_threads,
            max_waiting=max_waiting_checks,
        )
        self._on_check = self._checks.submit

    async def _start_running(self, running: RunningProducer) -> None:
        # Before the start: brokers may ask for checks as soon as the session knows the producer.
        self._end_hooks[:] = self._own_end_hooks
        if running.tracer is not None:
            self._end_hooks.append(TransactionTracing(running.tracer, running.session))
        try:
            await super()._start_running(running)
        except BaseException:
            # Otherwise no check has come, and the producer may be started again.
            if running.is_member:
                await finish(self._checks.stop, self._calls.close)
            raise

    async def stop(self) -> None:
        """Stop. Half messages without a decision are left to the other producers of the group."""
        await finish(self._checks.stop, self._calls.close, super().stop)

    async def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send a half message, call ``execute``, and send its decision to the broker.

        A half that is not stored safely (any status but SEND_OK) is rolled back without calling
        ``execute``. If the half cannot be sent, this raises what ``send`` raises, and ``execute``
        is not called.
        """
        sent = await self.send_half(message, timeout_ms=timeout_ms)
        state = TransactionState.ROLLBACK
        failure: Exception | None = None
        if sent.status is SendStatus.SEND_OK:
            try:
                state = await self._calls.execute(message, argument, self._environment)
            except Exception as error:
                _logger.exception(
                    "executeLocalTransactionBranch exception, messageTopic: %s transactionId: %s",
                    message.topic,
                    message.transaction_id,
                )
                state, failure = TransactionState.UNKNOWN, error
        await self.end_transaction(message, sent, state, failure)
        return TransactionResult(sent, state)

    async def send_half(self, message: Message, *, timeout_ms: int | None = None) -> SendResult:
        """Send only the half message, for callers that do the local work themselves.

        Call ``end_transaction`` afterwards; without it the broker asks ``check``.
        """
        running = self._check_running()
        properties = message.properties
        # A half is delivered when it is committed, not after a delay.
        properties.pop(PROPERTY_DELAY, None)
        properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        properties[PROPERTY_PRODUCER_GROUP] = running.group
        sent = await self.send(message, timeout_ms=timeout_ms)
        if sent.transaction_id is not None:
            properties[PROPERTY_TRANSACTION_ID] = sent.transaction_id
        message.transaction_id = sent.message_id
        return sent

    async def end_transaction(
        self,
        message: Message,
        sent: SendResult,
        state: TransactionState,
        failure: Exception | None = None,
    ) -> None:
        """Send the decision about a half. A failure is logged: the broker asks later."""
        broker_name = sent.queue.broker_name
        try:
            running = self._check_running()
            session = running.session
            address = session.broker_address(broker_name)
            if address is None:
                raise BrokerNotFoundError(broker_name)
            _, physical_offset = parse_offset_message_id(sent.offset_message_id)
            header = EndTransactionRequest(
                topic=session.with_namespace(message.topic),
                producer_group=running.group,
                tran_state_table_offset=sent.queue_offset,
                commit_log_offset=physical_offset,
                commit_or_rollback=_FLAGS[state],
                msg_id=sent.message_id,
                transaction_id=sent.transaction_id,
                bname=broker_name,
            )
            _call_hooks(self._end_hooks, message, header, address, state)
            remark = _remark("executeLocalTransactionBranch exception", failure)
            await broker_api.end_transaction_oneway(session, address, header, remark=remark)
        except GoddardError as error:
            _logger.warning(
                "local transaction execute %s, but end broker transaction failed: %s",
                state.value,
                error,
            )


def _call_hooks(
    hooks: Sequence[EndTransactionHook],
    message: Message | ReceivedMessage,
    header: EndTransactionRequest,
    address: str,
    state: TransactionState,
) -> None:
    if hooks:
        context = EndTransactionContext(
            group=header.producer_group,
            message=message,
            message_id=header.msg_id,
            transaction_id=header.transaction_id,
            state=state,
            broker_address=address,
            is_from_check=header.from_transaction_check,
        )
        call_end_hooks(hooks, context)


def _remark(text: str, failure: Exception | None) -> str | None:
    if failure is None:
        return None
    return f"{text}: {type(failure).__name__}: {failure}"[:_MAX_REMARK_CHARS]
