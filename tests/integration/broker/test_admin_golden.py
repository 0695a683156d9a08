"""Recorded requests of mqadmin to RocketMQ 5.4.0 and their answers, replayed to our broker.

A broker with the same name and the topics, groups and offsets of the recording gets the recorded
requests in order, in both header encodings. Codes, remarks, header fields and the fields of bodies
must be the same; of tables keyed by topics, queues or groups, one entry is compared.
"""

import gzip
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.protocol import fastjson
from goddard.protocol.bodies import encode_body
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame
from goddard.protocol.responses import check
from goddard.transport.client import Client, ClientOptions
from tests.support.broker_client import BrokerClient
from tests.support.consumer_harness import pull_fields

WIRE: Final = Path(__file__).parents[2] / "golden" / "data" / "wire"
TIMEOUT_MS: Final = 5_000
# Requests for features that this broker lacks (timers, POP, controllers, users), and requests that
# Java answers with the text of an exception.
LEFT_OUT: Final = {
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    *range(3001, 3011),
}
# Members joined and left the group during the recording.
OF_THE_MOMENT: Final = {RequestCode.GET_CONSUMER_CONNECTION_LIST}
# Objects whose keys are names or numbers, not fields.
TABLES: Final = {
    "attributes",
    "consumeStatsList",
    "correctionOffsets",
    "forbiddenTable",
    "groupTopicMap",
    "offsetTable",
    "subscriptionGroupTable",
    "topicConfigTable",
}
# Names that contain a path or a delay level.
VARYING: Final = "commitLogDiskRatio_", "scheduleMessageOffset_"


@dataclass
class Exchange:
    request: RemotingCommand
    answer: RemotingCommand


def exchanges(name: str) -> Iterator[Exchange]:
    """The answered requests to the broker in a recording, in order."""
    path = WIRE / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    asked: dict[tuple[int, int], RemotingCommand] = {}
    for line in data.splitlines():
        frame = json.loads(line)
        if frame["peer"] != "broker":
            continue
        (found,) = FrameDecoder().feed(bytes.fromhex(frame["hex"]))
        command = decode_frame(found)
        key = (frame["conn"], command.opaque)
        if frame["dir"] == "c2s" and not command.is_response:
            asked[key] = command
        elif frame["dir"] == "s2c" and command.is_response and key in asked:
            yield Exchange(asked.pop(key), command)


def shape(value: Any, name: str = "") -> Any:
    """The structure of a JSON value: its fields without their values."""
    if isinstance(value, dict):
        if name in TABLES:
            # Queue offsets are nested tables.
            inner = name if any(isinstance(key, str) and "@" in key for key in value) else ""
            return next((shape(entry, inner) for entry in value.values()), None)
        return {
            str(key): shape(entry, str(key))
            for key, entry in value.items()
            if not str(key).startswith(VARYING)
        }
    return type(value).__name__


def summary(answer: RemotingCommand) -> Any:
    body: Any = bytes(answer.body)
    if body[:1] in (b"{", b"["):
        body = shape(fastjson.loads(body))
    elif body:
        body = "text"
    # Clients treat an empty header like none.
    return answer.code, answer.remark, sorted(answer.fields), body


@asynccontextmanager
async def golden_broker(folder: Path) -> AsyncIterator[BrokerClient]:
    config = BrokerConfig.from_properties(
        {
            "brokerName": "broker-golden",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": str(1 << 20),
            "mappedFileSizeConsumeQueue": "6000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
        }
    )
    async with Broker(config) as broker:
        client = Client(ClientOptions())
        try:
            yield BrokerClient(client, broker.address)
        finally:
            await client.close()


async def fill(dialogue: BrokerClient, recorded: list[Exchange]) -> None:
    """Give the broker the topics, groups and offsets of the recorded answers."""

    def recorded_body(code: RequestCode) -> Any:
        answers = [each.answer for each in recorded if each.request.code == code]
        return fastjson.loads(bytes(answers[-1].body))

    topics = recorded_body(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
    body = encode_body({"topicConfigList": [topics[topic] for topic in topics if "Wire" in topic]})
    check(await dialogue.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body))
    groups = recorded_body(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
    body = encode_body({"groupConfigList": list(groups.values())})
    check(await dialogue.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body))
    for pair, offsets in recorded_body(RequestCode.GET_ALL_CONSUMER_OFFSET)["offsetTable"].items():
        topic, _, group = pair.partition("@")
        if group not in groups:
            continue  # offsets of POP consumers
        for queue_id, offset in offsets.items():
            fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
            commit = RequestCode.UPDATE_CONSUMER_OFFSET
            check(await dialogue.ask(commit, fields | {"commitOffset": offset}))
    for topic in (topic for topic in topics if "Wire" in topic):
        await dialogue.send(topic, b"body")
    await dialogue.send("WirePair", b"later", {"DELAY": "1"})
    await dialogue.receive("WirePair", 2)
    fields = pull_fields("WireTopic", consumerGroup="WirePull")
    check(await dialogue.ask(RequestCode.PULL_MESSAGE, fields))


@pytest.mark.parametrize("encoding", ["", "binary_"])
@pytest.mark.parametrize("client_version", ["5.4.0", "4.9.4"])
async def test_answers_are_those_of_rocketmq(
    tmp_path: Path, client_version: str, encoding: str
) -> None:
    folder = f"c{client_version}-s5.4.0"
    compared = 0
    async with golden_broker(tmp_path) as dialogue:
        recorded = list(exchanges(f"{folder}/{encoding}admin.jsonl.gz"))
        creating = list(exchanges(f"{folder}/{encoding}admin_topic.jsonl"))
        await fill(dialogue, recorded)
        for exchange in [*creating, *recorded]:
            request = exchange.request
            if request.code in LEFT_OUT:
                continue
            answer = await dialogue.client.request(dialogue.address, request, TIMEOUT_MS)
            if request.code not in OF_THE_MOMENT:
                what = (request.code, request.ext_fields)
                assert (what, summary(answer)) == (what, summary(exchange.answer))
                compared += 1
    assert compared > 40
