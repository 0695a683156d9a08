"""The command of ``goddard consume --exec``: its input, its exit code, its last words."""

import pytest

from goddard.cli.verbs.messages.execute import run_command
from goddard.client.message import ReceivedMessage
from goddard.protocol.record import Host, Record

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
