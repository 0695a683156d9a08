"""Write messages to a store until killed, and record the acknowledged ones.

As a script it reads orders from standard input, one JSON object per line. For each order it forks a
child that writes, kills it with SIGKILL after its time, and answers ``killed``. Forking takes
milliseconds, while starting Python takes half a second, and tests run hundreds of crashes.

The record file has the lines ``ready``, ``ack <number> <queue> <queue offset> <physical offset>``
and ``all``. It survives the child; an incomplete last line is ignored.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from goddard.errors import StoreError
from goddard.protocol.message import encode_properties
from goddard.protocol.record import Host
from goddard.store.config import FlushMode, StoreConfig
from goddard.store.log.records import LogEntry, PreparedRecord, prepare_record
from goddard.store.store import MessageStore

MAX_WAITING = 32
MAX_BODY_BYTES = 600
QUEUES = 3
HOST = Host.parse("127.0.0.1:10911")


@dataclass(frozen=True)
class Order:
    """The task of one child."""

    root: str
    notes: str
    flush: str
    topic: str = "CrashTopic"
    first: int = 0
    count: int = 0  # 0: until killed
    seed: int = 0
    # Time until the kill, including opening the store; None: until all messages are written.
    life_seconds: float | None = None
    sizes: dict[str, int] = field(default_factory=dict)

    def config(self) -> StoreConfig:
        values: dict[str, Any] = dict(self.sizes)
        return StoreConfig(
            root=Path(self.root),
            flush_mode=FlushMode(self.flush),
            flush_interval_ms=5,
            flush_queue_interval_ms=5,
            checkpoint_interval_ms=20,
            **values,
        )


def record(order: Order, number: int) -> PreparedRecord:
    """Message ``number``: its body starts with the number, and its key contains it."""
    size = random.Random(number).randrange(MAX_BODY_BYTES)
    properties = {
        "KEYS": f"key{number}",
        "UNIQ_KEY": unique_key(number),
        "TAGS": f"Tag{number % 4}",
        "WAIT": "true",
    }
    return prepare_record(
        topic=order.topic,
        queue_id=number % QUEUES,
        body=f"{number}:".encode() + b"x" * size,
        properties=encode_properties(properties),
        born_timestamp_ms=time.time_ns() // 1_000_000,
        born_host=HOST,
        store_host=HOST,
    )


def unique_key(number: int) -> str:
    return f"7F000001{number:024X}"


def write(order: Order) -> None:
    """Runs in the child."""
    notes = os.open(order.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    moves = random.Random(order.seed)
    store = MessageStore(order.config())
    store.open()
    os.write(notes, b"ready\n")
    waiting = threading.Semaphore(MAX_WAITING)

    def acknowledge(entries: list[LogEntry], first: int, error: StoreError | None) -> None:
        waiting.release()
        if error is None:
            lines = (
                f"ack {first + place} {entry.queue_id} {entry.queue_offset} "
                f"{entry.physical_offset}\n"
                for place, entry in enumerate(entries)
            )
            os.write(notes, "".join(lines).encode())

    number, end = order.first, order.first + order.count if order.count else sys.maxsize
    while number < end:
        group = [
            record(order, each) for each in range(number, min(number + moves.randint(1, 8), end))
        ]
        waiting.acquire()
        entries = store.put_batch(group) if moves.random() < 0.3 else store.put_many(group)
        if order.flush == FlushMode.SYNC.value:
            callback = partial(acknowledge, entries, number)
            store.wait_durable(entries[-1].end_offset, callback)
        else:
            acknowledge(entries, number, None)
        number += len(group)
    for _ in range(MAX_WAITING):
        waiting.acquire()
    os.write(notes, b"all\n")
    signal.pause()


def serve() -> None:
    """Fork, kill and answer, until the end of standard input."""
    for line in sys.stdin:
        order = Order(**json.loads(line))
        child = os.fork()
        if child == 0:
            try:
                write(order)
            finally:
                os._exit(3)
        try:
            if order.life_seconds is None:
                _wait_for_all(order)
            else:
                time.sleep(order.life_seconds)
        finally:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        # A child that was not killed had an error, which it printed.
        print("killed" if os.WIFSIGNALED(status) else "failed", flush=True)


def _wait_for_all(order: Order) -> None:
    deadline = time.monotonic() + 60
    notes = Path(order.notes)
    while time.monotonic() < deadline:
        if notes.exists() and notes.read_bytes().endswith(b"all\n"):
            return
        time.sleep(0.01)


class Writer:
    """Runs the script in another process."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def run(self, order: Order) -> None:
        """Let a child write and kill it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if answer != "killed":
            raise AssertionError(f"the writer {answer or 'died'}:\n{self._errors.read_text()}")

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(30)


@contextmanager
def running_writer(errors: Path) -> Iterator[Writer]:
    writer = Writer(errors)
    try:
        yield writer
    finally:
        writer.close()


@dataclass(slots=True)
class Notes:
    """The contents of a child's record file."""

    is_ready: bool
    is_all: bool
    # Message number to (queue id, queue offset, physical offset).
    acknowledged: dict[int, tuple[int, int, int]]

    @classmethod
    def read(cls, path: Path) -> Self:
        # The last line may be incomplete because of the kill.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        acknowledged = {}
        for line in lines:
            word, *numbers = line.split()
            if word == "ack":
                number, queue_id, queue_offset, physical_offset = map(int, numbers)
                acknowledged[number] = (queue_id, queue_offset, physical_offset)
        return cls("ready" in lines, "all" in lines, acknowledged)


if __name__ == "__main__":
    serve()
