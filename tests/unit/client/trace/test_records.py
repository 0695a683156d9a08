"""The trace format: records as RocketMQ's TraceDataEncoder writes and reads them."""

import pytest

from goddard.client.trace.records import (
    ConsumeEnd,
    ConsumeOutcome,
    ConsumeStart,
    MessageKind,
    RecallTrace,
    SendTrace,
    TraceRecord,
    TransactionEnd,
    decode_trace,
    encode_trace,
    trace_keys,
)
from goddard.errors import ProtocolError

UNIQUE = "AC1415116D1418B4AAC217FE1B4E0000"
STORED = "0A9A002600002A9F0000000000002329"


def line(*fields: object) -> str:
    return "\x01".join(map(str, fields)) + "\x02"


SEND = SendTrace(
    timestamp_ms=1625848452706,
    region="DefaultRegion",
    group="PID-test",
    topic="topic-test",
    message_id=UNIQUE,
    tags="Tags",
    keys="Keys",
    store_host="127.0.0.1:10911",
    body_bytes=26,
    cost_ms=245,
    kind=MessageKind.NORMAL,
    offset_message_id=STORED,
    is_success=True,
)
SEND_FIELDS = (
    *("Pub", 1625848452706, "DefaultRegion", "PID-test", "topic-test", UNIQUE, "Tags", "Keys"),
    *("127.0.0.1:10911", 26, 245, 0, STORED, "true"),
)
KNOWN: list[tuple[TraceRecord, str]] = [
    (SEND, line(*SEND_FIELDS)),
    (
        ConsumeStart(5, "DefaultRegion", "GID-test", "request", UNIQUE, 2, None),
        line("SubBefore", 5, "DefaultRegion", "GID-test", "request", UNIQUE, 2, "null"),
    ),
    (
        ConsumeEnd("request", UNIQUE, 7, False, "k1 k2", ConsumeOutcome.EXCEPTION, 12, "GID-test"),
        line("SubAfter", "request", UNIQUE, 7, "false", "k1 k2", 2, 12, "GID-test"),
    ),
    (
        TransactionEnd(
            *(9, "DefaultRegion", "PID-test", "topic-test", UNIQUE, None, "Keys"),
            *("127.0.0.1:10911", MessageKind.COMMIT, "transaction", "ROLLBACK_MESSAGE", True),
        ),
        line(
            *("EndTransaction", 9, "DefaultRegion", "PID-test", "topic-test", UNIQUE, "null"),
            *("Keys", "127.0.0.1:10911", 2, "transaction", "ROLLBACK_MESSAGE", "true"),
        ),
    ),
    (
        RecallTrace(3, "DefaultRegion", "PID-test", "topic-test", UNIQUE, False),
        line("Recall", 3, "DefaultRegion", "PID-test", "topic-test", UNIQUE, "false"),
    ),
]


@pytest.mark.parametrize(("record", "text"), KNOWN, ids=lambda value: type(value).__name__)
def test_each_kind_is_encoded_and_decoded(record: TraceRecord, text: str) -> None:
    assert encode_trace([record]) == text
    assert decode_trace(text) == [record]


def test_several_records_are_decoded() -> None:
    records = [record for record, _ in KNOWN]
    assert decode_trace(encode_trace(records)) == records
    assert decode_trace("") == []


def test_records_of_older_and_newer_clients() -> None:
    first = line(*SEND_FIELDS[:12], "true")
    assert decode_trace(first) == [SEND._replace(offset_message_id=None)]
    with_host = line(*SEND_FIELDS, "10.0.0.1")
    assert decode_trace(with_host) == [SEND._replace(client_host="10.0.0.1")]
    assert encode_trace(decode_trace(with_host)) == with_host
    assert decode_trace(line(*SEND_FIELDS, "10.0.0.1", "something new")) == decode_trace(with_host)
    old_end = line("SubAfter", "request", UNIQUE, 7, "true", "k", 0)
    assert decode_trace(old_end) == [ConsumeEnd("request", UNIQUE, 7, True, "k")]
    # Clients of a cloud service end the record with a separator, without a timestamp.
    cloud_end = line("SubAfter", "request", UNIQUE, 7, "true", "k", 0, "")
    assert decode_trace(cloud_end) == [ConsumeEnd("request", UNIQUE, 7, True, "k")]


def test_unknown_kinds_are_skipped() -> None:
    assert decode_trace(line("Fetched", 1, 2) + line(*SEND_FIELDS)) == [SEND]


@pytest.mark.parametrize(
    "text",
    [
        line(*SEND_FIELDS[:12]),
        line("Pub", "yesterday", *SEND_FIELDS[2:]),
        line(*SEND_FIELDS[:11], 9, STORED, "true"),
        line("Recall"),
        line("SubBefore", 5, "r", "g", "request", UNIQUE, "twice", "k"),
    ],
)
def test_malformed_records_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="not a trace record"):
        decode_trace(text)


def test_separator_in_a_field_is_replaced() -> None:
    record = SEND._replace(keys="a\x01b\x02c", tags="größe")
    (read,) = decode_trace(encode_trace([record]))
    assert read == record._replace(keys="a b c")


def test_keys_of_a_trace_message() -> None:
    assert trace_keys(SEND._replace(keys="one two")) == [UNIQUE, "one", "two"]
    assert trace_keys(SEND._replace(keys=None)) == [UNIQUE]
    assert trace_keys(KNOWN[-1][0]) == [UNIQUE]
