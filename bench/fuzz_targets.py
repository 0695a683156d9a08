"""The targets of fuzzing: every decoder of the protocol, with well-formed sample inputs.

The input of a target is bytes alone, so that it reproduces a failure. If a decoder has parameters
(a header class, a chunking), the first two bytes select them. A target accepts an input by
returning, rejects it by raising ProtocolError, and fails with any other exception. Accepted values
are also encoded and decoded again.
"""

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Final, NamedTuple, TypeVar

import msgspec

from goddard.client.consume.pull import decode_messages
from goddard.client.values import MessageQueue
from goddard.core import IS_COMPILED
from goddard.errors import ProtocolError
from goddard.protocol import (
    acl,
    bodies,
    bodies_admin,
    bodies_client,
    fastjson,
    ids,
    message,
    record,
)
from goddard.protocol.codes import RequestCode
from goddard.protocol.compression import CompressionKind, compress, decompress, with_compression
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.headers import admin as headers_admin
from goddard.protocol.headers import cluster as headers_cluster
from goddard.protocol.headers import message as headers_message
from goddard.protocol.headers.header import Header

if IS_COMPILED:
    from goddard.core.pulls import read_pull
    from goddard.core.staged_sends import OpenTopic, Peer, StagedSends
    from tests.support.send_harness import ADDED_PROPERTIES, plain_sends

WIRE: Final = Path(__file__).parents[1] / "tests" / "golden" / "data" / "wire"
MAX_INPUT_BYTES: Final = 4096
MAX_FRAME_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 64 * 1024
MAX_TOPIC_BYTES: Final = 127
INNER_BATCH_FLAGS: Final = int(message.SysFlag.INNER_BATCH | message.SysFlag.NEED_UNWRAP)

T = TypeVar("T")

PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
SENDS: Final = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
}
RECORD_RESPONSES: Final = {
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
}


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    run: Callable[[bytes], None]
    samples: list[bytes] = field(default_factory=list)


class Exchange(NamedTuple):
    """A recorded frame, and the code of its request."""

    frame: bytes
    command: RemotingCommand
    code: int


def recorded(directory: Path = WIRE) -> Iterator[Exchange]:
    """Every recorded frame up to MAX_INPUT_BYTES."""
    for path in sorted(directory.glob("*/*.jsonl*")):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        request_codes: dict[tuple[int, int], int] = {}
        for line in content.splitlines():
            seen = json.loads(line)
            key = (seen["conn"], seen["opaque"])
            frame = bytes.fromhex(seen["hex"])
            command = decode_frame(memoryview(frame)[4:])
            if not command.is_response:
                request_codes[key] = command.code
            if len(frame) <= MAX_INPUT_BYTES:
                yield Exchange(frame, command, request_codes.get(key, -1))


def _classes(modules: list[ModuleType], base: type[T]) -> list[type[T]]:
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }
    return sorted(found, key=lambda kind: kind.__name__)


HEADERS: Final = _classes([headers_message, headers_admin, headers_cluster], Header)
BODIES: Final = _classes([bodies, bodies_client, bodies_admin], msgspec.Struct)


def _chosen(data: bytes, choices: list[T]) -> tuple[T, bytes]:
    """The choice selected by the first two bytes, and the rest."""
    return choices[int.from_bytes(data[:2], "big") % len(choices)], data[2:]


def _with_choice(index: int, data: bytes) -> bytes:
    return index.to_bytes(2, "big") + data


def _expect(condition: bool, failure: str) -> None:
    if not condition:
        raise AssertionError(failure)


def run_frame(data: bytes) -> None:
    command = decode_frame(memoryview(data))
    acl.verify(command, "secret")
    again = decode_frame(memoryview(encode_frame(command))[4:])
    _expect(again.code == command.code, "the code changed")
    _expect(again.opaque == command.opaque, "the opaque changed")
    _expect(again.fields == command.fields, "the fields changed")
    _expect(again.body == command.body, "the body changed")


def run_stream(data: bytes) -> None:
    """The bytes at once and in chunks must give the same frames and the same failure."""
    whole = FrameDecoder(MAX_FRAME_BYTES)
    expected = [bytes(frame) for frame in whole.feed(data)]
    chunked = FrameDecoder(MAX_FRAME_BYTES)
    random = Random(zlib.crc32(data))
    longest = random.choice((1, 3, 7, 64, 1024))
    frames: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + random.randint(1, longest)
        frames += map(bytes, chunked.feed(data[position:end]))
        position = end
    _expect(frames == expected, "different frames when fed in chunks")
    _expect((whole.failure is None) == (chunked.failure is None), "different failure in chunks")
    _expect(chunked.buffered_bytes <= MAX_FRAME_BYTES + 4, "more than one frame is buffered")
    for frame in expected:
        decode_frame(memoryview(frame))
    if whole.failure is not None:
        raise whole.failure


def run_header(data: bytes) -> None:
    kind, rest = _chosen(data, HEADERS)
    header = kind.decode(message.decode_properties(rest))
    _expect(kind.decode(header.encode()) == header, "the header changed")


def run_json(data: bytes) -> None:
    fastjson.loads(data)


def run_body(data: bytes) -> None:
    kind, rest = _chosen(data, BODIES)
    bodies.decode_body(bodies.encode_body(bodies.decode_body(rest, kind)), kind)


def run_register(data: bytes) -> None:
    """The lowest bit of the first two bytes means compressed; the other bits are the version."""
    word = int.from_bytes(data[:2], "big")
    body = data[2:]
    if word & 1:
        # The mutation applies to the content of the zlib stream.
        body = zlib.compress(body, 1)
    bodies.decode_register_body(body, bool(word & 1), word >> 1, MAX_BODY_BYTES)


def run_record(data: bytes) -> None:
    summary = record.read_summary(data)
    decoded, end = record.decode_record(data, check_crc=False)
    _expect(end == summary.size, "the summary has a different size")
    written = record.encode_record(decoded)
    # A V2 record with a topic that fits into V1 is written as V1.
    is_kept = data[7] == 0xA7 or len(decoded.topic.encode()) > record.MAX_TOPIC_BYTES_V1
    _expect(written == data[:end] or not is_kept, "the record changed")
    for _ in record.iter_records(data):
        pass


def run_pulled(data: bytes) -> None:
    """The client's record decoder rejects and reads the same as the protocol's decoder."""
    number = int.from_bytes(data[12:16], "big", signed=True)
    queue = MessageQueue("TopicTest", "broker-a", number)
    messages = decode_messages(data, queue)
    records = [
        each
        for each in record.iter_records(data, check_crc=False)
        # Inner batches are expanded into their messages.
        if each.sys_flag & INNER_BATCH_FLAGS != INNER_BATCH_FLAGS
    ]
    if len(records) != len(messages):
        return
    for each, pulled in zip(records, messages, strict=True):
        _expect(
            (pulled.topic, pulled.queue_offset, pulled.physical_offset, pulled.raw_properties())
            == (each.topic, each.queue_offset, each.physical_offset, each.properties),
            "the message differs from the record",
        )
        _expect(pulled.stored_body_bytes == len(each.body), "the body differs from the record's")
        for read in (str, lambda m: m.body, lambda m: m.keys, lambda m: m.born_host):
            with contextlib.suppress(ProtocolError):
                read(pulled)


def run_pull(data: bytes) -> None:
    """The compiled reader of pull requests gives what the general decoder gives, or nothing."""
    pull = read_pull(data) if IS_COMPILED else None
    if pull is None:
        return
    command = decode_frame(memoryview(data))
    header = headers_message.PullRequest.decode(command.fields)
    _expect((pull.code, pull.opaque) == (command.code, command.opaque), "the command differs")
    for name in headers_message.PullRequest.wire_names():
        if hasattr(pull, name):
            _expect(getattr(pull, name) == getattr(header, name), f"{name} differs")


def run_send(data: bytes) -> None:
    """The compiled lane of sends stores and answers what the general route would.

    The input is a frame, and whatever follows it.
    """
    lane, staged = plain_sends(), StagedSends()
    name = lane.missing_topic(data, 0)
    if name is None or not 0 < len(name) <= MAX_TOPIC_BYTES:
        raise ProtocolError("left to the general route")
    lane.add_topic(OpenTopic(name, 16))
    taken = lane.take(staged, data, Peer(bytes(8), None), 100)
    if not taken:
        raise ProtocolError("left to the general route")
    staged.set_queue_offsets([7] * len(staged.queue_keys))
    stored = staged.place(0, 1 << 40, 1_700_000_000_000)
    records = list(record.iter_records(stored))
    answers = b"".join(frames for _, frames in lane.answers(staged))
    for frame in FrameDecoder().feed(answers):
        _expect(decode_frame(frame).code == 0, "an answer is no success")
    command = decode_frame(FrameDecoder().feed(data[:taken])[0])
    request = headers_message.decode_send(command.fields)
    first = staged.requests()[0]
    _expect(first[1] == command.opaque, "the opaque differs")
    is_batch = bool(request.batch)
    messages = message.decode_batch(bytes(command.body)) if is_batch else [None]
    _expect(first[7] == len(messages), "the number of messages differs")
    properties = message.decode_properties(request.properties or "")
    for entry, found in zip(messages, records, strict=False):
        expected = (
            (entry.body, entry.properties, entry.flag)
            if entry is not None
            else (
                bytes(command.body),
                message.encode_properties(properties) + ADDED_PROPERTIES,
                request.flag,
            )
        )
        _expect((found.body, found.properties, found.flag) == expected, "the message differs")
        _expect(
            (found.topic, found.queue_id, found.sys_flag, found.born_timestamp_ms)
            == (request.topic, request.queue_id, request.sys_flag, request.born_timestamp),
            "the header differs",
        )


def run_batch(data: bytes) -> None:
    entries = message.decode_batch(data)
    _expect(message.decode_batch(message.encode_batch(entries)) == entries, "the batch changed")


def run_properties(data: bytes) -> None:
    decoded = message.decode_properties(data)
    for name in ("TAGS", "KEYS", "UNIQ_KEY", "DELAY"):
        found = message.find_property(data, name.encode())
        text = None if found is None else found.decode("utf-8", "replace")
        _expect(text == decoded.get(name), f"find_property and decode_properties differ: {name}")
    _expect(
        message.decode_properties(message.encode_properties(decoded)) == decoded,
        "the properties changed",
    )


def run_ids(data: bytes) -> None:
    """Rejected if it is neither a message id of either kind nor an address."""
    text = data.decode("utf-8", "replace")
    accepted = 0
    for parse in (ids.parse_offset_message_id, ids.parse_unique_id, record.Host.parse):
        try:
            parse(text)
        except ProtocolError:
            continue
        accepted += 1
    if not accepted:
        raise ProtocolError("neither a message id nor an address")


def run_decompress(data: bytes) -> None:
    kind, rest = _chosen(data, list(CompressionKind))
    whole = decompress(rest, with_compression(0, kind), MAX_BODY_BYTES)
    _expect(len(whole) <= MAX_BODY_BYTES, "decompressed more than the limit")


def _fields_bytes(fields: dict[str, str]) -> bytes:
    return message.encode_properties({k: v for k, v in fields.items() if "\x02" not in v})


def _header_samples(seen: list[Exchange]) -> Iterator[bytes]:
    """Recorded fields, each with the header classes that use at least half of them."""
    by_names = {frozenset(e.command.fields): e.command.fields for e in seen if e.command.fields}
    for fields in by_names.values():
        for index, kind in enumerate(HEADERS):
            try:
                used_size = len(kind.decode(fields).encode())
            except ProtocolError:
                continue
            if 2 * used_size >= len(fields):
                yield _with_choice(index, _fields_bytes(fields))


def _body_samples(texts: list[bytes]) -> Iterator[bytes]:
    for text in texts:
        for index, kind in enumerate(BODIES):
            try:
                used_size = len(bodies.encode_body(bodies.decode_body(text, kind)))
            except ProtocolError:
                continue
            if 2 * used_size >= len(text):
                yield _with_choice(index, text)


def _register_samples(seen: list[Exchange]) -> Iterator[bytes]:
    for exchange in seen:
        command = exchange.command
        if command.code != RequestCode.REGISTER_BROKER or command.is_response:
            continue
        body = bytes(command.body)
        version = command.version << 1
        if body[:1] == b"\x78":
            yield _with_choice(version | 1, zlib.decompress(body))
        else:
            yield _with_choice(version, body)


def _send_samples(seen: list[Exchange]) -> Iterator[bytes]:
    for exchange in seen:
        if exchange.command.code in SENDS and not exchange.command.is_response:
            yield exchange.frame


def _pull_samples(seen: list[Exchange]) -> Iterator[bytes]:
    for exchange in seen:
        command = exchange.command
        if command.code in PULLS and not command.is_response:
            yield exchange.frame[4:]


def _records(seen: list[Exchange]) -> Iterator[bytes]:
    for exchange in seen:
        command = exchange.command
        if exchange.code in RECORD_RESPONSES and command.is_response and command.body:
            yield bytes(command.body)


def targets() -> list[Target]:
    """Every target with its samples."""
    seen = list(recorded())
    frames = [exchange.frame for exchange in seen]
    records = list(_records(seen))
    decoded = [r for body in records for r in record.iter_records(body)]
    texts = {
        bytes(e.command.body)
        for e in seen
        if bytes(e.command.body[:1]) in (b"{", b"[") and len(e.command.body) <= 2048
    }
    json_samples = sorted(texts)
    random = Random(0)
    some_json = random.sample(json_samples, min(300, len(json_samples)))
    batches = [
        bytes(e.command.body)
        for e in seen
        if e.code == RequestCode.SEND_BATCH_MESSAGE and not e.command.is_response
    ]
    texts_of_ids = [
        text.encode()
        for r in decoded
        for text in (ids.offset_message_id(r.store_host, r.physical_offset), str(r.born_host))
    ]
    unique = (message.find_property(r.properties, b"UNIQ_KEY") for r in decoded)
    packed = [
        _with_choice(index, compress(r.body, kind))
        for r in decoded
        for index, kind in enumerate(CompressionKind)
    ]
    found = [
        Target("frame", run_frame, [frame[4:] for frame in frames]),
        Target("frame stream", run_stream, frames),
        Target("header classes", run_header, list(_header_samples(seen))),
        Target("JSON", run_json, [*json_samples, *_FASTJSON_DIALECT]),
        Target("body classes", run_body, list(_body_samples(some_json))),
        Target("pull requests", run_pull, list(_pull_samples(seen))),
        Target("registration", run_register, list(_register_samples(seen))),
        Target("record", run_record, records),
        Target("pulled messages", run_pulled, records),
        Target("batch", run_batch, batches),
        Target("properties", run_properties, [r.properties for r in decoded]),
        Target("ids", run_ids, [*texts_of_ids, *(text for text in unique if text)]),
        Target("compressed body", run_decompress, packed),
    ]
    if IS_COMPILED:
        found.append(Target("plain sends", run_send, list(_send_samples(seen))))
    return found


_FASTJSON_DIALECT: Final = [
    b'{0:"a",1:{"b":[1,2,{}]}}',
    b'{{"brokerName":"b","queueId":1,"topic":"t"}:{"offset":1}}',
    b'[{"a":{"b":1}},{"$ref":"$[0].a"},{"$ref":"$"},{"$ref":".."}]',
    b'{"a":-1.5e300,"b":123456789012345678901234567890,"c":"\\ud83d\\ude00","d":null}',
]
