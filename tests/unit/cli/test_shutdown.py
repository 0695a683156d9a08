"""``mqshutdown``: which processes are servers of Goddard."""

import os
import signal

import pytest

from goddard.cli import shutdown
from goddard.cli.shutdown import run_mqshutdown, server_of


@pytest.mark.parametrize(
    ("line", "server"),
    [
        ("python3 /venv/bin/mqbroker -c broker.conf", "broker"),
        ("/venv/bin/python /venv/bin/mqnamesrv", "namesrv"),
        ("mqbroker", "broker"),
        ("python3 -u /venv/bin/goddard broker --port 0", "broker"),
        ("python3 -m goddard.cli.main namesrv", "namesrv"),
        ("python3 -m goddard.cli.main broker --with-parent", None),
        ("python3 /venv/bin/goddard up --brokers 2", None),
        ("python3 /venv/bin/goddard", None),
        ("java -cp x org.apache.rocketmq.broker.BrokerStartup", None),
        ("python3.12 -W error -X dev /venv/bin/mqbroker", "broker"),
        ("vim /etc/mqbroker", None),
        ("python3 -c mqbroker()", None),
        ("tail -f goddard broker", None),
        ("", None),
    ],
)
def test_servers_are_recognised_by_their_command_line(line: str, server: str | None) -> None:
    assert server_of(line.split()) == server


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["proxy"], 1, "Goddard has no proxy"),
        (["everything"], 1, "'everything' is not one of"),
        ([], 1, "Missing argument"),
        (["broker", "--pid", "1"], 255, "1 is not a mqbroker."),
        (["broker", "--pid", "0"], 1, "0 is not in the range"),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_mqshutdown(arguments) == code
    printed = capsys.readouterr()
    assert text in printed.out + printed.err


def test_a_broker_of_another_user_does_not_spare_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = {10, 11}

    def kill(number: int, sent: int) -> None:
        if number == 10:
            raise PermissionError
        if number not in running:
            raise ProcessLookupError
        if sent == signal.SIGTERM:
            running.remove(number)

    monkeypatch.setattr(shutdown, "_processes", lambda: [(10, ["mqbroker"]), (11, ["mqbroker"])])
    monkeypatch.setattr(os, "kill", kill)
    assert run_mqshutdown(["broker"]) == 1
    assert running == {10}
    printed = capsys.readouterr()
    assert "mqbroker(10) belongs to another user" in printed.err
    assert "Send shutdown request to mqbroker(11) OK" in printed.out
