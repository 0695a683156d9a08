"""What the broker's gate refuses, by role and by load."""

import asyncio
from pathlib import Path

import pytest

from goddard.broker.gate import BrokerGate
from goddard.broker.rules import RULES
from goddard.broker.sending.overload import Overload
from goddard.broker.settings import BrokerConfig, Settings
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.options import ConnectionOptions
from tests.support.broker_parts import broker_parts
from tests.support.store import prepared

STORES = {10, 36, 37, 310, 320, 323, 324, 325}
WRITES = STORES | {17, 18, 41, 42, 200, 207, 215, 222, 225, 314, 353}


@pytest.mark.parametrize("code", sorted(RULES))
@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SLAVE", "acting"])
async def test_a_slave_refuses_every_write(tmp_path: Path, code: int, role: str) -> None:
    async with broker_parts(tmp_path) as parts:
        config = BrokerConfig(
            broker_role="SLAVE" if role == "acting" else role,
            enable_slave_acting_master=role == "acting",
        )
        gate = BrokerGate(Overload(parts.appender, parts.settings), Settings(config))
        connection = Connection(ConnectionOptions(), Handlers())
        answer = gate.refusal(RemotingCommand(code), RULES[code], connection)
        is_refused = role != "ASYNC_MASTER" and code in WRITES
        assert (answer is not None) is is_refused
        assert (gate.room(RULES[code]) == 0) is is_refused


@pytest.mark.parametrize("code", sorted(RULES))
async def test_an_overloaded_broker_refuses_every_request_that_stores_messages(
    tmp_path: Path, code: int
) -> None:
    async with broker_parts(tmp_path, send_queue_capacity=2) as parts:
        gate = BrokerGate(Overload(parts.appender, parts.settings), parts.settings)
        connection = Connection(ConnectionOptions(), Handlers())
        rule = RULES[code]
        assert gate.refusal(RemotingCommand(code), rule, connection) is None
        for room in (2, 1):
            if code in STORES:
                assert gate.room(rule) == room
            parts.appender.submit([prepared("T")], lambda entries, error: None)
        answer = gate.refusal(RemotingCommand(code), rule, connection)
        if code in STORES:
            assert answer is not None
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert (answer.remark or "").startswith("[OVERLOAD]")
            assert gate.room(rule) == 0
        else:
            assert answer is None
            assert gate.room(rule) > 2
        await asyncio.sleep(0)


def test_the_rules_say_where_the_resources_are() -> None:
    """Requests that point to a stored record are checked with its topic, not by the header's."""
    from_record = {code for code, rule in RULES.items() if "FromRecord" in repr(rule.resources)}
    assert from_record == {33, 36, 37, 309, 323}
    assert "topic='b'" in repr(RULES[RequestCode.SEND_MESSAGE_V2].resources)
