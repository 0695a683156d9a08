"""Trace records as RocketMQ's own clients wrote them, 4.9.4 and 5.4.0."""

from pathlib import Path

import pytest

from goddard.client.trace.records import (
    ConsumeEnd,
    ConsumeOutcome,
    ConsumeStart,
    MessageKind,
    SendTrace,
    TransactionEnd,
    decode_trace,
    encode_trace,
)

DATA = Path(__file__).parent / "data" / "traces"


@pytest.mark.parametrize("version", ["4.9.4", "5.4.0"])
def test_what_java_clients_write(version: str) -> None:
    text = (DATA / f"{version}.bin").read_text()
    sent, delayed, ended, begun, failed = decode_trace(text)
    assert encode_trace([sent, delayed, ended, begun, failed]) == text
    assert isinstance(sent, SendTrace)
    assert (sent.group, sent.tags, sent.keys) == ("TraceSenders", "TagA", "k1 k2")
    assert (sent.body_bytes, sent.kind, sent.is_success) == (5, MessageKind.NORMAL, True)
    assert isinstance(delayed, SendTrace)
    assert (delayed.kind, delayed.tags, delayed.keys) == (MessageKind.DELAY, None, None)
    assert isinstance(ended, TransactionEnd)
    assert (ended.state, ended.is_from_check) == ("COMMIT_MESSAGE", False)
    assert ended.transaction_id == ended.message_id
    assert isinstance(begun, ConsumeStart)
    # A 4.9 broker does not write the region into the message.
    assert begun.region == (None if version == "4.9.4" else "DefaultRegion")
    assert isinstance(failed, ConsumeEnd)
    assert (failed.is_success, failed.outcome) == (False, ConsumeOutcome.FAILED)
    assert (failed.group, failed.keys) == ("TraceReaders", "kt")
