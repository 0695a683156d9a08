"""The lite pull consumer, with each kind of broker: modes, positions, commits, listeners."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from goddard.client.consume.lite import LitePullConsumer
from goddard.client.consume.offsets import read_offsets
from goddard.client.consume.subscriptions import Expression, Sql, Tags
from goddard.client.errors import BrokerError, ClientError, NotRunningError
from goddard.client.listeners.hooks import ConsumeHookContext
from goddard.client.message import ReceivedMessage
from goddard.client.values import ConsumeFrom, MessageModel, MessageQueue, ServiceState
from goddard.errors import ConfigError, ProtocolError
from goddard.protocol.bodies import decode_body
from goddard.protocol.bodies_client import ConsumerRunningInfo
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.compression import CompressionKind, compress, with_compression
from goddard.protocol.responses import check
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.members import member_of
from tests.support.polling import until

TIMEOUT_SECONDS = 30
SHORT_INTERVALS: dict[str, Any] = {
    "rebalance_interval_ms": 100,
    "poll_name_server_interval_ms": 200,
    "persist_offsets_interval_ms": 100,
    "auto_commit_interval_ms": 1,
    "pull_error_delay_ms": 100,
    "queue_check_interval_ms": 100,
    "consume_from": ConsumeFrom.FIRST_OFFSET,
}


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[BrokerClient]:
    client = Client()
    yield BrokerClient(client, site.broker.address)
    await client.close()


def lite(site: Site, group: str, **options: Any) -> LitePullConsumer:
    return LitePullConsumer(group, name_servers=site.namesrv, **SHORT_INTERVALS | options)


def queue_of(site: Site, topic: str, queue_id: int = 0) -> MessageQueue:
    (broker_name,) = site.brokers
    return MessageQueue(topic, broker_name, queue_id)


async def fill(
    sender: BrokerClient, topic: str, bodies: Iterable[str], *, queue_id: int = 0, **properties: str
) -> None:
    for body in bodies:
        await sender.send(topic, body.encode(), properties, queue_id=queue_id)


async def collect(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    """Poll until so many messages came."""
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(messages) < count:
            messages += await consumer.poll(500)
    return messages


async def poll_until(
    consumer: LitePullConsumer, condition: Callable[[], bool], what: str
) -> list[ReceivedMessage]:
    """Poll, as auto commit and rebalancing need it, until something is so."""
    messages: list[ReceivedMessage] = []
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        messages += await consumer.poll(20)
    return messages


def texts(messages: Iterable[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


async def test_a_single_queue_is_refused_where_a_list_is_expected(site: Site) -> None:
    topic = site.create_topic("LiteOne", queues=1)
    queue = queue_of(site, topic)
    consumer = lite(site, site.new_group("LiteOne"))
    consumer.assign(iter([queue]))
    one: Any = queue
    async with consumer:
        for method in (consumer.pause, consumer.resume, consumer.assign):
            with pytest.raises(TypeError, match="must be a list of"):
                method(one)
        mistakes: list[Any] = [queue, topic, {topic: 1}, {queue: "1"}, {queue: True}]
        for wrong in mistakes:
            with pytest.raises(TypeError, match=r"must be a (list|dict) of MessageQueue"):
                await consumer.commit(wrong)
        with pytest.raises(ConfigError, match="is -1; it must be 0 to"):
            await consumer.commit({queue: -1})
        several: Any = [queue]
        for find in (consumer.seek_to_begin, consumer.seek_to_end, consumer.committed):
            with pytest.raises(
                TypeError, match=r"a queue must be MessageQueue\(topic, broker_name, queue_id\)"
            ):
                await find(several)
        with pytest.raises(TypeError, match=r"a queue must be MessageQueue\("):
            await consumer.seek(several, 0)
        with pytest.raises(TypeError, match=r"a queue must be MessageQueue\("):
            await consumer.offset_for_timestamp(several, 0)
        assert consumer.assignment() == {queue}
        consumer.pause([queue])
        assert consumer.paused() == {queue}


async def test_a_poll_without_a_subscription_is_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    group = site.new_group("LiteNone")
    async with lite(site, group) as consumer:
        assert await consumer.poll(1) == []
    assert f"Group {group} has no subscription and no assigned queue yet" in caplog.text


async def test_a_subscriber_gets_every_message_of_all_queues(
    site: Site, sender: BrokerClient
) -> None:
    topic = site.create_topic("LiteAll", queues=3)
    for queue_id in range(3):
        names = (f"{queue_id}-{number}" for number in range(15))
        await fill(sender, topic, names, queue_id=queue_id, KEYS="a b", TAGS="TagA")
    consumer = lite(site, site.new_group("LiteAll"))
    consumer.subscribe(topic)
    async with consumer:
        messages = await collect(consumer, 45)
        assert consumer.assignment() == {queue_of(site, topic, number) for number in range(3)}
    assert len(messages) == 45
    for queue_id in range(3):
        own = [message for message in messages if message.queue_id == queue_id]
        assert texts(own) == [f"{queue_id}-{number}" for number in range(15)]
        assert [message.queue_offset for message in own] == list(range(15))
        assert {message.queue for message in own} == {queue_of(site, topic, queue_id)}
    (first,) = (message for message in messages if message.body == b"0-0")
    assert (first.topic, first.keys, first.tags) == (topic, ["a", "b"], "TagA")
    assert first.get("MIN_OFFSET") == "0"
    assert first.store_host == site.broker.address


async def test_messages_count_as_consumed_when_the_next_poll_begins(
    site: Site, sender: BrokerClient
) -> None:
    topic = site.create_topic("LitePolls", queues=1)
    group = site.new_group("LitePolls")
    await fill(sender, topic, "abcdef")
    consumer = lite(site, group, pull_batch_size=2)
    consumer.subscribe(topic)
    async with consumer:
        assert texts(await collect(consumer, 4)) == list("abcd")
    # The messages of the last poll are not committed, so they are delivered again.
    again = lite(site, group, pull_batch_size=2)
    again.subscribe(topic)
    async with again:
        assert texts(await collect(again, 4)) == list("cdef")
        await again.commit()
    third = lite(site, group)
    third.subscribe(topic)
    async with third:
        await fill(sender, topic, "g")
        assert texts(await collect(third, 1)) == ["g"]


async def test_without_auto_commit_only_commit_counts(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteManual", queues=1)
    group = site.new_group("LiteManual")
    queue = queue_of(site, topic)
    await fill(sender, topic, "abcdef")
    consumer = lite(site, group, auto_commit=False, pull_batch_size=2)
    consumer.subscribe(topic)
    async with consumer:
        assert texts(await collect(consumer, 6)) == list("abcdef")
        await consumer.commit({queue: 3})
        assert await consumer.committed(queue) == 3
        with pytest.raises(ClientError, match="not in assigned list"):
            await consumer.commit({queue._replace(queue_id=7): 1})
    again = lite(site, group, auto_commit=False)
    again.subscribe(topic)
    async with again:
        assert texts(await collect(again, 3)) == list("def")
        await again.commit([queue], persist=False)
        assert await again.committed(queue) == 6
        await until_committed(sender, group, topic, 6)


async def until_committed(sender: BrokerClient, group: str, topic: str, offset: int) -> None:
    """Until the broker knows an offset of queue 0."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "setZeroIfNotFound": "false"}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            answer = await sender.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            if answer.fields.get("offset") == str(offset):
                return
            await asyncio.sleep(0.02)


async def test_a_loop_consumes_a_message_when_it_asks_for_the_next(
    site: Site, sender: BrokerClient
) -> None:
    topic = site.create_topic("LiteLoop", queues=1)
    group = site.new_group("LiteLoop")
    await fill(sender, topic, "abcdef")
    consumer = lite(site, group)
    consumer.subscribe(topic)
    seen = []

    async def fail_at_d() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS), consumer:
            async for message in consumer:
                seen.append(message.body.decode())
                if message.body == b"d":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_d()
    assert seen == list("abcd")
    again = lite(site, group)
    again.subscribe(topic)
    async with asyncio.timeout(TIMEOUT_SECONDS), again:
        async for message in again:
            seen.append(message.body.decode())
            if message.body == b"e":
                break
        # The rest of what the loop took is polled.
        assert texts(await again.poll()) == ["f"]
    assert "".join(seen) == "abcd" + "de"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await until_committed(sender, group, topic, 5)


async def test_a_loop_ends_when_the_consumer_stops(site: Site) -> None:
    topic = site.create_topic("LiteStop", queues=1)
    consumer = lite(site, site.new_group("LiteStop"))
    consumer.subscribe(topic)
    await consumer.start()

    async def read() -> list[ReceivedMessage]:
        return [message async for message in consumer]

    reading = asyncio.create_task(read())
    await until(lambda: bool(consumer.assignment()), "the queue is assigned")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await consumer.stop()
        assert await reading == []
    with pytest.raises(NotRunningError, match="not running, please start it first"):
        await consumer.poll()
    assert [message async for message in consumer] == []


async def test_assigned_queues_are_read_and_others_are_not(
    site: Site, sender: BrokerClient
) -> None:
    topic = site.create_topic("LiteAssign", queues=3)
    for queue_id in range(3):
        await fill(sender, topic, [f"{queue_id}"], queue_id=queue_id)
    consumer = lite(site, site.new_group("LiteAssign"))
    async with consumer:
        queues = await consumer.fetch_queues(topic)
        assert queues == [queue_of(site, topic, number) for number in range(3)]
        consumer.assign(queues[:2])
        assert sorted(texts(await collect(consumer, 2))) == ["0", "1"]
        with pytest.raises(ClientError, match="mutually exclusive"):
            consumer.subscribe(topic)
        consumer.assign(queues[1:])
        assert texts(await collect(consumer, 1)) == ["2"]
        assert consumer.assignment() == set(queues[1:])
        await fill(sender, topic, ["0+"], queue_id=0)
        await fill(sender, topic, ["1+"], queue_id=1)
        assert texts(await collect(consumer, 1)) == ["1+"]
        assert await consumer.poll(100) == []


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("TagA || TagC", ["a", "c"]),
        (Tags("TagB"), ["b"]),
        # Both have the same hash, which is all that a broker compares.
        ("Aa", ["Aa"]),
        (Sql("size > 5 AND TAGS IS NOT NULL"), ["b", "c"]),
    ],
    ids=["expression", "tags", "hash", "sql"],
)
async def test_only_matching_messages_arrive(
    site: Site, sender: BrokerClient, expression: Expression, expected: list[str]
) -> None:
    topic = site.create_topic("LiteFilter", queues=1)
    await fill(sender, topic, "a", TAGS="TagA", size="1")
    await fill(sender, topic, "b", TAGS="TagB", size="6")
    await fill(sender, topic, "c", TAGS="TagC", size="7")
    await fill(sender, topic, ["BB"], TAGS="BB")
    await fill(sender, topic, ["Aa"], TAGS="Aa")
    group = site.new_group("LiteFilter")
    subscriber = lite(site, group)
    subscriber.subscribe(topic, expression)
    async with subscriber:
        assert texts(await collect(subscriber, len(expected))) == expected
        # What was passed over counts as consumed, too.
        await poll_until_committed(subscriber, queue_of(site, topic), 5)
    assigned = lite(site, site.new_group("LiteFilter"))
    assigned.filter_assigned(topic, expression)
    assigned.assign([queue_of(site, topic)])
    async with assigned:
        assert texts(await collect(assigned, len(expected))) == expected
        with pytest.raises(NotRunningError, match="only can be called before start"):
            assigned.filter_assigned(topic, "*")


async def poll_until_committed(
    consumer: LitePullConsumer, queue: MessageQueue, offset: int
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await consumer.committed(queue) != offset:
            assert await consumer.poll(20) == []


async def test_seek_moves_within_the_queue(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteSeek", queues=2)
    queue = queue_of(site, topic)
    await fill(sender, topic, "abcdef")
    consumer = lite(site, site.new_group("LiteSeek"), pull_batch_size=2)
    consumer.assign([queue])
    async with consumer:
        assert texts(await collect(consumer, 2)) == ["a", "b"]
        await consumer.seek(queue, 4)
        assert texts(await collect(consumer, 2)) == ["e", "f"]
        await consumer.seek_to_begin(queue)
        assert texts(await collect(consumer, 6)) == list("abcdef")
        await consumer.seek_to_begin(queue)
        await consumer.seek_to_end(queue)
        await fill(sender, topic, "g")
        assert texts(await collect(consumer, 1)) == ["g"]
        # In the middle of a loop: what it had taken is forgotten.
        await consumer.seek_to_begin(queue)
        seen = []
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async for message in consumer:
                seen.append(message.body.decode())
                if len(seen) == 1:
                    await consumer.seek(queue, 5)
                if message.body == b"g":
                    break
        assert seen == ["a", "f", "g"]
        for offset in (-1, 8):
            with pytest.raises(ClientError, match=f"Seek offset illegal, seek offset = {offset}"):
                await consumer.seek(queue, offset)
        with pytest.raises(ClientError, match="not in assigned list, message queue"):
            await consumer.seek(queue_of(site, topic, 1), 0)


async def test_a_paused_queue_is_not_pulled(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LitePause", queues=2)
    queues = [queue_of(site, topic, number) for number in range(2)]
    for queue in queues:
        await fill(sender, topic, [str(queue.queue_id)], queue_id=queue.queue_id)
    consumer = lite(site, site.new_group("LitePause"))
    async with consumer:
        consumer.assign(queues)
        consumer.pause(queues[:1])
        assert consumer.paused() == {queues[0]}
        assert texts(await collect(consumer, 1)) == ["1"]
        await fill(sender, topic, ["1+"], queue_id=1)
        assert texts(await collect(consumer, 1)) == ["1+"]
        assert await consumer.poll(200) == []
        consumer.resume(queues)
        assert consumer.paused() == set()
        assert texts(await collect(consumer, 1)) == ["0"]
        # What was pulled before a pause is handed out after it.
        await consumer.seek_to_begin(queues[0])
        await until(lambda: waiting(consumer) == 1, "a message waits")
        consumer.pause(queues)
        assert texts(await collect(consumer, 1)) == ["0"]


async def test_offsets_are_found_by_time(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteTime", queues=1)
    queue = queue_of(site, topic)
    await fill(sender, topic, "ab")
    consumer = lite(site, site.new_group("LiteTime"))
    consumer.assign([queue])
    async with consumer:
        before = await collect(consumer, 2)
        last_ms = before[-1].store_timestamp_ms
        await until(lambda: time.time() * 1000 > last_ms + 50, "time passes")
        await fill(sender, topic, "c")
        (after,) = await collect(consumer, 1)
        assert await consumer.offset_for_timestamp(queue, after.store_timestamp_ms) == 2
        assert await consumer.offset_for_timestamp(queue, last_ms + 1) == 2
        assert await consumer.offset_for_timestamp(queue, 0) == 0
    timed = lite(
        site,
        site.new_group("LiteTime"),
        consume_from=ConsumeFrom.TIMESTAMP,
        consume_timestamp_ms=last_ms + 1,
    )
    timed.subscribe(topic)
    async with timed:
        first = texts(await collect(timed, 1))[0]
    # A broker lets a group that is new to a queue in memory start at 0, whatever it asked for.
    assert first in ("a", "c")


async def test_members_share_the_queues_and_take_over(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteShare", queues=4)
    everything = {queue_of(site, topic, number) for number in range(4)}
    group = site.new_group("LiteShare")
    shares: list[tuple[str, set[MessageQueue], set[MessageQueue]]] = []
    first = lite(site, group)
    first.subscribe(topic, listener=lambda *told: shares.append(told))
    second = lite(site, group)
    second.subscribe(topic)
    async with first:
        await until(lambda: bool(shares), "the listener is told")
        assert shares == [(topic, everything, everything)]
        assert first.assignment() == everything
        async with second:
            await until(
                lambda: len(first.assignment()) == len(second.assignment()) == 2, "both have two"
            )
            assert first.assignment() | second.assignment() == everything
            await until(
                lambda: shares[-1] == (topic, everything, first.assignment()),
                "the listener is told",
            )
            for number in range(4):
                await fill(sender, topic, [f"{number}"], queue_id=number)
            mine = await collect(first, 2)
            others = await collect(second, 2)
            assert sorted(texts(mine + others)) == ["0", "1", "2", "3"]
            await second.commit()
        await until(lambda: first.assignment() == everything, "the first takes over")
        # What the second had consumed does not come again.
        for number in range(4):
            await fill(sender, topic, [f"{number}+"], queue_id=number)
        assert sorted(texts(await collect(first, 4))) == ["0+", "1+", "2+", "3+"]


async def test_a_released_queue_keeps_its_offset(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteGivenUp", queues=2)
    group = site.new_group("LiteGivenUp")
    # Offsets are written when a queue is given up, or not at all.
    first, second = (
        lite(site, group, persist_offsets_interval_ms=600_000, auto_commit_interval_ms=1)
        for _ in range(2)
    )
    first.subscribe(topic)
    second.subscribe(topic)
    for number in range(2):
        await fill(sender, topic, ["old"], queue_id=number)
    async with first:
        assert texts(await collect(first, 2)) == ["old", "old"]
        await first.poll(0)
        async with second:
            await until(lambda: len(second.assignment()) == 1, "the second has a queue")
            (queue,) = second.assignment()
            await fill(sender, topic, ["new"], queue_id=queue.queue_id)
            assert texts(await collect(second, 1)) == ["new"]


async def test_a_listener_is_called_when_queues_are_added(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteQueues", queues=1)
    heard: list[tuple[str, set[MessageQueue]]] = []
    consumer = lite(site, site.new_group("LiteQueues"))

    def listener(name: str, queues: set[MessageQueue]) -> None:
        heard.append((name, queues))
        raise ZeroDivisionError("a listener that fails changes nothing")

    consumer.listen_to_queues(topic, listener)
    consumer.subscribe(topic)
    async with consumer:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": 3,
            "writeQueueNums": 3,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }
        check(await sender.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        await until(lambda: bool(heard), "the listener is told")
        assert heard == [(topic, {queue_of(site, topic, number) for number in range(3)})]
        await until(lambda: len(consumer.assignment()) == 3, "the new queues are read")
        await fill(sender, topic, ["new"], queue_id=2)
        assert texts(await collect(consumer, 1)) == ["new"]


async def test_offsets_can_be_reset_while_the_consumer_runs(
    site: Site, sender: BrokerClient
) -> None:
    topic = site.create_topic("LiteReset", queues=1)
    group = site.new_group("LiteReset")
    await fill(sender, topic, "abc")
    consumer = lite(site, group, broker_suspend_ms=200)
    consumer.subscribe(topic)
    async with consumer:
        assert texts(await collect(consumer, 3)) == list("abc")
        await poll_until_committed(consumer, queue_of(site, topic), 3)
        fields = {
            "topic": topic,
            "group": group,
            "timestamp": 0,
            "isForce": "true",
            "queueId": 0,
            "offset": 1,
        }
        check(await sender.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields))
        assert texts(await collect(consumer, 2)) == ["b", "c"]


@pytest.mark.parametrize("kind", list(CompressionKind))
async def test_bodies_are_decompressed(
    site: Site, sender: BrokerClient, kind: CompressionKind
) -> None:
    topic = site.create_topic("LiteCompressed", queues=1)
    body = b"compress me " * 1000
    flag = with_compression(0, kind)
    await sender.send(topic, compress(body, kind), {}, sys_flag=flag)
    await sender.send(topic, zlib.compress(body)[:-9], {}, sys_flag=flag)
    consumer = lite(site, site.new_group("LiteCompressed"))
    consumer.subscribe(topic)
    async with consumer:
        good, bad = await collect(consumer, 2)
    assert good.body == body
    assert not good.sys_flag & 1
    with pytest.raises(ProtocolError, match=r"cannot be decompressed|truncated"):
        _ = bad.body


async def test_broadcast_consumers_read_everything_and_keep_offsets_in_a_file(
    site: Site, sender: BrokerClient, tmp_path: Path
) -> None:
    topic = site.create_topic("LiteBroadcast", queues=2)
    group = site.new_group("LiteBroadcast")
    for number in range(2):
        await fill(sender, topic, [f"{number}"], queue_id=number)

    def member(name: str) -> LitePullConsumer:
        consumer = lite(
            site,
            group,
            message_model=MessageModel.BROADCASTING,
            instance_name=name,
            offsets_folder=tmp_path,
        )
        consumer.subscribe(topic)
        return consumer

    first, second = member("first"), member("second")
    async with first, second:
        for consumer in (first, second):
            assert sorted(texts(await collect(consumer, 2))) == ["0", "1"]
        await first.commit()
    path = tmp_path / first.client_id / group / "offsets.json"
    assert first.client_id.endswith("@first")
    assert read_offsets(path) == {queue_of(site, topic, number): 1 for number in range(2)}
    again = member("first")
    async with again:
        await fill(sender, topic, ["new"], queue_id=1)
        assert texts(await collect(again, 1)) == ["new"]


async def test_users_do_not_see_the_namespace(site: Site, sender: BrokerClient) -> None:
    inner = site.create_topic("space%LiteSpace", queues=1)
    topic = inner.removeprefix("space%")
    await fill(sender, inner, "ab")
    consumer = lite(site, site.new_group("LiteSpace"), namespace="space")
    consumer.subscribe(topic)
    queue = queue_of(site, topic)
    async with consumer:
        messages = await collect(consumer, 2)
        assert {(message.topic, message.queue) for message in messages} == {(topic, queue)}
        assert consumer.assignment() == {queue}
        assert await consumer.fetch_queues(topic) == [queue]
        await consumer.seek(queue, 1)
        assert texts(await collect(consumer, 1)) == ["b"]
        await consumer.commit()
        await until_committed(sender, consumer.group, inner, 2)
    assert consumer.group.startswith("space%")


async def test_a_poll_of_an_empty_queue_times_out(site: Site) -> None:
    topic = site.create_topic("LiteEmpty", queues=1)
    consumer = lite(site, site.new_group("LiteEmpty"), poll_timeout_ms=50)
    consumer.subscribe(topic)
    async with consumer:
        assert await consumer.poll() == []
        assert await consumer.poll(0) == []
        for wrong in (-1, "5", 1.5):
            with pytest.raises(ConfigError, match=f"timeout_ms is {wrong!r}; it must be"):
                await consumer.poll(cast("Any", wrong))


async def test_subscriptions_can_change_while_running(site: Site, sender: BrokerClient) -> None:
    one, two = (site.create_topic("LiteChange", queues=1) for _ in range(2))
    consumer = lite(site, site.new_group("LiteChange"))
    async with consumer:
        consumer.subscribe(one)
        await fill(sender, one, ["one"])
        assert texts(await collect(consumer, 1)) == ["one"]
        consumer.subscribe(two)
        await fill(sender, two, ["two"])
        assert texts(await collect(consumer, 1)) == ["two"]
        consumer.unsubscribe(one)
        assert consumer.assignment() == {queue_of(site, two)}
        await fill(sender, one, ["unseen"])
        await fill(sender, two, ["seen"])
        assert texts(await collect(consumer, 1)) == ["seen"]


async def test_pulling_pauses_at_the_limits(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteLimits", queues=1)
    await fill(sender, topic, (str(number) for number in range(60)))
    consumer = lite(
        site, site.new_group("LiteLimits"), pull_batch_size=5, pull_threshold_for_queue=10
    )
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: waiting(consumer) > 10, "the limit is reached")
        for _ in range(20):
            # Requests that are answered after any pull before them.
            assert await consumer.offset_for_timestamp(queue_of(site, topic), 0) == 0
        assert waiting(consumer) == 15
        assert texts(await collect(consumer, 60)) == [str(number) for number in range(60)]


def waiting(consumer: LitePullConsumer) -> int:
    """How many messages a consumer holds, as tools are told."""
    table = member_of(consumer).running_info(with_stacks=False).mq_table
    return sum(info.cached_msg_count for info in table.values())


async def test_states(site: Site) -> None:
    group = site.new_group("LiteStates")
    consumer = lite(site, group, instance_name="states")
    states = [consumer.state]
    with pytest.raises(NotRunningError, match="not running, please start it first"):
        await consumer.poll()
    await consumer.stop()
    states.append(consumer.state)
    twin = lite(site, group, instance_name="states")
    async with consumer:
        states.append(consumer.state)
        with pytest.raises(NotRunningError, match="maybe started once, RUNNING"):
            await consumer.start()
        with pytest.raises(ClientError, match="has been created before"):
            await twin.start()
        assert twin.state is ServiceState.CREATED
    await consumer.stop()
    states.append(consumer.state)
    assert states == [
        ServiceState.CREATED,
        ServiceState.CREATED,
        ServiceState.RUNNING,
        ServiceState.STOPPED,
    ]
    with pytest.raises(NotRunningError, match="maybe started once, SHUTDOWN_ALREADY"):
        await consumer.start()
    # The name is free again.
    await twin.start()
    await twin.stop()


async def test_brokers_before_5_get_plain_pull_requests(legacy_site: Site) -> None:
    topic = legacy_site.create_topic("LiteLegacy", queues=2)
    client = Client()
    sender = BrokerClient(client, legacy_site.broker.address)
    for number in range(2):
        await fill(sender, topic, [f"{number}"], queue_id=number, TAGS="TagA")
    await client.close()
    group = legacy_site.new_group("LiteLegacy")
    consumer = lite(legacy_site, group)
    consumer.subscribe(topic, "TagA")
    async with consumer:
        assert sorted(texts(await collect(consumer, 2))) == ["0", "1"]
        await consumer.commit()
    again = lite(legacy_site, group)
    again.subscribe(topic, "TagA")
    async with again:
        assert await again.poll(300) == []


async def test_a_broker_before_5_resets_offsets_through_the_consumer(legacy_site: Site) -> None:
    topic = legacy_site.create_topic("LiteLegacyReset", queues=1)
    group = legacy_site.new_group("LiteLegacyReset")
    client = Client()
    sender = BrokerClient(client, legacy_site.broker.address)
    await fill(sender, topic, "ab")
    consumer = lite(legacy_site, group)
    consumer.subscribe(topic)
    async with consumer:
        assert texts(await collect(consumer, 2)) == ["a", "b"]
        # Such a broker resets only groups that have an offset.
        await consumer.commit()
        fields = {"topic": topic, "group": group, "timestamp": 0, "isForce": "true"}
        check(await sender.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields))
        assert texts(await collect(consumer, 2)) == ["a", "b"]
    await client.close()


async def test_tools_see_queues_and_offsets(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteInfo", queues=1)
    group = site.new_group("LiteInfo")
    consumer = lite(site, group)
    consumer.subscribe(topic, "TagA")
    async with consumer:
        await fill(sender, topic, "ab", TAGS="TagA")
        await until(lambda: waiting(consumer) == 2, "both wait")
        fields = {"consumerGroup": group, "clientId": consumer.client_id, "jstackEnable": "true"}
        answer = check(await sender.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields))
        info = decode_body(answer.body, ConsumerRunningInfo)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        ((queue, held),) = info.mq_table.items()
        assert (queue.topic, held.cached_msg_count) == (topic, 2)
        assert [wanted.sub_string for wanted in info.subscription_set] == ["TagA"]
        assert "Thread" in (info.jstack or "")
        # A message cannot be given to a consumer that has no listener.
        (first, _) = await collect(consumer, 2)
        fields = {
            "consumerGroup": group,
            "clientId": consumer.client_id,
            "msgId": first.offset_message_id,
            "topic": topic,
        }
        answer = await sender.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
        assert answer.code != ResponseCode.SUCCESS


async def test_hooks_see_delivered_messages(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("LiteHooks", queues=1)
    seen: list[tuple[str, list[str], bool]] = []

    class Hook:
        def before_consume(self, context: ConsumeHookContext) -> None:
            seen.append(("before", texts(context.messages), context.is_success))
            raise ZeroDivisionError("a hook that fails changes nothing")

        def after_consume(self, context: ConsumeHookContext) -> None:
            seen.append(("after", texts(context.messages), context.is_success))

    await fill(sender, topic, "ab")
    consumer = lite(site, site.new_group("LiteHooks"), consume_hooks=[Hook()])
    consumer.subscribe(topic)
    async with consumer:
        assert texts(await collect(consumer, 2)) == ["a", "b"]
    assert seen == [("before", ["a", "b"], False), ("after", ["a", "b"], True)]


async def test_a_condition_that_no_broker_understands_is_refused_at_the_start(site: Site) -> None:
    topic = site.create_topic("LiteCondition", queues=1)
    consumer = lite(site, site.new_group("LiteCondition"))
    consumer.subscribe(topic, Sql("a >"))
    with pytest.raises(BrokerError) as refused:
        await consumer.start()
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert consumer.state is ServiceState.START_FAILED
