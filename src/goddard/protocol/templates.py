"""Responses from templates: the same bytes as ``encode_head`` makes, for a fraction of the time.

Nearly all responses of sends and pulls differ in a few values only. A template is a response
that was encoded once; ``head`` only fills in opaque, values and lengths.
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

import msgspec

from goddard.protocol.codes import CommandFlag, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_JSON: Final = SerializeType.JSON
_BINARY_KIND: Final = int(SerializeType.ROCKETMQ) << 24
_LENGTHS: Final = Struct(">iI")
_KEY_LENGTH: Final = Struct(">h")
_I32: Final = Struct(">i")
# Where the header begins in a frame, and the opaque in a binary one.
_HEADER_AT: Final = 8
_OPAQUE_AT: Final = 13

_to_json = msgspec.json.Encoder().encode


class ResponseTemplate:
    """Responses with one code, one remark, and the same fields in the same order.

    ``fields`` has None for those whose values differ.
    """

    def __init__(self, code: int, remark: str | None, fields: Mapping[str, str | None]) -> None:
        self._json = _json_template(code, remark, fields)
        self._fields = b"".join(_binary_field(*field) for field in fields.items())
        head = encode_frame(
            RemotingCommand(
                code, flag=_RESPONSE, remark=remark, serialize_type=SerializeType.ROCKETMQ
            )
        )
        self._before_opaque = head[_HEADER_AT:_OPAQUE_AT]
        # Flag and remark; the length of the fields, which follows, is 0 here.
        self._after_opaque = head[_OPAQUE_AT + 4 : -4]

    def head(
        self, kind: SerializeType, opaque: int, values: Sequence[str], body_bytes: int = 0
    ) -> bytes:
        """The frame up to its body. ``values`` are the texts of the fields that are None."""
        if kind is _JSON:
            header = self._json % (*map(_to_json, values), opaque)
            size = len(header)
            return _LENGTHS.pack(4 + size + body_bytes, size) + header
        parts: list[bytes] = []
        for value in values:
            text = value.encode()
            parts += _I32.pack(len(text)), text
        fields = self._fields % tuple(parts)
        header = b"".join(
            (
                self._before_opaque,
                _I32.pack(opaque),
                self._after_opaque,
                _I32.pack(len(fields)),
                fields,
            )
        )
        size = len(header)
        return _LENGTHS.pack(4 + size + body_bytes, _BINARY_KIND | size) + header


def _binary_field(name: str, value: str | None) -> bytes:
    """A field as the header has it, with ``%b%b`` for the length and the bytes of its value."""
    key = _KEY_LENGTH.pack(len(name)) + name.encode()
    if value is None:
        return _escaped(key) + b"%b%b"
    text = value.encode()
    return _escaped(key + _I32.pack(len(text)) + text)


def _json_template(code: int, remark: str | None, fields: Mapping[str, str | None]) -> bytes:
    texts = {name: value or "" for name, value in fields.items()}
    command = RemotingCommand(code, texts, flag=_RESPONSE, remark=remark)
    template = _escaped(encode_frame(command)[_HEADER_AT:])
    # Quotes within texts are escaped, so nothing but the fields themselves can match.
    for name, value in fields.items():
        if value is None:
            field = _escaped(_to_json(name)) + b":"
            template = template.replace(field + b'""', field + b"%b")
    return template.replace(b',"opaque":0,', b',"opaque":%d,')


def _escaped(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
