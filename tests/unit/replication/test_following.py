"""What a slave decides about its master."""

import pytest

from goddard.replication.decisions import LogRange
from goddard.replication.following import (
    Backoff,
    BrokerIdentity,
    CompareMoreError,
    Following,
    FollowLimits,
    LogsDifferError,
    MasterRefusedError,
    Start,
    check_identity,
    plan_start,
)
from goddard.replication.frames import Frame

SEGMENT = 1000
LOG = bytes(number % 251 for number in range(10_000))
LIMITS = FollowLimits(report_ms=5_000, silence_ms=20_000)


def log_range(min_offset: int, end_offset: int) -> LogRange:
    return LogRange(min_offset, end_offset, SEGMENT)


class OwnLog:
    """Records of 50 bytes at the multiples of 50."""

    def read(self, physical_offset: int, size: int) -> bytes:
        return LOG[physical_offset : physical_offset + size]

    def holds_record(self, start_offset: int, end_offset: int) -> bool:
        return end_offset // 50 > -(-start_offset // 50)


def following(own: LogRange, start: Start) -> Following:
    return Following(start, own, OwnLog(), LIMITS, 0)


def frame(start: int, end: int, log: bytes = LOG) -> Frame:
    return Frame(start, log[start:end])


@pytest.mark.parametrize(
    ("own", "master", "expected"),
    [
        pytest.param((0, 0), None, Start(0, None), id="empty, nothing is known"),
        pytest.param((0, 0), (0, 0), Start(0, 0), id="both are empty"),
        pytest.param((0, 0), (0, 900), Start(0, 0), id="empty, one segment"),
        pytest.param((0, 0), (3000, 4500), Start(3000, 3000), id="empty, the first has expired"),
        pytest.param(
            (0, 0), (0, 4500), Start(1, 1, is_first_byte_known=True), id="empty, several segments"
        ),
        pytest.param((0, 50), (0, 4500), Start(1, 1), id="less than is compared"),
        pytest.param((0, 950), (0, 4500), Start(850, 850, is_earliest=False), id="behind"),
        pytest.param((0, 950), None, Start(850, 850, is_earliest=False), id="nothing is known"),
        pytest.param((2000, 4500), (4450, 9000), Start(4450, 4450), id="at the minimum"),
        pytest.param((2000, 4500), (4500, 9000), Start(4500, 4500), id="nothing to compare"),
        pytest.param(
            (0, 950),
            (0, 700),
            Start(600, 600, is_earliest=False, master_end_offset=700),
            id="ahead",
        ),
    ],
)
def test_where_to_begin(
    own: tuple[int, int], master: tuple[int, int] | None, expected: Start
) -> None:
    known = None if master is None else log_range(*master)
    assert plan_start(log_range(*own), known, compared_bytes=100) == expected


def test_an_empty_slave_may_take_the_last_segment_only() -> None:
    own, master = log_range(0, 0), log_range(0, 4500)
    assert plan_start(own, master, is_last_segment_enough=True) == Start(0, None)


@pytest.mark.parametrize(
    ("own", "master", "reason"),
    [
        pytest.param((0, 950), (1000, 4500), "it has deleted everything before 1000", id="behind"),
        pytest.param((0, 950), (0, 0), "nothing in common", id="the master lost its store"),
        pytest.param((3000, 3500), (0, 900), "nothing in common", id="the master ends before"),
    ],
)
def test_masters_without_a_common_log_are_refused(
    own: tuple[int, int], master: tuple[int, int], reason: str
) -> None:
    with pytest.raises(MasterRefusedError, match=reason):
        plan_start(log_range(*own), log_range(*master))


def test_other_groups_are_refused() -> None:
    own = BrokerIdentity("c", "a", 1000)
    check_identity(own, BrokerIdentity("c", "a", 1000))
    with pytest.raises(MasterRefusedError, match="brokerClusterName is d, and ours c"):
        check_identity(own, BrokerIdentity("d", "a", 1000))
    with pytest.raises(MasterRefusedError, match="brokerName is b"):
        check_identity(own, BrokerIdentity("c", "b", 1000))
    with pytest.raises(MasterRefusedError, match="mappedFileSizeCommitLog is 7"):
        check_identity(own, BrokerIdentity("c", "a", 7))


def test_the_end_is_compared_and_what_follows_is_appended() -> None:
    own = log_range(0, 550)
    slave = following(own, plan_start(own, log_range(0, 900), compared_bytes=100))
    levels = [slave.is_level]
    assert slave.take(frame(450, 520), 0) is None
    assert slave.report(550, 0) == 520
    appended = slave.take(frame(520, 700), 0)
    assert appended is not None
    assert (appended[0], bytes(appended[1])) == (550, LOG[550:700])
    assert [*levels, slave.is_level] == [False, True]
    assert slave.report(700, 0) == 700
    assert slave.take(frame(700, 700), 0) is None
    assert slave.report(700, 4_999) is None
    assert slave.report(700, 5_000) == 700


def test_an_empty_slave_knows_the_first_byte() -> None:
    own = log_range(0, 0)
    slave = following(own, plan_start(own, log_range(0, 4500)))
    assert slave.take(frame(1, 1), 0) is None
    appended = slave.take(frame(1, 400), 0)
    assert appended is not None
    assert (appended[0], bytes(appended[1])) == (0, b"\0" + LOG[1:400])
    assert slave.report(400, 0) == 400


def test_an_empty_slave_begins_at_any_segment() -> None:
    own = log_range(0, 0)
    slave = following(own, Start(0, None))
    assert slave.take(frame(4000, 4000), 0) is None
    appended = slave.take(frame(4000, 4100), 0)
    assert appended is not None
    assert appended[0] == 4000
    with pytest.raises(MasterRefusedError, match="no segment of 1000 bytes begins"):
        following(own, Start(0, None)).take(frame(4001, 4100), 0)


def test_a_report_is_what_is_stored_not_what_came() -> None:
    own = log_range(0, 0)
    slave = following(own, Start(0, 0))
    slave.take(frame(0, 400), 0)
    assert slave.report(0, 0) is None
    assert slave.report(300, 0) == 300
    assert slave.report(400, 0) == 400


@pytest.mark.parametrize("place", [450, 499, 500, 519])
def test_the_first_different_byte_is_found(place: int) -> None:
    own = log_range(0, 550)
    other = LOG[:place] + bytes([LOG[place] ^ 1]) + LOG[place + 1 :]
    slave = following(own, plan_start(own, log_range(0, 900), compared_bytes=100))
    if place < 500:  # no whole record is equal
        with pytest.raises(CompareMoreError, match="from before 450"):
            slave.take(frame(450, 520, other), 0)
        slave = following(own, plan_start(own, log_range(0, 900), compared_bytes=1_600))
        slave.take(frame(1, 450, other), 0)
    with pytest.raises(LogsDifferError) as caught:
        slave.take(frame(450, 520, other), 0)
    assert caught.value.common_offset == place


def test_an_equal_end_without_a_whole_record_is_not_enough() -> None:
    own = log_range(0, 550)
    slave = following(own, plan_start(own, log_range(0, 900), compared_bytes=40))
    with pytest.raises(CompareMoreError):
        slave.take(frame(510, 600), 0)
    slave = following(own, plan_start(own, log_range(0, 900), compared_bytes=640))
    assert slave.take(frame(1, 550), 0) is None
    assert slave.is_level


def test_a_master_that_ends_before_the_slave_is_noticed_by_its_range() -> None:
    own = log_range(0, 550)
    slave = following(own, plan_start(own, log_range(0, 500), compared_bytes=100))
    with pytest.raises(LogsDifferError, match="only up to 500"):
        slave.take(frame(400, 500), 0)


def test_a_master_that_ends_before_the_slave_is_noticed_by_its_heartbeats() -> None:
    own = log_range(0, 550)
    slave = following(own, plan_start(own, None, compared_bytes=100))
    assert slave.take(frame(450, 450), 0) is None, "the first may come before the data"
    assert slave.take(frame(450, 500), 0) is None
    assert slave.take(frame(500, 500), 0) is None
    with pytest.raises(LogsDifferError, match="only up to 500"):
        slave.take(frame(500, 500), 0)
    nothing = following(own, plan_start(own, None, compared_bytes=100))
    nothing.take(frame(450, 450), 0)
    with pytest.raises(CompareMoreError):
        nothing.take(frame(450, 450), 0)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        pytest.param(frame(560, 700), "from 560, not from 550", id="a gap"),
        pytest.param(frame(540, 700), "from 540, not from 550", id="a step back"),
        pytest.param(frame(549, 549), "from 549, not from 550", id="a heartbeat elsewhere"),
        pytest.param(frame(550, 1100), "cross the end of a segment", id="another file size"),
    ],
)
def test_frames_that_do_not_continue_are_refused(sent: Frame, reason: str) -> None:
    own = log_range(0, 550)
    slave = following(own, plan_start(own, log_range(0, 900), compared_bytes=100))
    slave.take(frame(450, 550), 0)
    with pytest.raises(MasterRefusedError, match=reason):
        slave.take(sent, 0)


def test_a_silent_master_is_left_and_reports_are_repeated() -> None:
    own = log_range(0, 0)
    slave = following(own, Start(0, 0))
    assert slave.wait_ms(1_000) == 4_000
    slave.take(frame(0, 10), 4_000)
    slave.report(10, 4_000)
    assert slave.wait_ms(4_000) == 5_000
    slave.report(10, 9_000)
    assert slave.wait_ms(23_500) == 1
    with pytest.raises(MasterRefusedError, match="it has sent nothing for 20000 ms"):
        slave.wait_ms(24_000)


def test_attempts_become_rarer_until_one_succeeds() -> None:
    backoff = Backoff(lambda: 1.0, first_ms=500, most_ms=3_000)
    assert [backoff.wait_ms() for _ in range(5)] == [500, 1_000, 2_000, 3_000, 3_000]
    backoff.reset()
    assert backoff.wait_ms() == 500
    assert Backoff(lambda: 0.0, first_ms=500).wait_ms() == 250
