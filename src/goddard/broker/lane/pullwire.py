"""Pull requests straight from header bytes, and their answers straight to bytes.

``PullReader`` reads both header encodings into the same ``PullHeader``. It leaves (None) whatever
is unusual to the general decoder: other requests, one-way flags, remarks, fields that are missing,
mistyped or out of range.

A consumer's pulls of a queue differ in two fields of a binary header, queueOffset and commitOffset.
What the rest of the header means is remembered by its bytes, and only these two are read each time.

Nothing here does I/O; a PullReader belongs to one thread.
"""

from copy import copy
from functools import lru_cache
from struct import Struct
from typing import Annotated, Final, NamedTuple

import msgspec

from goddard.errors import HeaderError, ProtocolError
from goddard.protocol.codes import (
    CURRENT_VERSION,
    CommandFlag,
    LanguageCode,
    RequestCode,
    SerializeType,
)
from goddard.protocol.frame import MAX_HEADER_BYTES, decode_frame
from goddard.protocol.headers.message import PullRequest

PULL: Final = int(RequestCode.PULL_MESSAGE)
LITE_PULL: Final = int(RequestCode.LITE_PULL_MESSAGE)
_CODES: Final = (PULL, LITE_PULL)
_JSON: Final = int(SerializeType.JSON)
_BINARY: Final = int(SerializeType.ROCKETMQ)
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_JAVA: Final = int(LanguageCode.JAVA)
_VERSION: Final = int(CURRENT_VERSION)

_PREFIX: Final = Struct(">iI")
_WORD: Final = Struct(">I")
# code, language, version, opaque, flag, length of the remark, length of the fields without one
_BINARY_HEAD: Final = Struct(">hBhiiii")
_BINARY_START: Final = Struct(">iIhBhiii")  # words of the frame, then up to the remark's length
_KEY_LENGTH: Final = Struct(">h")
_I32: Final = Struct(">i")
_EXT_AT: Final = 4 + _BINARY_HEAD.size

# The first key of Java's JSON headers is the code; others' go the long way.
_JSON_STARTS: Final = (b'{"code":11,', b'{"code":361')
# As ``encode_head`` writes it: code, PullResponse, opaque, remark.
JSON_HEAD: Final = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d",'
    b'"minOffset":"%d","maxOffset":"%d","topicSysFlag":"%d","groupSysFlag":"%d"},'
    b'"flag":1,"language":"JAVA","opaque":%d,"remark":"%b","serializeTypeCurrentRPC":"JSON",'
    b'"version":' + str(_VERSION).encode() + b"}"
)

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class PullFields(msgspec.Struct, rename="camel"):
    """What a pull asks; the fields of PullRequest that count for a broker."""

    consumer_group: str
    topic: str
    queue_id: _Int32
    queue_offset: _Int64
    max_msg_nums: _Int32
    sys_flag: _Int32
    commit_offset: _Int64
    suspend_timeout_millis: _Int64
    sub_version: _Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: _Int32 | None = None

    @classmethod
    def of(cls, header: PullRequest) -> "PullFields":
        return cls(
            consumer_group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=header.queue_offset,
            max_msg_nums=header.max_msg_nums,
            sys_flag=header.sys_flag,
            commit_offset=header.commit_offset,
            suspend_timeout_millis=header.suspend_timeout_millis,
            sub_version=header.sub_version,
            subscription=header.subscription,
            expression_type=header.expression_type,
            max_msg_bytes=header.max_msg_bytes,
        )


class PullHeader(NamedTuple):
    code: int
    opaque: int
    serialize_type: SerializeType
    fields: PullFields


class _JsonHeader(msgspec.Struct):
    code: int
    opaque: _Int32
    fields: PullFields = msgspec.field(name="extFields")
    flag: _Int32 = 0


_read_json = msgspec.json.Decoder(_JsonHeader, strict=False).decode

_QUEUE_OFFSET: Final = b"queueOffset"
_COMMIT_OFFSET: Final = b"commitOffset"


def _start_of(name: bytes) -> bytes:
    """A field up to the last byte of its value's length, for values shorter than 256 bytes."""
    return _KEY_LENGTH.pack(len(name)) + name + b"\x00\x00\x00"


_QUEUE_OFFSET_START: Final = _start_of(_QUEUE_OFFSET)
_COMMIT_OFFSET_START: Final = _start_of(_COMMIT_OFFSET)
# Eighteen digits fit 64 bits whatever they are.
_MAX_DIGITS: Final = 18
_MAX_MEMORIES: Final = 4096
_MAX_MEMORY_BYTES: Final = 1024


class PullReader:
    """Reads plain pulls, and remembers the headers that repeat."""

    __slots__ = ("_memories",)

    def __init__(self) -> None:
        self._memories: dict[tuple[bytes, bytes, bytes, bytes], PullFields] = {}

    def read(self, frame: memoryview) -> PullHeader | None:
        """The header of a plain pull, given its frame without the length word; else None."""
        if len(frame) < _EXT_AT:
            return None
        (word,) = _WORD.unpack_from(frame)
        length = word & 0xFFFFFF
        if length > len(frame) - 4 or length > MAX_HEADER_BYTES:
            return None
        if word >> 24 == _JSON:
            if not bytes(frame[4:15]).startswith(_JSON_STARTS):
                return None
            try:
                read = _read_json(frame[4 : 4 + length])
            except (msgspec.MsgspecError, ValueError, RecursionError):
                return None
            if read.flag or read.code not in _CODES:
                return None
            return PullHeader(read.code, read.opaque, SerializeType.JSON, read.fields)
        if word >> 24 != _BINARY:
            return None
        code, _, _, opaque, flag, remark_length, ext_length = _BINARY_HEAD.unpack_from(frame, 4)
        if code not in _CODES or flag or remark_length:
            return None
        if ext_length != length - _BINARY_HEAD.size:
            return None
        fields = self._binary_fields(frame, bytes(frame[_EXT_AT : 4 + length]))
        if fields is None:
            return None
        return PullHeader(code, opaque, SerializeType.ROCKETMQ, fields)

    def _binary_fields(self, frame: memoryview, ext: bytes) -> PullFields | None:
        queue_at, queue_offset = _number(ext, _QUEUE_OFFSET_START)
        commit_at, commit_offset = _number(ext, _COMMIT_OFFSET_START)
        if not queue_offset or not commit_offset:
            return None
        queue_end = queue_at + len(_QUEUE_OFFSET_START) + 1 + len(queue_offset)
        commit_end = commit_at + len(_COMMIT_OFFSET_START) + 1 + len(commit_offset)
        # Java has the queue's offset first. The order is part of the key.
        if queue_end <= commit_at:
            key = (ext[:queue_at], b"q", ext[queue_end:commit_at], ext[commit_end:])
        elif commit_end <= queue_at:
            key = (ext[:commit_at], b"c", ext[commit_end:queue_at], ext[queue_end:])
        else:
            return None
        known = self._memories.get(key)
        if known is None:
            known = _read_whole(frame, ext, queue_at, commit_at)
            if known is None:
                return None
            if len(ext) <= _MAX_MEMORY_BYTES:
                if len(self._memories) >= _MAX_MEMORIES:
                    self._memories.clear()
                self._memories[key] = known
        fields = copy(known)
        fields.queue_offset = int(queue_offset)
        fields.commit_offset = int(commit_offset)
        return fields


def _number(ext: bytes, start: bytes) -> tuple[int, bytes]:
    """Where a field begins and its digits; none when it is not there or anything else."""
    at = ext.find(start)
    value_at = at + len(start) + 1
    if at < 0 or value_at > len(ext):
        return at, b""
    digits = ext[value_at : value_at + ext[value_at - 1]]
    is_whole = len(digits) == ext[value_at - 1] <= _MAX_DIGITS
    return at, digits if is_whole and digits.isdigit() else b""


def _read_whole(frame: memoryview, ext: bytes, queue_at: int, commit_at: int) -> PullFields | None:
    """All fields, by the general decoder; None when the two that vary do not begin where they seem.

    The bytes of a field's beginning could also stand in the value of another.
    """
    try:
        fields = PullFields.of(PullRequest.decode(decode_frame(frame).fields))
    except (HeaderError, ProtocolError):
        return None
    starts: dict[bytes, int] = {}
    position = 0
    while position < len(ext):
        start = position
        (key_length,) = _KEY_LENGTH.unpack_from(ext, position)
        position += 2 + key_length
        name = ext[start + 2 : position]
        (value_length,) = _I32.unpack_from(ext, position)
        position += 4 + value_length
        if name in starts:
            return None
        starts[name] = start
    if starts.get(_QUEUE_OFFSET) != queue_at or starts.get(_COMMIT_OFFSET) != commit_at:
        return None
    return fields


class AnswerNumbers(NamedTuple):
    """The fields of PullResponse, in its order."""

    broker_id: int
    next_offset: int
    min_offset: int
    max_offset: int
    topic_sys_flag: int
    group_sys_flag: int


def encode_answer(
    serialize_type: SerializeType,
    opaque: int,
    code: int,
    remark: str,
    numbers: AnswerNumbers,
    body_bytes: int,
) -> bytes:
    """Everything of an answer's frame before its body."""
    if serialize_type is SerializeType.JSON:
        header = JSON_HEAD % (code, *numbers, opaque, remark.encode())
        return _PREFIX.pack(4 + len(header) + body_bytes, len(header)) + header
    ext = b"".join(
        (
            _field("suggestWhichBrokerId", numbers.broker_id),
            _offset_field(_NEXT_BEGIN_OFFSET, numbers.next_offset),
            _offset_field(_MIN_OFFSET, numbers.min_offset),
            _offset_field(_MAX_OFFSET, numbers.max_offset),
            _field("topicSysFlag", numbers.topic_sys_flag),
            _field("groupSysFlag", numbers.group_sys_flag),
        )
    )
    text = remark.encode()
    length = _BINARY_HEAD.size + len(text) + len(ext)
    start = _BINARY_START.pack(
        4 + length + body_bytes,
        _BINARY << 24 | length,
        code,
        _JAVA,
        _VERSION,
        opaque,
        _RESPONSE,
        len(text),
    )
    return b"".join((start, text, _I32.pack(len(ext)), ext))


def _key(name: str) -> bytes:
    encoded = name.encode()
    return _KEY_LENGTH.pack(len(encoded)) + encoded


_NEXT_BEGIN_OFFSET: Final = _key("nextBeginOffset")
_MIN_OFFSET: Final = _key("minOffset")
_MAX_OFFSET: Final = _key("maxOffset")


@lru_cache(maxsize=1024)
def _field(name: str, value: int) -> bytes:
    """A field whose values are few."""
    return _offset_field(_key(name), value)


def _offset_field(key: bytes, value: int) -> bytes:
    text = b"%d" % value
    return key + _I32.pack(len(text)) + text
