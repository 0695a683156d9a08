"""Transaction checks without a broker: their limit, and the decisions of listeners."""

import asyncio
from typing import Any

import pytest

from goddard.client.message import Message, ReceivedMessage
from goddard.client.options import session_options
from goddard.client.produce.transactions import (
    ListenerCalls,
    TransactionChecks,
    TransactionProducer,
    state_of,
)
from goddard.client.session import Session
from goddard.client.values import TransactionState
from goddard.environment import Environment
from goddard.errors import ConfigError
from goddard.protocol.headers.message import CheckTransactionRequest
from goddard.protocol.record import Host, Record

HEADER = CheckTransactionRequest(tran_state_table_offset=1, commit_log_offset=2)


class Waiting:
    """A listener that never decides."""

    def __init__(self) -> None:
        self.checks = 0

    async def execute(self, message: Message, argument: Any) -> TransactionState:
        return TransactionState.UNKNOWN

    async def check(self, message: ReceivedMessage) -> TransactionState:
        self.checks += 1
        await asyncio.Event().wait()
        return TransactionState.UNKNOWN


def half() -> ReceivedMessage:
    host = Host(bytes(4), 0)
    return ReceivedMessage.from_record(Record("T", 0, 0, 0, 0, host, 0, host, b"x"), "broker-a")


def producer(listener: Waiting, **options: Any) -> TransactionProducer:
    return TransactionProducer("senders", listener, name_servers="127.0.0.1:9876", **options)


async def test_checks_beyond_the_limit_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    listener = Waiting()
    calls = ListenerCalls(listener, execute_threads=1, check_threads=2)
    checks = TransactionChecks(calls, [], max_running=2, max_waiting=5)
    session = Session(session_options("127.0.0.1:9876", {}), environment=Environment())
    for _ in range(7):
        checks.submit(session, half(), HEADER, "127.0.0.1:1")
    await asyncio.sleep(0)
    assert listener.checks == 2
    assert caplog.text.count("a check of topic T is dropped") == 2
    await checks.stop()


@pytest.mark.parametrize("state", TransactionState)
def test_state_of_a_decision(state: TransactionState) -> None:
    assert state_of(state) is state


def test_invalid_decisions_are_unknown(caplog: pytest.LogCaptureFixture) -> None:
    assert state_of(None) is TransactionState.UNKNOWN
    assert not caplog.text
    assert state_of(True) is TransactionState.UNKNOWN
    assert "returned True, which is not a TransactionState" in caplog.text


@pytest.mark.parametrize("name", ["check_threads", "execute_threads", "max_waiting_checks"])
def test_options_out_of_range(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        producer(Waiting(), **{name: 0})
