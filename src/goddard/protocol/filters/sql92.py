"""SQL92 filter expressions over message properties: parsed once, evaluated as closures.

    conditions   OR, then AND, then = <> IS [NOT] NULL, then > >= < <= and the postfix tests
                 [NOT] CONTAINS|STARTSWITH|ENDSWITH 'x', [NOT] BETWEEN a AND b, [NOT] IN ('x', 'y')
    operands     + - NOT (higher precedence than comparisons), literal, property, parentheses

Expressions mean what they mean to RocketMQ's SelectorParser, including its surprises, because a
subscription must select the same messages on both brokers:

- Text after a complete expression is ignored, except that one valid token or the end must follow.
- Every property is a string or null. Compared with a number, it is parsed as a number of the same
  type (32 bits, 64 bits, double); a property that cannot be parsed is an evaluation error.
- ``=`` is false if only its right side is null, unknown if only its left side is null, true if both
  are null. CONTAINS, STARTSWITH and ENDSWITH are false for null, with and without NOT.

Expressions come from peers: their length and nesting are bounded, parser and closures use at most a
multiple of ``MAX_EXPRESSION_DEPTH`` stack frames, and time is linear in the length.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from goddard.errors import ProtocolError
from goddard.protocol.filters.conditions import (
    RELATIONS,
    TEXT_TESTS,
    Condition,
    FilterEvaluationError,
    Literal,
    Negative,
    Node,
    Number,
    Predicate,
    Property,
    Width,
    abbreviated,
    combine,
    compare,
    constant,
    equals,
    is_condition,
    is_in,
    is_null,
    negate,
    number_in,
    property_as_condition,
    sort_keys,
    text_test,
)

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


class FilterSyntaxError(ProtocolError):
    """A filter expression that cannot be used; ``position`` counts characters from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"filter expression, position {position}: {reason}")
        self.reason = reason
        self.position = position


class _Token(NamedTuple):
    """``kind`` is a keyword in upper case, an operator, or a token class in lower case."""

    kind: str
    text: str
    position: int


_KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", *TEXT_TESTS)
)
_CONSTANTS: Final[Mapping[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}
_SPACE: Final = re.compile(r"[ \t\n\r\f]+")
_LINE_COMMENT: Final = re.compile(r"--[^\n\r]*[\n\r]")
_BLOCK_COMMENT: Final = re.compile(r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/")
# In this order, the longest token matches.
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
    """Reads tokens on demand: text that the parser does not reach is never checked."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        # A line comment must end with a line end; otherwise -- is two minus signs.
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


class _Parser:
    """Recursive descent, five frames for each level of parentheses."""

    def __init__(self, text: str) -> None:
        self._lexer = _Lexer(text)
        self._token = self._lexer.read()
        self._open_parentheses = 0
        self.identifiers: set[str] = set()

    def parse(self) -> Predicate:
        return self._predicate(self._disjunction())

    # Grammar, lowest precedence first.

    def _disjunction(self) -> Node:
        alternatives: list[Node] = []
        while True:
            conjunction = [self._equality()]
            while self._accept("AND"):
                conjunction.append(self._equality())
            alternatives.append(self._join(conjunction, decisive=False))
            if not self._accept("OR"):
                return self._join(alternatives, decisive=True)

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            token = self._token
            if self._accept("=") or self._accept("<>"):
                right = self._comparison()
                self._check_equatable(left, right, token)
                predicate = equals(left, right, inverted=token.kind == "<>")
                left = self._condition(predicate, left, right)
            elif self._accept("IS"):
                inverted = self._accept("NOT")
                self._expect("NULL")
                left = self._condition(is_null(left, inverted=inverted), left)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            token = self._token
            if token.kind in RELATIONS:
                self._advance()
                left = self._relate(left, token.kind, self._unary(), token)
                continue
            inverted = self._accept("NOT")
            test = self._token
            if test.kind in TEXT_TESTS:
                self._advance()
                search = self._string()
                predicate = text_test(left, TEXT_TESTS[test.kind], search, inverted=inverted)
                left = self._condition(predicate, left)
            elif self._accept("BETWEEN"):
                left = self._between(left, test, inverted=inverted)
            elif self._accept("IN"):
                left = self._in(left, test, inverted=inverted)
            elif inverted:
                self._fail("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _between(self, value: Node, token: _Token, *, inverted: bool) -> Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if inverted:
            outside = (self._relate(value, "<", low, token), self._relate(value, ">", high, token))
            return self._join(outside, decisive=True)
        inside = (self._relate(value, ">=", low, token), self._relate(value, "<=", high, token))
        # Java checks only literal bounds; a bound with a minus sign is not a literal.
        if isinstance(low, Literal) and isinstance(high, Literal):
            low_number, high_number = number_in(low), number_in(high)
            if low_number is not None and high_number is not None:
                low_order, high_order = sort_keys(low_number, high_number)
                if low_order > high_order:
                    reason = "BETWEEN with a low bound above the high one"
                    raise FilterSyntaxError(reason, low.position)
        return self._join(inside, decisive=False)

    def _in(self, value: Node, token: _Token, *, inverted: bool) -> Node:
        self._expect("(")
        choices = {self._string()}
        while self._accept(","):
            choices.add(self._string())
        self._expect(")")
        if not isinstance(value, Property):
            raise FilterSyntaxError("IN needs a property on its left", token.position)
        return self._condition(is_in(value.name, frozenset(choices), inverted=inverted), value)

    def _unary(self) -> Node:
        signs: list[_Token] = []
        while self._token.kind in ("+", "-", "NOT"):
            signs.append(self._advance())
        node = self._parenthesized() if self._token.kind == "(" else self._primary()
        for sign in reversed(signs):
            if sign.kind == "-":
                number = number_in(node)
                negated = None if number is None else number.negated()
                depth = self._deeper(node)
                node = Negative(node.evaluate, negated, sign.position, depth)
            elif sign.kind == "NOT":
                node = self._condition(negate(self._predicate(node)), node)
        return node

    def _primary(self) -> Node:
        token = self._token
        kind = token.kind
        if kind == "string":
            return Literal(self._string(), token.position)
        if kind == "integer":
            self._advance()
            return Literal(_integer_literal(token), token.position)
        if kind == "float":
            self._advance()
            return Literal(_float_literal(token), token.position)
        if kind in _CONSTANTS:
            self._advance()
            return Literal(_CONSTANTS[kind], token.position)
        if kind == "identifier":
            self._advance()
            self.identifiers.add(token.text)
            return Property(token.text)
        return self._fail("a property, a literal or '('")

    def _parenthesized(self) -> Node:
        self._open_parentheses += 1
        self._check_depth(self._open_parentheses)
        self._advance()
        node = self._disjunction()
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
        found = "the end" if token.kind == "end" else abbreviated(token.text)
        raise FilterSyntaxError(f"expected {expected}, found {found}", token.position)

    # Nodes.

    def _condition(self, predicate: Predicate, *operands: Node) -> Condition:
        return Condition(predicate, self._deeper(*operands))

    def _deeper(self, *operands: Node) -> int:
        depth = 1 + max(operand.depth for operand in operands)
        self._check_depth(depth)
        return depth

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_EXPRESSION_DEPTH:
            reason = f"nested deeper than {MAX_EXPRESSION_DEPTH} levels"
            raise FilterSyntaxError(reason, self._token.position)

    def _join(self, nodes: Sequence[Node], *, decisive: bool) -> Node:
        if len(nodes) == 1:
            return nodes[0]
        predicates = tuple(self._predicate(node) for node in nodes)
        return self._condition(combine(predicates, decisive=decisive), *nodes)

    def _predicate(self, node: Node) -> Predicate:
        if isinstance(node, Condition):
            return node.evaluate
        if isinstance(node, Property):
            return property_as_condition(node.name)
        if isinstance(node, Literal) and (node.value is None or isinstance(node.value, bool)):
            return constant(node.value)
        raise FilterSyntaxError("a value where a condition is needed", node.position)

    def _relate(self, left: Node, relation: str, right: Node, token: _Token) -> Condition:
        for node in (left, right):
            is_text = isinstance(node, Literal) and isinstance(node.value, str)
            if is_text or is_condition(node):
                what = "a string literal" if is_text else "a condition"
                raise FilterSyntaxError(f"{what} cannot be compared by size", token.position)
        return self._condition(compare(left, RELATIONS[relation], right), left, right)

    def _check_equatable(self, left: Node, right: Node, token: _Token) -> None:
        literals = [node.value for node in (left, right) if isinstance(node, Literal)]
        if None in literals:
            raise FilterSyntaxError("NULL equals nothing; write IS NULL", token.position)
        if len(literals) == 2 and is_condition(left) and not is_condition(right):
            raise FilterSyntaxError("a truth value and another type", token.position)


def _integer_literal(token: _Token) -> Number:
    digits = token.text.rstrip("lL")
    # int() limits the length of its input; 19 digits are constant allowed.
    value = int(digits) if len(digits) <= 19 else 1 << 63
    if value >= 1 << 63:
        raise FilterSyntaxError("a number of more than 64 bits", token.position)
    # The suffix has no effect: a value that fits 32 bits is a 32-bit number.
    return Number(Width.INT if value < 1 << 31 else Width.LONG, value)


def _float_literal(token: _Token) -> Number:
    value = float(token.text)
    if value in (0.0, float("inf")):
        raise FilterSyntaxError("a floating-point number that is zero or too big", token.position)
    return Number(Width.DOUBLE, value)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression; immutable, so any thread may use it."""

    text: str
    identifiers: frozenset[str]
    _evaluate: Predicate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether the expression is true; false if it is unknown or an evaluation error."""
        try:
            return self._evaluate(properties) is True
        except FilterEvaluationError:
            return False

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """True, False, or None for unknown; raises FilterEvaluationError."""
        return self._evaluate(properties)


def compile_sql(text: str) -> SqlFilter:
    """Compile an expression; FilterSyntaxError says what is wrong at which position."""
    if len(text) > MAX_EXPRESSION_CHARS:
        raise FilterSyntaxError(
            f"{len(text)} characters; at most {MAX_EXPRESSION_CHARS} are allowed",
            MAX_EXPRESSION_CHARS,
        )
    parser = _Parser(text)
    predicate = parser.parse()
    return SqlFilter(text, frozenset(parser.identifiers), predicate)
