"""Bodies: lenient decoding, the exact encoding, and the compressed registration."""

import struct
import zlib
from typing import Any

import msgspec
import pytest

from goddard.errors import ProtocolError
from goddard.protocol import bodies, bodies_admin, bodies_client
from goddard.protocol.bodies import (
    MAX_SLOW_BYTES,
    BrokerData,
    ClusterInfo,
    ConsumeFromWhere,
    ConsumeResult,
    ConsumeType,
    DataVersion,
    KvTable,
    MessageModel,
    MessageQueue,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicQueueMapping,
    TopicRoute,
    decode_body,
    decode_register_body,
    encode_body,
    encode_register_body,
    encode_route,
)
from goddard.protocol.bodies_admin import ConsumerOffsetTable, TopicOffset, TopicStatsTable
from goddard.protocol.bodies_client import (
    ConsumeDirectlyResult,
    HeartbeatData,
    LockQueuesBody,
    ResetOffsetBody,
)

ALL_BODIES = sorted(
    {
        kind
        for module in (bodies, bodies_client, bodies_admin)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, bodies.Body | bodies.FrozenBody)
        and kind not in (bodies.Body, bodies.FrozenBody)
    },
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", ALL_BODIES, ids=lambda kind: kind.__name__)
class TestEveryBody:
    def test_has_a_default_for_every_field(self, kind: type[msgspec.Struct]) -> None:
        body = decode_body(b"{}", kind)
        assert body == kind()
        assert decode_body(encode_body(body), kind) == body

    def test_writes_its_fields_in_java_order(self, kind: type[msgspec.Struct]) -> None:
        names = kind.__struct_encode_fields__
        assert list(names) == sorted(names)

    def test_writes_all_fields_except_none(self, kind: type[msgspec.Struct]) -> None:
        body = kind()
        written = msgspec.json.decode(encode_body(body))
        expected = {
            wire_name
            for name, wire_name in zip(
                kind.__struct_fields__, kind.__struct_encode_fields__, strict=True
            )
            if getattr(body, name) is not None
        }
        assert written.keys() == expected

    def test_null_field_gets_its_default(self, kind: type[msgspec.Struct]) -> None:
        nulls = msgspec.json.encode(dict.fromkeys(kind.__struct_encode_fields__))
        assert decode_body(nulls, kind) == kind()

    def test_defaults_are_not_shared(self, kind: type[msgspec.Struct]) -> None:
        first, second = kind(), kind()
        for name in kind.__struct_fields__:
            value = getattr(first, name)
            if isinstance(value, list | dict):
                assert value is not getattr(second, name)


class TestLenientDecoding:
    def test_a_heartbeat_as_the_cpp_client_sends_it(self) -> None:
        heartbeat = decode_body(
            b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,'
            b'"groupName":"g","messageModel":1,"subscriptionDataSet":[{"subString":"*",'
            b'"subVersion":"1700000000000","topic":"t"}]}],"producerDataSet":null}',
            HeartbeatData,
        )
        (consumer,) = heartbeat.consumer_data_set
        assert consumer.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
        assert consumer.consume_type is ConsumeType.PASSIVELY
        assert consumer.message_model is MessageModel.CLUSTERING
        (subscription,) = consumer.subscription_data_set
        assert subscription.sub_version == 1_700_000_000_000
        assert subscription.expression_type == "TAG"
        assert subscription.tags_set == []
        assert heartbeat.producer_data_set == []

    def test_an_ordinal_from_the_go_client(self) -> None:
        result = decode_body(b'{"consumeResult":1}', ConsumeDirectlyResult)
        assert result.consume_result is ConsumeResult.LATER

    @pytest.mark.parametrize("ordinal", [b"-1", b"9", b'"NO_SUCH"'])
    def test_enums_out_of_range(self, ordinal: bytes) -> None:
        with pytest.raises(ProtocolError, match="ConsumeDirectlyResult"):
            decode_body(b'{"consumeResult":%s}' % ordinal, ConsumeDirectlyResult)

    def test_unknown_fields(self) -> None:
        assert decode_body(b'{"table":{"a":"b"},"new":{"x":[1]}}', KvTable).table == {"a": "b"}
        assert decode_body(b'{"new":{0:1},"table":{"a":"b"}}', KvTable).table == {"a": "b"}

    @pytest.mark.parametrize("key", [b"0", b'"0"'])
    def test_broker_ids_quoted_or_not(self, key: bytes) -> None:
        broker = decode_body(b'{"brokerAddrs":{%s:"a:1"}}' % key, BrokerData)
        assert broker.broker_addrs == {0: "a:1"}

    def test_queues_as_keys(self) -> None:
        text = (
            b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:'
            b'{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1}},"topicPutTps":0.5}'
        )
        stats = decode_body(text, TopicStatsTable)
        queue = MessageQueue(broker_name="b", queue_id=1, topic="t")
        assert stats.offset_table == {
            queue: TopicOffset(last_update_timestamp=3, max_offset=2, min_offset=1)
        }
        assert encode_body(stats) == text

    def test_references(self) -> None:
        body = decode_body(
            b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":1,'
            b'"topic":"t"},{"$ref":"$.mqSet[0]"}]}',
            LockQueuesBody,
        )
        assert body.mq_set == [MessageQueue(broker_name="b", queue_id=1, topic="t")] * 2

    def test_dialect_size_can_be_limited(self) -> None:
        body = b'{"brokerAddrs":{0:"a:1"}}'
        assert decode_body(body, BrokerData, max_dialect_bytes=len(body)).broker_addrs == {0: "a:1"}
        with pytest.raises(ProtocolError, match="limit"):
            decode_body(body, BrokerData, max_dialect_bytes=len(body) - 1)
        standard = b'{"brokerAddrs":{"0":"a:1"}}'
        assert decode_body(standard, BrokerData, max_dialect_bytes=0).broker_addrs == {0: "a:1"}

    def test_slow_decoding_is_limited_by_default(self) -> None:
        padding = b'"x":[' + b"[]," * MAX_SLOW_BYTES + b"1]"
        mistyped = b'{"counter":null,' + padding + b"}"
        with pytest.raises(ProtocolError, match="limit"):
            decode_body(mistyped, DataVersion)
        assert decode_body(mistyped, DataVersion, max_dialect_bytes=len(mistyped)) == DataVersion()
        plain = b'{"counter":7,' + padding + b"}"
        assert decode_body(plain, DataVersion).counter == 7

    def test_text_that_looks_like_a_reference(self) -> None:
        assert decode_body(b'{"table":{"a":"\\"$ref\\""}}', KvTable).table == {"a": '"$ref"'}

    @pytest.mark.parametrize(
        ("data", "kind"),
        [
            (b"", TopicRoute),
            (b"null", TopicRoute),
            (b"[]", TopicRoute),
            (b'"x"', TopicRoute),
            (b'{"queueDatas":{}}', TopicRoute),
            (b'{"queueDatas":[1]}', TopicRoute),
            (b'{"queueDatas":[{"perm":2147483648}]}', TopicRoute),
            (b'{"queueDatas":[{"perm":"9999999999999999999999"}]}', TopicRoute),
            (b'{"queueDatas":[{"perm":%s}]}' % (b"9" * 5000), TopicRoute),
            (b'{"queueDatas":[{"perm":1.5}]}', TopicRoute),
            (b'{"brokerDatas":[{"brokerAddrs":{"x":"a"}}]}', TopicRoute),
            (b'{"brokerDatas":[{"brokerAddrs":{9223372036854775808:"a"}}]}', TopicRoute),
            (b'{"counter":9223372036854775808}', DataVersion),
            (b'{"offsetTable":{"t":1}}', ResetOffsetBody),
            (b'{"offsetTable":{{"queueId":"x"}:1}}', ResetOffsetBody),
            (b'{"table":{"a":1}}', KvTable),
            (b'{"table":' + b"[" * 100_000, KvTable),
            (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", KvTable),
            (b'{"table":{"a":"\xff"}}', KvTable),
            (b'{"table":{"a":"\\ud800"}}', KvTable),
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_malformed_data_is_rejected(self, data: bytes, kind: Any) -> None:
        with pytest.raises(ProtocolError):
            decode_body(data, kind)


class TestRoutes:
    ROUTE = TopicRoute(
        broker_datas=[
            BrokerData(broker_addrs={0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}, broker_name="b")
        ],
        queue_datas=[
            QueueData(
                broker_name="b", perm=6, read_queue_nums=4, topic_sys_flag=3, write_queue_nums=4
            )
        ],
    )

    def test_standard(self) -> None:
        assert encode_route(self.ROUTE, standard=True) == (
            b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
            b'"brokerName":"b","cluster":"","enableActingMaster":false}],"filterServerTable":{},'
            b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":3,'
            b'"writeQueueNums":4}]}'
        )

    def test_for_older_clients(self) -> None:
        text = encode_route(self.ROUTE, standard=False)
        assert b'{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}' in text
        assert b'"topicSynFlag":3,"topicSysFlag":3' in text
        assert self.ROUTE.queue_datas[0].topic_syn_flag is None
        assert decode_body(text, TopicRoute).broker_datas == self.ROUTE.broker_datas

    def test_cluster(self) -> None:
        cluster = ClusterInfo(
            broker_addr_table={"b": BrokerData(broker_addrs={0: "a:1"}, broker_name="b")},
            cluster_addr_table={"c": ["b"]},
        )
        text = encode_body(cluster, unquoted_int_keys=True)
        assert text == (
            b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"",'
            b'"enableActingMaster":false}},"clusterAddrTable":{"c":["b"]}}'
        )
        assert decode_body(text, ClusterInfo) == cluster

    def test_lists_of_topics(self) -> None:
        assert encode_body(TopicList(topic_list=["T"])) == b'{"topicList":["T"]}'
        assert encode_body(TopicList(broker_addr="a:1")) == b'{"brokerAddr":"a:1","topicList":[]}'

    def test_offsets_are_written_without_quotes_as_java_does(self) -> None:
        table = ConsumerOffsetTable(offset_table={"t@g": {0: 5, 1: 7}})
        assert encode_body(table, unquoted_int_keys=True) == b'{"offsetTable":{"t@g":{0:5,1:7}}}'


def section(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def count(number: int) -> bytes:
    return struct.pack(">i", number)


VERSION = section(b'{"counter":1}')
TOPIC = section(b"T 4 8 6 SINGLE_TAG")
SERVERS = section(b"[]")


class TestRegistration:
    def topics(self, body: RegisterBrokerBody) -> dict[str, TopicConfig]:
        return body.topic_config_serialize_wrapper.topic_config_table

    def test_of_4_9(self) -> None:
        data = zlib.compress(VERSION + count(1) + TOPIC + SERVERS)
        body = decode_register_body(data, True, 401)
        topic = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=8, perm=6)
        assert self.topics(body) == {"T": topic}
        assert body.topic_config_serialize_wrapper.data_version == DataVersion(counter=1)

    def test_of_5(self) -> None:
        topic = section(b'T 4 8 6 MULTI_TAG {"+a b":"c d"}')
        mapping = section(b'{"bname":"b","currIdMap":{0:3},"topic":"S","totalQueues":1}')
        data = zlib.compress(VERSION + count(1) + topic + SERVERS + count(1) + mapping)
        body = decode_register_body(data, True, 493)
        assert self.topics(body)["T"].attributes == {"+a b": "c d"}
        assert self.topics(body)["T"].topic_filter_type == "MULTI_TAG"
        wrapper = body.topic_config_serialize_wrapper
        assert wrapper.topic_queue_mapping_info_map == {
            "S": TopicQueueMapping(bname="b", curr_id_map={0: 3}, topic="S", total_queues=1)
        }

    def test_without_a_body_is_empty(self) -> None:
        assert decode_register_body(b"", False, 493) == RegisterBrokerBody()
        assert decode_register_body(b"", True, 401) == RegisterBrokerBody()

    def test_zlib_stream_without_compressed_flag(self) -> None:
        data = zlib.compress(VERSION + count(1) + TOPIC + SERVERS + count(0))
        assert "T" in self.topics(decode_register_body(data, False, 493))

    def test_inflation_is_bounded(self) -> None:
        bomb = zlib.compress(bytes(50_000_000))
        with pytest.raises(ProtocolError, match="more than 1000000 bytes"):
            decode_register_body(bomb, True, 493, 1_000_000)
        body = RegisterBrokerBody(filter_server_list=["x" * 1000])
        data = encode_register_body(body, compressed=True)
        size = len(zlib.decompress(data))
        assert decode_register_body(data, True, 493, size) == body
        with pytest.raises(ProtocolError, match="more than"):
            decode_register_body(data, True, 493, size - 1)

    def test_every_truncation_is_rejected(self) -> None:
        inflated = VERSION + count(1) + TOPIC + SERVERS + count(0)
        decode_register_body(zlib.compress(inflated), True, 493)
        for size in range(len(inflated)):
            with pytest.raises(ProtocolError):
                decode_register_body(zlib.compress(inflated[:size]), True, 493)
        data = zlib.compress(inflated)
        for size in range(1, len(data)):
            with pytest.raises(ProtocolError):
                decode_register_body(data[:size], True, 493)

    @pytest.mark.parametrize(
        "inflated",
        [
            count(-1),
            count(2**31 - 1),
            VERSION + count(-1),
            VERSION + count(2**31 - 1),
            VERSION + count(2) + TOPIC,
            VERSION + count(1) + section(b"T 4 8 6") + SERVERS + count(0),
            VERSION + count(1) + section(b"T x 8 6 SINGLE_TAG") + SERVERS + count(0),
            VERSION + count(1) + section(b"T 4 2147483648 6 SINGLE_TAG") + SERVERS + count(0),
            VERSION + count(1) + section(b"\xff 4 8 6 SINGLE_TAG") + SERVERS + count(0),
            VERSION + count(1) + section(b"T 4 8 6 SINGLE_TAG {") + SERVERS + count(0),
            VERSION + count(0) + section(b"{}") + count(0),
            VERSION + count(0) + SERVERS + count(1) + section(b'{"bname":"b"}'),
        ],
    )
    def test_malformed_data_is_rejected(self, inflated: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode_register_body(zlib.compress(inflated), True, 493)

    def test_data_that_is_not_a_zlib_stream(self) -> None:
        with pytest.raises(ProtocolError, match="zlib"):
            decode_register_body(b'{"filterServerList":[]}', True, 493)

    def test_as_json(self) -> None:
        table = TopicConfigTable(topic_config_table={"T": TopicConfig(topic_name="T")})
        body = RegisterBrokerBody(topic_config_serialize_wrapper=table)
        assert decode_register_body(encode_register_body(body), False, 493) == body
