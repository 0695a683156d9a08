"""Frames, properties and batch entries of plain sends: compiled code makes most of them.

It does the same as ``encoding`` for properties of printable ASCII; what it leaves out, and all of
them where ``goddard.core`` is not compiled, is made in Python.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

import msgspec

from goddard.client.errors import InvalidMessageError
from goddard.client.produce import encoding
from goddard.client.produce.encoding import Outgoing, SendSettings
from goddard.client.values import MessageQueue
from goddard.core import IS_COMPILED
from goddard.errors import ProtocolError
from goddard.protocol.codes import CURRENT_VERSION
from goddard.protocol.message import encode_batch_entry

if IS_COMPILED:
    from goddard.core import client_sends


_FRAME_PREFIX: Final = Struct(">iI")
# The short names of the system flag, the time of birth, the flag and the properties.
_VARIABLE: Final = ("f", "g", "h", "i")

_quote = msgspec.json.Encoder().encode


def properties_text(properties: Mapping[str, str]) -> str:
    """As ``encoding.properties_text``."""
    if IS_COMPILED:
        text = client_sends.properties_text(properties)
        if text is not None:
            return text
    return encoding.properties_text(properties)


def batch_entry(body: bytes, properties: Mapping[str, str], flag: int) -> bytes:
    """One message of a batch body; InvalidMessageError if it cannot be sent."""
    if IS_COMPILED:
        entry = client_sends.encode_batch_entry(body, properties, flag)
        if entry is not None:
            return entry
    encoded = encoding.encoded_properties(properties)
    try:
        return encode_batch_entry(body, encoded, flag)
    except ProtocolError as error:
        raise InvalidMessageError(f"the message cannot be sent: {error}") from error


def has_template(out: Outgoing) -> bool:
    """Whether a FrameTemplate can encode this message."""
    return out.code == encoding.SEND and out.max_reconsume_times is None and not out.reconsume_times


class FrameTemplate:
    """Encodes plain sends to one queue, into the same bytes as ``encoding.send_command``.

    Only a few parts of such frames differ from message to message; the others are kept as bytes.
    """

    __slots__ = ("_compiled", "_header")

    def __init__(self, topic: str, queue: MessageQueue, settings: SendSettings) -> None:
        parts = _header_parts(topic, queue, settings)
        self._compiled = client_sends.SendTemplate(parts) if IS_COMPILED else None
        formats = [part.replace(b"%", b"%%") for part in parts]
        self._header = b"%d".join(formats[:4]) + b"%b" + b"%d".join(formats[4:])

    def frame(self, out: Outgoing, born_timestamp_ms: int, opaque: int) -> bytes:
        _, _, body, properties, sys_flag, flag, *_ = out
        if self._compiled is not None:
            frame = self._compiled.frame(
                body, properties, sys_flag, born_timestamp_ms, flag, opaque
            )
            if frame is not None:
                return frame
        text = _quote(properties)[1:-1]
        header = self._header % (sys_flag, born_timestamp_ms, flag, text, opaque)
        size = len(header)
        return b"".join((_FRAME_PREFIX.pack(4 + size + len(body), size), header, body))


def _header_parts(topic: str, queue: MessageQueue, settings: SendSettings) -> tuple[bytes, ...]:
    """The JSON header between the values of _VARIABLE and the opaque."""
    marker = Outgoing(encoding.SEND, topic, b"", "", 0, 0, "", topic)
    fields = encoding.send_command(marker, queue, 0, settings).fields
    parts = [b'{"code":%d,"extFields":{' % encoding.SEND]
    separator = b""
    for name, text in fields.items():
        parts[-1] += b'%b"%b":' % (separator, name.encode())
        if name in _VARIABLE:
            parts[-1] += b'"'
            parts.append(b'"')
        else:
            parts[-1] += _quote(text)
        separator = b","
    parts[-1] += b'},"flag":0,"language":"PYTHON","opaque":'
    parts.append(b',"serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION)
    return tuple(parts)
