"""The hot path against the general path: equal frames give equal answers and logs.

Each example sends one list of requests through two fresh brokers, one with the hot path and one
without, and compares every answer and every stored byte.
"""

import asyncio
import tempfile
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.message import BatchEntry, encode_batch
from goddard.store.config import FlushMode
from tests.support.clock import ManualClock
from tests.support.send_harness import SendHarness, send_request

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


def plain_requests() -> list[RemotingCommand]:
    """Enough requests that their layout gets a pattern, and their headers a form."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in PLAIN)
    return [
        send_request(properties=text, opaque=1000 + number, serialize_type=kind, version=401)
        for number, kind in enumerate([*SerializeType] * 9)
    ]


async def outcome(
    root: Path, chunks: list[list[RemotingCommand]], *, hot: bool, flush_mode: FlushMode
) -> tuple[list[RemotingCommand], list[bytes], dict[str, tuple[int, int]]]:
    clock = ManualClock()
    with SendHarness(root, clock=clock, segment_bytes=4096, flush_mode=flush_mode) as harness:
        harness.add_topic("TopicTest", 4)
        harness.add_topic("Many", 4, topic_filter_type="MULTI_TAG")
        peer, connection = harness.connect(hot=hot)
        await harness.ask(*plain_requests(), hot=hot)
        assert harness.hot_path.known_forms == (2 if hot else 0)
        answers: list[RemotingCommand] = []
        for chunk in chunks:
            connection.data_received(b"".join(map(encode_frame, chunk)))
            answers += await peer.receive(sum(not request.is_oneway for request in chunk))
            await harness.appender.drain()
            clock.advance(7)
        assert peer.received.empty()
        connection.close()
        log = harness.store.log
        stored = [
            bytes(view)
            for entry in log.scan(0)
            if (view := log.read(entry.physical_offset, entry.size)) is not None
        ]
        answers.sort(key=lambda answer: answer.opaque)
        return answers, stored, harness.stats.puts


@pytest.mark.slow
@settings(max_examples=250)
@given(
    st.lists(st.lists(requests(), min_size=1, max_size=3), min_size=1, max_size=4),
    st.sampled_from(FlushMode),
)
def test_the_hot_path_gives_the_results_of_the_general_path(
    chunks: list[list[RemotingCommand]], flush_mode: FlushMode
) -> None:
    # Numbers with the same count of digits: headers of one form have one length.
    for opaque, request in enumerate((each for chunk in chunks for each in chunk), 2000):
        request.opaque = opaque
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)

        async def both() -> None:
            quick = await outcome(root / "hot", chunks, hot=True, flush_mode=flush_mode)
            long = await outcome(root / "long", chunks, hot=False, flush_mode=flush_mode)
            assert quick[0] == long[0]
            assert quick[1] == long[1]
            assert quick[2] == long[2]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(both())
