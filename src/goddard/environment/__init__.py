"""What a broker, a name server, a store or a client needs of the machine, as one value.

``Broker``, ``NameServer``, ``MessageStore`` and the clients get an ``Environment`` and pass its
parts on. Without one they use the system's. No other code reads a clock, draws random numbers,
opens files of a store, or starts threads by itself, so a test can simulate all of it
(``tests.support.simulation``). Connections, timers and jobs of executors are those of the event
loop, so they belong to the provider of the loop.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom
from uuid import UUID

from goddard.clock import Clock, SystemClock
from goddard.environment.files import Files, SystemFiles
from goddard.environment.threads import (
    NewExecutor,
    StartThread,
    ThreadWorker,
    Worker,
    new_thread_pool,
    start_thread,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The system's, where nothing else is given."""

    clock: Clock = field(default_factory=SystemClock)
    # The system's own source: it needs no seed, and processes that fork do not share its state.
    random: Random = field(default_factory=SystemRandom)
    files: Files = field(default_factory=SystemFiles)
    new_worker: Callable[[str], Worker] = ThreadWorker
    new_executor: NewExecutor = new_thread_pool
    start_thread: StartThread = start_thread
    process_id: Callable[[], int] = os.getpid

    def new_uuid(self) -> UUID:
        """A random UUID (version 4)."""
        return UUID(int=self.random.getrandbits(128), version=4)
