"""One blocking request to a server, for tests that watch it from outside.

It shares nothing with the transport under test but the frame codec, and keeps no connection.
"""

import socket
from typing import Any

from goddard.errors import ConnectionLostError
from goddard.protocol import fastjson
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame

_READ_BYTES = 65_536


def ask(address: str, command: RemotingCommand, timeout: float = 5) -> RemotingCommand:
    """Connect, send, return the answer, disconnect; OSError when nobody serves."""
    host, _, port = address.rpartition(":")
    decoder = FrameDecoder()
    with socket.create_connection((host, int(port)), timeout) as connection:
        connection.sendall(encode_frame(command))
        while True:
            data = connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionLostError(f"{address} closed instead of answering", address)
            for frame in decoder.feed(data):
                answer = decode_frame(frame)
                if answer.is_response and answer.opaque == command.opaque:
                    return answer


def query_route(name_server: str, topic: str) -> dict[str, Any] | None:
    """A topic's route as the name server tells it, in wire names; None when it has none."""
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    answer = ask(name_server, RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields))
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise AssertionError(f"route of {topic} from {name_server}: {answer.code} {answer.remark}")
    return _object(answer)


def query_brokers(name_server: str) -> dict[str, dict[int, str]]:
    """What a name server says is alive: broker name -> broker id -> address."""
    answer = ask(name_server, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    if answer.code != ResponseCode.SUCCESS:
        raise AssertionError(f"brokers of {name_server}: {answer.code} {answer.remark}")
    table = _object(answer).get("brokerAddrTable") or {}
    return {
        name: {int(number): address for number, address in data["brokerAddrs"].items()}
        for name, data in table.items()
    }


def _object(answer: RemotingCommand) -> dict[str, Any]:
    value = fastjson.loads(bytes(answer.body))
    assert isinstance(value, dict)
    return value
