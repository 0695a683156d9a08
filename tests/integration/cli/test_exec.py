"""The command of ``goddard consume --exec``: input, exit code, processes and signals."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from goddard.cli.verbs.messages.execute import run_command
from goddard.client.message import ReceivedMessage
from goddard.protocol.record import Host, Record
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from tests.support.command_line import CommandLine

HERE = Host.parse("127.0.0.1:10911")


def message(body: bytes) -> ReceivedMessage:
    record = Record(
        topic="orders",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=1,
        store_host=HERE,
        born_timestamp_ms=1,
        born_host=HERE,
        body=body,
    )
    return ReceivedMessage.from_record(record, "broker-a")


@pytest.mark.parametrize("body", [b"a", b"x" * 1_000_000], ids=["small", "large"])
@pytest.mark.parametrize("command", ["true", "cat > /dev/null", "exec 0<&-; sleep 0.1"])
async def test_a_command_may_read_its_input_or_not(command: str, body: bytes) -> None:
    await run_command(command, message(body))


async def test_a_command_that_ends_at_once_is_no_failure() -> None:
    """It ends before anything could be written to it."""
    for _ in range(20):
        await run_command("true", message(b"a"))


async def test_a_failure_has_the_exit_code_and_the_last_line() -> None:
    with pytest.raises(ChildProcessError, match=r"^exit code 3: no such customer$"):
        await run_command("echo first >&2; echo no such customer >&2; exit 3", message(b""))


async def test_the_command_knows_the_topic(capfd: pytest.CaptureFixture[str]) -> None:
    await run_command('echo "$GODDARD_TOPIC $GODDARD_RETRIES $(cat)"', message(b"body"))
    assert capfd.readouterr().out == "orders 0 body\n"


def written_pid(file: Path) -> int:
    """The process id that a command writes into the file."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 30, "the command runs")
    return int(file.read_text())


async def test_processes_that_the_command_leaves_behind_are_not_awaited(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = f"sleep 60 & echo $! > {file}; echo no such customer >&2; exit 3"
    with pytest.raises(ChildProcessError, match=r"^exit code 3: no such customer$"):
        await asyncio.wait_for(run_command(command, message(b"")), 30)
    os.kill(written_pid(file), signal.SIGKILL)


def test_no_more_messages_than_the_count_are_tried(
    goddard: CommandLine, topic: str, group: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs"
    goddard("produce", topic, "--sharding-key", "s", stdin="1\n2\n3\n4\n5\n")
    options = ("consume", topic, "-g", group, "--count")
    failed = goddard(*options, "3", "--exec", f"echo >> {file}; exit 1", "--retries", "0")
    assert failed.err.endswith("0 messages consumed, 3 failed\n")
    assert file.read_text() == "\n" * 3
    assert len(goddard("dlq", "export", group).json_lines()) == 3
    others = goddard(*options, "2", "--exec", "true")
    assert others.err == "2 messages consumed, 0 failed\n"


def test_ctrl_c_ends_the_command_and_its_message_has_not_failed(
    cluster: Cluster, goddard: CommandLine, topic: str, group: str, tmp_path: Path
) -> None:
    goddard("produce", topic, stdin="1\n")
    file = tmp_path / "pid"
    command = f"echo $$ > {file}; sleep 60; true"
    program = Path(sys.executable).with_name("goddard")
    options = ("-n", cluster.namesrv, "-g", group, "--exec", command, "--retries", "0")
    with subprocess.Popen(
        [program, "consume", topic, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        written_pid(file)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        # All processes that have its standard output must end.
        _, errors = process.communicate(timeout=30)
    assert errors == "0 messages consumed, 0 failed\n"
    again = goddard("consume", topic, "-g", group, "--exec", "true", "--count", "1")
    assert again.err == "1 message consumed, 0 failed\n"
