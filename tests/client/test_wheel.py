"""The wheel without extras, built and installed into a new environment.

The environment has only the wheel's dependencies, as after ``pip install .``.
"""

import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from goddard.testing.site import Site

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WAIT_SECONDS = 90
CLIENT_NEEDS = ("isal", "lz4", "msgspec", "uvloop", "zstandard")
EXTRAS_ONLY = ("click", "numpy", "pyarrow", "pyspark", "rich")
INSTALL = "pip install '.[server]' in the source folder of Goddard"

USERS_PROGRAM = '''\
"""Uses every class of the public API; must pass strict type checks."""

import asyncio
from concurrent.futures import Future
from typing import Any

import goddard
from goddard import (
    Admin, ConsumeContext, ConsumeFrom, ConsumeResult, Credentials, LitePullConsumer, Message,
    MessageModel, MessageQueue, NoRouteError, OrderlyContext, Producer, PushConsumer,
    ReceivedMessage, SendFailedError, SendResult, SendStatus, Sql, Tags, TransactionProducer,
    TransactionState, aio, create_reply,
)

NAMES = "127.0.0.1:9876"


def sent(future: "Future[SendResult]") -> None:
    print(future.result().message_id)


def send() -> SendStatus:
    with Producer("g", name_servers=NAMES, credentials=Credentials("key", "secret")) as producer:
        message = Message("topic", b"body", tags="a", keys=["k1", "k2"], properties={"x": "1"})
        try:
            result: SendResult = producer.send(message, timeout_ms=1_000)
        except (NoRouteError, SendFailedError) as error:
            print(error.code, error.address, error.advice)
            raise
        future: Future[SendResult] = producer.send_async(message, callback=sent)
        producer.send_oneway(message)
        producer.send_batch([message])
        reply: ReceivedMessage = producer.request(message, timeout_ms=3_000)
        print(reply.body, future.result().queue)
        return result.status


class Ledger:
    def execute(self, message: Message, argument: Any) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK


def transact() -> TransactionState:
    with TransactionProducer("t", Ledger(), name_servers=NAMES) as producer:
        return producer.send_in_transaction(Message("topic", b"body")).state


def concurrently(messages: list[ReceivedMessage], context: ConsumeContext) -> ConsumeResult:
    context.delay_level = 3
    return ConsumeResult.SUCCESS if messages else ConsumeResult.RECONSUME_LATER


def in_order(messages: list[ReceivedMessage], context: OrderlyContext) -> None:
    context.suspend_ms = 100


def consume() -> None:
    consumer = PushConsumer(
        "c", name_servers=NAMES, listener=concurrently, consume_from=ConsumeFrom.FIRST_OFFSET
    )
    consumer.subscribe("topic", Tags("a", "b"))
    consumer.subscribe("other", Sql("x > 1"))
    with consumer:
        pass
    with PushConsumer(
        "o", name_servers=NAMES, listener=in_order, orderly=True,
        message_model=MessageModel.CLUSTERING,
    ) as orderly:
        orderly.subscribe("topic")


def pull() -> list[bytes]:
    with LitePullConsumer("l", name_servers=NAMES) as consumer:
        queue = MessageQueue("topic", "broker", 0)
        consumer.assign([queue])
        consumer.seek_to_begin(queue)
        return [message.body for message in consumer.poll(timeout_ms=100)]


def administer() -> list[str]:
    with Admin(NAMES) as admin:
        admin.create_topic("topic", cluster="DefaultCluster", queues=4)
        return admin.topics()


async def asynchronously() -> SendResult:
    async with aio.Producer("a", name_servers=NAMES) as producer:
        soon: asyncio.Future[SendResult] = producer.send_soon(Message("topic", b"body"))
        await soon
        return await producer.send(Message("topic", b"body"))


version: str = goddard.__version__
'''

WRONG_PROGRAM = """\
from goddard import Message, Prodcuer, Producer

with Producer("g", name_server="127.0.0.1:9876") as producer:
    producer.send("text")
    producer.sned(Message("topic", b""))
"""


def run(*command: str, env: Mapping[str, str] | None = None, typed: str = "") -> str:
    done = subprocess.run(
        command,
        env=env,
        input=typed,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def fail(*command: str) -> str:
    """The standard error of a command that must fail and print nothing on standard output."""
    done = subprocess.run(
        command,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", ".*", "*.so")
    )
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    done = subprocess.run(command, cwd=source, capture_output=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr.decode()
    (built,) = folder.glob("goddard-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Python of an environment with the wheel and the packages that clients need."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in CLIENT_NEEDS:
        _copy_distribution(name, packages)
    yield python
    shutil.rmtree(folder)


def _copy_distribution(name: str, packages: Path) -> None:
    """Copy an installed distribution into another environment, without using the network."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), target)


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, **more}


def test_wheel_has_type_marker_and_plugin_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entries,) = (name for name in names if name.endswith("entry_points.txt"))
        text = archive.read(entries).decode()
    assert "goddard/py.typed" in names
    assert "[pytest11]\ngoddard = goddard.testing.plugin" in text
    assert not [name for name in names if name.startswith(("tests", "tools", "bench"))]


def test_wheel_requires_only_client_packages(wheel: Path) -> None:
    """Therefore the environment of these tests is the one that pip would create."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    requirements = metadata.get_all("Requires-Dist", [])
    required = {re.split(r"[^\w-]", each)[0] for each in requirements if "extra ==" not in each}
    assert required == set(CLIENT_NEEDS)
    assert set(metadata.get_all("Provides-Extra", [])) == {"server", "spark", "all", "dev"}


def test_environment_has_only_client_packages(python: str) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    listed = run(*pip, "list", "--format=freeze").splitlines()
    assert {line.partition("==")[0] for line in listed} == {"goddard", *CLIENT_NEEDS}


@pytest.mark.parametrize(
    "program",
    [("goddard", "up"), ("goddard", "--version"), ("mqbroker",), ("mqnamesrv", "-h")],
)
def test_commands_without_extra_name_the_extra(python: str, program: tuple[str, ...]) -> None:
    name, *arguments = program
    expected = f"{name}: click is not installed; it comes with the extra 'server': {INSTALL}\n"
    assert fail(str(Path(python).with_name(name)), *arguments) == expected


def test_module_without_extra_names_the_extra(python: str) -> None:
    text = fail(python, "-m", "goddard.cli.main", "namesrv")
    assert text == f"goddard: click is not installed; it comes with the extra 'server': {INSTALL}\n"


@pytest.mark.parametrize(
    ("statement", "package", "extra"),
    [
        ("from goddard.broker import Broker", "numpy", "server"),
        ("from goddard.store import MessageStore", "numpy", "server"),
        ("from goddard.spark import spark_session", "numpy", "spark"),
        ("from goddard.spark.session import spark_session", "numpy", "spark"),
        (
            "import goddard.testing, pathlib; goddard.testing.Cluster(pathlib.Path())",
            "click",
            "server",
        ),
    ],
)
def test_imports_without_extra_name_the_extra(
    python: str, statement: str, package: str, extra: str
) -> None:
    last = fail(python, "-c", statement).splitlines()[-1]
    install = INSTALL.replace("server", extra)
    assert last == (
        "goddard.extras.MissingExtraError: "
        f"{package} is not installed; it comes with the extra {extra!r}: {install}"
    )


def test_name_server_runs_without_extras(python: str) -> None:
    program = """
import asyncio
from goddard.config import NameServerConfig
from goddard.nameserver import NameServer

async def main():
    config = NameServerConfig(bind_address="127.0.0.1", listen_port=0)
    async with NameServer(config) as server:
        print(server.port)

asyncio.run(main())
"""
    assert int(run(python, "-c", program, env=clean_environment())) > 0


@pytest.mark.parametrize("site", ["goddard"], indirect=True)
def test_quickstart_runs_without_extras(site: Site, python: str) -> None:
    env = clean_environment(NAMESRV_ADDR=site.namesrv)
    shown = run(python, str(EXAMPLES / "quickstart_producer.py"), env=env)
    assert shown.count("sendStatus=SEND_OK") == 1_000
    shown = run(python, str(EXAMPLES / "asyncio_client.py"), env=env)
    assert "1000 received" in shown


@pytest.mark.parametrize("name", ["Producer", "PushConsumer", "LitePullConsumer", "Admin"])
def test_clients_do_not_import_server_packages(python: str, name: str) -> None:
    modules = (*EXTRAS_ONLY, "goddard.broker", "goddard.store", "goddard.nameserver", "pytest")
    program = (
        f"import sys; from goddard import {name}; "
        f"print([name for name in {modules} if name in sys.modules])"
    )
    assert run(python, "-c", program, env=clean_environment()).strip() == "[]"


def mypy(python: str, program: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull]
    # A shared cache, so that the library is analysed only once.
    command += ["--cache-dir", str(Path(python).parent / "mypy-cache")]
    command += ["--python-executable", python, program.name]
    return subprocess.run(
        command,
        cwd=program.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def test_correct_program_passes_type_checks(python: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(USERS_PROGRAM)
    done = mypy(python, program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_checks_find_mistakes_of_a_program(python: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WRONG_PROGRAM)
    done = mypy(python, program)
    for mistake in ("Prodcuer", "name_server", 'expected "Message"', "sned"):
        assert mistake in done.stdout
