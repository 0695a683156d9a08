"""Producers and consumers that write down what they see; at the end a reader of everything.

Simulated clusters and clusters of real processes run the same clients.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, Final, TypeAlias

from goddard.client import broker_api
from goddard.client.consume.pull import Puller
from goddard.client.consume.push import PushConsumer
from goddard.client.errors import InvalidMessageError, NoRouteError
from goddard.client.listeners.listener import ConsumeResult
from goddard.client.message import Message, ReceivedMessage
from goddard.client.options import SessionKeywords, session_options
from goddard.client.produce.producer import Producer
from goddard.client.produce.transactions import TransactionProducer
from goddard.client.session import Session
from goddard.client.values import (
    ConsumeFrom,
    MessageQueue,
    SendResult,
    SendStatus,
    TransactionState,
)
from goddard.environment import Environment
from goddard.errors import GoddardError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.ids import parse_offset_message_id
from tests.support.history.record import (
    Decision,
    Delivery,
    History,
    Outcome,
    Queue,
    Send,
    Stored,
)

PLAIN: Final = "Plain"
DELAYED: Final = "Delayed"
TRANSACTIONS: Final = "Transactions"
CLUSTERING: Final = "clustering"
ORDERLY: Final = "orderly"
TOPICS: Final = (PLAIN, DELAYED, TRANSACTIONS)
_DELAYS_SECONDS: Final = (1.0, 2.0, 4.0)
_QUEUES: Final = 2
_SEND_MS: Final = 1500
# Short, so that a run of a minute sees many rounds of each.
_INTERVALS: Final = {
    "poll_name_server_interval_ms": 1_000,
    "heartbeat_interval_ms": 1_000,
    "rebalance_interval_ms": 1_000,
    "persist_offsets_interval_ms": 500,
}
ClientMain: TypeAlias = Callable[[Environment], Coroutine[Any, Any, None]]


class Workload:
    """The clients of a cluster, by name. ``history`` has what they saw.

    ``options`` returns the options of a client with a name; ``note`` gets each thing that happens.
    """

    def __init__(
        self,
        seed: str,
        *,
        name_servers: Callable[[], str],
        options: Callable[[str], SessionKeywords],
        now: Callable[[], float],
        note: Callable[[str], None],
    ) -> None:
        self._random = Random(f"{seed} workload")
        self._name_servers = name_servers
        self._client_options = options
        self._now = now
        self._note = note
        self.history = History(
            groups={CLUSTERING: set(TOPICS), ORDERLY: {PLAIN}}, orderly_groups={ORDERLY}
        )
        self.clients: dict[str, ClientMain] = {
            "p1": self._produce_in_order,
            "p2": self._produce_anywhere,
            "p3": self._produce_transactions,
            "c1": self._consume_as("c1", CLUSTERING),
            "c2": self._consume_as("c2", CLUSTERING),
            "o1": self._consume_as("o1", ORDERLY),
            "o2": self._consume_as("o2", ORDERLY),
        }
        self.is_safety_over = False
        self._sent: dict[str, Send] = {}
        self._count = 0

    # Producing

    def _new_send(self, producer: str, topic: str) -> Send:
        self._count += 1
        send = Send(f"{producer}-{self._count}", producer, topic, self._now())
        self.history.sends.append(send)
        self._sent[send.value] = send
        return send

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.choice((0.0, 0.02, 0.1, 0.5)))

    def _ended(self, send: Send, result: SendResult) -> None:
        send.ended = self._now()
        queue = result.queue
        send.queue = Queue(queue.topic, queue.broker_name, queue.queue_id)
        send.offset = result.queue_offset
        host, _ = parse_offset_message_id(result.offset_message_id)
        send.stored_by = str(host)
        if result.status is SendStatus.SEND_OK:
            send.outcome = Outcome.ACKNOWLEDGED
        self._note(f"{send.value} {result.status.name} {send.queue} {send.offset}")

    def _failed(self, send: Send, error: GoddardError) -> None:
        send.ended = self._now()
        if isinstance(error, NoRouteError | InvalidMessageError):
            send.outcome = Outcome.REFUSED
        self._note(f"{send.value} {type(error).__name__}")

    def _options(self, name: str, environment: Environment) -> dict[str, Any]:
        return {
            "name_servers": self._name_servers(),
            **self._client_options(name),
            "environment": environment,
            **_INTERVALS,
        }

    async def _produce_in_order(self, environment: Environment) -> None:
        """One send after the other, each tried once, to a chosen queue."""
        producer = Producer("p1", **self._options("p1", environment))
        await _started(producer.start)
        while not self.is_safety_over:
            send = self._new_send("p1", PLAIN)
            message = Message(PLAIN, send.value.encode())
            try:
                result = await producer.send(
                    message, key=self._count % _QUEUES, timeout_ms=_SEND_MS
                )
            except GoddardError as error:
                self._failed(send, error)
                await asyncio.sleep(0.1)
            else:
                self._ended(send, result)
            await self._pause()

    async def _produce_anywhere(self, environment: Environment) -> None:
        """Several sends at a time, tried again where they fail; some of them delayed."""
        producer = Producer("p2", **self._options("p2", environment))
        await _started(producer.start)

        async def send_one() -> None:
            level = self._random.choice((0, 0, 0, 1, 2, 3))
            send = self._new_send("p2", DELAYED if level else PLAIN)
            send.attempts = 3
            if level:
                send.delay_seconds = _DELAYS_SECONDS[level - 1]
            message = Message(send.topic, send.value.encode(), delay_level=level)
            try:
                result = await producer.send(message, timeout_ms=_SEND_MS)
            except GoddardError as error:
                self._failed(send, error)
            else:
                self._ended(send, result)

        while not self.is_safety_over:
            count = self._random.choice((1, 1, 3, 10))
            await asyncio.gather(*(send_one() for _ in range(count)))
            await self._pause()

    async def _produce_transactions(self, environment: Environment) -> None:
        producer = TransactionProducer(
            "p3", _Decisions(self._sent), **self._options("p3", environment)
        )
        await _started(producer.start)
        while not self.is_safety_over:
            send = self._new_send("p3", TRANSACTIONS)
            send.is_transactional = True
            if self._random.random() < 0.3:
                send.decision = Decision.ROLLED_BACK
            message = Message(TRANSACTIONS, send.value.encode())
            try:
                result = await producer.send_in_transaction(message, self._random.random())
            except GoddardError as error:
                self._failed(send, error)
                await asyncio.sleep(0.1)
            else:
                self._ended(send, result.sent)
            await self._pause()
        await asyncio.Event().wait()  # stay for the broker's checks

    # Consuming

    def _consume_as(self, member: str, group: str) -> ClientMain:
        async def consume(environment: Environment) -> None:
            consumer = PushConsumer(
                group,
                listener=self._listener(member, group),
                orderly=group == ORDERLY,
                consume_from=ConsumeFrom.FIRST_OFFSET,
                suspend_queue_ms=100,
                **self._options(member, environment),
            )
            for topic in sorted(self.history.groups[group]):
                consumer.subscribe(topic)
            await _started(consumer.start)

        return consume

    def _listener(self, member: str, group: str) -> Callable[..., Awaitable[ConsumeResult]]:
        now, random = self._now, self._random

        async def listen(messages: list[ReceivedMessage], context: object) -> ConsumeResult:
            began = now()
            await asyncio.sleep(random.choice((0.0, 0.001, 0.01)))
            is_success = self.is_safety_over or random.random() > 0.03
            for message in messages:
                queue = Queue(*message.queue)
                value = message.body.decode()
                self.history.deliveries.append(
                    Delivery(
                        group,
                        member,
                        queue,
                        message.queue_offset,
                        value,
                        began,
                        now(),
                        is_success,
                    )
                )
                self._note(f"{member} {queue} {message.queue_offset} {value}")
            return ConsumeResult.SUCCESS if is_success else ConsumeResult.RECONSUME_LATER

        return listen

    def is_consumed(self) -> bool:
        """Whether each group has consumed what must be there, and what it may not skip."""
        history = self.history
        wanted = {
            (group, send.value)
            for send in history.sends
            for group, topics in history.groups.items()
            if send.topic in topics
            and send.decision is Decision.COMMITTED
            and history.is_promised(send)
            and send.queue is not None
            and not history.lost_disk(send.queue.broker)
        }
        consumed = {
            (delivery.group, delivery.value)
            for delivery in self.history.deliveries
            if delivery.is_success
        }
        return wanted <= consumed

    # Reading everything

    async def read_everything(self, environment: Environment) -> None:
        """Fill in what is stored; tried again for a while, for brokers that just came back."""
        options = session_options(self._name_servers(), self._client_options("reader"))
        self.history.stored.clear()
        session = Session(options, environment=environment)
        await session.start()
        try:
            puller = Puller(session, "reader")
            for topic in TOPICS:
                try:
                    queues = await session.subscribe_queues(topic, refresh=True)
                except NoRouteError:
                    continue  # nothing was ever sent to it
                for queue in sorted(queues):
                    await self._read_queue(session, puller, queue)
        finally:
            await session.stop()

    async def _read_queue(self, session: Session, puller: Puller, queue: MessageQueue) -> None:
        history = self.history
        key = Queue(queue.topic, queue.broker_name, queue.queue_id)
        address, _ = await session.locate(queue)
        end = await broker_api.max_offset(session, address, queue, timeout_ms=3_000)
        history.max_offsets[key] = end
        subscription = SubscriptionData(topic=queue.topic, sub_string="*")
        offset = await broker_api.min_offset(session, address, queue, timeout_ms=3_000)
        while offset < end:
            result = await puller.pull(
                queue,
                offset,
                subscription,
                max_messages=32,
                suspend_ms=0,
                timeout_ms=5_000,
                carries_subscription=True,
            )
            for message in result.messages:
                history.stored.append(Stored(key, message.queue_offset, message.body.decode()))
            if result.next_offset <= offset:
                break
            offset = result.next_offset
        for group, topics in history.groups.items():
            if queue.topic in topics:
                committed = await broker_api.query_consumer_offset(
                    session, address, group, queue, timeout_ms=3_000
                )
                if committed is not None:
                    history.committed_offsets[group, key] = committed


class _Decisions:
    """The application's side of transactions: what it decided is known from the start."""

    def __init__(self, sent: dict[str, Send]) -> None:
        self._sent = sent

    async def execute(self, message: Message, argument: float) -> TransactionState:
        if argument < 0.3:
            return TransactionState.UNKNOWN
        return self._state(message.body)

    async def check(self, message: ReceivedMessage) -> TransactionState:
        return self._state(message.body)

    def _state(self, body: bytes) -> TransactionState:
        send = self._sent[body.decode()]
        if send.decision is Decision.COMMITTED:
            return TransactionState.COMMIT
        return TransactionState.ROLLBACK


async def _started(start: Callable[[], Awaitable[None]]) -> None:
    await start()
