"""Keeps the order of concurrent work: one line per key, left in the order of joining.

Work joins a line and gets a ``Place``. It waits for its ``turn`` where it must not overtake the
work before it, and leaves. Belongs to one event loop.
"""

import asyncio
from collections.abc import Hashable
from typing import Self


class Place:
    """A place in a line; leaving the ``with`` block leaves the line."""

    __slots__ = ("_before", "_is_left", "_key", "_last")

    def __init__(self, last: "dict[Hashable, asyncio.Future[None]]", key: Hashable) -> None:
        self._last = last
        self._key = key
        self._before = last.get(key)
        self._is_left = last[key] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Wait until the places before this one are left."""
        if self._before is not None and not self._before.done():
            await asyncio.wait((self._before,))

    def leave(self) -> None:
        """Let the next place have its turn. Safe to call more than once.

        A place that is left before its turn still keeps the next one behind those before it.
        """
        if self._before is None or self._before.done():
            self._end()
        else:
            self._before.add_done_callback(self._end)

    def _end(self, _: object = None) -> None:
        if not self._is_left.done():
            self._is_left.set_result(None)
            if self._last[self._key] is self._is_left:
                del self._last[self._key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Lines:
    """The lines of one owner."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        # Of each line that is not empty, the place that was taken last.
        self._last: dict[Hashable, asyncio.Future[None]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._last

    def join(self, key: Hashable) -> Place:
        return Place(self._last, key)
