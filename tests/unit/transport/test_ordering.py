"""Work of one line ends in the order of joining, however long each takes."""

import asyncio

import pytest

from goddard.transport.ordering import Lines

TIMEOUT_SECONDS = 30


async def test_work_runs_concurrently_and_ends_in_order() -> None:
    lines = Lines()
    ready = [asyncio.Event() for _ in range(3)]
    started: list[int] = []
    ended: list[int] = []

    async def work(number: int) -> None:
        with lines.join("line") as place:
            started.append(number)
            await ready[number].wait()
            await place.turn()
            ended.append(number)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        tasks = [asyncio.create_task(work(number)) for number in range(3)]
        ready[2].set()
        ready[1].set()
        await asyncio.sleep(0)
        assert started == [0, 1, 2]
        await asyncio.sleep(0)
        assert not ended
        ready[0].set()
        await asyncio.gather(*tasks)
    assert ended == [0, 1, 2]
    assert "line" not in lines


async def test_lines_are_independent() -> None:
    lines = Lines()
    with lines.join("a"), lines.join("b") as place:
        assert "a" in lines
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await place.turn()
    assert "a" not in lines


async def test_failed_and_cancelled_work_leaves_its_line() -> None:
    lines = Lines()
    first, second, third = (lines.join("line") for _ in range(3))
    with pytest.raises(ValueError, match="failed"), first:
        raise ValueError("failed")

    async def wait() -> None:
        with second:
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await third.turn()
    third.leave()
    third.leave()
    assert "line" not in lines


async def test_place_that_is_left_early_keeps_the_order_of_the_others() -> None:
    lines = Lines()
    _, second, third = places = [lines.join("line") for _ in range(3)]
    # The last one fails first.
    third.leave()
    second.leave()
    fourth = lines.join("line")
    turn = asyncio.create_task(fourth.turn())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not turn.done()
    for place in places:
        place.leave()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await turn
    fourth.leave()
    assert "line" not in lines
