"""Response codes as exceptions: servers raise them to reject requests, clients on such responses.

``ResponseError.of(code, remark)`` selects the class; codes without a class give ResponseError.
"""

from typing import ClassVar

from goddard.errors import GoddardError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand


class ResponseError(GoddardError):
    """The response to a request was not a success."""

    _by_code: ClassVar[dict[int, type["ResponseError"]]] = {}

    def __init_subclass__(cls, code: ResponseCode | None = None) -> None:
        if code is not None:
            ResponseError._by_code[code] = cls
            cls.default_code = code

    default_code: ClassVar[int] = ResponseCode.SYSTEM_ERROR

    def __init__(self, remark: str, *, code: int | None = None, address: str = "") -> None:
        self.code = self.default_code if code is None else code
        self.remark = remark
        self.address = address
        super().__init__(remark)

    def __str__(self) -> str:
        try:
            name = ResponseCode(self.code).name
        except ValueError:
            name = "unknown code"
        place = f" from {self.address}" if self.address else ""
        return f"{name} ({self.code}){place}: {self.remark}"

    @staticmethod
    def of(code: int, remark: str | None, address: str = "") -> "ResponseError":
        kind = ResponseError._by_code.get(code, ResponseError)
        return kind(remark or "", code=code, address=address)


class SystemFailedError(ResponseError, code=ResponseCode.SYSTEM_ERROR): ...


class SystemBusyError(ResponseError, code=ResponseCode.SYSTEM_BUSY): ...


class RequestNotSupportedError(ResponseError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED): ...


class MessageIllegalError(ResponseError, code=ResponseCode.MESSAGE_ILLEGAL): ...


class ServiceNotAvailableError(ResponseError, code=ResponseCode.SERVICE_NOT_AVAILABLE): ...


class NoPermissionError(ResponseError, code=ResponseCode.NO_PERMISSION): ...


class TopicNotExistError(ResponseError, code=ResponseCode.TOPIC_NOT_EXIST): ...


class QueryNotFoundError(ResponseError, code=ResponseCode.QUERY_NOT_FOUND): ...


class SubscriptionError(ResponseError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED): ...


class SubscriptionNotExistError(SubscriptionError, code=ResponseCode.SUBSCRIPTION_NOT_EXIST): ...


class SubscriptionNotLatestError(SubscriptionError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST): ...


class GroupNotExistError(ResponseError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST): ...


class InvalidParameterError(ResponseError, code=ResponseCode.INVALID_PARAMETER): ...


class ConsumerNotOnlineError(ResponseError, code=ResponseCode.CONSUMER_NOT_ONLINE): ...


class ConsumeTimeoutError(ResponseError, code=ResponseCode.CONSUME_MSG_TIMEOUT): ...


class BrokerNotExistError(ResponseError, code=ResponseCode.BROKER_NOT_EXIST): ...


class FlowControlError(ResponseError, code=ResponseCode.FLOW_CONTROL): ...


class IllegalOperationError(ResponseError, code=ResponseCode.ILLEGAL_OPERATION): ...


class GoAwayError(ResponseError, code=ResponseCode.GO_AWAY): ...


def check(response: RemotingCommand, address: str = "") -> RemotingCommand:
    """Return the response if it is a success; else raise its ResponseError."""
    if response.code != ResponseCode.SUCCESS:
        raise ResponseError.of(response.code, response.remark, address)
    return response
