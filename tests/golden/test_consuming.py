"""Recorded requests of RocketMQ's consumers, replayed byte for byte to our broker's consuming side.

Each file of the recordings is replayed on one clock that follows the recording. A request goes out
when it did, and its answer is compared when the recorded one came, so held pulls wait, wake and
time out as recorded. Queues are filled with the recorded messages just before the answer that first
contains them.

Compared are code, remark and fields of every answer, the messages of pulls except for position and
store time, and lists and locks as sets. Values that depend on the run (times) or on other files
(offsets committed there) are set before.
"""

import asyncio
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from goddard.protocol import fastjson
from goddard.protocol.codes import VERSION_5_0_0, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, decode_frame
from goddard.protocol.record import Record
from goddard.store.log.records import PreparedRecord
from tests.support.consumer_harness import Consumer, ConsumerHarness, records_of
from tests.support.store import prepared

WIRE = Path(__file__).parent / "data" / "wire"
FILES = sorted(
    path.relative_to(WIRE).as_posix()
    for path in WIRE.glob("c*/*consumer*.jsonl*")
    if "acl" not in path.name
)
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
REPLAYED = {
    *PULLS,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG,
}
# An answer that came sooner was not held.
PROMPT_MS = 500


@dataclass
class Exchange:
    connection: int
    frame: bytes
    request: RemotingCommand
    sent_ms: int
    answer: RemotingCommand | None = None
    answered_ms: int = 0
    opaque: int = 0


def recorded(file: Path) -> list[Exchange]:
    exchanges: list[Exchange] = []
    waiting: dict[tuple[int, int], Exchange] = {}
    for item in _items(file):
        if item["peer"] != "broker":
            continue
        frame = bytes.fromhex(item["hex"])
        command = decode_frame(memoryview(frame)[4:])
        key = (item["conn"], command.opaque)
        if item["dir"] == "c2s" and not command.is_response:
            exchange = Exchange(item["conn"], frame, command, item["ms"])
            exchanges.append(exchange)
            waiting[key] = exchange
        elif item["dir"] == "s2c" and command.is_response and key in waiting:
            exchange = waiting.pop(key)
            exchange.answer, exchange.answered_ms = command, item["ms"]
    return [exchange for exchange in exchanges if is_replayed(exchange)]


def is_replayed(exchange: Exchange) -> bool:
    request, answer = exchange.request, exchange.answer
    if request.code not in REPLAYED:
        return False
    if answer is None or answer.version >= VERSION_5_0_0:
        return True
    # 4.9.4 has neither this field nor lite pulls.
    is_unknown = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return not is_unknown and "setZeroIfNotFound" not in request.fields


def _items(file: Path) -> Iterator[dict[str, Any]]:
    if file.suffix == ".gz":
        with gzip.open(file, "rt") as lines:
            yield from map(json.loads, lines)
    else:
        with file.open() as lines:
            yield from map(json.loads, lines)


class Replay:
    """One recording against one harness."""

    def __init__(self, harness: ConsumerHarness, exchanges: list[Exchange]) -> None:
        self.harness = harness
        self.compared = 0
        self._consumers: dict[int, Consumer] = {}
        self._exchanges = exchanges
        # Every message in any answer, by queue and offset.
        self._messages: dict[tuple[str, int, int], Record] = {}
        for exchange in exchanges:
            if exchange.request.code in PULLS and exchange.answer is not None:
                for record in records_of(exchange.answer):
                    place = (record.topic, record.queue_id, record.queue_offset)
                    self._messages[place] = record

    async def run(self) -> None:
        events = [(exchange.sent_ms, 0, exchange) for exchange in self._exchanges] + [
            (exchange.answered_ms, 1, exchange)
            for exchange in self._exchanges
            if exchange.answer is not None
        ]
        now_ms = 0
        for time_ms, kind, exchange in sorted(events, key=lambda event: event[:2]):
            if time_ms > now_ms:
                self.harness.clock.advance(time_ms - now_ms)
                self.harness.parked_pulls.expire()
                now_ms = time_ms
            if kind == 0:
                await self._send(exchange)
            else:
                await self._check(exchange)

    async def _send(self, exchange: Exchange) -> None:
        fields = exchange.request.fields
        topic = fields.get("topic")
        if topic is not None and topic not in self.harness.topics:
            self.harness.add_topic(topic, queues=1 if topic.startswith("%") else 4)
        if exchange.answer is None or exchange.answered_ms - exchange.sent_ms < PROMPT_MS:
            self._prepare(exchange)
        if exchange.connection not in self._consumers:
            self._consumers[exchange.connection] = self.harness.connect(lane=True)
        self._consumers[exchange.connection].peer.transport.write(exchange.frame)
        # In memory, a request is handled within a few iterations of the loop.
        for _ in range(5):
            await asyncio.sleep(0)

    def _prepare(self, exchange: Exchange) -> None:
        """Bring the harness into the state in which the recorded answer was given."""
        request, answer = exchange.request, exchange.answer
        if answer is None:
            return
        fields = answer.fields
        topic, queue_id = request.fields.get("topic", ""), int(request.fields.get("queueId", 0))
        if request.code in PULLS and "maxOffset" in fields:
            if answer.remark == "OFFSET_RESET":
                offset = int(fields["nextBeginOffset"])
                group = request.fields["consumerGroup"]
                self.harness.offsets.reset(group, topic, queue_id, offset)
            self._fill(topic, queue_id, int(fields["maxOffset"]))
        elif request.code == RequestCode.GET_MAX_OFFSET:
            self._fill(topic, queue_id, int(fields["offset"]))
        elif request.code == RequestCode.QUERY_CONSUMER_OFFSET and "offset" in fields:
            group, offset = request.fields["consumerGroup"], int(fields["offset"])
            known = self.harness.offsets.query(group, topic, queue_id)
            if known < 0 and offset > 0:
                self.harness.offsets.commit(group, topic, queue_id, offset, "another file")
            if known < 0 and offset == 0:
                self._fill(topic, queue_id, 1)
        elif answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return
        elif request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.harness.groups.find(request.fields["consumerGroup"])

    def _fill(self, topic: str, queue_id: int, count: int) -> None:
        start = self.harness.store.max_offset(topic, queue_id)
        records = [
            self._message(topic, queue_id, queue_offset) for queue_offset in range(start, count)
        ]
        if records:
            self.harness.store.put_many(records)

    def _message(self, topic: str, queue_id: int, queue_offset: int) -> PreparedRecord:
        known = self._messages.get((topic, queue_id, queue_offset))
        if known is None:
            # No answer contains it: every filter of the recording rejected it.
            return prepared(topic, queue_id, b"unseen", tags="Unseen")
        return prepared(
            topic,
            queue_id,
            known.body,
            properties=known.properties,
            flag=known.flag,
            sys_flag=known.sys_flag,
            born_timestamp_ms=known.born_timestamp_ms,
            born_host=known.born_host,
            reconsume_times=known.reconsume_times,
            prepared_transaction_offset=known.prepared_transaction_offset,
        )

    async def _check(self, exchange: Exchange) -> None:
        request, expected = exchange.request, exchange.answer
        assert expected is not None
        if exchange.answered_ms - exchange.sent_ms >= PROMPT_MS:
            self._prepare(exchange)
            if expected.remark == "NO_MATCHED_MESSAGE":
                # The periodic check of all queues, which each broker runs at its own times.
                self.harness.clock.advance(5_000)
                self.harness.parked_pulls.expire()
        ours = await self._consumers[exchange.connection].answer(request.opaque)
        if ResponseCode.SUBSCRIPTION_NOT_LATEST in (ours.code, expected.code):
            # Whether the heartbeat or the pull was handled first depended on threads.
            assert request.fields["subVersion"] > "0"
            return
        note = f"{RequestCode(request.code).name} {request.fields} {request.body!r}"
        assert ours.serialize_type == request.serialize_type
        assert ours.code == modern(expected), f"{note}: {ours.remark}"
        if request.code in PULLS:
            assert normal(ours.remark) == normal(expected.remark), note
            assert shown(ours.fields) == shown(expected.fields), note
            assert seen(ours) == seen(expected), note
        elif request.code == RequestCode.HEART_BEAT:
            # 4.9.4 answers without fields.
            assert not expected.ext_fields or ours.ext_fields == expected.ext_fields, note
        else:
            assert (ours.remark or "") == (expected.remark or ""), note
            assert ours.fields == expected.fields, note
            assert as_sets(ours.body) == as_sets(expected.body), note
        self.compared += 1


def modern(answer: RemotingCommand) -> int:
    """4.9.4 has no code for wrong parameters."""
    if (answer.remark or "").startswith("queueId["):
        return ResponseCode.INVALID_PARAMETER
    return answer.code


def normal(remark: str | None) -> str:
    """Without the address of the consumer."""
    return (remark or "").partition("consumer:[")[0]


def shown(fields: dict[str, str]) -> dict[str, str]:
    """4.9.4 has no flags in the answer to a pull."""
    flags = ("topicSysFlag", "groupSysFlag")
    return {name: value for name, value in fields.items() if name not in flags}


def seen(answer: RemotingCommand) -> list[tuple[Any, ...]]:
    return [
        (
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.body,
            record.properties,
            record.flag,
            record.sys_flag,
            record.born_timestamp_ms,
            record.born_host,
            record.reconsume_times,
        )
        for record in records_of(answer)
    ]


def as_sets(body: bytes | memoryview) -> Any:
    if not body:
        return None
    value = fastjson.loads(bytes(body))
    return {
        key: sorted(map(str, item)) if isinstance(item, list) else item
        for key, item in value.items()
    }


@pytest.mark.parametrize("file", FILES)
async def test_consumers_get_the_recorded_answers(file: str, tmp_path: Path) -> None:
    exchanges = recorded(WIRE / file)
    properties = {"enablePropertyFilter": "true", "brokerName": "broker-golden"}
    with ConsumerHarness(tmp_path, properties=properties) as harness:
        replay = Replay(harness, exchanges)
        async with asyncio.timeout(60):
            await replay.run()
        assert replay.compared > 10
