"""Requests no client would send: an answer or a closed connection in time, and nothing else.

The broker is a process of its own, so that its memory, its log and its life can be looked at.
"""

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.testing.absurd import absurd_requests, one_way
from goddard.testing.cluster import Cluster, Daemon
from goddard.testing.rawpeer import StreamPeer
from goddard.testing.resources import private_bytes
from goddard.testing.sends import send_request

MIB = 1 << 20
# Whatever happens, an answer takes no longer than a pull may be held.
DEADLINE_SECONDS = 30
WINDOW = 200
# Requests between brokers of other kinds are not asked here; the rest is looked for by asking.
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
    """Exceptions nobody foresaw are in the log with their traceback; there should be none."""
    found: list[str] = []
    for log in [home / "output.log", *(home / "logs").glob("**/*.log")]:
        text = log.read_text(errors="replace")
        found += [part[-3_000:] for part in text.split("Traceback (most recent")[1:]]
    return found


async def assert_serves(broker: Daemon) -> None:
    """Somebody else's messages are taken and found, at once."""
    begun = time.monotonic()
    async with await StreamPeer.connect(broker.address) as peer:
        answer = await peer.ask(send_request("Others", b"still here"))
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert time.monotonic() - begun < 5


async def is_supported(broker: Daemon, code: int) -> bool:
    async with await StreamPeer.connect(broker.address) as peer:
        answer = await peer.ask(RemotingCommand(code))
    return answer is None or answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def is_undecided(request: RemotingCommand) -> bool:
    """The end of a transaction that says neither yes nor no: RocketMQ does not answer it either."""
    decision = request.fields.get("commitOrRollback", "8")
    return decision.lstrip("-").isdecimal() and decision.isascii() and decision not in ("8", "12")


async def ask_all(broker: Daemon, requests: list[RemotingCommand]) -> list[RemotingCommand]:
    """Ask together; those left over when the connection was closed. Nothing may stay open."""
    async with await StreamPeer.connect(broker.address) as peer:
        peer.write(b"".join(map(encode_frame, requests)))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await peer.receive(request.opaque for request in requests)
        return [request for request in requests if request.opaque not in peer.answers]


@pytest.mark.parametrize("code", CODES)
async def test_every_request_spoilt_in_every_way(broker: Daemon, code: int) -> None:
    if not await is_supported(broker, code):
        return
    requests = [
        dataclasses.replace(request, opaque=opaque)
        for opaque, request in enumerate(absurd_requests(code), 1)
    ]
    before = len(tracebacks(broker.home))
    asked = [request for request in requests if not is_undecided(request)]
    unanswered: list[RemotingCommand] = []
    for start in range(0, len(asked), WINDOW):
        unanswered += await ask_all(broker, asked[start : start + WINDOW])
    for request in unanswered:  # each alone: answered, or closed on
        await ask_all(broker, [request])
    async with await StreamPeer.connect(broker.address) as peer:
        for request in requests:
            peer.write(encode_frame(one_way(request)))
            await peer.drain()
        # An answer to what came last, and none to what asked for none.
        last = RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": "Others", "queueId": "0"})
        assert await peer.ask(last, DEADLINE_SECONDS) is not None or peer.is_closed
        assert peer.answers.keys() <= {last.opaque}
    await assert_serves(broker)
    assert tracebacks(broker.home)[before:] == []
    assert private_bytes(broker.pid) < 400 * MIB
