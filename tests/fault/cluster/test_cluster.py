"""Rounds of fixed seeds: clusters of real processes, with faults; ``make fault`` runs more.

Each run is a process of its own, because it enters other namespaces. It mostly waits.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from goddard.testing.process import wait_until

_ROOT = Path(__file__).parents[3]
_COMMAND = (sys.executable, "-W", "ignore", "-m", "tests.fault.cluster")
_READY_SECONDS = 120
_END_SECONDS = 90


def run(*arguments: str, timeout: float) -> str:
    """The output of a run that passed."""
    done = subprocess.run(
        [*_COMMAND, *arguments],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "number", "kind"),
    [
        pytest.param(2, 2, "lose", id="SYNC_MASTER is lost"),
        pytest.param(8, 3, "lose", id="ASYNC_MASTER is lost"),
        pytest.param(4, 1, "change places", id="master and slave change places"),
    ],
)
def test_nothing_promised_is_lost(seed: int, number: int, kind: str) -> None:
    output = run("--seed", str(seed), "--round", str(number), timeout=280)
    assert "1 rounds, 0 failed" in output
    assert " 0 lost" in output
    assert f"1 {kind}" in output


@pytest.mark.timeout(240)
def test_without_namespaces_proxies_cut_the_links() -> None:
    output = run("--seed", "5", "--rounds", "1", "--safety", "15", "--loopback", timeout=220)
    assert "1 rounds, 0 failed" in output


@pytest.mark.java
@pytest.mark.timeout(400)
def test_brokers_of_rocketmq_take_over_the_data_and_give_it_back() -> None:
    output = run("--seed", "5", "--round", "2", timeout=380)
    assert "1 rounds, 0 failed" in output
    assert "1 replace" in output


def with_argument(text: str) -> list[str]:
    """The command lines of all processes that mention a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if text in line:
            found.append(line)
    return found


@pytest.mark.timeout(_READY_SECONDS + _END_SECONDS + 30)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """After Ctrl-C, which reaches the whole group, and after kill -9 of its first process."""
    output = tmp_path / "output.txt"
    arguments = ("--seed", "1", "--directory", str(tmp_path / "files"))
    with (
        output.open("wb") as file,
        subprocess.Popen(
            [*_COMMAND, *arguments], cwd=_ROOT, stdout=file, stderr=file, start_new_session=True
        ) as process,
    ):
        try:
            wait_until(lambda: "ready" in output.read_text(), _READY_SECONDS, "a ready cluster")
            assert with_argument(str(tmp_path))
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            process.wait(_END_SECONDS)
            wait_until(lambda: not with_argument(str(tmp_path)), _END_SECONDS, "no process left")
        finally:
            process.kill()
    disks = [
        line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line
    ]
    assert disks == []
    if number == signal.SIGINT:
        assert "stopped" in output.read_text()
