"""Transactions: half messages, commit and rollback, and checks by the broker."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias

import pytest

import goddard
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.producer import Producer
from goddard.client.produce.transactions import TransactionProducer
from goddard.client.trace.tracer import TraceOptions
from goddard.client.values import ConsumeFrom, SendStatus, ServiceState, TransactionState
from goddard.errors import ConfigError
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import CheckTransactionRequest
from goddard.protocol.names import TRACE_TOPIC
from goddard.protocol.record import Host, Record
from goddard.testing.site import Site
from tests.support.fake_cluster import FakeCluster
from tests.support.members import session_of
from tests.support.polling import until
from tests.support.topic_reader import TopicReader

COMMIT, ROLLBACK, UNKNOWN = TransactionState

Answer: TypeAlias = TransactionState | Exception | None


class Ledger:
    """Decides by the body of the message; an exception as a decision is raised."""

    def __init__(
        self, executed: Mapping[bytes, Answer], checked: Mapping[bytes, list[Answer]] | None = None
    ) -> None:
        self._executed = executed
        self._checked = {body: list(answers) for body, answers in (checked or {}).items()}
        self.executions: list[tuple[Message, Any]] = []
        self.checks: list[ReceivedMessage] = []
        self.threads: set[str] = set()

    def execute(self, message: Message, argument: Any) -> TransactionState | None:
        self.executions.append((message, argument))
        self.threads.add(threading.current_thread().name)
        return _given(self._executed[message.body])

    def check(self, message: ReceivedMessage) -> TransactionState | None:
        self.checks.append(message)
        self.threads.add(threading.current_thread().name)
        answers = self._checked.get(message.body, [])
        return _given(answers.pop(0)) if answers else UNKNOWN

    def checked_bodies(self) -> set[bytes]:
        return {message.body for message in self.checks}


class OnLoop:
    """A ledger whose methods are coroutine functions."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def execute(self, message: Message, argument: Any) -> TransactionState | None:
        return self._ledger.execute(message, argument)

    async def check(self, message: ReceivedMessage) -> TransactionState | None:
        return self._ledger.check(message)


def _given(answer: Answer) -> TransactionState | None:
    if isinstance(answer, Exception):
        raise answer
    return answer


async def test_commit_and_rollback(site: Site) -> None:
    topic = site.create_topic("transactions")
    ledger = Ledger({b"kept": COMMIT, b"dropped": ROLLBACK, b"last": COMMIT})
    async with (
        TransactionProducer(
            site.new_group("senders"), ledger, name_servers=site.namesrv
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        messages = {
            body: Message(topic, body, tags="T", keys="k", properties={"own": "value"})
            for body in (b"kept", b"dropped", b"last")
        }
        results = {
            body: await producer.send_in_transaction(message, argument=body.decode())
            for body, message in messages.items()
        }
        assert [result.state for result in results.values()] == [COMMIT, ROLLBACK, COMMIT]
        assert {result.sent.status for result in results.values()} == {SendStatus.SEND_OK}
        received = {message.body: message for message in await reader.until(2)}
    assert received.keys() == {b"kept", b"last"}
    kept = received[b"kept"]
    assert kept.message_id == results[b"kept"].message_id == messages[b"kept"].transaction_id
    assert (kept.topic, kept.tags, kept.keys, kept.get("own")) == (topic, "T", ["k"], "value")
    assert [(each.body, argument) for each, argument in ledger.executions] == [
        (b"kept", "kept"),
        (b"dropped", "dropped"),
        (b"last", "last"),
    ]
    assert ledger.checks == []
    # Plain listeners may block, so they run in threads.
    assert threading.current_thread().name not in ledger.threads


@pytest.mark.parametrize("on_loop", [False, True], ids=["plain", "coroutines"])
async def test_broker_checks_undecided_transactions(site: Site, on_loop: bool) -> None:
    """Undecided halves are invisible until the producer answers the broker's check."""
    topic = site.create_topic("check-back")
    ledger = Ledger(
        {b"commit": UNKNOWN, b"rollback": None, b"raises": ValueError("no"), b"late": COMMIT},
        {b"commit": [COMMIT], b"rollback": [ROLLBACK], b"raises": [COMMIT]},
    )
    listener = OnLoop(ledger) if on_loop else ledger
    async with (
        TransactionProducer(
            site.new_group("senders"), listener, name_servers=site.namesrv
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        sent = {
            body: await producer.send_in_transaction(Message(topic, body))
            for body in (b"commit", b"rollback", b"raises")
        }
        assert {result.state for result in sent.values()} == {UNKNOWN}
        received = await reader.until_true(
            lambda messages: (
                {each.body for each in messages} == {b"commit", b"raises"}
                and ledger.checked_bodies() == {b"commit", b"rollback", b"raises"}
            )
        )
    assert {each.body: each.message_id for each in received} == {
        body: sent[body].message_id for body in (b"commit", b"raises")
    }
    assert ledger.checked_bodies() == {b"commit", b"rollback", b"raises"}
    for checked in ledger.checks:
        assert (checked.topic, checked.message_id) == (topic, sent[checked.body].message_id)
        assert checked.transaction_id == checked.message_id
    is_loop_thread = threading.current_thread().name in ledger.threads
    assert is_loop_thread == on_loop


async def test_undecided_check_is_repeated(site: Site) -> None:
    topic = site.create_topic("repeated")
    ledger = Ledger({b"open": UNKNOWN}, {b"open": [UNKNOWN, ValueError("not now"), COMMIT]})
    async with (
        TransactionProducer(
            site.new_group("senders"), ledger, name_servers=site.namesrv
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        await producer.send_in_transaction(Message(topic, b"open"))
        received = await reader.until(1)
    assert [each.body for each in received] == [b"open"]
    times = [each.get("TRANSACTION_CHECK_TIMES") for each in ledger.checks]
    assert times[:3] == ["1", "2", "3"]


async def test_another_producer_of_the_group_answers_checks(site: Site) -> None:
    """A producer stops between half and decision; another one of its group decides."""
    topic = site.create_topic("orphans")
    group = site.new_group("senders")
    first = TransactionProducer(group, Ledger({}), name_servers=site.namesrv, instance_name="first")
    async with first:
        half = await first.send_half(Message(topic, b"orphan"))
    ledger = Ledger({}, {b"orphan": [COMMIT]})
    async with (
        TransactionProducer(
            group, ledger, name_servers=site.namesrv, instance_name="second", topics=[topic]
        ),
        TopicReader(site.namesrv, topic) as reader,
    ):
        received = await reader.until(1)
    assert [(each.body, each.message_id) for each in received] == [(b"orphan", half.message_id)]


async def test_blocked_check_does_not_delay_stop(site: Site) -> None:
    topic = site.create_topic("hanging")
    group = site.new_group("senders")
    begun, released = threading.Event(), threading.Event()

    class Hanging(Ledger):
        def check(self, message: ReceivedMessage) -> TransactionState | None:
            begun.set()
            released.wait(60)
            return super().check(message)

    hanging = Hanging({b"open": UNKNOWN})
    producer = TransactionProducer(
        group, hanging, name_servers=site.namesrv, instance_name="hanging"
    )
    async with TopicReader(site.namesrv, topic) as reader:
        async with producer:
            await producer.send_in_transaction(Message(topic, b"open"))
            await reader.until_true(lambda _: begun.is_set())
            # Sends continue meanwhile.
            assert (await producer.send(Message(topic, b"plain"))).status is SendStatus.SEND_OK
        assert not hanging.checks
        ledger = Ledger({}, {b"open": [COMMIT]})
        async with TransactionProducer(
            group, ledger, name_servers=site.namesrv, instance_name="other", topics=[topic]
        ):
            received = await reader.until(2)
    released.set()
    assert {each.body for each in received} == {b"plain", b"open"}


async def test_blocked_execute_does_not_delay_stop(site: Site) -> None:
    topic = site.create_topic("hanging-work")
    begun, released = threading.Event(), threading.Event()

    class Hanging(Ledger):
        def execute(self, message: Message, argument: Any) -> TransactionState | None:
            begun.set()
            released.wait(60)
            return super().execute(message, argument)

    producer = TransactionProducer(
        site.new_group("senders"),
        Hanging({b"1": COMMIT, b"2": COMMIT}),
        name_servers=site.namesrv,
        execute_threads=1,
    )
    async with producer:
        # One call is blocked, the other has not started.
        sends = [
            asyncio.create_task(producer.send_in_transaction(Message(topic, body)))
            for body in (b"1", b"2")
        ]
        await asyncio.to_thread(begun.wait, 30)
    results = await asyncio.gather(*sends)
    released.set()
    assert [result.state for result in results] == [UNKNOWN] * 2


def test_transactions_of_a_blocking_producer(site: Site) -> None:
    """The same listener, or the local work in the calling thread."""
    topic = site.create_topic("threads")
    ledger = Ledger({b"kept": COMMIT, b"open": UNKNOWN}, {b"open": [COMMIT]})
    with goddard.TransactionProducer(
        site.new_group("senders"), ledger, name_servers=site.namesrv
    ) as producer:
        assert producer.send_in_transaction(Message(topic, b"kept")).state is COMMIT
        assert producer.send_in_transaction(Message(topic, b"open")).state is UNKNOWN
        mine = Message(topic, b"mine")
        producer.end_transaction(mine, producer.send_half(mine), COMMIT)
        with goddard.LitePullConsumer(
            site.new_group("readers"),
            name_servers=site.namesrv,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ) as consumer:
            consumer.subscribe(topic)
            received: set[bytes] = set()
            deadline = time.monotonic() + 30
            while len(received) < 3 and time.monotonic() < deadline:
                received |= {message.body for message in consumer.poll(timeout_ms=500)}
    assert received == {b"kept", b"open", b"mine"}


async def test_delay_of_a_half_message_is_ignored(site: Site) -> None:
    topic = site.create_topic("undelayed")
    async with (
        TransactionProducer(
            site.new_group("senders"), Ledger({b"now": COMMIT}), name_servers=site.namesrv
        ) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        await producer.send_in_transaction(Message(topic, b"now", delay_level=18))
        (message,) = await reader.until(1)
    assert message.delay_level == 0


def test_listener_without_a_method_is_refused() -> None:
    class Half:
        def execute(self, message: Message, argument: Any) -> TransactionState:
            return COMMIT

    listener: Any = Half()
    with pytest.raises(ConfigError, match="check"):
        TransactionProducer("senders", listener, name_servers="127.0.0.1:9876")


async def test_half_stored_during_stop_is_not_executed() -> None:
    release, executing = threading.Event(), threading.Event()
    executed: list[bytes] = []

    class Slow:
        def execute(self, message: Message, argument: Any) -> TransactionState:
            executed.append(message.body)
            executing.set()
            release.wait(60)
            return COMMIT

        def check(self, message: ReceivedMessage) -> TransactionState:
            return UNKNOWN

    answered = asyncio.Event()
    async with FakeCluster("a") as cluster:
        broker = cluster.broker("a")

        async def answer(request: RemotingCommand) -> RemotingCommand:
            if request.body == b"late":
                await answered.wait()
            return broker.store(request)

        broker.answer = answer
        producer = TransactionProducer("senders", Slow(), name_servers=cluster.namesrv)
        await producer.start()
        first = asyncio.create_task(producer.send_in_transaction(Message("T", b"first")))
        late = asyncio.create_task(producer.send_in_transaction(Message("T", b"late")))
        await until(lambda: executing.is_set() and len(broker.sends) == 2)
        stopping = asyncio.create_task(producer.stop())
        # Stop now waits a tenth of a second for the call that is running.
        await asyncio.sleep(0)
        assert producer.state is ServiceState.RUNNING
        answered.set()
        results = await asyncio.gather(first, late)
        await stopping
    release.set()
    assert [result.state for result in results] == [UNKNOWN, UNKNOWN]
    assert executed == [b"first"]


class Checker:
    """Commits what it is asked about, when ``may_answer`` is set."""

    def __init__(self) -> None:
        self.checks = 0
        self.may_answer = threading.Event()

    def execute(self, message: Message, argument: Any) -> TransactionState:
        return COMMIT

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.checks += 1
        self.may_answer.wait(60)
        return COMMIT


@contextlib.asynccontextmanager
async def starting(
    cluster: FakeCluster, listener: Checker, *, checks: int, **options: Any
) -> AsyncIterator[tuple[TransactionProducer, asyncio.Task[None]]]:
    """A producer that was asked to check halves while it is starting, and its start.

    The start ends when ``cluster.answer_route`` is None.
    """
    is_over = asyncio.Event()

    async def no_answer_yet(request: RemotingCommand) -> RemotingCommand:
        await is_over.wait()
        return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no topic")

    # In the same session as the producer that is starting.
    common: Any = {"name_servers": cluster.namesrv, "instance_name": "shared"}
    async with Producer("others", **common) as other:
        cluster.answer_route = no_answer_yet
        producer = TransactionProducer("senders", listener, topics=("Slow",), **common, **options)
        start = asyncio.create_task(producer.start())
        await until(lambda: "Slow" in cluster.route_requests)
        host = Host(bytes(4), 0)
        half = ReceivedMessage.from_record(Record("T", 0, 0, 0, 0, host, 0, host, b"x"), "a")
        header = CheckTransactionRequest(tran_state_table_offset=1, commit_log_offset=2)
        member = session_of(other).members.producers["senders"]
        for _ in range(checks):
            member.check_transaction(half, header, cluster.broker("a").address)
        await until(lambda: listener.checks == 1)
        try:
            yield producer, start
        finally:
            cluster.answer_route = None
            is_over.set()
            listener.may_answer.set()


async def test_failed_start_ends_the_checks_and_their_threads() -> None:
    listener = Checker()
    async with (
        FakeCluster("a") as cluster,
        starting(cluster, listener, checks=2) as (producer, start),
    ):
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert producer.state is ServiceState.START_FAILED
        listener.may_answer.set()
        await until(lambda: not check_threads(), seconds=10)
    assert listener.checks == 1


def check_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("goddard-check")]


async def test_checks_during_the_start_are_traced() -> None:
    listener = Checker()
    listener.may_answer.set()
    async with FakeCluster("a", topics=("T", TRACE_TOPIC)) as cluster:
        broker = cluster.broker("a")
        async with starting(cluster, listener, checks=1, trace=TraceOptions()) as (producer, start):
            await asyncio.wait_for(broker.asked[RequestCode.END_TRANSACTION].wait(), 60)
        await start
        await producer.stop()
        assert any(b"EndTransaction" in bytes(send.body) for send in broker.sends)
