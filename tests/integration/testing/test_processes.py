"""Process and Cluster: daemons restart on their ports, and no process outlives its test."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from goddard.errors import GoddardError
from goddard.testing.cluster import Cluster
from goddard.testing.ports import is_listening, lease_port, release_port
from goddard.testing.process import Process, ProcessError, wait_until

SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"


def sleeper(tmp_path: Path, program: str = SLEEPER) -> Process:
    command = [sys.executable, "-c", program]
    return Process("sleeper", command, log=tmp_path / "log", ready="ready", start_timeout=60)


def is_alive(pid: int) -> bool:
    """Whether a process runs; zombies do not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_process_is_killed_and_restarted(tmp_path: Path) -> None:
    with sleeper(tmp_path) as process:
        first = process.start().pid
        process.kill()
        assert process.exit_code == -signal.SIGKILL
        assert not is_alive(first)
        second = process.start().pid
        assert second != first
        assert process.output() == "ready\n"
    assert not is_alive(second)


def test_stop_ends_a_paused_process(tmp_path: Path) -> None:
    with sleeper(tmp_path) as process:
        process.start()
        process.pause()
        assert process.stop(timeout=10) == -signal.SIGTERM


def test_failed_start_shows_the_log(tmp_path: Path) -> None:
    process = sleeper(tmp_path, "import sys; sys.exit('the disk is full')")
    with pytest.raises(ProcessError, match=r"ended before it was ready(?s:.*)the disk is full"):
        process.start()


def test_process_that_ignores_sigterm_is_an_error(tmp_path: Path) -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
    with sleeper(tmp_path, program) as process:
        process.start()
        with pytest.raises(ProcessError, match=r"did not end within 0\.2 s of SIGTERM"):
            process.stop(timeout=0.2)
        assert not process.is_running


def test_children_do_not_outlive_a_killed_test_run(tmp_path: Path) -> None:
    program = f"""
import pathlib, sys, time
from goddard.testing.process import Process
command = [sys.executable, "-c", {SLEEPER!r}]
process = Process("sleeper", command, log=pathlib.Path({str(tmp_path / "log")!r}), ready="ready")
print(process.start().pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        assert is_alive(child)
        run.kill()
    wait_until(lambda: not is_alive(child), 60, "the child of a killed run ends")


def test_leased_ports_are_free_and_distinct() -> None:
    port = lease_port(-2, 1)
    other = lease_port()
    assert len({port - 2, port, port + 1, other}) == 4
    for number in (port - 2, port, port + 1, other):
        with socket.create_server(("127.0.0.1", number)):
            assert is_listening(number)
        release_port(number)


def test_leases_of_a_process_end_without_warnings() -> None:
    program = "from goddard.testing import lease_port; print(lease_port() > 0)"
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_leased_port_is_not_leased_to_another_process(tmp_path: Path) -> None:
    port = lease_port()
    program = f"from goddard.testing import ports; print(ports.try_lease({port}))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert answer.stdout.strip() == "False"
    release_port(port)


def test_users_of_one_machine_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    port = lease_port()
    release_port(port)
    assert (tmp_path / f"goddard-ports-{os.geteuid()}" / str(port)).is_file()


def test_folder_of_leases_that_cannot_be_used_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"goddard-ports-{os.geteuid()}"
    folder.write_text("a file")
    with pytest.raises(GoddardError, match="cannot lease a port: ") as caught:
        lease_port()
    assert str(folder) in str(caught.value)


def test_cluster_restarts_a_name_server_on_its_port(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first, second = cluster.start_name_server(), cluster.start_name_server()
        assert cluster.namesrv == f"{first.address};{second.address}"
        first.kill()
        assert not is_listening(first.port)
        assert is_listening(second.port)
        first.start()
        assert is_listening(first.port)
        assert first.stop() == 0
        pid = second.pid
    assert not is_alive(pid)
