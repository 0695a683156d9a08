"""Consumers under load while something fails: what was sent, what came, and in which order.

Messages are numbered within their keys and sent until they are acknowledged (``load.KeyedSender``),
so that what must arrive is known, and in which order. An ``Account`` notes what did. A link that
fails is that of the consumers alone: ``linked`` puts a proxy between them and the broker.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, NamedTuple

from goddard.client.message import ReceivedMessage
from goddard.protocol.codes import RequestCode
from goddard.protocol.responses import check
from goddard.testing.cluster import Cluster
from goddard.transport.client import Client
from tests.support.dialogue import Dialogue
from tests.support.load import KeyedSender
from tests.support.polling import until
from tests.support.proxy import FaultProxy
from tests.support.registrant import Registrant

TOPIC: Final = "Faults"
QUEUES: Final = 4
TIMEOUT_SECONDS: Final = 60
FAULTS: Final = ("cut", "reset", "half open", "refused")
_CLEARLY_MORE: Final = 50
_BEHIND: Final = 100


class Account:
    """What came to one group. ``is_orderly``: each key's messages have to come in order.

    Called with messages and a context, it is a listener.
    """

    def __init__(self, name: str, *, is_orderly: bool) -> None:
        self.name = name
        self.is_orderly = is_orderly
        self.numbers: dict[str, set[int]] = {}
        # How many times each place of a queue was read.
        self.places: Counter[tuple[int, int]] = Counter()
        self.disorder: list[str] = []

    def __call__(self, messages: Iterable[ReceivedMessage], context: object = None) -> None:
        for message in messages:
            self.note(message.queue_id, message.queue_offset, message.body.decode())

    def note(self, queue_id: int, queue_offset: int, body: str) -> None:
        self.places[queue_id, queue_offset] += 1
        key, _, text = body.rpartition(":")
        numbers = self.numbers.setdefault(key, set())
        if self.is_orderly and int(text) > len(numbers):
            self.disorder.append(f"{body} came before {key}:{len(numbers)}")
        numbers.add(int(text))

    @property
    def count(self) -> int:
        """Messages that came, each counted once."""
        return sum(map(len, list(self.numbers.values())))

    @property
    def again(self) -> int:
        """How many times a place was read that had been read before."""
        return self.places.total() - len(self.places)

    def lost(self, sender: KeyedSender) -> int:
        """Messages that were acknowledged and have not come."""
        return sum(
            len(set(range(count)) - self.numbers.get(key, set()))
            for key, count in sender.acknowledged.items()
        )

    def show(self, sender: KeyedSender) -> None:
        """Print the figures; pytest shows them with ``-rP``."""
        print(
            f"{self.name}: {sender.attempts} sent, {sender.count()} acknowledged, "
            f"{self.places.total()} received, {self.lost(sender)} lost, "
            f"{self.again} delivered again, {len(self.disorder)} out of order"
        )


@contextlib.asynccontextmanager
async def sending(address: str) -> AsyncIterator[KeyedSender]:
    """Messages are sent to the broker at an address, which gets the topic for it."""
    client = Client()
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    check(await Dialogue(client, address).ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    sender = KeyedSender(client, address, TOPIC, queues=QUEUES)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await client.close()


async def go_on(accounts: Sequence[Account]) -> None:
    """Until clearly more has come than now, everywhere."""
    before = [account.count for account in accounts]
    await until(
        lambda: all(
            account.count > count + _CLEARLY_MORE
            for account, count in zip(accounts, before, strict=True)
        ),
        lambda: f"more than {before}: {[account.count for account in accounts]}",
        TIMEOUT_SECONDS,
    )


async def settle(sender: KeyedSender, accounts: Sequence[Account]) -> None:
    """Until everything that was acknowledged has come, everywhere and in order."""
    sender.stop()
    await until(
        lambda: sender.count() > 0 and not any(account.lost(sender) for account in accounts),
        lambda: f"everything has come; lost {[account.lost(sender) for account in accounts]}",
        TIMEOUT_SECONDS,
    )
    for account in accounts:
        account.show(sender)
        assert account.disorder == []


class Link(NamedTuple):
    """A proxy that consumers take for the broker, and who sends to the broker itself."""

    proxy: FaultProxy
    sender: KeyedSender


@contextlib.asynccontextmanager
async def linked(cluster: Cluster) -> AsyncIterator[Link]:
    """Start a broker that its consumers reach through a proxy, and its sender without it."""
    # The name server is told of the proxy: the broker itself, started before, knows none.
    broker = cluster.start_broker()
    name_server = cluster.start_name_server()
    registrant = Registrant(int(name_server.address.rpartition(":")[2]))
    async with FaultProxy(broker.address) as proxy, sending(broker.address) as sender:
        try:
            # A registration of a single topic would have to follow another.
            topics = (TOPIC, "AnotherTopic")
            check(await registrant.register(*topics, name="broker-0", address=proxy.address))
            yield Link(proxy, sender)
        finally:
            await registrant.close()


async def fail_and_heal(link: Link, fault: str) -> None:
    """One of ``FAULTS``, for as long as it takes to be noticed."""
    proxy, sender = link
    if fault == "cut":
        await proxy.cut()
    elif fault == "reset":
        await proxy.reset()
    elif fault == "half open":
        made = proxy.connections_made
        proxy.half_open()
        # Requests run into their time, and the connections are given up.
        await until(
            lambda: proxy.connections_made > made, "another connection is made", TIMEOUT_SECONDS
        )
        proxy.heal()
    else:
        await proxy.refuse()
        await proxy.reset()
        behind = sender.count()
        await until(
            lambda: sender.count() > behind + _BEHIND, "consumers fall behind", TIMEOUT_SECONDS
        )
        proxy.accept()
