"""Delayed messages through a whole broker: on time, in order, over restarts and kills."""

import json
import re
import time
from pathlib import Path

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.environment import Environment
from goddard.testing.cluster import Cluster
from goddard.transport.client import Client, ClientOptions
from tests.support.broker_client import BrokerClient
from tests.support.clock import ManualClock


def config(folder: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": str(16 << 20),
            "mappedFileSizeConsumeQueue": "60000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "4000",
            **properties,
        }
    )


async def test_a_message_is_delivered_when_its_delay_is_over(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, Client(ClientOptions()) as client:
        talk = BrokerClient(client, broker.address)
        sent = time.monotonic()
        for number in range(20):
            await talk.send("TopicA", b"%d" % number, {"DELAY": "1", "TAGS": "T"})
        assert await talk.pull("TopicA") == []
        records = await talk.receive("TopicA", 20)
        assert time.monotonic() - sent >= 1.0
        assert [record.body for record in records] == [b"%d" % number for number in range(20)]


async def test_levels_are_independent(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        Broker(config(tmp_path), environment=Environment(clock=clock)) as broker,
        Client(ClientOptions()) as client,
    ):
        talk = BrokerClient(client, broker.address)
        await talk.send("TopicA", b"two hours", {"DELAY": "18"})
        await talk.send("TopicA", b"beyond the last level", {"DELAY": "99"})
        await talk.send("TopicA", b"a minute", {"DELAY": "5"})
        clock.advance(60_000)
        (record,) = await talk.receive("TopicA", 1)
        assert record.body == b"a minute"
        clock.advance(7_200_000)
        records = await talk.receive("TopicA", 3)
        assert [record.body for record in records[1:]] == [b"two hours", b"beyond the last level"]


async def test_a_restart_during_a_delay(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Client(ClientOptions()) as client:
        async with Broker(config(tmp_path), environment=Environment(clock=clock)) as broker:
            talk = BrokerClient(client, broker.address)
            await talk.send("TopicA", b"early", {"DELAY": "1"})
            await talk.send("TopicA", b"late", {"DELAY": "2"})
            clock.advance(1_000)
            await talk.receive("TopicA", 1)
        # As RocketMQ writes it: keys without quotes, only levels that had a message.
        text = (tmp_path / "config" / "delayOffset.json").read_text()
        assert json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))["offsetTable"] == {
            "1": 1,
            "2": 0,
        }
        clock.advance(4_000)
        async with Broker(config(tmp_path), environment=Environment(clock=clock)) as broker:
            records = await BrokerClient(client, broker.address).receive("TopicA", 2)
            assert [record.body for record in records] == [b"early", b"late"]


async def test_with_synchronous_flushing(tmp_path: Path) -> None:
    settings = config(tmp_path, flushDiskType="SYNC_FLUSH")
    async with Broker(settings) as broker, Client(ClientOptions()) as client:
        talk = BrokerClient(client, broker.address)
        await talk.send("TopicA", b"x", {"DELAY": "1"})
        (record,) = await talk.receive("TopicA", 1)
        assert record.body == b"x"


async def test_a_killed_broker_delivers_after_its_restart(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        broker = cluster.brokers[0]
        async with Client(ClientOptions()) as client:
            talk = BrokerClient(client, broker.address)
            for number in range(10):
                await talk.send("TopicA", b"%d" % number, {"DELAY": "1"})
            broker.kill()
        broker.start()
        async with Client(ClientOptions()) as client:
            records = await BrokerClient(client, broker.address).receive("TopicA", 10)
            assert [record.body for record in records[:10]] == [b"%d" % n for n in range(10)]
