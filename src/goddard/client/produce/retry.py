"""When a send is tried again, and what its caller gets at the end. Pure.

A ``PendingSend`` is one message or batch that is being sent: its attempts, their brokers, and their
results or errors. Its ``RetryPolicy`` decides after which of them another attempt is made. All ways
of sending use both; the rules are those of RocketMQ's ``sendDefaultImpl``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

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
from goddard.client.produce.selectors import Selector
from goddard.client.values import MessageQueue, SendMode, SendResult, SendStatus
from goddard.errors import (
    ConnectFailedError,
    GoddardError,
    OverloadedError,
    ProtocolError,
    RemotingError,
    RequestTimeoutError,
    ServerShuttingDownError,
)
from goddard.protocol.codes import ResponseCode

_NO_TIME: Final = "no time was left for an attempt: raise timeout_ms, or send_timeout_ms"

ATTEMPT_ERRORS: Final = (RemotingError, ProtocolError, BrokerNotFoundError, BrokerError)
"""What an attempt may fail with; any other exception ends the send as it is."""

# After one of these the message is certainly not stored.
_NOT_STORED: Final = (
    OverloadedError,
    ConnectFailedError,
    ServerShuttingDownError,
    BrokerNotFoundError,
    BrokerError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """``max_timeout_per_attempt_ms`` limits each attempt but the last.

    ``retries_overload``: try another broker when too much is waiting for this one already.
    ``retries_unsafe``: try again when the status of a result is not SEND_OK.
    """

    max_attempts: int = 1
    retry_codes: frozenset[int] = frozenset()
    retries_overload: bool = True
    retries_unsafe: bool = False
    max_timeout_per_attempt_ms: int | None = None

    def accepts(self, status: SendStatus) -> bool:
        """Whether a result of this status ends the send."""
        return status is SendStatus.SEND_OK or not self.retries_unsafe

    def retries(self, error: GoddardError) -> bool:
        """Whether another attempt may follow this error."""
        if isinstance(error, BrokerError):
            return error.code in self.retry_codes and not error.is_timer_disabled
        if isinstance(error, OverloadedError):
            return self.retries_overload
        return True


class PendingSend:
    """One send: its message or batch, its attempts so far, and their outcomes.

    ``topic`` is the brokers' name of the topic. ``is_queue_chosen``: the caller gave the queue, a
    selector or a key, so that all attempts go to that queue. ``out`` and ``queue`` are set when the
    message is prepared and its queue is known.
    """

    __slots__ = (
        "attempts",
        "brokers",
        "error",
        "is_ended",
        "is_queue_chosen",
        "key",
        "may_be_stored",
        "messages",
        "mode",
        "out",
        "policy",
        "queue",
        "result",
        "selector",
        "started_ms",
        "timeout_ms",
        "topic",
    )

    def __init__(
        self,
        policy: RetryPolicy,
        mode: SendMode,
        messages: Sequence[Message],
        topic: str,
        started_ms: int,
        timeout_ms: int,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
    ) -> None:
        self.policy = policy
        self.mode = mode
        self.messages = messages
        self.topic = topic
        self.started_ms = started_ms
        self.timeout_ms = timeout_ms
        self.queue = queue
        self.selector = selector
        self.key = key
        self.is_queue_chosen = queue is not None or selector is not None or key is not None
        self.out: Outgoing | None = None
        self.attempts = 0
        self.brokers: tuple[str, ...] = ()
        self.result: SendResult | None = None
        self.error: GoddardError | None = None
        self.may_be_stored = False
        self.is_ended = False

    def left_ms(self, now_ms: int) -> int:
        return self.started_ms + self.timeout_ms - now_ms

    def may_try(self, now_ms: int) -> bool:
        """Whether another attempt is to be made."""
        return (
            not self.is_ended
            and self.attempts < self.policy.max_attempts
            and self.left_ms(now_ms) > 0
        )

    def begin(self, now_ms: int) -> int:
        """Count an attempt; the milliseconds that it may take."""
        self.attempts += 1
        left_ms = self.started_ms + self.timeout_ms - now_ms
        limit_ms = self.policy.max_timeout_per_attempt_ms
        if limit_ms is not None and self.attempts < self.policy.max_attempts:
            left_ms = min(left_ms, limit_ms)
        return left_ms if left_ms > 0 else 1

    def answered(self, result: SendResult) -> bool:
        """An attempt has a result; True if that ends the send."""
        self.result = result
        if self.policy.accepts(result.status):
            self.is_ended = True
        else:
            self._count_broker()
        return self.is_ended

    def failed(self, error: GoddardError) -> None:
        """An attempt failed; ``error`` is one of ATTEMPT_ERRORS."""
        self.error = error
        self.may_be_stored = self.may_be_stored or not isinstance(error, _NOT_STORED)
        self.is_ended = not self.policy.retries(error)
        self._count_broker()

    def _count_broker(self) -> None:
        if self.queue is not None:
            self.brokers += (self.queue.broker_name,)

    def outcome(self, now_ms: int) -> SendResult:
        """What the caller gets when no attempt is left: the last result, or an exception."""
        if self.result is not None:
            return self.result
        failure = self.failure(now_ms)
        # The broker's own refusal has no other cause.
        raise failure from (self.error if failure is not self.error else None)

    def failure(self, now_ms: int) -> ClientError:
        """The exception of a send without a result."""
        error = self.error
        if error is None:
            return TooManyRequestsError("sendDefaultImpl call timeout", advice=_NO_TIME)
        if isinstance(error, BrokerError) and not self.policy.retries(error):
            return error
        if isinstance(error, OverloadedError) and not self.may_be_stored:
            return TooManyRequestsError(str(error), address=error.address)
        text = (
            f"Send [{self.attempts}] times, still failed, cost [{now_ms - self.started_ms}]ms, "
            f"Topic: {'' if self.out is None else self.out.user_topic}, "
            f"BrokersSent: [{', '.join(self.brokers)}]: {getattr(error, 'message', error)}"
        )
        if not self.is_ended and self.attempts < self.policy.max_attempts:
            text = f"sendDefaultImpl call timeout. {text}"
        return SendFailedError(
            text,
            code=_code_of(error),
            tries=self.attempts,
            address=getattr(error, "address", ""),
            advice=getattr(error, "advice", None),
        )


def _code_of(error: GoddardError) -> int:
    if isinstance(error, ClientError):
        return error.code
    if isinstance(error, RequestTimeoutError):
        return ClientCode.ACCESS_BROKER_TIMEOUT
    if isinstance(error, ServerShuttingDownError):
        return ResponseCode.GO_AWAY
    return ClientCode.CONNECT_BROKER
