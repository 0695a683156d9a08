"""Messages that consumers send back, and replies, with a running broker."""

import asyncio
from pathlib import Path

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.environment import Environment
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import ReplyRequest, SendRequestV2, SendResponse
from goddard.protocol.message import decode_properties
from goddard.protocol.responses import check
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.broker_client import BrokerClient
from tests.support.clock import ManualClock
from tests.support.rules import ANY_RULE


def config(folder: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": str(16 << 20),
            "mappedFileSizeConsumeQueue": "60000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "4000",
            **properties,
        }
    )


async def test_from_the_first_attempt_to_the_dead_letter_queue(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        Broker(config(tmp_path), environment=Environment(clock=clock)) as broker,
        Client(ClientOptions()) as client,
    ):
        talk = BrokerClient(client, broker.address)
        await talk.send("TopicA", b"poison", {"KEYS": "k1"})
        (record,) = await talk.receive("TopicA", 1)
        for attempt, delay_ms in enumerate((10_000, 30_000, 60_000), 1):
            check(await talk.send_back(record, "G", 0, max_reconsume_times=3))
            clock.advance(delay_ms)
            records = await talk.receive("%RETRY%G", attempt)
            record = records[-1]
            assert (record.body, record.reconsume_times) == (b"poison", attempt)
        check(await talk.send_back(record, "G", 0, max_reconsume_times=3))
        (dead,) = await talk.receive("%DLQ%G", 1)
        properties = decode_properties(dead.properties)
        assert (dead.body, dead.reconsume_times) == (b"poison", 4)
        assert (properties["RETRY_TOPIC"], properties["KEYS"]) == ("TopicA", "k1")
        assert await talk.pull("%RETRY%G", 3) == []


async def test_a_consumer_that_asks_for_no_retry(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, Client(ClientOptions()) as client:
        talk = BrokerClient(client, broker.address)
        await talk.send("TopicA", b"poison")
        (record,) = await talk.receive("TopicA", 1)
        check(await talk.send_back(record, "G", -1))
        (dead,) = await talk.receive("%DLQ%G", 1)
        assert dead.reconsume_times == 1


async def test_request_and_reply(tmp_path: Path) -> None:
    pushed: asyncio.Queue[RemotingCommand] = asyncio.Queue()

    def take(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        pushed.put_nowait(request)
        return request.reply()

    handlers = Handlers()
    handlers.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, take, ANY_RULE)
    async with (
        Broker(config(tmp_path)) as broker,
        Client(ClientOptions(), handlers) as asking,
        Client(ClientOptions()) as replying,
    ):
        asker, replier = (
            BrokerClient(asking, broker.address),
            BrokerClient(replying, broker.address),
        )
        await asker.heartbeat("Askers", client_id="asker@1")
        marks = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker@1", "TTL": "3000"}
        await asker.send("Questions", b"how much?", marks)
        (question,) = await replier.receive("Questions", 1)
        properties = decode_properties(question.properties)
        header = replier.send_header(
            f"{properties['CLUSTER']}_REPLY_TOPIC", marks | {"MSG_TYPE": "reply"}
        )
        fields = SendRequestV2.from_v1(header).encode()
        answer = check(await replier.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"a lot"))
        assert SendResponse.decode(answer.fields).queue_offset == 0
        async with asyncio.timeout(60):
            push = await pushed.get()
        reply = ReplyRequest.decode(push.fields)
        assert bytes(push.body) == b"a lot"
        assert decode_properties(reply.properties or "")["CORRELATION_ID"] == "c1"
        assert reply.store_host == broker.address

        await asking.close()
        answer = await replier.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"too late")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "push reply message" in (answer.remark or "")
