"""The errors of clients. Each has a code, an address and advice, where there are any.

Codes from 10001 on are those of RocketMQ's client; other codes come from a broker or name server.
Where RocketMQ has a text for an error, it is used. A transport error
(``goddard.errors.RemotingError``) is the ``__cause__`` of the client's error.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from goddard.client.values import SendResult, ServiceState
from goddard.errors import GoddardError
from goddard.protocol.codes import ResponseCode


class ClientCode(IntEnum):
    """Codes for errors that the client itself detects; no broker sends them."""

    CONNECT_BROKER = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NO_NAME_SERVER = 10004
    NOT_FOUND_TOPIC = 10005
    REQUEST_TIMEOUT = 10006
    CREATE_REPLY_MESSAGE = 10007


_ADVICE: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_BUSY: "the broker is overloaded: limit the number of concurrent "
    "sends, or retry later",
    ResponseCode.MESSAGE_ILLEGAL: "the broker does not accept this message",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker does not accept messages now: check whether "
    "its disk is full, or whether it is a slave",
    ResponseCode.NO_PERMISSION: "check the permissions of topic and broker, and the credentials",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic, or let brokers create topics automatically "
    "(autoCreateTopicEnable)",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, or let brokers create groups "
    "automatically (autoCreateSubscriptionGroup)",
    ResponseCode.GO_AWAY: "the broker is shutting down: retry when it or another broker is running",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the server's version does not support this request",
    ClientCode.CONNECT_BROKER: "check that the broker is running and reachable from this machine",
    ClientCode.ACCESS_BROKER_TIMEOUT: "the broker or the network is slow: use a longer timeout, or "
    "check the broker",
    ClientCode.BROKER_NOT_EXIST: "the name server does not know the broker: check that the "
    "broker is running",
    ClientCode.NO_NAME_SERVER: "give name_servers='host:9876', set NAMESRV_ADDR, or "
    "select a context with 'goddard context use NAME'",
    ClientCode.NOT_FOUND_TOPIC: "create the topic, and check that its brokers are registered with "
    "this name server",
}


class ClientError(GoddardError):
    """The base class of client errors.

    ``code`` is 0, and ``address`` and ``advice`` are empty, if there is none.
    """

    message: str
    code: int
    address: str
    advice: str

    def __init__(
        self, message: str, *, code: int = 0, address: str = "", advice: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.address = address
        self.advice = _ADVICE.get(code, "") if advice is None else advice

    def __str__(self) -> str:
        parts = [self.message]
        if self.code:
            parts.append(f"code {self.code}")
        if self.address:
            parts.append(f"at {self.address}")
        if self.advice:
            parts.append(self.advice)
        return "; ".join(parts)


class NotRunningError(ClientError):
    """The client is not started, already started, or stopped."""


class NoNameServerError(ClientError):
    """The client has no name server address."""

    def __init__(self) -> None:
        super().__init__("No name server address, please set it.", code=ClientCode.NO_NAME_SERVER)


class NameServerError(ClientError):
    """No name server answered. The cause is the failure of the last one."""

    def __init__(self, addresses: Iterable[str], failure: GoddardError | None = None) -> None:
        why = "" if failure is None else f"{failure}; "
        super().__init__(
            "no name server answers",
            address=";".join(addresses),
            advice=f"{why}check that a name server is running and reachable from this machine",
        )


class NoRouteError(ClientError):
    """The name servers know no broker with the topic; or the request failed, for a ``reason``."""

    topic: str

    def __init__(self, topic: str, reason: GoddardError | None = None) -> None:
        text = f"No route info of this topic: {topic}"
        address, advice = "", None
        if reason is not None:
            text = f"{text}, {getattr(reason, 'message', reason)}"
            address, advice = getattr(reason, "address", ""), getattr(reason, "advice", "")
            if getattr(reason, "code", 0) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                advice = "check that this is the address of a name server, not of a broker"
        super().__init__(text, code=ClientCode.NOT_FOUND_TOPIC, address=address, advice=advice)
        self.topic = topic


class BrokerNotFoundError(ClientError):
    """No route has an address of a queue's broker."""

    broker_name: str

    def __init__(self, broker_name: str) -> None:
        super().__init__(f"The broker[{broker_name}] not exist", code=ClientCode.BROKER_NOT_EXIST)
        self.broker_name = broker_name


# Remarks of a broker that does not have a feature. The code is SYSTEM_ERROR.
_SQL92_DISABLED: Final = "does not support consumer to filter message by SQL92"
_TIMER_DISABLED: Final = "accurate timer message is not enabled"


class BrokerError(ClientError):
    """A broker or name server rejected a request; ``code`` and ``remark`` are from its response."""

    remark: str

    def __init__(self, code: int, remark: str | None, address: str = "") -> None:
        self.remark = remark or ""
        try:
            name = ResponseCode(code).name
        except ValueError:
            name = "unknown code"
        advice = None
        if self.is_sql92_disabled:
            advice = "set enablePropertyFilter=true in the broker's configuration"
        elif self.is_timer_disabled:
            advice = "use delay_level: this broker has no delays of any length"
        super().__init__(f"{name}: {self.remark}", code=code, address=address, advice=advice)

    @property
    def is_sql92_disabled(self) -> bool:
        """Whether the reason is that the broker does not allow SQL92 filters."""
        return _SQL92_DISABLED in self.remark

    @property
    def is_timer_disabled(self) -> bool:
        """Whether the reason is that the broker delivers only after the delays of its levels."""
        return _TIMER_DISABLED in self.remark


class SendFailedError(ClientError):
    """No broker acknowledged the message. The cause is the failure of the last attempt."""

    tries: int

    def __init__(
        self, message: str, *, code: int, tries: int, address: str = "", advice: str | None = None
    ) -> None:
        super().__init__(message, code=code, address=address, advice=advice)
        self.tries = tries


class BatchFailedError(SendFailedError):
    """A batch was split into several requests, and one of them failed.

    ``results`` has the results of the messages in earlier requests, in order. Messages in later
    requests were not sent. If the failed request had no response, its messages may be stored. The
    cause is its failure.
    """

    results: list[SendResult]

    def __init__(self, failure: ClientError, results: Sequence[SendResult]) -> None:
        tries = failure.tries if isinstance(failure, SendFailedError) else 1
        super().__init__(
            f"{len(results)} messages of the batch were sent; then: {failure.message}",
            code=failure.code,
            tries=tries,
            address=failure.address,
        )
        self.results = list(results)


class InvalidMessageError(ClientError, ValueError):
    """The message is not valid; nothing was sent."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message, code=ResponseCode.MESSAGE_ILLEGAL, advice=advice)


class TooManyRequestsError(ClientError):
    """Too many sends are pending, or the timeout passed while waiting; nothing was sent."""


class RequestReplyTimeoutError(ClientError):
    """A request message was sent, but no reply arrived before the timeout."""

    def __init__(self, topic: str, timeout_ms: int) -> None:
        super().__init__(
            f"send request message to <{topic}> OK, but wait reply message timeout, "
            f"{timeout_ms} ms.",
            code=ClientCode.REQUEST_TIMEOUT,
            advice="check that a consumer of the topic replies before the timeout",
        )


class NoReplyAddressError(ClientError):
    """The message cannot be replied to, because it was not sent as a request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ClientCode.CREATE_REPLY_MESSAGE)


class OffsetNotFoundError(ClientError):
    """The group has no offset for the queue."""


class ForkedError(ClientError):
    """The client was created before this process was forked; its sockets belong to the parent."""

    def __init__(self) -> None:
        super().__init__(
            "this client belongs to the parent process",
            advice="create clients after the fork, separate ones for each process",
        )


class ClusterNotFoundError(ClientError):
    """The name servers know no cluster with this name."""

    cluster: str

    def __init__(self, cluster: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"The cluster[{cluster}] not exist",
            code=ClientCode.BROKER_NOT_EXIST,
            advice=f"clusters known to the name server: {names}",
        )
        self.cluster = cluster


class PartialFailureError(ClientError):
    """A request to several servers failed at some of them.

    ``failures`` has the errors by address. ``results`` has the answers of the other servers.
    """

    failures: dict[str, GoddardError]
    results: dict[str, Any]

    def __init__(self, failures: Mapping[str, GoddardError], results: Mapping[str, Any]) -> None:
        reasons = "; ".join(f"{address}: {error}" for address, error in failures.items())
        first = next(iter(failures.values()))
        super().__init__(
            f"{len(failures)} of {len(failures) + len(results)} failed: {reasons}",
            code=first.code if isinstance(first, ClientError) else 0,
            advice="the request succeeded at the other servers" if results else "",
        )
        self.failures = dict(failures)
        self.results = dict(results)


def start_advice(state: ServiceState) -> str:
    """What to do about a client that does not run."""
    if state is ServiceState.CREATED:
        return "start it first (async with, or start)"
    return "create a new one: a client starts only once"


def already_started(kind: str, state: str) -> NotRunningError:
    """The error of starting a client a second time."""
    return NotRunningError(
        f"The {kind} service state not OK, maybe started once, {state}",
        advice="a client can be started only once: create a new one",
    )
