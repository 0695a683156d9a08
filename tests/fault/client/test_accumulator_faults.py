"""A broker is killed and restarted while batches are filled and sent."""

import asyncio
from pathlib import Path

from goddard.client.errors import ClientError
from goddard.client.message import Message
from goddard.client.produce.options import AccumulatorOptions
from goddard.client.produce.producer import Producer
from goddard.client.values import SendResult
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.topic_reader import TopicReader

ROUNDS = 150
MESSAGES_PER_ROUND = 20


async def test_acknowledged_messages_are_not_lost(tmp_path: Path, no_leaked_tasks: None) -> None:
    with Cluster(tmp_path) as cluster:
        site = Site(cluster.start_name_server())
        broker = site.start_goddard_broker(cluster)
        topic = site.create_topic("load")
        sends: list[asyncio.Future[SendResult]] = []
        async with Producer(
            "senders",
            name_servers=site.namesrv,
            accumulate=AccumulatorOptions(max_delay_ms=2),
            send_timeout_ms=2_000,
            connect_timeout_ms=500,
        ) as producer:
            for number in range(ROUNDS):
                if number == ROUNDS // 3:
                    broker.kill()
                if number == ROUNDS // 2:
                    await asyncio.to_thread(broker.start)
                sends += (
                    producer.send_soon(Message(topic, b"x" * 100))
                    for _ in range(MESSAGES_PER_ROUND)
                )
                await asyncio.sleep(0.01)
            # The broker runs again, so sends succeed.
            last = await producer.send(Message(topic, b"last"))
        outcomes = [send.exception() or send.result() for send in sends]
        assert len(outcomes) == ROUNDS * MESSAGES_PER_ROUND
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(failure, ClientError) for failure in failures), failures[0]
        acknowledged = {each.message_id for each in outcomes if isinstance(each, SendResult)}
        assert len(acknowledged) == len(outcomes) - len(failures) > len(outcomes) // 3
        wanted = acknowledged | {last.message_id}
        async with TopicReader(site.namesrv, topic) as reader:
            received = await reader.until_true(
                lambda messages: wanted <= {each.message_id for each in messages}
            )
    assert wanted <= {each.message_id for each in received}
