"""Tag expressions, and the Bloom positions of a subscription."""

import pytest

from goddard.errors import ProtocolError
from goddard.protocol.filters.expression import (
    BLOOM_BITS,
    MAX_EXPRESSION_CHARS,
    FilterSyntaxError,
    TagFilter,
    bloom_positions,
    is_tag_type,
    parse_tags,
)
from goddard.protocol.hashing import tag_code


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_star_and_empty_text_select_all_tags(expression: str | None) -> None:
    everything = parse_tags(expression)
    assert everything == TagFilter("*", (), frozenset())
    assert everything.matches_code(0)
    assert everything.matches_code(tag_code("A"))
    assert everything.matches_tag(None)
    assert everything.matches_tag("A")


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("A", ("A",)),
        ("A || B", ("A", "B")),
        ("B||A||B", ("B", "A")),
        ("\tA\x00|| B\n", ("A", "B")),
        ("|| A ||", ("A",)),
        ("A|B", ("A|B",)),
        ("|||", ("|",)),
        ("\u00a0A", ("\u00a0A",)),
        (" * ", ("*",)),
        ("A || *", ("A", "*")),
        (" || ", ()),
    ],
)
def test_bars_separate_tags(expression: str, tags: tuple[str, ...]) -> None:
    parsed = parse_tags(expression)
    assert parsed.expression == expression
    assert parsed.tags == tags
    assert parsed.codes == {tag_code(tag) for tag in tags}
    assert not parsed.matches_all
    assert not parsed.matches_code(tag_code("other"))


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_bars_without_tags_are_rejected(expression: str) -> None:
    with pytest.raises(FilterSyntaxError, match="no tag"):
        parse_tags(expression)


def test_long_tag_expression_is_rejected() -> None:
    parse_tags("A" * MAX_EXPRESSION_CHARS)
    with pytest.raises(ProtocolError, match="at most 65536"):
        parse_tags("A" * (MAX_EXPRESSION_CHARS + 1))


def test_the_broker_compares_the_low_32_bits() -> None:
    wanted = parse_tags("A || polygenelubricants")
    assert tag_code("polygenelubricants") == -(1 << 31)
    assert wanted.matches_code(65)
    assert wanted.matches_code(65 + (7 << 32))
    assert wanted.matches_code(-(1 << 31))
    assert wanted.matches_code(1 << 31)
    assert not wanted.matches_code(66)
    assert not wanted.matches_code(0)


def test_an_entry_without_a_code_passes() -> None:
    assert parse_tags("A").matches_code(None)


def test_client_distinguishes_tags_with_equal_hashes() -> None:
    wanted = parse_tags("Aa")
    assert wanted.matches_code(tag_code("BB"))
    assert wanted.matches_tag("Aa")
    assert not wanted.matches_tag("BB")
    assert not wanted.matches_tag(None)


def test_subscription_from_the_wire_uses_its_codes() -> None:
    sent = TagFilter.of_subscription("A || B", ["A", "B"], [65])
    assert sent.matches_code(65)
    assert not sent.matches_code(66)
    assert TagFilter.of_subscription("*", [], []).matches_code(66)


@pytest.mark.parametrize(
    ("expression_type", "expected"),
    [(None, True), ("", True), ("TAG", True), ("SQL92", False), ("tag", False)],
)
def test_a_missing_type_is_the_tag_type(expression_type: str | None, expected: bool) -> None:
    assert is_tag_type(expression_type) is expected


def test_bloom_positions() -> None:
    assert bloom_positions("G", "T") == (24, 26, 83)
    # More than one block of the hash, and a tail of more than eight bytes.
    long_names = bloom_positions("group-with-a-long-name", "topic-with-a-long-name")
    assert len(long_names) == 3
    assert all(0 <= position < BLOOM_BITS for position in long_names)
