import logging
from typing import Any

import pytest

from goddard.errors import HeaderError, ProtocolError
from goddard.protocol.codes import CommandFlag, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import TopicNotExistError
from goddard.transport.connection import Connection
from goddard.transport.handlers import Answer, Handlers
from goddard.transport.options import ConnectionOptions
from goddard.transport.rules import Rule
from tests.support.rules import ANY_RULE


@pytest.fixture
async def connection() -> Connection:
    return Connection(ConnectionOptions(), Handlers())


def _raising(error: Exception) -> Handlers:
    def handler(request: RemotingCommand, connection: Connection) -> Answer:
        raise error

    async def later(request: RemotingCommand, connection: Connection) -> Answer:
        raise error

    handlers = Handlers()
    handlers.register(1, handler, ANY_RULE)
    handlers.register(2, later, ANY_RULE)
    return handlers


async def _answer(handlers: Handlers, request: RemotingCommand, connection: Connection) -> Answer:
    answer = handlers.handle(request, connection)
    return answer if answer is None or isinstance(answer, RemotingCommand) else await answer


@pytest.mark.parametrize("code", [1, 2])
@pytest.mark.parametrize(
    ("error", "expected_code", "expected_remark"),
    [
        (TopicNotExistError("no topic T"), ResponseCode.TOPIC_NOT_EXIST, "no topic T"),
        (HeaderError("the header field topic is missing"), 1, "the header field topic is missing"),
        (ProtocolError("bad body"), 1, "bad body"),
        (KeyError("x"), 1, "KeyError: 'x'"),
    ],
)
async def test_exceptions_become_answers(
    connection: Connection,
    code: int,
    error: Exception,
    expected_code: int,
    expected_remark: str,
) -> None:
    answer = await _answer(_raising(error), RemotingCommand(code, opaque=9), connection)
    assert answer is not None
    assert (answer.code, answer.remark) == (expected_code, expected_remark)
    assert answer.opaque == 9
    assert answer.is_response


@pytest.mark.parametrize("code", [1, 2])
async def test_only_unexpected_exceptions_are_logged(
    connection: Connection, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await _answer(_raising(TopicNotExistError("T")), RemotingCommand(code), connection)
        assert not caplog.records
        await _answer(_raising(KeyError("x")), RemotingCommand(code), connection)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert f"request code {code}" in record.getMessage()


async def test_a_long_exception_text_is_truncated(connection: Connection) -> None:
    answer = await _answer(_raising(KeyError("x" * 100_000)), RemotingCommand(1), connection)
    assert answer is not None
    assert answer.remark is not None
    assert len(answer.remark) == 1000


async def test_unknown_codes_are_answered_as_java_does(connection: Connection) -> None:
    answer = await _answer(Handlers(), RemotingCommand(4711), connection)
    assert answer is not None
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 4711 not supported"


async def test_the_fallback_takes_unknown_codes(connection: Connection) -> None:
    handlers = Handlers()
    handlers.set_fallback(lambda request, _: request.reply(body=b"fallback"))
    answer = await _answer(handlers, RemotingCommand(4711), connection)
    assert answer is not None
    assert answer.body == b"fallback"


@pytest.mark.parametrize("error", [None, KeyError("x")])
async def test_oneway_requests_have_no_answer(
    connection: Connection, error: Exception | None
) -> None:
    handlers = Handlers() if error is None else _raising(error)
    request = RemotingCommand(1, flag=int(CommandFlag.ONEWAY))
    assert await _answer(handlers, request, connection) is None


async def test_one_prepared_response_serves_many_requests(connection: Connection) -> None:
    prepared = RemotingCommand(0, body=b"same")
    handlers = Handlers()
    handlers.register(1, lambda request, _: prepared, ANY_RULE)
    for opaque, kind in ((5, SerializeType.JSON), (6, SerializeType.ROCKETMQ)):
        request = RemotingCommand(1, opaque=opaque, serialize_type=kind)
        answer = await _answer(handlers, request, connection)
        assert answer is prepared
        assert (answer.opaque, answer.serialize_type, answer.is_response) == (opaque, kind, True)


async def test_hooks_run_around_the_handler_in_the_order_added(connection: Connection) -> None:
    calls: list[str] = []

    def handle(request: RemotingCommand, _: Connection) -> Answer:
        calls.append("handler")
        return request.reply(remark="done")

    handlers = Handlers()
    handlers.register(1, handle, ANY_RULE)

    def add_hook(name: str) -> None:
        def before(request: RemotingCommand, _: Connection) -> None:
            calls.append(f"before {name} {request.code}")

        def after(request: RemotingCommand, answer: Answer, _: Connection) -> None:
            calls.append(f"after {name} {answer and answer.remark}")

        handlers.add_hook(before, after)

    add_hook("a")
    add_hook("b")
    await _answer(handlers, RemotingCommand(1), connection)
    assert calls == ["before a 1", "before b 1", "handler", "after a done", "after b done"]


async def test_a_hook_may_reject_a_request(connection: Connection) -> None:
    def refuse(request: RemotingCommand, _: Connection) -> None:
        raise TopicNotExistError("not for you")

    seen: list[Answer] = []
    handlers = Handlers()
    handlers.register(1, lambda request, _: pytest.fail("the handler must not run"), ANY_RULE)
    handlers.add_hook(before=refuse, after=lambda request, answer, _: seen.append(answer))
    answer = await _answer(handlers, RemotingCommand(1), connection)
    assert answer is not None
    assert answer.remark == "not for you"
    assert seen == [answer]


async def test_a_failing_after_hook_is_answered(connection: Connection) -> None:
    def fail(request: RemotingCommand, answer: Answer, _: Connection) -> None:
        raise ValueError("hook")

    handlers = Handlers()
    handlers.register(1, lambda request, _: request.reply(), ANY_RULE)
    handlers.add_hook(after=fail)
    answer = await _answer(handlers, RemotingCommand(1), connection)
    assert answer is not None
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ValueError: hook")


def test_a_code_is_registered_once() -> None:
    handlers = Handlers()
    handlers.register(1, lambda request, _: None, ANY_RULE)
    with pytest.raises(ValueError, match="already"):
        handlers.register(1, lambda request, _: None, ANY_RULE)


class _RefusingWrites:
    def refusal(
        self, request: RemotingCommand, rule: Rule, connection: Connection
    ) -> RemotingCommand | None:
        return request.reply(4711, "no writes") if rule.is_write else None

    def room(self, rule: Rule) -> int:
        return 0


@pytest.mark.parametrize("is_write", [False, True])
async def test_the_gate_is_asked_before_each_handler(
    connection: Connection, is_write: bool
) -> None:
    handled: list[int] = []

    def handler(request: RemotingCommand, connection: Connection) -> Answer:
        handled.append(request.code)
        return request.reply()

    handlers = Handlers(_RefusingWrites())
    handlers.register(1, handler, ANY_RULE._replace(is_write=is_write))
    answer = await _answer(handlers, RemotingCommand(1, opaque=9), connection)
    assert answer is not None
    assert (answer.code, answer.opaque, handled) == ((4711, 9, []) if is_write else (0, 9, [1]))


def test_a_handler_needs_a_rule() -> None:
    register: Any = Handlers().register
    with pytest.raises(TypeError, match="rule"):
        register(1, lambda request, connection: None)
