import asyncio

import pytest

from goddard.errors import ConnectionLostError, RemotingError, RequestTimeoutError
from goddard.protocol.frame import RemotingCommand
from goddard.transport.pending import PendingRequests

CODE = 34


class Outcomes:
    """The outcomes of requests, by opaque, and how often the peer was reported as silent."""

    def __init__(self) -> None:
        self.by_opaque: dict[int, RemotingCommand | RemotingError] = {}
        self.silences = 0
        self.changed = asyncio.Event()
        self.pending = PendingRequests(asyncio.get_running_loop(), self._fall_silent)

    def _fall_silent(self) -> None:
        self.silences += 1

    def ask(self, timeout_ms: int = 60_000) -> int:
        request = KeptRequest(self)
        request.opaque, _ = self.pending.add(request, CODE, timeout_ms)
        return request.opaque

    def end(self, opaque: int, outcome: RemotingCommand | RemotingError) -> None:
        assert opaque not in self.by_opaque
        self.by_opaque[opaque] = outcome
        self.changed.set()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.by_opaque) < count:
                self.changed.clear()
                await self.changed.wait()


class KeptRequest:
    """A request of ``Outcomes``."""

    opaque = -1

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes

    def encode(self, opaque: int) -> bytes:
        return b""

    def done(self, outcome: RemotingCommand | RemotingError) -> None:
        self.outcomes.end(self.opaque, outcome)


async def test_opaques_stay_within_31_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goddard.transport.pending._MAX_OPAQUE", 3)
    pending = Outcomes().pending
    assert [pending.next_opaque() for _ in range(5)] == [1, 2, 3, 0, 1]


async def test_a_response_completes_its_request_once() -> None:
    outcomes = Outcomes()
    first, second = outcomes.ask(), outcomes.ask()
    response = RemotingCommand(0, opaque=second)
    outcomes.pending.complete(response)
    outcomes.pending.complete(response)
    assert outcomes.by_opaque == {second: response}
    outcomes.pending.fail("the link was cut")
    assert isinstance(outcomes.by_opaque[first], ConnectionLostError)
    assert not outcomes.pending.waiting


async def test_a_request_that_cannot_be_encoded_is_not_added() -> None:
    outcomes = Outcomes()

    class NoFrame(KeptRequest):
        def encode(self, opaque: int) -> bytes:
            raise ValueError("no bytes")

    with pytest.raises(ValueError, match="no bytes"):
        outcomes.pending.add(NoFrame(outcomes), CODE, 60_000)
    assert not outcomes.pending.waiting


async def test_a_forgotten_request_is_removed() -> None:
    outcomes = Outcomes()
    given_up, kept = outcomes.ask(), outcomes.ask()
    for opaque in (given_up, kept):
        outcomes.pending.deferred[opaque] = b"frame"
    outcomes.pending.forget(given_up)
    assert list(outcomes.pending.waiting) == list(outcomes.pending.deferred) == [kept]
    outcomes.pending.fail("the end of the test")
    assert list(outcomes.by_opaque) == [kept]
    assert not outcomes.pending.deferred


async def test_one_timer_serves_requests_due_in_any_order() -> None:
    outcomes = Outcomes()
    patient = outcomes.ask()
    late, early = outcomes.ask(60), outcomes.ask(20)
    await outcomes.has(2)
    # On a busy machine both may expire in one call, in any order.
    assert set(outcomes.by_opaque) == {early, late}
    assert isinstance(outcomes.by_opaque[early], RequestTimeoutError)
    assert list(outcomes.pending.waiting) == [patient]
    outcomes.pending.fail("the end of the test")


@pytest.mark.parametrize(
    ("timeout_ms", "is_received", "silences"), [(1000, False, 1), (1000, True, 0), (20, False, 0)]
)
async def test_only_a_long_timeout_reports_a_silent_peer(
    timeout_ms: int, is_received: bool, silences: int
) -> None:
    outcomes = Outcomes()
    outcomes.ask(timeout_ms)
    if is_received:
        outcomes.pending.received_seconds = asyncio.get_running_loop().time() + 0.5
    await outcomes.has(1)
    assert outcomes.silences == silences
