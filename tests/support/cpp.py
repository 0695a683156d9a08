"""RocketMQ's C++ client from the PyPI package `rocketmq` 0.4.4, in its own process.

It is not a dependency of the project: the package is installed into a virtual environment below
``.peers`` on first use, which needs the network. It contains a library for x86-64 Linux with glibc
only. `why_unavailable` says why the client cannot be used.
"""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from goddard.testing.process import ProcessError
from tests.support.peers import POM_DIR, PeersError, exclusive, peers_dir

_PACKAGE = "rocketmq==0.4.4"
_DRIVER = POM_DIR / "cpp" / "driver.py"
_INSTALL_TIMEOUT_SECONDS = 100
_LOG_TAIL_BYTES = 3_000


def why_unavailable() -> str | None:
    """Why the C++ client cannot run here; None if it can, and then it is installed."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"the C++ client is built for Linux on x86-64, not {platform.platform()}"
    try:
        interpreter()
    except PeersError as error:
        return str(error)
    return None


def interpreter() -> Path:
    """The Python of the environment with the client, which is created on the first call."""
    home = peers_dir() / "cpp-client"
    python = home / "bin" / "python"
    stamp = home / "complete"
    with exclusive(peers_dir() / "cpp-client.lock"):
        if stamp.exists() and stamp.read_text() == _PACKAGE:
            return python
        shutil.rmtree(home, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(home)])
        _run([str(python), "-m", "pip", "install", "--quiet", _PACKAGE])
        _run([str(python), "-c", "import rocketmq.client"])
        stamp.write_text(_PACKAGE)
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeersError(f"{_PACKAGE}: {command[:4]} took too long") from None
    if done.returncode != 0:
        raise PeersError(f"{_PACKAGE} could not be installed: {done.stderr.strip()[-500:]}")


class CppClients:
    """C++ producers and consumers in one process; see tests/peers/cpp/driver.py for the verbs.

    A request that times out kills the process.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "output.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(interpreter()), str(_DRIVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # The client writes its logs below the home folder.
                env={**os.environ, "HOME": str(directory)},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the input, which ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def do(self, verb: str, /, timeout: float = 60, **parameters: Any) -> Any:
        """Run a verb and return its result; a failure raises ProcessError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(timeout, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps({"do": verb, **parameters}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            watchdog.cancel()
        if not line:
            tail = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
            raise ProcessError(f"the C++ client ended in {verb}\n{tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise ProcessError(f"C++ {verb}: {answer['error']}")
        return answer["result"]
