import pytest

from goddard.protocol import names


@pytest.mark.parametrize(
    "topic", ["A", "a-b_c|d%e9", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250, "TBW102"]
)
def test_valid_topics(topic: str) -> None:
    assert names.topic_problem(topic) is None


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ("", "The specified topic is blank."),
        (" \t", "The specified topic is blank."),
        (
            "a b",
            "The specified topic: a b, contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ("t" * 128, f"The specified topic: {'t' * 128}, is longer than topic max length: 127"),
        (
            "%RETRY%" + "g" * 249,
            f"The specified topic is DLQ or Retry topic: %RETRY%{'g' * 249}, "
            "and it's longer than topic max length: 255",
        ),
    ],
)
def test_invalid_topics(topic: str, problem: str) -> None:
    assert names.topic_problem(topic) == problem


@pytest.mark.parametrize("char", ["\n", "/", ".", "\u4e2d", "\xe9", "\x00", "\u0660", "+"])
def test_other_characters(char: str) -> None:
    for text in (char + "a", "a" + char):
        assert "illegal characters" in (names.topic_problem(text) or "")
        assert "illegal characters" in (names.group_problem(text) or "")


def test_groups() -> None:
    assert names.group_problem("g" * 255) is None
    assert names.group_problem(" ") == "The specified group is blank."
    assert names.group_problem("g" * 256) == (
        f"The specified group: {'g' * 256}, is longer than group max length: 255"
    )


def test_kinds_of_topics() -> None:
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_wheel_timer")
    assert not names.is_system_topic("TopicA")
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert not names.is_system_group("GroupA")
    assert names.is_retry_topic(names.retry_topic("g"))
    assert names.is_dlq_topic(names.dlq_topic("g"))
    assert not names.is_retry_topic("%DLQ%g")
    assert names.is_lmq("%LMQ%x")
    assert "SCHEDULE_TOPIC_XXXX" in names.UNSENDABLE_TOPICS
    assert names.UNSENDABLE_TOPICS < names.SYSTEM_TOPICS


def test_derived_names() -> None:
    assert names.retry_topic("G") == "%RETRY%G"
    assert names.dlq_topic("G") == "%DLQ%G"
    assert names.pop_retry_topic("G", "T") == "%RETRY%G_T"
    assert names.pop_retry_topic("G", "T", is_v2=True) == "%RETRY%G+T"
    assert names.reply_topic("C") == "C_REPLY_TOPIC"
    assert names.revive_topic("C") == "rmq_sys_REVIVE_LOG_C"


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("T", "ns%T"),
        ("%RETRY%G", "%RETRY%ns%G"),
        ("%DLQ%G", "%DLQ%ns%G"),
        ("TBW102", "TBW102"),
        ("CID_RMQ_SYS_X", "CID_RMQ_SYS_X"),
        ("", ""),
    ],
)
def test_namespaces(name: str, wrapped: str) -> None:
    assert names.with_namespace(name, "ns") == wrapped
    assert names.with_namespace(wrapped, "ns") == wrapped
    assert names.without_namespace(wrapped, "ns") == name
    assert names.with_namespace(name, "") == name
    assert names.without_namespace(wrapped, "") == wrapped
