"""The name server as a process: start, ready line, log lines, signals, exit codes, home."""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import ask
from tests.support.commands import daemon, environment, run_to_end

NAMESRV = [sys.executable, "-m", "goddard.cli.main", "namesrv"]
MQNAMESRV = [sys.executable, "-c", "from goddard.cli.main import mqnamesrv; mqnamesrv()"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Process]:
    command = [*NAMESRV, "--port", "0", "--home", str(tmp_path / "home")]
    with daemon(tmp_path, command).start() as process:
        yield process


def address_of(process: Process) -> str:
    found = re.search(r"address (\S+)$", process.output(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_ready_line_has_the_address(running: Process) -> None:
    address = address_of(running)
    assert running.output() == (
        f"The Name Server boot success. serializeType=JSON, address {address}\n"
    )
    assert address.startswith("127.0.0.1:")
    answer = ask(address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert answer.code == 0


def test_services_log_their_start_and_end(running: Process, tmp_path: Path) -> None:
    assert running.stop() == 0
    log = (tmp_path / "home" / "logs" / "namesrv.log").read_text()
    for service in ("NettyEventExecutor", "FileWatchService", "NSScanScheduledThread"):
        assert f"{service} service started\n" in log
        assert f"{service} service end\n" in log
    assert "ERROR" not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it(running: Process, number: signal.Signals) -> None:
    host, _, port = address_of(running).rpartition(":")
    # An open connection does not delay the stop.
    with socket.create_connection((host, int(port)), 5) as idle:
        os.kill(running.pid, number)
        wait_until(lambda: not running.is_running, 60, "the end of the process")
        assert running.exit_code == 0
        idle.settimeout(5)
        assert idle.recv(1) == b""


def test_restart_on_the_same_port(running: Process, tmp_path: Path) -> None:
    address = address_of(running)
    running.kill()
    command = [*NAMESRV, "--port", address.rpartition(":")[2], "--home", str(tmp_path / "home")]
    with daemon(tmp_path / "second", command).start() as second:
        assert address_of(second) == address


@pytest.mark.parametrize("line", ["", "bindAddress=\n"])
def test_an_empty_host_is_an_error_of_one_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(f"listenPort=0\n{line}")
    options = () if line else ("--host", "")
    ended = run_to_end([*NAMESRV, "-c", str(file), "--home", str(tmp_path), *options])
    assert ended.returncode == 1
    assert ended.stderr.startswith("goddard namesrv: the host name '' cannot be resolved; give an ")
    assert ended.stderr.count("\n") == 1


def test_a_port_in_use_is_reported_in_one_line(running: Process, tmp_path: Path) -> None:
    address = address_of(running)
    port = address.rpartition(":")[2]
    result = run_to_end([*NAMESRV, "--port", port, "--home", str(tmp_path / "other")])
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"goddard namesrv: cannot listen on {address}")
    assert len(result.stderr.splitlines()) == 1


def test_mqnamesrv_needs_rocketmq_home(tmp_path: Path) -> None:
    result = run_to_end(MQNAMESRV)
    assert result.returncode == 254
    assert result.stdout == (
        "Please set the ROCKETMQ_HOME variable in your environment to match the location of the "
        "RocketMQ installation\n"
    )


@pytest.mark.parametrize("source", ["variable", "definition", "property"])
def test_mqnamesrv_takes_its_home_as_java_does(tmp_path: Path, source: str) -> None:
    home = tmp_path / "rocketmq"
    config = tmp_path / "namesrv.conf"
    lines = ["listenPort=0", "bindAddress=127.0.0.1"]
    env = environment(HOME=str(tmp_path))
    arguments = ["-c", str(config)]
    if source == "variable":
        env["ROCKETMQ_HOME"] = str(home)
    elif source == "definition":
        arguments += ["-D", f"rocketmq.home.dir={home}"]
    else:
        lines.append(f"rocketmqHome={home}")
    config.write_text("\n".join(lines))
    with daemon(tmp_path, [*MQNAMESRV, *arguments, "-n", "ignored:9876"], env).start() as process:
        assert process.output().startswith(f"load config properties file OK, {config}\n")
        fields = {"namespace": "n", "key": "k", "value": "v"}
        answer = ask(address_of(process), RemotingCommand(RequestCode.PUT_KV_CONFIG, fields))
        assert answer.code == 0
        assert process.stop() == 0
    assert (home / "logs" / "namesrv.log").exists()
    # Java stores the table below the user's home, not below ROCKETMQ_HOME.
    assert (tmp_path / "namesrv" / "kvConfig.json").exists()


def test_the_level_of_logback_namesrv_xml_is_honoured(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "logback_namesrv.xml").write_text(
        '<configuration><root level="WARN"/></configuration>'
    )
    command = [*NAMESRV, "--port", "0", "--home", str(home)]
    with daemon(tmp_path, command).start() as process:
        assert process.stop() == 0
    assert (home / "logs" / "namesrv.log").read_text() == ""


def test_changed_settings_survive_a_restart(tmp_path: Path) -> None:
    command = [*NAMESRV, "--port", "0", "--home", str(tmp_path / "home")]
    update = RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
    with daemon(tmp_path, command).start() as process:
        assert ask(address_of(process), update).code == 0
        process.restart()
        assert address_of(process).startswith("127.0.0.1:")
        shown = ask(address_of(process), RemotingCommand(RequestCode.GET_NAMESRV_CONFIG))
    assert b"orderMessageEnable=true\n" in bytes(shown.body)


def test_stored_settings_change_neither_files_nor_port(tmp_path: Path) -> None:
    """They are from an earlier start, which may have had other paths."""
    kept = tmp_path / "namesrv" / "namesrv.properties"
    kept.parent.mkdir()
    kept.write_text("listenPort=1\nkvConfigPath=/elsewhere\norderMessageEnable=true\n")
    result = run_to_end([*NAMESRV, "--home", str(tmp_path), "-p"])
    assert "listenPort=9876\n" in result.stdout
    assert f"kvConfigPath={tmp_path}/namesrv/kvConfig.json\n" in result.stdout
    assert "orderMessageEnable=true\n" in result.stdout


def test_print_config_items_and_exit(tmp_path: Path) -> None:
    config = tmp_path / "namesrv.conf"
    config.write_text("listenPort=19876\n")
    result = run_to_end([*MQNAMESRV, "-c", str(config), "-p"])
    assert result.returncode == 0
    assert "listenPort=19876\n" in result.stdout
    assert "scanNotActiveBrokerInterval=5000\n" in result.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"listenPort=many\n", "listenPort=many: a whole number is needed"),
        (b"orderMessageEnable=perhaps\n", "true or false is needed"),
        (b"a=\\u12\n", "malformed"),
        (b"a=\xff\n", "not UTF-8"),
        (b"tls.server.mode=maybe\n", "tls.server.mode=maybe"),
        (b"tls.server.mode=enforcing\n", "tls.server.certPath"),
        (b"tls.server.certPath=/nonexistent.pem\n", "/nonexistent.pem"),
        (b"bindAddress=no.such.host.invalid\n", "no.such.host.invalid"),
    ],
)
def test_an_invalid_configuration_file_is_reported_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    config = tmp_path / "namesrv.conf"
    config.write_bytes(b"rocketmqHome=" + str(tmp_path).encode() + b"\n" + content)
    result = run_to_end([*MQNAMESRV, "-c", str(config)])
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.startswith("mqnamesrv: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_missing_file_is_reported() -> None:
    result = run_to_end([*MQNAMESRV, "-c", "/nonexistent/namesrv.conf"])
    assert result.returncode == 1
    assert "/nonexistent/namesrv.conf cannot be read" in result.stderr


def test_a_damaged_kv_file_prevents_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "namesrv"
    folder.mkdir(parents=True)
    (folder / "kvConfig.json").write_text("{broken")
    result = run_to_end([*NAMESRV, "--port", "0", "--home", str(tmp_path / "home")])
    assert result.returncode == 1
    assert "kvConfig.json cannot be read" in result.stderr
    assert (folder / "kvConfig.json").read_text() == "{broken"


def test_wrong_options_are_reported() -> None:
    assert run_to_end([*MQNAMESRV, "--nonsense"]).returncode == 1
    assert run_to_end([*NAMESRV, "--port", "70000"]).returncode == 2
    helped = run_to_end([*MQNAMESRV, "-h"])
    assert helped.returncode == 0
    assert "--printConfigItem" in helped.stdout


def test_it_is_small_and_imports_no_heavy_library(running: Process) -> None:
    status = Path(f"/proc/{running.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    assert int(resident[1]) < 60 * 1024
    maps = Path(f"/proc/{running.pid}/maps").read_text()
    for library in ("numpy", "lz4", "zstandard"):
        assert library not in maps
