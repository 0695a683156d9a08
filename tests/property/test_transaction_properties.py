"""Transactions under any sequence of sends, ends, checks, waits and restarts.

The producer of the model ends each transaction once, either by itself or when the broker asks.
Then every committed message is stored exactly once, no other message is, and the broker asks about
no transaction that has ended.
"""

import asyncio
import contextlib
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.broker.rules import register
from goddard.broker.sending.message_rules import NewMessage
from goddard.broker.sending.transactions import Transactions, as_half
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.headers.message import CheckTransactionRequest, EndTransactionRequest
from goddard.protocol.message import TransactionType
from goddard.protocol.names import TRANS_CHECK_MAX_TIME_TOPIC
from goddard.protocol.record import decode_record
from goddard.transport.handlers import Handlers
from tests.support.broker_parts import BrokerParts, broker_parts
from tests.support.clock import ManualClock
from tests.support.memory import RawPeer, join_raw
from tests.support.store import HOST

COMMIT, ROLLBACK = TransactionType.COMMIT, TransactionType.ROLLBACK
UNKNOWN = TransactionType.NONE
# Checks until a half is set aside; the model decides each half before that.
CHECK_MAX = 1_000


@dataclass
class Case:
    """One transaction, as its producer knows it."""

    half_offset: int
    physical_offset: int
    # The producer's answers to checks: the first ones may be "unknown".
    answers: list[TransactionType]
    outcome: TransactionType | None = None
    is_asked: bool = False


sends = st.tuples(
    st.just("send"),
    st.sampled_from([None, 8, 45, 100]),  # immunity in seconds
    st.lists(st.just(UNKNOWN), max_size=2),
    st.sampled_from([COMMIT, ROLLBACK]),
)
ends = st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from([COMMIT, ROLLBACK]))
checks = st.tuples(st.just("check"), st.sampled_from([0, 1, 5_999, 6_001, 31_000]))
others = st.sampled_from([("note",), ("restart",)])


class World:
    def __init__(self, parts: BrokerParts, cases: dict[bytes, Case]) -> None:
        self.parts = parts
        self.cases = cases
        handlers = Handlers()
        self.peer: RawPeer
        self.peer, self.connection = join_raw(handlers)
        self.transactions = Transactions(
            store=parts.store,
            appender=parts.appender,
            writer=parts.writer,
            topics=parts.topics,
            offsets=parts.offset_table,
            settings=parts.settings,
            find_producer={"P": self.connection}.get,
            clock=parts.clock,
        )
        register(handlers, self.transactions.handlers())

    async def close(self) -> None:
        await self.transactions.stop()
        self.connection.close()
        await self.peer.lost.wait()

    async def send(
        self, immunity: int | None, unknowns: list[TransactionType], last: TransactionType
    ) -> None:
        body = b"%d" % len(self.cases)
        properties = {"PGROUP": "P", "TRAN_MSG": "true", "UNIQ_KEY": body.decode()}
        if immunity is not None:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(immunity)
        message = NewMessage(
            topic="T",
            queue_id=0,
            body=body,
            born_timestamp_ms=self.parts.clock.now_ms(),
            born_host=HOST,
            properties=properties,
        )
        entry = await self.parts.writer.write(as_half(message))
        self.cases[body] = Case(entry.queue_offset, entry.physical_offset, [*unknowns, last])

    async def end(self, number: int, decision: TransactionType) -> None:
        """The producer ends a transaction that has not been checked."""
        open_ = [case for case in self.cases.values() if case.outcome is None and not case.is_asked]
        if not open_:
            return
        case = open_[number % len(open_)]
        answer = await self._ask_end(case.half_offset, case.physical_offset, decision, False)
        assert answer in (ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION)
        if answer == ResponseCode.SUCCESS:
            case.outcome = decision

    async def check(self) -> None:
        await self.transactions.check()
        for _ in range(3):
            await asyncio.sleep(0)
        asked = []
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                asked.append(self.peer.received.get_nowait())
        for command in asked:
            header = CheckTransactionRequest.decode(command.fields)
            case = self.cases[decode_record(command.body)[0].body]
            assert case.outcome is None, "asked about a transaction that has ended"
            case.is_asked = True
            decision = case.answers.pop(0) if len(case.answers) > 1 else case.answers[0]
            if decision is not UNKNOWN:
                answer = await self._ask_end(
                    header.tran_state_table_offset, header.commit_log_offset, decision, True
                )
                assert answer == ResponseCode.SUCCESS
                case.outcome = decision

    async def _ask_end(
        self, half_offset: int, physical_offset: int, decision: TransactionType, is_check: bool
    ) -> int:
        header = EndTransactionRequest(
            producer_group="P",
            tran_state_table_offset=half_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=decision,
            from_transaction_check=is_check,
            msg_id="m",
        )
        command = RemotingCommand(RequestCode.END_TRANSACTION, header.encode())
        self.peer.transport.write(encode_frame(command))
        (answer,) = await self.peer.receive(1)
        return answer.code


async def play(root: Path, steps: list[tuple[Any, ...]]) -> None:
    clock = ManualClock()
    cases: dict[bytes, Case] = {}
    remaining = list(steps)
    counts: Counter[bytes] = Counter()
    is_over = False
    while not is_over:
        async with broker_parts(root, clock=clock, transaction_check_max=CHECK_MAX) as parts:
            world = World(parts, cases)
            is_over = await play_until_restart(world, remaining)
            if is_over:
                for _ in range(12):  # by then, all immunities have ended and all answers are given
                    clock.advance(31_000)
                    await world.check()
                counts = Counter(record.body for record in parts.records("T"))
                assert parts.records(TRANS_CHECK_MAX_TIME_TOPIC) == []
            await world.close()
    assert all(case.outcome is not None for case in cases.values())
    assert counts == {body: 1 for body, case in cases.items() if case.outcome is COMMIT}


async def play_until_restart(world: World, steps: list[tuple[Any, ...]]) -> bool:
    while steps:
        match steps.pop(0):
            case ("send", immunity, unknowns, last):
                await world.send(immunity, unknowns, last)
            case ("end", number, decision):
                await world.end(number, decision)
            case ("check", after_ms):
                world.parts.clock.advance(after_ms)
                await world.check()
            case ("note",):
                world.transactions.note_decisions()
                await world.parts.appender.drain()
            case ("restart",):
                return False
    return True


@settings(max_examples=100)
@given(
    st.lists(sends, min_size=1, max_size=4),
    st.lists(st.one_of(ends, checks, checks, sends, others), min_size=3, max_size=20),
)
def test_each_transaction_ends_as_its_producer_decided(
    first: list[tuple[Any, ...]], then: list[tuple[Any, ...]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), [*first, *then]))
