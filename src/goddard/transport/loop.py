"""The event loop of every daemon and command: uvloop, where it is available."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from goddard.streams import open_standard_descriptors

if sys.platform == "win32":
    from asyncio import new_event_loop as _new_event_loop
else:
    from uvloop import new_event_loop as _new_event_loop

IMPLEMENTATION: Final = _new_event_loop.__module__.partition(".")[0]

_T = TypeVar("_T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop, none of whose descriptors is a standard stream's, even if those are closed."""
    open_standard_descriptors()
    return _new_event_loop()


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run ``main`` to its end on a new loop, then close the loop; cancels remaining tasks."""
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        return runner.run(main)
