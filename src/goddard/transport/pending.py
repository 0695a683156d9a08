"""Our own requests on one connection: numbered, matched with their responses, given up in time.

Belongs to the connection's loop, of which it asks one timer, set for whichever request is due
first. The ``done`` of a request is called once: with its response, when its time is over, or when
the connection is lost.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from goddard.errors import ConnectionLostError, RemotingError, RequestTimeoutError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand

_logger: Final = logging.getLogger("goddard.transport")

_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
_MAX_OPAQUE: Final = 2**31 - 1
_TIMER_SLACK_SECONDS: Final = 0.001
# A timer that rings this much too late, and how long what has come meanwhile may take.
_LATE_SECONDS: Final = 0.1
_CATCH_UP_SECONDS: Final = 0.02
# A peer that says nothing for the whole time of a request at least this patient is silent.
_SILENCE_MS: Final = 1_000

Done: TypeAlias = Callable[[RemotingCommand | RemotingError], None]
"""Takes the outcome of a request: its response, or why there is none."""


class Waiting(NamedTuple):
    """A request without a response yet; ``encode`` is None if it must not be sent again."""

    done: Done
    encode: Callable[[int], bytes] | None
    due_seconds: float
    code: int
    timeout_ms: int


class PendingRequests:
    """The requests that wait for the peer. ``on_silence``: it said nothing since one that is due.

    ``on_go_away`` takes a request that the peer refused because it shuts down (GO_AWAY), and sees
    to its ``done``. Without it, that response is an outcome like any other.

    Whoever reads from the peer sets ``heard_seconds``, the loop's time at which it last did.
    ``deferred`` are frames that wait for their turn to be sent; they go with their requests.
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
        "heard_seconds",
        "remote",
        "waiting",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_silence: Callable[[], None],
        on_go_away: Callable[[Waiting], None] | None = None,
    ) -> None:
        self.remote = "unknown"
        self.waiting: dict[int, Waiting] = {}
        self.deferred: OrderedDict[int, bytes] = OrderedDict()
        self.heard_seconds = -math.inf
        self._loop = loop
        self._on_silence: Callable[[], None] | None = on_silence
        self._on_go_away = on_go_away
        self._opaque = 0
        self._due_seconds = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._catching_up = False

    def next_opaque(self) -> int:
        """A number of 31 bits that no request which still waits has; they begin anew one day."""
        opaque = self._opaque
        while True:
            opaque = opaque + 1 if opaque < _MAX_OPAQUE else 0
            if opaque not in self.waiting:
                self._opaque = opaque
                return opaque

    def add(
        self,
        encode: Callable[[int], bytes],
        code: int,
        timeout_ms: int,
        done: Done,
        may_resend: bool = True,
    ) -> tuple[int, bytes]:
        """Number a request; its opaque and its frame. What ``encode`` raises leaves nothing."""
        opaque = self.next_opaque()
        frame = encode(opaque)
        due_seconds = self._loop.time() + timeout_ms / 1000
        self.waiting[opaque] = Waiting(
            done, encode if may_resend else None, due_seconds, code, timeout_ms
        )
        if due_seconds < self._due_seconds:
            self._set_timer(due_seconds)
        return opaque, frame

    def complete(self, response: RemotingCommand) -> None:
        waiting = self.waiting.pop(response.opaque, None)
        if self.deferred:
            self.deferred.pop(response.opaque, None)
        if waiting is None:
            _logger.debug("a response from %s that nobody waits for, dropped", self.remote)
        elif response.code == _GO_AWAY and self._on_go_away is not None:
            self._on_go_away(waiting)
        else:
            waiting.done(response)

    def forget(self, opaque: int) -> None:
        """Whoever asked gave up; its ``done`` is not called."""
        self.waiting.pop(opaque, None)
        self.deferred.pop(opaque, None)

    def fail(self, reason: str) -> None:
        """The connection is lost, and with it whatever waits; there will be no more."""
        waiting, self.waiting = self.waiting, {}
        self.deferred.clear()
        self._on_silence = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in waiting.values():
            each.done(ConnectionLostError(reason, self.remote))

    def _set_timer(self, due_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_seconds = due_seconds
        self._timer = self._loop.call_at(due_seconds, self._expire)

    def _expire(self) -> None:
        """Give up what is due, and come back for the next."""
        # The timer may ring a little early; what is due within that time is due.
        now = self._loop.time() + _TIMER_SLACK_SECONDS
        if now - self._due_seconds > _LATE_SECONDS and not self._catching_up:
            # This process stood still. What the peer has answered meanwhile is read first: loops
            # see to their timers before their sockets.
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
            waiting.done(RequestTimeoutError(text, self.remote))
        if is_silent and self._on_silence is not None:
            self._on_silence()

    def _is_silent_since(self, waiting: Waiting) -> bool:
        asked_seconds = waiting.due_seconds - waiting.timeout_ms / 1000
        # The loop's time may stand still for a millisecond: what was heard just before the request
        # has the same time as it.
        return (
            waiting.timeout_ms >= _SILENCE_MS
            and self.heard_seconds < asked_seconds + _TIMER_SLACK_SECONDS
        )
