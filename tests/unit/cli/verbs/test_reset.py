"""The plan of an offset reset: what each queue skips and repeats."""

import pytest

from goddard.cli.terminal.mistakes import WrongUsageError
from goddard.cli.verbs.reset import Move, QueueState, Wanted, check_queues, plan, read_offsets
from goddard.client.values import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)


@pytest.mark.parametrize(
    ("wanted", "after", "skipped", "repeated"),
    [
        (Wanted(to="earliest"), 10, 0, 40),
        (Wanted(to="latest"), 100, 50, 0),
        (Wanted(to="60"), 60, 10, 0),
        (Wanted(to="5"), 10, 0, 40),
        (Wanted(to="500"), 100, 50, 0),
        (Wanted(shift=5), 55, 5, 0),
        (Wanted(shift=-5), 45, 0, 5),
        (Wanted(shift=-500), 10, 0, 40),
        (Wanted(offsets={QUEUE: 20}), 20, 0, 30),
    ],
)
def test_plan_of_one_queue(wanted: Wanted, after: int, skipped: int, repeated: int) -> None:
    states = {QUEUE: QueueState(10, 100, 50)}
    assert plan(states, wanted) == [Move(QUEUE, 50, after, skipped, repeated)]


def test_a_group_without_an_offset_skips_and_repeats_nothing() -> None:
    states = {QUEUE: QueueState(10, 100, None)}
    assert plan(states, Wanted(to="earliest")) == [Move(QUEUE, None, 10, 0, 0)]
    assert plan(states, Wanted(shift=-5)) == [Move(QUEUE, None, 95, 0, 0)]


def test_deleted_messages_are_not_repeated() -> None:
    states = {QUEUE: QueueState(10, 100, 2)}
    assert plan(states, Wanted(to="latest")) == [Move(QUEUE, 2, 100, 90, 0)]


def test_queues_without_a_wanted_offset_are_left_alone() -> None:
    states = {OTHER: QueueState(0, 9, 5), QUEUE: QueueState(0, 9, 5)}
    assert [move.queue for move in plan(states, Wanted(to="latest"))] == [QUEUE, OTHER]
    assert [move.queue for move in plan(states, Wanted(offsets={OTHER: 1}))] == [OTHER]


def test_offsets_of_a_file() -> None:
    assert read_offsets("broker-a,0,20\nbroker-a, 1, 30\n", "orders") == {QUEUE: 20, OTHER: 30}
    lag = "topic,broker,queue,consumedTo,end,lag\norders,broker-a,0,20,25,5\nbills,broker-a,0,1,1,0"
    assert read_offsets(lag, "orders") == {QUEUE: 20}


@pytest.mark.parametrize("text", ["broker-a,0", "broker-a,x,1", "broker-a,0,x"])
def test_wrong_files_are_named_by_row(text: str) -> None:
    with pytest.raises(WrongUsageError, match="row 1 is not broker,queue,offset"):
        read_offsets(text, "orders")


def test_a_queue_of_a_file_that_does_not_exist_is_named() -> None:
    check_queues([QUEUE], [QUEUE, OTHER])
    with pytest.raises(WrongUsageError) as error:
        check_queues([QUEUE, OTHER], [QUEUE])
    assert error.value.message == "--to-file: orders has no queue broker-a:1"
