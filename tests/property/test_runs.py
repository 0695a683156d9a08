"""Runs of records against single records: the same log, queues, index and entries.

Bodies of batches give the same messages when they are read in bulk and one by one.
"""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.broker.lane.sendbatches import BatchMessages, read_batch, tags_codes_of
from goddard.protocol.message import BatchEntry, encode_batch, iter_batch
from goddard.protocol.record import Host
from goddard.store.log.records import (
    LogEntry,
    PreparedRecord,
    pack_host,
    prepare_record,
    tags_code_of,
)
from goddard.store.runs import Appendable, Placed, RecordRun, count_messages, each_entry
from tests.support.store import SmallStore

TOPIC = "TopicA"
HOST = Host.parse("127.0.0.1:10911")
FLAGS = st.sampled_from([0, 0, 0, 1, -1, 2**31 - 1, -(2**31)])
PROPERTIES = st.sampled_from(
    [
        b"",
        b"TAGS\x01a\x02",
        b"KEYS\x01k1 k2\x02TAGS\x01a\x02",
        b"KEYS\x01k3 k4\x02TAGS\x01a\x02",
        b"UNIQ_KEY\x01u1\x02TAGS\x01b\x02XTAGS\x01c\x02",
        b"UNIQ_KEY\x01u2\x02TAGS\x01\x02TAGS\x01c\x02",
        b"UNIQ_KEY\x01u3\x02WAIT\x01true\x02TAGS\x01b",
        b"UNIQ_KEY\x01u3\x02WAIT\x01true\x02TAGS\x01c",
        b"XTAGS\x01a\x02",
    ]
)
BODIES = st.binary(max_size=40)


@st.composite
def even_entries(draw: st.DrawFn) -> list[BatchEntry]:
    flag, length = draw(FLAGS), draw(st.integers(0, 40))
    bodies = draw(st.lists(st.binary(min_size=length, max_size=length), min_size=1, max_size=40))
    ids = st.integers(1000, 9999)
    return [
        BatchEntry(body, b"UNIQ_KEY\x01%d\x02TAGS\x01a\x02" % draw(ids), flag) for body in bodies
    ]


MIXED = st.lists(st.builds(BatchEntry, BODIES, PROPERTIES, FLAGS), min_size=1, max_size=12)
BATCHES = st.one_of(MIXED, even_entries())


def in_columns(entries: list[BatchEntry]) -> BatchMessages:
    messages = read_batch(encode_batch(entries), 100)
    assert messages is not None
    return messages


def run_of(entries: list[BatchEntry], queue_id: int) -> RecordRun:
    messages = in_columns(entries)
    return RecordRun(
        (TOPIC, queue_id),
        TOPIC.encode(),
        bodies=messages.bodies,
        properties=messages.properties,
        tags_codes=tags_codes_of(messages.properties),
        flags=messages.flags,
        is_even=messages.is_even,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_123,
        born_host=pack_host(HOST),
        store_host=pack_host(HOST),
    )


def records_of(entries: list[BatchEntry], queue_id: int) -> list[PreparedRecord]:
    return [
        prepare_record(
            topic=TOPIC,
            queue_id=queue_id,
            body=bytes(entry.body),
            properties=bytes(entry.properties),
            flag=entry.flag,
            born_timestamp_ms=1_700_000_000_123,
            born_host=HOST,
            store_host=HOST,
        )
        for entry in entries
    ]


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for directory in ("commitlog", "consumequeue", "index")
        for path in sorted((root / directory).rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@given(st.lists(st.tuples(BATCHES, st.integers(0, 2), st.booleans()), min_size=1, max_size=8))
@settings(max_examples=60)
def test_runs_are_stored_like_single_records(
    groups: list[tuple[list[BatchEntry], int, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one_by_one, as_runs = Path(folder, "records"), Path(folder, "runs")
        expected: list[LogEntry] = []
        with SmallStore(one_by_one) as store:
            for entries, queue_id, _ in groups:
                expected += store.put_batch(records_of(entries, queue_id))
        found: list[LogEntry] = []
        with SmallStore(as_runs) as store:
            heard: list[Placed] = []
            store.add_listener(heard.extend)
            for entries, queue_id, is_run in groups:
                batch: list[Appendable] = [run_of(entries, queue_id)]
                if not is_run:
                    batch = [*records_of(entries, queue_id)]
                assert count_messages(batch) == len(entries)
                placed = store.append(batch, whole=not is_run)
                assert count_messages(placed) == len(entries)
                found += each_entry(placed)
            assert each_entry(heard) == found
        assert found == expected
        assert content(as_runs) == content(one_by_one)


@given(BATCHES)
def test_bulk_and_single_reading_of_batches_agree(entries: list[BatchEntry]) -> None:
    messages = in_columns(entries)
    assert list(messages.bodies) == [bytes(entry.body) for entry in entries]
    assert list(messages.properties) == [bytes(entry.properties) for entry in entries]
    assert list(messages.flags) == [entry.flag for entry in entries]
    assert tags_codes_of(messages.properties) == list(map(tags_code_of, messages.properties))
    shapes = {(len(entry.body), len(entry.properties), entry.flag) for entry in entries}
    assert messages.is_even == (len(shapes) == 1)


@given(even_entries(), st.data())
def test_bulk_and_single_reading_of_damaged_batches_agree(
    entries: list[BatchEntry], data: st.DataObject
) -> None:
    body = bytearray(encode_batch(entries))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    messages = read_batch(bytes(body), 100)
    if messages is not None:
        others = list(iter_batch(bytes(body)))
        assert list(messages.bodies) == [bytes(entry.body) for entry in others]
        assert list(messages.properties) == [bytes(entry.properties) for entry in others]
        assert list(messages.flags) == [entry.flag for entry in others]
