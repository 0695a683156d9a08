"""Rounds of fixed seeds: clusters of real processes, with faults; ``make fault`` runs more.

Each run is a process of its own, because it enters other namespaces. It mostly waits.
"""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]


def run(*arguments: str, timeout: float) -> str:
    """The output of a run that passed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fault.cluster", *arguments],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout


@pytest.mark.timeout(400)
def test_nothing_promised_is_lost() -> None:
    output = run("--seed", "1", "--rounds", "2", timeout=380)
    assert "2 rounds, 0 failed" in output
    assert " 0 lost" in output


@pytest.mark.timeout(240)
def test_without_namespaces_proxies_cut_the_links() -> None:
    output = run("--seed", "5", "--rounds", "1", "--safety", "15", "--loopback", timeout=220)
    assert "1 rounds, 0 failed" in output


@pytest.mark.java
@pytest.mark.timeout(400)
def test_brokers_of_rocketmq_take_over_the_data_and_give_it_back() -> None:
    output = run("--seed", "1", "--round", "3", timeout=380)
    assert "1 rounds, 0 failed" in output
    assert "1 replace" in output
