"""Pulls and committed offsets without a consumer, with each kind of broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from goddard.client.consume.offsets import BrokerOffsets, master_address, start_offset
from goddard.client.consume.pull import Puller, PullResult, PullStatus
from goddard.client.consume.subscriptions import Expression, subscription
from goddard.client.errors import BrokerError, BrokerNotFoundError
from goddard.client.options import session_options
from goddard.client.session import Session
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.environment import Environment
from goddard.protocol.codes import ResponseCode
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient

TIMEOUT_SECONDS = 30


@pytest.fixture
async def session(site: Site) -> AsyncIterator[Session]:
    options = session_options(site.namesrv, {"instance_name": "pulls"})
    async with Session(options, environment=Environment()) as session:
        yield session


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[BrokerClient]:
    client = Client()
    yield BrokerClient(client, site.broker.address)
    await client.close()


def queue_of(site: Site, topic: str, queue_id: int = 0) -> MessageQueue:
    (broker_name,) = site.brokers
    return MessageQueue(topic, broker_name, queue_id)


async def pull(
    session: Session,
    group: str,
    queue: MessageQueue,
    offset: int,
    expression: Expression = "*",
    **options: Any,
) -> PullResult:
    wanted = subscription(queue.topic, expression, 1)
    settings = {"max_messages": 32, "suspend_ms": 0, "carries_subscription": True, **options}
    return await Puller(session, group).pull(queue, offset, wanted, **settings)


@pytest.mark.parametrize("is_lite", [False, True], ids=["plain", "lite"])
async def test_every_status(
    site: Site, session: Session, sender: BrokerClient, is_lite: bool
) -> None:
    topic = site.create_topic("Pulls", queues=2)
    group = site.new_group("Pulls")
    queue = queue_of(site, topic)
    for number in range(5):
        await sender.send(topic, b"%d" % number, {"TAGS": "Odd" if number % 2 else "Even"})

    async def ask(offset: int, expression: Expression = "*", **options: Any) -> PullResult:
        return await pull(session, group, queue, offset, expression, is_lite=is_lite, **options)

    found = await ask(0)
    assert found.status is PullStatus.FOUND
    assert [message.body for message in found.messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert (found.next_offset, found.min_offset, found.max_offset) == (5, 0, 5)
    assert found.suggested_broker_id == 0
    assert [message.body for message in (await ask(2, max_messages=2)).messages] == [b"2", b"3"]
    odd = await ask(0, "Odd")
    assert [message.body for message in odd.messages] == [b"1", b"3"]
    assert odd.next_offset == 5

    at_the_end = await ask(5)
    assert (at_the_end.status, at_the_end.next_offset) == (PullStatus.NO_NEW_MESSAGES, 5)
    nothing_wanted = await ask(0, "Nobody")
    assert nothing_wanted.status is PullStatus.NO_MATCHED_MESSAGES
    assert nothing_wanted.next_offset == 5
    beyond = await ask(9)
    assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 5)


async def test_a_pull_is_held_until_something_comes(
    site: Site, session: Session, sender: BrokerClient
) -> None:
    topic = site.create_topic("PullsHeld", queues=1)
    queue = queue_of(site, topic)
    held = asyncio.create_task(
        pull(session, site.new_group("PullsHeld"), queue, 0, suspend_ms=20_000)
    )
    await sender.send(topic, b"at last")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        result = await held
    assert [message.body for message in result.messages] == [b"at last"]


async def test_a_refusal_names_code_and_broker(site: Site, session: Session) -> None:
    topic = site.create_topic("PullsRefused", queues=1)
    await session.refresh_route(topic)
    group = site.new_group("PullsRefused")
    unknown = queue_of(site, "NoSuchTopic")
    with pytest.raises(BrokerError) as refused:
        await pull(session, group, unknown, 0)
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST
    assert refused.value.address == site.broker.address
    with pytest.raises(BrokerNotFoundError, match="nobody"):
        await pull(session, group, MessageQueue(topic, "nobody", 0), 0)


async def test_a_pull_commits(site: Site, session: Session, sender: BrokerClient) -> None:
    topic = site.create_topic("PullsCommit", queues=1)
    group = site.new_group("PullsCommit")
    queue = queue_of(site, topic)
    for number in range(3):
        await sender.send(topic, b"%d" % number)
    offsets = BrokerOffsets(session, group)
    await pull(session, group, queue, 2, commit_offset=2)
    assert await offsets.read(queue) == 2
    assert offsets.cached(queue) == 2


async def test_offsets_at_the_broker(site: Site, session: Session, sender: BrokerClient) -> None:
    topic = site.create_topic("Offsets", queues=2)
    group = site.new_group("Offsets")
    one, two = queue_of(site, topic, 0), queue_of(site, topic, 1)
    for queue_id in range(2):
        await sender.send(topic, b"x", queue_id=queue_id)
    # A group comes into being with its first pull.
    await pull(session, group, one, 0)
    offsets = BrokerOffsets(session, group)
    await offsets.load()
    offsets.update(one, 1)
    offsets.update(two, 1)
    await offsets.flush([one, two])
    others = BrokerOffsets(session, group)
    assert (await others.read(one), await others.read(two)) == (1, 1)

    # Memory comes first; nothing is asked again unless wanted.
    offsets.update(one, 0)
    await offsets.flush([one])
    assert (await others.read(one), await others.read(one, refresh=True)) == (1, 0)

    # What is not named is not written.
    offsets.update(one, 1)
    offsets.update(two, 0)
    await offsets.persist_all([one], wait=True)
    assert offsets.table() == {one: 1, two: 0}
    assert (await others.read(one, refresh=True), await others.read(two, refresh=True)) == (1, 1)
    offsets.update(one, 0)
    await offsets.persist(one)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            if await others.read(one, refresh=True) == 0:
                break
            await asyncio.sleep(0.02)
    unknown = MessageQueue(topic, "nobody", 0)
    offsets.update(unknown, 1)
    with pytest.raises(BrokerNotFoundError):
        await offsets.flush([unknown])
    # In the background it is only logged.
    await offsets.persist(unknown)


async def test_where_a_group_begins(site: Site, session: Session, sender: BrokerClient) -> None:
    topic = site.create_topic("Begin", queues=1)
    queue = queue_of(site, topic)
    for number in range(3):
        await sender.send(topic, b"%d" % number)
    known, new = site.new_group("Begin"), site.new_group("Begin")
    offsets = BrokerOffsets(session, known)
    offsets.update(queue, 2)
    for consume_from in ConsumeFrom:
        assert await start_offset(session, offsets, queue, consume_from, 0) == 2
    # A broker lets a new group start at 0 while the first messages are in memory.
    offsets = BrokerOffsets(session, new)
    assert await start_offset(session, offsets, queue, ConsumeFrom.LAST_OFFSET, 0) == 0
    assert await master_address(session, queue) == site.broker.address
