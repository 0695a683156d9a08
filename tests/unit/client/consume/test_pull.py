"""Pull requests out, answers in."""

import asyncio

import pytest

from goddard.client.consume.pull import (
    PendingPull,
    Puller,
    PullResult,
    PullStatus,
    decode_messages,
    pull_command,
    read_answer,
)
from goddard.client.consume.subscriptions import Sql, subscription
from goddard.client.errors import BrokerError
from goddard.client.message import MAX_DECOMPRESSED_BYTES
from goddard.client.values import MessageQueue
from goddard.errors import HeaderError, ProtocolError
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.compression import CompressionKind, compress, with_compression
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import PullRequest
from goddard.protocol.record import MAGIC_V2, Host, Record, encode_record
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.memory import join_connections
from tests.support.rules import ANY_RULE

QUEUE = MessageQueue("TopicA", "broker-a", 1)
V4 = Host.parse("127.0.0.1:10911")
V6 = Host.parse("[::1]:10911")
ANSWER = {
    "suggestWhichBrokerId": "1",
    "nextBeginOffset": "12",
    "minOffset": "3",
    "maxOffset": "20",
}


def record(body: bytes = b"body", offset: int = 7, **values: object) -> Record:
    made = Record(
        topic=QUEUE.topic,
        queue_id=QUEUE.queue_id,
        queue_offset=offset,
        physical_offset=1000 + offset,
        store_timestamp_ms=2,
        store_host=V4,
        born_timestamp_ms=1,
        born_host=V4,
        body=body,
    )
    for name, value in values.items():
        setattr(made, name, value)
    return made


def found(*records: Record, fields: dict[str, str] | None = None) -> RemotingCommand:
    body = b"".join(map(encode_record, records))
    return RemotingCommand(ResponseCode.SUCCESS, ANSWER | (fields or {}), body)


# --- Requests -------------------------------------------------------------------------------------


def header(command: RemotingCommand) -> PullRequest:
    return PullRequest.decode(command.fields)


def test_a_push_consumers_pull() -> None:
    wanted = subscription("TopicA", "TagA || TagB", 1234)
    command = pull_command("G", QUEUE, 5, wanted, max_messages=32, commit_offset=4)
    assert command.code == RequestCode.PULL_MESSAGE
    assert header(command) == PullRequest(
        consumer_group="G",
        topic="TopicA",
        queue_id=1,
        queue_offset=5,
        max_msg_nums=32,
        max_msg_bytes=256 * 1024,
        sys_flag=3,
        commit_offset=4,
        suspend_timeout_millis=15_000,
        sub_version=1234,
        expression_type="TAG",
        bname="broker-a",
    )


def test_a_lite_consumers_pull_carries_its_subscription() -> None:
    wanted = subscription("TopicA", "TagA", 1234)
    command = pull_command(
        "G",
        QUEUE,
        0,
        wanted,
        max_messages=10,
        suspend_ms=20_000,
        carries_subscription=True,
        is_lite=True,
    )
    assert command.code == RequestCode.LITE_PULL_MESSAGE
    made = header(command)
    assert (made.sys_flag, made.subscription, made.sub_version) == (2 | 4 | 16, "TagA", 0)
    assert (made.commit_offset, made.suspend_timeout_millis) == (0, 20_000)


def test_a_condition_keeps_its_version() -> None:
    wanted = subscription("TopicA", Sql("a > 1"), 1234)
    made = header(pull_command("G", QUEUE, 0, wanted, max_messages=1, carries_subscription=True))
    assert (made.subscription, made.expression_type, made.sub_version) == ("a > 1", "SQL92", 1234)


def test_a_pull_that_is_not_to_be_held() -> None:
    wanted = subscription("TopicA", "*", 1)
    made = header(pull_command("G", QUEUE, 0, wanted, max_messages=1, suspend_ms=0))
    assert (made.sys_flag, made.subscription) == (0, None)


# --- Answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.PULL_NOT_FOUND, PullStatus.NO_NEW_MESSAGES),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, PullStatus.NO_MATCHED_MESSAGES),
        (ResponseCode.PULL_OFFSET_MOVED, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_answers_without_messages(code: int, status: PullStatus) -> None:
    # Whatever the body is, it is not looked at.
    answer = RemotingCommand(code, dict(ANSWER), b"garbage")
    assert read_answer(answer, QUEUE) == PullResult(status, 12, 3, 20, 1, [])


def test_messages_know_their_queue_and_how_far_it_reached() -> None:
    result = read_answer(found(record(b"a"), record(b"b", 9)), QUEUE)
    assert (result.status, result.next_offset) == (PullStatus.FOUND, 12)
    first, second = result.messages
    assert (first.body, second.body) == (b"a", b"b")
    assert (first.queue, first.queue_offset, second.queue_offset) == (QUEUE, 7, 9)
    assert first.properties == {"MIN_OFFSET": "3", "MAX_OFFSET": "20"}
    assert first.message_id == first.offset_message_id == "7F00000100002A9F00000000000003EF"


def test_tags_are_compared_by_their_text() -> None:
    # "Aa" and "BB" have the same hash.
    answer = found(
        record(b"1", properties=b"TAGS\x01Aa\x02"),
        record(b"2", properties=b"TAGS\x01BB\x02"),
        record(b"3"),
    )
    assert [m.body for m in read_answer(answer, QUEUE, ["Aa", "C"]).messages] == [b"1"]
    assert len(read_answer(answer, QUEUE).messages) == 3


def test_a_static_topics_offsets_are_moved() -> None:
    answer = found(record(queue_id=5), fields={"offsetDelta": "100"})
    (message,) = read_answer(answer, QUEUE).messages
    assert (message.queue_offset, message.queue_id) == (107, 1)


def test_a_refusal_is_raised() -> None:
    answer = RemotingCommand(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark="who?")
    with pytest.raises(BrokerError, match="SUBSCRIPTION_NOT_EXIST: who") as refused:
        read_answer(answer, QUEUE, address="host:1")
    assert (refused.value.code, refused.value.address) == (24, "host:1")


@pytest.mark.parametrize("name", sorted(ANSWER))
def test_answers_that_lack_a_number_are_refused(name: str) -> None:
    fields = {key: value for key, value in ANSWER.items() if key != name}
    with pytest.raises(HeaderError, match=name):
        read_answer(RemotingCommand(ResponseCode.PULL_NOT_FOUND, fields), QUEUE)


def test_a_next_offset_below_zero_is_refused() -> None:
    fields = ANSWER | {"nextBeginOffset": "-1"}
    with pytest.raises(ProtocolError, match="the next offset to pull is -1"):
        read_answer(RemotingCommand(ResponseCode.PULL_NOT_FOUND, fields), QUEUE)


# --- Records --------------------------------------------------------------------------------------


def test_hosts_of_both_kinds() -> None:
    for born, store in ((V4, V6), (V6, V4), (V6, V6)):
        raw = encode_record(record(born_host=born, store_host=store))
        (message,) = decode_messages(raw, QUEUE)
        assert (message.born_host, message.store_host) == (str(born), str(store))
        assert message.body == b"body"


def test_a_long_topic() -> None:
    long = "T" * 200
    raw = encode_record(record(topic=long))
    assert int.from_bytes(raw[4:8], "big") == MAGIC_V2
    (message,) = decode_messages(raw, QUEUE)
    assert message.topic == long


def test_several_topics_in_one_answer() -> None:
    topics = ["TopicA", "TopicB", "TopicB", "TopicA"]
    raw = b"".join(encode_record(record(topic=topic)) for topic in topics)
    assert [message.topic for message in decode_messages(raw, QUEUE)] == topics


@pytest.mark.parametrize("kind", list(CompressionKind))
def test_bodies_are_decompressed_when_they_are_read(kind: CompressionKind) -> None:
    body = b"again and again " * 500
    raw = encode_record(record(compress(body, kind), sys_flag=with_compression(0, kind)))
    (message,) = decode_messages(raw, QUEUE)
    assert message.stored_body_bytes < 1000
    assert message.body == body
    assert message.body is message.body
    # The kind stays, as in RocketMQ's own client.
    assert message.sys_flag == int(kind) << 8


def test_a_body_that_cannot_be_decompressed_fails_alone() -> None:
    flag = with_compression(0, CompressionKind.ZLIB)
    raw = encode_record(record(b"no stream", sys_flag=flag)) + encode_record(record(b"fine", 8))
    damaged, fine = decode_messages(raw, QUEUE)
    assert fine.body == b"fine"
    with pytest.raises(ProtocolError, match="cannot be decompressed"):
        _ = damaged.body
    assert "body of 9 bytes" in repr(damaged)


def test_a_body_does_not_grow_without_bound() -> None:
    bomb = compress(bytes(MAX_DECOMPRESSED_BYTES + 1), CompressionKind.ZSTD)
    raw = encode_record(record(bomb, sys_flag=with_compression(0, CompressionKind.ZSTD)))
    (message,) = decode_messages(raw, QUEUE)
    with pytest.raises(ProtocolError, match="longer than"):
        _ = message.body


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (4, b"\xcb\xd4\x31\x94", "magic"),
        (0, (90).to_bytes(4, "big"), "is malformed"),
        (0, (-1).to_bytes(4, "big", signed=True), "is malformed"),
        (84, (-1).to_bytes(4, "big", signed=True), "is malformed"),
        (84, (2**31 - 1).to_bytes(4, "big"), "is malformed"),
        (92, b"\xff", "is malformed"),
        (99, b"\x7f\xff", "is malformed"),
        (52, (70_000).to_bytes(4, "big"), "ports are 70000"),
        (93, b"\xff\xff\xff\xff\xff\xff", "not UTF-8"),
    ],
    ids=[
        "blank",
        "short",
        "negative",
        "body below 0",
        "body",
        "topic",
        "properties",
        "port",
        "text",
    ],
)
def test_damaged_records_are_refused(position: int, value: bytes, text: str) -> None:
    raw = bytearray(encode_record(record()))
    assert len(raw) == 101
    raw[position : position + len(value)] = value
    with pytest.raises(ProtocolError, match=text):
        decode_messages(bytes(raw), QUEUE)


# --- Which broker is asked ------------------------------------------------------------------------


class Brokers:
    """A master and its slaves that answer as told, and remember what they were asked."""

    def __init__(self, *broker_ids: int) -> None:
        self.addresses = {number: f"host:{number}" for number in broker_ids}
        self.answers: list[RemotingCommand] = []
        self.asked: list[tuple[str, PullRequest]] = []
        self.codes: list[int] = []
        self.open: Connection | None = None

    def find_broker(
        self, broker_name: str, broker_id: int = 0, *, only_this: bool = False
    ) -> tuple[str, bool] | None:
        address = self.addresses.get(broker_id)
        return None if address is None else (address, broker_id != 0)

    def prepare(self, command: RemotingCommand) -> None:
        pass

    def connection(self, address: str) -> Connection | None:
        return self.open

    async def locate(
        self, queue: MessageQueue, broker_id: int = 0, *, only_this: bool = False
    ) -> tuple[str, bool]:
        found = self.find_broker(queue.broker_name, broker_id, only_this=only_this)
        assert found is not None
        return found

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        self.asked.append((address, header(command)))
        self.codes.append(command.code)
        return self.answers.pop(0)

    call = request

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        raise AssertionError("no pull is one-way")


async def test_the_broker_that_was_suggested_is_asked_next() -> None:
    brokers = Brokers(0, 1)
    puller = Puller(brokers, "G")
    wanted = subscription("TopicA", "*", 1)
    for suggested in ("1", "1", "0", "1", "0"):
        fields = ANSWER | {"suggestWhichBrokerId": suggested}
        brokers.answers.append(RemotingCommand(ResponseCode.PULL_NOT_FOUND, fields))
    for _ in range(4):
        await puller.pull(QUEUE, 5, wanted, max_messages=1, commit_offset=4)
    puller.forget(QUEUE)
    await puller.pull(QUEUE, 5, wanted, max_messages=1, commit_offset=4)
    assert [address for address, _ in brokers.asked] == [
        "host:0",
        "host:1",
        "host:1",
        "host:0",
        "host:0",
    ]
    # Only a master is told offsets.
    assert [asked.sys_flag & 1 for _, asked in brokers.asked] == [1, 0, 0, 1, 1]


async def test_an_older_broker_gets_plain_pulls_of_a_lite_consumer() -> None:
    brokers = Brokers(0)
    puller = Puller(brokers, "G")
    wanted = subscription("TopicA", "*", 1)
    fields = ANSWER | {"suggestWhichBrokerId": "0"}
    brokers.answers = [
        RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        RemotingCommand(ResponseCode.PULL_NOT_FOUND, dict(fields)),
        RemotingCommand(ResponseCode.PULL_NOT_FOUND, dict(fields)),
    ]
    for _ in range(2):
        await puller.pull(QUEUE, 5, wanted, max_messages=1, is_lite=True)
    lite, plain = RequestCode.LITE_PULL_MESSAGE, RequestCode.PULL_MESSAGE
    assert brokers.codes == [lite, plain, plain]


# --- Pulls that are sent ahead --------------------------------------------------------------------


async def test_a_prefetch_is_sent_before_it_is_awaited() -> None:
    brokers = Brokers(0)
    puller = Puller(brokers, "G")
    wanted = subscription("TopicA", "*", 1)
    # It is no use without a connection.
    assert puller.request_soon(QUEUE, 5, wanted, max_messages=1) is None
    asked: list[PullRequest] = []
    arrived = asyncio.Event()
    codes = [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]

    def pull(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        asked.append(header(request))
        arrived.set()
        answer = request.reply(codes[len(asked) - 1])
        answer.ext_fields = dict(ANSWER)
        answer.body = encode_record(record())
        return answer

    handlers = Handlers()
    handlers.register(RequestCode.PULL_MESSAGE, pull, ANY_RULE)
    brokers.open, _ = join_connections(handlers)

    def ask(offset: int) -> PendingPull:
        pending = puller.request_soon(QUEUE, offset, wanted, max_messages=1, commit_offset=4)
        assert pending is not None
        return pending

    first = ask(5)
    async with asyncio.timeout(30):
        await arrived.wait()
        answer = await first.answer()
        assert (asked[0].queue_offset, asked[0].commit_offset) == (5, 4)
        assert (answer.next_offset, answer.size_bytes) == (12, len(encode_record(record())))
        assert [message.body for message in answer.result().messages] == [b"body"]
        # It was suggested to ask another broker, which is not known.
        assert puller.request_soon(QUEUE, 5, wanted, max_messages=1) is None
        puller.forget(QUEUE)
        with pytest.raises(BrokerError):
            await ask(6).answer()


async def test_a_prefetch_may_be_abandoned() -> None:
    brokers = Brokers(0)
    # Nobody answers.
    handlers = Handlers()
    handlers.register(RequestCode.PULL_MESSAGE, lambda request, connection: None, ANY_RULE)
    brokers.open, _ = join_connections(handlers)
    wanted = subscription("TopicA", "*", 1)
    pending = Puller(brokers, "G").request_soon(QUEUE, 5, wanted, max_messages=1)
    assert pending is not None
    pending.abandon()
    # A response or error that comes later, here the end of the connection, is ignored.
    brokers.open.abort()
    async with asyncio.timeout(30):
        await brokers.open.wait_closed()
    with pytest.raises(asyncio.CancelledError):
        await pending.answer()
