"""Traces at real brokers: their records, and that RocketMQ's own tool reads them."""

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from goddard.client.consume.push import PushConsumer
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.options import AccumulatorOptions
from goddard.client.produce.producer import Producer
from goddard.client.produce.transactions import TransactionProducer
from goddard.client.trace.records import (
    ConsumeEnd,
    ConsumeOutcome,
    ConsumeStart,
    MessageKind,
    SendTrace,
    TraceRecord,
    TransactionEnd,
    decode_trace,
)
from goddard.client.trace.tracer import TraceOptions
from goddard.client.values import ConsumeFrom, SendStatus, TransactionState
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.java import JavaDriver, JavaPeers
from tests.support.topic_reader import TopicReader

R = TypeVar("R", bound=TraceRecord)


def records(messages: list[ReceivedMessage], kind: type[R]) -> dict[str | None, R]:
    """The records of a kind, by the id of the traced message."""
    return {
        record.message_id: record
        for message in messages
        for record in decode_trace(message.body.decode())
        if isinstance(record, kind)
    }


@pytest.fixture(scope="module")
def java_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    with JavaPeers("5.4.0", tmp_path_factory.mktemp("mqadmin")) as java:
        yield java.driver()


async def test_sends_are_traced(site: Site) -> None:
    topic, trace_topic = site.create_topic("traced"), site.create_topic("traces")
    group = site.new_group("senders")
    async with Producer(
        group, name_servers=site.namesrv, trace=TraceOptions(topic=trace_topic)
    ) as producer:
        plain = await producer.send(Message(topic, b"plain", tags="T", keys=["k1", "k2"]))
        delayed = await producer.send(Message(topic, b"delayed", delay_level=1))
        batch = await producer.send_batch([Message(topic, b"one"), Message(topic, b"two")])
        # As in Java, one-way sends are not traced.
        await producer.send_oneway(Message(topic, b"oneway"))
    async with TopicReader(site.namesrv, trace_topic) as reader:
        messages = await reader.until_true(lambda seen: len(records(seen, SendTrace)) >= 4)
    traced = records(messages, SendTrace)
    batch_ids = [message_id for each in batch for message_id in each.message_id.split(",")]
    assert traced.keys() == {plain.message_id, delayed.message_id, *batch_ids}
    record = traced[plain.message_id]
    assert record.offset_message_id == plain.offset_message_id
    assert (record.group, record.topic, record.tags, record.keys) == (group, topic, "T", "k1 k2")
    assert (record.region, record.is_success, record.body_bytes) == ("DefaultRegion", True, 5)
    assert (record.store_host, record.kind) == (site.broker.address, MessageKind.NORMAL)
    assert 0 <= record.cost_ms < 60_000
    assert traced[delayed.message_id].kind is MessageKind.DELAY
    keys = {key for message in messages for key in message.keys}
    assert {plain.message_id, "k1", "k2", *batch_ids} <= keys


async def test_each_message_of_an_accumulated_batch_is_traced(site: Site) -> None:
    topic, trace_topic = site.create_topic("traced"), site.create_topic("traces")
    async with Producer(
        site.new_group("senders"),
        name_servers=site.namesrv,
        accumulate=AccumulatorOptions(),
        trace=TraceOptions(topic=trace_topic),
    ) as producer:
        results = await asyncio.gather(
            *(producer.send(Message(topic, b"x", keys=f"k{number}")) for number in range(25))
        )
    async with TopicReader(site.namesrv, trace_topic) as reader:
        messages = await reader.until_true(lambda seen: len(records(seen, SendTrace)) >= 25)
    traced = records(messages, SendTrace)
    assert {each.message_id: each.offset_message_id for each in results} == {
        each.message_id: each.offset_message_id for each in traced.values()
    }
    assert traced[results[7].message_id].keys == "k7"


async def test_transactions_are_traced(site: Site) -> None:
    topic, trace_topic = site.create_topic("traced"), site.create_topic("traces")
    states = {b"kept": TransactionState.COMMIT, b"dropped": TransactionState.ROLLBACK}

    class Decides:
        async def execute(self, message: Message, argument: Any) -> TransactionState:
            return states.get(message.body, TransactionState.UNKNOWN)

        async def check(self, message: ReceivedMessage) -> TransactionState:
            return TransactionState.COMMIT

    async with (
        TransactionProducer(
            site.new_group("senders"),
            Decides(),
            name_servers=site.namesrv,
            trace=TraceOptions(topic=trace_topic, batch_size=1),
        ) as producer,
        TopicReader(site.namesrv, trace_topic) as reader,
    ):
        sent = {
            body: (await producer.send_in_transaction(Message(topic, body))).sent
            for body in (b"kept", b"dropped", b"asked")
        }
        asked_id = sent[b"asked"].message_id

        def is_checked(seen: list[ReceivedMessage]) -> bool:
            ends = records(seen, TransactionEnd)
            return len(ends) == 3 and ends[asked_id].is_from_check

        messages = await reader.until_true(is_checked)
    halves, ends = records(messages, SendTrace), records(messages, TransactionEnd)
    assert {each.kind for each in halves.values()} == {MessageKind.HALF}
    assert halves.keys() == ends.keys() == {result.message_id for result in sent.values()}
    assert {ends[sent[body].message_id].state: body for body in states} == {
        "COMMIT_MESSAGE": b"kept",
        "ROLLBACK_MESSAGE": b"dropped",
    }
    assert (ends[asked_id].state, ends[asked_id].is_from_check) == ("COMMIT_MESSAGE", True)
    assert {each.kind for each in ends.values()} == {MessageKind.COMMIT}
    assert {each.topic for each in ends.values()} == {topic}


async def test_consumption_is_traced(site: Site) -> None:
    topic, trace_topic = site.create_topic("traced"), site.create_topic("traces")
    group = site.new_group("readers")
    seen: set[bytes] = set()

    def listener(messages: list[ReceivedMessage], context: object) -> bool:
        is_first = not seen.issuperset(message.body for message in messages)
        seen.update(message.body for message in messages)
        return not (is_first and messages[0].body == b"twice")

    consumer = PushConsumer(
        group,
        name_servers=site.namesrv,
        listener=listener,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        trace=TraceOptions(topic=trace_topic, batch_size=1),
    )
    consumer.subscribe(topic)
    async with Producer(site.new_group("senders"), name_servers=site.namesrv) as producer:
        once = await producer.send(Message(topic, b"once", keys="k"))
        twice = await producer.send(Message(topic, b"twice"))
    wanted = {once.message_id, twice.message_id}
    async with consumer, TopicReader(site.namesrv, trace_topic) as reader:
        # Starts and ends are separate messages, in any order.
        messages = await reader.until_true(
            lambda found: all(
                records(found, kind).keys() >= wanted for kind in (ConsumeStart, ConsumeEnd)
            )
        )
    starts, ends = records(messages, ConsumeStart), records(messages, ConsumeEnd)
    assert starts.keys() == ends.keys() == wanted
    start, end = starts[once.message_id], ends[once.message_id]
    assert (start.group, start.retry_times, start.keys) == (group, 0, "k")
    assert start.region == "DefaultRegion"
    assert (end.group, end.keys, end.request_id) == (group, "k", start.request_id)
    assert (end.is_success, end.outcome) == (True, ConsumeOutcome.SUCCESS)
    failed = ends[twice.message_id]
    assert (failed.is_success, failed.outcome) == (False, ConsumeOutcome.FAILED)


@pytest.mark.java
async def test_mqadmin_reads_traces(site: Site, java_driver: JavaDriver) -> None:
    topic, group = site.create_topic("traced"), site.new_group("senders")
    async with Producer(group, name_servers=site.namesrv, trace=TraceOptions()) as producer:
        sent = await producer.send(Message(topic, b"x"))

    def shown() -> str | None:
        words = ("queryMsgTraceById", "-n", site.namesrv, "-i", sent.message_id)
        text = java_driver.admin(*words)
        return text if group in text else None

    text = await asyncio.to_thread(wait_until, shown, 30, "the trace of our send")
    assert "Pub" in text
    assert "success" in text


async def test_failed_traces_do_not_affect_sends(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    topic = site.create_topic("untraced")
    forbidden = TraceOptions(topic="SCHEDULE_TOPIC_XXXX", batch_size=1)
    async with Producer(
        site.new_group("senders"), name_servers=site.namesrv, trace=forbidden
    ) as producer:
        results = [await producer.send(Message(topic, b"x")) for _ in range(3)]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    # Each send has one trace message, and each of them is refused.
    assert caplog.text.count("send trace data failed: ") == 3
