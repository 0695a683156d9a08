"""RocketMQ's own examples (4.7.0, on the 4.9.4 client) run as they were published.

Their topics and groups have fixed names, so no other tests use the broker at that time. Producers
run first and create the topics, because a consumer without a route retries only after 30 s. Two of
the `simple` package are left out: PullConsumer and PullConsumerTest need a name server on port
9876.
"""

import re
from collections.abc import Callable
from itertools import count

import pytest

from goddard.testing.process import Process, ProcessError, wait_until
from goddard.testing.site import Site
from tests.support.java import JavaPeers
from tests.support.java_clients import JavaClients, Received

pytestmark = pytest.mark.java

Example = Callable[..., Process]

RUN_TIMEOUT = 60
READ_TIMEOUT = 40
_SENT = re.compile(
    r"sendStatus=SEND_OK, msgId=(\w+),.* queueId=(\d+)\], queueOffset=(\d+)", re.MULTILINE
)
_READ = re.compile(r"queueId=(\d+), storeSize=\d+, queueOffset=(\d+),.*?UNIQ_KEY=(\w+)")

_numbers = count()


@pytest.fixture
def example(site: Site, java494: JavaPeers) -> Example:
    def create(main_class: str, *, ready: str = "") -> Process:
        name = f"{main_class}-{next(_numbers)}"
        return java494.example(name, main_class, namesrv=site.namesrv, ready=ready)

    return create


def run(process: Process) -> str:
    """Run a producer to its end and return its output."""
    with process:
        process.launch()
        wait_until(lambda: not process.is_running, RUN_TIMEOUT, f"{process.name} is done")
        assert process.exit_code == 0, process.diagnosis()
        return process.output()


def sent_ids(output: str) -> set[str]:
    return {message_id for message_id, _, _ in _SENT.findall(output)}


def read_ids(process: Process) -> list[str]:
    return [message_id for _, _, message_id in _READ.findall(process.output())]


def wait_for_ids(process: Process, wanted: set[str]) -> list[str]:
    """The ids that the consumer printed, once they include those wanted."""
    wait_until(
        lambda: set(read_ids(process)) >= wanted,
        READ_TIMEOUT,
        f"{len(wanted)} messages printed by {process.name}",
    )
    return read_ids(process)


@pytest.fixture(scope="module")
def quick_start_ids(site: Site, java494: JavaPeers) -> set[str]:
    """The ids that quickstart.Producer sent to TopicTest, for the consumers of several packages."""
    producer = java494.example(
        f"quickstart-producer-{next(_numbers)}", "quickstart.Producer", namesrv=site.namesrv
    )
    ids = sent_ids(run(producer))
    assert len(ids) == 1000
    return ids


def test_quickstart(example: Example, quick_start_ids: set[str]) -> None:
    with example("quickstart.Consumer", ready="Consumer Started").start() as consumer:
        ids = wait_for_ids(consumer, quick_start_ids)
        assert len(ids) == len(set(ids))


def test_order_message_producer(example: Example) -> None:
    """Ten orders over four queues: order n goes to queue n % 4, its messages one after another."""
    results = _SENT.findall(run(example("ordermessage.Producer")))
    assert [int(queue) for _, queue, _ in results] == [i % 10 % 4 for i in range(100)]
    for queue in range(4):
        offsets = [int(offset) for _, each, offset in results if int(each) == queue]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


def test_order_message_consumer(example: Example, quick_start_ids: set[str]) -> None:
    """It sometimes suspends a queue for 3 s: each queue's messages still arrive in order."""
    assert quick_start_ids
    with example("ordermessage.Consumer", ready="Consumer Started").start() as consumer:
        wait_until(lambda: len(set(read_ids(consumer))) >= 60, READ_TIMEOUT, "60 messages")
        deliveries = _READ.findall(consumer.output())
    for queue in range(4):
        offsets = [int(offset) for each, offset, _ in deliveries if int(each) == queue]
        first_seen = list(dict.fromkeys(offsets))
        assert first_seen == list(range(len(first_seen)))
        assert offsets == sorted(offsets)


def test_broadcast(example: Example, quick_start_ids: set[str]) -> None:
    """Two consumers with the same client id; each prints everything."""
    ready = "Broadcast Consumer Started"
    with (
        example("broadcast.PushConsumer", ready=ready).start() as one,
        example("broadcast.PushConsumer", ready=ready).start() as other,
    ):
        for consumer in (one, other):
            ids = wait_for_ids(consumer, quick_start_ids)
            assert len(ids) == len(set(ids))


def test_tag_filter(example: Example) -> None:
    """The tags alternate, and the consumer subscribes to the first and the last of three."""
    results = _SENT.findall(run(example("filter.TagFilterProducer")))
    wanted = {message_id for i, (message_id, _, _) in enumerate(results) if i % 3 != 1}
    assert len(wanted) == 40
    with example("filter.TagFilterConsumer", ready="Consumer Started").start() as consumer:
        assert sorted(wait_for_ids(consumer, wanted)) == sorted(wanted)


def test_sql_filter(example: Example) -> None:
    """TagA or TagB, and `a` between 0 and 3: messages 0, 1 and 3."""
    results = _SENT.findall(run(example("filter.SqlFilterProducer")))
    wanted = {results[i][0] for i in (0, 1, 3)}
    with example("filter.SqlFilterConsumer", ready="Consumer Started").start() as consumer:
        assert sorted(wait_for_ids(consumer, wanted)) == sorted(wanted)


def test_simple_producer_and_push_consumer(example: Example, quick_start_ids: set[str]) -> None:
    output = run(example("simple.Producer"))
    ids = sent_ids(output)
    assert len(ids) == 128
    with example("simple.PushConsumer", ready="Consumer Started").start() as consumer:
        printed = wait_for_ids(consumer, ids | quick_start_ids)
        assert len(printed) == len(set(printed))


def test_simple_async_producer(example: Example) -> None:
    output = run(example("simple.AsyncProducer"))
    assert sorted(int(index) for index in re.findall(r"^(\d+) +OK ", output, re.MULTILINE)) == list(
        range(100)
    )
    assert len(set(re.findall(r" OK (\w+)", output))) == 100


def test_simple_lite_pull_subscribe(example: Example, quick_start_ids: set[str]) -> None:
    consumer = example("simple.LitePullConsumerSubscribe")
    with consumer:
        consumer.launch()
        wait_for_ids(consumer, quick_start_ids)


def test_simple_lite_pull_assign(example: Example, quick_start_ids: set[str]) -> None:
    """It assigns half of the queues, and seeks to offset 10 in the first of them."""
    assert quick_start_ids
    consumer = example("simple.LitePullConsumerAssign")
    with consumer:
        consumer.launch()

        def first_offsets() -> list[int] | None:
            lowest: dict[int, int] = {}
            for queue, offset, _ in _READ.findall(consumer.output()):
                lowest.setdefault(int(queue), int(offset))
            return sorted(lowest.values()) if len(lowest) == 2 else None

        found = wait_until(first_offsets, READ_TIMEOUT, "messages of two queues")
        # It seeks while it already reads; a pull in flight may come first.
        assert found in ([0, 10], [0, 0])


def test_simple_pull_schedule_service(example: Example, quick_start_ids: set[str]) -> None:
    assert quick_start_ids
    service = example("simple.PullScheduleService")
    with service:
        service.launch()

        def highest() -> dict[int, int] | None:
            found = re.findall(
                r"queueId=(\d+)\].*pullStatus=FOUND, nextBeginOffset=(\d+)", service.output()
            )
            ends = {int(queue): int(offset) for queue, offset in found}
            return ends if len(ends) == 4 and min(ends.values()) >= 250 else None

        wait_until(highest, READ_TIMEOUT, "every queue pulled to its 250th message")


def test_batch_producers(site: Site, example: Example, java494: JavaPeers) -> None:
    """A batch of 3 messages, then 100,000 in a dozen batches; neither program ends by itself."""
    clients = JavaClients(java494.client_suite(), site.namesrv)
    reader = clients.pull("batch-readers")

    def total() -> int:
        return sum(reader.offsets(queue)[1] for queue in reader.queues("BatchTest"))

    with example("batch.SimpleBatchProducer") as simple:
        simple.launch()
        wait_until(lambda: _or_zero(total) == 3, RUN_TIMEOUT, "three messages")
    messages: list[Received] = []
    for queue in reader.queues("BatchTest"):
        messages += reader.pull(queue, 0).messages
    assert [each.content for each in messages] == [b"Hello world %d" % i for i in range(3)]
    assert [each.keys for each in messages] == ["OrderID001", "OrderID002", "OrderID003"]
    with example("batch.SplitBatchProducer") as split:
        split.launch()
        wait_until(lambda: total() >= 100_003, RUN_TIMEOUT, "100,000 messages more")
    assert total() == 100_003
    clients.close_all()


def test_transaction_producer(site: Site, example: Example, java494: JavaPeers) -> None:
    """The sender decides nothing; of three messages, the check commits one and rolls back one."""
    clients = JavaClients(java494.client_suite(), site.namesrv)
    with example("transaction.TransactionProducer") as producer:
        producer.launch()
        wait_until(lambda: len(sent_ids(producer.output())) == 10, RUN_TIMEOUT, "ten half messages")
        ids = [message_id for message_id, _, _ in _SENT.findall(producer.output())]
        consumer = clients.push("transaction-readers", "TopicTest1234")
        received = consumer.receive(3, timeout=READ_TIMEOUT)
        # One more round of checks, in which the undecided ones stay undecided.
        received = consumer.receive(4, timeout=3)
    assert sorted(each.keys or "" for each in received) == ["KEY1", "KEY4", "KEY7"]
    assert {each.id for each in received} == {ids[1], ids[4], ids[7]}
    clients.close_all()


def _or_zero(total: Callable[[], int]) -> int:
    """The topic is created by its first message."""
    try:
        return total()
    except ProcessError:
        return 0
