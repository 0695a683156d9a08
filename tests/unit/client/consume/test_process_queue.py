"""What is held of a queue, and how far it may be committed."""

import random

from goddard.client.consume.process_queue import LOCK_VALID_MS, ProcessQueue
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
    held = ProcessQueue(QUEUE, 0)
    messages = [message(offset) for offset in queue_offsets]
    assert held.add(messages) == messages
    return held, messages


def test_a_queue_commits_up_to_the_oldest_message_not_done_with() -> None:
    held, messages = holding(5, 6, 9)
    assert (len(held), held.size_bytes, held.span) == (3, 12, 4)
    assert held.remove([messages[1]]) == 5
    assert messages[1] not in held
    assert held.remove([messages[0]]) == 9
    assert held.remove([messages[2]]) == 10
    assert (len(held), held.size_bytes, held.span) == (0, 0, 0)


def test_nothing_is_committed_twice_or_by_an_empty_queue() -> None:
    held, messages = holding(1, 2)
    assert held.remove(messages) == 3
    assert held.remove(messages) is None
    held.add([message(3)])
    assert held.remove(messages) == 3


def test_messages_that_come_again_are_left_out() -> None:
    held, _ = holding(4, 5)
    again = [message(3), message(5), message(6)]
    assert held.add(again) == again[2:]
    assert len(held) == 3


def test_whatever_the_order_all_before_the_commit_are_done() -> None:
    chance = random.Random(7)
    held, messages = holding(*range(0, 600, 2))
    left = {one.queue_offset for one in messages}
    while messages:
        done = [messages.pop(chance.randrange(len(messages))) for _ in range(min(7, len(messages)))]
        left -= {one.queue_offset for one in done}
        assert held.remove(done) == (min(left) if left else 599)


def test_a_dropped_queue_still_counts_until_it_is_cleared() -> None:
    held, messages = holding(1, 2)
    held.drop()
    assert held.is_dropped
    assert held.remove(messages[:1]) == 2
    held.clear()
    assert held.remove(messages) is None
    assert (len(held), held.size_bytes) == (0, 0)


def test_taken_messages_are_committed_together() -> None:
    held, messages = holding(1, 2, 3)
    assert held.take(2) == messages[:2]
    assert len(held) == 3
    assert held.commit(messages[0]) == 2
    assert held.commit(messages[1]) == 3
    assert held.commit(messages[1]) is None
    assert (len(held), held.size_bytes) == (1, 4)
    assert held.take(5) == messages[2:]
    assert held.take(5) == []
    assert not held.has_waiting


def test_messages_put_back_are_taken_first_and_in_order() -> None:
    held, messages = holding(1, 2, 3, 4)
    first, second = held.take(1), held.take(2)
    held.put_back(second)
    assert held.take(1) == second[:1]
    assert held.commit(second[0]) == 3
    assert first == messages[:1]
    assert held.take(9) == messages[2:]


def test_rollback_puts_all_back_that_was_not_committed() -> None:
    held, messages = holding(1, 2, 3)
    held.take(1)
    held.take(1)
    held.rollback()
    assert held.take(3) == messages
    assert held.size_bytes == 12


def test_a_lock_is_relied_on_for_thirty_seconds() -> None:
    held, _ = holding(1)
    assert not held.is_locked(0)
    held.locked_at_ms = 1_000
    assert held.is_locked(1_000 + LOCK_VALID_MS)
    assert not held.is_locked(1_001 + LOCK_VALID_MS)


def test_tools_see_what_is_held() -> None:
    held, _ = holding(1, 2, 7)
    held.take(1)
    held.locked_at_ms = 10
    held.last_pull_ms = 5
    info = held.info(commit_offset=1, epoch_ms=1_000)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset) == (2, 7)
    assert (info.cached_msg_count, info.transaction_msg_count) == (2, 1)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset) == (1, 1)
    assert (info.locked, info.last_lock_timestamp, info.last_pull_timestamp) == (True, 1_010, 1_005)
    assert held.info(1, 0).commit_offset == 1
