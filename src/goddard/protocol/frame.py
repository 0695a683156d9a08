"""Remoting frames: RemotingCommand, its two header encodings, and a decoder for any chunking.

Layout, all integers big-endian::

    length:i32 | type:u8 header_length:u24 | header | body        length: the number of bytes after
    it

    JSON header (type 0)   {"code","extFields","flag","language","opaque","remark","version", ...}
    ROCKETMQ header (1)    code:i16 language:u8 version:i16 opaque:i32 flag:i32
                           remark_length:i32 remark  ext_length:i32 (klen:i16 key vlen:i32 value)*

Nothing here does I/O. Every length is checked before it is used; malformed bytes raise
ProtocolError and nothing else. A decoder belongs to one connection and one thread.
"""

import struct
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Final

import msgspec

from goddard.errors import ProtocolError
from goddard.protocol.codes import (
    CURRENT_VERSION,
    CommandFlag,
    LanguageCode,
    ResponseCode,
    SerializeType,
)

# RocketMQ's com.rocketmq.remoting.frameMaxLength.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# Far longer than any real header (a message's properties have at most 32 KiB). Fields are decoded
# one by one: a header as long as the longest frame would take seconds.
MAX_HEADER_BYTES: Final = 1024 * 1024

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_JSON: Final = SerializeType.JSON
_ROCKETMQ: Final = SerializeType.ROCKETMQ

_I32: Final = Struct(">i")
_PREFIX: Final = Struct(">iI")
_BINARY_HEAD: Final = Struct(">hBhiii")
_KEY_LENGTH: Final = Struct(">h")
_MIN_BINARY_BYTES: Final = _BINARY_HEAD.size + _I32.size

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


@dataclass(slots=True)
class RemotingCommand:
    """One request or response. ``ext_fields`` holds header fields as text, under their wire names.

    A remark or ext_fields of None is absent from the wire; an empty one is written.
    """

    code: int
    ext_fields: dict[str, str] | None = None
    body: bytes | memoryview = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = LanguageCode.JAVA
    version: int = CURRENT_VERSION
    serialize_type: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & _ONEWAY)

    @property
    def fields(self) -> dict[str, str]:
        """The header fields for reading; empty when there are none."""
        return self.ext_fields if self.ext_fields is not None else {}

    def __str__(self) -> str:
        """The format of RocketMQ's logs; without the body."""
        fields = ", ".join(f"{name}={value}" for name, value in self.fields.items())
        return (
            f"RemotingCommand [code={self.code:d}, "
            f"language={_LANGUAGE_NAMES.get(self.language, 'OTHER')}, version={self.version:d}, "
            f"opaque={self.opaque}, flag(B)={self.flag & 0xFFFFFFFF:b}, "
            f"remark={'null' if self.remark is None else self.remark}, extFields={{{fields}}}, "
            f"serializeTypeCurrentRPC={self.serialize_type.name}]"
        )

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> "RemotingCommand":
        """The response to this request: same opaque, same header encoding."""
        return RemotingCommand(
            code=code,
            ext_fields=ext_fields,
            body=body,
            opaque=self.opaque,
            flag=_RESPONSE,
            remark=remark,
            serialize_type=self.serialize_type,
        )


class _JsonHeader(msgspec.Struct):
    """A header as received: any field may be missing, numbers may be text."""

    code: _Int32 = 0
    ext_fields: dict[str, str] | None = msgspec.field(name="extFields", default=None)
    flag: _Int32 = 0
    language: str | int | None = None
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


class _RawHeader(msgspec.Struct):
    """A header whose field values are JSON numbers or booleans, as the C++ client sends."""

    code: _Int32 = 0
    ext_fields: dict[str, msgspec.Raw] | None = msgspec.field(name="extFields", default=None)
    flag: _Int32 = 0
    language: str | int | None = None
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


class _WrittenHeader(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A header as Java writes it: these keys in this order, without nulls."""

    code: int
    ext_fields: dict[str, str] | None = msgspec.field(name="extFields", default=None)
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    serialize_type: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int


_read_header = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_read_raw_header = msgspec.json.Decoder(_RawHeader, strict=False).decode
_read_any = msgspec.json.Decoder().decode
_write_header = msgspec.json.Encoder().encode

_LANGUAGES: Final = {language.name: int(language) for language in LanguageCode}
_LANGUAGE_NAMES: Final = {int(language): language.name for language in LanguageCode}


def _language_of(written: str | int | None) -> int:
    if written is None:
        return LanguageCode.OTHER
    if isinstance(written, int):
        return written if 0 <= written <= 255 else LanguageCode.OTHER
    return _LANGUAGES.get(written, LanguageCode.OTHER)


def _text_of(raw: msgspec.Raw) -> str | None:
    """A field value as text: strings unquoted, numbers and booleans exactly as received."""
    value = bytes(raw)
    if value[:1] == b'"':
        return str(_read_any(value))
    return None if value == b"null" else value.decode()


def _decode_json_header(header: bytes, body: bytes) -> RemotingCommand:
    try:
        try:
            read = _read_header(header)
            fields = read.ext_fields
        except msgspec.ValidationError:
            raw = _read_raw_header(header)
            fields = None
            if raw.ext_fields is not None:
                texts = ((key, _text_of(value)) for key, value in raw.ext_fields.items())
                fields = {key: text for key, text in texts if text is not None}
            read = _JsonHeader(
                code=raw.code,
                flag=raw.flag,
                language=raw.language,
                opaque=raw.opaque,
                remark=raw.remark,
                version=raw.version,
            )
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the JSON header cannot be read: {error}") from error
    return RemotingCommand(
        read.code,
        fields,
        body,
        read.opaque,
        read.flag,
        read.remark,
        _language_of(read.language),
        read.version,
        _JSON,
    )


def _decode_binary_header(header: bytes, body: bytes) -> RemotingCommand:
    size = len(header)
    if size < _MIN_BINARY_BYTES:
        raise ProtocolError(f"a binary header has at least {_MIN_BINARY_BYTES} bytes, not {size}")
    code, language, version, opaque, flag, remark_length = _BINARY_HEAD.unpack_from(header)
    position = _BINARY_HEAD.size
    if not 0 <= remark_length <= size - position - 4:
        raise ProtocolError(f"a remark of {remark_length} bytes does not fit its header of {size}")
    try:
        remark = None
        if remark_length:
            remark = header[position : position + remark_length].decode()
            position += remark_length
        (ext_length,) = _I32.unpack_from(header, position)
        position += 4
        if not 0 <= ext_length <= size - position:
            raise ProtocolError(f"fields of {ext_length} bytes do not fit their header of {size}")
        fields = _decode_fields(header[position : position + ext_length]) if ext_length else None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the binary header is not UTF-8: {error}") from error
    return RemotingCommand(code, fields, body, opaque, flag, remark, language, version, _ROCKETMQ)


class _FieldLayout:
    """Names and lengths of the fields of a binary header, as one struct.

    Peers repeat headers whose values, but not their lengths, differ.
    """

    __slots__ = ("misses", "names", "separators", "unpack")

    def __init__(self, fields: dict[str, str], separators: list[bytes], lengths: list[int]) -> None:
        self.names = tuple(fields)
        # What precedes each value: the length of the name, the name, the length of the value.
        self.separators = tuple(separators)
        sizes = zip(separators, lengths, strict=True)
        self.unpack = Struct("".join([f"{len(each)}s{length}s" for each, length in sizes])).unpack
        self.misses = 0


# By the length of all fields. Each entry was seen when its length came first, or after so many
# headers of this length with other fields.
_layouts: dict[int, _FieldLayout] = {}
_MAX_LAYOUTS: Final = 512
_MAX_LAYOUT_BYTES: Final = 4096
_MAX_LAYOUT_MISSES: Final = 8


def _decode_fields(data: bytes) -> dict[str, str]:
    layout = _layouts.get(len(data))
    if layout is None:
        return _walk_fields(data, is_new=len(data) <= _MAX_LAYOUT_BYTES)
    parts = layout.unpack(data)
    if parts[::2] == layout.separators:
        return dict(zip(layout.names, map(bytes.decode, parts[1::2]), strict=True))
    layout.misses += 1
    return _walk_fields(data, is_new=layout.misses >= _MAX_LAYOUT_MISSES)


def _walk_fields(data: bytes, *, is_new: bool) -> dict[str, str]:
    """Decode fields one by one; ``is_new``: and remember their layout."""
    fields: dict[str, str] = {}
    separators: list[bytes] = []
    lengths: list[int] = []
    position, end = 0, len(data)
    while position < end:
        if end - position < 6:
            raise ProtocolError("a header field is truncated")
        key_at = position + 2
        (key_length,) = _KEY_LENGTH.unpack_from(data, position)
        key_end = key_at + key_length
        if key_length < 0 or key_end + 4 > end:
            raise ProtocolError(f"a field name of {key_length} bytes does not fit its header")
        value_at = key_end + 4
        (value_length,) = _I32.unpack_from(data, key_end)
        if not 0 <= value_length <= end - value_at:
            raise ProtocolError(f"a field value of {value_length} bytes does not fit its header")
        separators.append(data[position:value_at])
        lengths.append(value_length)
        position = value_at + value_length
        fields[data[key_at:key_end].decode()] = data[value_at:position].decode()
    if is_new and len(fields) == len(lengths):  # no name twice
        if len(_layouts) >= _MAX_LAYOUTS:
            _layouts.clear()
        _layouts[end] = _FieldLayout(fields, separators, lengths)
    return fields


def decode_frame(frame: memoryview) -> RemotingCommand:
    """Decode one frame, given without its length word (as FrameDecoder returns it)."""
    size = len(frame)
    if size < 4:
        raise ProtocolError(f"a frame has at least 4 bytes after its length, not {size}")
    (word,) = _I32.unpack_from(frame)
    header_length = word & 0xFFFFFF
    if header_length > size - 4:
        raise ProtocolError(f"a header of {header_length} bytes does not fit its frame of {size}")
    if header_length > MAX_HEADER_BYTES:
        raise ProtocolError(
            f"a header of {header_length} bytes is over the limit of {MAX_HEADER_BYTES}"
        )
    header = bytes(frame[4 : 4 + header_length])
    body = bytes(frame[4 + header_length :])
    kind = (word >> 24) & 0xFF
    if kind == _JSON:
        return _decode_json_header(header, body)
    if kind == _ROCKETMQ:
        return _decode_binary_header(header, body)
    raise ProtocolError(f"unknown header encoding {kind}")


def _encode_binary_header(command: RemotingCommand) -> bytes:
    remark = command.remark.encode() if command.remark else b""
    fields: list[bytes] = []
    if command.ext_fields:
        for key, value in command.ext_fields.items():
            name, text = key.encode(), value.encode()
            fields += _KEY_LENGTH.pack(len(name)), name, _I32.pack(len(text)), text
    ext = b"".join(fields)
    head = _BINARY_HEAD.pack(
        command.code,
        command.language & 0xFF,
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((head, remark, _I32.pack(len(ext)), ext))


def encode_head(command: RemotingCommand, body_length: int) -> bytes:
    """A frame up to its body, for callers that write the body without copying it."""
    try:
        # The binary header has 16 bits for the code: POP's codes do not fit and need JSON.
        if command.serialize_type == SerializeType.ROCKETMQ and -0x8000 <= command.code <= 0x7FFF:
            header = _encode_binary_header(command)
            kind = int(SerializeType.ROCKETMQ)
        else:
            header = _write_header(
                _WrittenHeader(
                    code=command.code,
                    ext_fields=command.ext_fields,
                    flag=command.flag,
                    language=_LANGUAGE_NAMES.get(command.language, "OTHER"),
                    opaque=command.opaque,
                    remark=command.remark,
                    serialize_type="JSON",
                    version=command.version,
                )
            )
            kind = int(SerializeType.JSON)
        if len(header) > MAX_HEADER_BYTES:
            raise ProtocolError(
                f"a header of {len(header)} bytes is over the limit of {MAX_HEADER_BYTES}"
            )
        return _PREFIX.pack(4 + len(header) + body_length, kind << 24 | len(header)) + header
    except (struct.error, UnicodeEncodeError) as error:
        raise ProtocolError(f"the command cannot be written: {error}") from error


def encode_frame(command: RemotingCommand) -> bytes:
    """Encode a whole frame."""
    body = command.body
    head = encode_head(command, len(body))
    return b"".join((head, body)) if body else head


class FrameDecoder:
    """Splits a byte stream into frames; a chunk may end anywhere.

    ``feed`` returns the frames that are complete, each without its length word. Bytes that cannot
    be a frame set ``failure``: the frames before them are still returned, later calls return
    nothing, and the caller must close the connection.
    """

    __slots__ = ("_max_frame_bytes", "_needed_bytes", "_partial", "failure")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._partial = bytearray()
        self._needed_bytes = 4
        self.failure: ProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Received bytes of an incomplete frame."""
        return len(self._partial)

    def join(self, data: bytes) -> bytes:
        """The buffered bytes and ``data``; nothing is buffered afterwards.

        For a caller that takes frames itself and feeds the rest. While the buffered frame is not
        complete, ``data`` is buffered as well, and the result is empty.
        """
        if not self._partial:
            return data
        if len(self._partial) + len(data) < self._needed_bytes:
            self._partial += data
            return b""
        data = b"".join((self._partial, data))
        self._partial = bytearray()
        return data

    def feed(self, data: bytes) -> list[memoryview]:
        if self.failure is not None:
            return []
        if self._partial:
            if len(self._partial) + len(data) < self._needed_bytes:
                self._partial += data
                return []
            data = b"".join((self._partial, data))
            self._partial = bytearray()
        frames: list[memoryview] = []
        view = memoryview(data)
        size = len(data)
        if 8 <= size <= self._max_frame_bytes and _I32.unpack_from(data)[0] == size - 4:
            return [view[4:]]  # the common case: one whole frame
        position = 0
        while size - position >= 4:
            (length,) = _I32.unpack_from(data, position)
            if not 4 <= length <= self._max_frame_bytes:
                self.failure = ProtocolError(
                    f"a frame of {length} bytes is outside 4..{self._max_frame_bytes}"
                )
                return frames
            end = position + 4 + length
            if end > size:
                break
            frames.append(view[position + 4 : end])
            position = end
        if position < size:
            self._partial += view[position:]
            self._needed_bytes = 4
            if size - position >= 4:
                self._needed_bytes = 4 + int(_I32.unpack_from(data, position)[0])
        return frames
