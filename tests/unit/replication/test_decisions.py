"""What a master decides about its slaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.replication.decisions import (
    Chunk,
    LogRange,
    SlaveLimits,
    SlaveProgress,
    SlaveRefusedError,
    Wait,
    acknowledged_offset,
    is_in_sync,
    start_offset,
)

SEGMENT = 1000
LOG = LogRange(2000, 4300, SEGMENT)
LIMITS = SlaveLimits(batch_bytes=400, heartbeat_ms=5_000, silence_ms=20_000)


def slave(reported: int, log: LogRange = LOG, limits: SlaveLimits = LIMITS) -> SlaveProgress:
    progress = SlaveProgress(limits, now_ms=0)
    progress.report(reported, log, now_ms=0)
    return progress


@pytest.mark.parametrize(
    ("reported", "log", "expected"),
    [
        pytest.param(3100, LOG, 3100, id="where its log ends"),
        pytest.param(2000, LOG, 2000, id="at the minimum"),
        pytest.param(4300, LOG, 4300, id="nothing is missing"),
        pytest.param(0, LOG, 4000, id="empty: the last segment"),
        pytest.param(0, LogRange(2000, 4000, SEGMENT), 4000, id="empty, at the end of a segment"),
        pytest.param(0, LogRange(0, 0, SEGMENT), 0, id="both are empty"),
        pytest.param(0, LogRange(0, 700, SEGMENT), 0, id="empty, one segment"),
        pytest.param(0, LogRange(4000, 4000, SEGMENT), 4000, id="all has expired"),
    ],
)
def test_where_a_slave_starts(reported: int, log: LogRange, expected: int) -> None:
    assert start_offset(reported, log) == expected


@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        pytest.param(-1, "the report -1 is not an offset", id="negative"),
        pytest.param(4301, "after the end of this master's log at 4300", id="ahead"),
        pytest.param(int.from_bytes(b"GET / HT"), "is not a slave of this master", id="garbage"),
        pytest.param(1999, "deleted everything before 2000: delete the store", id="below"),
        pytest.param(1, "deleted everything before 2000", id="far below"),
    ],
)
def test_who_is_refused_at_the_first_report(reported: int, reason: str) -> None:
    progress = SlaveProgress(LIMITS, now_ms=0)
    with pytest.raises(SlaveRefusedError, match=reason):
        progress.report(reported, LOG, now_ms=0)
    assert progress.acknowledged_offset is None


def test_nothing_is_sent_before_the_first_report() -> None:
    progress = SlaveProgress(LIMITS, now_ms=100)
    assert progress.next_step(LOG, now_ms=100) == Wait(20_000)
    assert progress.next_step(LOG, now_ms=20_099) == Wait(1)
    with pytest.raises(SlaveRefusedError, match="20000 ms: it is not a slave"):
        progress.next_step(LOG, now_ms=20_100)


def test_chunks_end_at_the_limit_and_at_segments() -> None:
    progress = slave(2500)
    chunks = []
    while isinstance(step := progress.next_step(LOG, now_ms=0), Chunk):
        chunks.append(step)
        progress.sent(step, now_ms=0)
    assert chunks == [
        Chunk(2500, 400),
        Chunk(2900, 100),
        Chunk(3000, 400),
        Chunk(3400, 400),
        Chunk(3800, 200),
        Chunk(4000, 300),
    ]
    assert step == Wait(5_000)


def test_a_heartbeat_is_due_after_the_interval_without_bytes() -> None:
    progress = slave(4300)
    assert progress.next_step(LOG, now_ms=4_000) == Wait(1_000)
    assert progress.next_step(LOG, now_ms=5_000) == Chunk(4300, 0)
    progress.sent(Chunk(4300, 0), now_ms=5_000)
    assert progress.next_step(LOG, now_ms=5_000) == Wait(5_000)
    progress.report(4300, LOG, now_ms=5_000)
    grown = LOG._replace(end_offset=4310)
    assert progress.next_step(grown, now_ms=9_000) == Chunk(4300, 10)
    progress.sent(Chunk(4300, 10), now_ms=9_000)
    assert progress.next_step(grown, now_ms=10_000) == Wait(4_000)


def test_a_slave_that_no_longer_reports_is_disconnected() -> None:
    progress = slave(4300)
    progress.report(4300, LOG, now_ms=15_000)
    assert progress.silent_in_ms(now_ms=34_000) == 1_000
    for look in (progress.silent_in_ms, lambda now_ms: progress.next_step(LOG, now_ms)):
        with pytest.raises(SlaveRefusedError, match=r"reported nothing for 20000 ms$"):
            look(35_000)


@pytest.mark.parametrize(
    "reported",
    [
        pytest.param(2999, id="less than before"),
        pytest.param(3401, id="more than it was sent"),
        pytest.param(-1, id="negative"),
        pytest.param(4300, id="the end of the log"),
    ],
)
def test_a_later_report_must_be_possible(reported: int) -> None:
    progress = slave(3000)
    progress.sent(Chunk(3000, 400), now_ms=0)
    progress.report(3000, LOG, now_ms=0)
    progress.report(3400, LOG, now_ms=0)
    progress = slave(3000)
    progress.sent(Chunk(3000, 400), now_ms=0)
    with pytest.raises(SlaveRefusedError, match=f"reports {reported} after 3000.*up to 3400"):
        progress.report(reported, LOG, now_ms=0)
    assert progress.acknowledged_offset == 3000


def test_an_empty_slave_reports_zero_until_it_has_bytes() -> None:
    progress = slave(0)
    progress.sent(Chunk(4000, 300), now_ms=0)
    progress.report(0, LOG, now_ms=1)
    assert progress.acknowledged_offset == 0
    progress.report(4300, LOG, now_ms=2)
    assert progress.acknowledged_offset == 4300


def test_a_slave_too_slow_for_the_retention_is_refused() -> None:
    progress = slave(2500)
    with pytest.raises(SlaveRefusedError, match=r"needs the log from 2500.*before 3000 meanwhile"):
        progress.next_step(LOG._replace(min_offset=3000), now_ms=0)


def test_the_rate_limit_is_for_each_second() -> None:
    progress = slave(2000, limits=LIMITS._replace(bytes_per_second=600))
    for expected in (Chunk(2000, 400), Chunk(2400, 200)):
        assert progress.next_step(LOG, now_ms=300) == expected
        progress.sent(expected, now_ms=300)
    assert progress.next_step(LOG, now_ms=300) == Wait(700)
    assert progress.next_step(LOG, now_ms=999) == Wait(1)
    assert progress.next_step(LOG, now_ms=1_000) == Chunk(2600, 400)
    assert progress.sent_in_last_second(now_ms=1_000) == 600
    assert progress.sent_in_last_second(now_ms=2_000) == 0


@pytest.mark.parametrize(
    ("replicas", "reports", "expected"),
    [
        (1, [], 900),
        (1, [100], 900),
        (0, [], 900),
        (2, [], 0),
        (2, [300], 300),
        (2, [300, 700], 700),
        (3, [300, 700], 300),
        (3, [700], 0),
        (3, [800, 300, 700], 700),
        (2, [1200], 900),
    ],
)
def test_the_acknowledged_offset(replicas: int, reports: list[int], expected: int) -> None:
    assert acknowledged_offset(replicas, reports, end_offset=900) == expected


@given(st.integers(2, 4), st.lists(st.integers(0, 1000), max_size=5), st.integers(0, 1000))
def test_enough_brokers_have_what_is_acknowledged(
    replicas: int, reports: list[int], end_offset: int
) -> None:
    offset = acknowledged_offset(replicas, reports, end_offset)
    assert offset <= end_offset
    assert offset == 0 or 1 + sum(report >= offset for report in reports) >= replicas


def test_in_sync_is_less_than_the_gap() -> None:
    assert is_in_sync(900, 999, 100)
    assert not is_in_sync(900, 1000, 100)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("report"), st.integers(-10, 5_000)),
            st.tuples(st.just("grow"), st.integers(1, 900)),
            st.tuples(st.just("send"), st.integers(0, 3_000)),
        ),
        max_size=40,
    )
)
def test_what_is_sent_always_continues(events: list[tuple[str, int]]) -> None:
    """Chunks follow each other without gaps; an acknowledgement is never ahead of them."""
    progress, log, now_ms = SlaveProgress(LIMITS, now_ms=0), LOG, 0
    expected: int | None = None
    for event, value in events:
        try:
            if event == "report":
                progress.report(value, log, now_ms)
                expected = progress.next_offset if expected is None else expected
            elif event == "grow":
                log = log._replace(end_offset=log.end_offset + value)
            else:
                now_ms += value
                step = progress.next_step(log, now_ms)
                if isinstance(step, Chunk):
                    assert step.physical_offset == expected
                    expected = step.physical_offset + step.size
                    assert expected <= log.end_offset
                    first, last = step.physical_offset, max(step.physical_offset, expected - 1)
                    assert first // SEGMENT == last // SEGMENT
                    progress.sent(step, now_ms)
        except SlaveRefusedError:
            return
        if progress.acknowledged_offset is not None:
            assert progress.acknowledged_offset <= progress.next_offset <= log.end_offset
