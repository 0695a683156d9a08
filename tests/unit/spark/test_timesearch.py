"""Finding a message by its time, wherever the search begins."""

import bisect

from hypothesis import given
from hypothesis import strategies as st

from goddard.spark.timesearch import first_at


@given(
    times=st.lists(st.integers(0, 40), max_size=120).map(sorted),
    time_ms=st.integers(0, 42),
    earliest=st.integers(0, 30),
    near=st.integers(-1, 160),
    limit=st.integers(1, 40),
)
async def test_the_first_that_is_not_older(
    times: list[int], time_ms: int, earliest: int, near: int, limit: int
) -> None:
    end = earliest + len(times)

    async def times_from(offset: int, count: int) -> list[int]:
        assert offset >= earliest
        # Brokers may give fewer than they are asked for.
        return times[offset - earliest :][: min(count, limit)]

    found = await first_at(times_from, time_ms, min(near, end), earliest)
    assert found == earliest + bisect.bisect_left(times, time_ms)
