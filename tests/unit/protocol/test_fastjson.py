"""The fastjson dialect: its additions to JSON, and its limits."""

from typing import Any

import pytest

from goddard.errors import ProtocolError
from goddard.protocol.bodies import MessageQueue
from goddard.protocol.fastjson import (
    MAX_DEPTH,
    MAX_DIALECT_BYTES,
    MAX_EXPANDED_VALUES,
    ObjectKey,
    dumps,
    loads,
)

QUEUE = ObjectKey({"brokerName": "b", "queueId": 0, "topic": "t"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{0:"a",-1:"b"}', {0: "a", -1: "b"}),
        (b' { 0 : [ 1 , 2.5 ] , "x" : null } ', {0: [1, 2.5], "x": None}),
        (b"{0:{},1:[],2:true,3:false,4:-0.5e2}", {0: {}, 1: [], 2: True, 3: False, 4: -50.0}),
        (b'{"t":{{"brokerName":"b","queueId":0,"topic":"t"}:7}}', {"t": {QUEUE: 7}}),
        (b'{0:"\\u00e9\\n\\"\\\\","x\\ty":1}', {0: 'é\n"\\', "x\ty": 1}),
        ('{0:"é😀"}'.encode(), {0: "é😀"}),
        (b'{0:"\\ud83d\\ude00"}', {0: "😀"}),
        (b"{0:1,0:2}", {0: 2}),
        (b'{"0":1,0:2}', {"0": 1, 0: 2}),
        (b"[1]", [1]),
    ],
)
def test_reads(text: bytes, value: Any) -> None:
    assert loads(text) == value
    assert loads(memoryview(text)) == value


def test_quoted_keys_stay_text() -> None:
    assert loads(b'{"0":"a"}') == {"0": "a"}


class TestReferences:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            (b'{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
            (b'{"a":[{"x":1}],"b":{"$ref":"$.a[0]"}}', {"a": [{"x": 1}], "b": {"x": 1}}),
            (b'{"a":{0:[5]},"b":{"$ref":"$.a[0]"}}', {"a": {0: [5]}, "b": [5]}),
            (b'{"a":{0:[5]},"b":{"$ref":"$.a.0"}}', {"a": {0: [5]}, "b": [5]}),
            (b'{"a.b":[1],"c":{"$ref":"$.a\\\\.b"}}', {"a.b": [1], "c": [1]}),
            (b'{"a.b":[1],"c":{"$ref":"$[\\"a.b\\"]"}}', {"a.b": [1], "c": [1]}),
            (
                b'{"a":[1],"b":{"$ref":"$.a"},"c":{"$ref":"$.b"}}',
                {"a": [1], "b": [1], "c": [1]},
            ),
            (
                b'{"q":{"brokerName":"b","queueId":0,"topic":"t"},"t":{{"$ref":"$.q"}:3}}',
                {"q": dict(QUEUE), "t": {QUEUE: 3}},
            ),
            (b'{"$ref":1}', {"$ref": 1}),
            (b'{"$ref":"$.a","a":1}', {"$ref": "$.a", "a": 1}),
        ],
    )
    def test_are_replaced(self, text: bytes, value: Any) -> None:
        assert loads(text) == value

    def test_give_a_copy(self) -> None:
        value = loads(b'{"a":{"x":[]},"b":{"$ref":"$.a"}}')
        value["a"]["x"].append(1)
        assert value["b"] == {"x": []}

    @pytest.mark.parametrize(
        "text",
        [
            b'{"$ref":"$"}',
            b'{"a":{"$ref":"$"}}',
            b'{"a":{"$ref":"$.a"}}',
            b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
            b'{"a":{"$ref":"$.b"},"b":{"$ref":"$[\\"a\\"]"}}',
            b'{"a":[{"$ref":"$.a"}]}',
            b'{"a":[{"$ref":".."}]}',
            b'{"a":{"$ref":"@"}}',
        ],
    )
    def test_cycles_are_refused(self, text: bytes) -> None:
        with pytest.raises(ProtocolError):
            loads(text)

    @pytest.mark.parametrize(
        "path", ["$.x", "$.a[5]", "$.a.b", "$a", "$.", "$[", "$[-1]", "$.a[999999999]", "$..", "x"]
    )
    def test_unknown_paths_are_rejected(self, path: str) -> None:
        with pytest.raises(ProtocolError, match="reference"):
            loads(b'{"a":[1],"b":{"$ref":"%s"}}' % path.encode())

    def test_long_paths_are_refused(self) -> None:
        with pytest.raises(ProtocolError, match="not supported"):
            loads(b'{"a":1,"b":{"$ref":"$%s"}}' % (b".a" * 200))

    def test_as_a_key_must_be_an_object(self) -> None:
        with pytest.raises(ProtocolError, match="key"):
            loads(b'{"a":[1],"t":{{"$ref":"$.a"}:3}}')

    def test_inside_a_key_are_refused(self) -> None:
        with pytest.raises(ProtocolError):
            loads(b'{"a":1,"t":{{"x":{"$ref":"$.a"}}:3}}')

    def test_expansion_is_bounded(self) -> None:
        layers = [b'"l0":["x"]']
        for number in range(1, 30):
            references = b",".join([b'{"$ref":"$.l%d"}' % (number - 1)] * 10)
            layers += [b'"l%d":[%s]' % (number, references)]
        with pytest.raises(ProtocolError, match="too many values"):
            loads(b"{" + b",".join(layers) + b"}")

    def test_a_long_chain_is_refused(self) -> None:
        links = b",".join(b'"l%d":{"$ref":"$.l%d"}' % (n, n + 1) for n in range(5000))
        with pytest.raises(ProtocolError, match="too many values"):
            loads(b"{" + links + b',"l5000":1}')

    def test_long_document_without_references_is_not_limited(self) -> None:
        count = MAX_EXPANDED_VALUES + 10
        value = loads(b'{"a":[%s1],"b":[7],"c":{"$ref":"$.b"}}' % (b"1," * count))
        assert len(value["a"]) == count + 1
        assert value["c"] == [7]


class TestBounds:
    @pytest.mark.parametrize(
        ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b"{0:", b"}")]
    )
    def test_depth(self, opening: bytes, closing: bytes) -> None:
        inner = b"1"
        assert loads(opening * MAX_DEPTH + inner + closing * MAX_DEPTH)
        for depth in (MAX_DEPTH + 1, 500, 100_000):
            with pytest.raises(ProtocolError):
                loads(opening * depth + inner + closing * depth)
            with pytest.raises(ProtocolError):
                loads(opening * depth)

    def test_depth_of_keys(self) -> None:
        with pytest.raises(ProtocolError):
            loads(b"{" * 100_000)

    @pytest.mark.parametrize("key", [b"%d", b'{"queueId":%d}', b'{"a":"x","queueId":%d}'])
    def test_numbers_in_keys(self, key: bytes) -> None:
        """Python's hash of an int is its remainder by 2**61 - 1, so larger ints can collide."""
        for number in (2**63, -(2**63), 0):
            assert len(loads(b"{" + key % number + b":1}")) == 1
        for number in (2**63 + 1, -(2**63) - 1, (2**61 - 1) * 8):
            with pytest.raises(ProtocolError, match="out of range"):
                loads(b"{" + key % number + b":1}")

    def test_size_of_the_dialect(self) -> None:
        standard = b'["' + b"x" * MAX_DIALECT_BYTES + b'"]'
        assert len(loads(standard)[0]) == MAX_DIALECT_BYTES
        with pytest.raises(ProtocolError, match="limit"):
            loads(b"{0:" + standard + b"}")
        with pytest.raises(ProtocolError, match="limit"):
            loads(b'{0:"0123456789"}', max_dialect_bytes=10)

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b" ",
            b"{",
            b"}",
            b"{0",
            b"{0:",
            b"{0:1",
            b"{0:1,",
            b"{0:1,}",
            b"{0:1]",
            b"{0:[1,]}",
            b"{0:[1}",
            b"{0:1}x",
            b"{0:1}{}",
            b"{a:1}",
            b"{0.5:1}",
            b"{-:1}",
            b"{true:1}",
            b"{null:1}",
            b"{[1]:1}",
            b"{{}}",
            b'{{"a":[]}:1}',
            b'{{"a":{}}:1}',
            b"{{1:2}:1}",
            b"{0:nul}",
            b"{0:NaN}",
            b"{0:Infinity}",
            b"{0:01}",
            b"{0:1e999}",
            b"{0:-}",
            b"{0:.5}",
            b"{0:" + b"9" * 5000 + b"}",
            b"{" + b"9" * 5000 + b":0}",
            b'{0:"a}',
            b'{0:"a\\"}',
            b'{0:"\\x"}',
            b'{0:"\\u12"}',
            b'{0:"\\ud800"}',
            b'{0:"\\udc00\\ud800"}',
            b'{0:"\n"}',
            b'{0:"\xff"}',
            b'{0:"\xed\xa0\x80"}',
            b"\xff",
            b"\xef\xbb\xbf{}",
            b"'a'",
            b"// no",
        ],
    )
    def test_invalid_json_is_rejected(self, text: bytes) -> None:
        with pytest.raises(ProtocolError):
            loads(text)


class TestDumps:
    def test_compact_standard_json(self) -> None:
        value = {"a": [1, None, True, 0.5], "é": {0: "x"}}
        assert dumps(value) == '{"a":[1,null,true,0.5],"é":{"0":"x"}}'.encode()

    def test_unquoted_keys(self) -> None:
        value = {"a": {0: "x", -1: {}}, "b": [], "c": ({1: 2},)}
        assert dumps(value, unquoted_int_keys=True) == b'{"a":{0:"x",-1:{}},"b":[],"c":[{1:2}]}'

    def test_object_keys(self) -> None:
        key = b'{"brokerName":"b","queueId":0,"topic":"t"}'
        queue = MessageQueue(broker_name="b", queue_id=0, topic="t")
        for unquoted in (False, True):
            assert dumps({QUEUE: 1}, unquoted_int_keys=unquoted) == b"{%s:1}" % key
            assert dumps({queue: [queue]}, unquoted_int_keys=unquoted) == b"{%s:[%s]}" % (key, key)

    def test_quotes_integer_keys_beside_object_keys(self) -> None:
        assert dumps({QUEUE: {7: 1}}).endswith(b':{"7":1}}')

    def test_numbers_that_are_not_finite_are_null(self) -> None:
        assert (
            dumps({0: float("nan"), 1: float("inf")}, unquoted_int_keys=True) == b"{0:null,1:null}"
        )

    @pytest.mark.parametrize("key", [None, True, 1.5, (1,)])
    def test_invalid_keys_are_rejected(self, key: Any) -> None:
        with pytest.raises(TypeError, match="key"):
            dumps({key: 1}, unquoted_int_keys=True)


class TestObjectKey:
    def test_equality_and_hash(self) -> None:
        same = ObjectKey({"topic": "t", "queueId": 0, "brokerName": "b"})
        assert same == QUEUE
        assert hash(same) == hash(QUEUE)
        assert {QUEUE: 1}[same] == 1
        assert dict(QUEUE) == {"brokerName": "b", "queueId": 0, "topic": "t"}
        assert ObjectKey({}) != QUEUE
        assert "queueId" in repr(QUEUE)
