"""Ctrl-C where the parent process ignores SIGINT, as a shell does for its background jobs."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from goddard.testing.process import Process, wait_until

SHELL = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
GODDARD = (*SHELL, sys.executable, "-m", "goddard.cli.main")

TESTS_OF_A_SESSION = """
import signal
import subprocess
import sys


def test_interrupt_raises_in_the_session():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupt_ends_a_child():
    program = "import signal; signal.raise_signal(signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)
    assert b"KeyboardInterrupt" in done.stderr
"""


def command(tmp_path: Path, *words: str, ready: str) -> Process:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return Process(
        words[0], [*GODDARD, *words], log=tmp_path / "log", ready=ready, env=env, cwd=tmp_path
    )


@pytest.mark.parametrize(
    ("words", "ready", "exit_code"),
    [
        (("namesrv", "--port", "0", "--home", "home"), "boot success", 0),
        (("up", "--port", "0", "--broker-port", "0", "--data", "data"), "Ctrl-C stops it", 0),
        (("demo", "--no-spark"), "broker-b", 130),
    ],
)
def test_interrupt_ends_a_background_command(
    tmp_path: Path, words: tuple[str, ...], ready: str, exit_code: int
) -> None:
    with command(tmp_path, *words, ready=ready).start() as process:
        os.kill(process.pid, signal.SIGINT)
        wait_until(lambda: not process.is_running, 60, "the end of the command")
        assert process.exit_code == exit_code, process.diagnosis()


def test_interrupt_works_in_a_background_test_session(tmp_path: Path) -> None:
    (tmp_path / "test_session.py").write_text(TESTS_OF_A_SESSION)
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest")
    done = subprocess.run(
        [*SHELL, *pytest_command, "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert re.search(r"^2 passed", done.stdout, re.MULTILINE), done.stdout + done.stderr
