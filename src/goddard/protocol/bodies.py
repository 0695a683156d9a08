"""JSON bodies: decoding and encoding, and the bodies of topics, routes and registration.

A body is a struct whose fields are declared in the order of their wire names, which is the order in
which Java writes them. A field that is None is omitted; all others are always written. Declare
their defaults with ``written``: msgspec would omit plain defaults.

Decoding is as lenient as fastjson: unknown fields are ignored, a missing or null field gets its
default, numbers may be text, enums may be ordinals, and fastjson's dialect is accepted. Malformed
JSON raises ProtocolError and nothing else.

The compressed registration body is one zlib stream of::

    length:i32 DataVersion JSON
    count:i32 (length:i32 "name read write perm filter attributes")*    attributes: 5.x only, JSON
    length:i32 filter servers, a JSON array
    count:i32 (length:i32 TopicQueueMapping JSON)*                      from version 5.0 on
"""

import functools
import zlib
from collections.abc import Hashable
from enum import StrEnum
from struct import Struct
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec

from goddard.errors import ProtocolError
from goddard.protocol import fastjson
from goddard.protocol.codes import CURRENT_VERSION, VERSION_5_0_0, Permission

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

MAX_REGISTER_BYTES: Final = 16 * 1024 * 1024
# JSON that msgspec cannot decode directly is parsed in Python, at up to three microseconds per
# byte. This limit suits an event loop; a caller that decodes in a thread may allow more.
MAX_SLOW_BYTES: Final = 64 * 1024

_I32: Final = Struct(">i")
_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)


def written(default: Any, *, name: str | None = None) -> Any:
    """A default that is written like any other value; ``list`` or ``dict`` means an empty one.

    ``name`` is the wire name, if it differs from the field's name in camelCase.
    """
    # msgspec omits values equal to the default, and empty collections if the default factory is
    # list, dict or set itself; it never omits values of any other factory.
    if isinstance(default, type):
        return msgspec.field(default_factory=functools.partial(default), name=name)
    return msgspec.field(default_factory=lambda: default, name=name)


class Body(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of all bodies."""


class FrozenBody(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """Base of immutable bodies, which can be dict keys."""


# --- Enums, in the order of their ordinals --------------------------------------------------------


class ConsumeType(StrEnum):
    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumeResult(StrEnum):
    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


class RequestMode(StrEnum):
    PULL = "PULL"
    POP = "POP"


# --- Decoding and encoding ------------------------------------------------------------------------

T = TypeVar("T")

# Enums that peers may send as ordinals (the C++ client does), by the name of the field.
_ORDINALS: Final[dict[str, list[str]]] = {
    "consumeType": [kind.value for kind in ConsumeType],
    "messageModel": [model.value for model in MessageModel],
    "consumeFromWhere": [place.value for place in ConsumeFromWhere],
    "consumeResult": [result.value for result in ConsumeResult],
    "mode": [mode.value for mode in RequestMode],
    "topicFilterType": ["SINGLE_TAG", "MULTI_TAG"],
}


@functools.cache
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=False)


def decode_body(
    data: bytes | memoryview,
    kind: type[T],
    *,
    max_dialect_bytes: int = MAX_SLOW_BYTES,
) -> T:
    """Decode a body as ``kind``: a Body, or any type that msgspec supports, such as ``list[User]``.

    ``max_dialect_bytes`` limits the bodies that msgspec cannot decode directly: fastjson's dialect,
    and bodies with nulls or with ordinals of enums.
    """
    # msgspec would decode a reference as an object whose fields are all missing.
    if b'"$ref"' not in bytes(data):
        try:
            body: T = _decoder(cast(Hashable, kind)).decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
        else:
            return body
    if len(data) > max_dialect_bytes:
        raise ProtocolError(
            f"a body of {len(data)} bytes is not standard JSON of a {kind.__name__}; the limit for "
            f"fastjson's dialect and for nulls is {max_dialect_bytes} bytes"
        )
    value = _lenient(fastjson.loads(data, max_dialect_bytes=max_dialect_bytes))
    try:
        return msgspec.convert(value, kind, strict=False, str_keys=True)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"the body is not a valid {kind.__name__}: {error}") from error


def _lenient(value: Any) -> Any:
    """The value without null fields, and with ordinals of enums replaced by their names."""
    if isinstance(value, dict):
        return {key: _lenient_field(key, item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_lenient(item) for item in value]
    return value


def _lenient_field(key: Any, value: Any) -> Any:
    if type(value) is int and key in _ORDINALS:
        names = _ORDINALS[key]
        return names[value] if 0 <= value < len(names) else value
    return _lenient(value)


def encode_body(value: Any, *, unquoted_int_keys: bool = False) -> bytes:
    """Encode a body. ``unquoted_int_keys`` writes integer keys as fastjson does: without quotes."""
    return fastjson.dumps(value, unquoted_int_keys=unquoted_int_keys)


# --- Values used in many bodies -------------------------------------------------------------------


class DataVersion(FrozenBody, frozen=True):
    """The version of a table of a broker; equal versions mean equal tables."""

    counter: Int64 = written(0)
    state_version: Int64 = written(0)
    timestamp: Int64 = written(0)


class MessageQueue(FrozenBody, frozen=True, order=True):
    broker_name: str = written("")
    queue_id: Int32 = written(0)
    topic: str = written("")


class KvTable(Body):
    table: dict[str, str] = written(dict)


class TopicList(Body):
    # A broker that can be asked for more topics.
    broker_addr: str | None = None
    topic_list: list[str] = written(list)


# --- Topics ---------------------------------------------------------------------------------------


class TopicConfig(Body):
    attributes: dict[str, str] = written(dict)
    order: bool = written(False)
    perm: Int32 = written(_READ_WRITE)
    read_queue_nums: Int32 = written(16)
    topic_filter_type: str = written("SINGLE_TAG")
    topic_name: str = written("")
    topic_sys_flag: Int32 = written(0)
    write_queue_nums: Int32 = written(16)


class TopicQueueMapping(Body):
    """The physical queues of a broker for a static topic, by logical queue."""

    bname: str | None = None
    curr_id_map: dict[Int32, Int32] = written(dict)
    dirty: bool = written(False)
    epoch: Int64 = written(0)
    scope: str = written("__global__")
    topic: str | None = None
    total_queues: Int32 = written(0)


class QueueMappingItem(Body):
    """A segment of a logical queue, stored in one physical queue; -1 means open-ended."""

    bname: str | None = None
    end_offset: Int64 = written(-1)
    gen: Int32 = written(0)
    logic_offset: Int64 = written(0)
    queue_id: Int32 = written(0)
    start_offset: Int64 = written(0)
    time_of_end: Int64 = written(-1)
    time_of_start: Int64 = written(-1)


class TopicQueueMappingDetail(Body):
    bname: str | None = None
    curr_id_map: dict[Int32, Int32] = written(dict)
    dirty: bool = written(False)
    epoch: Int64 = written(0)
    hosted_queues: dict[Int32, list[QueueMappingItem]] = written(dict)
    scope: str = written("__global__")
    topic: str | None = None
    total_queues: Int32 = written(0)


class TopicConfigTable(Body):
    """A broker's topics (Java: TopicConfigAndMappingSerializeWrapper)."""

    data_version: DataVersion = written(DataVersion)
    mapping_data_version: DataVersion = written(DataVersion)
    topic_config_table: dict[str, TopicConfig] = written(dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = written(dict)
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] = written(dict)


# --- Routes and clusters --------------------------------------------------------------------------


class QueueData(Body):
    broker_name: str = written("")
    perm: Int32 = written(0)
    read_queue_nums: Int32 = written(0)
    # The name of topic_sys_flag before 4.9; see encode_route.
    topic_syn_flag: Int32 | None = None
    topic_sys_flag: Int32 = written(0)
    write_queue_nums: Int32 = written(0)


class BrokerData(Body):
    """The addresses of one broker name, by broker id; 0 is the master."""

    broker_addrs: dict[Int64, str] = written(dict)
    broker_name: str = written("")
    cluster: str = written("")
    enable_acting_master: bool = written(False)
    zone_name: str | None = None


class TopicRoute(Body):
    """The brokers and queues of a topic (Java: TopicRouteData)."""

    broker_datas: list[BrokerData] = written(list)
    filter_server_table: dict[str, list[str]] = written(dict)
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = written(list)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None


class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = written(dict)
    # A set in Java; a list here, so that the order is deterministic.
    cluster_addr_table: dict[str, list[str]] = written(dict)


class BrokerMemberGroup(Body):
    broker_addrs: dict[Int64, str] = written(dict)
    broker_name: str = written("")
    cluster: str = written("")


class BrokerMemberGroupAnswer(Body):
    broker_member_group: BrokerMemberGroup | None = None


def encode_route(route: TopicRoute, *, standard: bool) -> bytes:
    """Encode a route: standard JSON, or the old form for clients that do not request standard JSON.

    Such clients are older than 4.9.4 or written in Go. They need unquoted broker ids (Go's parser
    reads a quoted id as 0) and the old name of a queue's topicSysFlag, written in addition.
    """
    if standard:
        return encode_body(route)
    with_old_names = [
        msgspec.structs.replace(queue, topic_syn_flag=queue.topic_sys_flag)
        for queue in route.queue_datas
    ]
    return encode_body(
        msgspec.structs.replace(route, queue_datas=with_old_names), unquoted_int_keys=True
    )


# --- Registration ---------------------------------------------------------------------------------


class RegisterBrokerBody(Body):
    filter_server_list: list[str] = written(list)
    topic_config_serialize_wrapper: TopicConfigTable = written(TopicConfigTable)


def decode_register_body(
    data: bytes | memoryview,
    compressed: bool,
    version: int,
    max_bytes: int = MAX_REGISTER_BYTES,
    max_dialect_bytes: int = MAX_SLOW_BYTES,
) -> RegisterBrokerBody:
    """Decode a registration. ``version`` is the broker's; ``max_bytes`` limits the inflated size.

    An empty body is an empty registration. A zlib stream is also recognised by its first byte,
    because 5.4.0 sends one with ``compressed`` false.
    """
    if not data:
        return RegisterBrokerBody()
    if not compressed and data[0] != 0x78:
        return decode_body(data, RegisterBrokerBody, max_dialect_bytes=max_dialect_bytes)
    reader = _SectionReader(_inflate(data, max_bytes))
    table = TopicConfigTable(data_version=decode_body(reader.section(), DataVersion))
    for _ in range(reader.count()):
        topic = _parse_topic(reader.text())
        table.topic_config_table[topic.topic_name] = topic
    filter_servers = decode_body(reader.section(), list[str])
    if version >= VERSION_5_0_0:
        for _ in range(reader.count()):
            mapping = decode_body(
                reader.section(), TopicQueueMapping, max_dialect_bytes=max_dialect_bytes
            )
            if mapping.topic is None:
                raise ProtocolError("a queue mapping of the registration has no topic")
            table.topic_queue_mapping_info_map[mapping.topic] = mapping
    return RegisterBrokerBody(
        filter_server_list=filter_servers, topic_config_serialize_wrapper=table
    )


def encode_register_body(
    body: RegisterBrokerBody, *, compressed: bool = False, version: int = CURRENT_VERSION
) -> bytes:
    """Encode a registration as a broker of this version does."""
    if not compressed:
        return encode_body(body)
    table = body.topic_config_serialize_wrapper
    has_mappings = version >= VERSION_5_0_0
    topics = table.topic_config_table.values()
    parts = [_section(encode_body(table.data_version)), _I32.pack(len(topics))]
    parts += [_section(_format_topic(topic, has_attributes=has_mappings)) for topic in topics]
    parts.append(_section(encode_body(body.filter_server_list)))
    if has_mappings:
        mappings = table.topic_queue_mapping_info_map.values()
        parts.append(_I32.pack(len(mappings)))
        parts += [_section(encode_body(m, unquoted_int_keys=True)) for m in mappings]
    return zlib.compress(b"".join(parts), zlib.Z_BEST_COMPRESSION)


def _inflate(data: bytes | memoryview, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"the registration is not a zlib stream: {error}") from error
    if len(inflated) > max_bytes:
        raise ProtocolError(f"the registration inflates to more than {max_bytes} bytes")
    if not inflater.eof:
        raise ProtocolError("the registration's zlib stream is truncated")
    return inflated


class _SectionReader:
    """Reads counts and length-prefixed sections of the inflated registration."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _number(self) -> int:
        if len(self._data) - self._position < 4:
            raise ProtocolError("the registration is truncated")
        (number,) = _I32.unpack_from(self._data, self._position)
        self._position += 4
        return int(number)

    def count(self) -> int:
        count = self._number()
        # Each entry has a length of four bytes at least.
        if not 0 <= count <= (len(self._data) - self._position) // 4:
            raise ProtocolError(f"the registration cannot hold {count} entries")
        return count

    def section(self) -> bytes:
        length = self._number()
        if not 0 <= length <= len(self._data) - self._position:
            raise ProtocolError(f"a section of {length} bytes does not fit the registration")
        start = self._position
        self._position += length
        return self._data[start : self._position]

    def text(self) -> str:
        try:
            return self.section().decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the registration is not UTF-8: {error}") from error


def _section(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _format_topic(topic: TopicConfig, *, has_attributes: bool) -> bytes:
    text = (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} "
        f"{topic.perm} {topic.topic_filter_type}"
    ).encode()
    return text + b" " + encode_body(topic.attributes) if has_attributes else text


def _parse_topic(text: str) -> TopicConfig:
    parts = text.split(" ", 5)
    if len(parts) < 5:
        raise ProtocolError(f"malformed topic in the registration: {text[:200]!r}")
    name, reads, writes, permission, filter_type = parts[:5]
    numbers = {"readQueueNums": reads, "writeQueueNums": writes, "perm": permission}
    try:
        topic = msgspec.convert(numbers, TopicConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"malformed topic in the registration: {error}") from error
    topic.topic_name = name
    topic.topic_filter_type = filter_type
    if len(parts) == 6 and parts[5]:
        topic.attributes = decode_body(parts[5].encode(), dict[str, str])
    return topic
