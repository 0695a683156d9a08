"""Filters by property, compared with a reference that evaluates trees; garbage.

The reference applies the rules to trees, which are then written as text. Its numbers are ordinary;
unusual numbers are compared with RocketMQ itself in tests/interop.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from goddard.protocol.filters.expression import (
    FilterEvaluationError,
    FilterSyntaxError,
    bloom_positions,
    compile_sql,
    parse_tags,
)

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Leaf:
    text: str
    value: Value = None
    name: str | None = None


@dataclass(frozen=True)
class Tree:
    operator: str
    operands: tuple["Leaf | Tree", ...]


class NotComparableError(Exception):
    pass


def evaluate(node: Leaf | Tree, properties: Mapping[str, str]) -> Value:
    if isinstance(node, Leaf):
        return node.value if node.name is None else properties.get(node.name)
    match node.operator:
        case "AND" | "OR":
            return _logic(node, properties)
        case "NOT":
            return _not(_truth(node.operands[0], properties))
        case "IS NULL":
            return evaluate(node.operands[0], properties) is None
        case "=" | "<>":
            left, right = (evaluate(operand, properties) for operand in node.operands)
            result = _equal(left, right)
            return result if node.operator == "=" else _not(result)
        case "IN" | "NOT IN":
            value, *choices = (evaluate(operand, properties) for operand in node.operands)
            return None if value is None else (value in choices) is (node.operator == "IN")
        case "CONTAINS" | "NOT CONTAINS":
            value, search = (evaluate(operand, properties) for operand in node.operands)
            if not isinstance(value, str) or not isinstance(search, str) or not search:
                return False
            return (search in value) is (node.operator == "CONTAINS")
        case "BETWEEN":
            subject, low, high = node.operands
            inside = Tree("AND", (Tree(">=", (subject, low)), Tree("<=", (subject, high))))
            return evaluate(inside, properties)
        case _:
            return _ordered(node, properties)


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _truth(node: Leaf | Tree, properties: Mapping[str, str]) -> bool | None:
    value = evaluate(node, properties)
    assert value is None or isinstance(value, (bool, str))
    return False if isinstance(value, str) else value


def _logic(node: Tree, properties: Mapping[str, str]) -> bool | None:
    decisive = node.operator == "OR"
    result: bool | None = not decisive
    for operand in node.operands:
        value = _truth(operand, properties)
        if value == decisive:
            return decisive
        result = None if value is None else result
    return result


def _number(text: str, like: float) -> int | float:
    try:
        value = int(text) if isinstance(like, int) else float(text)
    except ValueError:
        raise NotComparableError from None
    limit = 2**31 if like < 2**31 else 2**63
    if isinstance(value, int) and not -limit <= value < limit:
        raise NotComparableError
    return value


def _equal(left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return None if right is not None else left is None
    if isinstance(left, bool) or isinstance(right, bool):
        if isinstance(left, bool) and isinstance(right, str):
            raise NotComparableError
        if isinstance(left, str):
            return (left.lower() == "true") is right
        return left is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, str):
        assert not isinstance(right, str)
        return _number(left, right) == right
    return left == (_number(right, left) if isinstance(right, str) else right)


def _ordered(node: Tree, properties: Mapping[str, str]) -> bool | None:
    left, right = (evaluate(operand, properties) for operand in node.operands)
    if left is None or right is None:
        return None
    if isinstance(left, str):
        left = _number(left, 0.5 if isinstance(right, str) else right)
        right = _number(right, 0.5) if isinstance(right, str) else right
    elif isinstance(right, str):
        right = _number(right, left)
    return {
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[node.operator]


_LOOSENESS: Final = {"OR": 3, "AND": 2}


def write(node: Leaf | Tree, room: int = 4) -> str:
    """The text of a tree, with parentheses only where they are needed around AND and OR."""
    if isinstance(node, Leaf):
        return node.text
    looseness = _LOOSENESS.get(node.operator, 1)
    operands = [write(operand, looseness) for operand in node.operands]
    match node.operator:
        case "NOT":
            text = f"NOT {operands[0]}"
        case "IS NULL":
            text = f"{operands[0]} IS NULL"
        case "IN" | "NOT IN":
            text = f"{operands[0]} {node.operator} ({', '.join(operands[1:])})"
        case "BETWEEN":
            text = f"{operands[0]} BETWEEN {operands[1]} AND {operands[2]}"
        case _:
            text = f"{operands[0]} {node.operator} {operands[1]}"
    return f"({text})" if looseness >= room else text


_NAMES: Final = ("a", "b", "c")
_WORDS: Final = ("", "x", "abc", "it's", "true", "TRUE", "漢")
_properties_of_messages = st.dictionaries(
    st.sampled_from(_NAMES),
    st.sampled_from(_WORDS)
    | st.integers(-20, 20).map(str)
    | st.integers(-(2**64), 2**64).map(str)
    | st.integers(-40, 40).map(lambda quarters: str(quarters / 4)),
)
_names = st.sampled_from(_NAMES).map(lambda name: Leaf(name, name=name))
_strings = st.sampled_from(_WORDS).map(lambda text: Leaf("'" + text.replace("'", "''") + "'", text))
_integers = (st.integers(0, 20) | st.integers(0, 2**63 - 1)).map(lambda n: Leaf(str(n), n))
_doubles = st.integers(1, 80).map(lambda quarters: Leaf(str(quarters / 4), quarters / 4))
_booleans = st.booleans().map(lambda value: Leaf(str(value).upper(), value))
_sortable = _names | _integers | _doubles
# BETWEEN with two literals in the wrong order is refused.
_bounds = st.tuples(_names | _integers, _names) | st.tuples(_names, _names | _doubles)


def _tree(operator: str, *operands: st.SearchStrategy[Leaf | Tree]) -> st.SearchStrategy[Tree]:
    return st.tuples(*operands).map(lambda chosen: Tree(operator, chosen))


def _sized(operator: str) -> st.SearchStrategy[Tree]:
    return _tree(operator, _sortable, _sortable)


_values = _names | _strings | _integers | _doubles
_tests = (
    st.sampled_from(("<", "<=", ">", ">=")).flatmap(_sized)
    | st.sampled_from(("=", "<>")).flatmap(lambda op: _tree(op, _values, _values | _booleans))
    | st.sampled_from(("IN", "NOT IN")).flatmap(lambda op: _tree(op, _names, _strings, _strings))
    | st.sampled_from(("CONTAINS", "NOT CONTAINS")).flatmap(lambda op: _tree(op, _values, _strings))
    | st.tuples(_sortable, _bounds).map(lambda parts: Tree("BETWEEN", (parts[0], *parts[1])))
    | _tree("IS NULL", _values)
    | _names
    | _booleans
)


def _combined(
    conditions: st.SearchStrategy[Leaf | Tree],
) -> st.SearchStrategy[Leaf | Tree]:
    return (
        st.sampled_from(("AND", "OR", "=", "<>")).flatmap(
            lambda op: _tree(op, conditions, conditions)
        )
        | _tree("NOT", conditions)
        | _tree("IS NULL", conditions)
    )


_conditions: st.SearchStrategy[Leaf | Tree] = st.recursive(_tests, _combined, max_leaves=8)


@given(tree=_conditions, properties=_properties_of_messages)
def test_the_verdict_is_that_of_the_reference(
    tree: Leaf | Tree, properties: dict[str, str]
) -> None:
    compiled = compile_sql(write(tree))
    try:
        expected = _truth(tree, properties)
    except NotComparableError:
        assert not compiled.matches(properties)
        try:
            unexpected = compiled.evaluate(properties)
        except FilterEvaluationError:
            return
        raise AssertionError(f"{unexpected} instead of an evaluation error") from None
    assert compiled.evaluate(properties) is expected
    assert compiled.matches(properties) is (expected is True)


_FRAGMENTS: Final = (
    *("a", "5", "5.5", "'x'", "''", "'", "(", ")", ",", "=", "<>", "<=", "-", "--", "/*", "*/"),
    *("NOT", "AND", "OR", "IN", "IS", "NULL", "TRUE", "BETWEEN", "CONTAINS", " ", "\n", "#", "ä"),
)
_garbage = st.text() | st.lists(st.sampled_from(_FRAGMENTS), max_size=30).map("".join)


@given(
    text=_garbage,
    properties=st.dictionaries(st.sampled_from(_NAMES), st.text()),
)
@example(text="\ud800 = 'x'", properties={})
@example(text="a = '\ud800'", properties={"a": "\udfff"})
@example(text="a = 5", properties={"a": "\ud835\udfd3"})
def test_garbage_raises_only_filter_errors(text: str, properties: dict[str, str]) -> None:
    try:
        compiled = compile_sql(text)
    except FilterSyntaxError:
        return
    assert all(name in text for name in compiled.identifiers)
    try:
        value = compiled.evaluate(properties)
    except FilterEvaluationError:
        value = None
    assert compiled.matches(properties) is (value is True)


@given(st.text())
def test_any_text_as_a_number(value: str) -> None:
    for text in ("a > 5", "a > 3000000000", "a > 5.5", "a >= a", "a = TRUE"):
        assert compile_sql(text).matches({"a": value}) in (True, False)


@given(st.text(alphabet="AB|* \t\u00a0"))
def test_any_text_as_tags(text: str) -> None:
    try:
        parsed = parse_tags(text)
    except FilterSyntaxError:
        assert set(text) == {"|"}
        return
    assert parsed.matches_all is (text in ("", "*"))
    assert all(tag in text and tag.strip(" \t") == tag for tag in parsed.tags)
    assert len(parsed.codes) <= len(parsed.tags)


@given(st.text(), st.text())
def test_bloom_positions_are_three_bits(group: str, topic: str) -> None:
    positions = bloom_positions(group, topic)
    assert len(positions) == 3
    assert all(0 <= position < 112 for position in positions)
