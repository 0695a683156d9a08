"""Sessions of a Python worker: kept from one task to the next, with their connections.

Spark runs the tasks of many micro-batches in one Python process, one after the other. Without this,
each task would look up the routes and connect to the brokers again.
"""

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from goddard.client.options import session_options
from goddard.client.session import Session
from goddard.spark.options import ConnectionOptions
from goddard.transport.loop import new_event_loop

# The event loop does not run between tasks, so that routes and connections age unnoticed.
_MAX_IDLE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class WorkerSession:
    """A session, and the event loop that it runs on. Used by one task at a time."""

    connection: ConnectionOptions
    runner: asyncio.Runner
    session: Session
    thread_id: int

    def close(self) -> None:
        try:
            self.runner.run(self.session.stop())
        finally:
            self.runner.close()


# Sessions that no task uses now, with the time since when.
_idle: Final[list[tuple[float, WorkerSession]]] = []


@contextlib.contextmanager
def worker_session(connection: ConnectionOptions) -> Iterator[WorkerSession]:
    """A session with these options; one of an earlier task, or a new one.

    It is kept for later tasks unless the task fails.
    """
    used = _take(connection) or _open(connection)
    try:
        yield used
    except BaseException:
        used.close()
        raise
    _idle.append((time.monotonic(), used))


def _take(connection: ConnectionOptions) -> WorkerSession | None:
    """An idle session with these options. Closes those that have been idle for too long."""
    oldest = time.monotonic() - _MAX_IDLE_SECONDS
    found = None
    for entry in list(_idle):
        since, kept = entry
        if kept.thread_id != threading.get_ident():
            continue
        if since < oldest:
            _idle.remove(entry)
            kept.close()
        elif found is None and kept.connection == connection:
            _idle.remove(entry)
            found = kept
    return found


def _open(connection: ConnectionOptions) -> WorkerSession:
    runner = asyncio.Runner(loop_factory=new_event_loop)
    try:
        session = runner.run(_start(connection))
    except BaseException:
        runner.close()
        raise
    return WorkerSession(connection, runner, session, threading.get_ident())


async def _start(connection: ConnectionOptions) -> Session:
    session = Session.shared(
        session_options(connection.name_servers, connection.keywords).for_process()
    )
    await session.start()
    return session


def close_idle() -> None:
    """Close the sessions that no task uses."""
    while _idle:
        _idle.pop()[1].close()


atexit.register(close_idle)
