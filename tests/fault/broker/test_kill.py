"""Repeated kill -9 of a broker under load: no acknowledged message is lost or out of order.

GODDARD_KILL_CYCLES is the number of kills per flush mode; by default a few.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.wire import query_route
from goddard.transport.client import Client, ClientOptions
from tests.support.load import KeyedReader, KeyedSender

CYCLES = int(os.environ.get("GODDARD_KILL_CYCLES", "6"))
QUEUES = 4
TOPIC = "Killed"


async def reach(count: Callable[[], int], goal: int, what: str) -> None:
    deadline = time.monotonic() + 60
    while count() < goal:
        assert time.monotonic() < deadline, f"{count()} of {goal} {what} within a minute"
        await asyncio.sleep(0.005)


@pytest.mark.timeout(60 + 12 * CYCLES)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_no_acknowledged_message_is_lost(
    tmp_path: Path, flush: str, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(flush)
    # Small files: some kills happen while log and queues start new files.
    properties = {"flushDiskType": flush, "mappedFileSizeCommitLog": str(1 << 20)}
    with Cluster(tmp_path, brokers=1, properties=properties) as cluster:
        (broker,) = cluster.brokers
        async with Client(ClientOptions()) as producing, Client(ClientOptions()) as consuming:
            sender = KeyedSender(producing, broker.address, TOPIC, queues=QUEUES)
            reader = KeyedReader(consuming, broker.address, TOPIC, queues=QUEUES)
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(sender.run())
                reading = tasks.create_task(reader.run())
                restarts_ms: list[int] = []
                for cycle in range(CYCLES):
                    consumed = reader.count()
                    goal = sender.count() + chance.randrange(50, 2_000)
                    await reach(sender.count, goal, f"messages taken before kill {cycle}")
                    await reach(reader.count, consumed + 1, f"consumed before kill {cycle}")
                    await asyncio.to_thread(broker.kill)
                    if cycle % 2:
                        reader.forget_offsets()
                    if cycle % 3 == 2:  # and again while it starts and recovers
                        broker.launch()
                        await asyncio.sleep(chance.uniform(0.1, 0.6))
                        await asyncio.to_thread(broker.kill)
                    begun = time.monotonic()
                    await asyncio.to_thread(broker.start)
                    restarts_ms.append(round(1000 * (time.monotonic() - begun)))
                await reach(sender.count, sender.count() + 500, "messages after the last start")
                sender.stop()
                await sending
                await reach(reader.count, sender.count(), "messages consumed in the end")
                reading.cancel()
        assert query_route(cluster.namesrv, TOPIC) is not None
        assert "Traceback" not in (broker.home / "logs" / "broker.log").read_text()
    assert reader.faults == []
    assert reader.read == sender.acknowledged
    figures = {
        "kills": CYCLES,
        "acknowledged": sender.count(),
        "attempts": sender.attempts,
        "stored_twice": reader.stored_twice,
        "redelivered": reader.redelivered,
        "slowest_restart_ms": max(restarts_ms),
        "refusals": dict(sender.rejections),
    }
    for name, value in figures.items():
        record_property(name, value)
    print(flush, figures)
    # Only messages in flight at a kill can be stored twice.
    assert reader.stored_twice <= CYCLES * len(sender.acknowledged)


async def test_a_topic_created_just_before_a_kill_exists_after_it(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        async with Client(ClientOptions()) as producing, Client(ClientOptions()) as consuming:
            sender = KeyedSender(producing, broker.address, TOPIC, queues=QUEUES)
            reader = KeyedReader(consuming, broker.address, TOPIC, queues=QUEUES)
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(sender.run())
                await reach(sender.count, 100, "messages taken")
                await asyncio.to_thread(broker.kill)
                # Another send would create the topic again.
                sending.cancel()
                # As if the kill had happened before the file was written.
                for path in (broker.home / "store" / "config").glob("topics.json*"):
                    path.unlink()
                await asyncio.to_thread(broker.start)
                assert query_route(cluster.namesrv, TOPIC) is not None
                reading = tasks.create_task(reader.run())
                await reach(reader.count, sender.count(), "messages consumed")
                reading.cancel()
    # Messages that were stored and not yet acknowledged may exist, too.
    assert all(reader.read[key] >= count for key, count in sender.acknowledged.items())
