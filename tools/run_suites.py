"""Run all test suites, two at a time, and say how far they are.

Many tests wait for something: a delay that passes, a group that settles, a JVM that starts. So the
suites are run in two halves side by side, each by a pytest of its own. What a half prints is shown
when it ends; until then a line now and then tells how far each is. Ctrl-C ends both.
"""

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HALVES = {
    "servers": ("unit", "property", "golden", "integration", "fault", "peers", "spark"),
    "clients": ("interop", "client"),
}
REPORT_SECONDS = 30.0
POLL_SECONDS = 0.2
PERCENT = re.compile(r"\[ *(\d+)%\]")


@dataclass
class Half:
    name: str
    process: "subprocess.Popen[bytes]"
    output: Path
    started: float
    ended: float | None = None

    @property
    def printed(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def state(self) -> str:
        seconds = int((self.ended or time.monotonic()) - self.started)
        found = PERCENT.findall(self.printed)
        percent = found[-1] if found else "0"
        return f"{self.name} {percent} % after {seconds // 60}:{seconds % 60:02}"


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    suites = {path.name for path in (root / "tests").iterdir() if any(path.glob("**/test_*.py"))}
    forgotten = suites - {suite for half in HALVES.values() for suite in half}
    if forgotten:
        print(f"these suites belong to no half: {', '.join(sorted(forgotten))}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        halves = [start(root, Path(folder), name, sys.argv[1:]) for name in HALVES]
        try:
            wait(halves)
        finally:
            for half in halves:
                if half.process.poll() is None:
                    half.process.terminate()
            for half in halves:
                half.process.wait()
        return max(int(half.process.returncode != 0) for half in halves)


def start(root: Path, folder: Path, name: str, arguments: list[str]) -> Half:
    output = folder / f"{name}.txt"
    suites = [f"tests/{suite}" for suite in HALVES[name] if (root / "tests" / suite).is_dir()]
    pytest = [sys.executable, "-m", "pytest", "--color=no", "-o", f"cache_dir=.pytest_cache/{name}"]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*pytest, *arguments, *suites],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return Half(name, process, output, time.monotonic())


def wait(halves: list[Half]) -> None:
    reported = time.monotonic()
    running = list(halves)
    while running:
        time.sleep(POLL_SECONDS)
        for half in list(running):
            if half.process.poll() is not None:
                half.ended = time.monotonic()
                running.remove(half)
                print(f"\n===== {half.state} =====\n{half.printed}", flush=True)
        if running and time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            print("; ".join(half.state for half in running), flush=True)


if __name__ == "__main__":
    sys.exit(main())
