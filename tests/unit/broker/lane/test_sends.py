"""The compiled lane of sends: what it takes, what it leaves, in which order, and its answers.

tests/property checks that its records and answers equal those of the general route; these tests
also check that it took the sends.
"""

import ast
import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.sending import property_meanings
from goddard.core import IS_COMPILED
from goddard.protocol import message
from goddard.protocol.codes import RequestCode, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.message import BatchEntry, encode_batch
from goddard.store.config import FlushMode
from tests.support.clock import ManualClock
from tests.support.faulty_files import FaultyFiles
from tests.support.memory import RawPeer
from tests.support.send_harness import SendHarness, send_request

# With CI=true a core that is not compiled is a failure.
pytestmark = pytest.mark.skipif(
    not IS_COMPILED and os.environ.get("CI") != "true", reason="goddard.core is not compiled"
)

UNIQUE_ID = "7F0000014E9F5FFD2B274A0404820001"
PLAIN = f"KEYS\x01k1\x02UNIQ_KEY\x01{UNIQUE_ID}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
BATCH = encode_batch([BatchEntry(b"1", b"TAGS\x01a"), BatchEntry(b"22")])


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SendHarness]:
    with SendHarness(tmp_path) as harness:
        harness.add_topic("TopicTest")
        yield harness


async def taken_of(harness: SendHarness, *requests: RemotingCommand | bytes) -> int:
    """How many of the requests of a chunk the lane takes."""
    assert harness.lane is not None
    peer, connection = harness.connect()
    frames = [each if isinstance(each, bytes) else encode_frame(each) for each in requests]
    taken_bytes = harness.lane.on_bytes(connection, b"".join(frames))
    await harness.appender.drain()
    connection.close()
    await peer.lost.wait()
    ends = [sum(map(len, frames[:count])) for count in range(len(frames) + 1)]
    return ends.index(taken_bytes)


def with_header(request: RemotingCommand, header: bytes) -> bytes:
    """The frame of a JSON request with another header."""
    body = bytes(request.body)
    size = 4 + len(header) + len(body)
    return size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def header_of(request: RemotingCommand) -> bytes:
    return encode_frame(request)[8 : -len(request.body)]


# Sends that it takes


@pytest.mark.parametrize("encoding", list(SerializeType))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"code": RequestCode.SEND_MESSAGE},
        {"properties": PLAIN[:-1]},
        {"properties": f"UNIQ_KEY\x01{UNIQUE_ID}\x02"},
        {"f": "769"},
        {"h": "-77"},
        {"n": None},
        {"j": None, "k": None, "m": None},
        {"oneway": True},
        {"body": b"x" * 5000},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH, "properties": "WAIT\x01true"},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH, "i": None},
        {"code": RequestCode.SEND_MESSAGE_V2, "body": BATCH, "m": "true"},
    ],
)
async def test_plain_sends_are_taken(
    harness: SendHarness, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    values = {"properties": PLAIN, "serialize_type": encoding, **changes}
    assert await taken_of(harness, send_request(**values)) == 1
    assert harness.store.log_max_offset > 0


async def test_fields_in_any_order(harness: SendHarness) -> None:
    for encoding in SerializeType:
        request = send_request(properties=PLAIN, serialize_type=encoding)
        request.ext_fields = dict(reversed(request.fields.items()))
        assert await taken_of(harness, request) == 1


async def test_json_numbers_and_booleans(harness: SendHarness) -> None:
    """As the C++ client sends them."""
    request = send_request(body=b"body", properties=PLAIN, e="3", g="7", m="false", opaque=5)
    header = header_of(request)
    for quoted in (b'"3"', b'"7"', b'"0"', b'"false"'):
        header = header.replace(quoted, quoted[1:-1])
    assert await taken_of(harness, with_header(request, header)) == 1
    (record,) = harness.records()
    assert (record.queue_id, record.born_timestamp_ms, record.body) == (3, 7, b"body")


# Sends that it leaves


@pytest.mark.parametrize("encoding", list(SerializeType))
@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "Unknown"},
        {"topic": "Many"},
        {"topic": "%RETRY%Group"},
        {"topic": "SCHEDULE_TOPIC_XXXX"},
        {"e": "4"},
        {"e": "-1"},
        {"e": "01"},
        {"e": "1e0"},
        {"e": ""},
        {"e": "99999999999999999999"},
        {"f": "4"},
        {"f": "8"},
        {"f": "16"},
        {"f": "128"},
        {"j": "1"},
        {"l": "x"},
        {"m": "True"},
        {"k": "yes"},
        {"d": "four"},
        {"g": "now"},
        {"a": None},
        {"h": None},
        {"body": b""},
        {"body": b"x" * (4 * 1024 * 1024 + 1)},
        {"properties": ""},
        {"properties": "WAIT\x01true\x02"},
        {"properties": PLAIN + "DELAY\x011\x02"},
        {"properties": PLAIN + "TIMER_DELAY_SEC\x011\x02"},
        {"properties": PLAIN + "TIMER_x\x011\x02"},
        {"properties": PLAIN + "TRAN_MSG\x01true\x02"},
        {"properties": PLAIN + "POP_CK\x01x\x02"},
        {"properties": PLAIN + "INNER_NUM\x012\x02"},
        {"properties": PLAIN + "CLUSTER\x01x\x02"},
        {"properties": PLAIN + "TAGS\x01B\x02"},
        {"properties": PLAIN + "名\x01値\x02"},
        {"properties": PLAIN + "a\x01b\x01c\x02"},
        {"properties": PLAIN + "\x01b\x02"},
        {"properties": PLAIN + "a\x01\x02"},
        {"properties": PLAIN + "\x02"},
        {"properties": PLAIN + "a\x02"},
        {"properties": PLAIN + "".join(f"n{n}\x01v\x02" for n in range(29))},
        {"properties": PLAIN + "long\x01" + "x" * 32_700 + "\x02"},
        {"properties": "UNIQ_KEY\x01a-b\x02"},
        {"AccessKey": "key", "Signature": "signature="},
        {"code": RequestCode.HEART_BEAT},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": b""},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH + b"\0"},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH[:-1]},
        {"code": RequestCode.SEND_BATCH_MESSAGE, "body": BATCH + bytes(30)},
        {
            "code": RequestCode.SEND_BATCH_MESSAGE,
            "body": encode_batch([BatchEntry(b"1", "名\x01x".encode())]),
        },
        {
            "code": RequestCode.SEND_BATCH_MESSAGE,
            "body": BATCH,
            "properties": "DELAY\x011\x02",
        },
        {
            "code": RequestCode.SEND_BATCH_MESSAGE,
            "body": encode_batch([BatchEntry(b"1")] * 8193),
        },
    ],
)
async def test_special_sends_are_left(
    harness: SendHarness, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    harness.add_topic("Many", topic_filter_type="MULTI_TAG")
    values = {"properties": PLAIN, "serialize_type": encoding, **changes}
    if "topic" in changes:
        values["b"] = values.pop("topic")
    assert await taken_of(harness, send_request(**values)) == 0
    assert harness.store.log_max_offset == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"b":', b'"b" :'),
        (b'{"code":310,', b'{ "code":310,'),
        (b'{"code":310,', b'{"flag":0,"code":310,'),
        (b'"b":"TopicTest"', b'"b":"TopicTest","b":"TopicTest"'),
        (b'"b":"TopicTest"', b'"b":"Topic\\u0054est"'),
        (b'"a":"Producers"', b'"a":"Prod\\"ucers"'),
        (b'"a":"Producers"', b'"a":null'),
        (b'"a":"Producers"', b'"a":7'),
        (b'"e":"0"', b'"e":1e0'),
        (b'"e":"0"', b'"e":00'),
        (b'"e":"0"', b'"e":-0'),
        (b'"e":"0"', b'"e":null'),
        (b'"e":"0"', b'"e":{}'),
        (b'"e":"0"', b'"e":true'),
        (b'"e":"0"', b'"e":"0","z":"0"'),
        (b'"m":"false"', b'"m":"null"'),
        (b"TagA", b"Tag\\n"),
        (b"TagA", b"Tag\n"),
        (b"TagA", b"Tag\\"),
        (b"TagA", b"Tag\\u00e9"),
        (b"TagA", "Tagé".encode()),
        (b'"flag":0', b'"flag":1'),
        (b'"flag":0', b'"flag":"0"'),
        (b'"flag":0', b'"flag":0,"remark":"x"'),
        (b'"flag":0', b'"flag":0,"flag":0'),
        (b'"flag":0', b'"flag":2147483648'),
        (b'"version"', b'"Version"'),
        (b"}", b"}}"),
        (b'","version"', b'""version"'),
    ],
)
async def test_odd_json_is_left(harness: SendHarness, old: bytes, new: bytes) -> None:
    request = send_request(properties=PLAIN)
    header = header_of(request)
    assert header.count(old), header
    changed = with_header(request, header.replace(old, new, 1))
    assert await taken_of(harness, changed) == 0


@pytest.mark.parametrize("encoding", list(SerializeType))
async def test_frames_that_are_cut_or_damaged_are_left(
    harness: SendHarness, encoding: SerializeType
) -> None:
    """Frames and headers that end at every byte, and frames with every byte changed."""
    assert harness.lane is not None
    _, connection = harness.connect()
    frame = encode_frame(send_request(properties=PLAIN, serialize_type=encoding))
    for end in range(len(frame)):
        assert harness.lane.on_bytes(connection, frame[:end]) == 0
    header, body = frame[8:-5], frame[-5:]
    for end in range(len(header)):
        prefix = (4 + end + len(body)).to_bytes(4, "big") + frame[4:5] + end.to_bytes(3, "big")
        assert harness.lane.on_bytes(connection, prefix + header[:end] + body) == 0
    for at in range(len(frame)):
        for value in (0, 0x7F, 0xFF):
            damaged = bytearray(frame)
            damaged[at] = value
            size = 4 + int.from_bytes(damaged[:4], "big")
            assert harness.lane.on_bytes(connection, bytes(damaged)) in (0, size)
    await harness.appender.drain()
    connection.close()


def test_the_general_route_uses_no_other_properties() -> None:
    """Each property that a module of ``broker.sending`` names is special, or read by the lane."""
    folder = Path(property_meanings.__file__).parent
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for name in ("send.py", "message_rules.py")
        for node in ast.walk(ast.parse((folder / name).read_text()))
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    properties = {getattr(message, name) for name in used if name.startswith("PROPERTY_")}
    assert properties, "the modules have been renamed"
    known = property_meanings.SPECIAL_PROPERTIES | property_meanings.READ_PROPERTIES
    prefix = property_meanings.SPECIAL_PREFIX
    assert {name for name in properties if not name.startswith(prefix)} <= known


async def test_a_changed_topic_is_checked_again(harness: SendHarness) -> None:
    assert await taken_of(harness, send_request(properties=PLAIN, e="3")) == 1
    harness.add_topic("TopicTest", 2)
    assert await taken_of(harness, send_request(properties=PLAIN, e="3")) == 0
    harness.topics.delete("TopicTest")
    assert await taken_of(harness, send_request(properties=PLAIN)) == 0
    harness.add_topic("TopicTest", 1)
    assert await taken_of(harness, send_request(properties=PLAIN)) == 1


async def test_a_topic_that_changes_between_two_sends_of_a_tick(harness: SendHarness) -> None:
    """Both sends go to one queue, so they need two queue offsets."""
    assert harness.lane is not None
    _, connection = harness.connect()
    frame = encode_frame(send_request(properties=PLAIN))
    assert harness.lane.on_bytes(connection, frame) == len(frame)
    harness.add_topic("Other")
    assert harness.lane.on_bytes(connection, frame) == len(frame)
    await harness.appender.drain()
    assert [record.queue_offset for record in harness.records()] == [0, 1]
    connection.close()


async def test_sends_to_several_topics_are_one_block(harness: SendHarness) -> None:
    for number in range(5):
        harness.add_topic(f"Topic{number}", 2)
    requests = [
        send_request(f"Topic{number % 5}", b"%d" % number, properties=PLAIN, e=str(number % 2))
        for number in range(40)
    ]
    assert await taken_of(harness, *requests) == 40
    assert [record.body for record in harness.records()] == [b"%d" % n for n in range(40)]
    for number in range(10):
        topic, queue_id = f"Topic{number % 5}", number % 2
        assert harness.store.max_offset(topic, queue_id) == 4


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
async def test_a_configuration_that_disables_the_lane(
    harness: SendHarness, change: dict[str, str]
) -> None:
    harness.settings.replace(harness.settings.current.updated(change))
    assert await taken_of(harness, send_request(properties=PLAIN)) == 0


async def test_answers_and_records_follow_the_configuration(harness: SendHarness) -> None:
    change = {"regionId": 'r"%d', "traceOn": "false", "brokerIP1": "10.1.2.3"}
    harness.settings.replace(harness.settings.current.updated(change))
    for encoding in SerializeType:
        request = send_request(properties=PLAIN, serialize_type=encoding)
        (answer,) = await harness.ask(request, lane=True)
        assert answer.fields["MSG_REGION"] == 'r"%d'
        assert answer.fields["TRACE_ON"] == "false"
        assert answer.fields["msgId"].startswith("0A01020300002A9F")
    assert b"MSG_REGION\x01r" in harness.records()[0].properties


async def test_sends_of_ipv6_peers_are_left(harness: SendHarness) -> None:
    assert harness.lane is not None
    _, connection = harness.connect()
    connection.remote = "[::1]:50001"
    frame = encode_frame(send_request(properties=PLAIN))
    assert harness.lane.on_bytes(connection, frame) == 0
    connection.close()


# Order and answers


async def test_nothing_overtakes_a_frame_that_is_left(harness: SendHarness) -> None:
    requests = [
        send_request(body=b"0", properties=PLAIN),
        send_request(code=RequestCode.HEART_BEAT),
        send_request(body=b"2", properties=PLAIN),
    ]
    assert await taken_of(harness, *requests) == 1
    assert [record.body for record in harness.records()] == [b"0"]


async def test_frames_in_chunks_of_any_size(harness: SendHarness) -> None:
    requests = [
        send_request(body=b"%d" % number, properties=PLAIN + ("DELAY\x010\x02" * (number == 7)))
        for number in range(12)
    ]
    data = b"".join(map(encode_frame, requests))
    for size in (1, 7, 100, 500, 1000):
        peer, connection = harness.connect(lane=True)
        for start in range(0, len(data), size):
            connection.data_received(data[start : start + size])
        answers = await peer.receive(len(requests))
        assert [answer.opaque for answer in answers] == [each.opaque for each in requests]
        bodies = [record.body for record in harness.records()][-len(requests) :]
        assert bodies == [each.body for each in requests]
        connection.close()


async def test_a_draining_connection_has_no_lane(harness: SendHarness) -> None:
    peer, connection = harness.connect(lane=True)
    connection.data_received(encode_frame(send_request(code=1, body=b"")))
    await peer.receive(1)
    connection.drain()
    connection.data_received(encode_frame(send_request(properties=PLAIN, version=493)))
    await harness.appender.drain()
    assert harness.records() == []


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
    answers = await harness.ask(*requests, lane=True)
    assert [answer.code for answer in answers] == [0] * len(requests)
    assert [record.body for record in harness.records()] == [b"%d" % n for n in range(8)]


async def test_answers_of_a_chunk_leave_in_one_write(harness: SendHarness) -> None:
    peer, connection = harness.connect(lane=True)
    requests = [send_request(properties=PLAIN, e=str(n % 4)) for n in range(20)]
    connection.data_received(b"".join(map(encode_frame, requests)))
    answers = await peer.receive(20)
    assert peer.chunks == 1
    assert [answer.opaque for answer in answers] == [request.opaque for request in requests]
    connection.close()


async def test_connections_of_one_tick_share_an_append(harness: SendHarness) -> None:
    ends = [harness.connect(lane=True) for _ in range(3)]
    for _, connection in ends:
        connection.data_received(encode_frame(send_request(properties=PLAIN)))
    assert harness.appender.queued_requests == 3
    for peer, connection in ends:
        (answer,) = await peer.receive(1)
        assert answer.code == 0
        connection.close()


async def test_one_way_sends_are_counted_and_not_answered(harness: SendHarness) -> None:
    peer, connection = harness.connect(lane=True)
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
    peer, connection = harness.connect(lane=True)
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
    peer, connection = harness.connect(lane=True)
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
        assert await taken_of(harness, send_request(properties=impatient)) == 0
        assert await taken_of(harness, send_request(properties=PLAIN)) == 1


async def test_a_write_that_fails_leaves_no_gap(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path / "store")
    with SendHarness(tmp_path, files=files) as harness:
        harness.add_topic("TopicTest")
        send = send_request(properties=PLAIN)
        (answer,) = await harness.ask(send, lane=True)
        assert answer.fields["queueOffset"] == "0"
        files.fail("pwrite", path_part="commitlog")
        (answer,) = await harness.ask(send, lane=True)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        (answer,) = await harness.ask(send, lane=True)
        assert answer.fields["queueOffset"] == "1"
        assert [record.queue_offset for record in harness.records()] == [0, 1]


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


async def test_sends_to_a_closed_store_are_refused(harness: SendHarness) -> None:
    harness.store.abandon()
    answers = await harness.ask(
        send_request(properties=PLAIN),
        send_request(code=RequestCode.SEND_BATCH_MESSAGE, body=BATCH),
        lane=True,
    )
    assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert answers[0].fields == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}


async def test_sends_that_waited_too_long_are_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    with SendHarness(tmp_path, clock=clock) as harness:
        harness.add_topic("TopicTest")
        peer, connection = harness.connect(lane=True)
        connection.data_received(encode_frame(send_request(properties=PLAIN)))
        clock.advance(200)
        (answer,) = await peer.receive(1)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark is not None
        assert answer.remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")
        assert harness.records() == []
        connection.close()


async def test_submissions_of_other_routes_keep_their_place(harness: SendHarness) -> None:
    """A block grows only as long as nothing was submitted after it."""
    lane_peer, lane = harness.connect(lane=True)
    general_peer, general = harness.connect()
    for number, connection in enumerate((lane, lane, general, lane, lane), 1):
        body = b"%d" % number
        connection.data_received(encode_frame(send_request(body=body, properties=PLAIN)))
    assert len(await lane_peer.receive(4)) == 4
    assert len(await general_peer.receive(1)) == 1
    assert [record.body for record in harness.records()] == [b"1", b"2", b"3", b"4", b"5"]
    # A later submission does not change what was appended before.
    general.data_received(encode_frame(send_request(body=b"6", properties=PLAIN)))
    lane.data_received(encode_frame(send_request(body=b"7", properties=PLAIN)))
    assert len(await lane_peer.receive(1)) == 1
    assert [record.body for record in harness.records()][5:] == [b"6", b"7"]
    for connection in (lane, general):
        connection.close()


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
    for lane in (True, False):
        with SendHarness(tmp_path / str(lane)) as harness:
            harness.add_topic("TopicTest", 4)
            request = send_request(
                body=encode_batch(entries),
                properties="WAIT\x01true\x02",
                code=RequestCode.SEND_BATCH_MESSAGE,
            )
            await harness.ask(request, lane=lane)
            found = harness.store.queue_entries("TopicTest", 0, 0, 100) or []
            codes.append([entry.tags_code for entry in found])
    assert len(codes[0]) == len(entries)
    assert codes[0] == codes[1]
