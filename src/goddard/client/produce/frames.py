"""Makes the frames of sends, and the entries of batches: compiled code makes most of them.

It does the same as ``encoding`` for properties of printable ASCII; what it leaves out, and all of
them where ``goddard.core`` is not compiled, is made in Python.
"""

import asyncio
import logging
from collections.abc import Mapping
from struct import Struct
from typing import Final

import msgspec

from goddard.client.errors import InvalidMessageError
from goddard.client.message import Message
from goddard.client.produce import encoding
from goddard.client.produce.encoding import (
    Outgoing,
    SendSettings,
    compress_body,
    prepare,
    send_command,
)
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.core import IS_COMPILED
from goddard.errors import ProtocolError
from goddard.protocol.codes import CURRENT_VERSION
from goddard.protocol.frame import encode_frame
from goddard.protocol.message import PROPERTY_DELAY, PROPERTY_UNIQUE_ID, encode_batch_entry

if IS_COMPILED:
    from goddard.core import client_sends


_logger: Final = logging.getLogger("goddard.client")

_FRAME_PREFIX: Final = Struct(">iI")
# Longer bodies are compressed in a thread; shorter ones take less than a millisecond.
_COMPRESS_IN_THREAD_BYTES: Final = 32 * 1024
# With more queues than this, the templates are discarded and made again.
_MAX_TEMPLATES: Final = 16_384
# RocketMQ's default messageDelayLevel has levels 1 to 18.
_MAX_DEFAULT_DELAY_LEVEL: Final = 18
_MAX_WARNED_LEVELS: Final = 1_000
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


class SendEncoder:
    """Encodes the messages of one producer; belongs to its event loop."""

    __slots__ = (
        "_session",
        "_settings",
        "_signs",
        "_templates",
        "_thread_from_bytes",
        "_warned_levels",
    )

    def __init__(self, session: Session, settings: SendSettings) -> None:
        self._session = session
        self._settings = settings
        self._signs = session.signs
        self._thread_from_bytes = max(_COMPRESS_IN_THREAD_BYTES, settings.compress_from_bytes)
        self._templates: dict[MessageQueue, FrameTemplate] = {}
        # Each is logged once.
        self._warned_levels: set[int] = set()

    def prepare_now(self, message: Message, topic: str) -> Outgoing | None:
        """Encode a valid message, which gets its id here; None if a thread has to compress it."""
        size = len(message.body)
        if size < self._settings.compress_from_bytes:
            return self._prepare(message, topic, None)
        if size < self._thread_from_bytes:
            return self._prepare(message, topic, compress_body(message.body, self._settings))
        return None

    async def prepare(self, message: Message, topic: str) -> Outgoing:
        """As ``prepare_now``; waits for a thread that compresses a large body."""
        out = self.prepare_now(message, topic)
        if out is None:
            compressed = await asyncio.to_thread(compress_body, message.body, self._settings)
            out = self._prepare(message, topic, compressed)
        return out

    def _prepare(self, message: Message, topic: str, compressed: bytes | None) -> Outgoing:
        properties = message.properties
        message_id = properties.get(PROPERTY_UNIQUE_ID)
        if message_id is None:
            message_id = properties[PROPERTY_UNIQUE_ID] = self._session.unique_id()
        if PROPERTY_DELAY in properties:
            self._warn_of_level(message.delay_level)
        return prepare(message, topic, message_id, self._settings, compressed, properties_text)

    def _warn_of_level(self, level: int) -> None:
        if level > _MAX_DEFAULT_DELAY_LEVEL and level not in self._warned_levels:
            if len(self._warned_levels) < _MAX_WARNED_LEVELS:
                self._warned_levels.add(level)
            _logger.warning(
                "Delay level %d is higher than %d, the highest of RocketMQ's default "
                "configuration; a broker without this level uses its highest one",
                *(level, _MAX_DEFAULT_DELAY_LEVEL),
            )

    def frame(self, out: Outgoing, queue: MessageQueue, opaque: int) -> bytes:
        """The bytes of a send to a queue."""
        session = self._session
        if self._signs or not has_template(out):
            command = send_command(out, queue, session.clock.now_ms(), self._settings)
            session.prepare(command)
            command.opaque = opaque
            return encode_frame(command)
        template = self._templates.get(queue)
        if template is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[queue] = FrameTemplate(out.topic, queue, self._settings)
        return template.frame(out, session.clock.now_ms(), opaque)
