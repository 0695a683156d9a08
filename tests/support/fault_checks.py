"""Check consumers under load during faults: no message is lost, and each key's order is kept.

Messages are numbered within their keys and sent until they are acknowledged (``load.KeyedSender``),
so the messages that must arrive, and their order, are known. ``Deliveries`` records what one group
received. ``proxied_broker`` puts a fault proxy between the consumers and the broker; the sender
connects without it.
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
from tests.support.broker_client import BrokerClient
from tests.support.load import KeyedSender
from tests.support.name_server_client import NameServerClient
from tests.support.polling import until
from tests.support.proxy import FaultProxy

TOPIC: Final = "Faults"
QUEUES: Final = 4
TIMEOUT_SECONDS: Final = 60
FAULTS: Final = ("cut", "reset", "half open", "refused")
_PROGRESS_MESSAGES: Final = 50
_BACKLOG_MESSAGES: Final = 100


class Deliveries:
    """The messages that one group received. ``is_orderly``: each key's messages must be in order.

    It is a listener: call it with messages and a context.
    """

    def __init__(self, name: str, *, is_orderly: bool) -> None:
        self.name = name
        self.is_orderly = is_orderly
        self.numbers: dict[str, set[int]] = {}
        # How many times each queue offset was received.
        self.offsets: Counter[tuple[int, int]] = Counter()
        self.out_of_order: list[str] = []

    def __call__(self, messages: Iterable[ReceivedMessage], context: object = None) -> None:
        for message in messages:
            self.record(message.queue_id, message.queue_offset, message.body.decode())

    def record(self, queue_id: int, queue_offset: int, body: str) -> None:
        self.offsets[queue_id, queue_offset] += 1
        key, _, text = body.rpartition(":")
        numbers = self.numbers.setdefault(key, set())
        if self.is_orderly and int(text) > len(numbers):
            self.out_of_order.append(f"{body} was received before {key}:{len(numbers)}")
        numbers.add(int(text))

    @property
    def count(self) -> int:
        """The number of distinct messages received."""
        return sum(map(len, list(self.numbers.values())))

    @property
    def redelivered(self) -> int:
        """The number of redeliveries of messages received before."""
        return self.offsets.total() - len(self.offsets)

    def lost(self, sender: KeyedSender) -> int:
        """The number of messages acknowledged to the sender and not received."""
        return sum(
            len(set(range(count)) - self.numbers.get(key, set()))
            for key, count in sender.acknowledged.items()
        )

    def show(self, sender: KeyedSender) -> None:
        """Print the figures; pytest shows them with ``-rP``."""
        print(
            f"{self.name}: {sender.attempts} sent, {sender.count()} acknowledged, "
            f"{self.offsets.total()} received, {self.lost(sender)} lost, "
            f"{self.redelivered} redelivered, {len(self.out_of_order)} out of order"
        )


@contextlib.asynccontextmanager
async def running_sender(address: str) -> AsyncIterator[KeyedSender]:
    """Create the topic at a broker and send to it until the end of the block."""
    client = Client()
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    check(await BrokerClient(client, address).ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    sender = KeyedSender(client, address, TOPIC, queues=QUEUES)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await client.close()


async def wait_for_progress(groups: Sequence[Deliveries]) -> None:
    """Wait until every group has received clearly more messages than now."""
    before = [deliveries.count for deliveries in groups]
    await until(
        lambda: all(
            deliveries.count > count + _PROGRESS_MESSAGES
            for deliveries, count in zip(groups, before, strict=True)
        ),
        lambda: f"more than {before}: {[deliveries.count for deliveries in groups]}",
        TIMEOUT_SECONDS,
    )


async def wait_for_all(sender: KeyedSender, groups: Sequence[Deliveries]) -> None:
    """Stop the sender; wait until every group has received all messages; check the order."""
    sender.stop()
    await until(
        lambda: sender.count() > 0 and not any(deliveries.lost(sender) for deliveries in groups),
        lambda: f"all messages arrive; lost {[deliveries.lost(sender) for deliveries in groups]}",
        TIMEOUT_SECONDS,
    )
    for deliveries in groups:
        deliveries.show(sender)
        assert deliveries.out_of_order == []


class ProxiedBroker(NamedTuple):
    """The proxy that consumers connect to, and the sender, which connects to the broker."""

    proxy: FaultProxy
    sender: KeyedSender


@contextlib.asynccontextmanager
async def proxied_broker(cluster: Cluster) -> AsyncIterator[ProxiedBroker]:
    """Start a broker behind a fault proxy for consumers, and a sender without the proxy."""
    # The broker is started before the name server, so that only the proxy's address is registered.
    broker = cluster.start_broker()
    name_server = cluster.start_name_server()
    registrant = NameServerClient(int(name_server.address.rpartition(":")[2]))
    async with FaultProxy(broker.address) as proxy, running_sender(broker.address) as sender:
        try:
            # A registration with a single topic is only valid after a full one.
            topics = (TOPIC, "AnotherTopic")
            check(await registrant.register(*topics, name="broker-0", address=proxy.address))
            yield ProxiedBroker(proxy, sender)
        finally:
            await registrant.close()


async def inject_fault(broker: ProxiedBroker, fault: str) -> None:
    """Apply one of ``FAULTS``, and end it after the consumers have noticed it."""
    proxy, sender = broker
    if fault == "cut":
        await proxy.cut()
    elif fault == "reset":
        await proxy.reset()
    elif fault == "half open":
        before = proxy.connections_made
        proxy.half_open()
        # Requests time out, and the consumers reconnect.
        await until(
            lambda: proxy.connections_made > before, "another connection is made", TIMEOUT_SECONDS
        )
        proxy.heal()
    else:
        await proxy.refuse()
        await proxy.reset()
        behind = sender.count()
        await until(
            lambda: sender.count() > behind + _BACKLOG_MESSAGES,
            "consumers fall behind",
            TIMEOUT_SECONDS,
        )
        proxy.accept()
