"""Send requests straight from header bytes, and their answers straight to bytes.

Three readers give the same thing, a ``SendHeader``: JSON with short names (310, 320), JSON with
long ones (10), and the binary encoding of either. They are strict where it costs nothing and leave
what is unusual (None) to the general decoder: fields that are missing, mistyped or out of range,
text that is not UTF-8, remarks, keys in an unexpected form.

In a binary header of the usual order ``a b c d | e f g h i | j k l m n`` the outer parts repeat
from request to request; what they mean is remembered, and only the middle is read each time.

Nothing here does I/O; a BinarySends belongs to one thread.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct, pack
from typing import Annotated, Final, TypeAlias

import msgspec

from goddard.errors import HeaderError
from goddard.protocol.codes import (
    CURRENT_VERSION,
    CommandFlag,
    LanguageCode,
    RequestCode,
    SerializeType,
)
from goddard.protocol.headers.message import SendRequest, decode_send
from goddard.protocol.message import PROPERTY_REGION, PROPERTY_TRACE

_SEND: Final = int(RequestCode.SEND_MESSAGE)
_SHORT_CODES: Final = (int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE))
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_BINARY: Final = int(SerializeType.ROCKETMQ)
_JAVA: Final = int(LanguageCode.JAVA)
_MAX_MEMORIES: Final = 1024
_MAX_MEMORY_BYTES: Final = 512

_I32: Final = Struct(">i")
_PREFIX: Final = Struct(">iI")
# code, language, version, opaque, flag, length of the remark (0 here), length of the fields
_BINARY_HEAD: Final = Struct(">hBhiiii")
_BINARY_START: Final = Struct(">iIhBh4siii")  # the same behind the words of the frame
_OPAQUE_MARK: Final = b"\xff\xfe\xfd\xfc"  # nothing else before the fields of an answer has these
_KEY_LENGTH: Final = Struct(">h")


def _number_pattern(name: bytes, max_digits: int) -> bytes:
    """A field with a short name and a number for its value; the group is the last byte of the
    length and as many digits."""
    lengths = (
        re.escape(bytes((count,))) + b"[0-9]{%d}" % count for count in range(1, max_digits + 1)
    )
    return b"\x00\x01" + name + b"\x00\x00\x00(" + b"|".join(lengths) + b")"


# Fields e to i; of the last only name and length. Nine and eighteen digits fit 32 and 64 bits.
_find_middle: Final = re.compile(
    _number_pattern(b"e", 9)
    + _number_pattern(b"f", 9)
    + _number_pattern(b"g", 18)
    + _number_pattern(b"h", 9)
    + b"\x00\x01i(.{4})",
    re.DOTALL,
).search

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class ShortFields(msgspec.Struct, gc=False):
    """What is needed of the fields of 310 and 320."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: _Int32 = msgspec.field(name="d")
    queue_id: _Int32 = msgspec.field(name="e")
    sys_flag: _Int32 = msgspec.field(name="f")
    born_timestamp: _Int64 = msgspec.field(name="g")
    flag: _Int32 = msgspec.field(name="h")
    properties: str = msgspec.field(name="i", default="")
    reconsume_times: _Int32 | None = msgspec.field(name="j", default=None)
    max_reconsume_times: _Int32 | None = msgspec.field(name="l", default=None)
    batch: str | bool | None = msgspec.field(name="m", default=None)


class LongFields(msgspec.Struct, rename="camel", gc=False):
    """The same under the names of code 10."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: _Int32
    queue_id: _Int32
    sys_flag: _Int32
    born_timestamp: _Int64
    flag: _Int32
    properties: str = ""
    reconsume_times: _Int32 | None = None
    max_reconsume_times: _Int32 | None = None
    batch: str | bool | None = None
    # A short name among the long ones decides, wherever both are.
    b: str | None = None


class ShortHeader(msgspec.Struct, gc=False):
    code: int
    opaque: _Int32
    fields: ShortFields = msgspec.field(name="extFields")
    flag: _Int32 = 0


class LongHeader(msgspec.Struct, gc=False):
    code: int
    opaque: _Int32
    fields: LongFields = msgspec.field(name="extFields")
    flag: _Int32 = 0


SendHeader: TypeAlias = ShortHeader | LongHeader
SendReader: TypeAlias = Callable[[memoryview], SendHeader | None]

# msgspec takes "1.0", "1e2" and "null" for numbers as well, so headers are looked through for them.
# Those that Java's clients write are known to be good by one match.
_is_javas: Final = re.compile(
    rb'\{"code":3[12]0,"extFields":\{"a":"[^"]*+","b":"[^"]*+","c":"[^"]*+"'
    rb',"d":"\d++","e":"\d++","f":"\d++","g":"\d++","h":"\d++","i":"[^"]*+","j":"\d++"'
    rb',"k":"[^"]*+"(?:,"l":"\d++")?,"m":"[^"]*+"(?:,"n":"[^"]*+")?\}'
).match
_find_odd_short: Final = re.compile(rb'"[d-hjl]"\s*+:\s*+"?-?+\d*+[^0-9",}\s]').search
_find_odd_long: Final = re.compile(
    rb'"(?:defaultTopicQueueNums|queueId|sysFlag|bornTimestamp|flag|reconsumeTimes'
    rb'|maxReconsumeTimes)"\s*+:\s*+"?-?+\d*+[^0-9",}\s]'
).search

_decode_short = msgspec.json.Decoder(ShortHeader, strict=False).decode
_decode_long = msgspec.json.Decoder(LongHeader, strict=False).decode


def read_short(header: memoryview) -> ShortHeader | None:
    try:
        read = _decode_short(header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if read.code not in _SHORT_CODES:
        return None
    if _is_javas(header) is None and _find_odd_short(header) is not None:
        return None
    return read


def read_long(header: memoryview) -> LongHeader | None:
    try:
        read = _decode_long(header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if read.code != _SEND or read.fields.b is not None or _find_odd_long(header) is not None:
        return None
    return read


# Every client known writes the code first. What begins otherwise is left to the general decoder.
JSON_START_BYTES: Final = 12
JSON_READERS: Final[Mapping[bytes, SendReader]] = {
    b'{"code":310,': read_short,
    b'{"code":320,': read_short,
    b'{"code":10,"': read_long,
}
BINARY_CODES: Final = frozenset(code.to_bytes(2, "big") for code in (_SEND, *_SHORT_CODES))


class BinarySends:
    """Reads binary headers of sends, and remembers their unchanging parts."""

    def __init__(self) -> None:
        # From bytes to what they were found to mean; None: these need the general decoder.
        self._starts: dict[bytes, tuple[str, str, str, int] | None] = {}
        self._ends: dict[bytes, tuple[int | None, int | None, str | None] | None] = {}

    def read(self, frame_header: memoryview) -> SendHeader | None:
        header = bytes(frame_header)
        if len(header) < _BINARY_HEAD.size:
            return None
        code, _, _, opaque, flag, remark_length, fields_length = _BINARY_HEAD.unpack_from(header)
        if remark_length or fields_length != len(header) - _BINARY_HEAD.size:
            return None
        fields = self._usual(header) or _general_fields(header)
        return None if fields is None else ShortHeader(code, opaque, fields, flag)

    def _usual(self, header: bytes) -> ShortFields | None:
        """The fields of a header in the usual order."""
        matched = _find_middle(header, _BINARY_HEAD.size)
        if matched is None:
            return None
        queue_id, sys_flag, born_timestamp, flag, length = matched.groups()
        start = header[_BINARY_HEAD.size : matched.start()]
        known_start = self._starts.get(start) or self._learn_start(start)
        properties_at = matched.end()
        end_at = properties_at + int.from_bytes(length, "big")
        if known_start is None or end_at > len(header):
            return None
        end = header[end_at:]
        known_end = self._ends.get(end) or self._learn_end(end)
        if known_end is None:
            return None
        try:
            properties = header[properties_at:end_at].decode()
        except UnicodeDecodeError:
            return None
        group, topic, default_topic, queue_nums = known_start
        reconsume_times, max_reconsume_times, batch = known_end
        return ShortFields(
            group,
            topic,
            default_topic,
            queue_nums,
            int(queue_id[1:]),
            int(sys_flag[1:]),
            int(born_timestamp[1:]),
            int(flag[1:]),
            properties,
            reconsume_times,
            max_reconsume_times,
            batch,
        )

    def _learn_start(self, start: bytes) -> tuple[str, str, str, int] | None:
        fields = _fields_of(start) if len(start) <= _MAX_MEMORY_BYTES else None
        if fields is None or list(fields) != ["a", "b", "c", "d"]:
            return None
        header = _decoded({**fields, "e": "0", "f": "0", "g": "0", "h": "0"})
        if header is None:
            return None
        known = (
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
        )
        if len(self._starts) >= _MAX_MEMORIES:
            self._starts.clear()
        self._starts[start] = known
        return known

    def _learn_end(self, end: bytes) -> tuple[int | None, int | None, str | None] | None:
        fields = _fields_of(end) if len(end) <= _MAX_MEMORY_BYTES else None
        # Nothing that belongs to the middle may come again, and win.
        if fields is None or not fields.keys().isdisjoint("abcdefghi"):
            return None
        header = _decoded({**dict.fromkeys("abc", ""), **dict.fromkeys("defgh", "0"), **fields})
        if header is None:
            return None
        batch = "true" if header.batch else "false"
        known = (header.reconsume_times, header.max_reconsume_times, batch)
        if len(self._ends) >= _MAX_MEMORIES:
            self._ends.clear()
        self._ends[end] = known
        return known


def _general_fields(header: bytes) -> ShortFields | None:
    """The fields of a header in any order, short or long."""
    fields = _fields_of(header[_BINARY_HEAD.size :])
    read = None if fields is None else _decoded(fields)
    if read is None:
        return None
    return ShortFields(
        read.producer_group,
        read.topic,
        read.default_topic,
        read.default_topic_queue_nums,
        read.queue_id,
        read.sys_flag,
        read.born_timestamp,
        read.flag,
        read.properties or "",
        read.reconsume_times,
        read.max_reconsume_times,
        "true" if read.batch else "false",
    )


def _decoded(fields: Mapping[str, str]) -> SendRequest | None:
    try:
        return decode_send(fields)
    except HeaderError:
        return None


def _fields_of(data: bytes) -> dict[str, str] | None:
    """Binary fields as text; None when they are malformed."""
    fields: dict[str, str] = {}
    position = 0
    end = len(data)
    try:
        while position < end:
            if end - position < 6:
                return None
            (length,) = _KEY_LENGTH.unpack_from(data, position)
            position += 2
            if not 0 <= length <= end - position - 4:
                return None
            name = data[position : position + length].decode()
            position += length
            (length,) = _I32.unpack_from(data, position)
            position += 4
            if not 0 <= length <= end - position:
                return None
            fields[name] = data[position : position + length].decode()
            position += length
    except UnicodeDecodeError:
        return None
    return fields


class AnswerEncoder:
    """Answers to sends that went well, as whole frames; only what differs is written each time.

    An opaque comes as the answer has it: digits in JSON, four bytes in binary (``encode_opaque``).
    """

    def __init__(self, host_hex: bytes, trace: str, region: str) -> None:
        """``host_hex`` begins every message id of this broker."""
        self._host_hex = host_hex
        self._joint = b"," + host_hex
        # Texts of the configuration in a template: quoted for JSON, and their % doubled.
        quoted_trace, quoted_region = (
            msgspec.json.encode(text).replace(b"%", b"%%") for text in (trace, region)
        )
        before = b'{"code":0,"extFields":{"queueId":"%b",'
        after = (
            b'"msgId":"'
            + host_hex
            + b'%b","TRACE_ON":'
            + quoted_trace
            + b',"MSG_REGION":'
            + quoted_region
            + b',"queueOffset":"%d"},"flag":1,"language":"JAVA","opaque":%b,'
            + b'"serializeTypeCurrentRPC":"JSON","version":'
            + str(CURRENT_VERSION).encode()
            + b"}"
        )
        self._json = before + b'"transactionId":"%b",' + after
        self._json_one = self._json.replace(host_hex + b"%b", host_hex + b"%016X")
        self._json_without_id = before + after
        self._binary_common = (
            _binary_field(PROPERTY_TRACE, trace.encode())
            + _binary_field(PROPERTY_REGION, region.encode())
            + _binary_name("queueOffset")
        )
        # Whole binary frames for values of certain lengths: queue id, unique id, queue offset.
        self._binary_ones: dict[tuple[int, int, int], bytes] = {}

    def one(
        self,
        opaque: bytes,
        queue_id: bytes,
        unique_id: bytes | None,
        encoding: int,
        queue_offset: int,
        physical_offset: int,
    ) -> bytes:
        """The answer to a plain message, which always has a unique id."""
        if unique_id is None:
            return self.batch(
                opaque, queue_id, unique_id, encoding, queue_offset, (physical_offset,)
            )
        if encoding == _BINARY:
            offset = b"%d" % queue_offset
            lengths = len(queue_id), len(unique_id), len(offset)
            template = self._binary_ones.get(lengths) or self._binary_one(lengths)
            return template % (opaque, queue_id, unique_id, physical_offset, offset)
        header = self._json_one % (queue_id, unique_id, physical_offset, queue_offset, opaque)
        size = len(header)
        return _PREFIX.pack(size + 4, size) + header

    def _binary_one(self, lengths: tuple[int, int, int]) -> bytes:
        queue_length, unique_length, offset_length = lengths
        fields = (
            _QUEUE_NAME
            + _template_value(queue_length)
            + _binary_name("transactionId")
            + _template_value(unique_length)
            + _MESSAGE_NAME
            + _I32.pack(len(self._host_hex) + 16).replace(b"%", b"%%")
            + self._host_hex
            + b"%016X"
            + self._binary_common.replace(b"%", b"%%")
            + _template_value(offset_length)
        )
        sample = fields % (b"0" * queue_length, b"0" * unique_length, 0, b"0" * offset_length)
        start = _binary_start(_OPAQUE_MARK, len(sample)).replace(b"%", b"%%")
        template = start.replace(_OPAQUE_MARK, b"%b", 1) + fields
        if len(self._binary_ones) >= _MAX_MEMORIES:
            self._binary_ones.clear()
        self._binary_ones[lengths] = template
        return template

    def batch(
        self,
        opaque: bytes,
        queue_id: bytes,
        unique_id: bytes | None,
        encoding: int,
        queue_offset: int,
        physical_offsets: Sequence[int],
    ) -> bytes:
        places = pack(f">{len(physical_offsets)}q", *physical_offsets)
        ids = places.hex(",", 8).upper().encode().replace(b",", self._joint)
        if encoding == _BINARY:
            return self._binary_frame(opaque, queue_id, unique_id, queue_offset, ids)
        if unique_id is None:
            header = self._json_without_id % (queue_id, ids, queue_offset, opaque)
        else:
            header = self._json % (queue_id, unique_id, ids, queue_offset, opaque)
        size = len(header)
        return _PREFIX.pack(size + 4, size) + header

    def _binary_frame(
        self, opaque: bytes, queue: bytes, unique_id: bytes | None, queue_offset: int, ids: bytes
    ) -> bytes:
        offset = b"%d" % queue_offset
        transaction = b"" if unique_id is None else _binary_field("transactionId", unique_id)
        fields = b"".join(
            (
                _QUEUE_NAME,
                _I32.pack(len(queue)),
                queue,
                transaction,
                _MESSAGE_NAME,
                _I32.pack(len(self._host_hex) + len(ids)),
                self._host_hex,
                ids,
                self._binary_common,
                _I32.pack(len(offset)),
                offset,
            )
        )
        return _binary_start(opaque, len(fields)) + fields


def encode_opaque(opaque: int, encoding: int) -> bytes:
    """As answers of an encoding have it."""
    return _I32.pack(opaque) if encoding == _BINARY else b"%d" % opaque


def decode_opaque(opaque: bytes, encoding: int) -> int:
    return int(_I32.unpack(opaque)[0]) if encoding == _BINARY else int(opaque)


def _binary_start(opaque: bytes, fields_length: int) -> bytes:
    """Everything of a binary answer before its fields."""
    size = _BINARY_HEAD.size + fields_length
    return _BINARY_START.pack(
        size + 4,
        _BINARY << 24 | size,
        0,
        _JAVA,
        CURRENT_VERSION,
        opaque,
        _RESPONSE,
        0,
        fields_length,
    )


def _template_value(length: int) -> bytes:
    return _I32.pack(length).replace(b"%", b"%%") + b"%b"


@lru_cache(maxsize=64)
def _binary_name(name: str) -> bytes:
    return _KEY_LENGTH.pack(len(name)) + name.encode()


def _binary_field(name: str, value: bytes) -> bytes:
    return _binary_name(name) + _I32.pack(len(value)) + value


_QUEUE_NAME: Final = _binary_name("queueId")
_MESSAGE_NAME: Final = _binary_name("msgId")
