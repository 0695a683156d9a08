import pytest

from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import (
    ResponseError,
    SubscriptionError,
    SubscriptionNotLatestError,
    SystemBusyError,
    TopicNotExistError,
    check,
)


def test_check_returns_a_success() -> None:
    response = RemotingCommand(ResponseCode.SUCCESS, remark="not set any response code", flag=1)
    assert check(response) is response


def test_check_raises_the_class_of_the_code() -> None:
    response = RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, remark="no T", flag=1)
    with pytest.raises(TopicNotExistError) as caught:
        check(response, "127.0.0.1:9876")
    assert caught.value.code == 17
    assert caught.value.remark == "no T"
    assert str(caught.value) == "TOPIC_NOT_EXIST (17) from 127.0.0.1:9876: no T"


def test_related_codes_share_a_class() -> None:
    error = ResponseError.of(ResponseCode.SUBSCRIPTION_NOT_LATEST, None)
    assert type(error) is SubscriptionNotLatestError
    assert isinstance(error, SubscriptionError)
    assert error.remark == ""


def test_a_code_without_class_or_name() -> None:
    error = ResponseError.of(54321, "odd")
    assert type(error) is ResponseError
    assert str(error) == "unknown code (54321): odd"


def test_class_has_its_code_as_default() -> None:
    assert SystemBusyError("later").code == ResponseCode.SYSTEM_BUSY
    assert ResponseError("failed").code == ResponseCode.SYSTEM_ERROR
    assert ResponseError("held", code=ResponseCode.PULL_NOT_FOUND).code == 19
