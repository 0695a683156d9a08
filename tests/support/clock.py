"""A clock that the test advances."""


class ManualClock:
    """Wall and monotonic time under the test's control.

    ``advance`` moves both; ``jump`` moves wall time alone, as an NTP step or an operator does.
    """

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        if milliseconds < 0:
            raise ValueError("advance() cannot go back; use jump() to set wall time back")
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def jump(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
