"""SQL92 filter expressions over message properties: parsed once, then run as closures.

    conditions   OR, then AND, then = <> IS [NOT] NULL, then > >= < <= and the postfix tests
                 [NOT] CONTAINS|STARTSWITH|ENDSWITH 'x', [NOT] BETWEEN a AND b, [NOT] IN ('x', 'y')
    operands     + - NOT (binding tighter than any comparison), literal, property, parentheses

What an expression means is what RocketMQ's SelectorParser makes of it, surprises included, for the
same subscription must select the same messages on either broker:

- Nothing looks for the end of the text: what follows a complete expression is ignored, but for the
  one token after it, which must be a token.
- Every property is a string or null. Beside a number it is read as a number of that number's type
  (32 bits, 64 bits, double), and what cannot be read that way is an evaluation error.
- ``x = null`` is false and ``null = x`` unknown; ``NOT x CONTAINS`` of null is false.

A text comes from a peer: its length and its nesting are bounded, the parser and the closures never
go deeper than a multiple of ``MAX_EXPRESSION_DEPTH`` frames, and time is linear in the length.
"""

import operator
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Final, NamedTuple, NoReturn

from goddard.errors import GoddardError, ProtocolError

__all__ = (
    "MAX_EXPRESSION_CHARS",
    "MAX_EXPRESSION_DEPTH",
    "FilterEvaluationError",
    "FilterSyntaxError",
    "SqlFilter",
    "compile_sql",
)

MAX_EXPRESSION_CHARS: Final = 65_536
MAX_EXPRESSION_DEPTH: Final = 100

_SHOWN_CHARS: Final = 40


class FilterSyntaxError(ProtocolError):
    """A filter expression that cannot be used; ``position`` counts characters from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"filter expression, position {position}: {reason}")
        self.reason = reason
        self.position = position


class FilterEvaluationError(GoddardError):
    """An expression has no value for these properties: a comparison of what does not compare."""


# Values. Numbers keep the type that Java would give them, for it decides how a string beside them
# is read, and when precision is lost.


class _Width(IntEnum):
    INT = 0
    LONG = 1
    DOUBLE = 2


@dataclass(frozen=True, slots=True)
class _Number:
    width: _Width
    value: int | float

    def negated(self) -> "_Number":
        return _Number(self.width, -self.value)

    def order(self, width: _Width) -> int:
        """A number that sorts as this one does among others of that width."""
        if width is _Width.DOUBLE:
            return _double_order(float(self.value))
        return int(self.value)


_Value = str | bool | _Number | None
_Properties = Mapping[str, str]
_Evaluate = Callable[[_Properties], _Value]
_Predicate = Callable[[_Properties], bool | None]

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


def _double_order(value: float) -> int:
    """An integer that sorts as Double.compareTo does: -0.0 below 0.0, NaN on top of all."""
    if value != value:
        return _NAN_ORDER
    (bits,) = _BITS.unpack(_BITS_OF_DOUBLE.pack(value))
    return int(bits) if bits >= 0 else int(bits) ^ 0x7FFF_FFFF_FFFF_FFFF


def _unreadable(text: str, kind: str) -> FilterEvaluationError:
    return FilterEvaluationError(f"{_shown(text)} is not {kind}")


def _read_integer(text: str, limit: int, kind: str) -> int:
    # Java takes any decimal digit of the basic plane, as int() does, but no space or underscore.
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
    """The order of a text as Double.valueOf reads it: also hex, 1f, 1d, NaN, Infinity, spaces."""
    text = text.strip(_JAVA_TRIMMED)
    found = _DOUBLE.fullmatch(text)
    if found is None:
        raise _unreadable(text, "a number")
    if found["special"]:
        return _double_order(float(text))
    if found["hex"]:
        return _double_order(_hex_double(text.rstrip("fFdD")))
    return _double_order(float(text.rstrip("fFdD")))


def _hex_double(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


_READERS: Final[Mapping[_Width, Callable[[str], int]]] = {
    _Width.INT: _read_int,
    _Width.LONG: _read_long,
    _Width.DOUBLE: _read_double,
}


def _orders(left: str | _Number, right: str | _Number) -> tuple[int, int]:
    """Both sides of a comparison as integers that sort alike; two strings are read as doubles."""
    if isinstance(left, _Number):
        if isinstance(right, _Number):
            width = max(left.width, right.width)
            return left.order(width), right.order(width)
        return left.order(left.width), _READERS[left.width](right)
    if isinstance(right, _Number):
        return _READERS[right.width](left), right.order(right.width)
    return _read_double(left), _read_double(right)


def _is_equal(left: _Value, right: _Value) -> bool | None:
    if right is None:
        return left is None
    if left is None:
        return None
    if isinstance(left, bool):
        if isinstance(right, str):  # the cast in Java's conversion is of the wrong side
            raise FilterEvaluationError("a condition = a string; write the string on the left")
        return left is right
    if isinstance(right, bool):
        return isinstance(left, str) and (left.lower() == "true") is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    left_order, right_order = _orders(left, right)
    return left_order == right_order


# Nodes: what the parser knows of a sub-expression, and the closure that evaluates it.


@dataclass(frozen=True, slots=True)
class _Literal:
    value: _Value
    position: int
    depth: ClassVar[int] = 0

    def evaluate(self, _properties: _Properties) -> _Value:
        return self.value


@dataclass(frozen=True, slots=True)
class _Property:
    name: str
    depth: ClassVar[int] = 0

    def evaluate(self, properties: _Properties) -> _Value:
        return properties.get(self.name)


@dataclass(frozen=True, slots=True)
class _Negative:
    """A minus before something: null unless it is a number. Not a literal to Java's checks."""

    evaluate_operand: _Evaluate
    number: _Number | None
    position: int
    depth: int

    def evaluate(self, properties: _Properties) -> _Value:
        if self.number is not None:
            return self.number
        self.evaluate_operand(properties)  # for its errors
        return None


@dataclass(frozen=True, slots=True)
class _Condition:
    evaluate: _Predicate
    depth: int


_Node = _Literal | _Property | _Negative | _Condition


def _number_in(node: _Node) -> _Number | None:
    if isinstance(node, _Literal):
        return node.value if isinstance(node.value, _Number) else None
    return node.number if isinstance(node, _Negative) else None


def _is_condition(node: _Node) -> bool:
    if isinstance(node, _Literal):
        return node.value is None or isinstance(node.value, bool)
    return isinstance(node, _Condition)


# Closures.


def _always(value: bool | None) -> _Predicate:
    return lambda _properties: value


def _cast(name: str) -> _Predicate:
    """A property where a condition is expected: no string is true."""
    return lambda properties: None if properties.get(name) is None else False


def _inverse(predicate: _Predicate) -> _Predicate:
    def evaluate(properties: _Properties) -> bool | None:
        value = predicate(properties)
        return None if value is None else not value

    return evaluate


def _joined(predicates: Sequence[_Predicate], *, decisive: bool) -> _Predicate:
    """AND is decided by the first false (decisive=False), OR by the first true."""

    def evaluate(properties: _Properties) -> bool | None:
        result: bool | None = not decisive
        for predicate in predicates:
            value = predicate(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _equal(left: _Node, right: _Node, *, inverted: bool) -> _Predicate:
    if isinstance(left, _Property):
        name, number = left.name, _number_in(right)
        if isinstance(right, _Literal) and isinstance(right.value, str):
            return _property_equals(name, str, right.value, inverted=inverted)
        if number is not None:
            order = number.order(number.width)
            return _property_equals(name, _READERS[number.width], order, inverted=inverted)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: _Properties) -> bool | None:
        value = _is_equal(evaluate_left(properties), evaluate_right(properties))
        return None if value is None else value is not inverted

    return evaluate


def _property_equals(
    name: str, read: Callable[[str], object], wanted: object, *, inverted: bool
) -> _Predicate:
    def evaluate(properties: _Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (read(text) == wanted) is not inverted

    return evaluate


_Relation = Callable[[int, int], bool]
_RELATIONS: Final[Mapping[str, _Relation]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _related(left: _Node, relation: _Relation, right: _Node) -> _Predicate:
    number = _number_in(right)
    if isinstance(left, _Property) and number is not None:
        return _property_related(left.name, relation, number)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: _Properties) -> bool | None:
        left_value = evaluate_left(properties)
        if left_value is None:
            return None
        right_value = evaluate_right(properties)
        if right_value is None:
            return None
        # The parser lets no condition in here, so that neither value is a bool.
        assert isinstance(left_value, (str, _Number))
        assert isinstance(right_value, (str, _Number))
        return relation(*_orders(left_value, right_value))

    return evaluate


def _property_related(name: str, relation: _Relation, number: _Number) -> _Predicate:
    read, order = _READERS[number.width], number.order(number.width)

    def evaluate(properties: _Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else relation(read(text), order)

    return evaluate


_TextTest = Callable[[str, str], bool]
_TEXT_TESTS: Final[Mapping[str, _TextTest]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _text_tested(node: _Node, test: _TextTest, search: str, *, inverted: bool) -> _Predicate:
    if not search:
        return _always(False)
    evaluate_node = node.evaluate

    def evaluate(properties: _Properties) -> bool | None:
        value = evaluate_node(properties)
        return isinstance(value, str) and test(value, search) is not inverted

    return evaluate


def _among(name: str, choices: frozenset[str], *, inverted: bool) -> _Predicate:
    def evaluate(properties: _Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in choices) is not inverted

    return evaluate


def _null_tested(node: _Node, *, inverted: bool) -> _Predicate:
    evaluate_node = node.evaluate
    return lambda properties: (evaluate_node(properties) is None) is not inverted


# Tokens.


class _Token(NamedTuple):
    """``kind`` is the upper-case keyword, the operator itself, or a name in lower case."""

    kind: str
    text: str
    position: int


_KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", *_TEXT_TESTS)
)
_CONSTANTS: Final[Mapping[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}
_SPACE: Final = re.compile(r"[ \t\n\r\f]+")
_LINE_COMMENT: Final = re.compile(r"--[^\n\r]*[\n\r]")
_BLOCK_COMMENT: Final = re.compile(r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/")
# The longest token wins, hence the order.
_TOKEN: Final = re.compile(
    r"""(?P<float> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?
                 | \.[0-9]+(?:[eE][+-]?[0-9]+)?
                 | [0-9]+[eE][+-]?[0-9]+ )
      | (?P<integer> 0 | [1-9][0-9]*[lL]? )
      | (?P<string> '[^']*(?:''[^']*)*' )
      | (?P<identifier> [A-Za-z_$][A-Za-z0-9_$]* )
      | (?P<operator> <> | >= | <= | [=<>(),+-] )""",
    re.VERBOSE,
)


class _Lexer:
    """Reads a token when asked to: text that the parser never asks for may be anything."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        # A line comment needs its line end; without one, two minus signs are two minus signs.
        self._line_comments_end = max(text.rfind("\n"), text.rfind("\r")) + 1

    def read(self) -> _Token:
        self._skip()
        start = self._position
        if start == len(self._text):
            return _Token("end", "", start)
        found = _TOKEN.match(self._text, start)
        if found is None:
            raise FilterSyntaxError(_bad_token(self._text, start), start)
        self._position = found.end()
        image, kind = found[0], found.lastgroup
        if kind == "identifier" and image.upper() in _KEYWORDS:
            return _Token(image.upper(), image, start)
        return _Token(image if kind == "operator" else str(kind), image, start)

    def _skip(self) -> None:
        text = self._text
        while True:
            position = self._position
            found = (
                _SPACE.match(text, position)
                or _LINE_COMMENT.match(text, position, self._line_comments_end)
                or _BLOCK_COMMENT.match(text, position)
            )
            if found is None:
                return
            self._position = found.end()


def _bad_token(text: str, start: int) -> str:
    if text[start] == "'":
        return "a string without closing quote"
    if text.startswith("/*", start):
        return "a comment without end"
    return f"unexpected character {text[start]!r}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")


class _Parser:
    """Recursive descent, four frames for each level of parentheses."""

    def __init__(self, text: str) -> None:
        self._lexer = _Lexer(text)
        self._token = self._lexer.read()
        self._open_parentheses = 0
        self.identifiers: set[str] = set()

    def parse(self) -> _Predicate:
        return self._predicate(self._alternatives())

    # Grammar, loosest first.

    def _alternatives(self) -> _Node:
        alternatives: list[_Node] = []
        while True:
            conjunction = [self._equality()]
            while self._accept("AND"):
                conjunction.append(self._equality())
            alternatives.append(self._join(conjunction, decisive=False))
            if not self._accept("OR"):
                return self._join(alternatives, decisive=True)

    def _equality(self) -> _Node:
        left = self._comparison()
        while True:
            token = self._token
            if self._accept("=") or self._accept("<>"):
                right = self._comparison()
                self._check_equatable(left, right, token)
                predicate = _equal(left, right, inverted=token.kind == "<>")
                left = self._condition(predicate, left, right)
            elif self._accept("IS"):
                inverted = self._accept("NOT")
                self._expect("NULL")
                left = self._condition(_null_tested(left, inverted=inverted), left)
            else:
                return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            token = self._token
            if token.kind in _RELATIONS:
                self._advance()
                left = self._relate(left, token.kind, self._unary(), token)
                continue
            inverted = self._accept("NOT")
            test = self._token
            if test.kind in _TEXT_TESTS:
                self._advance()
                search = self._string()
                predicate = _text_tested(left, _TEXT_TESTS[test.kind], search, inverted=inverted)
                left = self._condition(predicate, left)
            elif self._accept("BETWEEN"):
                left = self._between(left, test, inverted=inverted)
            elif self._accept("IN"):
                left = self._in(left, test, inverted=inverted)
            elif inverted:
                self._fail("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _between(self, value: _Node, token: _Token, *, inverted: bool) -> _Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if inverted:
            outside = (self._relate(value, "<", low, token), self._relate(value, ">", high, token))
            return self._join(outside, decisive=True)
        inside = (self._relate(value, ">=", low, token), self._relate(value, "<=", high, token))
        if isinstance(low, _Literal) and isinstance(high, _Literal):
            bounds = low.value, high.value
            # Literals of any other type have been refused above.
            assert isinstance(bounds[0], _Number)
            assert isinstance(bounds[1], _Number)
            low_order, high_order = _orders(*bounds)
            if low_order > high_order:
                raise FilterSyntaxError("BETWEEN with a low bound above the high one", low.position)
        return self._join(inside, decisive=False)

    def _in(self, value: _Node, token: _Token, *, inverted: bool) -> _Node:
        self._expect("(")
        choices = {self._string()}
        while self._accept(","):
            choices.add(self._string())
        self._expect(")")
        if not isinstance(value, _Property):
            raise FilterSyntaxError("IN needs a property on its left", token.position)
        return self._condition(_among(value.name, frozenset(choices), inverted=inverted), value)

    def _unary(self) -> _Node:
        signs: list[_Token] = []
        while self._token.kind in ("+", "-", "NOT"):
            signs.append(self._advance())
        node = self._primary()
        for sign in reversed(signs):
            if sign.kind == "-":
                number = _number_in(node)
                negated = None if number is None else number.negated()
                depth = self._deeper(node)
                node = _Negative(node.evaluate, negated, sign.position, depth)
            elif sign.kind == "NOT":
                node = self._condition(_inverse(self._predicate(node)), node)
        return node

    def _primary(self) -> _Node:
        token = self._token
        kind = token.kind
        if kind == "string":
            return _Literal(self._string(), token.position)
        if kind == "integer":
            self._advance()
            return _Literal(_integer_literal(token), token.position)
        if kind == "float":
            self._advance()
            return _Literal(_float_literal(token), token.position)
        if kind in _CONSTANTS:
            self._advance()
            return _Literal(_CONSTANTS[kind], token.position)
        if kind == "identifier":
            self._advance()
            self.identifiers.add(token.text)
            return _Property(token.text)
        if kind == "(":
            return self._parenthesized()
        return self._fail("a property, a literal or '('")

    def _parenthesized(self) -> _Node:
        self._open_parentheses += 1
        self._check_depth(self._open_parentheses)
        self._advance()
        node = self._alternatives()
        self._expect(")")
        self._open_parentheses -= 1
        return node

    # Tokens.

    def _advance(self) -> _Token:
        token = self._token
        self._token = self._lexer.read()
        return token

    def _accept(self, kind: str) -> bool:
        if self._token.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str) -> None:
        if not self._accept(kind):
            self._fail(kind if kind.isalpha() else repr(kind))

    def _string(self) -> str:
        if self._token.kind != "string":
            self._fail("a string in single quotes")
        return self._advance().text[1:-1].replace("''", "'")

    def _fail(self, expected: str) -> NoReturn:
        token = self._token
        found = "the end" if token.kind == "end" else _shown(token.text)
        raise FilterSyntaxError(f"expected {expected}, found {found}", token.position)

    # Nodes.

    def _condition(self, predicate: _Predicate, *operands: _Node) -> _Condition:
        return _Condition(predicate, self._deeper(*operands))

    def _deeper(self, *operands: _Node) -> int:
        depth = 1 + max(operand.depth for operand in operands)
        self._check_depth(depth)
        return depth

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_EXPRESSION_DEPTH:
            reason = f"nested deeper than {MAX_EXPRESSION_DEPTH} levels"
            raise FilterSyntaxError(reason, self._token.position)

    def _join(self, nodes: Sequence[_Node], *, decisive: bool) -> _Node:
        if len(nodes) == 1:
            return nodes[0]
        predicates = tuple(self._predicate(node) for node in nodes)
        return self._condition(_joined(predicates, decisive=decisive), *nodes)

    def _predicate(self, node: _Node) -> _Predicate:
        if isinstance(node, _Condition):
            return node.evaluate
        if isinstance(node, _Property):
            return _cast(node.name)
        if isinstance(node, _Literal) and (node.value is None or isinstance(node.value, bool)):
            return _always(node.value)
        raise FilterSyntaxError("a value where a condition is needed", node.position)

    def _relate(self, left: _Node, relation: str, right: _Node, token: _Token) -> _Condition:
        for node in (left, right):
            is_text = isinstance(node, _Literal) and isinstance(node.value, str)
            if is_text or _is_condition(node):
                what = "a string literal" if is_text else "a condition"
                raise FilterSyntaxError(f"{what} cannot be compared by size", token.position)
        return self._condition(_related(left, _RELATIONS[relation], right), left, right)

    def _check_equatable(self, left: _Node, right: _Node, token: _Token) -> None:
        literals = [node.value for node in (left, right) if isinstance(node, _Literal)]
        if None in literals:
            raise FilterSyntaxError("NULL equals nothing; write IS NULL", token.position)
        if len(literals) == 2 and _is_condition(left) and not _is_condition(right):
            raise FilterSyntaxError("a truth value and another type", token.position)


def _integer_literal(token: _Token) -> _Number:
    digits = token.text.rstrip("lL")
    # 19 digits always fit int(), which bounds the length of what it reads.
    value = int(digits) if len(digits) <= 19 else 1 << 63
    if value >= 1 << 63:
        raise FilterSyntaxError("a number of more than 64 bits", token.position)
    # The suffix changes nothing: what fits 32 bits is a 32-bit number.
    return _Number(_Width.INT if value < 1 << 31 else _Width.LONG, value)


def _float_literal(token: _Token) -> _Number:
    value = float(token.text)
    if value in (0.0, float("inf")):
        raise FilterSyntaxError("a floating-point number that is zero or too big", token.position)
    return _Number(_Width.DOUBLE, value)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression; immutable, so that any thread may use it."""

    text: str
    identifiers: frozenset[str]
    _evaluate: _Predicate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message passes: only when the expression is true, not unknown, not an error."""
        try:
            return self._evaluate(properties) is True
        except FilterEvaluationError:
            return False

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """True, False, None for unknown, or FilterEvaluationError."""
        return self._evaluate(properties)


def compile_sql(text: str) -> SqlFilter:
    """Compile an expression, or say in a FilterSyntaxError what is wrong with it and where."""
    if len(text) > MAX_EXPRESSION_CHARS:
        raise FilterSyntaxError(
            f"{len(text)} characters; at most {MAX_EXPRESSION_CHARS} are allowed",
            MAX_EXPRESSION_CHARS,
        )
    parser = _Parser(text)
    predicate = parser.parse()
    return SqlFilter(text, frozenset(parser.identifiers), predicate)
