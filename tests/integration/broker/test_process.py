"""The broker as a process: RocketMQ's command, its messages and exit codes, files and homes."""

import re
import sys
from pathlib import Path

import pytest

from goddard.config import parse_properties
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers
from tests.support.commands import daemon, environment, run_to_end

BROKER = [sys.executable, "-m", "goddard.cli.main", "broker"]
MQBROKER = [sys.executable, "-c", "from goddard.cli.main import mqbroker; mqbroker()"]

WINDOWS_FILE = r"""
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
storePathRootDir=D:\RocketMQ\store
storePathCommitLog=D:\RocketMQ\store\commitlog
storePathConsumeQueue=D:\RocketMQ\store\consumequeue
storePathIndex=D:\RocketMQ\store\index
storeCheckpoint=D:\RocketMQ\store\checkpoint
abortFile=D:\RocketMQ\abort
"""


def test_without_a_home_it_prints_rocketmqs_error() -> None:
    ended = run_to_end(MQBROKER)
    assert ended.returncode == 254
    assert ended.stdout == (
        "Please set the ROCKETMQ_HOME variable in your environment to match the location of the "
        "RocketMQ installation\n"
    )


def test_a_wrong_name_server_prints_rocketmqs_error(tmp_path: Path) -> None:
    ended = run_to_end([*MQBROKER, "-n", "nowhere"], environment(ROCKETMQ_HOME=str(tmp_path)))
    assert ended.returncode == 253
    assert ended.stdout == (
        "The Name Server Address[nowhere] illegal, please set it as follows, "
        '"127.0.0.1:9876;192.168.0.1:9876"\n'
    )


def test_a_slave_needs_a_number(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerRole=SLAVE\nbrokerId=0\n")
    ended = run_to_end([*MQBROKER, "-c", str(file)], environment(ROCKETMQ_HOME=str(tmp_path)))
    assert ended.returncode == 253
    assert "Slave's brokerId must be > 0\n" in ended.stdout


@pytest.mark.parametrize("command", [BROKER, MQBROKER])
def test_a_missing_or_wrong_file_is_a_clear_error(tmp_path: Path, command: list[str]) -> None:
    env = environment(ROCKETMQ_HOME=str(tmp_path))
    missing = run_to_end([*command, "-c", str(tmp_path / "no.conf")], env)
    assert missing.returncode == 1
    assert "no.conf cannot be read: No such file" in missing.stderr
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=far\n")
    wrong = run_to_end([*command, "-c", str(file)], env)
    assert wrong.returncode == 1
    assert "broker.conf: listenPort=far: a whole number is needed" in wrong.stderr


def test_all_or_the_important_items_are_printed(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(WINDOWS_FILE)
    everything = run_to_end([*MQBROKER, "-c", str(file), "-p"])
    assert everything.returncode == 0
    lines = dict(line.split("=", 1) for line in everything.stdout.splitlines() if "=" in line)
    for name, value in (line.split("=") for line in WINDOWS_FILE.split()):
        assert lines[name] == value
    assert lines["haListenPort"] == "10912"
    important = run_to_end([*MQBROKER, "-c", str(file), "-m"])
    assert important.returncode == 0
    assert "brokerName=broker-a\n" in important.stdout
    assert "storePathIndex" not in important.stdout
    assert len(important.stdout) < len(everything.stdout) / 4


def test_a_windows_file_starts_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(WINDOWS_FILE + "bindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nlistenPort=0\n")
    env = environment(ROCKETMQ_HOME=str(tmp_path), NAMESRV_ADDR="127.0.0.1:1")
    with daemon(tmp_path, [*MQBROKER, "-c", str(file)], env).start() as process:
        assert re.search(
            r"^The broker\[broker-a, 127\.0\.0\.1:\d+\] boot success\. serializeType=JSON and "
            r"name server is 127\.0\.0\.1:1$",
            process.output(),
            re.MULTILINE,
        )
        assert f"load config properties file OK, {file}\n" in process.output()
        assert (tmp_path / "D:" / "RocketMQ" / "store" / "config" / "topics.json").exists()
        assert process.stop() == 0
    assert "boot success" in (tmp_path / "logs" / "broker.log").read_text()


def test_name_servers_come_from_the_environment_or_the_option(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        address = cluster.start_name_server().address
        base = [*BROKER, "--port", "0", "--home", str(tmp_path / "home")]
        with daemon(tmp_path, base, environment(NAMESRV_ADDR=address)).start() as process:
            assert set(query_brokers(address)) == {"broker-a"}
            assert process.stop() == 0
        arguments = [*base, "--namesrv", address, "--name", "mine", "--cluster", "Ours"]
        with daemon(
            tmp_path, arguments, environment(NAMESRV_ADDR="127.0.0.1:1")
        ).start() as process:
            assert set(query_brokers(address)) == {"mine"}
            assert process.stop() == 0


def test_a_second_broker_on_the_same_data_prints_the_reason(tmp_path: Path) -> None:
    # Not 127.0.0.1:9876, where a cluster may run on this machine.
    base = [*BROKER, "--port", "0", "--home", str(tmp_path / "home"), "-n", "127.0.0.1:1"]
    with daemon(tmp_path, base).start() as first:
        second = run_to_end(base)
    assert second.returncode == 1
    store = tmp_path / "home" / "store"
    assert second.stderr == (
        f"goddard broker: {store} is in use by another broker (process {first.pid}): "
        "its lock is taken\n"
    )
    # Both write this file: the line says which of them ended.
    log = (tmp_path / "home" / "logs" / "broker.log").read_text()
    (ended,) = re.findall(r"goddard broker \(process (\d+)\) ends: ", log)
    assert int(ended) != first.pid


def test_saved_settings_do_not_change_paths_ports_and_names(tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = home / "store" / "config" / "broker.properties"
    kept.parent.mkdir(parents=True)
    kept.write_text("fileReservedTime=5\nlistenPort=1\nrocketmqHome=/nowhere\nbrokerName=old\n")
    shown = run_to_end([*BROKER, "--home", str(home), "--port", "0", "-p"])
    properties = parse_properties(shown.stdout)
    assert properties["fileReservedTime"] == "5"
    assert properties["listenPort"] == "0"
    assert properties["rocketmqHome"] == str(home)
    assert properties["brokerName"] == "broker-a"


@pytest.mark.parametrize(
    ("host", "shown"), [("localhost", r"127\.0\.0\.1:\d+"), ("::1", r"\[::1\]:\d+")]
)
def test_a_host_is_a_name_or_an_ipv4_or_ipv6_address(tmp_path: Path, host: str, shown: str) -> None:
    options = ("--host", host, "--port", "0", "--home", str(tmp_path), "-n", "127.0.0.1:1")
    with daemon(tmp_path, [*BROKER, *options]).start() as process:
        assert re.search(rf"The broker\[broker-a, {shown}\] boot success", process.output())
        assert process.stop() == 0


@pytest.mark.parametrize("line", ["bindAddress=nosuch.invalid", "brokerIP1=my host"])
def test_an_unknown_host_name_is_an_error_of_one_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{line}\nlistenPort=0\n")
    ended = run_to_end([*BROKER, "-c", str(file), "--home", str(tmp_path)])
    assert ended.returncode == 1
    name = line.partition("=")[2]
    assert ended.stderr.startswith(f"goddard broker: the host name '{name}' cannot be resolved; ")
    assert ended.stderr.count("\n") == 1


def test_unknown_keys_and_the_final_error_are_printed_and_logged(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    strange = "".join(f"strange{number}=1\n" for number in range(11))
    file.write_text("listenPrt=1\naclEnable=true\n" + strange)
    ended = run_to_end([*BROKER, "-c", str(file), "--home", str(tmp_path)])
    assert ended.returncode == 1
    *warnings, last = ended.stderr.splitlines()
    hint = f"unknown key listenPrt in {file}, ignored; did you mean listenPort?"
    assert warnings[0] == f"warning: {hint}"
    assert len(warnings) == 11
    assert warnings[-1] == f"warning: 2 more unknown keys in {file}, ignored"
    refusal = (
        "aclEnable=true is not supported yet: the broker would take requests from anyone; remove "
        "the line to run without"
    )
    assert last == f"goddard broker: {refusal}"
    log = (tmp_path / "logs" / "broker.log").read_text()
    assert hint in log
    assert re.search(rf"goddard broker \(process \d+\) ends: {re.escape(refusal)}", log)


def test_the_log_names_the_folder_of_the_store(tmp_path: Path) -> None:
    options = ("--port", "0", "--home", str(tmp_path), "-n", "127.0.0.1:1")
    with daemon(tmp_path, [*BROKER, *options]).start() as process:
        assert process.stop() == 0
    log = (tmp_path / "logs" / "broker.log").read_text()
    assert f"messages are kept in {tmp_path / 'store'}\n" in log


def test_a_broker_without_an_answering_name_server_warns(tmp_path: Path) -> None:
    options = ("--port", "0", "--home", str(tmp_path), "-n", "127.0.0.1:1;127.0.0.1:2")
    expected = (
        "no name server answers at 127.0.0.1:1, 127.0.0.1:2; start one with `goddard namesrv`"
    )
    with daemon(tmp_path, [*BROKER, *options]).start() as process:
        assert process.stop() == 0
        *_, ready, warning = process.output().splitlines()
    assert "boot success" in ready
    assert warning.startswith(f"warning: {expected}")
    assert expected in (tmp_path / "logs" / "broker.log").read_text()


def test_errors_name_the_options_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    base = [*BROKER, "--home", str(tmp_path / "home"), "--port", "0"]
    unfit = run_to_end([*base, "--data", str(file)])
    assert unfit.returncode == 1
    assert unfit.stderr == (
        f"goddard broker: cannot create {file}: File exists; choose a writable folder with --data\n"
    )
    away = run_to_end([*base, "--host", "192.0.2.1"])
    assert away.returncode == 1
    assert away.stderr == (
        "goddard broker: cannot listen on 192.0.2.1: Cannot assign requested address; choose an "
        "address of this machine with --host\n"
    )
    config = tmp_path / "broker.conf"
    config.write_text("bindAddress=192.0.2.1\nlistenPort=0\n")
    env = environment(ROCKETMQ_HOME=str(tmp_path / "home"))
    java = run_to_end([*MQBROKER, "-c", str(config)], env)
    assert java.stderr.endswith("; choose an address of this machine with bindAddress\n")


def test_mqshutdown_stops_a_broker_and_waits_for_its_end(tmp_path: Path) -> None:
    options = ("--port", "0", "--home", str(tmp_path), "-n", "127.0.0.1:1")
    with daemon(tmp_path, [*BROKER, *options]).start() as process:
        main = "import sys; from goddard.cli import main; sys.argv[0] = 'mqshutdown'; "
        done = run_to_end(
            [sys.executable, "-c", main + "main.mqshutdown()", "broker", "--pid", str(process.pid)]
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            f"The mqbroker({process.pid}) is running...",
            f"Send shutdown request to mqbroker({process.pid}) OK",
        ]
        wait_until(lambda: not process.is_running, 10, "the exit code")
        assert process.exit_code == 0
    assert not (tmp_path / "store" / "abort").exists()
