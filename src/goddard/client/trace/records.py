"""What becomes of a message, as records that RocketMQ's tools read: the trace format.

A trace message's body is records back to back, each a line of fields::

    field 0x01 field 0x01 ... field 0x02

The first field names the kind. What is not there is written as the text ``null``. Older clients
leave out fields at the end of a line, newer ones add some; both are read. Pure.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from goddard.errors import ProtocolError

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
_NULL: Final = "null"
# A separator inside a field would shift all that follow.
_SEPARATORS: Final = {1: " ", 2: " "}


class MessageKind(IntEnum):
    """RocketMQ's MessageType, by ordinal."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeOutcome(IntEnum):
    """How a listener ended: RocketMQ's ConsumeReturnType, by ordinal."""

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
    """A message was handed to a listener; ``request_id`` leads to the end of it."""

    timestamp_ms: int
    region: str | None
    group: str | None
    request_id: str | None
    message_id: str | None
    retry_times: int
    keys: str | None


class ConsumeEnd(NamedTuple):
    """The listener is done with a message. Timestamp and group came with 4.9."""

    request_id: str | None
    message_id: str | None
    cost_ms: int
    is_success: bool
    keys: str | None
    outcome: ConsumeOutcome = ConsumeOutcome.SUCCESS
    timestamp_ms: int | None = None
    group: str | None = None


class TransactionEnd(NamedTuple):
    """A producer decided on a transaction; ``state`` is RocketMQ's name of the decision."""

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
    """A delayed message was called back."""

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
    """Records as the text of a trace message."""
    return "".join(map(_encode, records))


def decode_trace(text: str) -> list[TraceRecord]:
    """The records of a trace message's text. Kinds that are not known are passed over."""
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
    """By which a trace message is found: the message's id and its keys."""
    keys: list[str] = []
    if record.message_id:
        keys.append(record.message_id)
    if not isinstance(record, RecallTrace) and record.keys:
        keys += record.keys.split()
    return keys


def _encode(record: TraceRecord) -> str:
    if isinstance(record, SendTrace) and record.client_host is None:
        # The last field is read by RocketMQ's tools and written by none of its clients.
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
    """How the fields behind the kind are read, and how many there are at least."""

    record: type[TraceRecord]
    readers: tuple[Callable[[str], Any], ...]
    least: int


_LAYOUTS: Final = {
    "Pub": _Layout(SendTrace, (int, *[_text] * 7, int, int, _kind, _text, _flag, _text), least=12),
    "SubBefore": _Layout(ConsumeStart, (int, *[_text] * 4, int, _text), least=7),
    "SubAfter": _Layout(
        ConsumeEnd, (_text, _text, int, _flag, _text, _outcome, int, _text), least=5
    ),
    "EndTransaction": _Layout(
        TransactionEnd, (int, *[_text] * 7, _kind, _text, str, _flag), least=12
    ),
    "Recall": _Layout(RecallTrace, (int, *[_text] * 4, _flag), least=6),
}


def _decode(line: str) -> TraceRecord | None:
    kind, *fields = line.split(_FIELD_END)
    layout = _LAYOUTS.get(kind)
    if layout is None:
        return None
    if len(fields) < layout.least:
        raise ValueError(f"{len(fields)} fields")
    while len(fields) > layout.least and not fields[-1]:
        # As Java splits: nothing behind the last separator is no field.
        fields.pop()
    if layout.record is SendTrace and len(fields) == layout.least:
        # The first clients that traced wrote no offset id: success, the last, moves up.
        fields.insert(-1, _NULL)
    values = [read(field) for read, field in zip(layout.readers, fields, strict=False)]
    return layout.record(*values)
