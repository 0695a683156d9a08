"""Search for the first message stored at a time, from any approximate offset."""

import bisect

from hypothesis import given
from hypothesis import strategies as st

from goddard.spark.reading.time_search import first_offset_at


@given(
    times=st.lists(st.integers(0, 40), max_size=120).map(sorted),
    time_ms=st.integers(0, 42),
    earliest=st.integers(0, 30),
    approximate=st.integers(-1, 160),
    limit=st.integers(1, 40),
)
async def test_finds_the_first_message_not_older(
    times: list[int], time_ms: int, earliest: int, approximate: int, limit: int
) -> None:
    end = earliest + len(times)

    async def store_times(offset: int, count: int) -> list[int]:
        assert offset >= earliest
        # Brokers may return fewer messages than requested.
        return times[offset - earliest :][: min(count, limit)]

    found = await first_offset_at(store_times, time_ms, min(approximate, end), earliest)
    assert found == earliest + bisect.bisect_left(times, time_ms)
