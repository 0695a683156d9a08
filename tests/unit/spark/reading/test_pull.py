"""RangesReader with scripted broker responses: lagging slaves, gaps, inner batches."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import RequestTimeoutError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.message import BatchEntry, SysFlag, encode_batch
from goddard.protocol.record import Host, Record, encode_record
from goddard.spark.options import parse_source
from goddard.spark.reading.offsets import DataLossError, QueueRange
from goddard.spark.reading.pull import RangesReader

_QUEUE = MessageQueue("T", "b", 0)
_HOST = Host.parse("127.0.0.1:10911")
_INNER_BATCH = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
_OPTIONS = {
    "nameServers": "127.0.0.1:1",
    "subscribe": "T",
    "fetchOffset.retryIntervalMs": "1",
    "fetchOffset.numRetries": "5",
    "maxOutage": "0s",
}

# (is slave, queue offset) to the response.
Responder = Callable[[bool, int], RemotingCommand]


class ScriptedSession:
    """A session whose pulls are answered by a function; it has a master and a slave."""

    def __init__(self, respond: Responder, *, has_master: bool = True) -> None:
        self._respond = respond
        self._has_master = has_master
        self.requested: list[str] = []

    def with_namespace(self, name: str) -> str:
        return name

    async def locate(self, _: MessageQueue, broker_id: int = 0) -> tuple[str, bool]:
        return ("slave", True) if broker_id or not self._has_master else ("master", False)

    async def request(self, address: str, command: RemotingCommand, _: int) -> RemotingCommand:
        self.requested.append(address)
        await asyncio.sleep(0)
        return self._respond(address == "slave", int(command.fields["queueOffset"]))


def response(
    code: int, next_offset: int, body: bytes = b"", *, suggested: int = 0
) -> RemotingCommand:
    fields = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": "100",
    }
    return RemotingCommand(code, fields, body=body)


def record(number: int, body: bytes | None = None, sys_flag: int = 0) -> bytes:
    return encode_record(
        Record(
            "T", 0, number, 0, 0, _HOST, 0, _HOST, body or b"%d" % number, b"", sys_flag=sys_flag
        )
    )


async def read(session: ScriptedSession, start: int, end: int, **more: str) -> list[int]:
    options = parse_source(_OPTIONS | more, is_streaming=False)
    reader = RangesReader([QueueRange(_QUEUE, start, end)], options, cast(Session, session), 8)
    found: list[int] = []
    async for chunk in reader.chunks():
        for batch in chunk.pulled.batches(_QUEUE, ["body"], ()):
            found += [int(row["body"]) for row in batch.to_pylist()]
    return found


@pytest.mark.parametrize(
    ("code", "next_offset"),
    [
        # RocketMQ's slaves answer PULL_RETRY_IMMEDIATELY for offsets that they do not have; other
        # implementations and versions answer with the other codes.
        (ResponseCode.PULL_NOT_FOUND, 1),
        (ResponseCode.PULL_OFFSET_MOVED, 0),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, 1),
        # A slave that has deleted more than its master.
        (ResponseCode.PULL_OFFSET_MOVED, 2),
    ],
)
async def test_missing_messages_of_a_slave_are_pulled_from_the_master(
    code: int, next_offset: int
) -> None:
    def respond(is_slave: bool, offset: int) -> RemotingCommand:
        if is_slave:
            return response(code, next_offset, suggested=1)
        return response(ResponseCode.SUCCESS, offset + 1, record(offset), suggested=1)

    session = ScriptedSession(respond)
    assert await read(session, 0, 3) == [0, 1, 2]
    assert session.requested == ["master", "slave", "master", "slave", "master"]


async def test_slave_that_stays_behind_raises_after_retries() -> None:
    session = ScriptedSession(
        lambda _, offset: response(ResponseCode.PULL_NOT_FOUND, offset), has_master=False
    )
    with pytest.raises(Exception, match="slave slave does not have MessageQueue"):
        await read(session, 0, 3)
    assert len(session.requested) == 6


async def test_slave_without_master_reports_data_loss() -> None:
    def respond(_: bool, offset: int) -> RemotingCommand:
        if offset < 2:
            return response(ResponseCode.PULL_OFFSET_MOVED, 2)
        return response(ResponseCode.SUCCESS, offset + 1, record(offset))

    with pytest.raises(DataLossError, match="it begins at 0, offset 0 was requested"):
        await read(ScriptedSession(respond, has_master=False), 0, 3)
    session = ScriptedSession(respond, has_master=False)
    assert await read(session, 0, 3, failOnDataLoss="false") == [2]


async def test_timeout_during_a_pause_does_not_count_as_failure() -> None:
    failures = 0

    def respond(_: bool, offset: int) -> RemotingCommand:
        nonlocal failures
        if offset == 1 and failures < 3:
            failures += 1
            reader.note_pause()
            raise RequestTimeoutError("127.0.0.1:1 did not respond")
        if offset == 2:
            raise RequestTimeoutError("127.0.0.1:1 did not respond")
        return response(ResponseCode.SUCCESS, offset + 1, record(offset))

    options = parse_source(_OPTIONS | {"fetchOffset.numRetries": "0"}, is_streaming=False)
    session = cast(Session, ScriptedSession(respond))
    reader = RangesReader([QueueRange(_QUEUE, 0, 2)], options, session, 8)
    assert [chunk.pulled.count async for chunk in reader.chunks()] == [2]
    reader = RangesReader([QueueRange(_QUEUE, 0, 3)], options, session, 8)
    with pytest.raises(RequestTimeoutError):
        [chunk async for chunk in reader.chunks()]


async def test_missing_messages_in_a_response_are_data_loss() -> None:
    def respond(_: bool, offset: int) -> RemotingCommand:
        return response(ResponseCode.SUCCESS, 4, record(0) + record(3))

    with pytest.raises(DataLossError, match="2 messages from 0 to 4 were deleted"):
        await read(ScriptedSession(respond), 0, 4)
    assert await read(ScriptedSession(respond), 0, 4, failOnDataLoss="false") == [0, 3]
    # With a filter, missing messages are expected.
    assert await read(ScriptedSession(respond), 0, 4, filter="a") == [0, 3]


async def test_inner_batches_are_cut_to_the_range() -> None:
    def batch(begin: int) -> bytes:
        entries = [BatchEntry(b"%d" % number, b"", 0) for number in range(begin, begin + 4)]
        return record(begin, encode_batch(entries), _INNER_BATCH)

    def respond(_: bool, offset: int) -> RemotingCommand:
        begin = offset // 4 * 4
        return response(ResponseCode.SUCCESS, begin + 4, batch(begin))

    assert await read(ScriptedSession(respond), 2, 11) == list(range(2, 11))
    for only in (4, 5, 7):
        assert await read(ScriptedSession(respond), only, only + 1) == [only]
