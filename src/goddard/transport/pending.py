"""Our pending requests on one connection: assigns opaques, matches responses, handles timeouts.

Belongs to the connection's loop and uses one timer, set for the earliest deadline. The ``done`` of
a request is called once: with its response, at its timeout, or when the connection is lost.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from goddard.errors import ConnectionLostError, RemotingError, RequestTimeoutError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand

_logger: Final = logging.getLogger("goddard.transport")

_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
_MAX_OPAQUE: Final = 2**31 - 1
_TIMER_SLACK_SECONDS: Final = 0.001
# A timer that fires this late, and the time then allowed for reading responses first.
_LATE_SECONDS: Final = 0.1
_CATCH_UP_SECONDS: Final = 0.02
# A peer is silent if it sends nothing during a request with at least this timeout.
_SILENCE_MS: Final = 1_000


class Request(Protocol):
    """A request of the caller, who encodes it and receives its outcome."""

    def encode(self, opaque: int) -> bytes:
        """Its frame; called again with another opaque if the peer shuts down."""
        ...

    def done(self, outcome: RemotingCommand | RemotingError) -> None:
        """Called once, with the response or the error; must not raise."""
        ...


class PendingRequest(NamedTuple):
    """A request without a response yet."""

    request: Request
    due_seconds: float
    code: int
    timeout_ms: int
    may_resend: bool


class PendingRequests:
    """The requests without a response yet.

    ``on_silence`` is called if the peer sent nothing between a request and its timeout.
    ``on_go_away`` receives a request that the peer refused because it shuts down (GO_AWAY), and
    must call its ``done``; without it, that response is an outcome like any other.

    The connection sets ``received_seconds``, the loop's time at which bytes last arrived.
    ``deferred`` are frames that are not sent yet; they are removed with their requests.
    """

    __slots__ = (
        "_catching_up",
        "_due_seconds",
        "_loop",
        "_on_go_away",
        "_on_silence",
        "_opaque",
        "_timer",
        "deferred",
        "received_seconds",
        "remote",
        "waiting",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_silence: Callable[[], None],
        on_go_away: Callable[[PendingRequest], None] | None = None,
    ) -> None:
        self.remote = "unknown"
        self.waiting: dict[int, PendingRequest] = {}
        self.deferred: OrderedDict[int, bytes] = OrderedDict()
        self.received_seconds = -math.inf
        self._loop = loop
        self._on_silence: Callable[[], None] | None = on_silence
        self._on_go_away = on_go_away
        self._opaque = 0
        self._due_seconds = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._catching_up = False

    def next_opaque(self) -> int:
        """The next free opaque (31 bits, wraps)."""
        opaque = self._opaque
        while True:
            opaque = opaque + 1 if opaque < _MAX_OPAQUE else 0
            if opaque not in self.waiting:
                self._opaque = opaque
                return opaque

    def add(
        self, request: Request, code: int, timeout_ms: int, may_resend: bool = True
    ) -> tuple[int, bytes]:
        """Add a request; returns its opaque and its frame. Adds nothing if ``encode`` raises."""
        opaque = self.next_opaque()
        frame = request.encode(opaque)
        due_seconds = self._loop.time() + timeout_ms / 1000
        self.waiting[opaque] = tuple.__new__(
            PendingRequest, (request, due_seconds, code, timeout_ms, may_resend)
        )
        if due_seconds < self._due_seconds:
            self._set_timer(due_seconds)
        return opaque, frame

    def complete(self, response: RemotingCommand) -> None:
        waiting = self.waiting.pop(response.opaque, None)
        if self.deferred:
            self.deferred.pop(response.opaque, None)
        if waiting is None:
            _logger.debug("dropped a response from %s that matches no pending request", self.remote)
        elif response.code == _GO_AWAY and self._on_go_away is not None:
            self._on_go_away(waiting)
        else:
            waiting.request.done(response)

    def forget(self, opaque: int) -> None:
        """Remove a request that its caller gave up; its ``done`` is not called."""
        self.waiting.pop(opaque, None)
        self.deferred.pop(opaque, None)

    def fail(self, reason: str) -> None:
        """Fail all requests, because the connection is lost. No request may be added after this."""
        waiting, self.waiting = self.waiting, {}
        self.deferred.clear()
        self._on_silence = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in waiting.values():
            each.request.done(ConnectionLostError(reason, self.remote))

    def _set_timer(self, due_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_seconds = due_seconds
        self._timer = self._loop.call_at(due_seconds, self._expire)

    def _expire(self) -> None:
        """Fail the requests that are due, and set the timer for the next one."""
        # The timer may fire slightly early: include what is due within that time.
        now = self._loop.time() + _TIMER_SLACK_SECONDS
        if now - self._due_seconds > _LATE_SECONDS and not self._catching_up:
            # The loop was blocked. Read the responses that arrived meanwhile first: event loops run
            # timers before they read sockets.
            self._catching_up = True
            self._set_timer(now + _CATCH_UP_SECONDS)
            return
        self._catching_up = False
        due = [(opaque, each) for opaque, each in self.waiting.items() if each.due_seconds <= now]
        for opaque, _ in due:
            self.forget(opaque)
        self._timer = None
        self._due_seconds = math.inf
        if self.waiting:
            self._set_timer(min(each.due_seconds for each in self.waiting.values()))
        is_silent = False
        for _, waiting in due:
            is_silent = is_silent or self._is_silent_since(waiting)
            text = (
                f"no response from {self.remote} to request code {waiting.code} within "
                f"{waiting.timeout_ms} ms"
            )
            waiting.request.done(RequestTimeoutError(text, self.remote))
        if is_silent and self._on_silence is not None:
            self._on_silence()

    def _is_silent_since(self, waiting: PendingRequest) -> bool:
        sent_seconds = waiting.due_seconds - waiting.timeout_ms / 1000
        # The loop's clock has a resolution of a millisecond: bytes that arrived just before the
        # request may have the same time.
        return (
            waiting.timeout_ms >= _SILENCE_MS
            and self.received_seconds < sent_seconds + _TIMER_SLACK_SECONDS
        )
