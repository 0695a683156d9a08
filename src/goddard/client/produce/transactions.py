"""Messages that are delivered if, and only if, the application's own transaction succeeds.

A message is first sent as a *half*, which no consumer sees. Then the listener's ``execute`` does
the local work and says what becomes of it. If that word does not reach the broker, because the
process died or nobody knew, the broker asks the producers of the group later (check-back), and
``check`` has to find out. The word is one-way: a lost one only means being asked.

Coroutine listeners run on the loop, plain ones in threads. Checks wait in a queue of limited
length; what does not fit is dropped, since the broker asks again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, Unpack

from goddard.client import broker_api
from goddard.client.checks import check_hooks
from goddard.client.errors import BrokerNotFoundError, NotRunningError
from goddard.client.listeners.listener import is_async
from goddard.client.message import Message, ReceivedMessage
from goddard.client.options import check_range
from goddard.client.produce.producer import Producer, ProducerKeywords
from goddard.client.produce.transaction_hooks import (
    EndTransactionContext,
    EndTransactionHook,
    TransactionState,
    call_end_hooks,
)
from goddard.client.trace.hooks import TransactionTracing
from goddard.client.values import SendResult, SendStatus
from goddard.client.workers import Threads, Worker
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.headers_message import CheckTransactionRequest, EndTransactionRequest
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.message import (
    PROPERTY_DELAY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED,
    TransactionType,
)
from goddard.transport.tasks import Tasks, finish

__all__ = ("TransactionListener", "TransactionProducer", "TransactionResult", "TransactionState")

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
        """Do the local work that belongs to the message; called when its half is stored.

        ``argument`` is what was given to ``send_in_transaction``.
        """

    def check(self, message: ReceivedMessage) -> Decision | Awaitable[Decision]:
        """Find out what became of the local work, perhaps of another process of the group."""


class TransactionResult(NamedTuple):
    """Where the half message went, and what was decided about it."""

    sent: SendResult
    state: TransactionState

    @property
    def message_id(self) -> str:
        return self.sent.message_id


def decided(outcome: object) -> TransactionState:
    """What a listener's return value means."""
    if isinstance(outcome, TransactionState):
        return outcome
    if outcome is not None:
        _logger.error(
            "a transaction listener returned %.200r, which is no TransactionState; the broker will "
            "ask again",
            outcome,
        )
    return TransactionState.UNKNOWN


class _Call:
    """A plain listener's method, to be called in a thread."""

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
            _logger.debug("a transaction listener raised", exc_info=True)
            self._error = error

    def give_up(self) -> None:
        if not self.future.done():
            text = "the producer was stopped before its transaction listener was done"
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
        self._listener = listener
        self._check_threads = check_range("check_threads", check_threads, 1, _MAX_THREADS)
        self._execute_threads = check_range("execute_threads", execute_threads, 1, _MAX_THREADS)
        self._max_waiting_checks = check_range("max_waiting_checks", max_waiting_checks, 1)
        self._end_hooks = list(check_hooks("end_hooks", end_hooks))
        self._checks = Tasks(_logger, logging.DEBUG)
        self._check_slots = asyncio.Semaphore(check_threads)
        self._pools: dict[str, Threads[_Call]] = {}
        self._calls_listener = True
        self._calls: set[_Call] = set()

    async def start(self) -> None:
        await super().start()
        if self.tracer is not None:
            self._end_hooks.append(TransactionTracing(self.tracer, self.session))

    async def stop(self) -> None:
        """Stop. What listeners have not decided yet is left to the other producers of the group."""
        await finish(self._checks.stop, self._leave_listener, super().stop)

    async def _leave_listener(self) -> None:
        self._calls_listener = False
        pools, self._pools = self._pools, {}
        try:
            for pool in pools.values():
                await pool.close(0)
        finally:
            for call in self._calls:
                call.give_up()

    async def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send a half message, run ``execute``, and tell the broker what it decided.

        A half that is not stored safely (any status but SEND_OK) is rolled back unexecuted. Raises
        what ``send`` raises if there is no half message; ``execute`` was not called then.
        """
        sent = await self.send_half(message, timeout_ms=timeout_ms)
        state = TransactionState.ROLLBACK
        failure: Exception | None = None
        if sent.status is SendStatus.SEND_OK:
            try:
                execute = partial(self._listener.execute, message, argument)
                state = decided(await self._call("execute", execute, self._execute_threads))
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
        """The first half of ``send_in_transaction``, for those who do the local work themselves.

        ``end_transaction`` has to follow; without it the broker asks ``check``.
        """
        properties = message.properties
        # A half is delivered when it is committed, not after a while.
        properties.pop(PROPERTY_DELAY, None)
        properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        properties[PROPERTY_PRODUCER_GROUP] = self.wire_group
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
        """Tell the broker what was decided about a half. What fails is logged: it will ask."""
        broker_name = sent.queue.broker_name
        try:
            session = self.session
            address = session.broker_address(broker_name)
            if address is None:
                raise BrokerNotFoundError(broker_name)
            _, physical_offset = parse_offset_message_id(sent.offset_message_id)
            header = EndTransactionRequest(
                topic=session.with_namespace(message.topic),
                producer_group=self.wire_group,
                tran_state_table_offset=sent.queue_offset,
                commit_log_offset=physical_offset,
                commit_or_rollback=_FLAGS[state],
                msg_id=sent.message_id,
                transaction_id=sent.transaction_id,
                bname=broker_name,
            )
            self._tell_hooks(message, header, address, state)
            remark = _remark("executeLocalTransactionBranch exception", failure)
            await broker_api.end_transaction_oneway(session, address, header, remark=remark)
        except GoddardError as error:
            _logger.warning(
                "local transaction execute %s, but end broker transaction failed: %s",
                state.value,
                error,
            )

    async def check_transaction(
        self, message: ReceivedMessage, header: CheckTransactionRequest, address: str
    ) -> None:
        """A broker asks about a half message; the answer is a request of its own."""
        if len(self._checks) >= self._max_waiting_checks:
            _logger.warning(
                "%d transaction checks wait already; one of %s is dropped, the broker asks again",
                len(self._checks),
                message.topic,
            )
            return
        # Not this connection's task: what is decided counts even if the connection is lost.
        self._checks.spawn(self._answer(message, header, address), f"check of {message.message_id}")

    async def _answer(
        self, message: ReceivedMessage, header: CheckTransactionRequest, address: str
    ) -> None:
        failure: Exception | None = None
        async with self._check_slots:
            try:
                check = partial(self._listener.check, message)
                state = decided(await self._call("check", check, self._check_threads))
            except Exception as error:
                _logger.exception(
                    "Broker call checkTransactionState, but checkLocalTransactionState exception"
                )
                state, failure = TransactionState.UNKNOWN, error
        if state is not TransactionState.COMMIT:
            _logger.info("when broker check, client answers %s: %r", state.value, message)
        ending = EndTransactionRequest(
            topic=header.topic,
            producer_group=self.wire_group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=_FLAGS[state],
            from_transaction_check=True,
            msg_id=message.message_id,
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        self._tell_hooks(message, ending, address, state)
        try:
            remark = _remark("checkLocalTransactionState Exception", failure)
            await broker_api.end_transaction_oneway(self.session, address, ending, remark=remark)
        except GoddardError as error:
            _logger.warning("endTransactionOneway exception: %s", error)

    def _tell_hooks(
        self,
        message: Message | ReceivedMessage,
        header: EndTransactionRequest,
        address: str,
        state: TransactionState,
    ) -> None:
        if self._end_hooks:
            context = EndTransactionContext(
                group=header.producer_group,
                message=message,
                message_id=header.msg_id,
                transaction_id=header.transaction_id,
                state=state,
                broker_address=address,
                is_from_check=header.from_transaction_check,
            )
            call_end_hooks(self._end_hooks, context)

    async def _call(
        self, kind: str, method: "partial[Decision | Awaitable[Decision]]", threads: int
    ) -> object:
        """Call the listener, on the loop or in a thread of the pool of its kind.

        NotRunningError once the producer is being stopped: a pool made now would never be closed.
        """
        if not self._calls_listener:
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
                max_threads=threads,
                clock=self.session.clock,
            )
        call = _Call(method)
        self._calls.add(call)
        try:
            pool.submit([call])
            return await call.future
        finally:
            self._calls.discard(call)


def _remark(text: str, failure: Exception | None) -> str | None:
    if failure is None:
        return None
    return f"{text}: {type(failure).__name__}: {failure}"[:_MAX_REMARK_CHARS]
