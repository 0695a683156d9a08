"""When trace records are sent or dropped, and the content of trace messages."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from goddard.client.message import Message
from goddard.client.trace.records import MessageKind, SendTrace, TraceRecord, decode_trace
from goddard.client.trace.tracer import (
    MAX_TRACE_BYTES,
    TraceOptions,
    Tracer,
    trace_group,
    trace_messages,
)
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.errors import ConfigError, ConnectFailedError
from tests.support.polling import until

NEVER_SECONDS = 3600.0


class Outbox:
    """A fake of a tracer's producer."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.is_running = False
        self.error: Exception | None = None
        self.start_error: Exception | None = None
        self._arrived = asyncio.Event()

    async def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.is_running = True

    async def stop(self) -> None:
        self.is_running = False

    async def send_soon(self, message: Message) -> SendResult:
        self.messages.append(message)
        self._arrived.set()
        if self.error is not None:
            raise self.error
        queue = MessageQueue(message.topic, "broker-a", 0)
        return SendResult(SendStatus.SEND_OK, "id", "offset id", queue, 0)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.records()) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def records(self) -> list[TraceRecord]:
        return [each for message in self.messages for each in decode_trace(message.body.decode())]


def record(number: int, keys: str | None = None) -> SendTrace:
    return SendTrace(
        *(number, "DefaultRegion", "group", "T", f"ID{number}", None, keys, "127.0.0.1:1"),
        *(1, 2, MessageKind.NORMAL, f"AT{number}", True),
    )


async def test_full_batches_are_sent_at_once_and_the_rest_at_stop() -> None:
    outbox = Outbox()
    tracer = Tracer(TraceOptions(batch_size=5), outbox, flush_seconds=NEVER_SECONDS)
    await tracer.start()
    for number in range(12):
        assert tracer.append(record(number))
    await outbox.until(10)
    assert [len(decode_trace(each.body.decode())) for each in outbox.messages] == [5, 5]
    await tracer.stop()
    assert outbox.records() == [record(number) for number in range(12)]
    assert not outbox.is_running
    assert tracer.dropped == 0


async def test_incomplete_batch_is_sent_after_the_interval() -> None:
    outbox = Outbox()
    tracer = Tracer(TraceOptions(), outbox, flush_seconds=0.01)
    await tracer.start()
    tracer.append(record(1))
    await outbox.until(1)
    assert outbox.messages[0].topic == "RMQ_SYS_TRACE_TOPIC"
    await tracer.stop()


async def test_records_are_accepted_from_any_thread() -> None:
    outbox = Outbox()
    tracer = Tracer(TraceOptions(batch_size=1), outbox, flush_seconds=NEVER_SECONDS)
    await tracer.start()
    thread = threading.Thread(target=tracer.append, args=(record(1),))
    thread.start()
    await outbox.until(1)
    thread.join()
    await tracer.stop()


async def test_records_beyond_the_limit_are_dropped_and_counted() -> None:
    outbox = Outbox()
    tracer = Tracer(TraceOptions(), outbox, flush_seconds=NEVER_SECONDS)
    await tracer.start()
    # Nothing is sent before the event loop runs.
    taken = sum(tracer.append(record(number)) for number in range(3000))
    assert (taken, tracer.dropped) == (2048, 952)
    await tracer.stop()
    assert len(outbox.records()) == 2048
    assert not tracer.append(record(1))


async def test_stop_while_all_sends_wait_loses_no_record() -> None:
    class Slow(Outbox):
        may_answer = asyncio.Event()

        async def send_soon(self, message: Message) -> SendResult:
            result = await super().send_soon(message)
            await self.may_answer.wait()
            return result

    outbox = Slow()
    tracer = Tracer(TraceOptions(batch_size=1), outbox, flush_seconds=NEVER_SECONDS)
    await tracer.start()
    records = [record(number) for number in range(40)]
    for each in records:
        tracer.append(each)
    # No more than this are sent at a time.
    await outbox.until(32)
    stopping = asyncio.create_task(tracer.stop())
    await asyncio.sleep(0)
    outbox.may_answer.set()
    async with asyncio.timeout(60):
        await stopping
    assert outbox.records() == records
    assert tracer.dropped == 0


async def test_stop_after_the_sender_has_failed_stops_the_producer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = Outbox()
    tracer = Tracer(TraceOptions(batch_size=1), outbox, flush_seconds=NEVER_SECONDS)
    await tracer.start()
    not_a_record: Any = object()
    tracer.append(not_a_record)
    await until(lambda: "the task Trace failed" in caplog.text)
    tracer.append(record(1))
    await tracer.stop()
    assert not outbox.is_running
    assert outbox.records() == [record(1)]


async def test_failed_sends_are_counted() -> None:
    outbox = Outbox()
    outbox.error = ConnectFailedError("no broker")
    tracer = Tracer(TraceOptions(batch_size=2), outbox, flush_seconds=NEVER_SECONDS)
    await tracer.start()
    for number in range(4):
        tracer.append(record(number))
    await tracer.stop()
    assert tracer.dropped == 4


async def test_producer_that_does_not_start_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = Outbox()
    outbox.start_error = ConnectFailedError("no broker")
    tracer = Tracer(TraceOptions(), outbox)
    await tracer.start()
    tracer.append(record(1))
    await tracer.stop()
    assert outbox.messages == []
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "no broker" in warning.getMessage()


async def test_cancelled_stop_ends_the_sends_before_the_producer_stops() -> None:
    class Silent(Outbox):
        ended = 0

        async def send_soon(self, message: Message) -> SendResult:
            try:
                await asyncio.Event().wait()
            finally:
                self.ended += 1
            raise AssertionError

        async def stop(self) -> None:
            assert self.ended == 3
            await super().stop()

    outbox = Silent()
    tracer = Tracer(TraceOptions(batch_size=1), outbox, flush_seconds=NEVER_SECONDS)
    await tracer.start()
    for number in range(3):
        tracer.append(record(number))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(tracer.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert outbox.ended == 3
    assert not outbox.is_running


def test_messages_are_limited_in_size_and_keys() -> None:
    large = [record(number)._replace(tags="t" * 50_000) for number in range(5)]
    parts = list(trace_messages("T", large))
    assert [count for _, count in parts] == [2, 2, 1]
    assert all(len(message.body) <= MAX_TRACE_BYTES for message, _ in parts)
    many_keys = [record(number, keys=f"k{number}" * 2000) for number in range(5)]
    parts = list(trace_messages("T", many_keys))
    assert [count for _, count in parts] == [4, 1]
    same = [record(1, keys="k" * 10_000)] * 5
    ((message, count),) = trace_messages("T", same)
    assert (count, message.keys) == (5, ["ID1", "k" * 10_000])


def test_groups_are_unique() -> None:
    first, second = trace_group("mine", "PRODUCE"), trace_group("mine", "PRODUCE")
    assert first.startswith("_INNER_TRACE_PRODUCER-mine-PRODUCE-")
    assert first != second


def test_options_out_of_range() -> None:
    with pytest.raises(ConfigError, match="illegal characters"):
        TraceOptions(topic="no topic")
    for size in (0, 21):
        with pytest.raises(ConfigError, match="batch_size"):
            TraceOptions(batch_size=size)
