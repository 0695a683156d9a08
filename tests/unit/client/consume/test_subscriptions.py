"""What a consumer wants, as the wire has it, and how the members of a group may differ."""

from typing import Any

import pytest

from goddard.client.consume.subscriptions import (
    Expression,
    Sql,
    Subscriptions,
    Tags,
    differences,
    is_sql,
    subscription,
)
from goddard.errors import ConfigError
from goddard.protocol.hashing import tag_code


@pytest.mark.parametrize("expression", ["*", "", None])
def test_everything(expression: Expression) -> None:
    wanted = subscription("T", expression, 5)
    assert (wanted.sub_string, wanted.tags_set, wanted.code_set) == ("*", [], [])
    assert (wanted.expression_type, wanted.sub_version, wanted.topic) == ("TAG", 5, "T")


@pytest.mark.parametrize(
    "expression",
    [
        *("price > 5", "a = 'x'", "a IS NOT NULL", "a between 1 and 2", "a IN ('x')"),
        *("TagA OR TagB", "a <> 3"),
    ],
)
def test_a_condition_is_not_taken_for_tags(expression: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of tags: write Sql"):
        subscription("T", expression, 1)
    # Someone may have such a tag.
    assert subscription("T", Tags(expression), 1).tags_set == [expression]
    assert is_sql(subscription("T", Sql(expression), 1))


def test_tags_are_separated_by_two_bars() -> None:
    with pytest.raises(ConfigError, match=r"separate tags with \|\|"):
        subscription("T", "TagA | TagB", 1)
    for plain in ("order-and-pay", "in", "Tag A", "größe", "a||b"):
        assert subscription("T", plain, 1).tags_set == plain.split("||")


@pytest.mark.parametrize("expression", ["TagA || TagB", Tags("TagA", "TagB")])
def test_tags(expression: Expression) -> None:
    wanted = subscription("T", expression, 1)
    assert wanted.sub_string == "TagA || TagB"
    assert wanted.tags_set == ["TagA", "TagB"]
    assert wanted.code_set == sorted(map(tag_code, ("TagA", "TagB")))
    assert not is_sql(wanted)


def test_conditions() -> None:
    wanted = subscription("T", Sql("a > 5"), 1)
    assert (wanted.sub_string, wanted.expression_type) == ("a > 5", "SQL92")
    assert (wanted.tags_set, wanted.code_set) == ([], [])
    assert is_sql(wanted)


@pytest.mark.parametrize("names", [(), ("",), ("TagA", " "), ("TagA||TagB",)])
def test_tags_need_names(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Tags(*names)


def test_malformed_expressions_are_refused() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        Sql(" ")
    with pytest.raises(ConfigError, match=r"the subscription '\|\|' to T is wrong"):
        subscription("T", "||", 1)


@pytest.mark.parametrize("expression", [3, ["TagA"]])
def test_other_types_of_expressions_are_refused(expression: Any) -> None:
    with pytest.raises(ConfigError, match="Tags or Sql"):
        subscription("T", expression, 1)


def test_equivalent_subscriptions_do_not_differ() -> None:
    own = [subscription("T", "A || B", 1), subscription("U", Sql("a > 1"), 1)]
    group = {"T": subscription("T", "B||A", 9), "U": subscription("U", Sql(" a > 1 "), 9)}
    assert differences(own, group) == []


def test_differences_are_described() -> None:
    own = [subscription("T", "A", 1), subscription("U", "*", 1), subscription("V", "*", 1)]
    group = {
        "T": subscription("T", "B", 1),
        "U": subscription("U", Sql("a > 1"), 1),
        "W": subscription("W", "*", 1),
    }
    assert differences(own, group) == [
        "T is subscribed to with 'A' here and with 'B' by others",
        "U is subscribed to with '*' here and with 'a > 1' by others",
        "V is subscribed to here and not by others",
        "W is subscribed to by others and not here",
    ]


def test_versions_grow_even_if_the_clock_is_set_back() -> None:
    subscriptions = Subscriptions()
    versions = []
    for now_ms in (1_000, 1_000, 500, 9_000, 8_999):
        subscriptions.set("T", "TagA", now_ms)
        (wanted,) = subscriptions.all
        versions.append(wanted.sub_version)
    subscriptions.renew("T", 9_000)
    versions.append(subscriptions.all[0].sub_version)
    assert versions == sorted(set(versions))
    subscriptions.renew("other", 9_000)
    assert subscriptions.topics == {"T"}


def test_brokers_are_told_of_new_subscriptions_before_pulls_use_them() -> None:
    subscriptions = Subscriptions()
    assert not subscriptions
    subscriptions.set("T", "TagA", 1)
    subscriptions.set("U", "*", 1)
    assert subscriptions.announced("T") is None
    assert subscriptions.unannounced() == ["T", "U"]
    told = subscriptions.all
    subscriptions.set("T", "TagB", 2)
    assert subscriptions.mark_announced(told) == ["T", "U"]
    announced = subscriptions.announced("T")
    assert announced is not None
    assert announced.sub_string == "TagA"
    assert subscriptions.unannounced() == []
    assert subscriptions.mark_announced(subscriptions.all) == ["T"]
    subscriptions.remove("U")
    assert subscriptions.announced("U") is None
    assert "U" not in subscriptions
