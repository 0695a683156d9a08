"""What consumers hold of a queue, how far it is consumed, and whether more may be pulled."""

import random
from dataclasses import replace
from typing import Any

import pytest

from goddard.client.consume.queue_buffer import (
    LOCK_VALID_MS,
    PrefetchQueue,
    ProcessQueue,
    PullLimits,
)
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.record import Host, Record

QUEUE = MessageQueue("TopicTest", "broker-a", 0)


def message(queue_offset: int, body: bytes = b"body") -> ReceivedMessage:
    record = Record(
        topic=QUEUE.topic,
        body=body,
        queue_id=QUEUE.queue_id,
        queue_offset=queue_offset,
        physical_offset=queue_offset * 100,
        store_timestamp_ms=0,
        born_timestamp_ms=0,
        born_host=Host(b"\x7f\0\0\1", 1),
        store_host=Host(b"\x7f\0\0\1", 2),
    )
    return ReceivedMessage.from_record(record, QUEUE.broker_name)


def holding(*queue_offsets: int) -> tuple[ProcessQueue, list[ReceivedMessage]]:
    buffer = ProcessQueue(QUEUE, 0)
    messages = [message(offset) for offset in queue_offsets]
    assert buffer.add(messages) == messages
    return buffer, messages


def test_a_queue_commits_up_to_the_oldest_message_that_is_not_consumed() -> None:
    buffer, messages = holding(5, 6, 9)
    assert (len(buffer), buffer.size_bytes, buffer.span) == (3, 12, 4)
    assert buffer.remove([messages[1]]) == 5
    assert messages[1] not in buffer
    assert buffer.remove([messages[0]]) == 9
    assert buffer.remove([messages[2]]) == 10
    assert (len(buffer), buffer.size_bytes, buffer.span) == (0, 0, 0)


def test_nothing_is_committed_twice_or_by_an_empty_queue() -> None:
    buffer, messages = holding(1, 2)
    assert buffer.remove(messages) == 3
    assert buffer.remove(messages) is None
    buffer.add([message(3)])
    assert buffer.remove(messages) == 3


def test_messages_that_were_pulled_before_are_left_out() -> None:
    buffer, _ = holding(4, 5)
    again = [message(3), message(5), message(6)]
    assert buffer.add(again) == again[2:]
    assert len(buffer) == 3


def test_all_messages_before_the_committed_offset_are_consumed_in_any_order() -> None:
    chance = random.Random(7)
    buffer, messages = holding(*range(0, 600, 2))
    left = {one.queue_offset for one in messages}
    while messages:
        done = [messages.pop(chance.randrange(len(messages))) for _ in range(min(7, len(messages)))]
        left -= {one.queue_offset for one in done}
        assert buffer.remove(done) == (min(left) if left else 599)


def test_results_for_a_dropped_queue_count_until_it_is_cleared() -> None:
    buffer, messages = holding(1, 2)
    buffer.drop()
    assert buffer.is_dropped
    assert buffer.remove(messages[:1]) == 2
    buffer.clear()
    assert buffer.remove(messages) is None
    assert (len(buffer), buffer.size_bytes) == (0, 0)


def test_taken_messages_are_committed_together() -> None:
    buffer, messages = holding(1, 2, 3)
    assert buffer.take(2) == messages[:2]
    assert len(buffer) == 3
    assert buffer.commit(messages[0]) == 2
    assert buffer.commit(messages[1]) == 3
    assert buffer.commit(messages[1]) is None
    assert (len(buffer), buffer.size_bytes) == (1, 4)
    assert buffer.take(5) == messages[2:]
    assert buffer.take(5) == []
    assert not buffer.has_waiting


def test_messages_put_back_are_taken_first_and_in_order() -> None:
    buffer, messages = holding(1, 2, 3, 4)
    first, second = buffer.take(1), buffer.take(2)
    buffer.put_back(second)
    assert buffer.take(1) == second[:1]
    assert buffer.commit(second[0]) == 3
    assert first == messages[:1]
    assert buffer.take(9) == messages[2:]


def test_rollback_puts_back_all_that_was_not_committed() -> None:
    buffer, messages = holding(1, 2, 3)
    buffer.take(1)
    buffer.take(1)
    buffer.rollback()
    assert buffer.take(3) == messages
    assert buffer.size_bytes == 12


def test_a_lock_is_relied_on_for_thirty_seconds() -> None:
    buffer, _ = holding(1)
    assert not buffer.is_locked(0)
    buffer.locked_at_ms = 1_000
    assert buffer.is_locked(1_000 + LOCK_VALID_MS)
    assert not buffer.is_locked(1_001 + LOCK_VALID_MS)


def test_tools_see_what_is_held() -> None:
    buffer, _ = holding(1, 2, 7)
    buffer.take(1)
    buffer.locked_at_ms = 10
    buffer.last_pull_ms = 5
    info = buffer.info(commit_offset=1, epoch_ms=1_000)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset) == (2, 7)
    assert (info.cached_msg_count, info.transaction_msg_count) == (2, 1)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset) == (1, 1)
    assert (info.locked, info.last_lock_timestamp, info.last_pull_timestamp) == (True, 1_010, 1_005)
    assert buffer.info(1, 0).commit_offset == 1


# --- PrefetchQueue --------------------------------------------------------------------------------


def prefetched(offset: int) -> PrefetchQueue:
    buffer = PrefetchQueue(QUEUE)
    buffer.start(offset)
    return buffer


def test_batches_are_counted_until_they_are_taken() -> None:
    buffer = prefetched(0)
    first, second = [message(0), message(1)], [message(5)]
    batch = buffer.add(first, 2)
    assert batch is not None
    assert (batch.messages, batch.next_offset, batch.size_bytes) == (first, 2, 8)
    assert buffer.add(second, 6) is not None
    assert (len(buffer), buffer.size_bytes, buffer.span) == (3, 12, 5)
    buffer.take()
    assert (len(buffer), buffer.size_bytes, buffer.span) == (1, 4, 0)
    buffer.take()
    assert (len(buffer), buffer.size_bytes, buffer.span) == (0, 0, 0)


def test_a_batch_of_a_dropped_queue_is_stale() -> None:
    buffer = prefetched(0)
    batch = buffer.add([message(0)], 1)
    assert batch is not None
    assert not batch.is_stale
    buffer.drop()
    assert batch.is_stale


def test_offsets_without_messages_are_consumed_when_nothing_before_them_is_left() -> None:
    buffer = prefetched(5)
    assert (buffer.delivered_offset, buffer.consumed_offset) == (5, 5)
    assert buffer.add([], 9) is None
    assert (buffer.delivered_offset, buffer.consumed_offset) == (9, 9)
    assert buffer.add([message(9)], 10) is not None
    buffer.add([], 12)
    assert (buffer.delivered_offset, buffer.consumed_offset) == (9, 9)
    buffer.take()
    buffer.is_partly_delivered = True
    buffer.add([], 13)
    assert buffer.delivered_offset == 9
    buffer.is_partly_delivered = False
    buffer.delivered_offset = 10
    # The user has the message, and may still work on it.
    buffer.add([], 14)
    assert (buffer.delivered_offset, buffer.consumed_offset) == (14, 9)
    buffer.mark_consumed()
    assert buffer.consumed_offset == 14


# --- Limits ---------------------------------------------------------------------------------------

# More than the numbers of the other limits in the table.
FREE = PullLimits(queue_count=100, queue_bytes=1_000, queue_span=1_000, total_count=1_000)


@pytest.mark.parametrize("kind", [ProcessQueue, PrefetchQueue])
@pytest.mark.parametrize(
    ("limit", "offsets", "total", "more", "has_room"),
    [
        ({}, [], 0, {}, True),
        ({"queue_count": 2}, [0, 1], 0, {}, True),
        ({"queue_count": 2}, [0, 1, 2], 0, {}, False),
        ({"queue_count": 2}, [0, 1], 0, {"more_count": 1}, False),
        ({"queue_bytes": 8}, [0, 1], 0, {}, True),
        ({"queue_bytes": 8}, [0, 1, 2], 0, {}, False),
        ({"queue_bytes": 8}, [0], 0, {"more_bytes": 5}, False),
        ({"queue_span": 10}, [0, 10], 0, {}, True),
        ({"queue_span": 10}, [0, 11], 0, {}, False),
        ({"queue_span": 10}, [0, 8], 0, {"more_span": 3}, False),
        ({"queue_span": None}, [0, 9_999], 0, {}, True),
        ({"total_count": 2}, [0], 2, {}, True),
        ({"total_count": 2}, [0], 3, {}, False),
        ({"total_count": 2}, [0], 2, {"more_count": 1}, False),
        ({"total_count": None}, [0], 9_999, {}, True),
    ],
)
def test_limits(
    kind: type[ProcessQueue] | type[PrefetchQueue],
    limit: dict[str, Any],
    offsets: list[int],
    total: int,
    more: dict[str, int],
    has_room: bool,
) -> None:
    limits = replace(FREE, **limit)
    messages = [message(offset) for offset in offsets]
    buffer: ProcessQueue | PrefetchQueue
    if kind is ProcessQueue:
        buffer = ProcessQueue(QUEUE, 0)
        buffer.add(messages)
    else:
        buffer = prefetched(0)
        buffer.add(messages, 10_000)
    assert limits.has_room(buffer, total, **more) is has_room
