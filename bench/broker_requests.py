"""The requests that the load generator repeats, and single ones to a broker."""

import socket
import time

from bench.loadgen import BenchError
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.headers.message import PullRequest, SendRequest, SendRequestV2
from goddard.protocol.message import BatchEntry, encode_batch, format_properties
from goddard.protocol.responses import check

TOPIC = "BenchTopic"
QUEUES = 4
BATCH = 32
_BODY = b"x" * 100
_FRAMES = 1024


def _properties(number: int) -> dict[str, str]:
    return {
        "KEYS": f"key{number}",
        "UNIQ_KEY": f"7F0000014E9F5FFD2B274A04{number:08X}",
        "WAIT": "true",
        "TAGS": "TagA",
    }


def send(
    number: int,
    kind: SerializeType,
    *,
    topic: str = TOPIC,
    body: bytes = _BODY,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
) -> RemotingCommand:
    is_batch = code is RequestCode.SEND_BATCH_MESSAGE
    header = SendRequest(
        producer_group="BenchProducers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=number % QUEUES if topic == TOPIC else 0,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=format_properties({"WAIT": "true"} if is_batch else _properties(number)),
        reconsume_times=0,
        unit_mode=False,
        batch=is_batch,
        bname="bench",
    )
    fields = SendRequestV2.from_v1(header).encode()
    return RemotingCommand(code, fields, body, opaque=number, serialize_type=kind)


def sends(kind: SerializeType) -> list[bytes]:
    return [encode_frame(send(number, kind)) for number in range(_FRAMES)]


def batches() -> list[bytes]:
    frames = []
    for number in range(_FRAMES // 4):
        entries = [
            BatchEntry(_BODY, format_properties(_properties(number * BATCH + at)).encode())
            for at in range(BATCH)
        ]
        command = send(
            number,
            SerializeType.ROCKETMQ,
            body=encode_batch(entries),
            code=RequestCode.SEND_BATCH_MESSAGE,
        )
        frames.append(encode_frame(command))
    return frames


def pulls(available: int, messages: int, *, groups: int = 1, count: int = _FRAMES) -> list[bytes]:
    """Pulls of so many messages each, spread over the messages of all queues and the groups."""
    frames = []
    steps = max(available // messages, 1)
    for number in range(count):
        group = number % groups
        header = PullRequest(
            consumer_group=f"BenchConsumers{group or ''}",
            topic=TOPIC,
            queue_id=number % QUEUES,
            queue_offset=number * 7919 % steps * messages,
            max_msg_nums=messages,
            sys_flag=4,  # the subscription is in this header
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        command = RemotingCommand(
            RequestCode.PULL_MESSAGE,
            header.encode(),
            opaque=number,
            serialize_type=SerializeType.ROCKETMQ,
        )
        frames.append(encode_frame(command))
    return frames


def call(port: int, command: RemotingCommand) -> RemotingCommand:
    decoder = FrameDecoder()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(encode_frame(command))
        while True:
            data = connection.recv(1 << 18)
            if not data:
                raise BenchError("the broker closed the connection")
            for frame in decoder.feed(data):
                return check(decode_frame(frame))
