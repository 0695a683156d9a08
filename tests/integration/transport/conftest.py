import asyncio
from collections.abc import Callable, Mapping

from goddard.transport.loop import new_event_loop


def _debug_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    # The load of the machine must not cause warnings about slow callbacks.
    loop.slow_callback_duration = 10
    return loop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The transport runs on two event loops: uvloop and, in debug mode, asyncio's own."""
    return {"uvloop": new_event_loop, "asyncio-debug": _debug_loop}
