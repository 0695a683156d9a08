"""A lite consumer whose broker dies, whose link fails, whose group changes: nothing is lost.

Each message is numbered within its key and sent until it is acknowledged, so that what must arrive
is known, and in which order. A consumer that goes on reads no place of a queue twice; one that is
started again begins where the last commit was.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from goddard.client.lite import LitePullConsumer
from goddard.client.message import ReceivedMessage
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.record import Host, Record, encode_record
from goddard.protocol.responses import check
from goddard.testing.cluster import Cluster
from goddard.testing.dialogue import Dialogue
from goddard.testing.fakecluster import FakeCluster
from goddard.testing.load import KeyedSender
from goddard.testing.proxy import FaultProxy
from goddard.testing.registrant import Registrant
from goddard.transport.client import Client
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions

_logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 60
QUEUES = 4
TOPIC = "Faults"
QUICK: dict[str, Any] = {
    "rebalance_interval_ms": 100,
    "poll_name_server_interval_ms": 200,
    "persist_offsets_interval_ms": 100,
    "heartbeat_interval_ms": 500,
    "auto_commit_interval_ms": 1,
    "pull_error_delay_ms": 100,
    "broker_suspend_ms": 500,
    "pull_timeout_ms": 1_500,
    "api_timeout_ms": 1_500,
    "consume_from": ConsumeFrom.FIRST_OFFSET,
}


class Account:
    """What came, and in which order."""

    def __init__(self) -> None:
        self.places: Counter[tuple[MessageQueue, int]] = Counter()
        self.next: dict[str, int] = defaultdict(int)
        self.faults: list[str] = []

    def add(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self.places[message.queue, message.queue_offset] += 1
            key, _, text = message.body.decode().rpartition(":")
            number = int(text)
            if number > self.next[key]:
                self.faults.append(f"{key}: {number} came before {self.next[key]}")
            self.next[key] = max(self.next[key], number + 1)

    @property
    def count(self) -> int:
        return sum(self.next.values())

    @property
    def again(self) -> int:
        """How many times a place was read that had been read before."""
        return self.places.total() - len(self.places)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def keep_polling(consumer: LitePullConsumer, account: Account) -> None:
    while True:
        account.add(await consumer.poll(200))


@contextlib.asynccontextmanager
async def polling(consumer: LitePullConsumer, account: Account) -> AsyncIterator[None]:
    """The consumer runs, and a task polls it."""
    async with consumer:
        task = asyncio.create_task(keep_polling(consumer, account))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.result()


@contextlib.asynccontextmanager
async def sending(address: str) -> AsyncIterator[KeyedSender]:
    client = Client()
    await create_topic(client, address)
    sender = KeyedSender(client, address, TOPIC, queues=QUEUES)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await client.close()


async def create_topic(client: Client, address: str) -> None:
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    check(await Dialogue(client, address).ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))


def lite(namesrv: str, group: str, **options: Any) -> LitePullConsumer:
    consumer = LitePullConsumer(group, name_servers=namesrv, **QUICK | options)
    consumer.subscribe(TOPIC)
    return consumer


async def goes_on(account: Account) -> None:
    """Until there is clearly more than now."""
    before = account.count
    await until(lambda: account.count > before + 50, "messages go on coming")


async def settle(sender: KeyedSender, account: Account) -> None:
    """Until everything that was acknowledged has come."""
    sender.stop()
    await until(lambda: account.count >= sender.count() > 0, "everything has come")
    await until(
        lambda: all(account.next[key] >= count for key, count in sender.acknowledged.items()),
        "everything of each key has come",
    )
    _logger.info(
        "attempts %d, acknowledged %d, received %d, lost %d, read again %d, out of order %d",
        sender.attempts,
        sender.count(),
        account.places.total(),
        sum(max(0, n - account.next[key]) for key, n in sender.acknowledged.items()),
        account.again,
        len(account.faults),
    )
    assert account.faults == []


async def test_the_broker_is_killed_and_comes_back(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        account = Account()
        async with sending(broker.address) as sender:
            async with polling(lite(cluster.namesrv, "Killed"), account):
                for _ in range(2):
                    await goes_on(account)
                    broker.kill()
                    await asyncio.to_thread(broker.start)
                await goes_on(account)
                await settle(sender, account)
            assert account.again == 0


@pytest.mark.parametrize("fault", ["cut", "reset", "half open", "refused"])
async def test_the_link_fails_and_heals(tmp_path: Path, fault: str) -> None:
    with Cluster(tmp_path) as cluster:
        # Clients are told of the proxy: the broker itself knows no name server.
        broker = cluster.start_broker()
        name_server = cluster.start_name_server()
        registrant = Registrant(int(name_server.address.rpartition(":")[2]))
        account = Account()
        async with (
            FaultProxy(broker.address) as proxy,
            sending(broker.address) as sender,
            contextlib.AsyncExitStack() as stack,
        ):
            stack.push_async_callback(registrant.close)
            # A registration of a single topic would have to follow another.
            check(
                await registrant.register(
                    TOPIC, "AnotherTopic", name="broker-0", address=proxy.address
                )
            )
            await stack.enter_async_context(polling(lite(cluster.namesrv, "Links"), account))
            await goes_on(account)
            if fault == "cut":
                await proxy.cut()
            elif fault == "reset":
                await proxy.reset()
            elif fault == "half open":
                made = proxy.connections_made
                proxy.half_open()
                # Requests run into their time, and the connection is given up.
                await until(lambda: proxy.connections_made > made, "another connection is made")
                proxy.heal()
            else:
                await proxy.refuse()
                await proxy.reset()
                behind = account.count
                await until(lambda: sender.count() > behind + 100, "the consumer falls behind")
                proxy.accept()
            await goes_on(account)
            await settle(sender, account)
            assert account.again == 0


async def test_the_name_server_is_gone_for_a_while(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,), (name_server,) = cluster.brokers, cluster.name_servers
        account = Account()
        async with (
            sending(broker.address) as sender,
            polling(lite(cluster.namesrv, "Nameless"), account),
        ):
            await goes_on(account)
            name_server.kill()
            await goes_on(account)
            await asyncio.to_thread(name_server.start)
            await goes_on(account)
            await settle(sender, account)
            assert account.again == 0


async def test_consumers_come_and_go(tmp_path: Path) -> None:
    """What a member had not committed comes again to whoever has the queue next."""
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        account = Account()
        async with sending(broker.address) as sender:
            async with polling(lite(cluster.namesrv, "Members"), account):
                await goes_on(account)
                second = lite(cluster.namesrv, "Members")
                async with polling(second, account):
                    await until(lambda: len(second.assignment()) == 2, "the queues are shared")
                    await goes_on(account)
                await goes_on(account)
            async with polling(lite(cluster.namesrv, "Members"), account):
                await goes_on(account)
                await settle(sender, account)


async def test_stopping_while_the_broker_is_dead_takes_no_time_to_speak_of(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        account = Account()
        consumer = lite(cluster.namesrv, "Orphan")
        async with sending(broker.address), polling(consumer, account):
            await goes_on(account)
            broker.kill()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await consumer.stop()


async def test_a_broker_that_answers_garbage() -> None:
    """Each answer that makes no sense is asked for again; the consumer neither ends nor races."""
    queue = MessageQueue("T", "broker-g", 0)
    place = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "9"}
    fine = Record(
        topic="T",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=1,
        store_host=Host.parse("127.0.0.1:1"),
        born_timestamp_ms=1,
        born_host=Host.parse("127.0.0.1:1"),
        body=b"key:0",
    )
    next_one = place | {"nextBeginOffset": "1"}
    answers = [
        (ResponseCode.SUCCESS, next_one, b"no record"),
        (ResponseCode.SUCCESS, next_one, encode_record(fine)[:-1]),
        (ResponseCode.SUCCESS, {}, b""),
        (ResponseCode.SUCCESS, place | {"nextBeginOffset": "-7"}, b""),
        (ResponseCode.PULL_NOT_FOUND, place | {"nextBeginOffset": "one"}, b""),
        (ResponseCode.SYSTEM_ERROR, {}, b""),
        (ResponseCode.FLOW_CONTROL, {}, b""),
        (12345, {}, b""),
        # Nothing new, without having waited for it; then something after all.
        (ResponseCode.PULL_NOT_FOUND, place | {"nextBeginOffset": "0"}, b""),
        (ResponseCode.SUCCESS, next_one, encode_record(fine)),
    ]
    asked: list[int] = []

    def pull(request: RemotingCommand, _: Connection) -> RemotingCommand:
        asked.append(int(request.fields["queueOffset"]))
        code, fields, body = (
            answers.pop(0)
            if answers
            else (ResponseCode.PULL_NOT_FOUND, place | {"nextBeginOffset": "1"}, b"")
        )
        return request.reply(code, "garbage", dict(fields), body)

    handlers = Handlers()
    handlers.register(RequestCode.LITE_PULL_MESSAGE, pull)
    handlers.register(
        RequestCode.QUERY_CONSUMER_OFFSET,
        lambda request, _: request.reply(ext_fields={"offset": "0"}),
    )
    for code in (
        RequestCode.HEART_BEAT,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UNREGISTER_CLIENT,
    ):
        handlers.register(code, lambda request, _: request.reply())
    account = Account()
    async with Server(ServerOptions(), handlers) as broker, FakeCluster(queues=1) as cluster:
        cluster.elsewhere["broker-g"] = f"127.0.0.1:{broker.port}"
        consumer = LitePullConsumer(
            "Garbage", name_servers=cluster.namesrv, **QUICK | {"pull_error_delay_ms": 10}
        )
        consumer.assign([queue])
        async with polling(consumer, account):
            await until(lambda: account.count == 1, "the one good message comes")
            await until(lambda: len(asked) > 12, "pulling goes on")
    assert account.places == {(queue, 0): 1}
    assert asked[:10] == [0] * 10
    assert set(asked[10:]) == {1}
