"""The files in ``distribution``: configurations, units and images start what they promise."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.config import read_properties
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import query_brokers
from tests.support.commands import daemon, environment, run_to_end

ROOT = Path(__file__).parents[2]
DISTRIBUTION = ROOT / "distribution"
PROGRAMS = Path(sys.executable).parent
CONFIGURATIONS = sorted((DISTRIBUTION / "conf").rglob("broker*"))
UNITS = sorted((DISTRIBUTION / "systemd").iterdir())
COMPOSE = (DISTRIBUTION / "docker" / "compose.yaml").read_text()


def test_the_sample_configurations_are_those_of_rocketmq() -> None:
    pairs = [f"broker-{name}{suffix}.properties" for name in "ab" for suffix in ("", "-s")]
    assert {str(path.relative_to(DISTRIBUTION / "conf")) for path in CONFIGURATIONS} == {
        "broker.conf",
        *(f"2m-noslave/broker-{name}.properties" for name in "ab"),
        *(f"2m-2s-{kind}/{name}" for kind in ("async", "sync") for name in pairs),
    }


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_broker_accepts_each_sample(path: Path, tmp_path: Path) -> None:
    printed = run_to_end(
        [str(PROGRAMS / "mqbroker"), "-c", str(path), "-p"],
        environment(ROCKETMQ_HOME=str(tmp_path)),
    )
    assert (printed.returncode, printed.stderr) == (0, ""), printed.stdout
    values = dict(line.partition("=")[::2] for line in printed.stdout.splitlines())
    expected = read_properties(path)
    assert {name: values.get(name) for name in expected} == expected


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The address of the name server of the compose file, on a free port."""
    (tmp_path / "namesrv.conf").write_text("listenPort=0\nbindAddress=127.0.0.1\n")
    command = [*compose_command("mqnamesrv"), "-c", "namesrv.conf"]
    with daemon(tmp_path, command, environment(ROCKETMQ_HOME=str(tmp_path))).start() as process:
        yield printed_address(process, r"address (\S+)")


def printed_address(process: Process, pattern: str) -> str:
    found = re.search(pattern, process.output())
    assert found is not None
    return found[1]


def compose_command(program: str) -> list[str]:
    """A command of the compose file, as a command of this environment."""
    lists = [json.loads(text) for text in re.findall(r"command: (\[.*\])", COMPOSE)]
    (command,) = (found for found in lists if found[0] == program)
    return [str(PROGRAMS / program), *command[1:]]


def test_the_commands_of_the_compose_file(tmp_path: Path, name_server: str) -> None:
    content = COMPOSE.partition("content: |\n")[2].replace("${BROKER_IP:-127.0.0.1}", "127.0.0.1")
    folder = tmp_path / "broker"
    folder.mkdir()
    lines = [line.strip() for line in content.splitlines()]
    home = f"storePathRootDir={folder / 'store'}"
    (folder / "broker.conf").write_text("\n".join([*lines, "listenPort=0", home]))
    replaced = {"namesrv:9876": name_server, "/etc/goddard/broker.conf": "broker.conf"}
    command = [replaced.get(word, word) for word in compose_command("mqbroker")]
    with daemon(folder, command, environment(ROCKETMQ_HOME=str(folder))).start() as broker:
        address = printed_address(broker, r"broker\[broker-a, (\S+)\] boot")
        assert query_brokers(name_server) == {"broker-a": {0: address}}
        (check,) = re.findall(r'test: (\["CMD".*\])', COMPOSE)
        healthy = [
            {"goddard": str(PROGRAMS / "goddard"), "127.0.0.1:9876": name_server}.get(w, w)
            for w in json.loads(check)[1:]
        ]
        listed = run_to_end(healthy)
        assert (listed.returncode, listed.stderr) == (0, "")
        assert "broker-a" in listed.stdout
        assert broker.stop() == 0


def test_the_command_of_the_image(tmp_path: Path) -> None:
    dockerfile = (DISTRIBUTION / "docker" / "Dockerfile").read_text()
    (text,) = re.findall(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)
    program, *arguments = json.loads(text)
    replaced = {"0.0.0.0": "127.0.0.1", "/home/rocketmq/store": str(tmp_path)}
    command = [str(PROGRAMS / program), *(replaced.get(word, word) for word in arguments)]
    ports = ["--port", "0", "--broker-port", "0"]
    with Process(
        "image", [*command, *ports], log=tmp_path / "output.log", ready="Ctrl-C stops it"
    ).start() as process:
        assert process.stop() == 0
    for source in re.findall(r"^COPY (?!--from)(\S+) ", dockerfile, re.MULTILINE):
        assert (ROOT / source).exists()


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_master_and_its_slave(kind: str, tmp_path: Path, name_server: str) -> None:
    brokers = []
    for name in ("broker-a", "broker-a-s"):
        folder = tmp_path / name
        folder.mkdir()
        sample = DISTRIBUTION / "conf" / f"2m-2s-{kind}" / f"{name}.properties"
        own = ["listenPort=0", "haListenPort=0", "brokerIP1=127.0.0.1", "brokerIP2=127.0.0.1"]
        own.append(f"storePathRootDir={folder / 'store'}")
        (folder / "broker.conf").write_text("\n".join([sample.read_text(), *own]))
        command = [str(PROGRAMS / "mqbroker"), "-n", name_server, "-c", "broker.conf"]
        brokers.append(daemon(folder, command, environment(ROCKETMQ_HOME=str(folder))))
    master, slave = brokers
    with master.start(), slave.start():
        wait_until(
            lambda: query_brokers(name_server).get("broker-a", {}).keys() == {0, 1},
            30,
            "both are registered",
        )
        sent = run_to_end(
            [str(PROGRAMS / "goddard"), "topic", "create", "orders", "-n", name_server]
        )
        assert sent.returncode == 0, sent.stderr
        body = [str(PROGRAMS / "goddard"), "message", "send", "orders", "hello"]
        wait_until(lambda: run_to_end([*body, "-n", name_server]).returncode == 0, 30, "SEND_OK")
        assert slave.stop() == 0
        assert master.stop() == 0


def exec_start(unit: Path) -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_the_command_of_each_unit(unit: Path, tmp_path: Path) -> None:
    configuration = "listenPort=0\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n"
    (tmp_path / "broker-a.conf").write_text(configuration)
    (tmp_path / "namesrv.conf").write_text("listenPort=0\nbindAddress=127.0.0.1\n")
    places = {"/opt/goddard/bin": PROGRAMS, "/etc/goddard": tmp_path, "/var/lib/goddard": tmp_path}
    command = [word.replace("%i", "broker-a") for word in exec_start(unit)]
    for place, here in places.items():
        command = [word.replace(place, str(here)) for word in command]
    env = environment(ROCKETMQ_HOME=str(tmp_path / "home"), NAMESRV_ADDR="127.0.0.1:1")
    with daemon(tmp_path, command, env).start() as process:
        assert process.stop() == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace("/opt/goddard/bin", str(PROGRAMS))
        instance = unit.name.replace("@.", "@broker-a.")
        (tmp_path / instance).write_text(text.replace("User=goddard", "User=root"))
    names = [str(path) for path in tmp_path.iterdir()]
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(SYSTEMD_UNIT_PATH=f"{tmp_path}:"),
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_program_of_the_files_is_installed() -> None:
    text = "".join(path.read_text() for path in DISTRIBUTION.rglob("*") if path.is_file())
    named = set(re.findall(r"\bmq(?:broker|namesrv|shutdown|admin)\b", text))
    assert {name for name in named if not (PROGRAMS / name).exists()} == set()
