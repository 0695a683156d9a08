"""Common options of clients: defaults, checks, client ids, lists of name servers; error texts."""

import os
import pickle
import random
from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

import pytest

from goddard.client import options as options_module
from goddard.client.admin.admin import Admin
from goddard.client.blocking.admin import Admin as BlockingAdmin
from goddard.client.blocking.producers import Producer as BlockingProducer
from goddard.client.checks import check_range
from goddard.client.consume.lite import LitePullConsumer
from goddard.client.consume.options import LiteOptions, PushOptions
from goddard.client.consume.push import PushConsumer
from goddard.client.errors import (
    BrokerError,
    ClientError,
    ForkedError,
    NameServerError,
    NoNameServerError,
    NoRouteError,
    NotRunningError,
    already_started,
    start_advice,
)
from goddard.client.identity import ProcessGuard, process_instance, unique_ids
from goddard.client.message import Message
from goddard.client.name_servers import NameServers, parse_name_servers
from goddard.client.options import Credentials, SessionKeywords, session_options
from goddard.client.produce.options import RETRY_CODES, ProducerOptions
from goddard.client.produce.producer import Producer
from goddard.client.values import ServiceState
from goddard.environment import Environment
from goddard.errors import ArgumentTypeError, ConfigError, RemotingError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.compression import CompressionKind
from goddard.protocol.ids import parse_unique_id
from goddard.transport.sockets import local_ip
from goddard.transport.tls import TlsOptions


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def test_defaults_are_those_of_rocketmq() -> None:
    made = session_options("127.0.0.1:9876", {})
    assert made.name_servers == ("127.0.0.1:9876",)
    assert made.poll_name_server_interval_ms == made.heartbeat_interval_ms == 30_000
    assert made.persist_offsets_interval_ms == 5_000
    assert made.rebalance_interval_ms == 20_000
    assert made.api_timeout_ms == 3_000
    assert not made.vip_channel
    producer = ProducerOptions()
    assert (producer.send_timeout_ms, producer.retries, producer.async_retries) == (3_000, 2, 2)
    assert (producer.compress_from_bytes, producer.compression_level) == (4096, 5)
    assert producer.compression is CompressionKind.ZLIB
    assert producer.max_message_bytes == 4 * 1024 * 1024
    assert (producer.default_topic, producer.default_queues) == ("TBW102", 4)
    assert {17, 14, 1, 2, 16, 204, 205} == RETRY_CODES
    assert not producer.retry_when_not_stored


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"heartbeat_interval_ms": 0}, "heartbeat_interval_ms is 0; it must be 10 to"),
        (
            {"poll_name_server_interval_ms": "x"},
            "poll_name_server_interval_ms is 'x'; it must be a",
        ),
        ({"api_timeout_ms": 2**31}, "api_timeout_ms is 2147483648"),
        ({"api_timeout_ms": True}, "api_timeout_ms is True"),
        ({"name_server_endpoint": "ftp://x"}, "name_server_endpoint is 'ftp://x'"),
        ({"instance_name": ""}, "instance_name is empty"),
        ({"send_timeout_ms": 0}, "send_timeout_ms is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"async_retries": 1001}, "async_retries is 1001; it must be 0 to 1000"),
        ({"max_message_bytes": 2**24}, "max_message_bytes is 16777216"),
        ({"compression_level": 10}, "compression_level is 10; it must be 0 to 9"),
        ({"compression": 9}, "compression is 9"),
        ({"topics": ["a b"]}, "contains illegal characters"),
        ({"default_topic": ""}, "topic is blank"),
        ({"max_timeout_per_try_ms": 0}, "max_timeout_per_try_ms is 0"),
    ],
)
def test_options_are_checked_when_a_client_is_created(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Producer("g", name_servers="127.0.0.1:9876", **cast("Any", keywords))


def test_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        Producer("g", **cast("Any", {"zzz": 1}))


@pytest.mark.parametrize(
    ("kind", "wrong", "meant"),
    [
        (Producer, "retry", "retries"),
        (Producer, "name_server", "name_servers"),
        (Producer, "instance", "instance_name"),
        (PushConsumer, "consume_thread", "consume_threads"),
        (LitePullConsumer, "autocommit", "auto_commit"),
        (Admin, "credential", "credentials"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(
    kind: Callable[..., object], wrong: str, meant: str
) -> None:
    group = () if kind is Admin else ("g",)
    with pytest.raises(TypeError, match=f"'{wrong}'; did you mean '{meant}'\\?"):
        kind(*group, **cast("Any", {wrong: 1}))


class Hook:
    """A hook that misses a method of each kind."""

    def before_send(self, context: object) -> None: ...

    def before_consume(self, context: object) -> None: ...


@pytest.mark.parametrize(
    ("kind", "option", "missing"),
    [
        (Producer, "send_hooks", "after_send"),
        (Producer, "forbidden_hooks", "check"),
        (PushConsumer, "consume_hooks", "after_consume"),
        (LitePullConsumer, "consume_hooks", "after_consume"),
    ],
)
def test_hooks_are_checked_when_a_client_is_created(
    kind: Callable[..., object], option: str, missing: str
) -> None:
    for hooks, text in (
        ([Hook()], f"which has no {missing}\\(\\)"),
        ([Hook], r"contains the class Hook; give an object: Hook\(\)"),
        (5, "must be a list of hooks, not 5"),
    ):
        with pytest.raises(ArgumentTypeError, match=f"{option} .*{text}"):
            kind("g", name_servers="127.0.0.1:9876", **{option: hooks})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((5, "s"), "access_key is 5; it must be str"),
        (("a", 6), "secret_key is of type int; it must be str"),
        (("a", "s", 7), "security_token is of type int; it must be str"),
        (("", "s"), "access_key is blank"),
        (("a", " "), "secret_key is blank"),
    ],
)
def test_credentials_are_checked(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Credentials(*arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "on"}, "mode of TLS is 'on'; it must be one of 'disabled', 'permissive', 'enf"),
        ({"verify_peer": "yes"}, "verify_peer of TLS is 'yes'; it must be True or False"),
        ({"check_hostname": 1}, "check_hostname of TLS is 1; it must be True or False"),
        ({"trust": 5}, "trust of TLS is 5; it must be a Path"),
        ({"certificate": b"x"}, "certificate of TLS is b'x'; it must be a Path"),
        ({"key_password": 5}, "key_password of TLS is of type int; it must be str"),
    ],
)
def test_tls_options_are_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TlsOptions(**arguments)


def test_the_mode_of_tls_may_be_text() -> None:
    assert TlsOptions(mode=cast("Any", "disabled")).client_context() is None


@pytest.mark.parametrize(
    ("group", "text"),
    [
        ("", "The specified group is blank"),
        ("a b", "contains illegal characters"),
        ("x" * 256, "is longer than group max length: 255"),
        ("DEFAULT_PRODUCER", "producerGroup can not equal DEFAULT_PRODUCER"),
    ],
)
def test_producer_group_is_checked(group: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Producer(group, name_servers="127.0.0.1:9876")


def test_client_id_format() -> None:
    keywords: SessionKeywords = {"client_ip": "10.0.0.1", "instance_name": "app"}
    assert session_options("", keywords).client_id == "10.0.0.1@app"
    assert session_options("", {**keywords, "unit_name": "u"}).client_id == "10.0.0.1@app@u"
    assert session_options("", keywords).for_process().client_id == "10.0.0.1@app"
    plain = session_options("", {"client_ip": "10.0.0.1"})
    assert plain.client_id == "10.0.0.1@DEFAULT"
    first, second = plain.for_process(), plain.for_process()
    assert first.client_id.startswith(f"10.0.0.1@{os.getpid()}#")
    assert first.client_id != second.client_id
    assert process_instance(Environment()) != process_instance(Environment())
    assert session_options("", {}).client_ip == local_ip()


def test_repr_does_not_show_secrets() -> None:
    credentials = Credentials("user", "top-secret")
    assert "top-secret" not in repr(credentials)
    assert "top-secret" not in repr(session_options("", {"credentials": credentials}))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:9876", ("a:9876",)),
        ("a:9876;b:9876", ("a:9876", "b:9876")),
        (" a:9876 ; ;b:9876;a:9876;", ("a:9876", "b:9876")),
        ("http://a:9876", ("a:9876",)),
        ("[::1]:9876", ("[::1]:9876",)),
        ("", ()),
    ],
)
def test_name_server_list_is_parsed(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_name_servers(text) == addresses


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:9876;b"])
def test_name_server_list_of_wrong_format(text: str) -> None:
    with pytest.raises(ConfigError, match=r"host:port|no valid port"):
        parse_name_servers(text)


def test_name_servers_come_from_the_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "e:1")
    assert session_options(None, {}).name_servers == ("e:1",)
    assert session_options("a:1", {}).name_servers == ("a:1",)
    assert session_options("", {}).name_servers == ()
    endpoint: SessionKeywords = {"name_server_endpoint": "http://x/y"}
    assert session_options(None, endpoint).name_servers == ()


def test_next_name_server_is_used_after_a_failure() -> None:
    names = NameServers((), random.randrange)
    with pytest.raises(NoNameServerError):
        names.chosen()
    names.failed("x")
    assert names.replace(["a:1", "b:1", "c:1"])
    first = names.chosen()
    assert names.chosen() == first
    # A second failure of the same server does not skip another one.
    names.failed(first)
    second = names.chosen()
    names.failed(first)
    assert names.chosen() == second != first
    names.failed(second)
    names.failed(names.chosen())
    assert names.chosen() == first
    # A new list keeps the server in use, if it contains it.
    assert not names.replace(["c:1", "b:1", "a:1"])
    assert names.replace([first, "d:1"])
    assert names.chosen() == first
    assert names.replace(["d:1"])
    assert names.chosen() == "d:1"


def test_failed_name_server_is_reported_once() -> None:
    names = NameServers(["a:1", "b:1"], random.randrange)
    assert names.failed("a:1")
    assert names.failed("b:1")
    assert not names.failed("a:1")
    names.answered("a:1")
    assert names.failed("a:1")
    assert not names.failed("b:1")


def test_first_name_server_is_random() -> None:
    assert {NameServers(["a:1", "b:1", "c:1"], random.randrange).chosen() for _ in range(200)} == {
        "a:1",
        "b:1",
        "c:1",
    }


def test_unique_ids_contain_the_address() -> None:
    made = parse_unique_id(unique_ids("10.1.2.3", Environment()).next(1_700_000_000_000))
    assert (made.ip, made.pid) == (bytes((10, 1, 2, 3)), os.getpid() & 0xFFFF)
    # client_ip need not be an address.
    assert len(parse_unique_id(unique_ids("my-host", Environment()).next(0)).ip) == 4
    assert len(parse_unique_id(unique_ids("::1", Environment()).next(0)).ip) == 16


def test_process_guard_raises_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = ProcessGuard()
    guard.check()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(ForkedError, match="create clients after the fork"):
        guard.check()


@pytest.mark.parametrize("kind", [Producer, PushConsumer, LitePullConsumer, BlockingProducer])
def test_clients_cannot_be_pickled(kind: Any) -> None:
    check_not_pickled(kind("group", name_servers="127.0.0.1:9876"))


@pytest.mark.parametrize("kind", [Admin, BlockingAdmin])
def test_admin_cannot_be_pickled(kind: Any) -> None:
    check_not_pickled(kind("127.0.0.1:9876"))


async def test_admin_cannot_be_used_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Admin("127.0.0.1:9876")
    async with Admin("127.0.0.1:9876") as running:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 1)
            with pytest.raises(ForkedError, match="create clients after the fork"):
                await new.start()
            with pytest.raises(ForkedError, match="create clients after the fork"):
                _ = running.name_servers
        assert running.name_servers == ("127.0.0.1:9876",)


def check_not_pickled(client: object) -> None:
    with pytest.raises(TypeError, match=r"a client cannot be pickled: .* create one in each"):
        pickle.dumps(client)


def test_second_start_error_has_advice() -> None:
    text = str(already_started("producer", "SHUTDOWN_ALREADY"))
    assert text.startswith("The producer service state not OK, maybe started once, SHUTDOWN_ALRE")
    assert text.endswith("create a new one")


def test_advice_for_a_client_that_does_not_run() -> None:
    assert start_advice(ServiceState.CREATED) == "start it first (async with, or start)"
    for state in (ServiceState.START_FAILED, ServiceState.STOPPED):
        assert start_advice(state) == "create a new one: a client starts only once"


async def test_a_client_that_is_not_started_says_how_to_start_it() -> None:
    with pytest.raises(NotRunningError, match=r"start it first \(async with, or start\)$"):
        await Producer("g", name_servers="127.0.0.1:9876").send(Message("T", b"x"))
    with pytest.raises(NotRunningError, match=r"start it first \(async with, or start\)$"):
        await LitePullConsumer("g", name_servers="127.0.0.1:9876").poll()


def test_check_range_accepts_its_limits() -> None:
    assert check_range("x", 5, 1, 5) == 5
    with pytest.raises(ConfigError, match="x is 6; it must be 1 to 5"):
        check_range("x", 6, 1, 5)


@pytest.mark.parametrize("name_servers", [["127.0.0.1:9876"], 9876])
def test_name_servers_must_be_text(name_servers: Any) -> None:
    with pytest.raises(ConfigError, match="write it as 'host:port;host:port'"):
        Producer("g", name_servers=name_servers)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("tls", True, r"tls is True; it must be TlsOptions: give TlsOptions\(\) to encrypt"),
        ("credentials", ("user", "password"), r"credentials is of type tuple; it must be Creden"),
        ("namespace", None, "namespace is None; it must be str"),
        ("namespace_v2", 5, "namespace_v2 is 5; it must be str"),
        ("unit_name", 5, "unit_name is 5; it must be str"),
        ("unit_mode", "no", "unit_mode is 'no'; it must be bool"),
        ("instance_name", 5, "instance_name is 5; it must be str"),
        ("client_ip", 5, "client_ip is 5; it must be str"),
        ("vip_channel", "false", "vip_channel is 'false'; it must be bool"),
        ("name_server_endpoint", 5, "name_server_endpoint is 5; it must be str"),
    ],
)
@pytest.mark.parametrize("kind", [Producer, PushConsumer, LitePullConsumer, BlockingProducer])
def test_common_options_of_wrong_type(kind: Any, option: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        kind("g", name_servers="127.0.0.1:9876", **{option: value})
    # An error text may end up in a log.
    assert "password" not in str(error.value)


def test_common_options_that_may_be_none() -> None:
    made = session_options(
        "127.0.0.1:9876",
        {
            "tls": None,
            "credentials": None,
            "unit_name": None,
            "client_ip": None,
            "name_server_endpoint": None,
        },
    )
    assert made == session_options("127.0.0.1:9876", {})


@pytest.mark.parametrize("option", ["avoid_slow_brokers", "back_pressure", "accumulate", "trace"])
def test_producer_option_objects_of_wrong_type(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is True; it must be [A-Z][A-Za-z]+"):
        ProducerOptions(**cast("Any", {option: True}))


@pytest.mark.parametrize("option", ["retry_when_not_stored", "detect_brokers"])
def test_producer_switches_must_be_bool(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is 'no'; it must be bool"):
        Producer("g", name_servers="127.0.0.1:9876", **cast("Any", {option: "no"}))


@pytest.mark.parametrize("group", [None, 3])
def test_producer_group_must_be_text(group: Any) -> None:
    with pytest.raises(ConfigError, match="it has to be text"):
        Producer(group)


def test_no_route_error_says_why() -> None:
    assert "create the topic" in str(NoRouteError("T"))
    unanswered = NoRouteError("T", NameServerError(["10.0.0.1:9876"]))
    assert str(unanswered) == (
        "No route info of this topic: T, no name server answers; code 10005; at 10.0.0.1:9876; "
        "check that a name server is running and reachable from this machine"
    )
    told = str(NameServerError(["h:1"], RemotingError("no connection to h:1: not known")))
    assert "at h:1; no connection to h:1: not known; check that a name server is running" in told
    broker = BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "105 not supported", "b:1")
    assert "at b:1; check that this is the address of a name ser" in str(NoRouteError("T", broker))
    assert str(NoRouteError("T", RemotingError("cut"))).endswith("T, cut; code 10005")


def test_error_text_has_code_address_and_advice() -> None:
    error = BrokerError(14, "service not available now", "127.0.0.1:10911")
    assert str(error) == (
        "SERVICE_NOT_AVAILABLE: service not available now; code 14; at 127.0.0.1:10911; "
        "the broker does not accept messages now: check whether its disk is full, or whether it is "
        "a slave"
    )
    assert str(ClientError("plain")) == "plain"
    assert str(BrokerError(4711, None)).startswith("unknown code: ; code 4711")


def test_every_session_option_is_a_keyword() -> None:
    made = set(options_module.SessionOptions.__dataclass_fields__)
    assert made | {"environment"} == set(SessionKeywords.__annotations__) | {"name_servers"}


SESSION_OPTIONS = {*SessionKeywords.__annotations__, "name_servers"} - {"environment"}
OPTIONS_OF: dict[Callable[..., object], type[Any]] = {
    Producer: ProducerOptions,
    PushConsumer: PushOptions,
    LitePullConsumer: LiteOptions,
}
WRONG_OPTIONS = [
    (client, option)
    for client, kind in OPTIONS_OF.items()
    for option in sorted({field.name for field in fields(kind)} | SESSION_OPTIONS)
]


@pytest.mark.parametrize(("client", "option"), WRONG_OPTIONS)
def test_an_option_of_a_wrong_type_is_a_config_error_and_a_type_error(
    client: Callable[..., object], option: str
) -> None:
    given = {"name_servers": "127.0.0.1:9876", option: object()}
    with pytest.raises(ArgumentTypeError, match=option if option != "default_topic" else "topic"):
        client("group", **given)


@pytest.mark.parametrize("client", OPTIONS_OF)
def test_a_group_of_a_wrong_type_is_a_config_error_and_a_type_error(
    client: Callable[..., object],
) -> None:
    with pytest.raises(ArgumentTypeError, match="it has to be text"):
        client(b"group")
