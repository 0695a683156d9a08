"""The compiled lane of pulls gives what the general route gives, byte for byte and in order.

Frames are golden, generated, odd (spaces, escapes, duplicate keys, numbers as text), mutated and
truncated; topics, groups and settings change between them.
"""

import asyncio
import gzip
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from goddard.broker.consuming.pull_call import PullCall
from goddard.broker.settings import BrokerConfig
from goddard.core import IS_COMPILED
from goddard.protocol.bodies import TopicConfig, encode_body
from goddard.protocol.bodies_client import ConsumerData, HeartbeatData
from goddard.protocol.codes import CommandFlag, RequestCode, SerializeType
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.headers.message import PullRequest, PullResponse
from goddard.store.config import StoreConfig
from goddard.store.log.reading import (
    GetResult,
    gather_messages,
    get_messages,
)
from goddard.store.queues.entry import BLANK, ENTRY
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.options import ConnectionOptions
from tests.golden.test_pulled_messages import PULLS, WIRE
from tests.support.consumer_harness import ConsumerHarness, pull_fields, tags
from tests.support.memory import RawPeer, join
from tests.support.store import SmallStore, prepared

# With CI=true a core that is not compiled is a failure.
pytestmark = pytest.mark.skipif(
    not IS_COMPILED and os.environ.get("CI") != "true", reason="goddard.core is not compiled"
)

if IS_COMPILED:
    from goddard.broker.consuming.filters import TagCodes
    from goddard.core.pulls import Pull, gather, read_pull

PULL = RequestCode.PULL_MESSAGE
LITE_PULL = RequestCode.LITE_PULL_MESSAGE
NAMES = (
    "consumer_group", "topic", "queue_id", "queue_offset", "max_msg_nums", "sys_flag",
    "commit_offset", "suspend_timeout_millis", "sub_version", "subscription", "expression_type",
    "max_msg_bytes",
)  # fmt: skip


def texts(changes: dict[str, Any] | None = None) -> dict[str, str]:
    values = pull_fields("T") | (changes or {})
    return {name: str(value) for name, value in values.items() if value is not None}


def encoded(fields: dict[str, str] | None = None, **changes: Any) -> bytes:
    command = RemotingCommand(PULL, texts() if fields is None else fields)
    for name, value in changes.items():
        setattr(command, name, value)
    return encode_frame(command)


def read(frame: bytes) -> "Pull | None":
    """Of a frame with its length word, as it is sent."""
    return read_pull(memoryview(frame)[4:])


def check_reading(frame: bytes) -> bool:
    """Whether the lane takes a frame, which it must then read as the general decoder does."""
    pull = read(frame)
    if pull is None:
        return False
    command = decode_frame(memoryview(frame)[4:])
    header = PullRequest.decode(command.fields)
    assert (pull.code, pull.opaque, command.flag) == (command.code, command.opaque, 0)
    assert pull.is_json is (command.serialize_type is SerializeType.JSON)
    for name in NAMES:
        assert getattr(pull, name) == getattr(header, name), name
    return True


# --- Requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("code", [PULL, LITE_PULL])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"queueOffset": "123456789012345678", "commitOffset": "-1"},
        {"queueId": "-2147483648", "maxMsgNums": "2147483647"},
        {"subscription": "A || B", "bname": "broker-a"},
        {"ReqT": "0"},
        {"subscription": "", "consumerGroup": "", "topic": ""},
        {"maxMsgBytes": "-1"},
        {"subscription": None, "expressionType": None},
    ],
)
@pytest.mark.parametrize("order", [list, sorted, lambda names: list(names)[::-1]])
def test_plain_pulls_are_read(
    serialize_type: SerializeType,
    code: int,
    fields: dict[str, Any],
    order: Callable[[dict[str, str]], list[str]],
) -> None:
    values = texts(fields)
    ordered = {name: values[name] for name in order(values)}
    assert check_reading(
        encoded(ordered, code=code, opaque=-(2**31), serialize_type=serialize_type)
    )


@cache
def golden_frames() -> list[bytes]:
    frames = []
    for path in WIRE:
        content = path.read_bytes()
        for line in (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines():
            seen = json.loads(line)
            if seen["peer"] == "broker" and seen["dir"] == "c2s":
                frame = bytes.fromhex(seen["hex"])
                if decode_frame(memoryview(frame)[4:]).code in PULLS:
                    frames.append(frame)
    return frames


def test_pulls_of_java_clients_are_read() -> None:
    frames = golden_frames()
    taken = sum(map(check_reading, frames))
    signed = sum(b"AccessKey" in frame for frame in frames)
    assert taken == len(frames) - signed
    assert taken > 100


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize(
    "changes",
    [
        {"code": 10},
        {"code": 110},
        {"code": 3610},
        {"flag": CommandFlag.RESPONSE},
        {"flag": CommandFlag.ONEWAY},
        {"ext_fields": None},
        {"ext_fields": {}},
        {"body": b"x"},
        *(
            {"ext_fields": texts({name: None})}
            for name in texts()
            if name[:3] not in ("sub", "exp")
        ),
        {"ext_fields": texts({"subVersion": None})},
        *(
            {"ext_fields": texts({name: value})}
            for name in ("queueOffset", "queueId", "maxMsgNums", "maxMsgBytes", "subVersion")
            for value in ("", "x", "-", "1.0", "1e2", " 1", "01", "+1", "-0", "null", "9" * 19)
        ),
        *({"ext_fields": texts({name: 2**31})} for name in ("queueId", "sysFlag", "maxMsgBytes")),
        *({"ext_fields": texts({name: -(2**31) - 1})} for name in ("queueId", "maxMsgNums")),
        {"ext_fields": texts({"topic": "T\u00e9"})},
        {"ext_fields": texts({"AccessKey": "key", "Signature": "x"})},
        {"ext_fields": texts({"requestSource": "0"})},
        {"ext_fields": texts({"oway": "true"})},
    ],
)
def test_other_frames_are_left(serialize_type: SerializeType, changes: dict[str, Any]) -> None:
    assert read(encoded(**changes, serialize_type=serialize_type)) is None


def test_a_remark_is_left_in_a_binary_header() -> None:
    assert read(encoded(remark="x", serialize_type=SerializeType.ROCKETMQ)) is None
    assert check_reading(encoded(remark="x"))


def with_header(header: bytes, kind: int = 0) -> bytes:
    return (
        (4 + len(header)).to_bytes(4, "big")
        + (kind << 24 | len(header)).to_bytes(4, "big")
        + header
    )


# What other encoders, and no encoder at all, may make of a header.
ODD = (
    (b'{"code":11,', b'{"code": 11,'),
    (b'{"code":11,', b'{ "code":11,'),
    (b'{"code":11,', b'{"code":"11",'),
    (b'{"code":11,', b'{"code":1.1e1,'),
    (b'{"code":11,', b'{"code":11,"code":11,'),
    (b'{"code":11,', b'{"code":361,"code":11,'),
    (b'{"code":11,', b'{"code":11,"x":1,'),
    (b'{"code":11,', b'{"code":11,"x":{"y":[1]},'),
    (b'{"code":11,', b'{"c\\u006fde":11,'),
    (b'{"code":11,', b'{"code":011,'),
    (b'"topic":"T"', b'"topic":"\\u0054"'),
    (b'"topic":"T"', b'"topic":null'),
    (b'"topic":"T"', b'"topic":"T","topic":"U"'),
    (b'"topic":"T"', b'"topic":"T","x":"y"'),
    (b'"topic":"T"', b'"topic":"T\xc3\xa9"'),
    (b'"topic":"T"', b'"topic":"T\t"'),
    (b'"topic":"T"', b'"topic" :"T"'),
    (b'"queueId":"0"', b'"queueId":0'),
    (b'"queueId":"0"', b'"queueId":"0"\n'),
    (b'"queueId":"0"', b'"queueId":"0","queueId":"1"'),
    (b'"queueOffset":"0"', b'"queueOffset":"1e0"'),
    (b'"queueOffset":"0"', b'"queueOffset":"1.0"'),
    (b'"queueOffset":"0"', b'"queueOffset":null'),
    (b'"queueOffset":"0"', b'"queueOffset":"null"'),
    (b'"queueOffset":"0"', b'"queueOffset":"0","maxMsgBytes":"null"'),
    (b'"opaque":7', b'"opaque":"7"'),
    (b'"opaque":7', b'"opaque":7.0'),
    (b'"opaque":7', b'"opaque":7e0'),
    (b'"opaque":7', b'"opaque":99999999999'),
    (b'"opaque":7', b'"opaque":null'),
    (b'"flag":0', b'"flag":false'),
    (b'"flag":0', b'"flag":2'),
    (b'"flag":0,', b""),
    (b'"version":', b'"version":1'),
    (b'"version":', b'"version":99999999'),
    (b'"language":"JAVA"', b'"language":"JAVA\\n"'),
    (b'"language":"JAVA"', b'"language":8'),
    (b'"language":"JAVA"', b'"language":"GO"'),
    (b'"extFields":{', b'"extFields":{},"extFields":{'),
    (b'"extFields":{', b'"extFields":null,"y":{'),
    (b"}", b"}}"),
)


def odd_header(old: bytes, new: bytes) -> bytes:
    header = encoded(opaque=7)[8:]
    assert old in header
    return header.replace(old, new, 1)


@pytest.mark.parametrize(("old", "new"), ODD)
def test_odd_headers_are_left_or_read_as_by_the_decoder(old: bytes, new: bytes) -> None:
    is_taken = check_reading(with_header(odd_header(old, new)))
    assert is_taken == (new in (b"", b'"language":"GO"', b'"version":1'))


@pytest.mark.parametrize("serialize_type", SerializeType)
def test_truncated_and_longer_frames_are_left(serialize_type: SerializeType) -> None:
    whole = encoded(serialize_type=serialize_type)
    assert check_reading(whole)
    kind = whole[4]
    for end in range(4, len(whole)):
        assert read(whole[:end]) is None
        if end >= 8:
            assert read(with_header(whole[8:end], kind)) is None
    assert read(with_header(whole[8:] + b"}", kind)) is None
    assert read(whole[:4] + b"\x02" + whole[5:]) is None


@settings(max_examples=500)
@given(st.sampled_from(SerializeType), st.data())
def test_mutated_frames_are_left_or_read_as_by_the_decoder(
    serialize_type: SerializeType, data: st.DataObject
) -> None:
    whole = bytearray(encoded(serialize_type=serialize_type))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(4, len(whole) - 1))
        garbage = data.draw(st.sampled_from([b'"', b",", b"0", b"\0", b"\xff", b"}", b"\\", b" "]))
        whole[position : position + 1] = garbage
    check_reading(bytes(whole))


@given(st.binary(max_size=200))
def test_random_bytes_are_left(header: bytes) -> None:
    for kind in (0, 1, 2):
        assert read(with_header(header, kind)) is None
        assert read(with_header(b"\0\x0b" + header, kind)) is None


# --- Records --------------------------------------------------------------------------------------


class Entries:
    """A queue with any entries; those of a ConsumeQueue are always whole."""

    def __init__(self, data: bytes) -> None:
        self.min_offset = 5
        self.max_offset = 5 + len(data) // ENTRY.size
        self._data = data

    def read(self, queue_offset: int, count: int) -> bytes:
        start = (queue_offset - self.min_offset) * ENTRY.size
        return self._data[start : start + count * ENTRY.size]

    def next_file_offset(self, queue_offset: int) -> int:
        return queue_offset + 1


def body_of(result: Any) -> bytes:
    if isinstance(result, GetResult):
        return b"".join(result.records)
    frame = result.answer(True, 0, 0, b"", 0, 0, 0)
    return bytes(decode_frame(memoryview(frame)[4:]).body)


SEEN = ("status", "next_offset", "min_offset", "max_offset", "count", "total_bytes",
        "first_physical_offset", "is_slave_suggested")  # fmt: skip


def check_gathering(
    store: MessageStore,
    entries: bytes,
    queue_offset: int,
    max_count: int,
    max_bytes: int | None,
    codes: list[int] | None,
) -> str:
    """Whether compiled code found the messages, or left them to the general route."""
    queue: Any = Entries(entries)
    tag_filter = None if codes is None else TagCodes(codes)
    asked = (store.log, queue, store.config, queue_offset, max_count)
    expected = get_messages(*asked, max_bytes=max_bytes, message_filter=tag_filter)
    found = gather_messages(*asked, max_bytes=max_bytes, message_filter=tag_filter)
    for name in SEEN:
        assert getattr(found, name) == getattr(expected, name), name
    assert body_of(found) == body_of(expected)
    return "general" if isinstance(found, GetResult) else "compiled"


@cache
def filled_store() -> tuple[MessageStore, list[tuple[int, int, int]]]:
    """A store of several segments, and the places of its records."""
    root = Path(tempfile.mkdtemp(prefix="goddard-gather-"))
    store = SmallStore(root, memory_bytes=9000, max_get_disk_count=3, max_get_disk_bytes=1500).store
    store.open()
    for number in range(60):
        store.put(prepared("T", number % 2, b"x" * (number * 7 % 300), tags=f"t{number % 3}"))
    places = [
        (entry.physical_offset, entry.size, entry.tags_code)
        for queue_id in (0, 1)
        for entry in store.queue_entries("T", queue_id, 0, 100) or ()
    ]
    return store, sorted(places)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 59), st.sampled_from(["", "", "", "", "blank", "odd"])),
             max_size=40),
    st.sampled_from([0, 1, 2, 5, 32]),
    st.sampled_from([None, -1, 0, 300, 5000]),
    st.sampled_from([None, [], [116 * 31 + 48], [116 * 31 + 48, 116 * 31 + 50, -1]]),
    st.data(),
)  # fmt: skip
def test_gathering_gives_what_reading_gives(
    picked: list[tuple[int, str]],
    max_count: int,
    max_bytes: int | None,
    codes: list[int] | None,
    data: st.DataObject,
) -> None:
    store, places = filled_store()
    end = store.log.end_offset
    numbers = st.sampled_from([-1, 0, 1, end - 1, end, end + 1, 8192, 2**62, -(2**62)])
    sizes = st.sampled_from([-1, 0, 1, 100, 9000, 2**31 - 2, -(2**31)])
    entries = b""
    for index, kind in picked:
        if kind == "blank":
            entries += BLANK
        elif kind == "odd":
            entries += ENTRY.pack(data.draw(numbers), data.draw(sizes), places[index][2])
        else:
            entries += ENTRY.pack(*places[index])
    check_gathering(store, entries, 5, max_count, max_bytes, codes)


def test_gathering_whole_queues_is_compiled(tmp_path: Path) -> None:
    store, places = filled_store()
    for queue_of in (places, places[::2], places[::-1]):
        entries = b"".join(ENTRY.pack(*place) for place in queue_of)
        for max_count in (1, 7, 32, 100):
            for start in range(5, 5 + len(queue_of)):
                done = check_gathering(store, entries, start, max_count, None, None)
                assert done == "compiled"


def test_records_of_a_deleted_segment_are_skipped(tmp_path: Path) -> None:
    with MessageStore(
        StoreConfig(root=tmp_path, segment_bytes=4096, queue_file_bytes=400)
    ) as store:
        store.put_many([prepared("T", 0, bytes(1000)) for _ in range(12)])
        held = store.gather("T", 0, 0, 3)
        before = body_of(held)
        gone = store.log.forget_first(1)
        found = store.gather("T", 0, 0, 32)
        expected = store.get("T", 0, 0, 32)
        assert body_of(found) == body_of(expected) != b""
        assert found.next_offset == expected.next_offset
        for segment in gone:
            segment.delete()
        assert body_of(held) == before, "readable after the deletion"


def test_wrong_buffers_are_refused() -> None:
    class Short:
        view = memoryview(bytes(50))
        base_offset = 0

    entry = ENTRY.pack(40, 20, 0)
    limits = (10, 10, 10, 10, 10)
    assert gather(entry, 0, 1000, 1, 100, limits, None, lambda _: Short) is None
    found = gather(entry[:19], 0, 1000, 1, 100, limits, None, lambda _: Short)
    assert found is not None
    assert found.count == 0
    with pytest.raises(ValueError, match="remark"):
        found.answer(True, 1, 1, b"x" * 65, 0, 0, 0)


@given(
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 32767),
    st.sampled_from(["", "FOUND", "x" * 64]),
    st.integers(-(2**63), 2**63 - 1),
    st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4),
)
@example(False, -7, 20, "FOUND", 0, (-(2**63), 2**63 - 1, -1, 0))
def test_answers_are_encoded_like_commands(
    is_json: bool, opaque: int, code: int, remark: str, broker_id: int, others: tuple[int, ...]
) -> None:
    low, high, topic_flag, group_flag = others
    gathered = gather(b"", 9, 0, 1, 1, (0, 0, 0, 0, 0), None, lambda _: None)
    assert gathered is not None
    gathered.min_offset, gathered.max_offset = low, high
    fields = PullResponse(
        suggest_which_broker_id=broker_id,
        next_begin_offset=9,
        min_offset=low,
        max_offset=high,
        topic_sys_flag=topic_flag,
        group_sys_flag=group_flag,
    ).encode()
    kind = SerializeType.JSON if is_json else SerializeType.ROCKETMQ
    command = RemotingCommand(
        code, fields, opaque=opaque, flag=1, remark=remark, serialize_type=kind
    )
    made = gathered.answer(
        is_json, opaque, code, remark.encode(), broker_id, topic_flag, group_flag
    )
    assert made == encode_frame(command)


# --- Brokers --------------------------------------------------------------------------------------


class Recorder(RawPeer):
    """Keeps what it receives, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = b""

    def data_received(self, data: bytes) -> None:
        self.raw += data


def heartbeat_frame(opaque: int, expression: str, **subscription: Any) -> bytes:
    data = HeartbeatData(
        client_id="127.0.0.1@1",
        consumer_data_set=[
            ConsumerData(
                group_name="G", subscription_data_set=[tags("T", expression, **subscription)]
            )
        ],
    )
    return encode_frame(
        RemotingCommand(RequestCode.HEART_BEAT, {}, encode_body(data), opaque=opaque)
    )


# With the subscription that the group's heartbeats told.
SUBSCRIBED_PULL = encoded(texts({"sysFlag": 0, "subVersion": 1, "subscription": None}), opaque=5)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.sampled_from(["T", "T", "T", "U", "none"]),
        "queueId": st.sampled_from([0, 1, 2, -1, 9]),
        "queueOffset": st.sampled_from([0, 1, 3, 10, 29, 30, 31, 60, -1]),
        "maxMsgNums": st.sampled_from([0, 1, 4, 32, 100, -1]),
        "sysFlag": st.sampled_from([0, 1, 2, 4, 5, 6, 7, 8]),
        "commitOffset": st.sampled_from([-1, 0, 3, 8]),
        "subscription": st.sampled_from(["*", "t0", "t1 || t2", "nothing", "||", None]),
        "expressionType": st.sampled_from(["TAG", "SQL92", "x", None]),
        "subVersion": st.sampled_from([0, 1, 2]),
        "maxMsgBytes": st.sampled_from([0, 200, 100_000, "null", "1e2"]),
        "suspendTimeoutMillis": st.just(60_000),
    },
)
FRAMES = st.one_of(
    st.builds(
        lambda fields, kind, code, opaque: encoded(
            texts(fields), code=code, opaque=opaque, serialize_type=kind
        ),
        FIELDS,
        st.sampled_from(SerializeType),
        st.sampled_from([PULL, LITE_PULL]),
        st.integers(0, 1000),
    ),
    st.sampled_from(ODD).map(lambda pair: with_header(odd_header(*pair))),
    st.builds(heartbeat_frame, st.integers(2000, 3000), st.sampled_from(["*", "t1"])),
)
CHANGES = st.sampled_from(
    ["put", "forbid topic", "allow topic", "delete topic", "disable group", "enable group",
     "no lite", "slave reads", "reset"]
)  # fmt: skip
SCRIPTS = st.lists(st.one_of(st.lists(FRAMES, min_size=1, max_size=5), CHANGES), max_size=8)


def change(harness: ConsumerHarness, what: str) -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    if what == "put":
        harness.put("T", b"more", queue_id=1, tags="t1")
    elif what == "forbid topic":
        topic.perm = 2
        harness.topics.put(topic)
    elif what == "allow topic":
        harness.topics.put(topic)
    elif what == "delete topic":
        harness.topics.delete("T")
    elif what in ("disable group", "enable group"):
        group = harness.groups.find("G")
        assert group is not None
        harness.groups.put(msgspec.structs.replace(group, consume_enable=what == "enable group"))
    elif what == "reset":
        harness.offsets.reset("G", "T", 0, 2)
    else:
        lines = (
            {"litePullMessageEnable": "false"} if what == "no lite" else {"slaveReadEnable": "true"}
        )
        harness.settings.replace(BrokerConfig.from_properties({"brokerIP1": "127.0.0.1"} | lines))


async def answers(root: Path, script: list[list[bytes] | str], *, is_lane: bool) -> list[bytes]:
    """The responses in their order; what the broker tells its clients by a timer is left out."""
    properties = {"enablePropertyFilter": "true"}
    with ConsumerHarness(root, properties=properties, memory_bytes=3000) as harness:
        harness.add_topic("T", queues=2)
        harness.add_topic("U", queues=2)
        for number in range(60):
            harness.put("T", b"x" * (number * 7 % 200), queue_id=number % 2, tags=f"t{number % 3}")
        peer = Recorder()
        connection = Connection(
            ConnectionOptions(),
            harness.handlers,
            on_frames=harness.take_pulls if is_lane else None,
        )
        join(peer, connection)
        for step in script:
            if isinstance(step, str):
                change(harness, step)
            else:
                peer.transport.write(b"".join(step))
            for _ in range(4):
                await asyncio.sleep(0)
        frames = FrameDecoder().feed(peer.raw)
        return [bytes(frame) for frame in frames if decode_frame(frame).is_response]


@settings(max_examples=60, deadline=None)
@given(SCRIPTS)
@example([[heartbeat_frame(1, "*"), encoded(texts({"sysFlag": 0, "subVersion": 1}), opaque=2)]])
@example([[encoded(texts({"queueOffset": 30, "queueId": 1, "sysFlag": 6}), opaque=2)], "put"])
@example([[with_header(odd_header(*ODD[20]))], [encoded(opaque=2)]])
@example(
    [[heartbeat_frame(1, "*")], [SUBSCRIBED_PULL],
     [heartbeat_frame(2, "t1", version=2)], [SUBSCRIBED_PULL]]
)  # fmt: skip
@example([[encoded(opaque=1)], "reset", [encoded(opaque=2)], [encoded(opaque=3)]])
@example([[encoded(opaque=1)], "disable group", [encoded(opaque=2)]])
@example(
    [[encoded(opaque=1)], "forbid topic", [encoded(opaque=2)], "allow topic", [encoded(opaque=3)]]
)
@example([[encoded(opaque=1)], "slave reads", [encoded(opaque=2)]])
def test_a_broker_with_the_lane_answers_like_one_without(script: list[list[bytes] | str]) -> None:
    results = []
    for is_lane in (False, True):
        with tempfile.TemporaryDirectory() as root:
            results.append(asyncio.run(answers(Path(root), script, is_lane=is_lane)))
    assert results[0] == results[1]


async def test_pulls_with_the_same_terms_are_decided_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts, offsets and responses are those of the general route all the same."""
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T")
        harness.put("T", *[b"x"] * 10)
        admitted = 0
        admit = harness.pulls.admit

        def count_admitted(call: PullCall) -> Any:
            nonlocal admitted
            admitted += 1
            return admit(call)

        monkeypatch.setattr(harness.pulls, "admit", count_admitted)
        peer = Recorder()
        connection = Connection(ConnectionOptions(), harness.handlers, on_frames=harness.take_pulls)
        join(peer, connection)
        fields = [
            texts({"queueOffset": offset, "commitOffset": offset, "sysFlag": 5, "maxMsgNums": 2})
            for offset in (0, 2, 4)
        ]
        peer.transport.write(b"".join(encoded(each, opaque=7) for each in fields))
        for _ in range(4):
            await asyncio.sleep(0)
        found = [decode_frame(frame).fields for frame in FrameDecoder().feed(peer.raw)]
        assert [fields["nextBeginOffset"] for fields in found] == ["2", "4", "6"]
        assert admitted == 1
        assert harness.offsets.pulled("G", "T", 0) == 6
        assert harness.offsets.query("G", "T", 0) == 4
        assert harness.stats.gets["T", "G"][0] == 6
