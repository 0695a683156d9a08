"""Encoding of sends in both ways, reading of answers, splitting of batches."""

import random
import re

import pytest

from goddard.client.errors import BrokerError, InvalidMessageError
from goddard.client.message import Message
from goddard.client.produce.encoding import (
    MAX_BATCH_MESSAGES,
    Outgoing,
    SendSettings,
    check_batch,
    compress_body,
    prepare,
    prepare_batch,
    read_result,
    send_command,
    split_batch,
    split_result,
)
from goddard.client.produce.frames import FrameTemplate, has_template
from goddard.client.produce.hooks import MessageType, message_type
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.errors import ProtocolError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.compression import CompressionKind, decompress
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.message import encode_batch, iter_batch

QUEUE = MessageQueue("T", "broker-a", 3)
ADDRESS = "10.0.0.1:10911"


@pytest.mark.parametrize("group", ["g", "100%", 'quo"te', "größe"])
@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"x"),
        Message("T", b"\x00\xff" * 100, tags="A", keys="a b", flag=-5),
        Message("T", b"x", properties={'"%d%b\\': "ü\n\t\U0001f600 %s", "nul": "a\x00b"}),
    ],
)
def test_template_and_general_encoding_agree(message: Message, group: str) -> None:
    settings = SendSettings(group=group, default_topic="100%", is_unit_mode=True)
    out = prepare(message, "ns%T", "ID", settings, b"zipped" if message.flag else None)
    queue = MessageQueue("ns%T", "broker%d", 3)
    assert has_template(out)
    expected = send_command(out, queue, 1_700_000_000_123, settings)
    expected.opaque = 2**31 - 1
    made = FrameTemplate("ns%T", queue, settings).frame(out, 1_700_000_000_123, 2**31 - 1)
    assert made == encode_frame(expected)


def test_messages_without_a_template() -> None:
    settings = SendSettings(group="g")
    retry = Message("%RETRY%g", b"x")
    retry.properties |= {"RECONSUME_TIME": "2", "MAX_RECONSUME_TIMES": "x"}
    out = prepare(retry, "%RETRY%g", "ID", settings)
    assert (out.reconsume_times, out.max_reconsume_times) == (2, None)
    assert not has_template(out)
    assert retry.properties["RECONSUME_TIME"] == "2"
    reply = Message("T", b"x")
    reply.properties["MSG_TYPE"] = "reply"
    assert not has_template(prepare(reply, "T", "ID", settings))


def test_namespace_is_sent_but_message_is_not_changed() -> None:
    message = Message("T", b"x")
    out = prepare(message, "ns%T", "ID", SendSettings(group="g", namespace="ns"))
    assert "INSTANCE_ID\x01ns\x02" in out.properties
    assert "INSTANCE_ID" not in message.properties
    assert (out.topic, out.user_topic) == ("ns%T", "T")


@pytest.mark.parametrize("kind", list(CompressionKind))
def test_compression(kind: CompressionKind) -> None:
    settings = SendSettings(group="g", compression=kind)
    message = Message("T", b"x" * 1000)
    out = prepare(message, "T", "ID", settings, compress_body(message.body, settings))
    assert len(out.body) < 1000
    assert decompress(out.body, out.sys_flag, 1000) == message.body
    assert out.sys_flag == 1 | kind << 8


def answer(fields: dict[str, str], code: int = 0) -> RemotingCommand:
    return RemotingCommand(code, fields, remark="why")


OUT = Outgoing(310, "ns%T", b"x", "", 0, 0, "UNIQUE", "T")
GOOD = {"msgId": "OFFSET", "queueId": "2", "queueOffset": "7"}


def test_answer_is_read_as_a_result() -> None:
    result = read_result(OUT, QUEUE, answer(GOOD), ADDRESS)
    assert result == SendResult(
        SendStatus.SEND_OK, "UNIQUE", "OFFSET", MessageQueue("T", "broker-a", 2), 7
    )
    assert (result.region_id, result.trace_on) == ("DefaultRegion", True)
    full = {
        **GOOD,
        "transactionId": "TX",
        "MSG_REGION": "R",
        "TRACE_ON": "false",
        "recallHandle": "H",
        "batchUniqId": "BATCH",
    }
    result = read_result(OUT, QUEUE, answer(full), ADDRESS)
    assert result.message_id == "BATCH"
    assert (result.transaction_id, result.region_id) == ("TX", "R")
    assert (result.trace_on, result.recall_handle) == (False, "H")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_statuses_of_results(code: int, status: SendStatus) -> None:
    assert read_result(OUT, QUEUE, answer(GOOD, code), ADDRESS).status is status


def test_other_codes_are_errors() -> None:
    with pytest.raises(BrokerError) as refused:
        read_result(OUT, QUEUE, answer({}, ResponseCode.SYSTEM_BUSY), ADDRESS)
    assert (refused.value.code, refused.value.remark) == (2, "why")
    assert refused.value.address == ADDRESS


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"msgId": "x"},
        {**GOOD, "queueId": "x"},
        {**GOOD, "queueId": "-1"},
        {**GOOD, "queueOffset": ""},
        {**GOOD, "queueOffset": "9" * 5000},
        {**GOOD, "queueOffset": "1\u0665"},
    ],
)
def test_invalid_answers_are_protocol_errors(fields: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match=re.escape(ADDRESS)):
        read_result(OUT, QUEUE, answer(fields), ADDRESS)


def test_batches_are_split_by_size() -> None:
    messages = [Message("T", bytes([each]) * 100) for each in range(10)]
    sizes = []
    seen: list[Message] = []
    for chunk, entries in split_batch(messages, "", 500):
        out = prepare_batch("T", "T", encode_batch(entries), ["ids"], wait=True)
        assert len(out.body) <= 500
        assert [entry.body for entry in iter_batch(out.body)] == [m.body for m in chunk]
        sizes.append(len(chunk))
        seen += chunk
    assert seen == messages
    assert sizes == [3, 3, 3, 1]
    # A single message is never split.
    assert [len(chunk) for chunk, _ in split_batch(messages, "", 10)] == [1] * 10
    # The namespace counts too.
    named = [len(chunk) for chunk, _ in split_batch(messages, "n" * 50, 500)]
    assert max(named) < 3


def test_batches_are_split_by_number_of_messages() -> None:
    messages = [Message("T", b"x")] * (MAX_BATCH_MESSAGES + 1)
    sizes = [len(chunk) for chunk, _ in split_batch(messages, "", 64 * 1024 * 1024)]
    assert sizes == [MAX_BATCH_MESSAGES, 1]


def test_incompressible_body_is_not_compressed() -> None:
    assert compress_body(random.Random(1).randbytes(5_000), SendSettings(group="g")) is None


def test_too_long_properties_are_refused_in_a_batch() -> None:
    message = Message("T", b"x", properties={"a": "x" * 40_000})
    with pytest.raises(InvalidMessageError, match="Failed to initiate the MessageBatch"):
        list(split_batch([message], "", 500))


def test_result_of_a_batch_is_split() -> None:
    result = SendResult(SendStatus.SEND_OK, "a,b,c", "1,2,3", QUEUE, 7, None, "region", False)
    assert split_result(result, ["a", "b", "c"]) == [
        SendResult(SendStatus.SEND_OK, "a", "1", QUEUE, 7, None, "region", False),
        SendResult(SendStatus.SEND_OK, "b", "2", QUEUE, 8, None, "region", False),
        SendResult(SendStatus.SEND_OK, "c", "3", QUEUE, 9, None, "region", False),
    ]
    # A topic that stores batches whole returns one id for the batch.
    whole = SendResult(SendStatus.SEND_OK, "one", "1", QUEUE, 7)
    assert [
        (each.message_id, each.offset_message_id, each.queue_offset)
        for each in split_result(whole, ["a", "b"])
    ] == [("a", "1", 7), ("b", "1", 8)]


@pytest.mark.parametrize(
    "delayed",
    [
        Message("T", b"x", delay_level=1),
        Message("T", b"x", delay_seconds=1),
        Message("T", b"x", delay_ms=1),
        Message("T", b"x", deliver_at_ms=1),
    ],
)
def test_a_delayed_message_is_refused_in_a_batch(delayed: Message) -> None:
    with pytest.raises(InvalidMessageError, match="TimeDelayLevel is not supported"):
        check_batch([Message("T", b"x"), delayed])


def test_message_types() -> None:
    half = Message("T", b"x", delay_level=1)
    half.properties["TRAN_MSG"] = "TRUE"
    start = Message("T", b"x")
    start.properties["__STARTDELIVERTIME"] = "1"
    assert message_type(half) is MessageType.TRANSACTION_HALF
    assert message_type(start) is MessageType.DELAY
    assert message_type(Message("T", b"x", deliver_at_ms=1)) is MessageType.DELAY
    assert message_type(Message("T", b"x")) is MessageType.NORMAL
