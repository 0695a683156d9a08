"""Java's properties format, and which properties may be set over the network."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.config import (
    NameServerConfig,
    ProtectedPropertyError,
    format_properties,
    is_protected,
    parse_properties,
    read_properties,
)
from goddard.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1\nb=2\n", {"a": "1", "b": "2"}),
        ("a = 1", {"a": "1"}),
        ("a: 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a==1", {"a": "=1"}),
        ("a=b=c", {"a": "b=c"}),
        ("# a=1\n! b=2\n  # c=3\n", {}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=one\\\n    two", {"a": "onetwo"}),
        ("a=one\\\\\nb=2", {"a": "one\\", "b": "2"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a\\ b=1", {"a b": "1"}),
        ("a\\=b=1", {"a=b": "1"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("\\u0061=\\u00e9", {"a": "é"}),
        ("a=trailing  ", {"a": "trailing  "}),
        ("a=1\na=2", {"a": "2"}),
        ("=x", {"": "x"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "a=\\u 123", "\\u+123=1"])
def test_a_malformed_escape_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="malformed"):
        parse_properties(text)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text()))
def test_written_properties_read_back_the_same(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties)) == properties


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_properties(text)


def test_a_line_break_in_a_value_does_not_become_a_property() -> None:
    text = format_properties({"productEnvName": "x\nkvConfigPath=/etc/passwd"})
    assert parse_properties(text) == {"productEnvName": "x\nkvConfigPath=/etc/passwd"}
    assert len(text.splitlines()) == 1


def test_defaults_are_those_of_rocketmq_5_4() -> None:
    """The keys and values that getNamesrvConfig prints for a name server with defaults."""
    shown = NameServerConfig(rocketmq_home="home").properties()
    assert len(shown) == 40
    assert shown["listenPort"] == "9876"
    assert shown["bindAddress"] == "0.0.0.0"
    assert shown["scanNotActiveBrokerInterval"] == "5000"
    assert shown["returnOrderTopicConfigToBroker"] == "true"
    assert shown["serverSelectorThreads"] == "3"
    assert "rocketmqHome" not in NameServerConfig().properties()


def test_a_file_sets_known_names_and_keeps_unknown_ones(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=19876\norderMessageEnable=TRUE\nsomething.else=7\n")
    config = NameServerConfig().updated(read_properties(file))
    assert config.listen_port == 19876
    assert config.order_message_enable
    assert config.properties()["something.else"] == "7"


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("listenPort", "70000", "0 to 65535"),
        ("listenPort", "-1", "0 to 65535"),
        ("listenPort", "many", "whole number"),
        ("listenPort", "1_0", "whole number"),
        ("listenPort", "9" * 40, "whole number"),
        ("orderMessageEnable", "yes", "true or false"),
        ("scanNotActiveBrokerInterval", "0", "10 to"),
    ],
)
def test_an_invalid_value_is_reported_with_the_allowed_ones(
    name: str, value: str, needed: str
) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        NameServerConfig().updated({name: value})
    assert needed in str(caught.value)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.conf cannot be read"):
        read_properties(tmp_path / "nothing.conf")
    binary = tmp_path / "binary.conf"
    binary.write_bytes(b"a=\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.conf is not UTF-8"):
        read_properties(binary)
    broken = tmp_path / "broken.conf"
    broken.write_text("a=\\uXYZ")
    with pytest.raises(ConfigError, match=r"broken\.conf"):
        read_properties(broken)


ATTACKS = [
    "configStorePath=/tmp/evil",
    "configStorePath=/tmp/evil\nproductEnvName=content",
    "kvConfigPath=/tmp/evil",
    "rocketmqHome=/tmp",
    "configBlackList=",
    "ConfigStorePath=/tmp/evil",
    "CONFIGSTOREPATH=/tmp/evil",
    "  configStorePath  =  /tmp/evil",
    "configStorePath\\ =/tmp/evil",
    "\\ configStorePath=/tmp/evil",
    "config_store_path=/tmp/evil",
    "config.store.path=/tmp/evil",
    "\\u0063onfigStorePath=/tmp/evil",
    "configSt\\\n   orePath=/tmp/evil",
    "config\\StorePath=/tmp/evil",
    "configStorePath:/tmp/evil",
    "configStorePath /tmp/evil",
    "orderMessageEnable=true\nconfigStorePath=/tmp/evil",
    "configStorePath=/a\nconfigStorePath=/b",
    "c\u043enfigStorePath=/tmp/evil",
    "con\u200bfigStorePath=/tmp/evil",
    "bindAddress=0.0.0.0",
    "listenPort=1",
    "tls.server.keyPath=/tmp/key",
    "rocketmqHomeDir=/tmp",
    "someScript=rm",
    "startCommand=rm",
    "logFile=/tmp/x",
    "storePathRootDir=/tmp",
]


@pytest.mark.parametrize("body", ATTACKS)
def test_a_peer_cannot_set_paths_addresses_or_commands(body: str) -> None:
    config = NameServerConfig(rocketmq_home="home")
    with pytest.raises(ProtectedPropertyError):
        config.updated_by_peer(parse_properties(body))


def test_a_value_from_a_peer_cannot_add_a_line() -> None:
    """CVE-2023-37582 through the file: a line break becomes another property at the next start."""
    properties = parse_properties("productEnvName=x\\nkvConfigPath\\=/tmp/evil")
    with pytest.raises(ConfigError, match="control characters"):
        NameServerConfig().updated_by_peer(properties)


def test_the_black_list_of_the_file_is_applied() -> None:
    config = NameServerConfig(config_black_list="orderMessageEnable;x")
    with pytest.raises(ProtectedPropertyError, match="orderMessageEnable"):
        config.updated_by_peer({"orderMessageEnable": "true"})


def test_a_peer_sets_known_names_and_no_others() -> None:
    config = NameServerConfig().updated_by_peer(
        {"enableTopicList": "false", "unheardOf": "1", "serverWorkerThreads": "4"}
    )
    assert not config.enable_topic_list
    assert config.properties()["serverWorkerThreads"] == "4"
    assert "unheardOf" not in config.properties()


def test_settings_that_take_effect_while_running_may_be_set() -> None:
    for name in (
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
        "needWaitForService",
        "notifyMinBrokerIdChanged",
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "scanNotActiveBrokerInterval",
        "supportActingMaster",
        "unRegisterBrokerQueueCapacity",
        "waitSecondsForService",
    ):
        assert not is_protected(name)


def test_unknown_names_are_those_that_rocketmq_does_not_know() -> None:
    names = ["listenPrt", "listenPort", "listenport", "tls.server.mode", "serverWorkerThreads"]
    assert NameServerConfig().unknown_names(names) == ["listenPrt", "listenport"]


@pytest.mark.parametrize(
    ("name", "meant"), [("listenPrt", "listenPort"), ("LISTENPORT", "listenPort"), ("zzz", None)]
)
def test_similar_name_of_a_misspelt_one(name: str, meant: str | None) -> None:
    assert NameServerConfig().similar_name(name) == meant
