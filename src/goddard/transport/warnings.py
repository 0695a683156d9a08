"""Warnings that peers cause: a bounded number a second, then only how many there were.

A scanner or a broken client can open connections faster than anyone reads a log; what it does must
neither fill the disk nor hide other lines. Belongs to the loop of its server.
"""

import logging
from typing import Final

from goddard.clock import Clock

_PER_SECOND: Final = 10
_SECOND_MS: Final = 1000


class LimitedWarnings:
    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._written = 0
        self._withheld = 0

    def warn(self, text: str, *arguments: object) -> None:
        self.settle()
        if self._written < _PER_SECOND:
            self._written += 1
            self._logger.warning(text, *arguments)
        else:
            self._withheld += 1

    def settle(self) -> None:
        """Once the second is over, tell how many warnings it had beyond those written."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._began_ms < _SECOND_MS:
            return
        withheld, self._withheld = self._withheld, 0
        self._began_ms, self._written = now_ms, 0
        if withheld:
            self._logger.warning("%d more warnings of connections were left out", withheld)
