"""Forms of send headers: a header that fits a form is parsed to the values of the form."""

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from goddard.broker.lane.sendforms import Form, Property, make_form
from goddard.broker.lane.sendwire import (
    JSON_READERS,
    JSON_START_BYTES,
    BinarySends,
    SendHeader,
    SendReader,
)
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from tests.support.send_harness import send_request

NAMES = ("UNIQ_KEY", "KEYS", "TAGS", "WAIT", "a%b", "x-y", "名")
VALUES = st.one_of(
    st.sampled_from(
        ["true", "TagA", "k1 k2", "7F0000014E9F5FFD", "100%", "a/b", 'q"\\', "值", "0"]
    ),
    st.text("abc019%-_ ", min_size=1, max_size=6),
)


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[str, str]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    return [(name, draw(VALUES)) for name in names]


def request_of(
    properties: list[tuple[str, str]],
    *,
    code: RequestCode,
    serialize_type: SerializeType,
    opaque: int,
    queue_id: int = 1,
    ending: str = "\x02",
) -> RemotingCommand:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties) + ending
    request = send_request(
        "TopicTest",
        properties=text,
        code=code,
        serialize_type=serialize_type,
        opaque=opaque,
    )
    request.fields["e" if "e" in request.fields else "queueId"] = str(queue_id)
    return request


def frame_of(request: RemotingCommand) -> tuple[bytes, bytes]:
    """A frame without its length word, and its header."""
    frame = encode_frame(request)[4:]
    return frame, frame[4 : 4 + int.from_bytes(frame[1:4], "big")]


def reader_of(frame: bytes, header: bytes) -> SendReader:
    return BinarySends().read if frame[0] else JSON_READERS[header[:JSON_START_BYTES]]


def learn(
    request: RemotingCommand, properties: list[tuple[str, str]]
) -> tuple[Form | None, SendReader, SendHeader]:
    frame, header = frame_of(request)
    read = reader_of(frame, header)
    got = read(memoryview(header))
    assert got is not None
    known = [Property(name.encode(), value.encode(), name == "WAIT") for name, value in properties]
    return make_form(header, frame[0], got, known, read), read, got


def fits_and_agrees(form: Form, frame: bytes, read: SendReader, learnt: SendHeader) -> bool:
    """Whether the form fits a frame; if so, assert that its values are those of the parser."""
    found = form.fit(frame)
    if found is None:
        return False
    opaque, queue_id, born_timestamp, texts = found
    if not queue_id.isdigit():
        return False  # not a queue id
    got = read(memoryview(frame[4 : form.body_at]))
    assert got is not None
    number = int.from_bytes(opaque, "big", signed=True) if form.is_binary else int(opaque)
    assert (got.code, got.flag, got.opaque) == (learnt.code, learnt.flag, number)
    stored = got.fields.properties.encode()
    assert form.properties % texts == (stored if stored.endswith(b"\x02") else stored + b"\x02")
    assert got.fields == msgspec.structs.replace(
        learnt.fields,
        queue_id=int(queue_id),
        born_timestamp=int(born_timestamp),
        properties=got.fields.properties,
    )
    return True


CODES = st.sampled_from([RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE])


@settings(max_examples=300)
@given(
    pairs(),
    CODES,
    st.sampled_from(SerializeType),
    st.sampled_from(["\x02", ""]),
    st.integers(1, 999_999_999),
    st.data(),
)
def test_a_header_that_fits_is_parsed_to_the_values_of_the_form(
    properties: list[tuple[str, str]],
    code: RequestCode,
    serialize_type: SerializeType,
    ending: str,
    opaque: int,
    data: st.DataObject,
) -> None:
    request = request_of(
        properties, code=code, serialize_type=serialize_type, opaque=opaque, ending=ending
    )
    form, read, learnt = learn(request, properties)
    assume(form is not None)
    assert form is not None
    frame, header = frame_of(request)
    assert fits_and_agrees(form, frame, read, learnt)
    changed = bytearray(frame)
    places = st.integers(4, 3 + len(header))
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        changed[place] = data.draw(
            st.one_of(st.sampled_from(b'0179aZ"\\,:{}\x00\x01\x02\x1f\xc3 _'), st.integers(0, 255))
        )
    fits_and_agrees(form, bytes(changed), read, learnt)


@settings(max_examples=100)
@given(CODES, st.sampled_from(SerializeType), st.integers(100, 899), st.integers(0, 9))
def test_similar_headers_fit(
    code: RequestCode, serialize_type: SerializeType, opaque: int, queue_id: int
) -> None:
    first = [("UNIQ_KEY", "A" * 32), ("KEYS", "k1 k2"), ("WAIT", "true"), ("TAGS", "TagA")]
    second = [("UNIQ_KEY", "B" * 32), ("KEYS", "order"), ("WAIT", "true"), ("TAGS", "TagB")]
    form, read, learnt = learn(
        request_of(first, code=code, serialize_type=serialize_type, opaque=opaque), first
    )
    assert form is not None
    assert form.places == {b"UNIQ_KEY": 0, b"KEYS": 1, b"TAGS": 2}
    other = request_of(
        second, code=code, serialize_type=serialize_type, opaque=opaque + 100, queue_id=queue_id
    )
    assert fits_and_agrees(form, frame_of(other)[0], read, learnt)
    waitless = [*second[:2], ("WAIT", "fals"), second[3]]
    unlike = request_of(waitless, code=code, serialize_type=serialize_type, opaque=opaque)
    assert form.fit(frame_of(unlike)[0]) is None
