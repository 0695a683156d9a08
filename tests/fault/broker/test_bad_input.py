"""Requests that no client sends: an answer or a closed connection in time, and nothing else.

The broker is a separate process, so that its memory, its log and its exit can be checked.
"""

import asyncio
import contextlib
import copy
import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.config import parse_properties
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_client import CheckClientBody, ConsumerData, HeartbeatData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.headers.message import SendResponse
from goddard.protocol.responses import ResponseError
from goddard.testing.cluster import Cluster, Daemon
from goddard.transport.client import Client, ClientOptions
from tests.support.broker_client import BrokerClient
from tests.support.consumer_harness import pull_fields, sql
from tests.support.malformed_requests import malformed_requests, one_way
from tests.support.process_resources import private_bytes
from tests.support.send_harness import send_request
from tests.support.stream_peer import StreamPeer

MIB = 1 << 20
# No answer takes longer than the longest hold of a pull.
DEADLINE_SECONDS = 30
WINDOW = 200
# Codes that the broker does not support are found by asking.
CODES = sorted(RequestCode)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("bad-input")
    properties = {"enablePropertyFilter": "true"}
    with Cluster(directory, brokers=1, properties=properties) as cluster:
        (running,) = cluster.brokers
        yield running
        assert running.is_running
        assert running.stop() == 0
        assert tracebacks(running.home) == []


def tracebacks(home: Path) -> list[str]:
    """The tracebacks of unexpected exceptions in the logs; there should be none."""
    found: list[str] = []
    for log in [home / "output.log", *(home / "logs").glob("**/*.log")]:
        text = log.read_text(errors="replace")
        found += [part[-3_000:] for part in text.split("Traceback (most recent")[1:]]
    return found


async def assert_serves(broker: Daemon) -> None:
    """Assert that another client can send; the broker may be too busy for its first messages."""
    async with asyncio.timeout(DEADLINE_SECONDS), await StreamPeer.connect(broker.address) as peer:
        while True:
            answer = await peer.ask(send_request("Others", b"still here"))
            assert answer is not None
            if answer.code != ResponseCode.SYSTEM_BUSY:
                break
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def is_supported(broker: Daemon, code: int) -> bool:
    async with await StreamPeer.connect(broker.address) as peer:
        answer = await peer.ask(RemotingCommand(code))
    return answer is None or answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def is_undecided(request: RemotingCommand) -> bool:
    """An end of a transaction without decision: RocketMQ does not answer it either."""
    decision = request.fields.get("commitOrRollback", "8")
    return decision.lstrip("-").isdecimal() and decision.isascii() and decision not in ("8", "12")


async def ask_all(broker: Daemon, requests: list[RemotingCommand]) -> list[RemotingCommand]:
    """Send all at once; returns those unanswered when the connection was closed."""
    async with await StreamPeer.connect(broker.address) as peer:
        peer.write(b"".join(map(encode_frame, requests)))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await peer.receive(request.opaque for request in requests)
        return [request for request in requests if request.opaque not in peer.answers]


@pytest.mark.parametrize("code", CODES)
async def test_every_request_with_every_kind_of_bad_field(broker: Daemon, code: int) -> None:
    if not await is_supported(broker, code):
        return
    requests = [
        dataclasses.replace(request, opaque=opaque)
        for opaque, request in enumerate(malformed_requests(code), 1)
    ]
    before = len(tracebacks(broker.home))
    asked = [request for request in requests if not is_undecided(request)]
    unanswered: list[RemotingCommand] = []
    for start in range(0, len(asked), WINDOW):
        unanswered += await ask_all(broker, asked[start : start + WINDOW])
    for request in unanswered:  # each alone: it is answered, or the connection is closed
        await ask_all(broker, [request])
    async with await StreamPeer.connect(broker.address) as peer:
        for request in requests:
            peer.write(encode_frame(one_way(request)))
            await peer.drain()
        # Only the last request, which is not one-way, is answered.
        last = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "Others", "queueId": "0"})
        assert await peer.ask(last, DEADLINE_SECONDS) is not None or peer.is_closed
        assert peer.answers.keys() <= {last.opaque}
    await assert_serves(broker)
    assert tracebacks(broker.home)[before:] == []
    assert private_bytes(broker.pid) < 400 * MIB


@pytest.mark.parametrize(
    ("expression", "parses"),
    [
        ("a >", False),
        ("a = 'unended", False),
        (")", False),
        ("(" * 100_000, False),
        ("NOT " * 100_000 + "a", False),
        (" OR ".join(["a = 'b'"] * 80_000), False),
        ("a = '" + "v" * (MIB - 1_000) + "'", False),
        ("a = 7", True),
    ],
    ids=lambda value: str(value)[:12],
)
async def test_sql_that_is_invalid_or_too_long(
    broker: Daemon, expression: str, parses: bool
) -> None:
    await assert_serves(broker)
    fields = pull_fields("Others", subscription=expression, expressionType="SQL92")
    texts = {name: str(value) for name, value in fields.items()}
    before = private_bytes(broker.pid)
    async with await StreamPeer.connect(broker.address) as peer:
        answer = await peer.ask(RemotingCommand(RequestCode.PULL_MESSAGE, texts))
    if parses:
        assert answer is not None
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    else:
        assert answer is not None
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    # The same in heartbeats and in the check that clients make before they start.
    subscription = sql("Others", expression)
    heartbeat = HeartbeatData(
        client_id="c",
        consumer_data_set=[ConsumerData(group_name="G", subscription_data_set=[subscription])],
    )
    check = CheckClientBody(client_id="c", group="G", subscription_data=subscription)
    async with await StreamPeer.connect(broker.address) as peer:
        for code, body, opaque in (
            (RequestCode.HEART_BEAT, encode_body(heartbeat), 1),
            (RequestCode.CHECK_CLIENT_CONFIG, encode_body(check), 2),
        ):
            answer = await peer.ask(RemotingCommand(code, {}, body, opaque=opaque))
            assert answer is not None
        expected = ResponseCode.SUCCESS if parses else ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert answer is not None
        assert answer.code == expected, answer.remark
    await assert_serves(broker)
    assert private_bytes(broker.pid) - before < 50 * MIB


def changed(header: SendResponse, name: str, value: int | str) -> SendResponse:
    other = copy.copy(header)
    setattr(other, name, value)
    return other


async def test_ends_of_unknown_and_inconsistent_transactions(broker: Daemon) -> None:
    """Unknown, repeated and other producers' ends; halves with only the flag or the property."""
    async with Client(ClientOptions()) as client:
        dialogue = BrokerClient(client, broker.address)
        half = await dialogue.send_half("Halves", b"one")
        plain = await dialogue.send("Halves", b"plain")
        for wrong in (
            plain,
            changed(half, "queue_offset", half.queue_offset + 1),
            changed(half, "queue_offset", -1),
            changed(half, "msg_id", half.msg_id[:16] + "7" + "F" * 15),
        ):
            answer = await dialogue.end(wrong, 8)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark
        # The property without the flag, and the flag without the property.
        await dialogue.send("Halves", b"unflagged", {"TRAN_MSG": "true", "PGROUP": "P"})
        await dialogue.send("Halves", b"unmarked", sys_flag=4)
        # Sends to the topics of halves and decisions.
        for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
            with pytest.raises(ResponseError) as refused:
                await dialogue.send(topic, b"x")
            assert refused.value.code == ResponseCode.NO_PERMISSION
        assert (await dialogue.end(half, 8)).code == ResponseCode.SUCCESS
        received = await dialogue.receive("Halves", 2)
        assert [record.body for record in received] == [b"plain", b"one"]
    await assert_serves(broker)


async def test_frames_with_wrong_lengths(broker: Daemon) -> None:
    frame = encode_frame(send_request("Others", b"0123456789"))
    head_length = struct.unpack(">I", frame[4:8])[0] & 0xFFFFFF
    wrong_frames = {
        "shorter than its header": struct.pack(">i", 4 + head_length - 7) + frame[4:],
        "a header longer than the frame": frame[:4] + struct.pack(">I", MIB) + frame[8:],
        "negative": struct.pack(">i", -len(frame)) + frame[4:],
        "two gigabytes": struct.pack(">i", 2**31 - 1) + frame[4:],
    }
    for what, data in wrong_frames.items():
        async with await StreamPeer.connect(broker.address) as peer:
            peer.write(data)
            async with asyncio.timeout(60):
                await peer.receive([-1])
            assert peer.is_closed, what
            assert peer.answers == {}, what
    # Announced and not sent: no memory is reserved, nothing blocks, nothing is stored.
    before = private_bytes(broker.pid)
    topic = "Announced"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(50):
            peer = await stack.enter_async_context(await StreamPeer.connect(broker.address))
            long = encode_frame(send_request(topic, bytes(16)))
            peer.write(struct.pack(">i", 15 * MIB) + long[4:])
            await peer.drain()
        await assert_serves(broker)
        assert private_bytes(broker.pid) - before < 20 * MIB
    fields = {"topic": topic, "queueId": "0"}
    async with await StreamPeer.connect(broker.address) as peer:
        answer = await peer.ask(RemotingCommand(RequestCode.GET_MAX_OFFSET, fields))
        assert answer is not None
        assert answer.fields.get("offset", "0") == "0"


@pytest.mark.parametrize("reads", [False, True], ids=["deaf", "late"])
async def test_many_requests_of_one_client_at_once(broker: Daemon, reads: bool) -> None:
    """50,000 requests of every common kind, with nothing read while they are sent."""
    pull = {name: str(value) for name, value in pull_fields("Others").items()}
    runtime = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
    kinds = [
        send_request("Others", bytes(200)),
        RemotingCommand(RequestCode.PULL_MESSAGE, pull),
        RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "Others", "queueId": "0"}),
        send_request("Others", bytes(200), code=RequestCode.SEND_MESSAGE, oneway=True),
        runtime,
    ]
    before = private_bytes(broker.pid)
    requests = [
        dataclasses.replace(kinds[number % len(kinds)], opaque=number) for number in range(50_000)
    ]
    async with await StreamPeer.connect(broker.address) as peer:
        peer.write(b"".join(map(encode_frame, requests)))
        peak = 0
        for _ in range(20):
            await assert_serves(broker)
            peak = max(peak, private_bytes(broker.pid))
        assert peak - before < 150 * MIB
        if reads:
            wanted = [request.opaque for request in requests if not request.is_oneway]
            async with asyncio.timeout(60):
                await peer.receive(wanted)
            assert len(peer.answers) == len(wanted)
            assert {answer.code for answer in peer.answers.values()} <= {
                ResponseCode.SUCCESS,
                ResponseCode.SYSTEM_BUSY,
            }
    await assert_serves(broker)


async def test_consumers_that_never_read(broker: Daemon) -> None:
    """Each requests gigabytes; the pending answers of each are bounded."""
    async with Client(ClientOptions()) as client:
        dialogue = BrokerClient(client, broker.address)
        for _ in range(4):
            await dialogue.send("Large", bytes(MIB))
    before = private_bytes(broker.pid)
    fields = {name: str(value) for name, value in pull_fields("Large").items()}
    flood = encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE, fields)) * 2_000
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            peer = await stack.enter_async_context(await StreamPeer.connect(broker.address))
            peer.write(flood)
        peak = 0
        for _ in range(20):
            await asyncio.sleep(0.05)
            await assert_serves(broker)
            peak = max(peak, private_bytes(broker.pid))
        assert peak - before < 20 * 6 * MIB
    await assert_serves(broker)


async def test_the_attack_of_cve_2023_33246_is_refused(broker: Daemon) -> None:
    """A home folder that contains a command, which starting a filter server would execute."""
    proof = broker.home / "proof"
    attack = f"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch {proof};\n".encode()
    async with await StreamPeer.connect(broker.address) as peer:
        answer = await peer.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, attack))
        assert answer is not None
        assert answer.code == ResponseCode.NO_PERMISSION
        request = RemotingCommand(RequestCode.GET_BROKER_CONFIG, opaque=1)
        answer = await peer.ask(request)
        assert answer is not None
        properties = parse_properties(bytes(answer.body).decode())
        assert properties.get("filterServerNums", "0") == "0"
        assert str(proof) not in properties["rocketmqHome"]
    assert not proof.exists()
