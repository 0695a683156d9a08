"""The blocking clients with a real cluster: one thread, many threads, interrupts, forks."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

from goddard import (
    Admin,
    ConsumeContext,
    ConsumeFrom,
    InvalidMessageError,
    LitePullConsumer,
    Message,
    NoRouteError,
    NotRunningError,
    OrderlyContext,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RequestReplyTimeoutError,
    SendResult,
    SendStatus,
    ServiceState,
    Tags,
    TransactionProducer,
    TransactionState,
)
from goddard.testing.process import wait_until
from goddard.testing.site import Site

WAIT_SECONDS = 60
FIRST = ConsumeFrom.FIRST_OFFSET


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    left = [item.name for item in threading.enumerate() if item.name.startswith("goddard")]
    assert left == []


@pytest.fixture
def producer(site: Site) -> Iterator[Producer]:
    with Producer(site.new_group("Blocking"), name_servers=site.namesrv) as producer:
        yield producer


def read(site: Site, topic: str, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    consumer = LitePullConsumer(
        site.new_group("Reader"), name_servers=site.namesrv, consume_from=FIRST
    )
    consumer.subscribe(topic)
    with consumer:
        for message in consumer:
            found.append(message)
            if len(found) == count:
                break
    return found


class TestProducer:
    def test_every_way_to_send(self, site: Site, producer: Producer) -> None:
        topic = site.create_topic("BlockingSends")
        result = producer.send(Message(topic, b"sync", tags="a", keys="k"))
        assert result.status is SendStatus.SEND_OK
        assert producer.send_async(Message(topic, b"async")).result(WAIT_SECONDS).queue_offset >= 0
        producer.send_oneway(Message(topic, b"oneway"))
        results = producer.send_batch([Message(topic, b"batch-%d" % n) for n in range(3)])
        assert len(results) == 3
        queue = producer.publish_queues(topic)[2]
        assert producer.send(Message(topic, b"there"), queue=queue).queue == queue

        bodies = sorted(message.body for message in read(site, topic, 7))
        batch = [b"batch-0", b"batch-1", b"batch-2"]
        assert bodies == [b"async", *batch, b"oneway", b"sync", b"there"]

    def test_many_threads_share_one(self, site: Site, producer: Producer) -> None:
        topic = site.create_topic("BlockingThreads")
        sent: list[str] = []

        def work(name: int) -> None:
            for number in range(25):
                message = Message(topic, b"%d/%d" % (name, number))
                sent.append(producer.send(message, timeout_ms=20_000).message_id)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert len(set(sent)) == 200
        assert {message.message_id for message in read(site, topic, 200)} == set(sent)

    def test_hundreds_of_sends_are_pending_together(self, site: Site, producer: Producer) -> None:
        """Their order is not checked: RocketMQ's broker stores messages in several threads."""
        topic = site.create_topic("BlockingPipeline", queues=1)
        futures = [producer.send_async(Message(topic, b"%d" % number)) for number in range(500)]
        assert not wait(futures, WAIT_SECONDS).not_done
        assert sorted(future.result().queue_offset for future in futures) == list(range(500))

    def test_callbacks_have_results_and_errors_and_may_send(
        self, site: Site, producer: Producer
    ) -> None:
        topic = site.create_topic("BlockingCallbacks")
        seen: list[object] = []
        done = threading.Event()

        def failed(future: Future[SendResult]) -> None:
            seen.append(type(future.exception()))
            done.set()

        def succeeded(future: Future[SendResult]) -> None:
            seen.append(producer.send(Message(topic, b"from the callback")).status)
            producer.send_async(Message(topic, b""), callback=failed)

        producer.send_async(Message(topic, b"first"), callback=succeeded)
        assert done.wait(WAIT_SECONDS)
        assert seen == [SendStatus.SEND_OK, InvalidMessageError]

    def test_pending_sends_end_before_the_stop(self, site: Site) -> None:
        topic = site.create_topic("BlockingEnd")
        with Producer(site.new_group("Ending"), name_servers=site.namesrv) as producer:
            futures = [producer.send_async(Message(topic, b"%d" % n)) for n in range(300)]
        assert {future.result(0).status for future in futures} == {SendStatus.SEND_OK}
        with pytest.raises(NotRunningError, match="SHUTDOWN_ALREADY"):
            producer.send(Message(topic, b"late"))

    def test_an_interrupt_ends_a_request_at_once(self, site: Site, producer: Producer) -> None:
        """Nobody answers the request; without the interrupt it would wait for a minute."""
        topic = site.create_topic("BlockingInterrupt")
        producer.send(Message(topic, b"there is a route"))

        def interrupt() -> None:
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.2, interrupt)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            producer.request(Message(topic, b"?"), timeout_ms=60_000)
        timer.join(WAIT_SECONDS)
        assert producer.send(Message(topic, b"goes on")).status is SendStatus.SEND_OK

    def test_errors_reach_the_caller(self, site: Site, producer: Producer) -> None:
        topic = site.create_topic("BlockingErrors")
        with pytest.raises(RequestReplyTimeoutError, match="wait reply message timeout, 300 ms"):
            producer.request(Message(topic, b"?"), timeout_ms=300)
        with pytest.raises(InvalidMessageError, match="body"):
            producer.send(Message(topic, b""))


class TestConsumers:
    def test_push_with_tags(self, site: Site, producer: Producer) -> None:
        topic = site.create_topic("BlockingPush")
        for number in range(40):
            producer.send(Message(topic, b"%d" % number, tags="even" if number % 2 == 0 else "odd"))
        seen: Counter[bytes] = Counter()
        threads: set[str] = set()

        def receive(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
            seen.update(message.body for message in messages)
            threads.add(threading.current_thread().name)

        consumer = PushConsumer(
            site.new_group("BlockingPush"),
            name_servers=site.namesrv,
            listener=receive,
            consume_from=FIRST,
        )
        consumer.subscribe(topic, Tags("even"))
        with consumer:
            wait_until(lambda: len(seen) == 20, WAIT_SECONDS, "all even messages")
            assert {queue.topic for queue in consumer.assigned_queues()} >= {topic}
        assert seen == {b"%d" % number: 1 for number in range(0, 40, 2)}
        assert "goddard-client" not in threads

    def test_push_in_order(self, site: Site, producer: Producer) -> None:
        topic = site.create_topic("BlockingOrderly")
        for number in range(30):
            producer.send(Message(topic, b"%d" % number), key=number % 3)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        consumer = PushConsumer(
            site.new_group("BlockingOrderly"),
            name_servers=site.namesrv,
            orderly=True,
            consume_from=FIRST,
        )
        consumer.subscribe(topic)

        @consumer.listen
        def receive(messages: list[ReceivedMessage], context: OrderlyContext) -> None:
            for message in messages:
                seen[int(message.body) % 3].append(int(message.body))

        with consumer:
            wait_until(
                lambda: sum(map(len, seen.values())) == 30, WAIT_SECONDS, "all ordered messages"
            )
        assert seen == {key: list(range(key, 30, 3)) for key in range(3)}

    def test_lite_pull(self, site: Site, producer: Producer) -> None:
        topic = site.create_topic("BlockingLite", queues=1)
        for number in range(5):
            producer.send(Message(topic, b"%d" % number))
        group = site.new_group("BlockingLite")
        with LitePullConsumer(group, name_servers=site.namesrv, auto_commit=False) as consumer:
            (queue,) = producer.publish_queues(topic)
            consumer.assign([queue])
            consumer.seek_to_begin(queue)
            found: list[bytes] = []
            while len(found) < 5:
                found += [message.body for message in consumer.poll(timeout_ms=10_000)]
            assert found == [b"0", b"1", b"2", b"3", b"4"]
            consumer.commit()
            assert consumer.committed(queue) == 5
            consumer.seek(queue, 3)
            assert next(consumer).body == b"3"

    def test_the_iteration_ends_when_the_consumer_is_stopped(self, site: Site) -> None:
        consumer = LitePullConsumer(site.new_group("BlockingIteration"), name_servers=site.namesrv)
        consumer.subscribe(site.create_topic("BlockingIteration"))
        consumer.start()
        stopper = threading.Timer(0.2, consumer.stop)
        stopper.start()
        assert list(consumer) == []
        stopper.join(WAIT_SECONDS)
        assert list(consumer) == []


class TestStoppingFromInside:
    def test_a_listener_may_stop_its_consumer(self, site: Site, producer: Producer) -> None:
        topic = site.create_topic("BlockingSelfStop")
        producer.send(Message(topic, b"the last one"))
        stopped = threading.Event()
        consumer = PushConsumer(
            site.new_group("SelfStop"), name_servers=site.namesrv, consume_from=FIRST
        )
        consumer.subscribe(topic)

        @consumer.listen
        def stop(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
            consumer.stop()
            stopped.set()

        consumer.start()
        assert stopped.wait(WAIT_SECONDS)
        assert consumer.state is ServiceState.STOPPED

    def test_a_callback_may_stop_its_producer(self, site: Site) -> None:
        topic = site.create_topic("BlockingCallbackStop")
        stopped = threading.Event()
        producer = Producer(site.new_group("CallbackStop"), name_servers=site.namesrv)

        def stop(future: Future[SendResult]) -> None:
            producer.stop()
            stopped.set()

        producer.start()
        producer.send_async(Message(topic, b"the last one"), callback=stop)
        assert stopped.wait(WAIT_SECONDS)
        # The callback thread ends shortly after the callback.
        wait_until(
            lambda: "goddard-callbacks" not in {item.name for item in threading.enumerate()},
            WAIT_SECONDS,
            "the end of the callback's thread",
        )


class Ledger:
    def __init__(self) -> None:
        self.checked = threading.Event()

    def execute(self, message: Message, argument: Any) -> TransactionState:
        assert isinstance(argument, TransactionState)
        return argument

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.checked.set()
        return TransactionState.COMMIT


def test_transactions(site: Site) -> None:
    topic = site.create_topic("BlockingTransactions")
    ledger = Ledger()
    group = site.new_group("BlockingTransactions")
    with TransactionProducer(group, ledger, name_servers=site.namesrv) as producer:
        for state in TransactionState:
            result = producer.send_in_transaction(Message(topic, state.name.encode()), state)
            assert result.state is state
        assert ledger.checked.wait(WAIT_SECONDS)
        bodies = {message.body for message in read(site, topic, 2)}
    assert bodies == {b"COMMIT", b"UNKNOWN"}


def test_administration(site: Site) -> None:
    topic = site.create_topic("BlockingAdmin")
    with Admin(site.namesrv) as admin:
        assert topic in admin.topics()
        assert len(admin.topic_queues(topic)) == 4
        with pytest.raises(NoRouteError):
            admin.topic_route("NoSuchTopicAnywhere")


FORKING = """
import os
import sys
from goddard import ForkedError, Message, Producer

topic, name_servers = sys.argv[1:]
producer = Producer("forking", name_servers=name_servers)
producer.start()
producer.send(Message(topic, b"parent"))
child = os.fork()
if child == 0:
    for attempt in (lambda: producer.send(Message(topic, b"child")),
                    lambda: producer.send_async(Message(topic, b"child"))):
        try:
            attempt()
        except ForkedError as error:
            print(error, flush=True)
    with Producer("forked", name_servers=name_servers) as own:
        own.send(Message(topic, b"child"))
    # As at the end of a with block around the fork: only the parent stops the producer.
    producer.stop()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
producer.send(Message(topic, b"parent again"))
# Not stopped here: the end of the process stops it.
"""


def test_a_fork_is_refused_the_parents_producer(site: Site) -> None:
    topic = site.create_topic("BlockingFork")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, topic, site.namesrv],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("create clients after the fork") == 2
    bodies = sorted(message.body for message in read(site, topic, 3))
    assert bodies == [b"child", b"parent", b"parent again"]


RUNNING_AT_EXIT = """
import sys
import threading
from goddard import ConsumeFrom, PushConsumer

topic, group, name_servers = sys.argv[1:]
received = threading.Semaphore(0)
consumer = PushConsumer(
    group,
    name_servers=name_servers,
    listener=lambda messages, context: received.release(),
    consume_from=ConsumeFrom.FIRST_OFFSET,
)
consumer.subscribe(topic)
consumer.start()
for _ in range(3):
    assert received.acquire(timeout=60)
# The program ends while the consumer runs.
"""


def test_consumer_running_at_exit_keeps_its_offsets(site: Site, producer: Producer) -> None:
    topic = site.create_topic("BlockingForgotten", queues=1)
    group = site.new_group("Forgotten")
    for number in range(3):
        producer.send(Message(topic, b"%d" % number))
    done = subprocess.run(
        [sys.executable, "-c", RUNNING_AT_EXIT, topic, group, site.namesrv],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (queue,) = producer.publish_queues(topic)
    with Admin(site.namesrv) as admin:
        # Messages that the listener had at the end may be delivered again.
        assert admin.consumer_offset(group, queue) in (1, 2, 3)
