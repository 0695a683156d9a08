"""Check-backs without a broker: how many may wait, and what listeners may return."""

import asyncio
from typing import Any

import pytest

from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.transactions import TransactionProducer, TransactionState, decided
from goddard.errors import ConfigError
from goddard.protocol.headers_message import CheckTransactionRequest
from goddard.protocol.record import Host, Record

HEADER = CheckTransactionRequest(tran_state_table_offset=1, commit_log_offset=2)


class Waiting:
    """Never knows."""

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


async def test_checks_that_find_no_room_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    listener = Waiting()
    checked = producer(listener, check_threads=2, max_waiting_checks=5)
    for _ in range(7):
        await checked.check_transaction(half(), HEADER, "127.0.0.1:1")
    await asyncio.sleep(0)
    assert listener.checks == 2
    assert caplog.text.count("one of T is dropped") == 2
    await checked.stop()


@pytest.mark.parametrize("state", TransactionState)
def test_what_a_listener_decided(state: TransactionState) -> None:
    assert decided(state) is state


def test_a_listener_that_says_nothing_of_use(caplog: pytest.LogCaptureFixture) -> None:
    assert decided(None) is TransactionState.UNKNOWN
    assert not caplog.text
    assert decided(True) is TransactionState.UNKNOWN
    assert "returned True, which is no TransactionState" in caplog.text


@pytest.mark.parametrize("name", ["check_threads", "execute_threads", "max_waiting_checks"])
def test_options_out_of_range(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        producer(Waiting(), **{name: 0})
