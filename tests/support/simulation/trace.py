"""What happened in a run, as a hash that two runs of one seed share, and as text."""

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final

_LAST_LINES: Final = 400


class Trace:
    """Every event goes into the hash; the last ones, and all notes, are kept as text."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.now: Callable[[], float] = float
        self.count = 0
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self.notes: list[str] = []
        self.digests: list[str] | None = None

    def add(self, text: str) -> None:
        self.count += 1
        line = f"{self.now():.6f} {text}"
        self._hash.update(line.encode())
        self.last.append(line)

    def note(self, text: str) -> None:
        """An event that a reader of a failure wants to see: faults, starts, stops."""
        self.notes.append(f"{self.now():10.3f} {text}")
        self.add(text)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
