"""Which messages share a batch, when it is sent, and the results of its callers."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from goddard.client.errors import InvalidMessageError, NotRunningError
from goddard.client.message import Message
from goddard.client.produce.batching import (
    Accumulator,
    Batch,
    OpenBatches,
    batch_key,
)
from goddard.client.produce.frames import batch_entry
from goddard.client.produce.options import AccumulatorOptions
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.clock import SystemClock
from goddard.errors import ConfigError, ConnectFailedError
from goddard.protocol.message import PROPERTY_UNIQUE_ID, decode_batch, decode_properties
from tests.support.clock import ManualClock

QUEUE = MessageQueue("T", "broker-a", 1)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Batches:
    """OpenBatches with a manual clock; messages are numbered."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: AccumulatorOptions | None = None,
        alone_from_bytes: int = 4096,
    ) -> None:
        self.clock = ManualClock()
        self.open = OpenBatches(options or AccumulatorOptions(), alone_from_bytes=alone_from_bytes)
        self._loop = loop
        self._number = 0

    def add(self, message: Message, queue: MessageQueue | None = None) -> Batch | None:
        message_id = message.properties[PROPERTY_UNIQUE_ID] = f"ID{self._number}"
        self._number += 1
        future: asyncio.Future[SendResult] = self._loop.create_future()
        key = batch_key(message, queue)
        batch = self.open.find(key)
        if batch is None:
            batch = self.open.open(key, self.clock.monotonic_ms())
        entry = batch_entry(message.body, message.properties, message.flag)
        is_full = self.open.add(batch, message, message_id, entry, future)
        return batch if is_full else None

    def due(self) -> list[Batch]:
        return self.open.due(self.clock.monotonic_ms())


def test_batch_closes_at_its_maximum_age(
    loop: asyncio.AbstractEventLoop,
) -> None:
    opened = Batches(loop, AccumulatorOptions(max_delay_ms=10))
    assert opened.add(Message("T", b"0")) is None
    opened.clock.advance(6)
    assert opened.add(Message("T", b"1")) is None
    assert opened.add(Message("U", b"2")) is None
    assert opened.open.next_due_ms == 10
    opened.clock.advance(3)
    assert opened.due() == []
    opened.clock.advance(1)
    (first,) = opened.due()
    assert (first.topic, first.ids) == ("T", ["ID0", "ID1"])
    assert opened.open.next_due_ms == 16
    assert [batch.topic for batch in opened.open.close()] == ["U"]
    assert opened.open.next_due_ms is None


def test_batch_closes_when_it_is_full(loop: asyncio.AbstractEventLoop) -> None:
    opened = Batches(loop, AccumulatorOptions(max_batch_bytes=1000))
    batches = [opened.add(Message("T", bytes(100))) for _ in range(14)]
    full = [batch for batch in batches if batch is not None]
    assert [len(batch) for batch in full] == [7, 7]
    for batch in full:
        assert batch.size_bytes == len(batch.body()) >= 1000
        assert batch.size_bytes - 1000 < batch.size_bytes / 7


def test_which_messages_share_a_batch(loop: asyncio.AbstractEventLoop) -> None:
    opened = Batches(loop)
    kinds: list[tuple[Message, MessageQueue | None]] = [
        (Message("T", b"0"), None),
        (Message("T", b"1", tags="A"), None),
        (Message("T", b"2", tags="B"), None),
        (Message("T", b"3"), QUEUE),
        (Message("T", b"4"), MessageQueue("T", "broker-a", 2)),
        (Message("T", b"5", wait_store_ok=False), None),
        (Message("U", b"6"), None),
    ]
    for message, queue in kinds:
        assert opened.add(message, queue) is None
    assert opened.add(Message("T", b"7", keys="k", properties={"own": "x"}), None) is None
    batches = opened.open.close()
    assert [batch.ids for batch in batches] == [
        ["ID0", "ID7"],
        *([f"ID{number}"] for number in range(1, 7)),
    ]
    assert [batch.queue for batch in batches[:5]] == [None, None, None, QUEUE, kinds[4][1]]
    assert [batch.tags for batch in batches[:3]] == [None, "A", "B"]
    assert [batch.waits_for_store for batch in batches] == [True] * 5 + [False, True]


def test_messages_are_encoded_as_batch_entries(loop: asyncio.AbstractEventLoop) -> None:
    opened = Batches(loop)
    message = Message("T", b"first", tags="A", keys=["k1", "k2"], flag=7)
    opened.add(message)
    # Later changes of the message are not sent.
    message.body = b"changed"
    message.properties["own"] = "late"
    opened.add(Message("T", b"second", tags="A"))
    (batch,) = opened.open.close()
    assert [each.message_id for each in batch.messages] == ["ID0", "ID1"]
    first, second = decode_batch(batch.body())
    assert (first.body, first.flag, second.body) == (b"first", 7, b"second")
    assert decode_properties(first.properties) == {
        "KEYS": "k1 k2",
        "WAIT": "true",
        "TAGS": "A",
        "UNIQ_KEY": "ID0",
    }


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"x", delay_level=3),
        Message("T", b"x", delay_seconds=3),
        Message("T", b"x", delay_ms=3),
        Message("T", b"x", deliver_at_ms=3),
        Message("%RETRY%group", b"x"),
        Message("T", bytes(4096)),
    ],
)
def test_messages_that_are_sent_alone(loop: asyncio.AbstractEventLoop, message: Message) -> None:
    assert not Batches(loop).open.accepts(message)


@pytest.mark.parametrize("name", ["PGROUP", "TRAN_MSG", "MSG_TYPE"])
def test_halves_and_replies_are_sent_alone(loop: asyncio.AbstractEventLoop, name: str) -> None:
    message = Message("T", b"x")
    assert Batches(loop).open.accepts(message)
    message.properties[name] = "true"
    assert not Batches(loop).open.accepts(message)


def test_bytes_without_result_are_limited(loop: asyncio.AbstractEventLoop) -> None:
    opened = Batches(loop, AccumulatorOptions(max_batch_bytes=300, max_held_bytes=500))
    message = Message("T", bytes(200))

    def add_all() -> list[Batch]:
        """Add messages until no more are accepted; the batches that became full."""
        sent: list[Batch] = []
        while opened.open.accepts(message):
            batch = opened.add(message)
            if batch is not None:
                sent.append(batch)
        return sent

    sent = add_all()
    assert len(sent) == 1
    opened.open.finished(sent[0])
    assert opened.open.accepts(message)
    for batch in opened.open.close():
        opened.open.finished(batch)
    # All bytes are free again.
    assert len(add_all()) == 1
    assert len(opened.open.close()) == 1


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_delay_ms": 0}, "max_delay_ms"),
        ({"max_delay_ms": 30_001}, "max_delay_ms"),
        ({"max_batch_bytes": 0}, "max_batch_bytes"),
        ({"max_batch_bytes": 2 * 1024 * 1024 + 1}, "max_batch_bytes"),
        ({"max_held_bytes": 0}, "max_held_bytes"),
    ],
)
def test_options_out_of_range(options: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        AccumulatorOptions(**options)


# The accumulator, with its timer and tasks.


class Wire:
    """Answers batches like a broker, while ``open`` is set."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        # The ids of each request; of a message that was sent alone, its keys.
        self.order: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def send(self, batch: Batch) -> SendResult:
        self.batches.append(batch)
        stored = ",".join(f"AT{number}" for number in range(len(batch)))
        return await self._answer(batch.ids, stored)

    async def send_alone(self, message: Message, queue: MessageQueue) -> SendResult:
        return await self._answer(message.keys, "AT0")

    async def _answer(self, ids: list[str], stored: str) -> SendResult:
        self.order.append(ids)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return SendResult(SendStatus.SEND_OK, ",".join(ids), stored, QUEUE, 40)


def numbers() -> Callable[[], str]:
    numbered = iter(range(1_000_000))
    return lambda: f"ID{next(numbered)}"


def accumulator(wire: Wire, options: AccumulatorOptions | None = None) -> Accumulator:
    return Accumulator(
        options or AccumulatorOptions(max_delay_ms=1),
        wire.send,
        wire.send_alone,
        clock=SystemClock(),
        unique_id=numbers(),
        alone_from_bytes=4096,
    )


async def test_each_caller_gets_its_own_result() -> None:
    wire = Wire()
    accumulating = accumulator(wire)
    futures = [accumulating.add(Message("T", str(number).encode())) for number in range(3)]
    results = await asyncio.gather(*(future for future in futures if future is not None))
    assert [len(batch) for batch in wire.batches] == [3]
    assert [(each.message_id, each.offset_message_id, each.queue_offset) for each in results] == [
        ("ID0", "AT0", 40),
        ("ID1", "AT1", 41),
        ("ID2", "AT2", 42),
    ]
    assert {each.queue for each in results} == {QUEUE}
    await accumulating.flush()


async def test_failure_is_raised_for_every_message() -> None:
    wire = Wire()
    wire.error = ConnectFailedError("no broker")
    accumulating = accumulator(wire)
    futures = [accumulating.add(Message("T", b"x")) for _ in range(3)]
    for future in futures:
        assert future is not None
        with pytest.raises(ConnectFailedError, match="no broker"):
            await future
    wire.error = None
    again = accumulating.add(Message("T", b"x"))
    assert again is not None
    assert (await again).status is SendStatus.SEND_OK
    await accumulating.flush()


async def test_flush_waits_for_every_result() -> None:
    wire = Wire()
    wire.open.clear()
    accumulating = accumulator(wire, AccumulatorOptions(max_delay_ms=30_000))
    futures = [accumulating.add(Message(topic, b"x")) for topic in "ABC"]
    assert wire.batches == []
    flushing = asyncio.create_task(accumulating.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [batch.topic for batch in wire.batches] == ["A", "B", "C"]
    assert not flushing.done()
    wire.open.set()
    await flushing
    assert all(future is not None and future.done() for future in futures)


async def test_cancelled_caller_does_not_affect_others() -> None:
    wire = Wire()
    accumulating = accumulator(wire)
    first, second = accumulating.add(Message("T", b"1")), accumulating.add(Message("T", b"2"))
    assert first is not None
    assert second is not None
    first.cancel()
    assert (await second).queue_offset == 41
    await accumulating.flush()


async def test_chosen_queue_keeps_the_order_of_all_kinds() -> None:
    wire = Wire()
    wire.open.clear()
    accumulating = accumulator(wire, AccumulatorOptions(max_delay_ms=30_000))
    messages = [
        Message("T", b"0"),
        Message("T", b"1"),
        Message("T", b"2", tags="A"),
        Message("T", bytes(5000), keys="3"),
        Message("T", b"4"),
        Message("T", bytes(5000), keys="5"),
    ]
    futures = [accumulating.add(message, QUEUE) for message in messages]
    # Messages for other queues do not wait.
    assert accumulating.add(Message("T", bytes(5000))) is None
    assert accumulating.add(Message("T", bytes(5000)), QUEUE._replace(queue_id=7)) is None
    await asyncio.sleep(0)
    assert wire.order == [["ID0", "ID1"]]
    wire.open.set()
    results = await asyncio.gather(*(future for future in futures if future is not None))
    assert wire.order == [["ID0", "ID1"], ["ID2"], ["3"], ["ID3"], ["5"]]
    assert [each.message_id for each in results] == ["ID0", "ID1", "ID2", "3", "ID3", "5"]
    # The line is empty, so the next one does not wait.
    assert accumulating.add(Message("T", bytes(5000)), QUEUE) is None
    await accumulating.flush()


async def test_failure_of_a_single_message_does_not_block_its_queue() -> None:
    wire = Wire()
    accumulating = accumulator(wire, AccumulatorOptions(max_delay_ms=30_000))
    futures = [
        accumulating.add(message, QUEUE)
        for message in (Message("T", b"0"), Message("T", bytes(5000), keys="1"), Message("T", b"2"))
    ]
    wire.error = ConnectFailedError("no broker")
    await accumulating.flush()
    assert wire.order == [["ID0"], ["1"], ["ID1"]]
    for future in futures:
        assert future is not None
        assert isinstance(future.exception(), ConnectFailedError)


async def test_batches_for_a_chosen_queue_are_sent_one_at_a_time() -> None:
    wire = Wire()
    wire.open.clear()
    accumulating = accumulator(wire, AccumulatorOptions(max_delay_ms=30_000, max_batch_bytes=10))
    futures = [accumulating.add(Message("T", b"x"), QUEUE) for _ in range(3)]
    others = [accumulating.add(Message("T", b"x")) for _ in range(3)]
    await asyncio.sleep(0)
    assert [batch.queue for batch in wire.batches] == [QUEUE, None, None, None]
    wire.error = ConnectFailedError("the first fails, the others follow all the same")
    wire.open.set()
    await accumulating.flush()
    assert [batch.ids for batch in wire.batches if batch.queue] == [["ID0"], ["ID1"], ["ID2"]]
    for future in (*futures, *others):
        assert future is not None
        assert isinstance(future.exception(), ConnectFailedError)


async def test_cancelled_flush_fails_the_pending_sends() -> None:
    wire = Wire()
    wire.open.clear()
    accumulating = accumulator(wire)
    messages = (Message("T", b"0"), Message("T", b"1"), Message("T", bytes(5000), keys="2"))
    futures = [accumulating.add(message, QUEUE) for message in messages]
    flushing = asyncio.create_task(accumulating.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    for future in futures:
        assert future is not None
        with pytest.raises(NotRunningError, match="the producer was stopped"):
            await future


@pytest.mark.parametrize("namespace", ["", "space"])
async def test_both_encodings_of_properties_agree(namespace: str) -> None:
    """Messages without properties of their own are encoded by a faster way."""
    messages = [
        Message("T", b"x"),
        Message("T", b"x", tags="tag ä"),
        Message("T", b"x", tags="A", keys="k"),
        Message("T", b"x", properties={"own": "value"}, wait_store_ok=False),
        Message("T", b"x"),
        Message("T", b"x"),
    ]
    messages[4].properties.clear()
    messages[5].properties["UNIQ_KEY"] = "given"
    wire = Wire()
    accumulating = Accumulator(
        AccumulatorOptions(),
        wire.send,
        wire.send_alone,
        clock=SystemClock(),
        unique_id=numbers(),
        alone_from_bytes=4096,
        namespace=namespace,
    )
    for message in messages:
        assert accumulating.add(message) is not None
    await accumulating.flush()
    sent = {
        message.message_id: decode_properties(entry.properties)
        for batch in wire.batches
        for message, entry in zip(batch.messages, decode_batch(batch.body()), strict=True)
    }
    own = {"INSTANCE_ID": namespace} if namespace else {}
    assert sent == {message.message_id: message.properties | own for message in messages}
    assert sent["given"]["UNIQ_KEY"] == "given"


async def test_message_that_cannot_be_encoded_does_not_affect_others() -> None:
    wire = Wire()
    accumulating = accumulator(wire)
    message = Message("T", b"x")
    message.properties["a\x01b"] = "c"
    with pytest.raises(InvalidMessageError, match="separator"):
        accumulating.add(message)
    with pytest.raises(InvalidMessageError, match="separator"):
        accumulating.add(Message("T", b"x", tags="a\x02b"))
    for invalid in (Message("T", b"x", tags="\ud800"), Message("T", b"x")):
        invalid.properties.setdefault("own", "\ud800")
        with pytest.raises(InvalidMessageError, match="not text"):
            accumulating.add(invalid)
    await accumulating.flush()
    assert wire.batches == []
