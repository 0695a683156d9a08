"""Direct calls of listeners: a stop fails those that have no result."""

import asyncio
import threading
from typing import Any, cast

import pytest

from goddard.client.consume.offsets import BrokerOffsets
from goddard.client.consume.options import PushOptions
from goddard.client.consume.status import ConsumeRates
from goddard.client.listeners.concurrent import ConcurrentConsumption
from goddard.client.listeners.locks import QueueLocks
from goddard.client.listeners.orderly import OrderlyConsumption
from goddard.client.listeners.redelivery import Redelivery
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.environment import Environment
from goddard.protocol.responses import ResponseError
from tests.support.received import received

WAIT_SECONDS = 30
QUEUE = MessageQueue("T", "a", 0)
STOPPED = "The Consumer Group <G> not exist in this consumer"

Consumption = ConcurrentConsumption | OrderlyConsumption


class SlowListener:
    """Does not return before it is told to."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.released = threading.Event()
        self._loop = asyncio.get_running_loop()

    def call(self, messages: list[ReceivedMessage], context: object) -> None:
        self._loop.call_soon_threadsafe(self.called.set)
        self.released.wait(WAIT_SECONDS)

    async def call_async(self, messages: list[ReceivedMessage], context: object) -> None:
        self.called.set()
        await asyncio.Event().wait()


def consumption_of(listener: SlowListener, worker: str, *, orderly: bool) -> Consumption:
    function = listener.call if worker == "thread" else listener.call_async
    options = PushOptions(orderly=orderly, consume_threads=1)
    parts: dict[str, Any] = {
        "offsets": BrokerOffsets(cast("Any", None), "G"),
        "redelivery": cast("Redelivery", None),
        "rates": ConsumeRates(),
        "environment": Environment(),
        "released": lambda _: None,
    }
    if orderly:
        parts |= {"locks": cast("QueueLocks", None), "owned": list}
        return OrderlyConsumption(function, "G", options, **parts)
    return ConcurrentConsumption(function, "G", options, **parts)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("worker", ["thread", "coroutine"])
async def test_a_stop_fails_direct_calls_without_a_result(worker: str, orderly: bool) -> None:
    listener = SlowListener()
    consumption = consumption_of(listener, worker, orderly=orderly)
    async with asyncio.timeout(WAIT_SECONDS):
        running = asyncio.create_task(consumption.consume_directly(received(QUEUE, 0)))
        await listener.called.wait()
        waiting = asyncio.create_task(consumption.consume_directly(received(QUEUE, 1)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(consumption.close(0))
        for call in (running, waiting):
            with pytest.raises(ResponseError, match=STOPPED):
                await call
        await closing
        with pytest.raises(ResponseError, match=STOPPED):
            await consumption.consume_directly(received(QUEUE, 2))
    listener.released.set()
