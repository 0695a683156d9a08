"""Producers with RocketMQ 4.9: accumulated sends, transactions with checks, request and reply."""

import asyncio
from typing import Any

from goddard.client.consume.push import PushConsumer
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.options import AccumulatorOptions
from goddard.client.produce.producer import Producer
from goddard.client.produce.transactions import TransactionProducer
from goddard.client.values import ConsumeFrom, TransactionState
from goddard.testing.site import Site
from tests.support.topic_reader import TopicReader


async def test_accumulated_sends_are_stored_as_reported(legacy_site: Site) -> None:
    site = legacy_site
    topic = site.create_topic("accumulated")
    async with (
        Producer(
            site.new_group("senders"), name_servers=site.namesrv, accumulate=AccumulatorOptions()
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        results = await asyncio.gather(
            *(producer.send(Message(topic, f"{number}".encode())) for number in range(200))
        )
        received = await reader.until(200)
    assert {
        (each.message_id, each.offset_message_id, each.queue, each.queue_offset)
        for each in received
    } == {
        (each.message_id, each.offset_message_id, each.queue, each.queue_offset) for each in results
    }


async def test_transactions_are_committed_or_rolled_back(legacy_site: Site) -> None:
    site = legacy_site
    topic = site.create_topic("transactions")
    decisions = {b"kept": TransactionState.COMMIT, b"dropped": TransactionState.ROLLBACK}

    class Listener:
        async def execute(self, message: Message, argument: Any) -> TransactionState:
            return decisions.get(message.body, TransactionState.UNKNOWN)

        async def check(self, message: ReceivedMessage) -> TransactionState:
            return TransactionState.COMMIT

    async with (
        TransactionProducer(
            site.new_group("senders"), Listener(), name_servers=site.namesrv
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        for body in (b"kept", b"dropped", b"asked"):
            await producer.send_in_transaction(Message(topic, body))
        received = await reader.until(2)
    assert {each.body for each in received} == {b"kept", b"asked"}


async def test_request_gets_its_reply(legacy_site: Site) -> None:
    site = legacy_site
    topic = site.create_topic("questions")
    async with Producer(site.new_group("both"), name_servers=site.namesrv) as producer:

        async def answer(messages: list[ReceivedMessage], context: object) -> None:
            for question in messages:
                await producer.reply(question, b"re: " + question.body)

        consumer = PushConsumer(
            site.new_group("readers"),
            name_servers=site.namesrv,
            listener=answer,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        )
        consumer.subscribe(topic)
        async with consumer:
            reply = await producer.request(Message(topic, b"?"), timeout_ms=30_000)
    assert reply.body == b"re: ?"
