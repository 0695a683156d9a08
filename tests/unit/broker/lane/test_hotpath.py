"""The hot path: which sends it handles, which it leaves, in which order, and its answers.

tests/property checks that its records and answers equal those of the general path; these tests also
check that the hot path handled the sends.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.lane import hotpath
from goddard.broker.lane.sendwire import BinarySends, read_long, read_short
from goddard.broker.sending.send import MAX_BATCH_MESSAGES
from goddard.protocol.codes import RequestCode, ResponseCode, SerializeType
from goddard.protocol.frame import (
    MAX_HEADER_BYTES,
    FrameDecoder,
    RemotingCommand,
    encode_frame,
)
from goddard.protocol.message import BatchEntry, encode_batch
from goddard.store.config import FlushMode
from tests.support.clock import ManualClock
from tests.support.memory import RawPeer
from tests.support.send_harness import SendHarness, send_request

UNIQUE_ID = "7F0000014E9F5FFD2B274A0404820001"
PLAIN = f"KEYS\x01k1\x02UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
BATCH = encode_batch([BatchEntry(b"1", b"TAGS\x01a"), BatchEntry(b"22")])


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SendHarness]:
    with SendHarness(tmp_path) as harness:
        harness.add_topic("TopicTest")
        yield harness


def frames_of(*requests: RemotingCommand) -> list[memoryview]:
    return FrameDecoder().feed(b"".join(map(encode_frame, requests)))


async def left_over(harness: SendHarness, *requests: RemotingCommand) -> list[int]:
    """The indexes of the requests that the hot path leaves to the general path."""
    peer, connection = harness.connect()
    frames = frames_of(*requests)
    rest = harness.hot_path.on_frames(connection, frames)
    await harness.appender.drain()
    connection.close()
    await peer.lost.wait()
    return [frames.index(frame) for frame in rest]


# Sends that it handles


@pytest.mark.parametrize("encoding", list(SerializeType))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"code": RequestCode.SEND_MESSAGE},
        {"properties": PLAIN[:-1]},
        {"properties": f"UNIQ_KEY\x01{UNIQUE_ID}\x02"},
        {"properties": f"名\x01値\x02UNIQ_KEY\x01{UNIQUE_ID}\x02"},
        {"f": "769"},
        {"h": "77"},
        {"n": None},
        {"j": None, "k": None, "m": None},
        {"oneway": True},
        {"AccessKey": "key", "Signature": "signature="},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH, "properties": "WAIT\x01true"},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH, "i": None},
        {"code": RequestCode.SEND_MESSAGE_V2, "body": BATCH, "m": "true"},
    ],
)
async def test_plain_sends_are_handled(
    harness: SendHarness, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    values = {"properties": PLAIN, "serialize_type": encoding, **changes}
    assert await left_over(harness, send_request(**values)) == []
    assert harness.store.log_max_offset > 0


async def test_fields_in_any_order(harness: SendHarness) -> None:
    for encoding in SerializeType:
        request = send_request(properties=PLAIN, serialize_type=encoding)
        request.ext_fields = dict(reversed(request.fields.items()))
        assert await left_over(harness, request) == []


async def test_json_numbers_and_booleans(harness: SendHarness) -> None:
    """As the C++ client sends them."""
    request = send_request(properties=PLAIN, e="3", g="7", m="false", opaque=5)
    header = encode_frame(request)[8 : -len(request.body)]
    for quoted in (b'"3"', b'"7"', b'"0"', b'"false"'):
        header = header.replace(quoted, quoted[1:-1])
    frame = memoryview(len(header).to_bytes(4, "big") + header + b"body")
    peer, connection = harness.connect()
    assert harness.hot_path.on_frames(connection, [frame]) == []
    (answer,) = await peer.receive(1)
    assert (answer.code, answer.fields["queueId"], answer.opaque) == (0, "3", 5)
    (record,) = harness.records()
    assert (record.queue_id, record.born_timestamp_ms, record.body) == (3, 7, b"body")
    connection.close()


@pytest.mark.parametrize(
    "field",
    [
        "d",
        "e",
        "f",
        "g",
        "h",
        "j",
        "l",
        "defaultTopicQueueNums",
        "queueId",
        "sysFlag",
        "bornTimestamp",
        "flag",
        "reconsumeTimes",
        "maxReconsumeTimes",
    ],
)
def test_only_plain_numbers_are_numbers(field: str) -> None:
    is_short = len(field) == 1
    code = RequestCode.SEND_MESSAGE_V2 if is_short else RequestCode.SEND_MESSAGE
    read = read_short if is_short else read_long
    request = send_request(code=code)
    request.fields[field] = "77"
    header = bytes(frames_of(request)[0][4:-5])
    assert header.count(b'"77"') == 1
    for good in (b'"77"', b'"-7"', b"77", b"-7", b" 7 "):
        assert read(memoryview(header.replace(b'"77"', good))) is not None, good
    for odd in (b"1.0", b"1e0", b"null", b"+1", b"0x1", b"1_0", b"\\u0031.0", b""):
        for value in (odd, b'"%b"' % odd):
            assert read(memoryview(header.replace(b'"77"', value))) is None, value


# Sends that it leaves


@pytest.mark.parametrize("encoding", list(SerializeType))
@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "Fresh"},
        {"topic": "%RETRY%Group"},
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        {"topic": "Many"},
        {"topic": "Compacted"},
        {"e": "-1"},
        {"e": "4"},
        {"e": "9999999999"},
        {"f": "4"},
        {"f": "8"},
        {"f": "128"},
        {"f": "16"},
        {"h": "x"},
        {"h": "2147483648"},
        {"g": "9223372036854775808"},
        {"j": "1"},
        {"l": "x"},
        {"d": None},
        {"a": None},
        {"body": b""},
        {"body": b"x" * 4_194_305},
        {"properties": "KEYS\x01k\x02"},
        {"properties": f"UNIQ_KEY\x01{UNIQUE_ID}\x02" * 2},
        {"properties": f"UNIQ_KEY\x01{UNIQUE_ID}\x02a\x02b\x01c\x01d\x02"},
        {"properties": f"UNIQ_KEY\x01{UNIQUE_ID}\x02a\x01\x02"},
        {"properties": f"UNIQ_KEY\x01{UNIQUE_ID}\x02\x02"},
        {"properties": 'UNIQ_KEY\x01"\x02'},
        {"properties": PLAIN + "DELAY\x013\x02"},
        {"properties": PLAIN + "TRAN_MSG\x01true\x02"},
        {"properties": PLAIN + "POP_CK\x01x\x02"},
        {"properties": PLAIN + "TIMER_DELIVER_MS\x017\x02"},
        {"properties": PLAIN + "INNER_NUM\x017\x02"},
        {"properties": PLAIN + "CLUSTER\x01x\x02"},
        {"properties": PLAIN + "MSG_REGION\x01x\x02"},
        {"properties": PLAIN + "p\x01" + "x" * 32_700 + "\x02"},
        {"properties": PLAIN + "".join(f"p{n}\x01v\x02" for n in range(40))},
        {"properties": PLAIN + "n" * 600 + "\x01v\x02"},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH + b"\0"},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH[:-1]},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": bytes(22)},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": b"\xff" * 22},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH, "e": "4"},
        {
            "code": RequestCode.SEND_BATCH_MESSAGE,
            "body": BATCH,
            "properties": "DELAY\x013\x02",
        },
        {"code": RequestCode.HEART_BEAT},
        {"code": RequestCode.SEND_MESSAGE, "b": "TopicTest"},
    ],
)
async def test_special_sends_are_left(
    harness: SendHarness, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    harness.add_topic("Many", topic_filter_type="MULTI_TAG")
    harness.add_topic("Compacted", attributes={"cleanup.policy": "COMPACTION"})
    values = {"properties": PLAIN, "serialize_type": encoding, **changes}
    assert await left_over(harness, send_request(**values)) == [0]
    assert harness.store.log_max_offset == 0


async def test_a_batch_of_too_many_messages_is_left(harness: SendHarness) -> None:
    body = encode_batch([BatchEntry(b"", b"", 0)] * (MAX_BATCH_MESSAGES + 1))
    request = send_request(code=RequestCode.SEND_BATCH_MESSAGE, body=body)
    assert await left_over(harness, request) == [0]


async def test_a_compiled_pattern_refuses_what_the_parser_refuses(harness: SendHarness) -> None:
    """After enough messages with one property layout, a pattern matches them."""
    for _ in range(12):
        assert await left_over(harness, send_request(properties=PLAIN)) == []
    for properties in (
        PLAIN.replace("k1", "k\x011"),
        PLAIN.replace("k1", ""),
        PLAIN.replace(UNIQUE_ID, "é"),
        PLAIN + "DELAY\x011\x02",
        "DELAY\x011\x02" + PLAIN,
    ):
        assert await left_over(harness, send_request(properties=properties)) == [0]
    # Another layout, then the first one again.
    for properties in (f"UNIQ_KEY\x01{UNIQUE_ID}\x02", PLAIN):
        assert await left_over(harness, send_request(properties=properties)) == []


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b'{"code":310,',
        b'{"code":310,"extFields":null,"opaque":1}',
        b'{"code":310,"extFields":{"b":"TopicTest"},"opaque":1}',
        b'{"code":310,"code":34,"extFields":{"b":"TopicTest"}}',
        b'{"code":10,"' + b"[" * 3000,
        b"\xff" * 40,
    ],
)
def test_headers_that_cannot_be_read(header: bytes) -> None:
    assert read_short(memoryview(header)) is None
    assert read_long(memoryview(header)) is None


def test_binary_headers_that_cannot_be_read() -> None:
    whole = bytes(frames_of(send_request(serialize_type=SerializeType.ROCKETMQ))[0][4:-5])
    reader = BinarySends()
    assert reader.read(memoryview(whole)) is not None
    for length in range(len(whole)):
        assert reader.read(memoryview(whole[:length])) is None
    for position in range(len(whole)):
        for value in (0, 0x7F, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[position] = value
            reader.read(memoryview(damaged))  # must not raise, whatever it reads


def test_the_last_of_duplicate_fields_counts() -> None:
    request = send_request(serialize_type=SerializeType.ROCKETMQ)
    fields = request.fields
    frame = bytes(frames_of(request)[0][4:-5])
    again = b"\0\1b\0\0\0\5Other"
    doubled = frame[:17] + (len(frame) - 21 + len(again)).to_bytes(4, "big") + frame[21:] + again
    read = BinarySends().read(memoryview(doubled))
    assert read is not None
    assert (fields["b"], read.fields.topic) == ("TopicTest", "Other")


# Changes of topics and configuration


async def test_a_changed_topic_is_checked_again(harness: SendHarness) -> None:
    assert await left_over(harness, send_request(properties=PLAIN, e="3")) == []
    harness.add_topic("TopicTest", 2)
    assert await left_over(harness, send_request(properties=PLAIN, e="3")) == [0]
    harness.topics.delete("TopicTest")
    assert await left_over(harness, send_request(properties=PLAIN)) == [0]
    harness.add_topic("TopicTest", 1)
    assert await left_over(harness, send_request(properties=PLAIN)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"brokerPermission": "4"},
        {"startAcceptSendRequestTimeStamp": str(10**15)},
        {"brokerRole": "SLAVE"},
        {"maxMessageSize": "3"},
        {"brokerIP1": "::1"},
    ],
)
async def test_a_configuration_that_disables_the_path(
    harness: SendHarness, change: dict[str, str]
) -> None:
    harness.settings.replace(harness.settings.current.updated(change))
    assert await left_over(harness, send_request(properties=PLAIN)) == [0]


async def test_answers_and_records_follow_the_configuration(harness: SendHarness) -> None:
    change = {"regionId": 'r"%d', "traceOn": "false", "brokerIP1": "10.1.2.3"}
    harness.settings.replace(harness.settings.current.updated(change))
    for encoding in SerializeType:
        request = send_request(properties=PLAIN, serialize_type=encoding)
        (answer,) = await harness.ask(request, hot=True)
        assert answer.fields["MSG_REGION"] == 'r"%d'
        assert answer.fields["TRACE_ON"] == "false"
        assert answer.fields["msgId"].startswith("0A01020300002A9F")
    assert b"MSG_REGION\x01r" in harness.records()[0].properties


async def test_sends_of_ipv6_peers_are_left(harness: SendHarness) -> None:
    _, connection = harness.connect()
    connection.remote = "[::1]:50001"
    frames = frames_of(send_request(properties=PLAIN))
    assert harness.hot_path.on_frames(connection, frames) == frames
    connection.close()


# Order and answers


async def test_sends_after_a_special_send_of_the_chunk_are_left(
    harness: SendHarness,
) -> None:
    requests = [
        send_request(body=b"0", properties=PLAIN),
        send_request(code=RequestCode.HEART_BEAT),
        send_request(body=b"2", properties=PLAIN),
        send_request(body=b"3", properties=PLAIN + "DELAY\x011\x02"),
        send_request(body=b"4", properties=PLAIN),
        send_request(code=RequestCode.HEART_BEAT),
    ]
    assert await left_over(harness, *requests) == [1, 3, 4, 5]
    assert [record.body for record in harness.records()] == [b"0", b"2"]


async def test_the_order_of_a_connection_is_the_order_of_the_log(harness: SendHarness) -> None:
    def batch(*bodies: bytes) -> RemotingCommand:
        return send_request(
            code=RequestCode.SEND_BATCH_MESSAGE,
            body=encode_batch(BatchEntry(body) for body in bodies),
            properties="WAIT\x01true\x02",
        )

    requests = [
        send_request(body=b"0", properties=PLAIN),
        batch(b"1", b"2"),
        send_request(body=b"3", properties=PLAIN),
        send_request(body=b"4", properties=PLAIN + "DELAY\x011\x02"),
        send_request(body=b"5", properties=PLAIN),
        batch(b"6"),
        send_request(body=b"7", properties=PLAIN),
    ]
    answers = await harness.ask(*requests, hot=True)
    assert [answer.code for answer in answers] == [0] * len(requests)
    assert [record.body for record in harness.records()] == [b"%d" % n for n in range(8)]


async def test_answers_of_a_chunk_leave_in_one_write(harness: SendHarness) -> None:
    peer, connection = harness.connect(hot=True)
    requests = [send_request(properties=PLAIN, e=str(n % 4)) for n in range(20)]
    connection.data_received(b"".join(map(encode_frame, requests)))
    answers = await peer.receive(20)
    assert peer.chunks == 1
    assert [answer.opaque for answer in answers] == [request.opaque for request in requests]
    connection.close()


async def test_connections_of_one_tick_share_an_append(harness: SendHarness) -> None:
    ends = [harness.connect(hot=True) for _ in range(3)]
    for _, connection in ends:
        connection.data_received(encode_frame(send_request(properties=PLAIN)))
    assert harness.appender.queued_requests == 3
    for peer, connection in ends:
        (answer,) = await peer.receive(1)
        assert answer.code == 0
        connection.close()


async def test_one_way_sends_are_counted_and_not_answered(harness: SendHarness) -> None:
    peer, connection = harness.connect(hot=True)
    requests = [
        send_request(properties=PLAIN, oneway=True),
        send_request(
            code=RequestCode.SEND_BATCH_MESSAGE, body=BATCH, properties=PLAIN, oneway=True
        ),
        send_request(properties=PLAIN),
    ]
    connection.data_received(b"".join(map(encode_frame, requests)))
    await peer.receive(1)
    assert peer.received.empty()
    assert harness.stats.puts["TopicTest"] == (4, harness.store.log_max_offset)
    connection.close()


async def test_a_peer_that_has_disconnected(harness: SendHarness) -> None:
    peer, connection = harness.connect(hot=True)
    connection.data_received(encode_frame(send_request(properties=PLAIN)))
    peer.transport.abort()
    await peer.lost.wait()
    await harness.appender.drain()
    assert len(harness.records()) == 1


# The disk


async def answers_while_held(
    harness: SendHarness, *requests: RemotingCommand
) -> tuple[RawPeer, Any]:
    harness.flush_worker.is_held = True
    peer, connection = harness.connect(hot=True)
    connection.data_received(b"".join(map(encode_frame, requests)))
    for _ in range(5):
        await asyncio.sleep(0)
    return peer, connection


async def test_sync_flush_answers_when_the_disk_has_it(tmp_path: Path) -> None:
    with SendHarness(tmp_path, flush_mode=FlushMode.SYNC) as harness:
        harness.add_topic("TopicTest")
        peer, connection = await answers_while_held(
            harness,
            send_request(properties=PLAIN),
            send_request(code=RequestCode.SEND_BATCH_MESSAGE, body=BATCH, properties=PLAIN),
        )
        assert peer.received.empty()
        harness.flush_worker.is_held = False
        harness.flush_worker.run()
        answers = await peer.receive(2)
        assert [answer.code for answer in answers] == [0, 0]
        connection.close()


async def test_sends_that_do_not_wait_for_the_disk_are_left(tmp_path: Path) -> None:
    with SendHarness(tmp_path, flush_mode=FlushMode.SYNC) as harness:
        harness.add_topic("TopicTest")
        impatient = PLAIN.replace("true", "false")
        for _ in range(2):
            assert await left_over(harness, send_request(properties=impatient)) == [0]
            for _ in range(9):  # the same when there is a pattern
                assert await left_over(harness, send_request(properties=PLAIN)) == []


async def test_a_known_form_is_only_for_sends_that_wait_for_the_disk(tmp_path: Path) -> None:
    with SendHarness(tmp_path, flush_mode=FlushMode.SYNC) as harness:
        harness.add_topic("TopicTest")
        assert await left_over(harness, *(similar_send(number) for number in range(20))) == []
        assert harness.hot_path.known_forms == 1
        impatient = similar_send(20)
        impatient.fields["i"] = impatient.fields["i"].replace("true", "nope")
        assert await left_over(harness, impatient) == [0]


async def test_a_disk_that_does_not_confirm_in_time(tmp_path: Path) -> None:
    with SendHarness(tmp_path, flush_mode=FlushMode.SYNC) as harness:
        harness.add_topic("TopicTest")
        harness.appender.flush_timeout_ms = 20
        peer, connection = await answers_while_held(
            harness,
            send_request(properties=PLAIN, serialize_type=SerializeType.ROCKETMQ),
            send_request(code=RequestCode.SEND_BATCH_MESSAGE, body=BATCH),
        )
        one, batch = await peer.receive(2)
        assert [one.code, batch.code] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
        assert one.fields["transactionId"] == UNIQUE_ID
        assert one.serialize_type is SerializeType.ROCKETMQ
        assert batch.fields["msgId"].count(",") == 1
        harness.flush_worker.is_held = False
        connection.close()


async def test_hot_sends_to_a_closed_store_are_refused(harness: SendHarness) -> None:
    harness.store.abandon()
    answers = await harness.ask(
        send_request(properties=PLAIN),
        send_request(code=RequestCode.SEND_BATCH_MESSAGE, body=BATCH),
        hot=True,
    )
    assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert answers[0].fields == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}


async def test_sends_that_waited_too_long_are_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    with SendHarness(tmp_path, clock=clock) as harness:
        harness.add_topic("TopicTest")
        peer, connection = harness.connect(hot=True)
        connection.data_received(encode_frame(send_request(properties=PLAIN)))
        clock.advance(200)
        (answer,) = await peer.receive(1)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark is not None
        assert answer.remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")
        assert harness.records() == []
        connection.close()


async def test_caches_are_bounded(harness: SendHarness) -> None:
    requests = [
        send_request(properties=f"UNIQ_KEY\x01a{n}\x02TAGS\x01t{n}\x02p{n}\x01v\x02")
        for n in range(5000)
    ]
    harness.settings.replace(
        harness.settings.current.updated({"sendThreadPoolQueueCapacity": "1000000"})
    )
    assert await left_over(harness, *requests) == []
    assert harness.hot_path.remembered <= 2 * 4096


async def test_caches_of_headers_are_bounded(
    harness: SendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hotpath, "_MAX_MEMORIES", 16)
    most = 0
    for group in range(40):
        requests = (similar_send(number, a=f"Group{group}") for number in range(12))
        assert await left_over(harness, *requests) == []
        most = max(most, harness.hot_path.known_forms)
        assert harness.hot_path.remembered <= 2 * 16 + 8  # and a few layouts and tags
    assert most == 16


async def test_submissions_of_other_paths_keep_their_place(harness: SendHarness) -> None:
    """Runs of the hot path are joined only if nothing was submitted between them."""
    hot_peer, hot = harness.connect(hot=True)
    long_peer, long = harness.connect()
    for body, connection in ((b"1", hot), (b"2", hot), (b"3", long), (b"4", hot), (b"5", hot)):
        connection.data_received(encode_frame(send_request(body=body, properties=PLAIN)))
    assert len(await hot_peer.receive(4)) == 4
    assert len(await long_peer.receive(1)) == 1
    assert [record.body for record in harness.records()] == [b"1", b"2", b"3", b"4", b"5"]
    # A later submission does not change what was appended before.
    long.data_received(encode_frame(send_request(body=b"6", properties=PLAIN)))
    hot.data_received(encode_frame(send_request(body=b"7", properties=PLAIN)))
    assert len(await hot_peer.receive(1)) == 1
    assert [record.body for record in harness.records()][5:] == [b"6", b"7"]
    for connection in (hot, long):
        connection.close()


def similar_send(number: int, **changes: Any) -> RemotingCommand:
    """One of many sends that differ only in values."""
    properties = (
        f"KEYS\x01key{number % 10}\x02UNIQ_KEY\x017F0000014E9F5FFD2B274A040482{number:04X}\x02"
        f"WAIT\x01true\x02TAGS\x01Tag{'AB'[number % 2]}\x02"
    )
    numbers = {"opaque": 1000 + number, "e": str(number % 4), "g": str(1794732977282 + number)}
    return send_request(properties=properties, **{**numbers, **changes})


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_sends_of_one_form_are_stored_and_answered_as_others(
    tmp_path: Path, serialize_type: SerializeType
) -> None:
    outcomes = []
    for hot in (True, False):
        with SendHarness(tmp_path / str(hot)) as harness:
            harness.add_topic("TopicTest", 4)
            requests = [similar_send(number, serialize_type=serialize_type) for number in range(40)]
            requests[17] = similar_send(17, serialize_type=serialize_type, e="9")
            requests[23] = similar_send(23, serialize_type=serialize_type, oneway=True)
            requests[31].body = b""
            answers = []
            for start in range(0, 40, 4):
                answers += await harness.ask(*requests[start : start + 4], hot=hot)
            outcomes.append((answers, harness.records(), harness.stats.puts))
            if hot:
                assert harness.hot_path.known_forms == 1
    assert outcomes[0] == outcomes[1]


def padded(request: RemotingCommand, count: int) -> memoryview:
    """A frame whose header is longer by so many bytes of padding."""
    frame = encode_frame(request)[4:]
    body_at = 4 + int.from_bytes(frame[1:4], "big")
    header = bytearray(frame[4:body_at])
    if request.serialize_type is SerializeType.JSON:
        header += b" " * count
    else:
        header += b"\0\1x" + (count - 7).to_bytes(4, "big") + b"x" * (count - 7)
        header[17:21] = (len(header) - 21).to_bytes(4, "big")
    return memoryview(frame[:1] + len(header).to_bytes(3, "big") + header + frame[body_at:])


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize(("count", "is_left"), [(1000, False), (MAX_HEADER_BYTES, True)])
async def test_headers_over_the_limit_are_left(
    harness: SendHarness, serialize_type: SerializeType, count: int, is_left: bool
) -> None:
    """Headers that are too long for the general decoder are too long for the hot path."""
    frame = padded(send_request(properties=PLAIN, serialize_type=serialize_type), count)
    _, connection = harness.connect()
    assert harness.hot_path.on_frames(connection, [frame]) == ([frame] if is_left else [])
    await harness.appender.drain()
    connection.close()


async def test_limits_hold_for_known_forms(harness: SendHarness) -> None:
    harness.settings.replace(harness.settings.current.updated({"maxMessageSize": "1000"}))
    requests = [similar_send(number) for number in range(20)]
    assert await left_over(harness, *requests, similar_send(20, body=b"x" * 1000)) == []
    assert harness.hot_path.known_forms == 1
    assert len(await left_over(harness, similar_send(21, body=b"x" * 1001))) == 1


async def test_forms_are_forgotten_when_the_configuration_changes(harness: SendHarness) -> None:
    assert await left_over(harness, *(similar_send(number) for number in range(20))) == []
    assert harness.hot_path.known_forms == 1
    changes = {"maxMessageSize": "1000", "brokerClusterName": "Other"}
    harness.settings.replace(harness.settings.current.updated(changes))
    assert len(await left_over(harness, similar_send(20, body=b"x" * 1001))) == 1
    assert await left_over(harness, similar_send(21)) == []
    assert b"CLUSTER\x01Other" in harness.records()[-1].properties


async def test_forms_are_forgotten_when_their_topic_changes(harness: SendHarness) -> None:
    harness.add_topic("TopicTest", 4)
    assert await left_over(harness, *(similar_send(number) for number in range(20))) == []
    assert harness.hot_path.known_forms == 1
    harness.add_topic("TopicTest", 2)
    assert harness.hot_path.known_forms == 0
    assert await left_over(harness, similar_send(1)) == []
    assert len(await left_over(harness, similar_send(3))) == 1


async def test_similar_headers_can_have_several_forms(harness: SendHarness) -> None:
    harness.add_topic("TopicTest", 4)
    requests = [similar_send(number, h=str(number % 7)) for number in range(700)]
    assert await left_over(harness, *requests) == []
    assert 1 < harness.hot_path.known_forms <= 4
    assert [record.flag for record in harness.records()] == [n % 7 for n in range(700)]


async def test_tags_of_a_batch(tmp_path: Path) -> None:
    ends = (
        b"TAGS\x01A\x02",
        b"TAGS\x01A\x02",
        b"TAGS\x01B\x02",
        b"XTAGS\x01A\x02",
        b"TAGS\x01A\x02TAGS\x01\x02",
        b"TAGS\x01B\x02TAGS\x01\x02",
        b"TAGS\x01A\x02XTAGS\x01B\x02",
        b"TAGS\x01C\x02XTAGS\x01B\x02",
        b"TAGS\x01A\x02TAGS\x01B\x02",
    )
    entries = [BatchEntry(b"body", start + end) for start in (b"a\x01b\x02", b"") for end in ends]
    codes = []
    for hot in (True, False):
        with SendHarness(tmp_path / str(hot)) as harness:
            harness.add_topic("TopicTest", 4)
            request = send_request(
                body=encode_batch(entries),
                properties="WAIT\x01true\x02",
                code=RequestCode.SEND_BATCH_MESSAGE,
            )
            await harness.ask(request, hot=hot)
            found = harness.store.queue_entries("TopicTest", 0, 0, 100) or []
            codes.append([entry.tags_code for entry in found])
    assert len(codes[0]) == len(entries)
    assert codes[0] == codes[1]
