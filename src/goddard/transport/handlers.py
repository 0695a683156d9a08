"""Request code → handler, and what becomes of a handler's answer or exception.

A handler is a plain function, answered in the same tick, or a coroutine function, answered when it
ends. Whatever it raises becomes an answer, so that no request can take a connection down.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from goddard.errors import ProtocolError
from goddard.protocol.codes import CommandFlag, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import ResponseError

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


def refusal(request: RemotingCommand, error: Exception) -> RemotingCommand:
    """The answer that an exception stands for."""
    if isinstance(error, ResponseError):
        return request.reply(error.code, error.remark)
    text = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {error}"
    return request.reply(ResponseCode.SYSTEM_ERROR, text[:_MAX_REMARK_CHARS])


def _unsupported(request: RemotingCommand, connection: "Connection") -> RemotingCommand:
    # The leading space is RocketMQ's; clients have been seen to match on the text.
    remark = f" request type {request.code} not supported"
    return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


class Handlers:
    """The requests that one end answers. Filled before the first connection, then only read."""

    __slots__ = ("_after", "_before", "_fallback", "_table")

    def __init__(self) -> None:
        self._table: dict[int, Handler] = {}
        self._fallback: Handler = _unsupported
        self._before: list[BeforeHook] = []
        self._after: list[AfterHook] = []

    def register(self, code: int, handler: Handler) -> None:
        if code in self._table:
            raise ValueError(f"request code {code} already has a handler")
        self._table[code] = handler

    def set_fallback(self, handler: Handler) -> None:
        """Handle every code without a handler of its own, instead of answering "not supported"."""
        self._fallback = handler

    def add_hook(self, before: BeforeHook | None = None, after: AfterHook | None = None) -> None:
        """Call ``before(request, connection)`` and ``after(request, answer, connection)``.

        Hooks run in the order added. What ``before`` raises is answered like a handler's exception
        and the handler is not called. ``after`` also sees refusals; its ``answer`` is None when
        the handler gave none (a one-way request, or one that is answered later by ``respond``).
        """
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)

    def handle(
        self, request: RemotingCommand, connection: "Connection"
    ) -> Answer | Coroutine[Any, Any, Answer]:
        """The answer to send, None for none, or a coroutine that gives either. Never raises."""
        try:
            for before in self._before:
                before(request, connection)
            answer = self._table.get(request.code, self._fallback)(request, connection)
        except (ResponseError, ProtocolError) as error:
            answer = refusal(request, error)
        except Exception as error:
            _logger.exception(_FAILED, request.code, connection.remote)
            answer = refusal(request, error)
        if answer is None or isinstance(answer, RemotingCommand):
            return self._finish(request, answer, connection)
        return self._await(request, answer, connection)

    async def _await(
        self, request: RemotingCommand, pending: Awaitable[Answer], connection: "Connection"
    ) -> Answer:
        try:
            answer = await pending
        except (ResponseError, ProtocolError) as error:
            answer = refusal(request, error)
        except Exception as error:
            _logger.exception(_FAILED, request.code, connection.remote)
            answer = refusal(request, error)
        return self._finish(request, answer, connection)

    def _finish(self, request: RemotingCommand, answer: Answer, connection: "Connection") -> Answer:
        if self._after:
            try:
                for after in self._after:
                    after(request, answer, connection)
            except (ResponseError, ProtocolError) as error:
                answer = refusal(request, error)
            except Exception as error:
                _logger.exception(_FAILED, request.code, connection.remote)
                answer = refusal(request, error)
        if answer is None or request.flag & _ONEWAY:
            return None
        # Set here and not trusted, so that a handler may hand out one prepared answer many times.
        answer.opaque = request.opaque
        answer.flag |= _RESPONSE
        answer.serialize_type = request.serialize_type
        return answer
