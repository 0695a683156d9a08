"""What a client raises. Each error carries the code, the address and what to do about it.

Codes from 10001 on are RocketMQ's own client codes; the others are those a broker answered with.
Texts are RocketMQ's where it has one. Transport errors (``goddard.errors.RemotingError``) surface
as the cause of these.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from goddard.client.values import SendResult
from goddard.errors import GoddardError
from goddard.protocol.codes import ResponseCode


class ClientCode(IntEnum):
    """Codes that no broker sends: what went wrong on the client's side."""

    CONNECT_BROKER = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NO_NAME_SERVER = 10004
    NOT_FOUND_TOPIC = 10005
    REQUEST_TIMEOUT = 10006
    CREATE_REPLY_MESSAGE = 10007


_ADVICE: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_BUSY: "the broker is overloaded: send fewer at a time, or later",
    ResponseCode.MESSAGE_ILLEGAL: "the broker does not take such a message",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker takes no messages now: is its disk full, or "
    "is it a slave?",
    ResponseCode.NO_PERMISSION: "check the permissions of topic and broker, and the credentials",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic, or let brokers create topics by themselves "
    "(autoCreateTopicEnable)",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, or let brokers create groups by "
    "themselves (autoCreateSubscriptionGroup)",
    ResponseCode.GO_AWAY: "the broker is shutting down: send again when it, or another one, runs",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the broker's version does not know this request",
    ClientCode.CONNECT_BROKER: "is the broker running, and reachable from here?",
    ClientCode.ACCESS_BROKER_TIMEOUT: "the broker is slow or the link is; raise the time-out or "
    "look at the broker",
    ClientCode.BROKER_NOT_EXIST: "the broker left the name server: is it running?",
    ClientCode.NO_NAME_SERVER: "give name_servers='host:9876', or set NAMESRV_ADDR",
    ClientCode.NOT_FOUND_TOPIC: "create the topic, and check that its brokers are registered with "
    "this name server",
}


class ClientError(GoddardError):
    """Base of what clients raise. ``code`` is 0 when there is none."""

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
    """The client was not started, was started twice, or is stopped."""


class NoNameServerError(ClientError):
    """No name server is known."""

    def __init__(self) -> None:
        super().__init__("No name server address, please set it.", code=ClientCode.NO_NAME_SERVER)


class NameServerError(ClientError):
    """None of the name servers answers; why the last one did not is the cause."""

    def __init__(self, addresses: Iterable[str], failure: GoddardError | None = None) -> None:
        why = "" if failure is None else f"{failure}; "
        super().__init__(
            "no name server answers",
            address=";".join(addresses),
            advice=f"{why}is one running, and reachable from here?",
        )


class NoRouteError(ClientError):
    """The name servers know no broker that has the topic; or, for a ``reason``, they do not say."""

    def __init__(self, topic: str, reason: GoddardError | None = None) -> None:
        text = f"No route info of this topic: {topic}"
        address, advice = "", None
        if reason is not None:
            text = f"{text}, {getattr(reason, 'message', reason)}"
            address, advice = getattr(reason, "address", ""), getattr(reason, "advice", "")
            if getattr(reason, "code", 0) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                advice = "is this the address of a name server, and not of a broker?"
        super().__init__(text, code=ClientCode.NOT_FOUND_TOPIC, address=address, advice=advice)
        self.topic = topic


class BrokerNotFoundError(ClientError):
    """A queue's broker has no address in any route."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(f"The broker[{broker_name}] not exist", code=ClientCode.BROKER_NOT_EXIST)
        self.broker_name = broker_name


# What a broker says of conditions, by the code of any other failure.
_NO_CONDITIONS: Final = "does not support consumer to filter message by SQL92"


class BrokerError(ClientError):
    """A broker or name server refused: ``code`` and ``remark`` are its own."""

    def __init__(self, code: int, remark: str | None, address: str = "") -> None:
        self.remark = remark or ""
        try:
            name = ResponseCode(code).name
        except ValueError:
            name = "unknown code"
        advice = None
        if self.refuses_conditions:
            advice = "set enablePropertyFilter=true in the broker's configuration"
        super().__init__(f"{name}: {self.remark}", code=code, address=address, advice=advice)

    @property
    def refuses_conditions(self) -> bool:
        """Whether the broker takes no SQL92 conditions, from anybody."""
        return _NO_CONDITIONS in self.remark


class SendFailedError(ClientError):
    """A message was not acknowledged by any broker that was tried; the last reason is the cause."""

    def __init__(self, message: str, *, code: int, tries: int, address: str = "") -> None:
        super().__init__(message, code=code, address=address)
        self.tries = tries


class BatchFailedError(SendFailedError):
    """A batch was too long for one request, and of its parts one failed.

    ``results`` are those of the messages before it, in order. What came after it was not sent; of
    the part itself the cause says why, and if it had no answer it may have been stored.
    """

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
    """A message that no broker would take; found before anything is sent."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message, code=ResponseCode.MESSAGE_ILLEGAL, advice=advice)


class TooManyRequestsError(ClientError):
    """Too much is under way already, or no time was left to send; nothing was sent."""


class RequestReplyTimeoutError(ClientError):
    """A request message was delivered, but its reply did not come in time."""

    def __init__(self, topic: str, timeout_ms: int) -> None:
        super().__init__(
            f"send request message to <{topic}> OK, but wait reply message timeout, "
            f"{timeout_ms} ms.",
            code=ClientCode.REQUEST_TIMEOUT,
            advice="does a consumer of the topic reply, and soon enough?",
        )


class NoReplyAddressError(ClientError):
    """The message to reply to does not say where: it was not sent as a request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=ClientCode.CREATE_REPLY_MESSAGE)


class OffsetNotFoundError(ClientError):
    """The group has no offset for the queue yet."""


class ForkedError(ClientError):
    """The process was forked after the client was made; its sockets belong to the parent."""

    def __init__(self) -> None:
        super().__init__(
            "this client belongs to the parent process",
            advice="create clients after the fork, one set for each process",
        )


class ClusterNotFoundError(ClientError):
    """The name servers know no cluster of that name."""

    def __init__(self, cluster: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"The cluster[{cluster}] not exist",
            code=ClientCode.BROKER_NOT_EXIST,
            advice=f"clusters known to the name server: {names}",
        )
        self.cluster = cluster


class PartialFailureError(ClientError):
    """Of several servers asked, some failed: ``failures`` says which and why, by address.

    ``results`` has what the others answered; what was asked of them is done.
    """

    def __init__(self, failures: Mapping[str, GoddardError], results: Mapping[str, Any]) -> None:
        reasons = "; ".join(f"{address}: {error}" for address, error in failures.items())
        first = next(iter(failures.values()))
        super().__init__(
            f"{len(failures)} of {len(failures) + len(results)} failed: {reasons}",
            code=first.code if isinstance(first, ClientError) else 0,
            advice="the others did what was asked" if results else "",
        )
        self.failures = dict(failures)
        self.results = dict(results)


def already_started(kind: str, state: str) -> NotRunningError:
    """A client was to be started that was started before."""
    return NotRunningError(
        f"The {kind} service state not OK, maybe started once, {state}",
        advice="a client starts once, and not again after its stop: make a new one",
    )
