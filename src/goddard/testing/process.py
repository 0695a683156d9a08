"""Child processes of tests: start, wait until ready, pause, kill.

Every ``Process`` writes stdout and stderr to one log file. Children never outlive the test run: a
second process, the reaper, kills those that remain when this process ends, also when this process
was killed and could not run its ``atexit`` hooks.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from goddard.errors import GoddardError

T = TypeVar("T")

_LOG_TAIL_BYTES = 8_000
_POLL_SECONDS = 0.02
_KILL_TIMEOUT_SECONDS = 30


class ProcessError(GoddardError):
    """A child process did not start, respond or stop; the text ends with the tail of its log."""


def wait_until(condition: Callable[[], T | None], timeout: float, what: str) -> T:
    """Poll ``condition`` until its result is true, and return the result.

    Raises TimeoutError after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:g} s: {what} (last seen: {value!r})")
        time.sleep(_POLL_SECONDS)


class Process:
    """One child process; it can be started again with the same command after it has ended.

    It is ready when ``ready`` appears in its output; then it listens on ``port``. Leaving the
    context manager kills it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        ready: str,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        start_timeout: float = 60,
    ) -> None:
        self.name = name
        self.log = log
        self.port = port
        self._command = list(command)
        self._ready = ready.encode()
        self._env = dict(os.environ if env is None else env)
        self._cwd = cwd
        self._start_timeout = start_timeout
        self._log_start = 0
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def __repr__(self) -> str:
        return f"<{self.name} pid={self._child.pid if self._child else None}>"

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ProcessError(f"{self.name} was not started")
        return self._child.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.poll()

    def output(self) -> str:
        """What the child has printed since its last start."""
        return self._output().decode(errors="replace")

    def start(self) -> Self:
        """Start the child and wait until it is ready."""
        self.launch()
        return self.wait_ready()

    def wait_ready(self) -> Self:
        """Wait until the child is ready, after ``launch``."""
        try:
            wait_until(self._is_ready, self._start_timeout, f"{self._ready.decode()!r} in the log")
        except TimeoutError as error:
            self.kill()
            raise ProcessError(f"{self.name}: {error}\n{self.diagnosis()}") from None
        return self

    def launch(self) -> None:
        """Start the child without waiting for it."""
        if self.is_running:
            raise ProcessError(f"{self.name} is running already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            # In a new session Ctrl-C reaches only the test run, which then kills its children.
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )
        _Reaper.shared().watch(self._child.pid)

    def restart(self) -> Self:
        """Kill the child and start it again, with the same ports and files."""
        self.kill()
        return self.start()

    def stop(self, timeout: float = 30) -> int:
        """Send SIGTERM, wait for the end and return the exit code.

        Raises ProcessError if the child does not end in time; then it is killed.
        """
        child = self._child
        if child is None:
            return 0
        if child.poll() is None:
            child.send_signal(signal.SIGCONT)
            child.terminate()
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessError(
                f"{self.name} did not end within {timeout:g} s of SIGTERM\n{self.diagnosis()}"
            ) from None
        _Reaper.shared().forget(child.pid)
        return code

    def kill(self) -> None:
        """Send SIGKILL and wait until the kernel has closed its files and connections."""
        child = self._child
        if child is None:
            return
        child.kill()
        child.wait(_KILL_TIMEOUT_SECONDS)
        _Reaper.shared().forget(child.pid)

    def pause(self) -> None:
        """Send SIGSTOP: the child keeps its connections open but does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT after ``pause``."""
        os.kill(self.pid, signal.SIGCONT)

    def diagnosis(self) -> str:
        """The state and the end of the log, for an error text."""
        code = self.exit_code
        state = "running" if code is None else f"exit code {code}"
        tail = self._output()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"--- {self.name} ({state}), {self.log}:\n{tail or '(no output)'}"

    def _output(self) -> bytes:
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start)
                return log.read()
        except FileNotFoundError:
            return b""

    def _is_ready(self) -> bool:
        if self._ready in self._output():
            return True
        if not self.is_running:
            raise ProcessError(f"{self.name} ended before it was ready\n{self.diagnosis()}")
        return False


_REAPER_PROGRAM = """
import os, signal, sys
pids = set()
for line in sys.stdin:
    (pids.add if line[0] == "+" else pids.discard)(int(line[1:]))
for pid in pids:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class _Reaper:
    """A process that kills the remaining children when its input, our end of a pipe, is closed."""

    _shared: "_Reaper | None" = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REAPER_PROGRAM],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.close)

    @classmethod
    def shared(cls) -> "_Reaper":
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def watch(self, pid: int) -> None:
        self._pids.add(pid)
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        if pid in self._pids:
            self._pids.discard(pid)
            self._tell(f"-{pid}\n")

    def close(self) -> None:
        """Close the input: the reaper kills the remaining children and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_KILL_TIMEOUT_SECONDS)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
