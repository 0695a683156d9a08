"""Programs and commands that are started with closed standard streams."""

import subprocess
import sys

import pytest

CLOSED = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]


def run_closed(closed: str, *arguments: str) -> int:
    """The exit code of Python with these arguments, started with streams closed."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    ).returncode


@pytest.mark.parametrize("closed", CLOSED)
def test_a_blocking_client(closed: str) -> None:
    """libuv aborts if a socket with the number of a standard stream is closed."""
    program = (
        "import os\n"
        "from goddard.client.blocking.loop import LoopThread\n"
        "thread = LoopThread()\n"
        "thread.close()\n"
        "for number in range(3):\n"
        "    os.fstat(number)\n"
    )
    assert run_closed(closed, "-c", program) == 0


@pytest.mark.parametrize("closed", CLOSED)
def test_a_command(closed: str) -> None:
    assert run_closed(closed, "-m", "goddard.cli.main", "--version") == 0


def test_open_streams_stay_as_they_are() -> None:
    program = (
        "import os, sys\n"
        "from goddard.streams import open_standard_streams\n"
        "before = sys.stdin, sys.stdout, sys.stderr, *map(os.fstat, range(3))\n"
        "open_standard_streams()\n"
        "assert before == (sys.stdin, sys.stdout, sys.stderr, *map(os.fstat, range(3)))\n"
    )
    assert run_closed("", "-c", program) == 0
