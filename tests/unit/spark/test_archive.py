"""The seam between an archive and the topic."""

import re

import pytest

from goddard.client.values import MessageQueue
from goddard.spark.archive import ArchivedQueue, plan_seam
from goddard.spark.reading.cluster import Bounds

_QUEUE = MessageQueue("T", "a", 0)


def bounds(earliest: int, latest: int) -> Bounds:
    return Bounds({_QUEUE: earliest}, {_QUEUE: latest}, {})


@pytest.mark.parametrize(
    ("earliest", "latest", "before", "behind"),
    [
        (0, 50, (0, 10), (30, 50)),
        (5, 50, (5, 10), (30, 50)),
        (10, 50, None, (30, 50)),
        (30, 50, None, (30, 50)),
        (20, 30, None, (30, 30)),
        (30, 30, None, (30, 30)),
    ],
)
def test_topic_is_read_before_and_behind_the_archive(
    earliest: int, latest: int, before: tuple[int, int] | None, behind: tuple[int, int]
) -> None:
    archived = {_QUEUE: ArchivedQueue(10, 30, 20, 7)}
    seam = plan_seam(archived, bounds(earliest, latest), {_QUEUE: 7})
    assert (seam.before.get(_QUEUE), seam.behind[_QUEUE]) == (before, behind)
    assert not seam.losses


@pytest.mark.parametrize(
    ("archived", "live", "stored_ms", "words"),
    [
        (ArchivedQueue(0, 30, 30, 7), (31, 50), None, "retention has deleted 1 messages"),
        (ArchivedQueue(0, 30, 30, 7), (0, 29), None, "ends at 30, and the topic ends at 29"),
        (ArchivedQueue(0, 30, 30, 7), (0, 50), 8, "stored at 7 ms in the archive, and at 8 ms"),
        (ArchivedQueue(0, 30, 29, 7), (0, 50), 7, "29 messages of .* which are 30 offsets"),
        (ArchivedQueue(0, 30, 31, 7), (0, 50), 7, "31 messages of .* written twice"),
        (None, (1, 50), None, "has no message of .*, and the topic begins at 1"),
    ],
)
def test_missing_messages_are_losses(
    archived: ArchivedQueue | None, live: tuple[int, int], stored_ms: int | None, words: str
) -> None:
    queues = {} if archived is None else {_QUEUE: archived}
    (loss,) = plan_seam(queues, bounds(*live), {_QUEUE: stored_ms}).losses
    assert re.search(words, loss), loss


def test_time_is_not_compared_if_one_is_unknown() -> None:
    for last_ms, found_ms in ((None, 7), (7, None)):
        archived = {_QUEUE: ArchivedQueue(0, 30, 30, last_ms)}
        assert not plan_seam(archived, bounds(0, 50), {_QUEUE: found_ms}).losses


def test_queue_without_archive_is_read_from_its_beginning() -> None:
    seam = plan_seam({}, bounds(0, 50), {})
    assert (seam.behind, seam.losses) == ({_QUEUE: (0, 50)}, [])
