"""The lane of plain pulls: from the bytes of a frame to the response, by compiled code.

Only where ``goddard.core`` is compiled. Whether a pull is admitted, and what it gets, is decided
by ``goddard.broker.consuming.pull``, as for every other pull. Belongs to the loop.
"""

from typing import Final

from goddard.broker.consuming.pull import PULL, Pulls
from goddard.broker.consuming.pull_call import PullCall
from goddard.broker.rules import RULES
from goddard.core.pulls import read_pull
from goddard.protocol.codes import SerializeType
from goddard.transport.connection import Connection
from goddard.transport.rules import Gate

_RULE: Final = RULES[PULL]  # LITE_PULL has the same


class PullLane:
    """Serves the plain pulls of a chunk of frames; never one behind a frame that it leaves."""

    __slots__ = ("_gate", "_pulls")

    def __init__(self, pulls: Pulls, gate: Gate) -> None:
        self._pulls = pulls
        self._gate = gate

    def take(self, connection: Connection, frames: list[memoryview], start: int) -> int:
        """Serve plain pulls from ``frames[start]`` on; returns the index of the first other."""
        if self._gate.room(_RULE) < len(frames) - start:
            return start
        for number in range(start, len(frames)):
            pull = None if connection.is_paused else read_pull(frames[number])
            if pull is None:
                return number
            kind = SerializeType.JSON if pull.is_json else SerializeType.ROCKETMQ
            call = PullCall(pull.code, pull.opaque, kind, pull, connection, is_plain=True)
            self._pulls.serve(call, can_suspend=True)
        return len(frames)
