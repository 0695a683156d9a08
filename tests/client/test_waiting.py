"""``wait``: a program that only consumes ends at a signal, or when its consumer is stopped."""

import asyncio
import os
import signal
import threading

import pytest

import goddard
from goddard import aio
from goddard.client.errors import NotRunningError
from goddard.testing.site import Site

pytestmark = pytest.mark.parametrize("site", ["goddard"], indirect=True)


def consumer_of(site: Site) -> goddard.PushConsumer:
    topic = site.create_topic("waiting", queues=1)
    consumer = goddard.PushConsumer(
        site.new_group("waiting"), name_servers=site.namesrv, listener=lambda messages, _: None
    )
    consumer.subscribe(topic)
    return consumer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait(site: Site, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with consumer_of(site) as consumer:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
        timer.start()
        consumer.wait()
        timer.join()
    assert signal.getsignal(number) is before


def test_a_stop_ends_the_wait_of_another_thread(site: Site) -> None:
    consumer = consumer_of(site)
    with pytest.raises(NotRunningError):
        consumer.wait()
    consumer.start()
    waiting = threading.Thread(target=consumer.wait)
    waiting.start()
    consumer.stop()
    waiting.join(10)
    assert not waiting.is_alive()


async def test_asyncio(site: Site) -> None:
    topic = site.create_topic("waiting", queues=1)
    async with aio.PushConsumer(
        site.new_group("waiting"), name_servers=site.namesrv, listener=lambda messages, _: None
    ) as consumer:
        consumer.subscribe(topic)
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await consumer.wait()
        waiting = asyncio.create_task(consumer.wait())
        await asyncio.sleep(0)
        await consumer.stop()
        async with asyncio.timeout(10):
            await waiting
