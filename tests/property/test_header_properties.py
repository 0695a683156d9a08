"""Every header class: round trips, and fields of any text."""

import typing
from typing import Annotated, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.errors import HeaderError
from goddard.protocol.headers.header import Header
from goddard.protocol.headers.message import SendRequest, SendRequestV2, decode_send
from tests.support.headers import REQUEST_HEADERS, RESPONSE_HEADERS

KINDS = sorted({*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda k: k.__name__)


def strategy_of(annotation: Any) -> st.SearchStrategy[Any]:
    arguments = typing.get_args(annotation)
    if type(None) in arguments:
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return st.none() | strategy_of(kind)
    if annotation is str:
        return st.text(max_size=20)
    if annotation is bool:
        return st.booleans()
    assert typing.get_origin(annotation) is Annotated
    bits: int = arguments[1]
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def headers(kind: type[Header]) -> st.SearchStrategy[Header]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: strategy_of(hints[name]) for name in kind.wire_names()})


any_header = st.one_of([headers(kind) for kind in KINDS])


@settings(max_examples=500)
@given(any_header)
def test_headers_round_trip(header: Header) -> None:
    encoded = header.encode()
    decoded = type(header).decode(encoded)
    assert decoded.encode() == encoded
    # None is omitted and decoded as the default.
    for name, value in vars(header).items():
        assert value is None or getattr(decoded, name) == value


@settings(max_examples=500)
@given(any_header, st.data())
def test_any_text_raises_only_header_error(header: Header, data: st.DataObject) -> None:
    texts = st.text(max_size=12) | st.integers().map(str)
    fields = data.draw(st.dictionaries(st.sampled_from([*header.encode(), "x"]), texts))
    try:
        type(header).decode(fields)
    except HeaderError:
        return


@given(headers(SendRequest))
def test_sends_convert_both_ways(header: Header) -> None:
    assert isinstance(header, SendRequest)
    short = SendRequestV2.from_v1(header)
    assert decode_send(short.encode()) == decode_send(header.encode()) == header
