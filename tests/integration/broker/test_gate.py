"""A gate that refuses everything: no request of any code has an effect, on any route."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.broker import Broker
from goddard.broker.rules import RULES
from goddard.broker.settings import BrokerConfig
from goddard.core import IS_COMPILED
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.transport.connection import Connection
from goddard.transport.rules import Rule
from tests.support.consumer_harness import pull_fields
from tests.support.send_harness import send_request

DENIED = 4711
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
QUEUE = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
# A header with every field that some code needs; a decoder ignores the others.
FIELDS = {
    "topic": "T",
    "queueId": "0",
    "group": "G",
    "consumerGroup": "G",
    "producerGroup": "P",
    "groupName": "G",
    "clientId": "client",
    "srcGroup": "G",
    "destGroup": "H",
    "compareGroup": "G",
    "offset": "0",
    "commitOffset": "1",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
    "timestamp": "0",
    "key": "k",
    "maxNum": "1",
    "beginTimestamp": "0",
    "endTimestamp": "1",
    "index": "0",
    "count": "1",
    "delayLevel": "0",
    "tranStateTableOffset": "0",
    "commitLogOffset": "0",
    "commitOrRollback": "8",
    "msgId": "7F00000100002A9F0000000000000000",
    "isForce": "true",
    "isOrder": "false",
    "readable": "false",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
}
GROUP = {"groupName": "G", "consumeEnable": True}
BODIES: dict[int, Any] = {
    RequestCode.HEART_BEAT: {
        "clientID": "client",
        "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [
            {
                "groupName": "G",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}],
            }
        ],
    },
    RequestCode.LOCK_BATCH_MQ: {"consumerGroup": "G", "clientId": "client", "mqSet": [QUEUE]},
    RequestCode.UNLOCK_BATCH_MQ: {"consumerGroup": "G", "clientId": "client", "mqSet": []},
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "T2"}]},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: GROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [GROUP]},
}


class DenyAll:
    """Refuses each request; ``lanes``: fast lanes may take requests unasked."""

    def __init__(self, *, lanes: bool = False) -> None:
        self.asked: set[int] = set()
        self._room = 1 << 30 if lanes else 0

    def refusal(
        self, request: RemotingCommand, rule: Rule, connection: Connection
    ) -> RemotingCommand:
        self.asked.add(request.code)
        return request.reply(DENIED, "denied")

    def room(self, rule: Rule) -> int:
        return self._room

    def install(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(broker.gate, "refusal", self.refusal)
        monkeypatch.setattr(broker.gate, "room", self.room)


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()

    async def ask(self, *requests: RemotingCommand) -> list[RemotingCommand]:
        """Send requests in one chunk; the responses in the order of the opaques."""
        self._writer.write(b"".join(map(encode_frame, requests)))
        answers: list[RemotingCommand] = []
        async with asyncio.timeout(30):
            while len(answers) < sum(not request.is_oneway for request in requests):
                data = await self._reader.read(65_536)
                assert data, "the connection was closed"
                answers += map(decode_frame, self._decoder.feed(data))
        return sorted(answers, key=lambda answer: answer.opaque)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def config(directory: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(directory / "store"),
            **SMALL_FILES,
            **properties,
        }
    )


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker(config(tmp_path)) as broker:
        broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
        yield broker


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", broker.port))
    yield peer
    await peer.close()


def requests(**changes: Any) -> Iterator[RemotingCommand]:
    """A request of each code, as a client sends it."""
    for opaque, code in enumerate(sorted(RULES)):
        if code in SENDS:
            yield send_request("T", code=code, opaque=opaque, **changes)
        else:
            body = BODIES.get(code)
            yield RemotingCommand(
                code,
                dict(FIELDS),
                b"" if body is None else json.dumps(body).encode(),
                opaque=opaque,
                flag=2 if changes.get("oneway") else 0,
            )


def state(broker: Broker) -> tuple[object, ...]:
    tables = (
        broker.topic_table,
        broker.group_table,
        broker.offset_table,
        broker.delay_table,
        broker.filter_table,
    )
    return (
        broker.store.log_max_offset,
        *(table.encode() for table in tables),
        broker.settings.current,
        broker.clients.producer_connection("P"),
        broker.clients.consumer_group("G"),
        broker.locks.is_any_held("G"),
    )


async def test_a_denied_request_has_no_effect(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(broker)
    DenyAll().install(broker, monkeypatch)
    for request in requests():
        (answer,) = await peer.ask(request)
        assert (answer.code, answer.remark) == (DENIED, "denied"), request.code
    # All in one chunk, too, and one-way.
    answers = await peer.ask(*requests())
    assert [answer.code for answer in answers] == [DENIED] * len(RULES)
    await peer.ask(*requests(oneway=True), RemotingCommand(RequestCode.GET_BROKER_CONFIG))
    (unknown,) = await peer.ask(RemotingCommand(4712))
    assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert state(broker) == before


async def test_the_same_requests_have_effects_when_they_are_allowed(
    broker: Broker, peer: Peer
) -> None:
    before = state(broker)
    answers = await peer.ask(*(r for r in requests() if r.code not in LEFT_OUT))
    assert DENIED not in {answer.code for answer in answers}
    after = state(broker)
    log, topics, groups, offsets, _, _, _, producer, consumers, locks = (
        was != now for was, now in zip(before, after, strict=True)
    )
    assert (log, topics, groups, offsets, producer, consumers, locks) == (True,) * 7


# As Java's client sends it.
PULL = RemotingCommand(
    RequestCode.PULL_MESSAGE,
    {name: str(value) for name, value in pull_fields("T", suspendTimeoutMillis=0).items()},
)

# They would remove what the other requests made, or wait for this client.
LEFT_OUT = (
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
)


@pytest.mark.skipif(not IS_COMPILED, reason="without compiled modules there are no fast lanes")
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE])
async def test_each_fast_lane_asks_the_gate(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A lane that has room takes what the general route would refuse; without room it does not."""
    request = send_request("T") if code == RequestCode.SEND_MESSAGE_V2 else PULL
    gate = DenyAll(lanes=True)
    gate.install(broker, monkeypatch)
    await peer.ask(request)
    assert not gate.asked
    gate = DenyAll()
    gate.install(broker, monkeypatch)
    await peer.ask(request)
    assert gate.asked == {code}


async def test_a_slave_refuses_writes_and_runs_no_writing_services(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slave = dataclasses.replace(config(tmp_path), broker_role="SLAVE", broker_id=1)
    with caplog.at_level("INFO", logger="goddard.broker"):
        async with Broker(slave) as broker:
            peer = Peer(*await asyncio.open_connection("127.0.0.1", broker.port))
            before = state(broker)
            writes = [request for request in requests() if RULES[request.code].is_write]
            for request, answer in zip(writes, await peer.ask(*writes), strict=True):
                stores = RULES[request.code].stores_messages
                expected = ResponseCode.SYSTEM_BUSY if stores else ResponseCode.SYSTEM_ERROR
                assert answer.code == expected, request.code
                remark = "[REJECTREQUEST]" if stores else "Can't modify topic or subscription group"
                assert (answer.remark or "").startswith(remark)
            assert state(broker) == before
            await peer.close()
    assert "TransactionalMessageCheckService service started" not in caplog.messages
    assert "DelayDelivery service started" not in caplog.messages
