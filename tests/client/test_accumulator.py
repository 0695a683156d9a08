"""The accumulator at real brokers: results of the callers, also without a broker."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from goddard.client.errors import ClientError, InvalidMessageError
from goddard.client.message import Message
from goddard.client.produce.options import AccumulatorOptions
from goddard.client.produce.producer import Producer
from goddard.client.values import SendStatus
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.topic_reader import TopicReader

NEVER = AccumulatorOptions(max_delay_ms=30_000)


async def test_each_message_arrives_once_at_the_place_of_its_result(site: Site) -> None:
    topic = site.create_topic("accumulated")
    async with (
        Producer(
            site.new_group("senders"), name_servers=site.namesrv, accumulate=AccumulatorOptions()
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        messages = [
            Message(topic, f"{number}".encode(), tags="AB"[number % 2], keys=f"k{number}", flag=7)
            for number in range(1000)
        ]
        results = await asyncio.gather(*(producer.send(message) for message in messages))
        received = {message.body: message for message in await reader.until(1000)}
    assert len(received) == 1000
    for message, result in zip(messages, results, strict=True):
        stored = received[message.body]
        assert result.status is SendStatus.SEND_OK
        assert result.message_id == message.message_id == stored.message_id
        assert result.offset_message_id == stored.offset_message_id
        assert (result.queue, result.queue_offset) == (stored.queue, stored.queue_offset)
        assert (stored.tags, stored.keys, stored.flag) == (message.tags, message.keys, 7)
    # Messages of one batch have the same timestamps.
    stamps = Counter(
        (message.queue, message.born_timestamp_ms, message.store_timestamp_ms)
        for message in received.values()
    )
    assert len(stamps) < 500


async def test_messages_sent_alone_arrive(site: Site) -> None:
    topic = site.create_topic("beside")
    large = b"x" * 10_000
    async with (
        Producer(
            site.new_group("senders"), name_servers=site.namesrv, accumulate=NEVER
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        waiting = producer.send_soon(Message(topic, b"waits"))
        # None of these waits for the batch; the large one is compressed as usual.
        await producer.send(Message(topic, b"delayed", delay_level=1))
        await producer.send(Message(topic, b"explicit"), timeout_ms=5_000)
        await producer.send(Message(topic, large))
        assert not waiting.done()
        await producer.stop()
        assert waiting.result().status is SendStatus.SEND_OK
        received = await reader.until(4)
    assert {each.body for each in received} == {b"waits", b"delayed", b"explicit", large}


async def test_chosen_queue_keeps_its_order(site: Site) -> None:
    topic = site.create_topic("chosen", queues=4)
    async with (
        Producer(
            site.new_group("senders"),
            name_servers=site.namesrv,
            accumulate=AccumulatorOptions(max_batch_bytes=500),
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        queues = await producer.publish_queues(topic)
        await asyncio.gather(
            *(
                producer.send_soon(Message(topic, f"{number}".encode()), queue=queues[2])
                for number in range(100)
            )
        )
        received = await reader.until(100)
    assert {each.queue_id for each in received} == {queues[2].queue_id}
    assert [int(each.body) for each in received] == list(range(100))


async def test_stop_sends_open_batches(site: Site) -> None:
    topic = site.create_topic("flushed")
    async with TopicReader(site.namesrv, topic) as reader:
        async with Producer(
            site.new_group("senders"), name_servers=site.namesrv, accumulate=NEVER
        ) as producer:
            futures = [producer.send_soon(Message(topic, b"x")) for _ in range(10)]
        assert [future.result().status for future in futures] == [SendStatus.SEND_OK] * 10
        assert len(await reader.until(10)) == 10


async def test_invalid_message_fails_alone(site: Site) -> None:
    topic = site.create_topic("invalid")
    async with Producer(
        site.new_group("senders"), name_servers=site.namesrv, accumulate=AccumulatorOptions()
    ) as producer:
        good = [producer.send_soon(Message(topic, b"x")) for _ in range(3)]
        with pytest.raises(InvalidMessageError):
            await producer.send(Message(topic, b"x", keys="k" * 40_000))
        assert {result.status for result in await asyncio.gather(*good)} == {SendStatus.SEND_OK}


async def test_missing_broker_fails_every_message(tmp_path: Path) -> None:
    """Messages in open batches fail like those that were sent, and stop returns."""
    with Cluster(tmp_path, brokers=1) as cluster:
        producer = Producer(
            "senders",
            name_servers=cluster.namesrv,
            accumulate=AccumulatorOptions(max_delay_ms=200),
            send_timeout_ms=1000,
        )
        async with producer:
            await producer.send(Message("T", b"makes the topic"))
            cluster.brokers[0].kill()
            before = [producer.send_soon(Message("T", b"x")) for _ in range(5)]
            outcomes = await asyncio.gather(*before, return_exceptions=True)
            for outcome in outcomes:
                assert isinstance(outcome, ClientError), outcome
                assert "T" in str(outcome)
            late = [producer.send_soon(Message("T", b"x")) for _ in range(5)]
        assert all(future.done() for future in late)
        assert all(isinstance(future.exception(), ClientError) for future in late)
