"""Run all test suites in groups, three at a time, and report the result.

Many tests wait: for a delay, for a rebalance, for a JVM to start. So several pytest processes share
the machine. One group runs the golden and the broker tests again without the compiled modules. The
output of a group is printed when it ends; until then a line every 30 seconds shows progress. Ctrl-C
stops all groups.

A test may fail because the groups compete for the machine. If at most two tests of the whole run
fail, each of them runs once more, alone. A test that passes then is listed at the end of the run:
it depends on timing and must be fixed. With more failures nothing runs again.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# In the order in which they start.
GROUPS = {
    "servers": ("unit", "property", "golden", "integration", "simulation", "fault", "peers"),
    "clients": ("interop", "client"),
    "spark": ("fault/spark", "spark"),
    "replicas": ("fault/cluster", "interop/replication"),
    "not compiled": ("golden", "integration/broker"),
}
# More would only compete: Spark gives up on a Python process that does not start within 10 s.
MAX_RUNNING = 3
# Folders of a group's suites that run in another group.
LEFT_OUT = {"servers": ("fault/cluster", "fault/spark"), "clients": ("interop/replication",)}
ENVIRONMENTS = {"not compiled": {"GODDARD_CORE": "0"}}
REPORT_SECONDS = 30.0
POLL_SECONDS = 0.2
MAX_RERUNS = 2
# pytest's exit code for failed tests; any other code but 0 means that the run was not completed.
TESTS_FAILED = 1
PERCENT = re.compile(r"\[ *(\d+)%\]")


@dataclass
class Group:
    """One pytest process that runs some of the suites."""

    name: str
    process: "subprocess.Popen[bytes]"
    output: Path
    started: float
    ended: float | None = None

    @property
    def printed(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def progress(self) -> str:
        seconds = int((self.ended or time.monotonic()) - self.started)
        found = PERCENT.findall(self.printed)
        percent = found[-1] if found else "0"
        return f"{self.name} {percent} % after {seconds // 60}:{seconds % 60:02}"


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    suites = {path.name for path in (root / "tests").iterdir() if any(path.glob("**/test_*.py"))}
    unassigned = suites - {suite for group in GROUPS.values() for suite in group}
    if unassigned:
        print(f"these suites are in no group: {', '.join(sorted(unassigned))}", file=sys.stderr)
        return 2
    arguments = sys.argv[1:]
    names = [name for name in GROUPS if folders(root, name)]
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        running: list[Group] = []
        try:
            codes = run(names, lambda name: start(root, Path(folder), name, arguments), running)
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
            return 130
        finally:
            for group in running:
                group.process.terminate()
            for group in running:
                group.process.wait()
    return judge(root, codes, arguments)


def judge(root: Path, codes: dict[str, int], arguments: list[str]) -> int:
    """The exit code of the whole run; a few failed tests get a second run first."""
    unfinished = [name for name, code in codes.items() if code not in (0, TESTS_FAILED)]
    failed = {name: last_failed(root, name) for name, code in codes.items() if code == TESTS_FAILED}
    count = sum(len(tests) for tests in failed.values())
    if unfinished:
        print(f"\nFAILED: not completed: {', '.join(unfinished)}", flush=True)
        return 1
    if count > MAX_RERUNS or not all(failed.values()):
        print(f"\nFAILED: {count} tests; at most {MAX_RERUNS} may run again", flush=True)
        return 1
    flaky: list[str] = []
    failed_again: list[str] = []
    for name, tests in failed.items():
        for test in tests:
            print(f"\n===== {name}: second run, alone: {test} =====", flush=True)
            # With the same arguments: options such as --broker decide which tests exist.
            command = [*pytest_command(name), *arguments, test]
            done = subprocess.run(command, cwd=root, env=environment(name), check=False)
            (flaky if done.returncode == 0 else failed_again).append(test)
    print_list("FAILED twice", failed_again)
    print_list("Passed only on the second run; fix these tests", flaky)
    if not failed_again:
        print("\nPASSED", flush=True)
    return int(bool(failed_again))


def print_list(title: str, tests: list[str]) -> None:
    if tests:
        print("\n".join([f"\n{title}:", *(f"  {test}" for test in tests)]), flush=True)


def last_failed(root: Path, name: str) -> list[str]:
    """The tests that failed in a group, from pytest's cache."""
    file = root / cache_dir(name) / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def cache_dir(name: str) -> str:
    return f".pytest_cache/{name.replace(' ', '-')}"


def pytest_command(name: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "--color=no", "-o", f"cache_dir={cache_dir(name)}"]


def folders(root: Path, name: str) -> list[str]:
    """The folders of a group's suites."""
    return [f"tests/{suite}" for suite in GROUPS[name] if (root / "tests" / suite).is_dir()]


def left_out(name: str) -> list[str]:
    return [f"--ignore=tests/{folder}" for folder in LEFT_OUT.get(name, ())]


def environment(name: str) -> dict[str, str]:
    return os.environ | ENVIRONMENTS.get(name, {})


def start(root: Path, folder: Path, name: str, arguments: list[str]) -> Group:
    output = folder / f"{name}.txt"
    # Failures of an earlier run must not count.
    shutil.rmtree(root / cache_dir(name), ignore_errors=True)
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*pytest_command(name), *arguments, *left_out(name), *folders(root, name)],
            cwd=root,
            env=environment(name),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return Group(name, process, output, time.monotonic())


def run(
    names: list[str], start_group: Callable[[str], Group], running: list[Group]
) -> dict[str, int]:
    """Run all groups; print progress, and the output of each when it ends. Returns exit codes."""
    reported = time.monotonic()
    waiting = list(names)
    codes: dict[str, int] = {}
    while waiting or running:
        while waiting and len(running) < MAX_RUNNING:
            running.append(start_group(waiting.pop(0)))
        time.sleep(POLL_SECONDS)
        for group in list(running):
            code = group.process.poll()
            if code is not None:
                group.ended = time.monotonic()
                running.remove(group)
                codes[group.name] = code
                print(f"\n===== {group.progress} =====\n{group.printed}", flush=True)
        if running and time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            print("; ".join(group.progress for group in running), flush=True)
    return {name: codes[name] for name in names}


if __name__ == "__main__":
    sys.exit(main())
