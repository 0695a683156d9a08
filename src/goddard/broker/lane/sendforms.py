"""Headers of sends that are alike but for a few values, and so need not be read each time.

A producer writes the same header over and over. What differs is the queue id, the time, the values
of properties and the opaque; group, topic and names stay. A ``Form`` is made from a header that
was read in the usual way. It fits headers of the same length whose other bytes are the same, cuts
the values out by their place, and takes them only if they could stand there: digits for numbers,
plain characters for text, so that nothing but the values can have changed. A form is tried before
it is used: a header with other values must read, in the usual way, as the form says.

Both header encodings are the same to a form. Nothing here does I/O; forms belong to one thread.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from goddard.broker.lane.sendwire import (
    LongFields,
    SendHeader,
    SendReader,
    ShortFields,
    encode_opaque,
)
from goddard.protocol.codes import RequestCode, SerializeType

_BINARY: Final = int(SerializeType.ROCKETMQ)
_HEADER_AT: Final = 4  # in a frame: behind the word with encoding and length
# Of a binary header: where the opaque is, and where its fields begin.
_OPAQUE_SPAN: Final = (5, 9)
_FIELDS_AT: Final = 21
_KEY_LENGTH: Final = Struct(">h")
_I32: Final = Struct(">i")
# Headers of one form have these bytes of their frames in common. In either encoding they are of the
# producer group and the topic, and end before the first value that varies.
KEY_START: Final = _HEADER_AT + _FIELDS_AT
KEY_END: Final = KEY_START + 40

# Longer headers are rare, and thousands of their forms would take much memory.
_MAX_HEADER_BYTES: Final = 2048
_MAX_VALUES: Final = 24
_Names: TypeAlias = tuple[bytes, bytes, bytes]
_SHORT_NAMES: Final[_Names] = (b"e", b"g", b"i")
_LONG_NAMES: Final[_Names] = (b"queueId", b"bornTimestamp", b"properties")
# Nine digits fit 32 bits whatever they are, twice as many 64.
_MAX_DIGITS: Final = 9
_ZERO: Final = ord("0")
# What stands for itself in JSON and in properties.
_PLAIN: Final = (
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$&()*+,-.:;=?@[]^_`{|}~ "
)
# For a trial: another digit (of a number that begins with none, no zero), another plain character.
_OTHERS: Final = bytes(
    ord("0") + (byte - ord("0")) % 9 + 1
    if byte in b"0123456789"
    else ord("R" if byte == ord("Q") else "Q")
    for byte in range(256)
)
_ESCAPED_SEPARATORS: Final = re.compile(rb"\\u000[12]")
_SEPARATORS: Final = re.compile(rb"[\x01\x02]")

_Span: TypeAlias = tuple[int, int]
_Spans: TypeAlias = tuple[_Span, _Span, _Span, _Span]
# Opaque, queue id, born timestamp, and the values of the properties that vary.
Values: TypeAlias = tuple[bytes, bytes, bytes, tuple[bytes, ...]]


class Property(NamedTuple):
    """A property of a header; ``is_fixed`` where another value would change what happens."""

    name: bytes
    value: bytes
    is_fixed: bool


class Form:
    """See the module's text.

    ``properties`` makes, from the values that vary, the properties as they are stored; ``places``
    says where among these values that of a property is. A frame's body is at ``body_at``.
    """

    __slots__ = (
        "_literals",
        "_opaque_at",
        "_queue_at",
        "_texts",
        "_unpack",
        "body_at",
        "is_binary",
        "places",
        "properties",
    )

    def __init__(
        self,
        pieces: Sequence[bytes],
        properties: bytes,
        places: Mapping[bytes, int],
        *,
        is_binary: bool,
    ) -> None:
        """``pieces`` of a header: what is fixed, a value, what is fixed, and so on."""
        layout = Struct("".join(f"{len(piece)}s" for piece in pieces))
        self._unpack: Callable[[bytes, int], tuple[bytes, ...]] = layout.unpack_from
        self._literals = tuple(pieces[::2])
        self.is_binary = is_binary
        # Places among the values: a binary header has its opaque first, a JSON one last.
        self._opaque_at, self._queue_at = (0, 1) if is_binary else (-1, 0)
        self._texts = slice(3, None) if is_binary else slice(2, -1)
        self.body_at = _HEADER_AT + layout.size
        self.properties = properties
        self.places = places

    def fit(self, frame: bytes) -> Values | None:
        """The values in a frame's header, which must be whole; None if it is of another form.

        Whether there is such a queue is left to the caller.
        """
        pieces = self._unpack(frame, _HEADER_AT)
        if pieces[::2] != self._literals:
            return None
        values = pieces[1::2]
        opaque = values[self._opaque_at]
        queue_at = self._queue_at
        born_timestamp = values[queue_at + 1]
        texts = values[self._texts]
        if (
            not born_timestamp.isdigit()
            or b"".join(texts).translate(None, _PLAIN)
            or not (self.is_binary or (opaque.isdigit() and opaque[0] != _ZERO))
        ):
            return None
        return opaque, values[queue_at], born_timestamp, texts


def make_form(
    header: bytes,
    encoding: int,
    request: SendHeader,
    properties: Sequence[Property],
    read: SendReader,
) -> Form | None:
    """The form of a header that ``read`` has read as ``request``; None when it has none.

    ``properties`` are all that the request has, in order.
    """
    if len(header) > _MAX_HEADER_BYTES:
        return None
    is_binary = encoding == _BINARY
    names = _LONG_NAMES if request.code == RequestCode.SEND_MESSAGE else _SHORT_NAMES
    spans = _binary_spans(header, names) if is_binary else _json_spans(header, names)
    if spans is None:
        return None
    queue_id, born_timestamp, text, opaque = spans
    separators = _SEPARATORS if is_binary else _ESCAPED_SEPARATORS
    values = _value_spans(header, text, separators)
    if len(values) != len(properties):
        return None
    places: dict[bytes, int] = {}
    varying: list[_Span] = []
    template = b""
    for (name, value, is_fixed), (start, end) in zip(properties, values, strict=True):
        template += _quoted(name) + b"\x01"
        if is_fixed or value.translate(None, _PLAIN) or header[start:end] != value:
            template += _quoted(value)
        else:
            places[name] = len(varying)
            varying.append((start, end))
            template += b"%b"
        template += b"\x02"
    cuts = [queue_id, born_timestamp, *varying]
    cuts = [opaque, *cuts] if is_binary else [*cuts, opaque]
    if len(cuts) > _MAX_VALUES or any(after[0] < before[1] for before, after in pairwise(cuts)):
        return None  # too much, or fields in an unusual order
    pieces = _cut(header, cuts)
    form = Form(pieces, template, places, is_binary=is_binary)
    return form if _proves_true(form, pieces, request, read) else None


def _proves_true(
    form: Form, pieces: Sequence[bytes], request: SendHeader, read: SendReader
) -> bool:
    """Whether the header itself, and one with other values, are read as the form says.

    The values differ at every place: those that are read elsewhere, and were the same by chance,
    cannot be the same both times.
    """
    trial = b"".join(
        piece.translate(_OTHERS) if at % 2 else piece for at, piece in enumerate(pieces)
    )
    got = read(memoryview(trial))
    return (
        got is not None
        and _says(form, b"".join(pieces), request, request.fields)
        and _says(form, trial, got, request.fields)
        and (got.code, got.flag) == (request.code, request.flag)
    )


def _says(form: Form, header: bytes, got: SendHeader, fixed: ShortFields | LongFields) -> bool:
    """Whether a form finds in a header what was read, but for what is ``fixed``."""
    found = form.fit(bytes(_HEADER_AT) + header)
    if found is None:
        return False
    opaque, queue_id, born_timestamp, texts = found
    properties = got.fields.properties.encode()
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    wanted = msgspec.structs.replace(
        fixed,
        queue_id=int(queue_id),
        born_timestamp=int(born_timestamp),
        properties=got.fields.properties,
    )
    return (
        got.fields == wanted
        and properties == form.properties % texts
        and opaque == encode_opaque(got.opaque, int(form.is_binary))
    )


def _json_spans(header: bytes, names: _Names) -> _Spans | None:
    """Where the values are. A quote within a text is escaped, so a quoted name is a name."""
    queue_id, born_timestamp, properties = names
    patterns = (
        b'"%b":"(\\d{1,9}+)"' % queue_id,
        b'"%b":"(\\d{1,18}+)"' % born_timestamp,
        b'"%b":"((?:[^"\\\\]|\\\\.)*+)"' % properties,
        rb'"opaque":([1-9]\d{0,8}+)[,}]',
    )
    spans = [[match.span(1) for match in re.finditer(each, header)] for each in patterns]
    if any(len(found) != 1 for found in spans):
        return None
    return spans[0][0], spans[1][0], spans[2][0], spans[3][0]


def _binary_spans(header: bytes, names: _Names) -> _Spans | None:
    """Where the values are in a header that was read, and so is well formed."""
    spans: dict[bytes, _Span] = {}
    position = _FIELDS_AT
    while position < len(header):
        (length,) = _KEY_LENGTH.unpack_from(header, position)
        name = header[position + 2 : position + 2 + length]
        position += 2 + length
        (length,) = _I32.unpack_from(header, position)
        position += 4 + length
        if name in spans:
            return None
        spans[name] = position - length, position
    found = [spans.get(name) for name in names]
    queue_id, born_timestamp, properties = found
    if queue_id is None or born_timestamp is None or properties is None:
        return None
    if not header[slice(*queue_id)].isdigit() or not header[slice(*born_timestamp)].isdigit():
        return None
    if queue_id[1] - queue_id[0] > _MAX_DIGITS or (
        born_timestamp[1] - born_timestamp[0] > 2 * _MAX_DIGITS
    ):
        return None  # other digits might not fit 32 or 64 bits
    return queue_id, born_timestamp, properties, _OPAQUE_SPAN


def _value_spans(header: bytes, text: _Span, separators: re.Pattern[bytes]) -> list[_Span]:
    """Where the values of properties are, of names and values that alternate."""
    start, end = text
    found = list(separators.finditer(header, start, end))
    spans = []
    for after_name in range(0, len(found), 2):
        value_at = found[after_name].end()
        is_ended = after_name + 1 < len(found)
        spans.append((value_at, found[after_name + 1].start() if is_ended else end))
    return spans


def _cut(header: bytes, spans: Sequence[_Span]) -> list[bytes]:
    pieces: list[bytes] = []
    position = 0
    for start, end in spans:
        pieces += header[position:start], header[start:end]
        position = end
    return [*pieces, header[position:]]


def _quoted(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
