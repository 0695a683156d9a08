"""The fastjson dialect and bodies: round trips and garbage of every kind."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.errors import ProtocolError
from goddard.protocol import bodies, bodies_admin, bodies_client
from goddard.protocol.fastjson import ObjectKey, dumps, loads

text = st.text(max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
names = text.filter(lambda name: name != "$ref")
object_keys = st.dictionaries(names, scalars, max_size=3).map(ObjectKey)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(names | st.integers(-(2**63), 2**63 - 1) | object_keys, inner, max_size=4)
    ),
    max_leaves=15,
)
# Text similar enough to the dialect to reach deep into the parser.
fragments = st.lists(
    st.sampled_from(
        [
            *(
                "{",
                "}",
                "[",
                "]",
                ":",
                ",",
                '"',
                '"a"',
                "0",
                "-1",
                "1.5",
                "true",
                "null",
                " ",
                "\\",
            ),
            *('{"$ref":"$.a"}', '{"$ref":"$"}', '{"$ref":"$.a[0]"}', '"a":', "0:", "\\u12", "é"),
        ]
    ),
    max_size=40,
).map(lambda parts: "".join(parts).encode())

KINDS: list[Any] = [
    bodies.TopicRoute,
    bodies.ClusterInfo,
    bodies.RegisterBrokerBody,
    bodies.KvTable,
    bodies_client.HeartbeatData,
    bodies_client.LockQueuesBody,
    bodies_client.ResetOffsetBody,
    bodies_client.ConsumerRunningInfo,
    bodies_admin.SubscriptionGroupTable,
    bodies_admin.BrokerConsumeStats,
    bodies_admin.ConsumerOffsetTable,
    list[bodies_admin.UserInfo],
]


def fields_of(kind: Any) -> list[str]:
    if kind == list[bodies_admin.UserInfo]:
        return ["username"]
    return list(kind.__struct_encode_fields__)


@given(values)
def test_values_round_trip(value: Any) -> None:
    assert loads(dumps(value, unquoted_int_keys=True)) == value


@given(st.binary(max_size=200) | fragments)
def test_garbage_raises_only_protocol_error(data: bytes) -> None:
    try:
        value = loads(data)
    except ProtocolError:
        return
    assert loads(dumps(value, unquoted_int_keys=True)) == value


@settings(max_examples=300)
@given(st.sampled_from(KINDS), st.data())
def test_a_body_of_any_shape_raises_only_protocol_error(kind: Any, data: st.DataObject) -> None:
    fields = st.dictionaries(st.sampled_from(fields_of(kind)) | names, values, max_size=5)
    value = data.draw(fields | st.lists(fields, max_size=2) | values)
    try:
        body = bodies.decode_body(dumps(value, unquoted_int_keys=data.draw(st.booleans())), kind)
    except ProtocolError:
        return
    for unquoted in (False, True):
        encoded = bodies.encode_body(body, unquoted_int_keys=unquoted)
        assert bodies.decode_body(encoded, kind) == body


@given(st.binary(max_size=300), st.booleans(), st.sampled_from([401, 413, 493]))
def test_a_garbage_registration_raises_only_protocol_error(
    data: bytes, compressed: bool, version: int
) -> None:
    try:
        bodies.decode_register_body(data, compressed, version, 1000)
    except ProtocolError:
        return


int32 = st.integers(-(2**31), 2**31 - 1)
topic_names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=10)
topics = st.builds(
    bodies.TopicConfig,
    attributes=st.dictionaries(text, text, max_size=2),
    perm=int32,
    read_queue_nums=int32,
    write_queue_nums=int32,
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    topic_name=topic_names,
)
mappings = st.builds(
    bodies.TopicQueueMapping,
    bname=text,
    topic=topic_names,
    curr_id_map=st.dictionaries(int32, int32, max_size=3),
)


@given(
    st.lists(topics, max_size=4, unique_by=lambda topic: topic.topic_name),
    st.lists(mappings, max_size=2, unique_by=lambda mapping: mapping.topic),
    st.lists(text, max_size=2),
    st.integers(0, 2**63 - 1),
)
def test_compressed_registrations_round_trip(
    topic_list: list[bodies.TopicConfig],
    mapping_list: list[bodies.TopicQueueMapping],
    servers: list[str],
    counter: int,
) -> None:
    table = bodies.TopicConfigTable(
        data_version=bodies.DataVersion(counter=counter),
        topic_config_table={topic.topic_name: topic for topic in topic_list},
        topic_queue_mapping_info_map={m.topic: m for m in mapping_list if m.topic is not None},
    )
    body = bodies.RegisterBrokerBody(
        filter_server_list=servers, topic_config_serialize_wrapper=table
    )
    for compressed in (False, True):
        encoded = bodies.encode_register_body(body, compressed=compressed)
        assert bodies.decode_register_body(encoded, compressed, 493) == body
    # 4.9 has neither attributes nor mappings.
    old = bodies.decode_register_body(
        bodies.encode_register_body(body, compressed=True, version=401), True, 401
    )
    assert list(old.topic_config_serialize_wrapper.topic_config_table) == list(
        table.topic_config_table
    )
