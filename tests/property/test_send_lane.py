"""The compiled lane of sends against the general route: equal frames, equal outcome.

Each example plays one script on two fresh brokers, one with the lane and one without: chunks of
requests, changes of topics and settings between them. Answers are compared in their order, the log
byte by byte, then consume queues, index files and statistics.
"""

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.core import IS_COMPILED
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.message import BatchEntry, encode_batch
from goddard.store.config import FlushMode
from tests.support.clock import ManualClock
from tests.support.send_harness import SendHarness, send_request

# With CI=true a core that is not compiled is a failure.
pytestmark = pytest.mark.skipif(
    not IS_COMPILED and os.environ.get("CI") != "true", reason="goddard.core is not compiled"
)

# Mostly plain, with few special values: two in one request would hide each other.
UNIQUE_ID = "7F0000014E9F5FFD2B274A0404820001"
PLAIN = (("KEYS", "k1 k2"), ("UNIQ_KEY", UNIQUE_ID), ("WAIT", "true"), ("TAGS", "TagA"))
SPECIAL = st.tuples(
    st.sampled_from(
        [
            "DELAY",
            "TRAN_MSG",
            "POP_CK",
            "MSG_REGION",
            "TRACE_ON",
            "CLUSTER",
            "INNER_NUM",
            "TIMER_DELAY_SEC",
            "TIMER_OUT_MS",
            "UNIQ_KEY",
            "TAGS",
            "WAIT",
            "XTAGS",
            "名",
            "",
            "a\x01b",
        ]
    ),
    st.sampled_from(["true", "false", "1", "3", "99", "-1", "x y", "值😀", "a\x01b", 'q"\\', ""]),
)


@st.composite
def properties(draw: st.DrawFn) -> str:
    pairs = list(PLAIN[draw(st.sampled_from([0, 0, 1])) :])
    if draw(st.booleans()):
        pairs.insert(draw(st.integers(0, len(pairs))), draw(SPECIAL))
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    return text + draw(st.sampled_from(["\x02", "\x02", "\x02", "", "\x02\x02", "\x02x"]))


# Queue, system flag, batch, tries.
WEIGHTY = ("e", "f", "m", "j", "queueId", "sysFlag", "batch", "reconsumeTimes")
ODD_NUMBERS = st.sampled_from(["", "x", "-1", "+1", "01", "2147483648", "-2147483649", "٣", "1_0"])


@st.composite
def requests(draw: st.DrawFn) -> RemotingCommand:
    code = draw(
        st.sampled_from(
            [
                RequestCode.SEND_MESSAGE_V2,
                RequestCode.SEND_MESSAGE_V2,
                RequestCode.SEND_MESSAGE,
                RequestCode.SEND_BATCH_MESSAGE,
                RequestCode.HEART_BEAT,
            ]
        )
    )
    body = draw(st.sampled_from([b"hello", b"hello", b"x" * 900, b""]))
    if code == RequestCode.SEND_BATCH_MESSAGE:
        entry = st.builds(
            BatchEntry,
            st.binary(max_size=20),
            properties().map(str.encode),
            st.integers(-(2**31), 2**31 - 1),
        )
        body = encode_batch(draw(st.lists(entry, min_size=1, max_size=4)))
        body += draw(st.sampled_from([b"", b"", b"", b"\0", bytes(30)]))
    request = send_request(
        draw(st.sampled_from(["TopicTest"] * 12 + ["Fresh", "%RETRY%G", "Many", "TBW102", "n/a"])),
        body,
        properties=draw(properties()),
        code=code,
        serialize_type=draw(st.sampled_from(SerializeType)),
        oneway=draw(st.sampled_from([False, False, False, True])),
        version=draw(st.sampled_from([100, 401, 401, 493])),
    )
    fields = request.fields
    if draw(st.sampled_from([False, False, True])):
        names = [*fields, *(name for name in fields if name in WEIGHTY for _ in range(4))]
        changed = draw(st.sampled_from(names))
        value = draw(
            st.one_of(
                st.sampled_from(["0", "1", "3", "4", "8", "128", "true", "false", "769"]),
                ODD_NUMBERS,
            )
        )
        # A negative queue is chosen at random, so two brokers may differ.
        if not (changed in ("e", "queueId") and value == "-1"):
            fields[changed] = value
    if draw(st.sampled_from([False] * 9 + [True])):
        del fields[draw(st.sampled_from(list(fields)))]
    if draw(st.sampled_from([False] * 9 + [True])):
        request.ext_fields = dict(reversed(fields.items()))
    return request


# Headers that JSON allows and clients could write, or that it forbids; each replaces a text.
ODD_JSON = (
    (b'"b":"', b'"b": "'),
    (b'{"code"', b' {"code"'),
    (b'"extFields":{', b'"extFields":{"b":"Fresh",'),
    (b'"extFields":{', b'"extFields":{"b":"TopicTest",'),
    (b'"extFields":{', b'"extFields":{"e":"1","e":"2",'),
    (b'"extFields":{', b'"extFields":{"z":null,'),
    (b'"extFields":{', b'"extFields":{"x":"y",'),
    (b'"extFields":{', b'"extFields":{},"extFields":{'),
    (b'"e":"0"', b'"e":0'),
    (b'"e":"0"', b'"e":1e0'),
    (b'"e":"0"', b'"e":"1e0"'),
    (b'"e":"0"', b'"e":"1.0"'),
    (b'"e":"0"', b'"e":null'),
    (b'"e":"0"', b'"e":" 1"'),
    (b'"f":"0"', b'"f":true'),
    (b'"m":"false"', b'"m":false'),
    (b'"m":"false"', b'"m":"FALSE"'),
    (b'"m":"true"', b'"m":true'),
    (b'"topic":"', b'"topic": "'),
    (b'"queueId":"0"', b'"queueId":0'),
    (b'"queueId":"0"', b'"queueId":0,"b":"TopicTest"'),
    (b"TopicTest", b"Topic\\u0054est"),
    (b"TopicTest", b"Topic\\Test"),
    (b"\\u0001", b"\\u0000"),
    (b"\\u0002", b"\\u0022"),
    (b"\\u0002", b"\\\\u0002"),
    (b"\\u0002", b"\x02"),
    (b"TagA", b"Tag\\/A"),
    (b"TagA", "\u00e9".encode()),
    (b"TagA", b"\xff"),
    (b'"flag":0', b'"flag":0,"flag":2'),
    (b'"flag":0', b'"flag":1'),
    (b'"flag":0', b'"flag":4'),
    (b'"flag":0', b'"flag":"0"'),
    (b'"flag":0,', b""),
    (b'"opaque":', b'"remark":"x","opaque":'),
    (b'"opaque":', b'"opaque":-'),
    (b'"language":"JAVA"', b'"language":"COBOL"'),
    (b'"language":"JAVA"', b'"language":3'),
    (b'"version":', b'"version":0'),
    (b"}", b"} "),
    (b"}", b",}"),
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A request as bytes; sometimes of an odd form."""
    frame = encode_frame(draw(requests()))
    if draw(st.sampled_from([False, False, True])) and frame[4] == SerializeType.JSON:
        size = int.from_bytes(frame[5:8], "big")
        header, body = frame[8 : 8 + size], frame[8 + size :]
        header = header.replace(*draw(st.sampled_from(ODD_JSON)), 1)
        size = 4 + len(header) + len(body)
        frame = size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
    return frame


@dataclass
class Change:
    """Of a topic (the number of queues; 0 deletes it), or of settings."""

    queues: int | None = None
    settings: dict[str, str] | None = None

    def apply(self, harness: SendHarness) -> None:
        if self.settings is not None:
            harness.settings.replace(harness.settings.current.updated(self.settings))
        elif self.queues:
            harness.add_topic("TopicTest", self.queues)
        else:
            harness.topics.delete("TopicTest")


CHANGES = st.one_of(
    st.builds(Change, queues=st.sampled_from([0, 1, 2, 4])),
    st.builds(
        Change,
        settings=st.sampled_from(
            [
                {"maxMessageSize": "4"},
                {"maxMessageSize": "4194304"},
                {"brokerPermission": "4"},
                {"brokerPermission": "6"},
                {"regionId": 'r"%d'},
                {"traceOn": "false"},
                {"brokerIP1": "10.1.2.3"},
            ]
        ),
    ),
)
SCRIPTS = st.lists(
    st.one_of(*[st.lists(frames(), min_size=1, max_size=4)] * 4, CHANGES), min_size=1, max_size=5
)


class Outcome:
    """What a broker answered and what its store holds."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.ends: list[bool] = []
        self.log: list[bytes] = []
        self.queues: dict[tuple[str, int], list[object]] = {}
        self.index: list[bytes] = []
        self.puts: dict[str, tuple[int, int]] = {}


async def play(
    root: Path, script: list[list[bytes] | Change], *, lane: bool, flush_mode: FlushMode
) -> Outcome:
    clock = ManualClock()
    outcome = Outcome()
    with SendHarness(root, clock=clock, segment_bytes=4096, flush_mode=flush_mode) as harness:
        harness.add_topic("TopicTest", 4)
        harness.add_topic("Many", 4, topic_filter_type="MULTI_TAG")
        for step in script:
            clock.advance(7)
            if isinstance(step, Change):
                step.apply(harness)
                continue
            peer, connection = harness.connect(lane=lane)
            connection.data_received(b"".join(step))
            await harness.appender.drain()
            outcome.ends.append(connection.is_closed)
            connection.close()
            await peer.lost.wait()
            while not peer.received.empty():
                outcome.answers.append(encode_frame(peer.received.get_nowait()))
        store = harness.store
        store.index.write_pending()
        for entry in store.log.scan(0):
            view = store.log.read(entry.physical_offset, entry.size)
            assert view is not None
            outcome.log.append(bytes(view))
        for queue in store.queues:
            outcome.queues[queue.topic, queue.queue_id] = list(queue.entries(0, 1000))
        outcome.puts = harness.stats.puts
    outcome.index = [path.read_bytes() for path in sorted((root / "store" / "index").iterdir())]
    return outcome


@pytest.mark.slow
@settings(max_examples=400)
@given(SCRIPTS, st.sampled_from(FlushMode))
def test_the_lane_gives_the_outcome_of_the_general_route(
    script: list[list[bytes] | Change], flush_mode: FlushMode
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)

        async def both() -> None:
            quick = await play(root / "lane", script, lane=True, flush_mode=flush_mode)
            plain = await play(root / "general", script, lane=False, flush_mode=flush_mode)
            assert quick.answers == plain.answers
            assert vars(quick) == vars(plain)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(both())
