"""Verbs that find messages: by id, key, offset and trace."""

import codecs
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from goddard.cli.mqadmin.call import Call
from goddard.cli.mqadmin.java_text import (
    boolean,
    millis_text,
    properties_text,
    seconds_text,
    text_or_null,
)
from goddard.cli.mqadmin.messaging.pulling import pull_page, with_offsets
from goddard.cli.mqadmin.messaging.running_info import is_push
from goddard.cli.mqadmin.messaging.sending import result_text
from goddard.cli.mqadmin.options import Options
from goddard.cli.mqadmin.private_files import write_private
from goddard.cli.terminal.mistakes import FailedError
from goddard.client.errors import ClientError
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.producer import Producer
from goddard.client.trace.records import ConsumeEnd, SendTrace, decode_trace
from goddard.client.values import MessageQueue
from goddard.protocol.bodies_client import ConsumeDirectlyResult
from goddard.protocol.codes import ResponseCode
from goddard.protocol.message import PROPERTY_KEYS
from goddard.protocol.names import TRACE_TOPIC

BODIES: Final = Path("/tmp/rocketmq/msgbodys")
"""Where Java's tool writes the bodies of messages that it shows."""

_FIELD: Final = "%-20s %s"
_BY_KEY: Final = "%-50s %4s %40s %-200s"
_TRACE: Final = "%-10s %-20s %-20s %-20s %-10s %-10s"
_KINDS: Final = {"K": "key", "T": "tag"}
_HOUR_MS: Final = 3_600_000
_SAFE_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")
_RESEND_GROUP: Final = "ReSendMsgById"


async def query_by_id(call: Call) -> None:
    options, topic = call.options, call.options.text("t")
    ids = options.words("i")
    encoding = _encoding(options)
    if "g" in options and "d" in options:
        for message_id in ids:
            await _consume_directly(call, topic, message_id)
    elif "s" in options:
        if options.boolean("s"):
            await _resend(call, topic, ids)
    else:
        for message_id in ids:
            one = await call.admin.message(topic, message_id)
            await _show(call, one, one.properties, encoding=encoding, with_offset_id=True)


async def query_by_unique_key(call: Call) -> None:
    options = call.options
    topic, message_id = options.text("t"), options.text("i")
    if "g" in options and "d" in options:
        await _consume_directly(call, topic, message_id)
        return
    found = await call.admin.messages_by_unique_key(
        topic,
        message_id,
        begin_ms=options.number("s", least=0),
        end_ms=options.number("e", 2**63 - 1, least=0),
        cluster=options.get("c"),
    )
    if not found.messages:
        raise FailedError(f"topic {topic} has no message with the id {message_id}")
    shown = found.messages if "a" in options else found.messages[:1]
    for number, one in enumerate(shown):
        await _show(call, one, one.properties, number=number)


async def query_by_key(call: Call) -> None:
    options = call.options
    topic, key = options.text("t"), options.text("k")
    kind = options.choice("p", _KINDS) if "p" in options else "K"
    found = await call.admin.messages_by_key(
        topic,
        key,
        max_count=options.number("m", 64, least=1),
        begin_ms=options.number("b", least=0),
        end_ms=options.number("e", 2**63 - 1, least=0),
        cluster=options.get("c"),
        by_tag=kind == "T",
        last_key=options.get("l"),
    )
    if not found.messages:
        raise FailedError(f"topic {topic} has no message with the {_KINDS[kind]} {key}")
    call.row(_BY_KEY, "#Message ID", "#QID", "#Offset", "#IndexKey")
    for one in found.messages:
        hour_ms = one.store_timestamp_ms - one.store_timestamp_ms % _HOUR_MS
        index_key = f"{hour_ms}@{topic}@{kind}@{key}@{one.message_id}@{one.physical_offset}"
        call.row(_BY_KEY, one.message_id, one.queue_id, one.queue_offset, index_key)


async def query_by_offset(call: Call) -> None:
    options = call.options
    number = options.number("i", least=0)
    queue = MessageQueue(options.text("t"), options.text("b"), number)
    offset = options.number("o", least=0)
    encoding = _encoding(options)
    result = await pull_page(call.admin, queue, offset, max_messages=1)
    if not result.messages:
        raise FailedError(f"{queue} has no message at offset {offset}")
    one = result.messages[0]
    properties = with_offsets(one, result)
    await _show(call, one, properties, encoding=encoding, with_offset_id=True)


def _encoding(options: Options) -> str | None:
    name = options.get("f")
    if name is not None:
        check_encoding(options, "f", name)
    return name


def check_encoding(options: Options, name: str, encoding: str) -> None:
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise options.wrong(name, f"takes an encoding such as UTF-8, not {encoding!r}") from None


async def _show(
    call: Call,
    one: ReceivedMessage,
    properties: Mapping[str, str],
    *,
    encoding: str | None = None,
    with_offset_id: bool = False,
    number: int = 0,
) -> None:
    """All fields of a message, and which groups consumed it."""
    if with_offset_id:
        call.row(_FIELD, "OffsetID:", one.offset_message_id)
    for name, value in (
        ("Topic:", one.topic),
        ("Tags:", f"[{text_or_null(one.tags)}]"),
        ("Keys:", f"[{text_or_null(one.get(PROPERTY_KEYS))}]"),
        ("Queue ID:", one.queue_id),
        ("Queue Offset:", one.queue_offset),
        ("CommitLog Offset:", one.physical_offset),
        ("Reconsume Times:", one.reconsume_times),
        ("Born Timestamp:", millis_text(one.born_timestamp_ms)),
        ("Store Timestamp:", millis_text(one.store_timestamp_ms)),
        ("Born Host:", one.born_host),
        ("Store Host:", one.store_host),
        ("System Flag:", one.sys_flag),
        ("Properties:", properties_text(properties)),
        ("Message Body Path:", _write_body(one, number)),
    ):
        call.row(_FIELD, name, value)
    if encoding is not None:
        call.row(_FIELD, "Message Body:", one.body.decode(encoding, "replace"))
    tracks = await call.admin.message_track(one)
    call.text("\n\n")
    if not tracks:
        call.line("WARN: No Consumer")
    for track in tracks:
        problem = track.problem or "null"
        call.line(
            f"MessageTrack [consumerGroup={track.group}, trackType={track.kind.value}, "
            f"exceptionDesc={problem}]"
        )


def _write_body(one: ReceivedMessage, number: int) -> Path:
    """Write the body to a file, as Java's tool does. The id may be any text: a client chose it."""
    name = one.message_id if _SAFE_NAME.fullmatch(one.message_id) else one.offset_message_id
    path = BODIES / (f"{name}_{number}" if number else name)
    write_private(path, one.body)
    return path


async def _consume_directly(call: Call, topic: str, message_id: str) -> None:
    group, client_id = call.options.text("g"), call.options.text("d")
    info = await call.admin.running_info(group, client_id)
    if not is_push(info):
        raise FailedError(f"{client_id} is not a push consumer; only those consume on request")
    result = await call.admin.consume_directly(group, client_id, topic, message_id)
    call.line(directly_text(result))


def directly_text(result: ConsumeDirectlyResult) -> str:
    return (
        f"ConsumeMessageDirectlyResult [order={boolean(result.order)}, "
        f"autoCommit={boolean(result.auto_commit)}, "
        f"consumeResult={text_or_null(result.consume_result)}, "
        f"remark={text_or_null(result.remark)}, spentTimeMills={result.spent_time_mills}]"
    )


async def _resend(call: Call, topic: str, ids: list[str]) -> None:
    """Send the same messages to their topic again."""
    unit = call.options.get("u")
    keywords = call.target.client_keywords()
    async with Producer(_RESEND_GROUP, unit_name=unit, **keywords) as producer:
        for message_id in ids:
            try:
                one = await call.admin.message(topic, message_id)
            except ClientError as error:
                if error.code != ResponseCode.NO_MESSAGE:
                    raise
                raise FailedError(f"no message. msgId={message_id}") from error
            again = Message(one.topic, one.body, flag=one.flag, properties=dict(one.properties))
            result = await producer.send(again)
            call.line(f"prepare resend msg. originalMsgId={message_id}{result_text(result)}")


async def query_trace_by_id(call: Call) -> None:
    options = call.options
    message_id = options.text("i")
    found = await call.admin.messages_by_key(
        options.text("t", TRACE_TOPIC),
        message_id,
        max_count=options.number("c", 64, least=1),
        begin_ms=options.number("b", least=0),
        end_ms=options.number("e", 2**63 - 1, least=0),
    )
    consumed: dict[str | None, list[tuple[ConsumeEnd, str]]] = {}
    columns = ("#ClientHost", "#SendTime", "#CostTimes", "#Status")
    for one in found.messages:
        # The client that wrote the trace.
        host = one.born_host.rpartition(":")[0]
        for record in decode_trace(one.body.decode("utf-8", "replace")):
            if record.message_id != message_id:
                continue
            if isinstance(record, SendTrace):
                call.row(_TRACE, "#Type", "#ProducerGroup", *columns)
                _trace_row(call, "Pub", record, host)
                call.line()
            elif isinstance(record, ConsumeEnd):
                consumed.setdefault(record.group, []).append((record, host))
    columns = ("#ClientHost", "#ConsumerTime", "#CostTimes", "#Status")
    for ends in consumed.values():
        call.row(_TRACE, "#Type", "#ConsumerGroup", *columns)
        for end, host in ends:
            _trace_row(call, "Sub", end, host)
        call.line()


def _trace_row(call: Call, kind: str, record: SendTrace | ConsumeEnd, host: str) -> None:
    time_ms = record.timestamp_ms
    shown = seconds_text(time_ms) if time_ms else "N/A"
    status = "success" if record.is_success else "failed"
    group = text_or_null(record.group)
    call.row(_TRACE, kind, group, host, shown, f"{record.cost_ms}ms", status)
