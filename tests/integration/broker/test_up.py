"""``goddard up`` as users run it: start, output, traffic, Ctrl-C, crashes, errors."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.protocol.bodies import ClusterInfo, decode_body
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import ask, query_brokers
from tests.support.commands import run_to_end

UP = [sys.executable, "-m", "goddard.cli.main", "up", "--port", "0", "--broker-port", "0"]


def cluster(tmp_path: Path, *options: str) -> Process:
    return Process(
        "cluster",
        [*UP, "--data", str(tmp_path / "data"), *options],
        log=tmp_path / "output.log",
        ready="Ctrl-C stops it",
        start_timeout=30,
    )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Process]:
    with cluster(tmp_path, "--brokers", "2").start() as process:
        yield process


def addresses(process: Process) -> dict[str, str]:
    """The addresses that the cluster prints, by name."""
    line = re.compile(r"^(name server|broker-\w) +(\S+:\d+)$", re.MULTILINE)
    return dict(line.findall(process.output()))


def brokers_of(parent: int) -> list[int]:
    """The child processes of a cluster."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)],
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    return [int(number) for number in listed.stdout.split()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_printed_addresses_serve_and_ctrl_c_stops_everything(
    running: Process, tmp_path: Path
) -> None:
    lines = addresses(running)
    assert set(lines) == {"name server", "broker-a", "broker-b"}
    assert query_brokers(lines["name server"]) == {
        "broker-a": {0: lines["broker-a"]},
        "broker-b": {0: lines["broker-b"]},
    }
    answer = ask(lines["name server"], RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    info = decode_body(answer.body, ClusterInfo)
    assert set(info.cluster_addr_table) == {"DefaultCluster"}

    children = brokers_of(running.pid)
    os.kill(running.pid, signal.SIGINT)
    wait_until(lambda: not running.is_running, 60, "the end")
    assert running.exit_code == 0
    assert not any(is_alive(pid) for pid in children)
    for name in ("broker-a", "broker-b"):
        home = tmp_path / "data" / name
        assert not (home / "store" / "abort").exists()
        assert "unregisterBroker OK" in (home / "logs" / "broker.log").read_text()


def test_a_killed_broker_is_reported_and_stops_the_cluster(running: Process) -> None:
    children = brokers_of(running.pid)
    os.kill(children[0], signal.SIGKILL)
    wait_until(lambda: not running.is_running, 60, "the end")
    assert running.exit_code == 1
    assert re.search(
        r"goddard up: broker-\w: it ended unexpectedly with signal 9", running.output()
    )
    assert not any(is_alive(pid) for pid in children)


def test_brokers_stop_when_the_cluster_is_killed(running: Process) -> None:
    children = brokers_of(running.pid)
    assert len(children) == 2
    running.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in children), 60, "the end of the brokers")


def test_data_and_ports_in_use_are_errors(running: Process, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    second = subprocess.run(
        [*UP, "--data", data], capture_output=True, text=True, timeout=30, check=False
    )
    assert second.returncode == 1
    assert f"goddard up: broker-a: {data}/broker-a/store is in use by another" in second.stderr

    port = addresses(running)["name server"].rpartition(":")[2]
    other = str(tmp_path / "other")
    third = subprocess.run(
        [*UP, "--data", other, "--port", port],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert third.returncode == 1
    assert third.stderr.startswith(f"goddard up: cannot listen on 127.0.0.1:{port}: ")
    assert third.stderr.endswith("; stop what listens there or choose another with --port\n")

    taken = addresses(running)["broker-a"].rpartition(":")[2]
    fourth = subprocess.run(
        [*UP, "--data", other, "--broker-port", taken],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert fourth.returncode == 1
    assert f"goddard up: broker-a: cannot listen on 127.0.0.1:{taken}: " in fourth.stderr
    assert fourth.stderr.endswith("or choose another with --broker-port\n")


@pytest.mark.parametrize(("host", "shown"), [("localhost", "127.0.0.1:"), ("::1", "[::1]:")])
def test_a_cluster_listens_on_a_name_or_an_ipv4_or_ipv6_address(
    tmp_path: Path, host: str, shown: str
) -> None:
    with cluster(tmp_path, "--host", host).start() as process:
        assert addresses(process)["broker-a"].startswith(shown)


def test_an_empty_host_is_an_error(tmp_path: Path) -> None:
    ended = run_to_end([*UP, "--data", str(tmp_path / "data"), "--host", ""])
    assert ended.returncode == 1
    assert ended.stderr.startswith("goddard up: the host name '' cannot be resolved; give an IP ")
    assert ended.stderr.count("\n") == 1


def test_the_reason_why_a_broker_refuses_its_configuration_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerRole=SLAVE\n")
    ended = run_to_end([*UP, "--data", str(tmp_path / "data"), "-c", str(file)])
    assert ended.returncode == 1
    assert ended.stderr == "goddard up: broker-a: Slave's brokerId must be > 0\n"


def test_warnings_about_the_properties_are_printed_once(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("autoCreateTopicEnabled=false\nlistenPort=5000\nno equals sign\n")
    with cluster(tmp_path, "--brokers", "2", "-c", str(file)).start() as process:
        warnings = [line for line in process.output().splitlines() if line.startswith("warning")]
    unknown = f"warning: unknown key {{}} in {file}, ignored"
    assert warnings[0] == (
        f"warning: listenPort in {file} has no effect: goddard up sets it for each broker, "
        "see --broker-port"
    )
    assert unknown.format("autoCreateTopicEnabled") + "; did you mean autoCreateTopicEnable?" in (
        warnings
    )
    assert sum("unknown key no in" in line for line in warnings) == 1


def goddard(process: Process, *arguments: str) -> str:
    name_server = addresses(process)["name server"]
    ended = run_to_end(
        [sys.executable, "-m", "goddard.cli.main", *arguments, "--namesrv", name_server]
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def test_slaves_follow_and_change_places_with_their_masters(tmp_path: Path) -> None:
    with cluster(tmp_path, "--masters", "2", "--slaves", "1").start() as process:
        follows = re.compile(r"^(broker-\w-1) follows (\S+:\d+), 0 bytes behind$", re.MULTILINE)
        assert [name for name, _ in follows.findall(process.output())] == [
            "broker-a-1",
            "broker-b-1",
        ]
        before = query_brokers(addresses(process)["name server"])
        master, slave = before["broker-a"][0], before["broker-a"][1]
        refused = run_to_end(
            [
                *(sys.executable, "-m", "goddard.cli.main", "broker", "promote", slave, "--yes"),
                *("--namesrv", addresses(process)["name server"]),
            ]
        )
        assert refused.returncode == 1
        assert f"{master} is the master of this group and answers: demote it" in refused.stderr
        text = goddard(process, "broker", "demote", "broker-a", "--yes")
        assert f"{master} is a slave with the id 2" in text
        goddard(process, "broker", "promote", slave, "--yes")
        after = query_brokers(addresses(process)["name server"])["broker-a"]
        assert after == {0: slave, 2: master}
        wait_until(
            lambda: (
                f"{master} slave 127.0.0.1:"
                in re.sub(" +", " ", goddard(process, "broker", "replicas"))
            ),
            30,
            "the old master follows the new one",
        )
    # The roles are those of before at the next start.
    with cluster(tmp_path, "--masters", "2", "--slaves", "1").start() as process:
        homes = {"broker-a": "SLAVE", "broker-a-1": "ASYNC_MASTER"}
        for home, role in homes.items():
            file = tmp_path / "data" / home / "store" / "config" / "broker.properties"
            assert f"brokerRole={role}" in file.read_text()
        members = query_brokers(addresses(process)["name server"])
        assert set(members["broker-a"]) == {0, 2}
        assert set(members["broker-b"]) == {0, 1}
