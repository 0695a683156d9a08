"""Requests and replies: between our clients, and between our clients and Java's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from goddard.client.consume.push import PushConsumer
from goddard.client.errors import (
    ClientCode,
    ClientError,
    NoReplyAddressError,
    NoRouteError,
    RequestReplyTimeoutError,
)
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.producer import Producer
from goddard.client.produce.request_reply import create_reply
from goddard.client.values import ConsumeFrom
from goddard.testing.site import Site
from tests.support.java import JavaPeers, JavaProgram
from tests.support.java_clients import JavaClients, Outgoing
from tests.support.topic_reader import TopicReader

TIMEOUT_MS = 30_000


@pytest.fixture(scope="module")
def java_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    with JavaPeers("5.4.0", tmp_path_factory.mktemp("java-clients")) as java:
        yield java.client_suite()


@contextlib.asynccontextmanager
async def answering(
    site: Site, topic: str, producer: Producer, *, times: int = 1
) -> AsyncIterator[list[ReceivedMessage]]:
    """Reply ``re: body`` to each request, a number of times; yields the request bodies."""
    questions: list[ReceivedMessage] = []

    async def answer(messages: list[ReceivedMessage], context: object) -> None:
        for question in messages:
            questions.append(question)
            for _ in range(times):
                await producer.reply(question, b"re: " + question.body)

    consumer = PushConsumer(
        site.new_group("readers"),
        name_servers=site.namesrv,
        listener=answer,
        consume_from=ConsumeFrom.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    async with consumer:
        yield questions


async def test_request_and_reply(site: Site) -> None:
    topic = site.create_topic("questions")
    async with (
        Producer(site.new_group("askers"), name_servers=site.namesrv) as asker,
        Producer(
            site.new_group("repliers"), name_servers=site.namesrv, instance_name="replier"
        ) as replier,
        answering(site, topic, replier) as questions,
    ):
        for question in (b"one", b"two"):
            message = Message(topic, question, tags="T", properties={"own": "x"})
            reply = await asker.request(message, timeout_ms=TIMEOUT_MS)
            assert reply.body == b"re: " + question
            assert reply.get("MSG_TYPE") == "reply"
            assert reply.get("CORRELATION_ID") == message.get("CORRELATION_ID")
            assert reply.get("ARRIVE_TIME")
        assert [each.get("REPLY_TO_CLIENT") for each in questions] == [asker.client_id] * 2
        assert [each.get("TTL") for each in questions] == [str(TIMEOUT_MS)] * 2
        assert questions[0].get("own") == "x"


async def test_each_reply_completes_its_own_request(site: Site) -> None:
    """Many concurrent requests, some of them large and therefore compressed."""
    topic = site.create_topic("many-questions")
    async with (
        Producer(site.new_group("both"), name_servers=site.namesrv) as producer,
        answering(site, topic, producer),
    ):
        bodies = [f"{number}".encode() * 2000 for number in range(20)]
        replies = await asyncio.gather(
            *(producer.request(Message(topic, body), timeout_ms=TIMEOUT_MS) for body in bodies)
        )
    assert [reply.body for reply in replies] == [b"re: " + body for body in bodies]


async def test_missing_reply_is_a_timeout(site: Site) -> None:
    topic = site.create_topic("silence")
    async with Producer(site.new_group("askers"), name_servers=site.namesrv) as asker:
        await asker.send(Message(topic, b"warm-up"))
        with pytest.raises(RequestReplyTimeoutError, match=f"<{topic}> OK, but wait reply") as seen:
            await asker.request(Message(topic, b"anybody?"), timeout_ms=300)
        assert seen.value.code == ClientCode.REQUEST_TIMEOUT


async def test_late_and_repeated_replies_are_dropped(site: Site) -> None:
    topic = site.create_topic("eager")
    async with (
        Producer(site.new_group("both"), name_servers=site.namesrv) as producer,
        answering(site, topic, producer, times=2) as questions,
    ):
        for body in (b"one", b"two"):
            reply = await producer.request(Message(topic, body), timeout_ms=TIMEOUT_MS)
            assert reply.body == b"re: " + body
        # The broker delivers a reply to a completed request; the producer drops it.
        await producer.reply(questions[0], b"too late")


async def test_stop_fails_pending_requests(site: Site) -> None:
    topic = site.create_topic("unanswered")
    producer = Producer(site.new_group("askers"), name_servers=site.namesrv)
    async with producer:
        await producer.send(Message(topic, b"warm-up"))
        waiting = asyncio.create_task(
            producer.request(Message(topic, b"anybody?"), timeout_ms=TIMEOUT_MS)
        )
        async with TopicReader(site.namesrv, topic) as reader:
            await reader.until(2)
    with pytest.raises(ClientError, match="the producer was stopped before the reply came"):
        await waiting


async def test_request_that_cannot_be_sent_is_an_error(site: Site) -> None:
    async with Producer(
        site.new_group("askers"), name_servers=site.namesrv, default_topic="no-such-topic"
    ) as asker:
        with pytest.raises(NoRouteError):
            await asker.request(Message("no-such-questions", b"?"), timeout_ms=5_000)


def test_only_requests_can_be_replied_to() -> None:
    with pytest.raises(NoReplyAddressError, match=r"property\[CLUSTER\] is null") as seen:
        create_reply(Message("T", b"no request"), b"re:")
    assert seen.value.code == ClientCode.CREATE_REPLY_MESSAGE


@pytest.mark.java
async def test_reply_to_a_request_of_java(site: Site, java_suite: JavaProgram) -> None:
    topic = site.create_topic("java-asks")
    clients = JavaClients(java_suite, site.namesrv)
    async with (
        Producer(site.new_group("repliers"), name_servers=site.namesrv) as replier,
        answering(site, topic, replier),
    ):
        asker = await asyncio.to_thread(clients.producer, site.new_group("askers"))
        try:
            for body in (b"one", b"two"):
                reply = await asyncio.to_thread(
                    asker.request, Outgoing(topic, body), timeout_ms=TIMEOUT_MS
                )
                assert reply.content == b"re: " + body
        finally:
            await asyncio.to_thread(clients.close_all)


@pytest.mark.java
async def test_request_with_a_reply_of_java(site: Site, java_suite: JavaProgram) -> None:
    topic = site.create_topic("java-answers")
    clients = JavaClients(java_suite, site.namesrv)
    try:
        replier = await asyncio.to_thread(clients.producer, site.new_group("repliers"))
        await asyncio.to_thread(
            lambda: clients.push(
                site.new_group("readers"), topic, answer="reply", replier=replier.name
            )
        )
        async with Producer(site.new_group("askers"), name_servers=site.namesrv) as asker:
            for body in (b"one", b"two"):
                reply = await asker.request(Message(topic, body), timeout_ms=TIMEOUT_MS)
                assert reply.body == b"re: " + body
    finally:
        await asyncio.to_thread(clients.close_all)
