"""All header classes, and those with special behaviour."""

import inspect

import pytest

from goddard.errors import HeaderError
from goddard.protocol.codes import RequestCode
from goddard.protocol.headers import admin as headers_admin
from goddard.protocol.headers import cluster as headers_cluster
from goddard.protocol.headers import message as headers_message
from goddard.protocol.headers.cluster import GetRouteRequest, RegisterBrokerRequest
from goddard.protocol.headers.header import Header
from goddard.protocol.headers.message import PullRequest, SendRequest, SendRequestV2, decode_send
from tests.support.headers import REQUEST_HEADERS, RESPONSE_HEADERS

# Base classes, which no request code has, and a variant of a request.
SHARED = {
    headers_cluster.ChangeRoleRequest,
    headers_message.RpcRequest,
    headers_message.TopicRequest,
    headers_message.QueueRequest,
}


def test_every_header_belongs_to_a_code() -> None:
    defined = {
        kind
        for module in (headers_admin, headers_cluster, headers_message)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Header) and kind is not Header
    }
    assert defined - SHARED == {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}


def test_class_names_end_with_request_or_response() -> None:
    assert all(kind.__name__.rstrip("V2").endswith("Request") for kind in REQUEST_HEADERS.values())
    assert all(kind.__name__.endswith("Response") for kind in RESPONSE_HEADERS.values())


SHORT = {
    "a": "g",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "-1",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "KEYS\x01k\x02",
    "j": "2",
    "k": "false",
    "l": "16",
    "m": "true",
    "n": "broker-a",
}


class TestSend:
    def test_short_names(self) -> None:
        send = decode_send({**SHORT, "ns": "space", "nsd": "true", "lo": "false"})
        assert send == SendRequest(
            producer_group="g",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=-1,
            sys_flag=0,
            born_timestamp=1_700_000_000_000,
            flag=0,
            properties="KEYS\x01k\x02",
            reconsume_times=2,
            unit_mode=False,
            max_reconsume_times=16,
            batch=True,
            bname="broker-a",
            ns="space",
            nsd=True,
            lo=False,
        )
        assert SendRequestV2.from_v1(send).encode() == {
            **SHORT,
            "ns": "space",
            "nsd": "true",
            "lo": "false",
        }

    def test_long_names(self) -> None:
        send = decode_send(SHORT)
        encoded = send.encode()
        assert encoded["producerGroup"] == "g"
        assert encoded["bname"] == "broker-a"
        assert "b" not in encoded
        assert decode_send(encoded) == send

    def test_missing_field_is_reported_by_its_wire_name(self) -> None:
        with pytest.raises(HeaderError, match="field g is"):
            decode_send({key: value for key, value in SHORT.items() if key != "g"})
        with pytest.raises(HeaderError, match="producerGroup"):
            decode_send({})


def test_a_route_request_of_an_old_client() -> None:
    request = GetRouteRequest.decode({"topic": "T"})
    assert request.accept_standard_json_only is None
    assert request.encode() == {"topic": "T"}


def test_a_registration_of_an_old_broker() -> None:
    fields = {
        "brokerName": "b",
        "brokerAddr": "a:1",
        "clusterName": "c",
        "haServerAddr": "a:2",
        "brokerId": "0",
    }
    request = RegisterBrokerRequest.decode(fields)
    assert request.enable_acting_master is None
    assert request.body_crc32 == 0
    assert not request.compressed
    assert RegisterBrokerRequest.decode({**fields, "__ZONE_NAME": "z"}).zone_name == "z"


def test_fields_of_parents_are_on_the_wire() -> None:
    request = PullRequest(
        topic="T",
        queue_id=1,
        consumer_group="g",
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=0,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
        bname="b",
        lo=True,
    )
    encoded = request.encode()
    assert (encoded["bname"], encoded["lo"], encoded["queueId"]) == ("b", "true", "1")
    assert PullRequest.decode(encoded) == request


def test_some_requests_have_no_header() -> None:
    assert RequestCode.GET_BROKER_CLUSTER_INFO not in REQUEST_HEADERS
    assert RequestCode.GET_NAMESRV_CONFIG not in REQUEST_HEADERS
    assert len(REQUEST_HEADERS) > 100
