"""Transactions whose producer or broker is killed: none is lost, none is committed wrongly."""

import sys
from pathlib import Path
from typing import Any

from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.transactions import TransactionProducer
from goddard.client.values import TransactionState
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process
from goddard.testing.site import BROKER_PROPERTIES, Site
from tests.support.topic_reader import TopicReader

TOPIC = "accounts"
GROUP = "transfers"

# Sends half messages, prints a line, and never decides about them.
HALFWAY = f"""
import asyncio, sys
from goddard.client.message import Message
from goddard.client.produce.transactions import TransactionProducer

class Listener:
    executing = 0

    async def execute(self, message, argument):
        self.executing += 1
        if self.executing == 3:
            print("all are executing", flush=True)
        await asyncio.sleep(3600)

    async def check(self, message):
        await asyncio.sleep(3600)

async def main():
    async with TransactionProducer("{GROUP}", Listener(), name_servers=sys.argv[1]) as producer:
        await asyncio.gather(
            *(producer.send_in_transaction(Message("{TOPIC}", body)) for body in (b"1", b"2", b"3"))
        )

asyncio.run(main())
"""


class Books:
    """Knows the state of each transfer."""

    def __init__(self, done: set[bytes]) -> None:
        self.done = done
        self.asked: set[bytes] = set()

    async def execute(self, message: Message, argument: Any) -> TransactionState:
        return TransactionState.UNKNOWN

    async def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked.add(message.body)
        if message.body in self.done:
            return TransactionState.COMMIT
        return TransactionState.ROLLBACK


async def test_producer_killed_during_transactions(tmp_path: Path, no_leaked_tasks: None) -> None:
    with Cluster(tmp_path, brokers=1, properties=BROKER_PROPERTIES) as cluster:
        doomed = Process(
            "producer",
            [sys.executable, "-c", HALFWAY, cluster.namesrv],
            log=tmp_path / "producer.log",
            ready="all are executing",
        )
        with doomed:
            doomed.start()
            doomed.kill()
        books = Books({b"1", b"3"})
        async with (
            TransactionProducer(
                GROUP, books, name_servers=cluster.namesrv, topics=[TOPIC], check_threads=4
            ),
            TopicReader(cluster.namesrv, TOPIC) as reader,
        ):
            received = await reader.until_true(
                lambda messages: len(messages) >= 2 and books.asked == {b"1", b"2", b"3"}
            )
    assert sorted(each.body for each in received) == [b"1", b"3"]


async def test_broker_killed_during_a_transaction(tmp_path: Path, no_leaked_tasks: None) -> None:
    with Cluster(tmp_path) as cluster:
        site = Site(cluster.start_name_server())
        broker = site.start_goddard_broker(cluster)
        topic = site.create_topic("accounts")
        books = Books({b"kept"})
        async with (
            TransactionProducer(
                GROUP,
                books,
                name_servers=cluster.namesrv,
                heartbeat_interval_ms=300,
                poll_name_server_interval_ms=300,
            ) as producer,
            TopicReader(cluster.namesrv, topic) as reader,
        ):
            kept = await producer.send_half(Message(topic, b"kept"))
            message = Message(topic, b"dropped")
            dropped = await producer.send_half(message)
            broker.kill()
            # The decision does not arrive, which is only logged: the broker will ask.
            await producer.end_transaction(message, dropped, TransactionState.COMMIT)
            broker.start()
            received = await reader.until_true(
                lambda messages: len(messages) >= 1 and books.asked == {b"kept", b"dropped"}
            )
    assert [(each.body, each.message_id) for each in received] == [(b"kept", kept.message_id)]
