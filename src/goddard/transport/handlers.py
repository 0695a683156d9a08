"""Maps request codes to handlers, and answers or exceptions of handlers to responses.

A handler is a plain function, whose response is sent in the same tick, or a coroutine function,
whose response is sent when it ends. An exception becomes an error response, so a request never
breaks its connection.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from goddard.errors import ProtocolError
from goddard.protocol.codes import CommandFlag, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import ResponseError
from goddard.transport.rules import Gate, OpenGate, Rule

if TYPE_CHECKING:
    from goddard.transport.connection import Connection

_logger: Final = logging.getLogger("goddard.transport")

_ONEWAY: Final = int(CommandFlag.ONEWAY)
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_MAX_REMARK_CHARS: Final = 1000
_FAILED: Final = "handling request code %d of %s failed"

Answer: TypeAlias = RemotingCommand | None
Handler: TypeAlias = Callable[[RemotingCommand, "Connection"], Answer | Awaitable[Answer]]
BeforeHook: TypeAlias = Callable[[RemotingCommand, "Connection"], None]
AfterHook: TypeAlias = Callable[[RemotingCommand, Answer, "Connection"], None]


def error_response(request: RemotingCommand, error: Exception) -> RemotingCommand:
    """The response for an exception."""
    if isinstance(error, ResponseError):
        return request.reply(error.code, error.remark)
    text = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {error}"
    return request.reply(ResponseCode.SYSTEM_ERROR, text[:_MAX_REMARK_CHARS])


def _unsupported(request: RemotingCommand, connection: "Connection") -> RemotingCommand:
    # The leading space is RocketMQ's; some clients match on the text.
    remark = f" request type {request.code} not supported"
    return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


class Handlers:
    """The handlers of one end. Register all of them before the first connection.

    ``gate`` is asked before each handler.
    """

    __slots__ = ("_after", "_before", "_fallback", "_gate", "_table")

    def __init__(self, gate: Gate | None = None) -> None:
        self._gate: Gate = OpenGate() if gate is None else gate
        self._table: dict[int, tuple[Handler, Rule]] = {}
        self._fallback: Handler = _unsupported
        self._before: list[BeforeHook] = []
        self._after: list[AfterHook] = []

    def register(self, code: int, handler: Handler, rule: Rule) -> None:
        if code in self._table:
            raise ValueError(f"request code {code} already has a handler")
        self._table[code] = handler, rule

    def set_fallback(self, handler: Handler) -> None:
        """Set the handler of codes without one; by default they are answered "not supported"."""
        self._fallback = handler

    def add_hook(self, before: BeforeHook | None = None, after: AfterHook | None = None) -> None:
        """Call ``before(request, connection)`` and ``after(request, answer, connection)``.

        Hooks run in the order added. An exception of ``before`` is answered like one of the
        handler, which is then not called. ``after`` also sees error responses; its ``answer`` is
        None if the handler returned None (a one-way request, or one that ``respond`` answers
        later).
        """
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)

    def handle(
        self, request: RemotingCommand, connection: "Connection"
    ) -> Answer | Coroutine[Any, Any, Answer]:
        """The response to send, None, or a coroutine that returns either. Never raises."""
        answer: Answer | Awaitable[Answer]
        try:
            for before in self._before:
                before(request, connection)
            registered = self._table.get(request.code)
            if registered is None:
                answer = self._fallback(request, connection)
            else:
                handler, rule = registered
                answer = self._gate.refusal(request, rule, connection)
                if answer is None:
                    answer = handler(request, connection)
        except (ResponseError, ProtocolError) as error:
            answer = error_response(request, error)
        except Exception as error:
            _logger.exception(_FAILED, request.code, connection.remote)
            answer = error_response(request, error)
        if answer is None or isinstance(answer, RemotingCommand):
            return self._finish(request, answer, connection)
        return self._await(request, answer, connection)

    async def _await(
        self, request: RemotingCommand, pending: Awaitable[Answer], connection: "Connection"
    ) -> Answer:
        try:
            answer = await pending
        except (ResponseError, ProtocolError) as error:
            answer = error_response(request, error)
        except Exception as error:
            _logger.exception(_FAILED, request.code, connection.remote)
            answer = error_response(request, error)
        return self._finish(request, answer, connection)

    def _finish(self, request: RemotingCommand, answer: Answer, connection: "Connection") -> Answer:
        if self._after:
            try:
                for after in self._after:
                    after(request, answer, connection)
            except (ResponseError, ProtocolError) as error:
                answer = error_response(request, error)
            except Exception as error:
                _logger.exception(_FAILED, request.code, connection.remote)
                answer = error_response(request, error)
        if answer is None or request.flag & _ONEWAY:
            return None
        # Always set here, so that a handler may return one prepared response many times.
        answer.opaque = request.opaque
        answer.flag |= _RESPONSE
        answer.serialize_type = request.serialize_type
        return answer
