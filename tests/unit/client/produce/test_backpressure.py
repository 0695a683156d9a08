"""Permits for sends: limits, order of waiting, timeouts and cancellation."""

import asyncio

import pytest

from goddard.client.errors import TooManyRequestsError
from goddard.client.produce.backpressure import SendPermits
from goddard.client.produce.options import BackPressureOptions
from goddard.errors import ConfigError

MIB = 1024 * 1024


def permits(max_messages: int = 10, max_bytes: int = MIB) -> SendPermits:
    return SendPermits(BackPressureOptions(max_messages=max_messages, max_bytes=max_bytes))


def test_messages_and_bytes_are_limited() -> None:
    by_number = permits()
    assert [by_number.try_acquire(1) for _ in range(11)] == [True] * 10 + [False]
    by_number.release(1)
    assert by_number.try_acquire(1)
    by_size = permits()
    assert by_size.try_acquire(MIB - 1)
    assert not by_size.try_acquire(2)
    assert by_size.try_acquire(1)


def test_message_larger_than_the_limit_is_sent_alone() -> None:
    room = permits()
    assert room.try_acquire(5 * MIB)
    assert not room.try_acquire(1)
    room.release(5 * MIB)
    assert room.try_acquire(MIB)


async def test_permits_are_given_in_order() -> None:
    room = permits()
    assert room.try_acquire(MIB)
    served: list[str] = []

    async def send(name: str, size: int) -> None:
        await room.acquire(size, 60_000)
        served.append(name)

    tasks = [
        asyncio.create_task(send("large", MIB)),
        asyncio.create_task(send("small", 1)),
    ]
    await asyncio.sleep(0)
    assert room.waiting == 2
    # The small one fits, but others wait before it.
    assert not room.try_acquire(1)
    room.release(MIB)
    await tasks[0]
    assert served == ["large"]
    room.release(MIB)
    await tasks[1]
    assert served == ["large", "small"]


@pytest.mark.parametrize(("held", "text"), [(1, "semaphoreAsyncSize"), (10, "semaphoreAsyncNum")])
async def test_missing_permit_is_an_error_after_the_timeout(held: int, text: str) -> None:
    room = permits()
    for _ in range(held):
        assert room.try_acquire(MIB // held)
    with pytest.raises(TooManyRequestsError, match=text):
        await room.acquire(MIB, 10)
    assert room.waiting == 0
    for _ in range(held):
        room.release(MIB // held)
    assert room.try_acquire(MIB)


async def test_cancelled_waiter_lets_the_next_one_pass() -> None:
    room = permits()
    assert room.try_acquire(MIB - 1)
    large = asyncio.create_task(room.acquire(MIB, 60_000))
    small = asyncio.create_task(room.acquire(1, 60_000))
    await asyncio.sleep(0)
    assert room.waiting == 2
    large.cancel()
    await small
    with pytest.raises(asyncio.CancelledError):
        await large
    room.release(1)
    room.release(MIB - 1)
    assert room.try_acquire(MIB)


async def test_permit_of_a_cancelled_waiter_is_returned() -> None:
    room = permits()
    assert room.try_acquire(MIB)
    waiter = asyncio.create_task(room.acquire(MIB, 60_000))
    await asyncio.sleep(0)
    assert room.waiting == 1
    room.release(MIB)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert room.try_acquire(MIB)


@pytest.mark.parametrize("options", [{"max_messages": 9}, {"max_bytes": MIB - 1}])
def test_options_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        BackPressureOptions(**options)
