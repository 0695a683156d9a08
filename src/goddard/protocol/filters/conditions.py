"""Evaluation of SQL92 filter expressions: values, comparisons, and the closures that compute them.

A value is a string, a boolean, a number or null (None). A number keeps the type that Java would
give it, because the type decides how a string compared with it is parsed and when precision is
lost. Numbers, and strings parsed as numbers, are compared by their sort keys, which are integers.
"""

import operator
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final

from goddard.errors import GoddardError

__all__ = (
    "RELATIONS",
    "TEXT_TESTS",
    "Condition",
    "FilterEvaluationError",
    "Literal",
    "Negative",
    "Node",
    "Number",
    "Predicate",
    "Property",
    "Width",
    "abbreviated",
    "combine",
    "compare",
    "constant",
    "equals",
    "is_condition",
    "is_in",
    "is_null",
    "negate",
    "number_in",
    "property_as_condition",
    "sort_keys",
    "text_test",
)

_SHOWN_CHARS: Final = 40


class FilterEvaluationError(GoddardError):
    """An expression has no value for these properties: two values cannot be compared."""


def abbreviated(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")


class Width(IntEnum):
    INT = 0
    LONG = 1
    DOUBLE = 2


@dataclass(frozen=True, slots=True)
class Number:
    width: Width
    value: int | float

    def negated(self) -> "Number":
        return Number(self.width, -self.value)

    def order(self, width: Width) -> int:
        """An integer that sorts as this number does among numbers of that width."""
        if width is Width.DOUBLE:
            return _double_sort_key(float(self.value))
        return int(self.value)


Value = str | bool | Number | None
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
Predicate = Callable[[Properties], bool | None]

_INTEGER: Final = re.compile(r"[+-]?0*\d{1,19}")
_DOUBLE: Final = re.compile(
    r"""[+-]?(?:
        (?P<special> NaN | Infinity )
      | (?P<hex> 0[xX] (?: [0-9a-fA-F]++ \.? | [0-9a-fA-F]*+ \. [0-9a-fA-F]++ ) [pP][+-]?[0-9]++ )
            [fFdD]?
      | (?: [0-9]++ \.? [0-9]*+ | \. [0-9]++ ) (?: [eE][+-]?[0-9]++ )? [fFdD]?
    )""",
    re.VERBOSE,
)
_JAVA_TRIMMED: Final = "".join(map(chr, range(0x21)))
_BITS: Final = struct.Struct(">q")
_BITS_OF_DOUBLE: Final = struct.Struct(">d")
_NAN_ORDER: Final = 0x7FF8_0000_0000_0000


def _double_sort_key(value: float) -> int:
    """An integer that sorts as Double.compareTo does: -0.0 below 0.0, NaN above all."""
    if value != value:
        return _NAN_ORDER
    (bits,) = _BITS.unpack(_BITS_OF_DOUBLE.pack(value))
    return int(bits) if bits >= 0 else int(bits) ^ 0x7FFF_FFFF_FFFF_FFFF


def _unreadable(text: str, kind: str) -> FilterEvaluationError:
    return FilterEvaluationError(f"{abbreviated(text)} is not {kind}")


def _read_integer(text: str, limit: int, kind: str) -> int:
    # Java and int() accept decimal digits of all scripts, Java only those up to U+FFFF; int() also
    # accepts spaces and underscores.
    if _INTEGER.fullmatch(text) is None or not (text.isascii() or max(text) <= "\uffff"):
        raise _unreadable(text, kind)
    digits = text.lstrip("+-0")
    value = int(digits) if digits else 0
    if text.startswith("-"):
        value = -value
    if not -limit <= value < limit:
        raise _unreadable(text, kind)
    return value


def _read_int(text: str) -> int:
    return _read_integer(text, 1 << 31, "a 32-bit integer")


def _read_long(text: str) -> int:
    return _read_integer(text, 1 << 63, "a 64-bit integer")


def _read_double(text: str) -> int:
    """The sort key of a text parsed as Double.valueOf does: hex, 1f, 1d, NaN, Infinity, spaces."""
    text = text.strip(_JAVA_TRIMMED)
    found = _DOUBLE.fullmatch(text)
    if found is None:
        raise _unreadable(text, "a number")
    if found["special"]:
        return _double_sort_key(float(text))
    if found["hex"]:
        return _double_sort_key(_hex_double(text.rstrip("fFdD")))
    return _double_sort_key(float(text.rstrip("fFdD")))


def _hex_double(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


_READERS: Final[Mapping[Width, Callable[[str], int]]] = {
    Width.INT: _read_int,
    Width.LONG: _read_long,
    Width.DOUBLE: _read_double,
}


def sort_keys(left: str | Number, right: str | Number) -> tuple[int, int]:
    """The sort keys of both sides of a comparison; two strings are parsed as doubles."""
    if isinstance(left, Number):
        if isinstance(right, Number):
            width = max(left.width, right.width)
            return left.order(width), right.order(width)
        return left.order(left.width), _READERS[left.width](right)
    if isinstance(right, Number):
        return _READERS[right.width](left), right.order(right.width)
    return _read_double(left), _read_double(right)


def _is_equal(left: Value, right: Value) -> bool | None:
    if right is None:
        return left is None
    if left is None:
        return None
    if isinstance(left, bool):
        if isinstance(right, str):  # Java casts the wrong side and fails
            raise FilterEvaluationError("a condition = a string; write the string on the left")
        return left is right
    if isinstance(right, bool):
        return isinstance(left, str) and (left.lower() == "true") is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    left_order, right_order = sort_keys(left, right)
    return left_order == right_order


# Nodes: the kind of a sub-expression and the closure that evaluates it.


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value
    position: int
    depth: ClassVar[int] = 0

    def evaluate(self, _properties: Properties) -> Value:
        return self.value


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    depth: ClassVar[int] = 0

    def evaluate(self, properties: Properties) -> Value:
        return properties.get(self.name)


@dataclass(frozen=True, slots=True)
class Negative:
    """A negated operand: null unless it is a number. Java's checks do not see it as a literal."""

    evaluate_operand: Evaluate
    number: Number | None
    position: int
    depth: int

    def evaluate(self, properties: Properties) -> Value:
        if self.number is not None:
            return self.number
        self.evaluate_operand(properties)  # only for its errors
        return None


@dataclass(frozen=True, slots=True)
class Condition:
    evaluate: Predicate
    depth: int


Node = Literal | Property | Negative | Condition


def number_in(node: Node) -> Number | None:
    if isinstance(node, Literal):
        return node.value if isinstance(node.value, Number) else None
    return node.number if isinstance(node, Negative) else None


def is_condition(node: Node) -> bool:
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return isinstance(node, Condition)


# Closures.


def constant(value: bool | None) -> Predicate:
    return lambda _properties: value


def property_as_condition(name: str) -> Predicate:
    """A property used as a condition: false, because no string is true; unknown for null."""
    return lambda properties: None if properties.get(name) is None else False


def negate(predicate: Predicate) -> Predicate:
    def evaluate(properties: Properties) -> bool | None:
        value = predicate(properties)
        return None if value is None else not value

    return evaluate


def combine(predicates: Sequence[Predicate], *, decisive: bool) -> Predicate:
    """AND ends at the first false (decisive=False), OR at the first true (decisive=True)."""

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = not decisive
        for predicate in predicates:
            value = predicate(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def equals(left: Node, right: Node, *, inverted: bool) -> Predicate:
    if isinstance(left, Property):
        name, number = left.name, number_in(right)
        if isinstance(right, Literal) and isinstance(right.value, str):
            return _property_equals(name, str, right.value, inverted=inverted)
        if number is not None:
            order = number.order(number.width)
            return _property_equals(name, _READERS[number.width], order, inverted=inverted)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value = _is_equal(evaluate_left(properties), evaluate_right(properties))
        return None if value is None else value is not inverted

    return evaluate


def _property_equals(
    name: str, read: Callable[[str], object], wanted: object, *, inverted: bool
) -> Predicate:
    def evaluate(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (read(text) == wanted) is not inverted

    return evaluate


_Relation = Callable[[int, int], bool]
RELATIONS: Final[Mapping[str, _Relation]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compare(left: Node, relation: _Relation, right: Node) -> Predicate:
    number = number_in(right)
    if isinstance(left, Property) and number is not None:
        return _property_related(left.name, relation, number)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        left_value = evaluate_left(properties)
        if left_value is None:
            return None
        right_value = evaluate_right(properties)
        if right_value is None:
            return None
        # The parser rejects conditions here, so neither value is a bool.
        assert isinstance(left_value, (str, Number))
        assert isinstance(right_value, (str, Number))
        return relation(*sort_keys(left_value, right_value))

    return evaluate


def _property_related(name: str, relation: _Relation, number: Number) -> Predicate:
    read, order = _READERS[number.width], number.order(number.width)

    def evaluate(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else relation(read(text), order)

    return evaluate


_TextTest = Callable[[str, str], bool]
TEXT_TESTS: Final[Mapping[str, _TextTest]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def text_test(node: Node, test: _TextTest, search: str, *, inverted: bool) -> Predicate:
    if not search:
        return constant(False)
    evaluate_node = node.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value = evaluate_node(properties)
        return isinstance(value, str) and test(value, search) is not inverted

    return evaluate


def is_in(name: str, choices: frozenset[str], *, inverted: bool) -> Predicate:
    def evaluate(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in choices) is not inverted

    return evaluate


def is_null(node: Node, *, inverted: bool) -> Predicate:
    evaluate_node = node.evaluate
    return lambda properties: (evaluate_node(properties) is None) is not inverted
