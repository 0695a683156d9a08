"""Compiled sends of a producer are those made in Python: properties, entries, frames, results."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.client.errors import BrokerError, InvalidMessageError
from goddard.client.message import Message
from goddard.client.produce import encoding, frames
from goddard.client.produce.encoding import Outgoing, SendSettings
from goddard.client.send_results import SendRequest
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.core import IS_COMPILED
from goddard.errors import ProtocolError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.message import BatchEntry, encode_batch

# With CI=true a core that is not compiled is a failure.
pytestmark = pytest.mark.skipif(
    not IS_COMPILED and os.environ.get("CI") != "true", reason="goddard.core is not compiled"
)

if IS_COMPILED:
    from goddard.core import client_sends

QUEUE = MessageQueue("T", "broker-a", 3)
SETTINGS = SendSettings(group='g"%d')
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(max_codepoint=127), max_size=12),
    st.text("abcXYZ 09_~", max_size=40),
    st.sampled_from(["", "\x01", "a\x02b", 'quo"te', "back\\slash", "\x7f", "\ud800", "é"]),
    st.just("x" * 9000),
)
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=6)


def outcome(make: Callable[[], object]) -> object:
    try:
        return make()
    except InvalidMessageError as error:
        return str(error)


@given(PROPERTIES)
def test_properties(properties: dict[str, str]) -> None:
    expected = outcome(lambda: encoding.properties_text(properties))
    assert outcome(lambda: frames.properties_text(properties)) == expected
    made = client_sends.properties_text(properties)
    assert made is None or made == expected


@pytest.mark.parametrize(
    "properties", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"b"}, None, [("a", "b")]]
)
def test_properties_that_are_not_text_are_not_plain(properties: object) -> None:
    assert client_sends.properties_text(properties) is None
    assert client_sends.encode_batch_entry(b"x", properties, 0) is None


def test_most_messages_are_plain() -> None:
    message = Message("T", b"x", tags="TagA", keys="k 1", properties={"own": "{[(1+1=2)]}"})
    assert client_sends.properties_text(message.properties) == encoding.properties_text(
        message.properties
    )
    assert client_sends.encode_batch_entry(b"x", message.properties, 0) is not None


@given(PROPERTIES, st.binary(max_size=60), st.one_of(st.just(0), INT32))
def test_batch_entries(properties: dict[str, str], body: bytes, flag: int) -> None:
    def in_python() -> bytes:
        encoded = encoding.encoded_properties(properties)
        return encode_batch([BatchEntry(body, encoded, flag)])

    assert outcome(lambda: frames.batch_entry(body, properties, flag)) == outcome(in_python)


@given(
    st.one_of(TEXT, st.text("abc\x01\x02", max_size=30)).filter(str.isprintable)
    | st.text("abc \x01\x02", max_size=30),
    st.binary(max_size=60),
    INT32,
    INT32,
    st.integers(0, 2**62),
    st.integers(0, 2**31 - 1),
)
def test_frames(
    properties: str, body: bytes, sys_flag: int, flag: int, born_ms: int, opaque: int
) -> None:
    out = Outgoing(encoding.SEND, "T", body, properties, sys_flag, flag, "ID", "T")
    template = frames.FrameTemplate("T", QUEUE, SETTINGS)
    command = encoding.send_command(out, QUEUE, born_ms, SETTINGS)
    command.opaque = opaque
    assert template.frame(out, born_ms, opaque) == encode_frame(command)


@dataclass
class Request(SendRequest):
    """A send that keeps its result, however it was read."""

    results: list[object] = field(default_factory=list)

    def stored(
        self,
        offset_message_id: str,
        queue_id: int,
        queue_offset: int,
        transaction_id: str | None,
        region_id: str | None,
        is_traced: bool,
        recall_handle: str | None,
    ) -> None:
        self.results.append(
            SendResult(
                SendStatus.SEND_OK,
                "ID",
                offset_message_id,
                QUEUE._replace(queue_id=queue_id),
                queue_offset,
                transaction_id,
                region_id or encoding.DEFAULT_REGION,
                is_traced,
                recall_handle,
            )
        )


OUT = Outgoing(encoding.SEND, "T", b"x", "", 0, 0, "ID", "T")


def read_in_python(response: RemotingCommand) -> object:
    try:
        return encoding.read_result(OUT, QUEUE, response, "address")
    except (BrokerError, ProtocolError) as error:
        return type(error)


NUMBERS = st.one_of(
    st.integers(0, 2**63 - 1).map(str), st.sampled_from(["", "-1", "01", "x", "1.0", "9" * 18])
)
FIELDS = st.fixed_dictionaries(
    {"msgId": TEXT, "queueId": NUMBERS, "queueOffset": NUMBERS},
    optional={
        "transactionId": TEXT,
        "MSG_REGION": TEXT,
        "TRACE_ON": st.sampled_from(["true", "false", ""]),
        "recallHandle": TEXT,
        "batchUniqId": TEXT,
        "other": TEXT,
    },
).map(lambda fields: {name: text for name, text in fields.items() if "\ud800" not in text})
CODES = st.sampled_from([0, 0, 0, 0, 1, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.GO_AWAY])
RESPONSES = st.builds(
    RemotingCommand,
    CODES.map(int),
    st.one_of(FIELDS, FIELDS, st.none()),
    st.sampled_from([b"", b"", b"", b"body"]),
    st.integers(0, 5),
    st.sampled_from([1, 1, 1, 0, 3]),
    st.sampled_from([None, "remark", "é"]),
)


@given(st.lists(RESPONSES, min_size=1, max_size=5), st.data())
def test_results(responses: list[RemotingCommand], data: st.DataObject) -> None:
    chunk = b"".join(map(encode_frame, responses))
    waiting = {opaque: (Request(), "other") for opaque in range(4)}
    requests = {opaque: request for opaque, (request, _) in waiting.items()}
    taken = client_sends.take_results(chunk, waiting, SendRequest)
    decoder = FrameDecoder()
    answered = [decode_frame(frame) for frame in decoder.feed(chunk[:taken])]
    assert decoder.buffered_bytes == 0
    assert [each.opaque for each in answered] == [
        each.opaque for each in responses[: len(answered)]
    ]
    for response in answered:
        assert response.is_response
        assert requests[response.opaque].results == [read_in_python(response)]
        assert response.opaque not in waiting
    assert len(answered) + len(waiting) == 4
    # Bytes that are not a response are not taken either.
    position = data.draw(st.integers(0, len(chunk) - 1))
    mutated = bytearray(chunk)
    mutated[position] = data.draw(st.integers(0, 255))
    waiting = {opaque: (Request(), "other") for opaque in range(4)}
    requests = {opaque: request for opaque, (request, _) in waiting.items()}
    taken = client_sends.take_results(bytes(mutated), waiting, SendRequest)
    for frame in FrameDecoder().feed(bytes(mutated[:taken])):
        response = decode_frame(frame)
        assert requests[response.opaque].results == [read_in_python(response)]


def plain_response(opaque: int) -> bytes:
    fields = {"msgId": "0A" * 16, "queueId": "1", "queueOffset": "7"}
    return encode_frame(RemotingCommand(0, fields, opaque=opaque, flag=1))


def test_only_whole_frames_of_sends_that_wait_are_taken() -> None:
    waiting: dict[int, tuple[object, ...]] = {1: (Request(),), 2: (object(),), 3: (Request(),)}
    one, two, three, unknown = map(plain_response, (1, 2, 3, 9))
    assert client_sends.take_results(one[:-1], waiting, SendRequest) == 0
    assert client_sends.take_results(unknown + one, waiting, SendRequest) == 0
    assert client_sends.take_results(two + one, waiting, SendRequest) == 0
    assert client_sends.take_results(one + three + two, waiting, SendRequest) == len(one + three)
    assert list(waiting) == [2]


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":"0","extFields":%b,"flag":1,"opaque":1}',
        b'{"code":00,"extFields":%b,"flag":1,"opaque":1}',
        b'{"code":0,"extFields":%b,"flag":1,"opaque":1 }',
        b'{"code":0,"extFields":%b,"flag":1,"opaque":1}}',
        b'{"code":0,"extFields":%b,"flag":1,"opaque":4294967297}',
        b'{"code":0,"extFields":%b,"flag":1,"opaque":1,}',
        b'{"code":0,"extFields":%b,"flag":1,"opaque":1',
        b'{"code":0,"extFields":%b,"flag":0,"opaque":1}',
        b'{"code":0,"extFields":%b,"flag":1,"opaque":1,"remark":"\\n"}',
        b'{"code":0,"extFields":%b,"flag":1,"opaque":1,"remark":null}',
        b'["code",0]%.0b',
        b"%.0b",
    ],
)
def test_headers_that_are_not_plain(header: bytes) -> None:
    fields = b'{"msgId":"A","queueId":"1","queueOffset":"7"}'
    text = header % fields
    frame = (4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text
    waiting = {1: (Request(),)}
    assert client_sends.take_results(frame, waiting, SendRequest) == 0
    assert list(waiting) == [1]
