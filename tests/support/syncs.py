"""Syncs for a loop that call the ``sync`` of a test's file layer, with its faults and delays."""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread


class ThreadSyncs:
    """As ``goddard.environment.syncs.KernelSyncs``; each sync runs in a thread."""

    def __init__(self, sync: Callable[[int], None]) -> None:
        self._sync = sync
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._ended: Event | None = None
        self._code = 0
        self.is_refusing = False
        self.count = 0

    def fileno(self) -> int:
        return self._reader.fileno()

    def clear(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(100)

    def start(self, fd: int) -> bool:
        if self.is_refusing:
            return False
        assert self._ended is None, "one sync at a time"
        ended = self._ended = Event()
        self.count += 1

        def run() -> None:
            self._code = 0
            try:
                self._sync(fd)
            except OSError as error:
                self._code = error.errno or errno.EIO
            ended.set()
            with suppress(OSError):  # closed meanwhile
                self._writer.send(b".")

        Thread(target=run, daemon=True).start()
        return True

    def result(self, *, wait: bool) -> int | None:
        if self._ended is None or not (self._ended.wait(60) if wait else self._ended.is_set()):
            return None
        self._ended = None
        return self._code

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
