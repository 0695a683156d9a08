import asyncio
import logging

import pytest

from goddard.transport.tasks import Tasks


async def test_stop_cancels_and_awaits_in_reverse_order() -> None:
    ended: list[str] = []
    tasks = Tasks()

    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    for name in ("first", "second", "third"):
        tasks.spawn(wait(name), name)
    await asyncio.sleep(0)
    await tasks.stop()
    assert ended == ["third", "second", "first"]
    assert len(tasks) == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await tasks.stop()


async def test_stop_waits_for_the_end_of_a_service() -> None:
    ended: list[str] = []
    acting = asyncio.Event()
    tasks = Tasks()

    async def act() -> None:
        acting.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            ended.append("action")

    service = tasks.periodic("Scan", 60, act, first_seconds=0)
    async with asyncio.timeout(60):
        await acting.wait()
        await tasks.stop()
    assert ended == ["action"]
    assert service.done()


async def test_a_cancelled_stop_cancels_all_tasks() -> None:
    tasks = Tasks()
    spawned = [tasks.spawn(asyncio.Event().wait(), f"task {number}") for number in range(3)]
    await asyncio.sleep(0)
    stop = asyncio.ensure_future(tasks.stop())
    await asyncio.sleep(0)
    stop.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait((stop, *spawned))
    assert all(task.cancelled() for task in (stop, *spawned))


async def test_a_failure_is_logged_and_the_task_removed(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()

    async def fail() -> None:
        raise RuntimeError("no luck")

    await asyncio.wait((tasks.spawn(fail(), "doomed"),))
    assert len(tasks) == 0
    (record,) = caplog.records
    assert record.getMessage() == "the task doomed failed"
    assert record.exc_info is not None


@pytest.mark.parametrize("is_async", [False, True])
async def test_periodic_continues_after_a_failure(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0
    enough = asyncio.Event()
    tasks = Tasks()

    def act() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            enough.set()
        if runs == 1:
            raise RuntimeError("once")

    async def act_later() -> None:
        act()

    with caplog.at_level(logging.INFO):
        tasks.periodic("Scan", 0.001, act_later if is_async else act, first_seconds=0)
        async with asyncio.timeout(60):
            await enough.wait()
        await tasks.stop()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "Scan service started",
        "Scan service failed, it runs again after its interval",
        "Scan service end",
    ]
    assert runs >= 3
