"""Verbs that send messages."""

import asyncio
import sys
import time
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta, timezone
from typing import Final

from goddard.cli.mqadmin.call import Call
from goddard.cli.mqadmin.java_text import boolean
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError
from goddard.client.message import Message
from goddard.client.produce.producer import Producer
from goddard.client.trace.tracer import TraceOptions
from goddard.client.values import MessageQueue, SendResult
from goddard.errors import GoddardError

_RESULT: Final = "%-32s  %-4s  %-20s    %s"
_TIMES: Final = "%-24s  %-24s  %-4s  %-8s  %-8s"
_TIMES_ROW: Final = "%-24s  %-24s  %-8s  %-16s  %-16s"
_STATUS_GROUP: Final = "PID_SMSC"
_STATUS_TEXT: Final = b"hello jodie"
# Java's log lines have the time of China.
_LOG_ZONE: Final = timezone(timedelta(hours=8))


def _producer(
    call: Call, group: str = "", *, with_trace: bool = False
) -> AbstractAsyncContextManager[Producer]:
    name = group or str(call.admin.clock.now_ms())
    trace = TraceOptions() if with_trace else None
    return Producer(name, trace=trace, **call.target.client_keywords())


async def send_message(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    if "i" in options and "b" not in options:
        raise WrongUsageError("-i (--qid) needs -b (--broker), the name of a broker")
    message = Message(
        topic,
        options.text("p").encode(),
        keys=options.words("k", " ") or None,
        tags=options.get("c"),
    )
    queue = None
    if "i" in options:
        queue = MessageQueue(topic, options.text("b"), options.number("i", least=0))
    async with _producer(call, with_trace=options.boolean("m")) as producer:
        if queue is None and "b" in options:
            queue = await _first_queue(producer, topic, options.text("b"))
        result = await producer.send(message, queue=queue)
    call.row(_RESULT, "#Broker Name", "#QID", "#Send Result", "#MsgId")
    at = result.queue
    call.row(_RESULT, at.broker_name, at.queue_id, result.status.value, result.message_id)


async def _first_queue(producer: Producer, topic: str, broker: str) -> MessageQueue:
    for queue in await producer.publish_queues(topic):
        if queue.broker_name == broker:
            return queue
    raise FailedError(f"broker {broker} has no queue of topic {topic} that can be written")


async def send_message_status(call: Call) -> None:
    options, topic = call.options, call.options.text("b")
    size = options.number("s", 128, least=1)
    count = options.number("c", 50, least=0)
    body = _STATUS_TEXT * -(-size // len(_STATUS_TEXT))
    async with _producer(call, _STATUS_GROUP) as producer:
        await producer.send(Message(topic, _STATUS_TEXT * 2))
        for _ in range(count):
            begin = time.monotonic()
            result = await producer.send(Message(topic, body))
            call.line(f"rt={_milliseconds(begin)}ms, SendResult={result_text(result)}")


def result_text(result: SendResult) -> str:
    """A result as Java prints it."""
    return (
        f"SendResult [sendStatus={result.status.value}, msgId={result.message_id}, "
        f"offsetMsgId={result.offset_message_id}, messageQueue={result.queue}, "
        f"queueOffset={result.queue_offset}, recallHandle=null]"
    )


async def check_send_time(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    amount = options.number("a", 100, least=1)
    body = b"a" * options.number("s", 128, least=1)
    call.row(_RESULT, "#Broker Name", "#QID", "#Send Result", "#RT")
    times: list[int] = []
    failure: GoddardError | None = None
    async with _producer(call) as producer:
        queues = await producer.publish_queues(topic)
        for number in range(amount):
            queue = queues[number % len(queues)]
            begin = time.monotonic()
            try:
                await producer.send(Message(topic, body), queue=queue)
                is_sent = True
            except GoddardError as error:
                is_sent, failure = False, error
            times.append(_milliseconds(begin))
            call.row(_RESULT, queue.broker_name, queue.queue_id, boolean(is_sent), times[-1])
    call.line(f"Avg RT: {_average(times)}")
    if failure is not None:
        raise failure


async def cluster_send_time(call: Call) -> None:
    options = call.options
    amount = options.number("a", 100, least=1)
    body = b"a" * options.number("s", 128, least=1)
    seconds = options.number("i", 10, least=1)
    as_log, room = options.boolean("p"), options.text("m", "noname")
    columns = ("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount")
    if not as_log:
        call.row(_TIMES, *columns)
    async with _producer(call) as producer:
        while True:
            for place in await call.admin.brokers(cluster=options.get("c")):
                if not place.is_master:
                    continue
                times, sent = await _send_many(producer, place.name, body, amount)
                average = _average(times)
                if as_log:
                    now = datetime.now(_LOG_ZONE).strftime("%Y-%m-%d %H:%M:%S")
                    rounded = round(float(average))
                    call.line(f"{now}|{room}|{place.cluster}|{place.name}|{rounded}")
                else:
                    counts = (sent, amount - sent)
                    call.row(_TIMES_ROW, place.cluster, place.name, average, *counts)
            sys.stdout.flush()
            await asyncio.sleep(seconds)


async def _send_many(
    producer: Producer, topic: str, body: bytes, amount: int
) -> tuple[list[int], int]:
    """How long each send took, and how many succeeded."""
    times: list[int] = []
    sent = 0
    for _ in range(amount):
        begin = time.monotonic()
        try:
            await producer.send(Message(topic, body))
            sent += 1
        except GoddardError:
            pass
        times.append(_milliseconds(begin))
    return times, sent


def _milliseconds(begin: float) -> int:
    return round((time.monotonic() - begin) * 1000)


def _average(times: list[int]) -> str:
    """Without the first, which includes the connection."""
    rest = times[1:]
    return f"{sum(rest) / len(rest):.2f}" if rest else "NaN"
