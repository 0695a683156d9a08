"""Frames: both header encodings, the decoder under any chunking, and malformed bytes."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from goddard.errors import ProtocolError
from goddard.protocol.codes import (
    CURRENT_VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from goddard.protocol.frame import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    FrameDecoder,
    RemotingCommand,
    decode_frame,
    encode_frame,
    encode_head,
)

COMMANDS = [
    RemotingCommand(RequestCode.HEART_BEAT, body=b'{"clientID":"c"}', opaque=7),
    RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Tópic-\U0001f600"}, opaque=-1),
    RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, flag=1, remark="no such topic", opaque=2**31 - 1),
    RemotingCommand(
        RequestCode.SEND_MESSAGE_V2, {"a": "g", "i": "x\x01y\x02"}, b"\0" * 300, flag=2
    ),
]
BINARY = [
    RemotingCommand(
        command.code,
        command.ext_fields,
        command.body,
        command.opaque,
        command.flag,
        command.remark,
        LanguageCode.GO,
        317,
        SerializeType.ROCKETMQ,
    )
    for command in COMMANDS
]
STREAM = b"".join(map(encode_frame, COMMANDS + BINARY))


def decode(frame: bytes) -> RemotingCommand:
    return decode_frame(memoryview(frame)[4:])


def frame_of(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def json_frame(**header: Any) -> bytes:
    return frame_of(json.dumps(header).encode())


class TestDecoder:
    def test_whole(self) -> None:
        frames = FrameDecoder().feed(STREAM)
        assert [decode_frame(frame) for frame in frames] == COMMANDS + BINARY

    def test_byte_by_byte(self) -> None:
        decoder = FrameDecoder()
        commands: list[RemotingCommand] = []
        for position in range(len(STREAM)):
            commands += map(decode_frame, decoder.feed(STREAM[position : position + 1]))
        assert commands == COMMANDS + BINARY
        assert decoder.buffered_bytes == 0

    def test_start_of_the_next_frame_is_kept(self) -> None:
        decoder = FrameDecoder()
        first = encode_frame(COMMANDS[0])
        second = encode_frame(COMMANDS[1])
        assert len(decoder.feed(first + second[:9])) == 1
        assert decoder.buffered_bytes == 9
        (frame,) = decoder.feed(second[9:])
        assert decode_frame(frame) == COMMANDS[1]
        assert decoder.buffered_bytes == 0

    @pytest.mark.parametrize("length", [-(2**31), -1, 0, 3, MAX_FRAME_BYTES + 1, 2**31 - 1])
    def test_a_length_out_of_range_ends_the_stream(self, length: int) -> None:
        good = encode_frame(COMMANDS[0])
        decoder = FrameDecoder()
        frames = decoder.feed(good + struct.pack(">i", length) + good)
        assert [decode_frame(frame) for frame in frames] == [COMMANDS[0]]
        assert isinstance(decoder.failure, ProtocolError)
        assert str(length) in str(decoder.failure)
        assert decoder.feed(good) == []

    @pytest.mark.parametrize("length", range(4))
    def test_frame_below_the_minimum_length(self, length: int) -> None:
        decoder = FrameDecoder()
        assert decoder.feed(struct.pack(">i", length) + bytes(length)) == []
        assert isinstance(decoder.failure, ProtocolError)

    def test_bad_length_fails_before_the_frame_arrives(self) -> None:
        decoder = FrameDecoder()
        for byte in b"\x7f\xff\xff":
            assert decoder.feed(bytes([byte])) == []
            assert decoder.failure is None
        decoder.feed(b"\xff")
        assert decoder.failure is not None
        assert decoder.buffered_bytes == 0

    def test_the_limit_is_inclusive(self) -> None:
        frame = encode_frame(COMMANDS[0])
        exact = FrameDecoder(max_frame_bytes=len(frame) - 4)
        assert len(exact.feed(frame)) == 1
        below = FrameDecoder(max_frame_bytes=len(frame) - 5)
        assert below.feed(frame) == []
        assert below.failure is not None


class TestJsonHeader:
    def test_encoding_equals_java(self) -> None:
        command = RemotingCommand(105, {"topic": "T"}, opaque=3)
        header = encode_frame(command)[8:]
        assert header == (
            b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":3,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION
        )

    def test_absent_and_empty_differ(self) -> None:
        for fields, remark in ((None, None), ({}, "")):
            command = RemotingCommand(0, fields, remark=remark)
            decoded = decode(encode_frame(command))
            assert decoded.ext_fields == fields
            assert decoded.remark == remark

    def test_values_that_are_not_text_are_kept_as_written(self) -> None:
        header = (
            b'{"code":"11","extFields":{"a":7,"b":true,"c":1.50,"d":null,"e":"x\\u00e9",'
            b'"f":12345678901234567890123},"flag":0,"opaque":1,"language":1,"version":"317"}'
        )
        command = decode(frame_of(header))
        assert command.code == 11
        assert command.version == 317
        assert command.language == LanguageCode.CPP
        assert command.ext_fields == {
            "a": "7",
            "b": "true",
            "c": "1.50",
            "e": "xé",
            "f": "12345678901234567890123",
        }

    def test_last_duplicate_key_is_used(self) -> None:
        header = b'{"code":1,"code":2,"extFields":{"a":"1","a":"2"}}'
        command = decode(frame_of(header))
        assert command.code == 2
        assert command.ext_fields == {"a": "2"}

    @pytest.mark.parametrize(
        ("written", "language"),
        [("GO", LanguageCode.GO), ("KLINGON", LanguageCode.OTHER), (300, LanguageCode.OTHER)],
    )
    def test_unknown_languages_are_other(self, written: Any, language: LanguageCode) -> None:
        assert decode(json_frame(code=0, language=written)).language == language

    @pytest.mark.parametrize(
        "header",
        [
            b"",
            b"{",
            b"null",
            b"[]",
            b'"text"',
            b"\xff\xfe",
            b'{"remark":"\xed\xa0\x80"}',
            b'{"remark":"\\ud800"}',
            b'{"extFields":{"a":"\\udc00"}}',
            b'{"extFields":{"a":1,"b":"\\udc00"}}',
            b'{"extFields":{"a":{"b":"\xff"}}}',
            b'{"extFields":[]}',
            b'{"extFields":"x"}',
            b'{"remark":5}',
            b'{"code":{}}',
            b'{"code":true}',
            b'{"code":1.5}',
            b'{"code":NaN}',
            b'{"code":1e999}',
            b'{"code":2147483648}',
            b'{"opaque":-2147483649}',
            b'{"code":' + b"9" * 5000 + b"}",
            b'{"code":"' + b"9" * 5000 + b'"}',
            b'{"x":' + b"9" * 5000 + b',"code":"x"}',
            b'{"x":' + b"[" * 100_000,
            b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"extFields":{"a":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001 + b"}",
            b'{"code":1} {}',
            b"{'code':1}",
        ],
        ids=lambda header: repr(header[:24]),
    )
    def test_malformed_headers_are_rejected(self, header: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode(frame_of(header))


class TestBinaryHeader:
    HEAD = struct.Struct(">hBhiii")

    def header(self, remark: bytes = b"", ext: bytes = b"") -> bytes:
        head = self.HEAD.pack(10, 0, 493, 1, 0, len(remark))
        return head + remark + struct.pack(">i", len(ext)) + ext

    def test_layout(self) -> None:
        command = RemotingCommand(
            10, {"k": "vé"}, b"B", 5, 2, "r", LanguageCode.PYTHON, 493, SerializeType.ROCKETMQ
        )
        assert encode_frame(command).hex() == (
            "00000025"  # length
            "01000020"  # type, header length
            "000a0301ed0000000500000002"  # code, language, version, opaque, flag
            "0000000172"  # remark
            "0000000a00016b0000000376c3a9"  # fields
            "42"  # body
        )

    def test_no_remark_and_no_fields_are_none(self) -> None:
        command = decode(frame_of(self.header(), kind=1))
        assert command.remark is None
        assert command.ext_fields is None

    def test_codes_beyond_16_bits_are_sent_as_json(self) -> None:
        command = RemotingCommand(
            RequestCode.POP_MESSAGE, {"topic": "T"}, serialize_type=SerializeType.ROCKETMQ
        )
        decoded = decode(encode_frame(command))
        assert decoded.code == RequestCode.POP_MESSAGE
        assert decoded.serialize_type == SerializeType.JSON

    def test_every_truncation_is_rejected(self) -> None:
        header = self.header(b"remark", b"\0\3key\0\0\0\5value")
        decode(frame_of(header, kind=1))
        for size in range(len(header)):
            with pytest.raises(ProtocolError):
                decode(frame_of(header[:size], kind=1))

    @pytest.mark.parametrize(
        "ext",
        [
            b"\xff\xff\0\0\0\0",  # a name of -1 bytes
            b"\0\1k\xff\xff\xff\xff",  # a value of -1 bytes
            b"\0\1k\x7f\xff\xff\xff",
            b"\x7f\xffk\0\0\0\0",
            b"\0\1\xff\0\0\0\0",  # not UTF-8
            b"\0\1k\0\0\0\1\xff",
            b"\0\1k\0\0\0\3\xed\xa0\x80",
            b"\0",
        ],
    )
    def test_wrong_fields(self, ext: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode(frame_of(self.header(ext=ext), kind=1))

    @pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 1])
    def test_wrong_lengths(self, length: int) -> None:
        head = self.HEAD.pack(10, 0, 493, 1, 0, length)
        with pytest.raises(ProtocolError):
            decode(frame_of(head + struct.pack(">i", 0), kind=1))
        head = self.HEAD.pack(10, 0, 493, 1, 0, 0)
        with pytest.raises(ProtocolError):
            decode(frame_of(head + struct.pack(">i", length), kind=1))


class TestFrame:
    def test_unknown_encodings_are_refused(self) -> None:
        for kind in (2, 127, 128, 255):
            with pytest.raises(ProtocolError, match=str(kind)):
                decode(frame_of(b"{}", kind=kind))

    def test_a_header_longer_than_its_frame(self) -> None:
        with pytest.raises(ProtocolError, match="does not fit"):
            decode(struct.pack(">iI", 6, 3) + b"{}")

    @pytest.mark.parametrize("kind", list(SerializeType))
    def test_header_over_the_limit_is_not_decoded(self, kind: SerializeType) -> None:
        with pytest.raises(ProtocolError, match="limit"):
            decode(frame_of(b"x" * (MAX_HEADER_BYTES + 1), kind=kind))
        longest = b'{"code":1,"remark":"' + b"x" * (MAX_HEADER_BYTES - 22) + b'"}'
        assert decode(frame_of(longest)).code == 1

    @pytest.mark.parametrize("size", range(4))
    def test_too_short_for_a_header_length(self, size: int) -> None:
        with pytest.raises(ProtocolError):
            decode_frame(memoryview(bytes(size)))

    def test_the_body_is_kept_as_it_is(self) -> None:
        body = bytes(range(256))
        assert decode(frame_of(b'{"code":1}', body)).body == body

    def test_head_and_body_may_be_written_separately(self) -> None:
        command = RemotingCommand(11, body=memoryview(b"body"))
        assert encode_head(command, 4) + b"body" == encode_frame(command)


class TestEncodeRejects:
    @pytest.mark.parametrize("kind", list(SerializeType))
    def test_lone_surrogate(self, kind: SerializeType) -> None:
        for command in (
            RemotingCommand(0, remark="\ud800", serialize_type=kind),
            RemotingCommand(0, {"a": "\udfff"}, serialize_type=kind),
        ):
            with pytest.raises(ProtocolError):
                encode_frame(command)

    @pytest.mark.parametrize(
        "command",
        [
            RemotingCommand(0, {"k" * 40_000: "v"}),
            RemotingCommand(0, version=2**15),
            RemotingCommand(0, opaque=2**31),
            RemotingCommand(0, {"k": "v" * 0x1000000}),
        ],
        ids=["long name", "version", "opaque", "long header"],
    )
    def test_what_does_not_fit_a_binary_header(self, command: RemotingCommand) -> None:
        command.serialize_type = SerializeType.ROCKETMQ
        with pytest.raises(ProtocolError):
            encode_frame(command)

    def test_a_json_header_over_the_limit(self) -> None:
        with pytest.raises(ProtocolError, match="limit"):
            encode_frame(RemotingCommand(0, remark="x" * MAX_HEADER_BYTES))


class TestReply:
    def test_reply_uses_the_encoding_of_the_request(self) -> None:
        for request in COMMANDS + BINARY:
            reply = request.reply(ResponseCode.SYSTEM_BUSY, "later", {"a": "b"}, b"body")
            assert reply.is_response
            assert not reply.is_oneway
            assert reply.opaque == request.opaque
            assert reply.serialize_type == request.serialize_type
            assert (reply.code, reply.remark, reply.fields, reply.body) == (
                ResponseCode.SYSTEM_BUSY,
                "later",
                {"a": "b"},
                b"body",
            )

    def test_fields_of_a_command_without_any(self) -> None:
        assert RemotingCommand(0).fields == {}


def binary_round_trip(fields: dict[str, str]) -> None:
    command = RemotingCommand(10, fields, serialize_type=SerializeType.ROCKETMQ)
    assert decode(encode_frame(command)).ext_fields == fields


def test_fields_of_one_length_may_have_different_layouts() -> None:
    """Layouts of binary headers are remembered by their length."""
    layouts: list[Callable[[int], dict[str, str]]] = [
        lambda n: {"first": f"{n:04}", "second": "é"},
        lambda n: {"first": f"{n:03}", "second": "xé"},
        lambda n: {"other": f"{n:04}", "second": "é"},
        lambda n: {"second": f"{n:04}", "first": "é"},
        lambda n: {"a": f"{n:06}", "b": "", "second": ""},
    ]
    for repeats in (1, 3, 20):
        for layout in layouts:
            for number in range(repeats):
                binary_round_trip(layout(number))
    for number in range(100):
        binary_round_trip(layouts[number % len(layouts)](number))


def test_a_repeated_layout_is_checked_as_the_first() -> None:
    good = encode_frame(
        RemotingCommand(10, {"name": "value", "n": "12"}, serialize_type=SerializeType.ROCKETMQ)
    )
    for _ in range(3):
        decode(good)
    at = good.index(b"value")
    for bad in (
        good.replace(b"value", b"val\xffe"),
        good[: at - 4] + struct.pack(">i", 6) + good[at:],
        good[: at - 4] + struct.pack(">i", -1) + good[at:],
    ):
        for _ in range(10):
            with pytest.raises(ProtocolError):
                decode(bad)
    assert decode(good).ext_fields == {"name": "value", "n": "12"}


def test_a_repeated_name_has_its_last_value_under_every_layout() -> None:
    fields = b"".join(
        struct.pack(">h", 1) + b"n" + struct.pack(">i", 1) + value for value in (b"1", b"2")
    )
    head = struct.pack(">hBhiiii", 10, 0, 400, 1, 0, 0, len(fields))
    for _ in range(20):
        assert decode(frame_of(head + fields, kind=1)).ext_fields == {"n": "2"}
