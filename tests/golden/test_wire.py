"""Every recorded frame of RocketMQ 4.9.4 and 5.4.0 against our codecs.

Decoding and encoding must give the same bytes, and no header may have an unknown field. Every JSON
body must have a type here and be encoded as RocketMQ 5.4.0 does, byte for byte; 4.9.4 lacks some
fields, so for its bodies only the values are compared.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from goddard.protocol import bodies, bodies_admin, bodies_client, fastjson
from goddard.protocol.codes import VERSION_5_4_0, RequestCode, ResponseCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.headers.message import SendRequest, SendRequestV2, decode_send
from tests.support.headers import REQUEST_HEADERS, RESPONSE_HEADERS

WIRE: Final = Path(__file__).parent / "data" / "wire"
FILES: Final = sorted(path for path in WIRE.glob("*/*") if ".jsonl" in path.name)

# Hooks of the client add signatures and the request type to any request.
HOOK_FIELDS: Final = {"AccessKey", "Signature", "ReqT"}

# Answers that have the header of a success.
ANSWERED: Final = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.POLLING_TIMEOUT,
}

REQUEST_BODIES: Final[dict[RequestCode, Any]] = {
    RequestCode.REGISTER_BROKER: bodies.RegisterBrokerBody,
    RequestCode.QUERY_DATA_VERSION: bodies.DataVersion,
    RequestCode.HEART_BEAT: bodies_client.HeartbeatData,
    RequestCode.CHECK_CLIENT_CONFIG: bodies_client.CheckClientBody,
    RequestCode.LOCK_BATCH_MQ: bodies_client.LockQueuesBody,
    RequestCode.UNLOCK_BATCH_MQ: bodies_client.LockQueuesBody,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: bodies_client.ResetOffsetBody,
    RequestCode.QUERY_ASSIGNMENT: bodies_client.QueryAssignmentBody,
    RequestCode.SET_MESSAGE_REQUEST_MODE: bodies_client.SetRequestModeBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: bodies_admin.SubscriptionGroupConfig,
    RequestCode.AUTH_CREATE_USER: bodies_admin.UserInfo,
    RequestCode.AUTH_UPDATE_USER: bodies_admin.UserInfo,
    RequestCode.AUTH_CREATE_ACL: bodies_admin.AclInfo,
    RequestCode.AUTH_UPDATE_ACL: bodies_admin.AclInfo,
}
RESPONSE_BODIES: Final[dict[RequestCode, Any]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: bodies.TopicRoute,
    RequestCode.GET_BROKER_CLUSTER_INFO: bodies.ClusterInfo,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: bodies.TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: bodies.TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: bodies.TopicList,
    RequestCode.GET_BROKER_MEMBER_GROUP: bodies.BrokerMemberGroupAnswer,
    RequestCode.QUERY_DATA_VERSION: bodies.DataVersion,
    RequestCode.REGISTER_BROKER: bodies.KvTable,
    RequestCode.GET_BROKER_RUNTIME_INFO: bodies.KvTable,
    RequestCode.GET_ALL_TOPIC_CONFIG: bodies.TopicConfigTable,
    RequestCode.GET_TOPIC_CONFIG: bodies_admin.TopicConfigAndMapping,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: bodies_client.ConsumerList,
    RequestCode.LOCK_BATCH_MQ: bodies_client.LockQueuesAnswer,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: bodies_client.ResetOffsetBody,
    RequestCode.GET_CONSUMER_RUNNING_INFO: bodies_client.ConsumerRunningInfo,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: bodies_client.ConsumeDirectlyResult,
    RequestCode.QUERY_ASSIGNMENT: bodies_client.QueryAssignmentAnswer,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: bodies_admin.SubscriptionGroupTable,
    RequestCode.GET_TOPIC_STATS_INFO: bodies_admin.TopicStatsTable,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: bodies_admin.ConsumerConnections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: bodies_admin.ProducerConnections,
    RequestCode.GET_ALL_PRODUCER_INFO: bodies_admin.ProducerTable,
    RequestCode.GET_CONSUME_STATS: bodies_admin.ConsumeStats,
    RequestCode.GET_BROKER_CONSUME_STATS: bodies_admin.BrokerConsumeStats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: bodies_admin.GroupList,
    RequestCode.QUERY_CONSUME_TIME_SPAN: bodies_admin.ConsumeTimeSpans,
    RequestCode.VIEW_BROKER_STATS_DATA: bodies_admin.BrokerStats,
    RequestCode.QUERY_CONSUME_QUEUE: bodies_admin.ConsumeQueueAnswer,
    RequestCode.GET_ALL_CONSUMER_OFFSET: bodies_admin.ConsumerOffsetTable,
    RequestCode.GET_ALL_DELAY_OFFSET: bodies_admin.DelayOffsetTable,
    RequestCode.AUTH_GET_USER: bodies_admin.UserInfo,
    RequestCode.AUTH_LIST_USER: list[bodies_admin.UserInfo],
    RequestCode.AUTH_GET_ACL: bodies_admin.AclInfo,
    RequestCode.AUTH_LIST_ACL: list[bodies_admin.AclInfo],
    RequestCode.GET_BROKER_HA_STATUS: bodies_admin.HaStatus,
}
# RocketMQ writes broker ids, queue ids and delay levels without quotes, except in routes.
QUOTED: Final = {RequestCode.GET_ROUTEINFO_BY_TOPIC}
# Steps of the recording that sent a body written by hand, not by RocketMQ.
BY_HAND: Final = "| raw "


@dataclass(frozen=True, slots=True)
class Recorded:
    frame: bytes
    command: RemotingCommand
    # The code of the request itself, or of the one answered; None if it has no name.
    code: RequestCode | None
    note: str


def recorded(path: Path) -> Iterator[Recorded]:
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    requested: dict[tuple[int, str, int], int] = {}
    for line in lines:
        entry = json.loads(line)
        frame = bytes.fromhex(entry["hex"])
        command = decode_frame(memoryview(frame)[4:])
        number = command.code
        if command.is_response:
            side = "s2c" if entry["dir"] == "c2s" else "c2s"
            number = requested[entry["conn"], side, command.opaque]
        else:
            requested[entry["conn"], entry["dir"], command.opaque] = number
        code = RequestCode(number) if number in set(RequestCode) else None
        yield Recorded(frame, command, code, entry["note"])


@pytest.fixture(params=FILES, ids=[f"{path.parent.name}/{path.name}" for path in FILES])
def recording(request: pytest.FixtureRequest) -> list[Recorded]:
    path: Path = request.param
    return list(recorded(path))


def test_the_recording_is_complete() -> None:
    assert len(FILES) == 108
    assert sum(1 for path in FILES for _ in recorded(path)) == 11_651


def test_frames_round_trip(recording: list[Recorded]) -> None:
    stream = b"".join(entry.frame for entry in recording)
    decoder = FrameDecoder()
    frames = decoder.feed(stream)
    assert decoder.failure is None
    assert decoder.buffered_bytes == 0
    assert len(frames) == len(recording)
    for entry, frame in zip(recording, frames, strict=True):
        command = decode_frame(frame)
        assert command == entry.command
        assert encode_frame(command) == entry.frame, entry.note


def test_headers_are_known_and_round_trip(recording: list[Recorded]) -> None:
    for entry in recording:
        fields = {k: v for k, v in entry.command.fields.items() if k not in HOOK_FIELDS}
        if entry.code is None:
            assert not fields, entry.note
            continue
        table = RESPONSE_HEADERS if entry.command.is_response else REQUEST_HEADERS
        kind = table.get(entry.code)
        if kind is None:
            assert not fields, f"{entry.note}: no header, but {fields}"
        elif entry.command.is_response and entry.command.code not in ANSWERED:
            # A refusal has no header fields, or only those that any answer can have.
            assert fields.keys() <= {"MSG_REGION", "TRACE_ON"}, entry.note
        elif fields:
            encoded = kind.decode(entry.command.fields).encode()
            assert fields.items() <= encoded.items(), entry.note
        elif not entry.command.is_response:
            # Answers may leave the whole header out, requests only where nothing is required.
            kind.decode({})


def test_sends_convert_between_their_two_headers(recording: list[Recorded]) -> None:
    for entry in recording:
        if entry.command.is_response or entry.code not in {
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        }:
            continue
        send = decode_send(entry.command.fields)
        assert SendRequest.decode(send.encode()) == send
        assert decode_send(SendRequestV2.from_v1(send).encode()) == send
        assert send.topic
        assert send.born_timestamp > 1_700_000_000_000


def includes(whole: Any, part: Any) -> bool:
    """Whether every value of the part is in the whole, in the same position."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and includes(whole[key], value) for key, value in part.items()
        )
    if isinstance(part, list):
        return (
            isinstance(whole, list)
            and len(whole) == len(part)
            and all(includes(a, b) for a, b in zip(whole, part, strict=True))
        )
    return bool(whole == part)


def test_json_bodies_round_trip(recording: list[Recorded]) -> None:
    for entry in recording:
        body = bytes(entry.command.body)
        if body[:1] not in (b"{", b"[") or entry.code is None:
            continue
        value = fastjson.loads(body)
        assert fastjson.loads(fastjson.dumps(value, unquoted_int_keys=True)) == value
        table = RESPONSE_BODIES if entry.command.is_response else REQUEST_BODIES
        assert entry.code in table, f"{entry.note}: a JSON body of no type"
        kind = table[entry.code]
        unquoted = entry.code not in QUOTED
        encoded = bodies.encode_body(bodies.decode_body(body, kind), unquoted_int_keys=unquoted)
        assert includes(fastjson.loads(encoded), value), entry.note
        by_hand = BY_HAND in entry.note and not entry.command.is_response
        if entry.command.version == VERSION_5_4_0 and not by_hand:
            assert encoded == body, entry.note


def test_registrations_round_trip(recording: list[Recorded]) -> None:
    for entry in recording:
        if entry.code != RequestCode.REGISTER_BROKER or entry.command.is_response:
            continue
        version = entry.command.version
        compressed = entry.command.body[0] != ord("{")
        body = bodies.decode_register_body(
            entry.command.body, entry.command.fields["compressed"] == "true", version
        )
        topics = body.topic_config_serialize_wrapper.topic_config_table
        assert topics
        assert all(topic.topic_name == name for name, topic in topics.items())
        encoded = bodies.encode_register_body(body, compressed=compressed, version=version)
        assert bodies.decode_register_body(encoded, compressed, version) == body
        if version == VERSION_5_4_0:
            assert encoded == entry.command.body
