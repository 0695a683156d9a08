"""Sending something until a broker has it: try after try, each at another broker if there is one.

What a try's outcome means for the next one is RocketMQ's (``sendDefaultImpl``), and so are the
texts. Belongs to the event loop.
"""

import logging
from collections.abc import Sequence
from typing import Final

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
from goddard.client.produce.hooks import SendMode
from goddard.client.produce.options import ProducerOptions
from goddard.client.produce.sender import Courier
from goddard.client.routes import PublishRoute
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.clock import Clock
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

_logger: Final = logging.getLogger("goddard.client")

_NO_TIME: Final = "no time was left for a try: raise timeout_ms, or send_timeout_ms"
# Failures after which a message is certainly not stored.
_NOT_SENT: Final = (
    OverloadedError,
    ConnectFailedError,
    ServerShuttingDownError,
    BrokerNotFoundError,
    BrokerError,
)


class Tries:
    """The tries of one producer."""

    def __init__(self, courier: Courier, options: ProducerOptions, clock: Clock) -> None:
        self._courier = courier
        self._options = options
        self._clock = clock

    async def deliver(
        self,
        out: Outgoing,
        messages: Sequence[Message],
        fixed: MessageQueue | None,
        started_ms: int,
        timeout_ms: int,
    ) -> SendResult:
        """Try until a broker has it, or all tries or the time are used up."""
        own, courier = self._options, self._courier
        tries = 1 if fixed is not None else 1 + own.retries
        brokers: list[str] = []
        stored: SendResult | None = None
        failure: GoddardError | None = None
        # A try without an answer may have been stored all the same.
        was_sent = False
        while len(brokers) < tries:
            left_ms = timeout_ms - (self._clock.monotonic_ms() - started_ms)
            if left_ms <= 0:
                break
            route: PublishRoute | None = None
            if fixed is None:
                try:
                    route = await courier.route(out.topic, left_ms)
                except ClientError:
                    if not brokers:
                        raise
                    # What became of it before says more.
                    break
                left_ms = max(1, timeout_ms - (self._clock.monotonic_ms() - started_ms))
            if own.max_timeout_per_try_ms is not None and len(brokers) < tries - 1:
                left_ms = min(left_ms, own.max_timeout_per_try_ms)
            last_broker = brokers[-1] if brokers else None
            queue = fixed if route is None else courier.choose(route, last_broker)
            assert queue is not None
            brokers.append(queue.broker_name)
            tried_ms = self._clock.monotonic_ms()
            try:
                stored = await courier.carry(out, messages, queue, left_ms, SendMode.SYNC)
            except (RemotingError, ProtocolError, BrokerNotFoundError, BrokerError) as error:
                if isinstance(error, BrokerError) and (
                    fixed is not None or error.code not in own.retry_codes
                ):
                    if stored is not None:
                        return stored
                    raise
                _logger.warning(
                    "sendKernelImpl exception, resend at once, InvokeID: %d, RT: %dms, Broker: %s: "
                    "%s",
                    started_ms,
                    self._clock.monotonic_ms() - tried_ms,
                    queue,
                    error,
                )
                failure = error
                was_sent = was_sent or not isinstance(error, _NOT_SENT)
                continue
            if stored.status is SendStatus.SEND_OK or not own.retry_when_not_stored:
                return stored
        if stored is not None:
            return stored
        if failure is None:
            raise TooManyRequestsError("sendDefaultImpl call timeout", advice=_NO_TIME)
        if isinstance(failure, OverloadedError) and not was_sent:
            raise TooManyRequestsError(str(failure), address=failure.address) from failure
        raise self._failure(out, brokers, failure, started_ms, tries) from failure

    def _failure(
        self,
        out: Outgoing,
        brokers: Sequence[str],
        failure: GoddardError,
        started_ms: int,
        tries: int,
    ) -> SendFailedError:
        cost_ms = self._clock.monotonic_ms() - started_ms
        text = (
            f"Send [{len(brokers)}] times, still failed, cost [{cost_ms}]ms, "
            f"Topic: {out.user_topic}, BrokersSent: [{', '.join(brokers)}]"
        )
        if len(brokers) < tries:
            text = f"sendDefaultImpl call timeout. {text}"
        return SendFailedError(
            f"{text}: {getattr(failure, 'message', failure)}",
            code=code_of(failure),
            tries=len(brokers),
            address=getattr(failure, "address", ""),
        )


def code_of(error: Exception) -> int:
    """RocketMQ's code of a failure that is the client's own."""
    if isinstance(error, ClientError):
        return error.code
    if isinstance(error, RequestTimeoutError):
        return ClientCode.ACCESS_BROKER_TIMEOUT
    if isinstance(error, ServerShuttingDownError):
        return ResponseCode.GO_AWAY
    return ClientCode.CONNECT_BROKER
