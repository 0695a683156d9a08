"""One blocking request to a server, on a new connection.

It uses the frame codec only, not the transport that tests may examine.
"""

import socket
from typing import Any

from goddard.errors import ConnectionLostError
from goddard.protocol import fastjson
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame

_READ_BYTES = 65_536


def ask(address: str, command: RemotingCommand, timeout: float = 5) -> RemotingCommand:
    """Connect, send, return the response, and disconnect; OSError if the server is unreachable."""
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
    """The route of a topic from a name server, with the names of the wire; None without a route."""
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    answer = ask(name_server, RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields))
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise AssertionError(f"route of {topic} from {name_server}: {answer.code} {answer.remark}")
    return _object(answer)


def query_brokers(name_server: str) -> dict[str, dict[int, str]]:
    """The registered brokers of a name server: broker name -> broker id -> address."""
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
