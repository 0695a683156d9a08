"""Build and run loadgen.c: the load generator and the null server.

The generator is written in C because it must be faster than the servers that it measures. Every
run also measures the generator's own limit, against a null server that sends a fixed response.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("loadgen.c")
_BUILT = Path(__file__).parent / "results" / "loadgen"

# The measured server runs on one core, the generator on another.
SERVER_CORE = 0
GENERATOR_CORE = 1


class BenchError(Exception):
    """The benchmark cannot run; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Load:
    """The result of one run of the generator. ``per_second`` counts successful responses.

    ``cpu_us``: processor time that the server (``pid``) used per response, warm-up included.
    """

    responses: int
    failures: int
    per_second: float
    p50_us: float
    p99_us: float
    first_failure: str = ""
    cpu_us: float = 0.0


def build() -> Path:
    """Compile the generator if its source is newer than the executable."""
    if _BUILT.exists() and _BUILT.stat().st_mtime > _SOURCE.stat().st_mtime:
        return _BUILT
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise BenchError("the load generator needs a C compiler: install gcc or clang, or set CC")
    _BUILT.parent.mkdir(exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", _BUILT, _SOURCE], check=True, timeout=60)
    return _BUILT


def pinned(core: int, command: list[str]) -> list[str]:
    """The command bound to one core, if the machine has several cores and taskset."""
    taskset = shutil.which("taskset")
    if taskset is None or (os.cpu_count() or 1) < 2:
        return command
    return [taskset, "-c", str(core), *command]


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process, the kernel's part included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(
    port: int,
    frames: Iterable[bytes],
    *,
    connections: int,
    inflight: int,
    seconds: float,
    warmup: float = 1.0,
    pid: int | None = None,
) -> Load:
    """Send the frames to a loopback port and measure the responses.

    ``pid``: the server, if its processor time is to be measured.
    """
    with tempfile.NamedTemporaryFile(suffix=".frames") as file:
        file.write(b"".join(frames))
        file.flush()
        command = [str(build()), "load", "127.0.0.1", str(port), "--frames", file.name]
        command += ["--connections", str(connections), "--inflight", str(inflight)]
        command += ["--seconds", str(seconds), "--warmup", str(warmup)]
        before = 0.0 if pid is None else cpu_seconds(pid)
        done = subprocess.run(
            pinned(GENERATOR_CORE, command),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds + warmup + 60,
        )
        used = 0.0 if pid is None else cpu_seconds(pid) - before
    if done.returncode != 0:
        raise BenchError(f"the load generator failed: {done.stderr.strip()}")
    seen = json.loads(done.stdout)
    responses, failures = seen["responses"], seen["failures"]
    return Load(
        responses,
        failures,
        seen["per_second"] * (responses - failures) / max(responses, 1),
        seen["p50_us"],
        seen["p99_us"],
        seen["first_failure"],
        used * 1e6 / max(seen["total"], 1),
    )


@contextlib.contextmanager
def null_server(frame: bytes) -> Iterator[int]:
    """A server that answers every request with this frame; yields its port."""
    with tempfile.NamedTemporaryFile(suffix=".frame") as file:
        file.write(frame)
        file.flush()
        command = [str(build()), "answer", "0", "--frame", file.name]
        server = subprocess.Popen(pinned(SERVER_CORE, command), stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()
            server.wait(timeout=10)
            if server.stdout is not None:
                server.stdout.close()
