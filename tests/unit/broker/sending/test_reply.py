"""Replies: pushed to the requester, stored, answered as RocketMQ does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.rules import register
from goddard.broker.sending.overload import Overload
from goddard.broker.sending.reply import Replies
from goddard.broker.sending.send import Sends
from goddard.environment import Environment
from goddard.protocol.codes import CommandFlag, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.headers.message import ReplyRequest, SendRequest, SendRequestV2
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import decode_properties, format_properties
from goddard.store.errors import StoreUnavailableError
from goddard.store.log.records import LogEntry
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.broker_parts import BrokerParts, broker_parts, properties_of
from tests.support.memory import RawPeer, join_raw

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {
    "MSG_TYPE": "reply",
    "REPLY_TO_CLIENT": "asker",
    "CORRELATION_ID": "c1",
    "TTL": "8000",
    "UNIQ_KEY": "U1",
}


@dataclass
class Harness:
    parts: BrokerParts
    replier: RawPeer
    asker: RawPeer
    clients: dict[str, Connection]

    async def reply(self, body: bytes = b"the reply", *, v2: bool = True, **fields: Any) -> None:
        properties = fields.pop("properties", PROPERTIES)
        values: dict[str, Any] = {
            "producer_group": "Replier",
            "topic": REPLY_TOPIC,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": 1_234,
            "flag": 3,
            "properties": format_properties(properties),
            "reconsume_times": 0,
        } | fields
        header = SendRequest(**values)
        command = (
            RemotingCommand(
                RequestCode.SEND_REPLY_MESSAGE_V2, SendRequestV2.from_v1(header).encode(), body
            )
            if v2
            else RemotingCommand(RequestCode.SEND_REPLY_MESSAGE, header.encode(), body)
        )
        self.replier.transport.write(encode_frame(command))

    async def pushed(self) -> RemotingCommand:
        (command,) = await self.asker.receive(1)
        return command

    def take(self, pushed: RemotingCommand, code: int = 0) -> None:
        answer = RemotingCommand(code, opaque=pushed.opaque, flag=int(CommandFlag.RESPONSE))
        self.asker.transport.write(encode_frame(answer))

    async def answer(self) -> RemotingCommand:
        (answer,) = await self.replier.receive(1)
        return answer


@asynccontextmanager
async def open_harness(root: Path, **options: Any) -> AsyncIterator[Harness]:
    async with broker_parts(root, **options) as parts:
        sends = Sends(
            store=parts.store,
            appender=parts.appender,
            writer=parts.writer,
            overload=Overload(parts.appender, parts.settings),
            topics=parts.topics,
            groups=parts.groups,
            settings=parts.settings,
            environment=Environment(clock=parts.clock),
        )
        clients: dict[str, Connection] = {}
        replies = Replies(
            sends=sends,
            writer=parts.writer,
            settings=parts.settings,
            find_client=clients.get,
            environment=Environment(clock=parts.clock),
        )
        handlers = Handlers()
        register(handlers, replies.handlers())
        replier, connection = join_raw(handlers)
        asker, clients["asker"] = join_raw(Handlers())
        asked = clients["asker"]
        try:
            yield Harness(parts, replier, asker, clients)
        finally:
            connection.close()
            asked.close()
            await replier.lost.wait()
            await asker.lost.wait()


@pytest.mark.parametrize("v2", [True, False])
async def test_the_requester_gets_the_reply_and_the_replier_an_answer(
    tmp_path: Path, v2: bool
) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.reply(v2=v2)
        pushed = await harness.pushed()
        now_ms = harness.parts.clock.now_ms()
        assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        assert not pushed.is_oneway
        assert bytes(pushed.body) == b"the reply"
        header = ReplyRequest.decode(pushed.fields)
        properties = decode_properties(header.properties or "")
        stored_properties = PROPERTIES | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert properties == stored_properties | {"PUSH_REPLY_TIME": str(now_ms)}
        header.properties = None
        assert header == ReplyRequest(
            producer_group="Replier",
            topic=REPLY_TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1_234,
            flag=3,
            reconsume_times=0,
            unit_mode=False,
            born_host="127.0.0.1:50001",
            store_host="127.0.0.1:10911",
            store_timestamp=now_ms,
        )
        with pytest.raises(TimeoutError):  # the requester has not acknowledged it yet
            await harness.replier.receive(1, 0.05)
        harness.take(pushed)
        answer = await harness.answer()
        (stored,) = harness.parts.records(REPLY_TOPIC)
        assert answer.code == ResponseCode.SUCCESS
        host = harness.parts.settings.current.store_host
        assert answer.fields == {
            "msgId": offset_message_id(host, stored.physical_offset),
            "queueId": "0",
            "queueOffset": "0",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        assert (stored.body, stored.flag) == (b"the reply", 3)
        assert properties_of(stored) == stored_properties


async def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    async with open_harness(tmp_path, store_replies=False) as harness:
        await harness.reply()
        harness.take(await harness.pushed())
        answer = await harness.answer()
        assert answer.code == ResponseCode.SUCCESS
        assert answer.fields["msgId"] == "0"
        assert answer.fields["queueOffset"] == "0"
        assert harness.parts.records(REPLY_TOPIC) == []


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ({"TTL": "1"}, "reply message properties[REPLY_TO_CLIENT] is null"),
        (
            PROPERTIES | {"REPLY_TO_CLIENT": "gone"},
            "push reply message fail, channel of <gone> not found.",
        ),
    ],
)
async def test_an_unknown_requester(
    tmp_path: Path, properties: dict[str, str], remark: str
) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.reply(properties=properties)
        answer = await harness.answer()
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        assert len(harness.parts.records(REPLY_TOPIC)) == 1


async def test_a_requester_that_refuses(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.reply()
        harness.take(await harness.pushed(), ResponseCode.SYSTEM_ERROR)
        answer = await harness.answer()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "push reply message to askerfail."


async def test_a_requester_that_disconnects(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.reply()
        await harness.pushed()
        harness.asker.transport.close()
        answer = await harness.answer()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "push reply message to askerfail."


async def test_a_reply_that_cannot_be_stored_reaches_the_requester(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:

        def refuse(records: object, *, whole: bool = False) -> list[LogEntry]:
            raise StoreUnavailableError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(harness.parts.store, "append", refuse)
            await harness.reply()
            harness.take(await harness.pushed())
            answer = await harness.answer()
        assert answer.code == ResponseCode.SUCCESS
        assert answer.fields["msgId"] == "0"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"topic": "no such default", "default_topic": "x"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "Unknown", "default_topic": "x"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 9}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_refusals_carry_the_fields_of_every_send(
    tmp_path: Path, fields: dict[str, Any], code: int
) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.reply(**fields)
        answer = await harness.answer()
        assert answer.code == code
        assert answer.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def test_a_negative_queue_selects_a_random_queue(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.reply(queue_id=-1)
        harness.take(await harness.pushed())
        answer = await harness.answer()
        assert answer.fields["queueId"] == "0"


async def test_a_replier_that_disconnects_before_the_requester_answers(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.reply()
        pushed = await harness.pushed()
        harness.replier.transport.close()
        await harness.replier.lost.wait()
        harness.take(pushed)
        await asyncio.sleep(0)
        assert len(harness.parts.records(REPLY_TOPIC)) == 1


async def test_missing_fields(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        command = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, {"b": REPLY_TOPIC}, b"x")
        harness.replier.transport.write(encode_frame(command))
        answer = await harness.answer()
        assert answer.code == ResponseCode.SYSTEM_ERROR
