"""Filters against the official 5.4.0 jars: thousands of expressions, one JVM, equal verdicts.

Random expressions come from the grammar, so that most compile, and a part of them is then damaged:
a token dropped, doubled, swapped or replaced. The numbers and strings are unusual ones.
"""

import base64
import os
import random
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from goddard.protocol.filters.expression import (
    FilterEvaluationError,
    FilterSyntaxError,
    bloom_positions,
    compile_sql,
    parse_tags,
)
from tests.support.java import BRIEF_JVM_FLAGS
from tests.support.peers import POM_DIR, RELEASES

pytestmark = pytest.mark.java

_RANDOM_CASES: Final = 4000
_ORACLE: Final = POM_DIR / "java" / "FilterOracle.java"

Case = tuple[str, Mapping[str, str]]
Question = tuple[str, ...]

_NAMES: Final = ("a", "b", "c", "A", "$x", "_y1", "absent", "notify", "e5")
_NUMBERS: Final = (
    *("0", "1", "5", "10", "2147483647", "2147483648", "9223372036854775807", "5L", "7l"),
    *("1.5", "5.", ".5", "5E3", "1e-3", "2.0", "9007199254740993", "9007199254740992.0"),
    *("9223372036854775808", "0.0", "1e400", "1e-400", "4.9E-324", "007", "0L", "1e", "00.5"),
)
_COMMON_NUMBERS: Final = ("1", "5", "10", "5.5", "100", "2147483648")
_STRINGS: Final = ("''", "'x'", "'abc'", "'a''b'", "'5'", "'true'", "'ü漢😀'", "'-- '", "'a\nb'")
_VALUES: Final = (
    *("", "x", "abc", "a'b", "xabcx", "true", "TRUE", "tRue", "false", "ü漢😀", "a\nb", "-- "),
    *("0", "1", "5", "+5", "-5", "005", "10", "100", "2147483647", "2147483648", "-2147483648"),
    *("-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "5L"),
    *("5.5", "5.0", " 5", "5 ", "1_0", "\u0665", "\uff15", "\U0001d7d3", "5\u00a0", "+-5", "+"),
    *("NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf", "-0.0", "0.0", "1e400", "-1e400"),
    *("5f", "5D", "5.5e0d", ".5", "5.", ".", "1e", "0x10", "0x1p3", "0x.8p1f", "0x1.8P+2", "0xp1"),
    *("0x1p99999", "-0x1p99999", "0x1p-99999", "\t5.5\x00", "\x1f5.5", "5.5\u2003", "1e-400"),
    *("9007199254740993", "9007199254740992", "4.9E-324", "0x1p99999999999999999999", "NaNd"),
)
_COMMON_VALUES: Final = ("x", "abc", "5", "10", "5.5", "true", "1")
_SOUP: Final = (
    *("NOT", "AND", "OR", "BETWEEN", "IN", "IS", "NULL", "TRUE", "CONTAINS", "LIKE", "now", "+"),
    *("-", "--", "--c\n", "/*c*/", "/**/", "/*", "(", ")", ",", "=", "<>", "<", "<=", ">=", "!="),
    *("'", "''", "#", "a", "5", "'x'", "5.5", ".", "1e", "\u00a0", "\u212a", "\f", "[", "*", "/"),
)


class Generator:
    """Expressions of the grammar; most operands fit their operator, so that most compile."""

    def __init__(self, choices: random.Random) -> None:
        self._random = choices

    def case(self) -> Case:
        tokens = self._condition(3)
        while self._random.random() < 0.2:
            self._damage(tokens)
        return self._spaced(tokens), self._properties()

    def _properties(self) -> dict[str, str]:
        present = [name for name in _NAMES[:-3] if self._random.random() < 0.75]
        return {name: self._pick(_COMMON_VALUES, _VALUES) for name in present}

    def _pick(self, common: Sequence[str], all_of_them: Sequence[str]) -> str:
        return self._random.choice(common if self._random.random() < 0.5 else all_of_them)

    def _condition(self, depth: int) -> list[str]:
        shape = self._random.random()
        if depth and shape < 0.35:
            joiner = self._random.choice(("AND", "OR", "or", "And"))
            return [*self._condition(depth - 1), joiner, *self._condition(depth - 1)]
        if depth and shape < 0.5:
            sign = self._random.choice(((), ("NOT",), ("not",), ("+",)))
            return [*sign, "(", *self._condition(depth - 1), ")"]
        return self._test(depth)

    def _test(self, depth: int) -> list[str]:
        negation = self._random.choice(((), (), ("NOT",)))
        match self._random.randrange(9):
            case 0 | 1:
                equality = self._random.choice(("=", "<>"))
                return [*self._operand(depth), equality, *self._operand(depth)]
            case 2 | 3:
                relation = self._random.choice(("<", "<=", ">", ">="))
                sides = [self._sortable(), self._sortable()]
                return [*sides[0], relation, *sides[1]]
            case 4:
                bounds = self._sortable(), self._sortable()
                return [*self._sortable(), *negation, "BETWEEN", *bounds[0], "AND", *bounds[1]]
            case 5:
                strings = [self._random.choice(_STRINGS) for _ in range(self._random.randint(1, 7))]
                listed = [part for text in strings for part in (text, ",")][:-1]
                return [self._name(), *negation, "IN", "(", *listed, ")"]
            case 6:
                test = self._random.choice(("CONTAINS", "startswith", "ENDSWITH"))
                return [*self._operand(depth), *negation, test, self._random.choice(_STRINGS)]
            case 7:
                return [*self._operand(depth), "IS", *negation, "NULL"]
            case _:
                return [*negation, self._random.choice((*_NAMES, "TRUE", "false", "NULL"))]

    def _name(self) -> str:
        return self._random.choice(_NAMES)

    def _sortable(self) -> list[str]:
        signs = ["-"] * self._random.choice((0, 0, 0, 1, 2))
        if self._random.random() < 0.6:
            return [*signs[1:], self._name()]
        return [*signs, self._pick(_COMMON_NUMBERS, _NUMBERS)]

    def _operand(self, depth: int) -> list[str]:
        match self._random.randrange(8):
            case 0 | 1 | 2:
                return [self._name()]
            case 3 | 4:
                return self._sortable()
            case 5:
                return [self._random.choice(_STRINGS)]
            case 6:
                return [self._random.choice(("TRUE", "FALSE", "true"))]
            case _:
                sign = self._random.choice(((), ("-",), ("NOT",)))
                return [*sign, "(", *self._condition(max(depth - 1, 0)), ")"]

    def _damage(self, tokens: list[str]) -> None:
        at = self._random.randrange(len(tokens))
        match self._random.randrange(4):
            case 0:
                tokens.insert(at, self._random.choice(_SOUP))
            case 1:
                tokens[at] = self._random.choice(_SOUP)
            case 2 if len(tokens) > 1:
                del tokens[at]
            case _:
                other = self._random.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]

    def _spaced(self, tokens: Sequence[str]) -> str:
        gap = self._random.choice((" ", " ", " ", "", "\n", "/* x */", " -- x\n"))
        return gap.join(tokens)


# Separated by semicolons, which are no token.
_TEXTS: Final = """
    a; NOT a; a LIKE 'x'; a = 1 # rest; a = 1 ) # rest; a = 1 NOT; a NOT b; a = 1 -- no line end;
    a = --5; a = - -5; a = /* * / ** */ 5; a = /*/ 5; a = 1 '; a = 1 b '; a = 1 /*; a = 007;
    a = 0L; a = 5a; a = 5.5.5; a = 1e; a != 1; a IS; a IS NOT; a IS NOT NULL; a IS NULL IS NULL;
    NULL IS NULL; 5 IS NULL; a = NULL; TRUE = a; a = TRUE; TRUE = 1; 1 = TRUE; 'x' = TRUE;
    TRUE = 'x'; TRUE = TRUE; TRUE <> FALSE; a = b; a <> b; absent = b; a = absent;
    absent = absent; a > b; 5 = a; 5 < a; -5 < -a; -a IS NULL; -(a > 5) IS NULL; -(b > 5) IS NULL;
    a < -(b > 5); absent < -(b > 5); a BETWEEN 5 AND -1; a BETWEEN 5 AND 1; a BETWEEN 1 AND 5.5;
    a NOT BETWEEN 5 AND 1; 5 BETWEEN a AND b; 5 BETWEEN 1 AND 9; a BETWEEN '1' AND '2';
    a BETWEEN TRUE AND 2; a BETWEEN NULL AND b; a BETWEEN 1 OR 2; a IN ('x'); (a) IN ('x');
    +a IN ('x'); -a IN ('x'); 'x' IN ('x'); NOT a IN ('x'); a IN (); a IN (5); a IN ('x',);
    a IN ('x' 'y'); a IN 'x'; NOT (a IN ('x')); NOT a = 5; NOT a > 5; NOT (a > 5); a > 'x';
    a > TRUE; a > NULL; (a = 1) > 2; (a = 1) = (b = 1); (a = 1) = b; a = (b = 1); a = 5 = TRUE;
    a = b = c; 1 = 1.0; 9007199254740993 = 9007199254740992.0; a CONTAINS ''; a NOT CONTAINS '';
    a CONTAINS b; 'abc' CONTAINS 'b'; 5 CONTAINS '5'; a CONTAINS 'x' CONTAINS 'x';
    (a > 1) CONTAINS 'x'; (b > 1) CONTAINS 'x'; (b > 1) CONTAINS ''; absent NOT CONTAINS 'x';
    NOT (absent CONTAINS 'x'); absent IN ('x'); absent NOT IN ('x'); a AND b; a OR 1;
    TRUE AND NULL; FALSE AND NULL; TRUE OR NULL; NULL OR FALSE; NOT NULL; 5; 'x'; -TRUE; +TRUE;
    -'x' IS NULL; a > -'x'; +'x' = 'x'; ((((a))))=5; (a = 5; a = 5); TRUE OR b > 5; b > 5 OR TRUE;
    FALSE AND b > 5; b > 5 AND FALSE; ä = 5; isnull; a ISNULL; a is null; IN = 5; a.b = 5;
    a-b = 5; a = 2147483648; a = -2147483648; a = -9223372036854775808; a >= -2147483648L;
    a = 5 OR; AND a; a = 5 OR = 6; a = = 5; a = (5
"""
_LONG_OR_ODD_TEXTS: Final = (
    *("", " ", "a = --5\n6", "a = --5\r5", "\u00a0a = 5", "tru\u017fe", "\u212a = 5", "a = 5\v"),
    *("(" * 50 + "a = 5" + ")" * 50, "NOT " * 50 + "TRUE", "a = '" + "x" * 5000 + "'", "0" * 5000),
    *("9" * 5000 + " = a", "9" * 5000 + ". = a", "." + "9" * 500 + " < a", "a OR " * 2000 + "TRUE"),
)
# Each of these meets each of the values above as a, and two as b.
_COMPARISONS: Final = (
    *("a = 5", "a >= 2147483648", "a > 5.5", "a < -5.5", "5 = a", "5.5 < a", "a <> 5.0", "a = 'x'"),
    *("a BETWEEN 1 AND 10", "a NOT BETWEEN 1 AND 10", "a = TRUE", "FALSE = a", "a <> 'true'"),
    *("a CONTAINS 'a'", "a NOT ENDSWITH 'x'", "a NOT IN ('5', 'x')", "a <= b", "b <= a", "a = b"),
)


def hand_written() -> list[Case]:
    texts = (*_TEXTS.split(";"), *_LONG_OR_ODD_TEXTS)
    return [
        *((text, properties) for text in texts for properties in ({}, {"a": "5", "b": "x"})),
        *(
            (text, {"a": value, "b": other})
            for text in _COMPARISONS
            for other in ("-0.0", "NaN")
            for value in _VALUES
        ),
    ]


def sql_cases() -> list[Case]:
    generator = Generator(random.Random(92))
    return [*hand_written(), *(generator.case() for _ in range(_RANDOM_CASES))]


_TAG_EXPRESSIONS: Final = (
    *("*", "", "A", "A || B", "A||B||A", " A ||B ", "||", "||||", "|||", " || ", " * ", "A || *"),
    *("A|B", "||A", "A||", "\u00a0A||\u2003B", "\x00A\x1f", "ü漢😀", "polygenelubricants"),
)
_BLOOM_KEYS: Final = (
    *(("G", "T"), ("gü漢", "😀")),
    *((f"group-{number}", "topic" * number) for number in range(40)),
)


def sql_question(text: str, properties: Mapping[str, str]) -> Question:
    return "sql", text, *(word for pair in properties.items() for word in pair)


@pytest.fixture(scope="module")
def answers() -> Mapping[Question, str]:
    """Java's answer to every question of this module."""
    return ask_java(
        [
            *(sql_question(text, properties) for text, properties in sql_cases()),
            *(("tags", text) for text in _TAG_EXPRESSIONS),
            *(("bloom", *key) for key in _BLOOM_KEYS),
        ]
    )


def ask_java(questions: Sequence[Question]) -> dict[Question, str]:
    lines = (
        " ".join(base64.b64encode(word.encode()).decode() for word in words) for words in questions
    )
    class_path = str(RELEASES["5.4.0"].lib / "*")
    flags = (*BRIEF_JVM_FLAGS, "-Xmx256m")
    done = subprocess.run(
        ["java", *flags, "-cp", class_path, os.fspath(_ORACLE)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(questions, done.stdout.splitlines(), strict=True))


def sql_verdict(text: str, properties: Mapping[str, str]) -> str:
    try:
        value = compile_sql(text).evaluate(properties)
    except FilterSyntaxError:
        return "syntax-error"
    except FilterEvaluationError:
        return "evaluation-error"
    return "null" if value is None else str(value).lower()


def test_sql_verdicts_are_those_of_java(answers: Mapping[Question, str]) -> None:
    cases = sql_cases()
    expected = [answers[sql_question(text, properties)] for text, properties in cases]
    actual = [sql_verdict(text, properties) for text, properties in cases]
    differing = [
        f"{text[:200]!r} {properties!r}: Java {theirs}, ours {ours}"
        for (text, properties), theirs, ours in zip(cases, expected, actual, strict=True)
        if theirs != ours
    ]
    assert not differing, "\n".join([f"{len(differing)} differ:", *differing[:20]])
    # The cases are useful only if every verdict is frequent.
    verdicts = Counter(expected[-_RANDOM_CASES:])
    wanted = ("true", "false", "null", "syntax-error", "evaluation-error")
    assert all(verdicts[verdict] > _RANDOM_CASES // 20 for verdict in wanted), verdicts


@pytest.mark.parametrize("text", _TAG_EXPRESSIONS)
def test_tag_subscriptions_are_those_of_java(text: str, answers: Mapping[Question, str]) -> None:
    try:
        subscription = parse_tags(text)
    except FilterSyntaxError:
        assert answers["tags", text] == "syntax-error"
        return
    sub_string = base64.b64encode(subscription.expression.encode()).decode()
    assert answers["tags", text] == f"{sub_string} {sorted(subscription.codes)}"


def test_bloom_positions_are_those_of_java(answers: Mapping[Question, str]) -> None:
    expected = [answers["bloom", *key] for key in _BLOOM_KEYS]
    assert [str(list(bloom_positions(*key))) for key in _BLOOM_KEYS] == expected
