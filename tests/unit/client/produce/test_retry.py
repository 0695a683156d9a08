"""After which outcomes another attempt is made, and the result or error of the send."""

from typing import Any

import pytest

from goddard.client.errors import (
    BrokerError,
    BrokerNotFoundError,
    ClientCode,
    ClientError,
    SendFailedError,
    TooManyRequestsError,
)
from goddard.client.message import Message
from goddard.client.produce.encoding import Outgoing
from goddard.client.produce.retry import PendingSend, RetryPolicy
from goddard.client.values import MessageQueue, SendMode, SendResult, SendStatus
from goddard.errors import (
    ConnectFailedError,
    ConnectionLostError,
    GoddardError,
    OverloadedError,
    ProtocolError,
    RequestTimeoutError,
    ServerShuttingDownError,
)
from goddard.protocol.codes import ResponseCode

QUEUE = MessageQueue("ns%T", "a", 0)
BUSY = BrokerError(ResponseCode.SYSTEM_BUSY, "busy", "host:1")
ILLEGAL = BrokerError(ResponseCode.MESSAGE_ILLEGAL, "no", "host:1")
LOST = ConnectionLostError("lost", "host:1")
TIMED_OUT = RequestTimeoutError("silent", "host:1")
OVERLOADED = OverloadedError("full", "host:1")
SHUTTING_DOWN = ServerShuttingDownError("host:1 is shutting down", "host:1")

# The policies of ``send`` (also with a chosen queue) and of ``send_soon``.
WAITING = RetryPolicy(max_attempts=3, retry_codes=frozenset({ResponseCode.SYSTEM_BUSY}))
CHOSEN = RetryPolicy()
SUBMITTED = RetryPolicy(max_attempts=3, retries_overload=False)


def pending(policy: RetryPolicy, **where: Any) -> PendingSend:
    send = PendingSend(policy, SendMode.SYNC, (Message("T", b"x"),), "ns%T", 1_000, 500, **where)
    send.queue = QUEUE
    send.out = Outgoing(310, "ns%T", b"x", "", 0, 0, "ID", "T")
    return send


def result(status: SendStatus) -> SendResult:
    return SendResult(status, "ID", "AT", QUEUE, 7)


@pytest.mark.parametrize(
    ("error", "waiting", "chosen", "submitted"),
    [
        (BUSY, True, False, False),
        (ILLEGAL, False, False, False),
        (LOST, True, True, True),
        (TIMED_OUT, True, True, True),
        (ConnectFailedError("refused"), True, True, True),
        (SHUTTING_DOWN, True, True, True),
        (BrokerNotFoundError("a"), True, True, True),
        (ProtocolError("nonsense"), True, True, True),
        (OVERLOADED, True, True, False),
    ],
)
def test_which_errors_are_retried(
    error: GoddardError, waiting: bool, chosen: bool, submitted: bool
) -> None:
    for policy, is_retried in ((WAITING, waiting), (CHOSEN, chosen), (SUBMITTED, submitted)):
        send = pending(policy)
        send.begin(1_000)
        send.failed(error)
        assert policy.retries(error) is is_retried
        assert send.is_ended is not is_retried
        # A chosen queue has one attempt, whatever the error.
        assert send.may_try(1_001) is (is_retried and policy is not CHOSEN)


@pytest.mark.parametrize("status", SendStatus)
def test_which_results_end_a_send(status: SendStatus) -> None:
    for policy in (
        WAITING,
        RetryPolicy(max_attempts=2, retries_unsafe=True),
    ):
        send = pending(policy)
        send.begin(1_000)
        send.answered(result(status))
        is_retried = policy.retries_unsafe and status is not SendStatus.SEND_OK
        assert send.may_try(1_001) is is_retried
        assert send.outcome(1_001) == result(status)


def test_result_of_a_stored_message_is_kept_after_errors() -> None:
    for error in (LOST, ILLEGAL, OVERLOADED):
        send = pending(RetryPolicy(max_attempts=2, retries_unsafe=True))
        send.begin(1_000)
        send.answered(result(SendStatus.FLUSH_DISK_TIMEOUT))
        send.begin(1_001)
        send.failed(error)
        assert send.outcome(1_002).status is SendStatus.FLUSH_DISK_TIMEOUT


def test_attempts_are_limited_by_number_and_time() -> None:
    send = pending(WAITING)
    for attempt in range(3):
        assert send.attempts == attempt
        assert send.may_try(1_000 + attempt)
        send.begin(1_000 + attempt)
        send.failed(LOST)
    assert not send.may_try(1_003)
    late = pending(WAITING)
    assert late.may_try(1_499)
    assert not late.may_try(1_500)


def test_timeout_of_an_attempt() -> None:
    send = pending(RetryPolicy(max_attempts=3, max_timeout_per_attempt_ms=200))
    # The last attempt has what is left.
    assert [send.begin(now_ms) for now_ms in (1_000, 1_050, 1_100)] == [200, 200, 400]
    send = pending(RetryPolicy(max_attempts=3, max_timeout_per_attempt_ms=200))
    assert send.begin(1_450) == 50
    assert pending(RetryPolicy()).begin(1_100) == 400
    # No time is left: one millisecond is the minimum.
    assert pending(RetryPolicy()).begin(1_500) == 1


def failure(policy: RetryPolicy, *errors: GoddardError) -> ClientError:
    send = pending(policy)
    for error in errors:
        send.begin(1_100)
        send.failed(error)
    with pytest.raises(ClientError) as failed:
        send.outcome(1_250)
    return failed.value


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BUSY, ResponseCode.SYSTEM_BUSY),
        (LOST, ClientCode.CONNECT_BROKER),
        (TIMED_OUT, ClientCode.ACCESS_BROKER_TIMEOUT),
        (SHUTTING_DOWN, ResponseCode.GO_AWAY),
        (BrokerNotFoundError("a"), ClientCode.BROKER_NOT_EXIST),
        (ProtocolError("nonsense"), ClientCode.CONNECT_BROKER),
    ],
)
def test_the_last_error_gives_code_and_cause(error: GoddardError, code: int) -> None:
    failed = failure(WAITING, LOST, LOST, error)
    assert isinstance(failed, SendFailedError)
    assert (failed.code, failed.tries) == (code, 3)
    assert failed.__cause__ is error
    assert failed.message == (
        "Send [3] times, still failed, cost [250]ms, Topic: T, BrokersSent: [a, a, a]: "
        f"{getattr(error, 'message', error)}"
    )


def test_failure_before_the_last_attempt_is_a_timeout() -> None:
    failed = failure(WAITING, LOST)
    assert failed.message.startswith("sendDefaultImpl call timeout. Send [1] times, still failed")


def test_a_delay_that_a_broker_does_not_have_is_not_tried_again() -> None:
    """Each broker would refuse it."""
    remark = "accurate timer message is not enabled, this broker has no timer wheel"
    error = BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    policy = RetryPolicy(max_attempts=3, retry_codes=frozenset({ResponseCode.SYSTEM_ERROR}))
    assert not policy.retries(error)
    assert "use delay_level" in str(error)


def test_refusal_that_is_not_retried_is_raised_unchanged() -> None:
    assert failure(WAITING, ILLEGAL) is ILLEGAL
    assert failure(WAITING, LOST, ILLEGAL) is ILLEGAL
    assert failure(CHOSEN, BUSY) is BUSY
    assert failure(SUBMITTED, BUSY) is BUSY
    assert ILLEGAL.__cause__ is None


@pytest.mark.parametrize("policy", [WAITING, SUBMITTED])
def test_overload_is_raised_only_if_nothing_was_sent(policy: RetryPolicy) -> None:
    not_sent = ConnectFailedError("refused"), BrokerNotFoundError("a"), SHUTTING_DOWN
    for earlier in ((), *((error,) for error in not_sent)):
        failed = failure(policy, *earlier, OVERLOADED)
        assert isinstance(failed, TooManyRequestsError)
        assert failed.__cause__ is OVERLOADED
    for lost in (LOST, TIMED_OUT, ProtocolError("nonsense")):
        failed = failure(policy, lost, OVERLOADED)
        assert isinstance(failed, SendFailedError)
        assert failed.tries == 2


def test_timeout_before_the_first_attempt() -> None:
    failed = failure(WAITING)
    assert isinstance(failed, TooManyRequestsError)
    assert failed.message == "sendDefaultImpl call timeout"


@pytest.mark.parametrize(
    ("where", "is_chosen"),
    [
        ({}, False),
        ({"queue": QUEUE}, True),
        ({"selector": lambda queues, message, key: queues[0]}, True),
        ({"key": 0}, True),
    ],
)
def test_queue_selector_or_key_choose_the_queue(where: dict[str, Any], is_chosen: bool) -> None:
    assert pending(WAITING, **where).is_queue_chosen is is_chosen
