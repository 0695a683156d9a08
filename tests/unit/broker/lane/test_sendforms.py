"""Which headers have a form: values must be found in their fields, not in similar text."""

import re

import pytest

from goddard.broker.lane.sendforms import Form, Property, make_form
from goddard.broker.lane.sendwire import read_short

HEADER = (
    '{"code":310,"extFields":{"a":"P","b":"T","c":"TBW102","d":"4","e":"7","f":"0",'
    '"g":"1794732977282","h":"0","i":"UNIQ_KEY\\u0001QQQQ\\u0002","j":"0","k":"false",'
    '"m":"false"},"flag":0,"language":"JAVA","opaque":7,"version":493}'
)


def form_of(header: str, unique_id: str = "QQQQ") -> Form | None:
    data = header.encode()
    request = read_short(memoryview(data))
    assert request is not None
    properties = [Property(b"UNIQ_KEY", unique_id.encode(), is_fixed=False)]
    return make_form(data, 0, request, properties, read_short)


def test_a_plain_header_has_a_form() -> None:
    form = form_of(HEADER)
    assert form is not None
    other = HEADER.replace("QQQQ", "ABCD").replace('"opaque":7', '"opaque":9')
    assert form.fit(bytes(4) + other.encode()) == (b"9", b"7", b"1794732977282", (b"ABCD",))


@pytest.mark.parametrize(
    ("read", "beside"),
    [
        # The second value comes after the fields, where it is not read.
        ('"e":7', '"e":"7"'),
        ('"e":7', '"e":"6"'),
        ('"g":1794732977282', '"g":"1794732977282"'),
        ('"opaque":"7"', '"x":{"opaque":7}'),
    ],
)
def test_headers_with_duplicate_values_have_no_form(read: str, beside: str) -> None:
    name = read.split(":", maxsplit=1)[0]
    header = re.sub(f'{name}:"?[0-9]+"?', read, HEADER)
    assert header != HEADER
    assert form_of(header.replace('"version"', f'{beside},"version"')) is None


@pytest.mark.parametrize("first", ["6", "7", "8"])
def test_the_last_of_two_fields_of_one_name_counts(first: str) -> None:
    assert form_of(HEADER.replace('"e":"7"', f'"e":"{first}","\\u0065":"7"')) is None
    assert form_of(HEADER.replace('"e":"7"', f'"\\u0065":"{first}","e":"7"')) is not None


def test_an_escaped_backslash_is_not_a_separator() -> None:
    header = HEADER.replace("QQQQ", r"QQ\\u0002QQ\\u0001QQ")
    form = form_of(header, r"QQ\u0002QQ\u0001QQ")
    assert form is None or form.places == {}


def test_long_headers_have_no_form() -> None:
    assert form_of(HEADER.replace("QQQQ", "Q" * 1000), "Q" * 1000) is not None
    assert form_of(HEADER.replace("QQQQ", "Q" * 3000), "Q" * 3000) is None
