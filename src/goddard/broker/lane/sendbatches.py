"""The body of a batch request, taken apart: bodies, properties, flags and tags, in columns.

The layout is in ``goddard.protocol.message``. Messages of one batch mostly have the same lengths;
such bodies are cut at a stroke, others message by message, with the same outcome. Pure.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from goddard.broker.lane.sendproperties import TAGS
from goddard.protocol.record import MAX_PROPERTIES_BYTES
from goddard.store.log.records import tags_code_of

_HEAD: Final = Struct(">i8xii")  # size, magic and CRC (both 0), flag, length of the body
_LENGTH: Final = Struct(">H")  # of the properties, after the body
_MIN_BYTES: Final = _HEAD.size + _LENGTH.size
_TAGS_START: Final = b"\x02" + TAGS + b"\x01"


class BatchMessages(NamedTuple):
    """The messages of a batch, value by value.

    ``is_even``: all bodies are of one length, all properties as well, and all flags are the same.
    """

    flags: Sequence[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    is_even: bool


def read_batch(data: bytes, max_messages: int) -> BatchMessages | None:
    """The messages of a batch; None unless all of it is good."""
    if len(data) < _MIN_BYTES:
        return None
    size, flag, body_length = _HEAD.unpack_from(data)
    properties_length = size - _MIN_BYTES - body_length
    if (
        body_length >= 0
        and 0 <= properties_length <= MAX_PROPERTIES_BYTES
        and len(data) % size == 0
        and len(data) // size <= max_messages
    ):
        layout = _layout(body_length, properties_length)
        heads, bodies, lengths, properties = zip(*layout.iter_unpack(data), strict=True)
        count = len(heads)
        if heads.count(heads[0]) == count and lengths.count(properties_length) == count:
            return BatchMessages([flag] * count, bodies, properties, is_even=True)
    return _read_each(data, max_messages)


@lru_cache(maxsize=1024)
def _layout(body_length: int, properties_length: int) -> Struct:
    """A message with parts of these many bytes."""
    return Struct(f">{_HEAD.size}s{body_length}sH{properties_length}s")


def _read_each(data: bytes, max_messages: int) -> BatchMessages | None:
    flags: list[int] = []
    bodies: list[bytes] = []
    properties: list[bytes] = []
    end = len(data)
    position = 0
    while position < end:
        if end - position < _MIN_BYTES or len(bodies) == max_messages:
            return None
        size, flag, body_length = _HEAD.unpack_from(data, position)
        body_at = position + _HEAD.size
        body_end = body_at + body_length
        properties_at = body_end + _LENGTH.size
        position += size
        if body_length < 0 or not properties_at <= position <= end:
            return None
        (properties_length,) = _LENGTH.unpack_from(data, body_end)
        if properties_length != position - properties_at or (
            properties_length > MAX_PROPERTIES_BYTES
        ):
            return None
        flags.append(flag)
        bodies.append(data[body_at:body_end])
        properties.append(data[properties_at:position])
    return BatchMessages(flags, bodies, properties, is_even=False)


def tags_codes_of(properties: Sequence[bytes]) -> list[int]:
    """What queue entries hold for the tags of each. Mostly all are the same."""
    at = _last_tags(properties[0])
    tail = properties[0][at:]
    if list(map(itemgetter(slice(at, None)), properties)).count(tail) == len(properties):
        return [tags_code_of(properties[0])] * len(properties)
    codes: dict[bytes, int] = {}
    found = []
    for each in properties:
        tail = each[_last_tags(each) :]
        code = codes.get(tail)
        if code is None:
            code = codes[tail] = tags_code_of(each)
        found.append(code)
    return found


def _last_tags(properties: bytes) -> int:
    """From where on properties decide, whatever is before, which tags count."""
    at = properties.rfind(_TAGS_START)
    has_value = properties[at + len(_TAGS_START) : at + len(_TAGS_START) + 1] not in (b"", b"\x02")
    return at if at > 0 and has_value else 0
