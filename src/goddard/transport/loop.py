"""The event loop of every daemon and command: uvloop, where it is available."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

if sys.platform == "win32":
    new_event_loop = asyncio.new_event_loop
else:
    from uvloop import new_event_loop

__all__ = ["new_event_loop", "run"]

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run ``main`` to its end on a new loop, then close the loop; cancels remaining tasks."""
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        return runner.run(main)
