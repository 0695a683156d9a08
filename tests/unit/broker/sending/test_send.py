"""Sends on the general path: checks in RocketMQ's order, what is stored, and the answers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from goddard.broker.sending.message_rules import NewMessage
from goddard.broker.sending.send import MAX_BATCH_MESSAGES
from goddard.protocol.codes import RequestCode, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.message import BatchEntry, decode_properties, encode_batch
from goddard.store.config import FlushMode
from tests.support.clock import ManualClock
from tests.support.faulty_files import FaultyFiles
from tests.support.send_harness import SendHarness, send_request

UNIQUE_ID = "7F0000014E9F5FFD2B274A0404820001"
COMMON = {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SendHarness]:
    with SendHarness(tmp_path) as harness:
        harness.add_topic("TopicTest")
        yield harness


async def answer_to(harness: SendHarness, request: RemotingCommand) -> RemotingCommand:
    (answer,) = await harness.ask(request)
    return answer


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("encoding", list(SerializeType))
async def test_the_answer_and_the_record_of_a_send(
    harness: SendHarness, code: int, encoding: SerializeType
) -> None:
    request = send_request(
        body=b"sync body",
        code=code,
        serialize_type=encoding,
        properties=f"KEYS\x01k1 k2\x02UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02TAGS\x01TagA",
    )
    answer = await answer_to(harness, request)
    assert (answer.code, answer.remark, answer.serialize_type) == (0, None, encoding)
    # Java's own order; see tests/golden.
    assert list(answer.fields.items()) == [
        ("queueId", "0"),
        ("transactionId", UNIQUE_ID),
        ("msgId", "7F00000100002A9F0000000000000000"),
        ("TRACE_ON", "true"),
        ("MSG_REGION", "DefaultRegion"),
        ("queueOffset", "0"),
    ]
    (record,) = harness.records()
    assert (record.topic, record.queue_id, record.body) == ("TopicTest", 0, b"sync body")
    assert record.born_timestamp_ms == 1794732977282
    assert str(record.born_host) == "127.0.0.1:50001"
    assert decode_properties(record.properties) == {
        "KEYS": "k1 k2",
        "UNIQ_KEY": UNIQUE_ID,
        "WAIT": "true",
        "TAGS": "TagA",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert harness.stats.puts == {"TopicTest": (1, harness.store.log_max_offset)}


async def test_a_one_way_send_is_stored_and_not_answered(harness: SendHarness) -> None:
    answers = await harness.ask(
        send_request(body=b"1", oneway=True),
        send_request("No/Topic", body=b"2", oneway=True),
        send_request(body=b"3"),
    )
    assert len(answers) == 1
    assert [record.body for record in harness.records()] == [b"1", b"3"]


async def test_properties_that_a_broker_sets_and_removes(harness: SendHarness) -> None:
    properties = "POP_CK\x01x\x02MSG_REGION\x01forged\x02CLUSTER\x01forged\x02mine\x01kept\x02"
    answer = await answer_to(harness, send_request(properties=properties))
    (record,) = harness.records()
    stored = decode_properties(record.properties)
    assert stored.pop("UNIQ_KEY") == answer.fields["transactionId"]
    assert stored == {
        "MSG_REGION": "DefaultRegion",
        "CLUSTER": "DefaultCluster",
        "mine": "kept",
        "TRACE_ON": "true",
    }


async def test_missing_unique_ids_are_generated(harness: SendHarness) -> None:
    answers = await harness.ask(*(send_request(properties="a\x01b\x02") for _ in range(3)))
    made = {answer.fields["transactionId"] for answer in answers}
    assert len(made) == 3
    assert all(len(unique_id) == 32 for unique_id in made)


# Checks


@pytest.mark.parametrize(
    ("topic", "code", "remark"),
    [
        (" ", 29, "The specified topic is blank."),
        (
            "bad topic",
            29,
            "The specified topic: bad topic, contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            "t" * 128,
            29,
            f"The specified topic: {'t' * 128}, is longer than topic max length: 127",
        ),
        (
            "SCHEDULE_TOPIC_XXXX",
            16,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        (
            "RMQ_SYS_TRANS_HALF_TOPIC",
            16,
            "Sending message to topic[RMQ_SYS_TRANS_HALF_TOPIC] is forbidden.",
        ),
    ],
)
async def test_topics_that_cannot_be_sent_to(
    harness: SendHarness, topic: str, code: int, remark: str
) -> None:
    answer = await answer_to(harness, send_request(topic))
    assert (answer.code, answer.remark, answer.fields) == (code, remark, COMMON)
    assert harness.records() == []


async def test_a_topic_is_created_from_the_default_topic(harness: SendHarness) -> None:
    answer = await answer_to(harness, send_request("Fresh", d="3", e="2"))
    assert answer.code == 0
    created = harness.topics.get("Fresh")
    assert created is not None
    assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (3, 3, 6)


@pytest.mark.parametrize(("topic", "sys_flag"), [("Fresh", 1), ("%RETRY%Group", 2)])
async def test_a_topic_of_a_unit(harness: SendHarness, topic: str, sys_flag: int) -> None:
    await answer_to(harness, send_request(topic, k="true"))
    created = harness.topics.get(topic)
    assert created is not None
    assert created.topic_sys_flag == sys_flag


async def test_a_topic_that_may_not_be_created(tmp_path: Path) -> None:
    with SendHarness(tmp_path, properties={"autoCreateTopicEnable": "false"}) as harness:
        answer = await answer_to(harness, send_request("Fresh"))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark == (
            "topic[Fresh] not exist, apply first please!\n"
            "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )
        assert answer.fields == COMMON
        # A retry topic is created nevertheless, with one queue.
        answer = await answer_to(harness, send_request("%RETRY%Group"))
        assert answer.code == 0
        created = harness.topics.get("%RETRY%Group")
        assert created is not None
        assert created.write_queue_nums == 1


async def test_a_queue_out_of_range(harness: SendHarness) -> None:
    answer = await answer_to(harness, send_request(e="4"))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark == (
        "request queueId[4] is illegal, TopicConfig [topicName=TopicTest, readQueueNums=4, "
        "writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, "
        "attributes={}] Producer: 127.0.0.1:50001"
    )
    assert answer.fields == COMMON


async def test_a_read_only_queue_can_be_sent_to(harness: SendHarness) -> None:
    config = harness.topics.get("TopicTest")
    assert config is not None
    harness.add_topic("Shrunk", 4)
    shrunk = harness.topics.get("Shrunk")
    assert shrunk is not None
    shrunk.write_queue_nums = 1
    assert (await answer_to(harness, send_request("Shrunk", e="3"))).code == 0


async def test_sends_to_a_negative_queue_are_spread_evenly(harness: SendHarness) -> None:
    answers = await harness.ask(*(send_request(e="-1") for _ in range(2_000)))
    chosen = Counter(int(answer.fields["queueId"]) for answer in answers)
    assert chosen == Counter(record.queue_id for record in harness.records())
    assert chosen.keys() == {0, 1, 2, 3}
    # 500 each, give or take six standard deviations.
    assert all(380 < count < 620 for count in chosen.values()), chosen


async def test_a_random_queue_of_a_topic_without_queues(harness: SendHarness) -> None:
    harness.add_topic("Empty", 0)
    answer = await answer_to(harness, send_request("Empty", e="-1"))
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_a_read_only_broker_refuses_sends_to_ordered_topics(tmp_path: Path) -> None:
    with SendHarness(tmp_path, properties={"brokerPermission": "4"}) as harness:
        harness.add_topic("Ordered", order=True)
        harness.add_topic("Plain")
        answer = await answer_to(harness, send_request("Ordered"))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[127.0.0.1] sending message is forbidden"
        assert (await answer_to(harness, send_request("Plain"))).code == 0


async def test_a_broker_that_does_not_accept_sends_yet(tmp_path: Path) -> None:
    clock = ManualClock()
    later = str(clock.now_ms() + 60_000)
    properties = {"startAcceptSendRequestTimeStamp": later}
    with SendHarness(tmp_path, clock=clock, properties=properties) as harness:
        answer = await answer_to(harness, send_request())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("broker unable to service, until 20")
        assert answer.remark.endswith(f",{int(later) % 1000:03d}")


async def test_a_slave_refuses_sends(tmp_path: Path) -> None:
    with SendHarness(tmp_path, properties={"brokerRole": "SLAVE", "brokerId": "1"}) as harness:
        answer = await answer_to(harness, send_request())
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"
        assert answer.ext_fields is None


@pytest.mark.parametrize("field", list("abcdefgh"))
async def test_a_missing_field(harness: SendHarness, field: str) -> None:
    changes: dict[str, Any] = {field: None}
    answer = await answer_to(harness, send_request(**changes))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert harness.records() == []


@pytest.mark.parametrize("field", list("defghjl"))
@pytest.mark.parametrize("value", ["x", "1.5", "99999999999999999999", "0x10", " 1"])
async def test_a_mistyped_field(harness: SendHarness, field: str, value: str) -> None:
    changes: dict[str, Any] = {field: value}
    answer = await answer_to(harness, send_request(**changes))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert f"field {field}" in answer.remark
    assert harness.records() == []


# Limits and the store's refusals

ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length "
    "limit 4194304B, msg properties length limit 32KB."
)


@pytest.mark.parametrize(
    "changes",
    [
        {"body": b""},
        {"body": b"x" * (4194304 + 1)},
        {"properties": "p\x01" + "x" * 32767 + "\x02"},
        {"properties": "INNER_NUM\x013\x02"},
        {"f": "128"},
    ],
)
async def test_illegal_messages(tmp_path: Path, changes: dict[str, Any]) -> None:
    with SendHarness(tmp_path, segment_bytes=8 << 20) as harness:
        harness.add_topic("TopicTest")
        answer = await answer_to(harness, send_request(**changes))
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
        assert answer.fields == COMMON


async def test_the_largest_message(tmp_path: Path) -> None:
    with SendHarness(tmp_path, segment_bytes=8 << 20) as harness:
        harness.add_topic("TopicTest")
        assert (await answer_to(harness, send_request(body=b"x" * 4194304))).code == 0


async def test_a_timer_message_is_refused_as_without_a_timer_wheel(harness: SendHarness) -> None:
    answer = await answer_to(harness, send_request(properties="TIMER_DELAY_SEC\x012\x02"))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "accurate timer message is not enabled, this broker has no timer wheel",
    )


async def test_a_delay_that_is_not_a_number(harness: SendHarness) -> None:
    answer = await answer_to(harness, send_request(properties="DELAY\x01soon\x02"))
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_store_that_refuses_messages(harness: SendHarness) -> None:
    harness.store.abandon()
    answer = await answer_to(harness, send_request())
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark is not None
    assert answer.remark.startswith(
        "service not available now. It may be caused by one of the following reasons: "
        "the broker's disk is full [CL: "
    )
    assert "messages are put to the slave, message store has been shut down, etc." in answer.remark
    assert answer.fields == COMMON


async def test_a_refused_send_does_not_measure_the_disk(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path / "store")
    with SendHarness(tmp_path, files=files) as harness:
        harness.add_topic("TopicTest")
        measured = files.count("usage")
        harness.store.abandon()
        (answer,) = await harness.ask(send_request())
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "[CL:  0.00" not in (answer.remark or "")
        assert files.count("usage") == measured


async def test_a_disk_that_does_not_confirm_in_time(tmp_path: Path) -> None:
    with SendHarness(tmp_path, flush_mode=FlushMode.SYNC) as harness:
        harness.add_topic("TopicTest")
        harness.appender.flush_timeout_ms = 20
        harness.flush_worker.is_held = True
        waits, does_not = await harness.ask(
            send_request(body=b"1"), send_request(body=b"2", properties="WAIT\x01false\x02")
        )
        assert waits.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert waits.fields["msgId"]
        assert waits.remark is None
        assert does_not.code == 0
        harness.flush_worker.is_held = False


async def test_sends_that_wait_too_long_are_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    with SendHarness(tmp_path, clock=clock) as harness:
        harness.add_topic("TopicTest")
        peer, connection = harness.connect()
        connection.data_received(encode_frame(send_request()))
        clock.advance(250)
        (answer,) = await peer.receive(1)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark == (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            "period in queue: 250ms, size of queue: 1"
        )
        assert answer.ext_fields is None
        assert harness.records() == []
        connection.close()


async def test_sends_beyond_the_queue_capacity_are_refused(tmp_path: Path) -> None:
    with SendHarness(tmp_path, properties={"sendThreadPoolQueueCapacity": "3"}) as harness:
        harness.add_topic("TopicTest")
        answers = await harness.ask(*(send_request() for _ in range(5)))
        assert [answer.code for answer in answers] == [0, 0, 0, 2, 2]
        assert answers[-1].remark == "[OVERLOAD]system busy, start flow control for a while"
        assert (await answer_to(harness, send_request())).code == 0


# Delays, retries, transactions


async def test_a_delayed_message_waits_in_its_level(harness: SendHarness) -> None:
    answer = await answer_to(harness, send_request(e="3", properties="DELAY\x0199\x02"))
    assert (answer.code, answer.fields["queueId"]) == (0, "3")
    (record,) = harness.records()
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 17)
    properties = decode_properties(record.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("TopicTest", "3")
    assert list(harness.stats.puts) == ["SCHEDULE_TOPIC_XXXX"]


@pytest.mark.parametrize(
    ("changes", "is_dead"),
    [
        ({"j": "16"}, False),
        ({"j": "17"}, True),
        ({"j": "3", "l": "2"}, True),
        ({"j": "3", "l": "2", "version": 100}, False),
        ({"j": "100", "l": "200"}, False),
    ],
)
async def test_a_message_that_failed_too_often_goes_to_the_dead_letter_queue(
    harness: SendHarness, changes: dict[str, Any], is_dead: bool
) -> None:
    properties = "DELAY\x013\x02RETRY_TOPIC\x01TopicTest\x02"
    answer = await answer_to(
        harness, send_request("%RETRY%Group", properties=properties, d="1", **changes)
    )
    assert answer.code == 0
    (record,) = harness.records()
    assert record.reconsume_times == int(changes["j"])
    if is_dead:
        assert (record.topic, record.queue_id) == ("%DLQ%Group", 0)
        assert decode_properties(record.properties)["DELAY"] == "-1"
        created = harness.topics.get("%DLQ%Group")
        assert created is not None
        assert (created.write_queue_nums, created.perm) == (1, 6)
    else:
        assert record.topic == "SCHEDULE_TOPIC_XXXX"


async def test_a_group_that_consumes_in_order_does_not_retry(tmp_path: Path) -> None:
    with SendHarness(tmp_path, has_live_locks=lambda group: group == "Orderly") as harness:
        for group in ("Orderly", "Other"):
            await answer_to(harness, send_request(f"%RETRY%{group}", j="1"))
        assert [record.topic for record in harness.records()] == ["%DLQ%Orderly", "%RETRY%Other"]


async def test_a_retry_of_an_unknown_group(tmp_path: Path) -> None:
    with SendHarness(tmp_path, properties={"autoCreateSubscriptionGroup": "false"}) as harness:
        answer = await answer_to(harness, send_request("%RETRY%Group"))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark == (
            "subscription group not exist, Group \n"
            "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )


def as_half(message: NewMessage) -> NewMessage:
    properties = message.properties | {"REAL_TOPIC": message.topic}
    return replace(message, topic="RMQ_SYS_TRANS_HALF_TOPIC", queue_id=0, properties=properties)


async def test_a_half_message_is_transformed(tmp_path: Path) -> None:
    with SendHarness(tmp_path, as_half=as_half) as harness:
        harness.add_topic("TopicTest")
        properties = f"TRAN_MSG\x01true\x02UNIQ_KEY\x01{UNIQUE_ID}\x02PGROUP\x01P\x02"
        answer = await answer_to(harness, send_request(e="2", properties=properties))
        assert (answer.code, answer.fields["queueId"]) == (0, "2")
        assert answer.fields["transactionId"] == UNIQUE_ID
        (record,) = harness.records()
        assert record.topic == "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.mark.parametrize("hook", [None, as_half])
async def test_transactions_may_be_refused(tmp_path: Path, hook: Any) -> None:
    properties = {"rejectTransactionMessage": "true"} if hook else {}
    with SendHarness(tmp_path, as_half=hook, properties=properties) as harness:
        harness.add_topic("TopicTest")
        answer = await answer_to(harness, send_request(properties="TRAN_MSG\x01true\x02"))
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            "the broker[127.0.0.1] sending transaction message is forbidden",
        )


async def test_a_half_message_sent_back_by_an_old_client_is_delayed(tmp_path: Path) -> None:
    with SendHarness(tmp_path, as_half=as_half) as harness:
        properties = "TRAN_MSG\x01true\x02DELAY\x013\x02"
        await answer_to(harness, send_request("%RETRY%Group", properties=properties, j="1"))
        (record,) = harness.records()
        assert record.topic == "SCHEDULE_TOPIC_XXXX"


async def test_a_compacted_topic_needs_keys(harness: SendHarness) -> None:
    harness.add_topic("Compacted", attributes={"cleanup.policy": "COMPACTION"})
    answer = await answer_to(harness, send_request("Compacted"))
    assert (answer.code, answer.remark) == (13, "Required message key is missing")
    assert (await answer_to(harness, send_request("Compacted", properties="KEYS\x01k"))).code == 0


async def test_messages_of_a_multi_tag_topic_are_marked(harness: SendHarness) -> None:
    harness.add_topic("Many", topic_filter_type="MULTI_TAG")
    await answer_to(harness, send_request("Many", f="1"))
    (record,) = harness.records()
    assert record.sys_flag == 3


# Batches


def batch_request(*bodies: bytes, **changes: Any) -> RemotingCommand:
    entries = [BatchEntry(body, b"UNIQ_KEY\x01%d" % at, at) for at, body in enumerate(bodies)]
    values: dict[str, Any] = {
        "code": RequestCode.SEND_BATCH_MESSAGE,
        "body": encode_batch(entries),
        "properties": "WAIT\x01true\x02",
    }
    return send_request(**(values | changes))


async def test_a_batch(harness: SendHarness) -> None:
    await answer_to(harness, send_request(e="2"))
    answer = await answer_to(harness, batch_request(b"1", b"22", b"", e="2"))
    assert answer.code == 0
    records = harness.records()[1:]
    assert [record.body for record in records] == [b"1", b"22", b""]
    assert [record.properties for record in records] == [b"UNIQ_KEY\x01%d" % n for n in range(3)]
    assert [record.flag for record in records] == [0, 1, 2]
    assert [record.queue_offset for record in records] == [1, 2, 3]
    assert list(answer.fields) == ["queueId", "msgId", "TRACE_ON", "MSG_REGION", "queueOffset"]
    assert answer.fields["msgId"] == ",".join(
        f"7F00000100002A9F{record.physical_offset:016X}" for record in records
    )
    assert answer.fields["queueOffset"] == "1"
    assert harness.stats.puts["TopicTest"][0] == 4


async def test_a_batch_with_its_own_id(harness: SendHarness) -> None:
    answer = await answer_to(harness, batch_request(b"1", properties="UNIQ_KEY\x01ABC\x02"))
    assert answer.fields["transactionId"] == "ABC"


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        (
            {"topic": "%RETRY%Group"},
            13,
            "batch request does not support retry group %RETRY%Group",
        ),
        ({"topic": "%DLQ%" + "g" * 130}, 13, "message topic length too long 135"),
        ({"properties": "DELAY\x013\x02"}, 13, ILLEGAL),
        ({"f": "4"}, 13, ILLEGAL),
        ({"f": "8"}, 13, ILLEGAL),
        ({"body": b""}, 13, ILLEGAL),
        ({"properties": "TIMER_DELAY_SEC\x013\x02"}, 1, None),
        ({"body": b"\0\0\0\x17 no batch at all"}, 1, None),
        ({"body": b"\0\0\0\x16" + bytes(12) + b"\x7f\xff\xff\xff\0\0"}, 1, None),
    ],
)
async def test_batches_that_are_refused(
    harness: SendHarness, changes: dict[str, Any], code: int, remark: str | None
) -> None:
    answer = await answer_to(harness, batch_request(b"1", b"2", **changes))
    assert answer.code == code
    assert remark is None or answer.remark == remark
    assert harness.records() == []


@pytest.mark.parametrize("lane", [False, True])
async def test_a_batch_is_one_request_however_many_messages_it_has(
    tmp_path: Path, lane: bool
) -> None:
    with SendHarness(tmp_path, properties={"sendThreadPoolQueueCapacity": "3"}) as harness:
        harness.add_topic("TopicTest")
        (first, taken), (second, refused) = harness.connect(lane=lane), harness.connect(lane=lane)
        batches = (batch_request(b"1", b"2", b"3", b"4") for _ in range(3))
        taken.data_received(b"".join(map(encode_frame, batches)))
        refused.data_received(encode_frame(batch_request(b"5")))
        assert [answer.code for answer in await first.receive(3)] == [0, 0, 0]
        (answer,) = await second.receive(1)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert len(harness.records()) == 12
        taken.close()
        refused.close()


async def test_a_batch_of_too_many_messages(harness: SendHarness) -> None:
    body = encode_batch([BatchEntry(b"", b"", 0)] * (MAX_BATCH_MESSAGES + 1))
    answer = await answer_to(harness, batch_request(body=body))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == "a batch has 32768 messages at most; send the others in another"
    assert harness.records() == []


async def test_a_batch_longer_than_a_segment(tmp_path: Path) -> None:
    with SendHarness(tmp_path, segment_bytes=4096) as harness:
        harness.add_topic("TopicTest")
        answer = await answer_to(harness, batch_request(*[b"x" * 1000] * 5))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert harness.records() == []


async def test_order_within_a_connection(harness: SendHarness) -> None:
    requests = [
        send_request(body=b"0"),
        send_request(body=b"1", properties="DELAY\x011\x02"),
        batch_request(b"2", b"3"),
        send_request("Fresh", body=b"4"),
        send_request(body=b"5"),
    ]
    answers = await harness.ask(*requests)
    assert [answer.code for answer in answers] == [0] * 5
    assert [record.body for record in harness.records()] == [b"%d" % n for n in range(6)]


async def test_a_disconnected_peer_is_not_answered(harness: SendHarness) -> None:
    peer, connection = harness.connect()
    connection.data_received(encode_frame(send_request()))
    peer.transport.abort()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(harness.records()) == 1
