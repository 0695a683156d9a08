"""What a lite consumer holds ahead of its user."""

from goddard.client.consume.prefetch_queue import AssignedQueue, Limits, Prefetch
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.record import Host, Record

HOST = Host.parse("127.0.0.1:10911")
ONE = MessageQueue("T", "b", 1)
TWO = MessageQueue("T", "b", 2)


def messages(*offsets: int, body: bytes = b"0123456789") -> list[ReceivedMessage]:
    return [
        ReceivedMessage.from_record(
            Record(
                topic="T",
                queue_id=1,
                queue_offset=offset,
                physical_offset=offset,
                store_timestamp_ms=0,
                store_host=HOST,
                born_timestamp_ms=0,
                born_host=HOST,
                body=body,
            ),
            "b",
        )
        for offset in offsets
    ]


def started(prefetch: Prefetch, queue: MessageQueue, offset: int = 0) -> AssignedQueue:
    assigned = prefetch.assign(queue)
    assigned.start(offset)
    return assigned


def test_batches_come_in_the_order_of_their_pulls() -> None:
    prefetch = Prefetch(Limits())
    one, two = started(prefetch, ONE), started(prefetch, TWO)
    first, second, third = messages(0, 1), messages(0), messages(2)
    assert prefetch.add(one, first, 2)
    assert prefetch.add(two, second, 5)
    assert prefetch.add(one, third, 3)
    assert (one.pull_offset, two.pull_offset, prefetch.waiting_count) == (3, 5, 4)
    assert one.size_bytes == 30
    taken = [prefetch.take() for _ in range(3)]
    assert [batch.messages for batch in taken if batch is not None] == [first, second, third]
    assert [batch.next_offset for batch in taken if batch is not None] == [2, 5, 3]
    assert prefetch.take() is None
    assert (one.waiting_count, one.size_bytes, prefetch.waiting_count) == (0, 0, 0)


def test_what_a_queue_left_behind_is_passed_over() -> None:
    prefetch = Prefetch(Limits())
    one, two = started(prefetch, ONE), started(prefetch, TWO)
    prefetch.add(one, messages(0, 1), 2)
    prefetch.add(two, messages(0), 1)
    kept = messages(7)
    one.clear()
    one.start(7)
    prefetch.add(one, kept, 8)
    prefetch.drop(TWO)
    assert prefetch.drop(TWO) is None
    batch = prefetch.take()
    assert batch is not None
    assert batch.messages == kept
    assert prefetch.take() is None
    # One that is taken can become stale as well.
    assert not batch.is_stale
    one.clear()
    assert batch.is_stale


def test_a_gap_counts_as_consumed_only_when_nothing_is_left_before_it() -> None:
    prefetch = Prefetch(Limits())
    one = started(prefetch, ONE, 5)
    assert (one.given_offset, one.done_offset) == (5, 5)
    assert not prefetch.add(one, [], 9)
    assert (one.pull_offset, one.given_offset, one.done_offset) == (9, 9, 9)
    prefetch.add(one, messages(9), 10)
    prefetch.add(one, [], 12)
    assert (one.pull_offset, one.given_offset, one.done_offset) == (12, 9, 9)
    batch = prefetch.take()
    assert batch is not None
    one.is_in_hand = True
    prefetch.add(one, [], 13)
    assert one.given_offset == 9
    one.is_in_hand = False
    one.given_offset = batch.next_offset
    # The user has the message and may be at work with it.
    prefetch.add(one, [], 14)
    assert (one.given_offset, one.done_offset) == (14, 9)
    one.done()
    assert one.done_offset == 14


def test_limits() -> None:
    def room(limits: Limits, *offsets: int, body: bytes = b"x") -> bool:
        prefetch = Prefetch(limits)
        started(prefetch, TWO)
        one = started(prefetch, ONE)
        prefetch.add(one, messages(*offsets, body=body), offsets[-1] + 1)
        return prefetch.has_room(one)

    assert room(Limits(queue_count=2), 0, 1)
    assert not room(Limits(queue_count=2), 0, 1, 2)
    assert room(Limits(total_count=2), 0, 1)
    assert not room(Limits(total_count=2), 0, 1, 2)
    assert room(Limits(queue_span=10), 0, 10)
    assert not room(Limits(queue_span=10), 0, 11)
    assert room(Limits(queue_mib=1), 0, body=bytes(1024 * 1024))
    assert not room(Limits(queue_mib=1), 0, 1, body=bytes(1024 * 1024))


def test_the_total_counts_all_queues() -> None:
    prefetch = Prefetch(Limits(total_count=1))
    one, two = started(prefetch, ONE), started(prefetch, TWO)
    prefetch.add(one, messages(0, 1), 2)
    assert not prefetch.has_room(two)
    assert prefetch.take() is not None
    assert prefetch.has_room(two)
