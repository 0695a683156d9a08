"""Run all test suites, two at a time, and say how far they are.

Many tests wait for something: a delay that passes, a group that settles, a JVM that starts. So the
suites are run in two halves side by side, each by a pytest of its own. What a half prints is shown
when it ends; until then a line now and then tells how far each is. Ctrl-C ends both.

The halves take the machine from each other. So the few that fail are run again, alone: what fails
once more has failed; what passes is named at the end, since it should not need a quiet machine.
"""

import json
import re
import shutil
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
MOST_AGAIN = 10  # more is no coincidence
TESTS_FAILED = 1  # pytest's exit code; others mean that it did not get through
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
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
            return 130
        finally:
            for half in halves:
                if half.process.poll() is None:
                    half.process.terminate()
            for half in halves:
                half.process.wait()
    # Of every half, even when the first has failed: one run is to tell all.
    verdicts = [passed(root, half) for half in halves]
    return int(not all(verdicts))


def passed(root: Path, half: Half) -> bool:
    if half.process.returncode == 0:
        return True
    failed = last_failed(root, half.name)
    if half.process.returncode != TESTS_FAILED or not 0 < len(failed) <= MOST_AGAIN:
        return False
    print(f"\n===== {half.name}: {len(failed)} again, alone =====", flush=True)
    again = subprocess.run([*pytest_command(half.name), *failed], cwd=root, check=False)
    if again.returncode == 0:
        print(f"\n{half.name}: failed beside the other half, passed alone:")
        print("\n".join(f"  {test}" for test in failed), flush=True)
    return again.returncode == 0


def last_failed(root: Path, name: str) -> list[str]:
    """What pytest's cache keeps of the last run."""
    file = root / cache_dir(name) / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def cache_dir(name: str) -> str:
    return f".pytest_cache/{name}"


def pytest_command(name: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "--color=no", "-o", f"cache_dir={cache_dir(name)}"]


def start(root: Path, folder: Path, name: str, arguments: list[str]) -> Half:
    output = folder / f"{name}.txt"
    suites = [f"tests/{suite}" for suite in HALVES[name] if (root / "tests" / suite).is_dir()]
    # What an earlier run left is not what failed in this one.
    shutil.rmtree(root / cache_dir(name), ignore_errors=True)
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*pytest_command(name), *arguments, *suites],
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
