"""The trace format of RocketMQ: records of what happens to a message. Pure.

The body of a trace message is a sequence of records, each with fields::

    field 0x01 field 0x01 ... field 0x02

The first field names the kind. A missing value is written as the text ``null``. Older clients write
fewer fields and newer ones more, at the end of a record; both can be read.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from goddard.errors import ProtocolError

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
_NULL: Final = "null"
# A separator inside a field would shift the following fields.
_SEPARATORS: Final = {1: " ", 2: " "}


class MessageKind(IntEnum):
    """RocketMQ's MessageType, by ordinal."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeOutcome(IntEnum):
    """The result of a listener's call: RocketMQ's ConsumeReturnType, by ordinal."""

    SUCCESS = 0
    TIMED_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class SendTrace(NamedTuple):
    """A message was sent."""

    timestamp_ms: int
    region: str | None
    group: str | None
    topic: str | None
    message_id: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    body_bytes: int
    cost_ms: int
    kind: MessageKind
    offset_message_id: str | None
    is_success: bool
    client_host: str | None = None


class ConsumeStart(NamedTuple):
    """A listener was called with a message; its ConsumeEnd has the same ``request_id``."""

    timestamp_ms: int
    region: str | None
    group: str | None
    request_id: str | None
    message_id: str | None
    retry_times: int
    keys: str | None


class ConsumeEnd(NamedTuple):
    """A listener's call ended. Timestamp and group exist since RocketMQ 4.9."""

    request_id: str | None
    message_id: str | None
    cost_ms: int
    is_success: bool
    keys: str | None
    outcome: ConsumeOutcome = ConsumeOutcome.SUCCESS
    timestamp_ms: int | None = None
    group: str | None = None


class TransactionEnd(NamedTuple):
    """A producer ended a transaction; ``state`` is RocketMQ's name of its decision."""

    timestamp_ms: int
    region: str | None
    group: str | None
    topic: str | None
    message_id: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    kind: MessageKind
    transaction_id: str | None
    state: str
    is_from_check: bool


class RecallTrace(NamedTuple):
    """A delayed message was recalled."""

    timestamp_ms: int
    region: str | None
    group: str | None
    topic: str | None
    message_id: str | None
    is_success: bool


TraceRecord: TypeAlias = SendTrace | ConsumeStart | ConsumeEnd | TransactionEnd | RecallTrace

_NAMES: Final[dict[type[TraceRecord], str]] = {
    SendTrace: "Pub",
    ConsumeStart: "SubBefore",
    ConsumeEnd: "SubAfter",
    TransactionEnd: "EndTransaction",
    RecallTrace: "Recall",
}


def encode_trace(records: Iterable[TraceRecord]) -> str:
    """Encode records as the text of a trace message."""
    return "".join(map(_encode, records))


def decode_trace(text: str) -> list[TraceRecord]:
    """Decode the text of a trace message. Records of unknown kinds are skipped."""
    records: list[TraceRecord] = []
    for line in text.split(_RECORD_END):
        if not line:
            continue
        try:
            record = _decode(line)
        except ValueError as error:
            raise ProtocolError(f"not a trace record: {line[:200]!r}") from error
        if record is not None:
            records.append(record)
    return records


def trace_keys(record: TraceRecord) -> list[str]:
    """The keys by which a trace message is found: id and keys of the traced message."""
    keys: list[str] = []
    if record.message_id:
        keys.append(record.message_id)
    if not isinstance(record, RecallTrace) and record.keys:
        keys += record.keys.split()
    return keys


def _encode(record: TraceRecord) -> str:
    if isinstance(record, SendTrace) and record.client_host is None:
        # RocketMQ's tools read the last field, but none of its clients writes it.
        values: tuple[object, ...] = record[:-1]
    else:
        values = record
    return f"{_NAMES[type(record)]}{_FIELD_END}{_FIELD_END.join(map(_field, values))}{_RECORD_END}"


def _field(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    text = str(value)
    return text if text.isprintable() else text.translate(_SEPARATORS)


def _text(field: str) -> str | None:
    return None if field == _NULL else field


def _flag(field: str) -> bool:
    return field.lower() == "true"


def _kind(field: str) -> MessageKind:
    return MessageKind(int(field))


def _outcome(field: str) -> ConsumeOutcome:
    return ConsumeOutcome(int(field))


class _Layout(NamedTuple):
    """How the fields after the kind are decoded, and their minimum number."""

    record: type[TraceRecord]
    readers: tuple[Callable[[str], Any], ...]
    min_fields: int


_LAYOUTS: Final = {
    "Pub": _Layout(
        SendTrace, (int, *[_text] * 7, int, int, _kind, _text, _flag, _text), min_fields=12
    ),
    "SubBefore": _Layout(ConsumeStart, (int, *[_text] * 4, int, _text), min_fields=7),
    "SubAfter": _Layout(
        ConsumeEnd, (_text, _text, int, _flag, _text, _outcome, int, _text), min_fields=5
    ),
    "EndTransaction": _Layout(
        TransactionEnd, (int, *[_text] * 7, _kind, _text, str, _flag), min_fields=12
    ),
    "Recall": _Layout(RecallTrace, (int, *[_text] * 4, _flag), min_fields=6),
}


def _decode(line: str) -> TraceRecord | None:
    kind, *fields = line.split(_FIELD_END)
    layout = _LAYOUTS.get(kind)
    if layout is None:
        return None
    if len(fields) < layout.min_fields:
        raise ValueError(f"{len(fields)} fields")
    while len(fields) > layout.min_fields and not fields[-1]:
        # As Java's split does: empty text after the last separator is not a field.
        fields.pop()
    if layout.record is SendTrace and len(fields) == layout.min_fields:
        # The first clients with traces wrote no offset id; success is their last field.
        fields.insert(-1, _NULL)
    values = [read(field) for read, field in zip(layout.readers, fields, strict=False)]
    return layout.record(*values)
