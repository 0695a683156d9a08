"""How one message is printed: a template, or one JSON object. Pure.

Templates are those of kcat, with RocketMQ's fields::

    %t topic   %b broker   %p queue   %o offset   %k keys   %g tags   %s body   %S bytes of the body
    %T store time in milliseconds   %D store time   %i message id   %I offset message id
    %h properties   %r times it was consumed before   %% percent   \\n \\t \\r \\\\ \\xHH
"""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from goddard.cli.render import time_text
from goddard.cli.terminal.groups import did_you_mean
from goddard.cli.terminal.output import TimeMs, plain, printable
from goddard.client.message import Message, ReceivedMessage
from goddard.errors import ConfigError
from goddard.protocol.message import (
    CONSUME_FAILURE,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    RESERVED_PROPERTIES,
)

Format = Callable[[ReceivedMessage], bytes]

# Properties that a pull adds, or that say how a message was sent; not the user's.
_INTERNAL: Final = frozenset(RESERVED_PROPERTIES) | {CONSUME_FAILURE}

_FIELDS: Final[Mapping[str, Format]] = {
    "t": lambda one: one.topic.encode(),
    "b": lambda one: one.broker_name.encode(),
    "p": lambda one: b"%d" % one.queue_id,
    "o": lambda one: b"%d" % one.queue_offset,
    "k": lambda one: " ".join(one.keys).encode(),
    "g": lambda one: (one.tags or "").encode(),
    "s": lambda one: one.body,
    "S": lambda one: b"%d" % len(one.body),
    "T": lambda one: b"%d" % one.store_timestamp_ms,
    "D": lambda one: time_text(one.store_timestamp_ms).encode(),
    "i": lambda one: one.message_id.encode(),
    "I": lambda one: one.offset_message_id.encode(),
    "h": lambda one: ",".join(f"{k}={v}" for k, v in own_properties(one).items()).encode(),
    "r": lambda one: b"%d" % one.reconsume_times,
    "%": lambda one: b"%",
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)", re.DOTALL)


def own_properties(message: ReceivedMessage) -> dict[str, str]:
    """The properties that the sender set, without RocketMQ's."""
    return {
        name: value
        for name, value in message.properties.items()
        if name not in _INTERNAL and name != PROPERTY_SHARDING_KEY
    }


def compile_template(template: str) -> Format:
    """ConfigError names an unknown field."""
    parts: list[bytes | Format] = []
    end = 0
    for token in _TOKEN.finditer(template):
        end = token.end()
        field, code, escape, text = token.groups()
        if text is not None:
            parts.append(text.encode())
        elif code is not None:
            parts.append(bytes((int(code, 16),)))
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        elif field is not None and field in _FIELDS:
            parts.append(_FIELDS[field])
        else:
            raise ConfigError(
                f"the template has the unknown field {token.group()!r}; known: "
                + " ".join(f"%{name}" for name in _FIELDS)
            )
    if end != len(template):
        raise ConfigError(f"the template ends within {template[end:]!r}; write %% or \\\\")

    def formatted(message: ReceivedMessage) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return formatted


def body_fields(body: bytes) -> dict[str, str]:
    """``body`` for UTF-8 text, ``bodyBase64`` for other bytes."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(body).decode()}


def json_fields(message: ReceivedMessage) -> dict[str, Any]:
    """A message as one JSON object, which ``goddard produce --input json`` accepts."""
    fields: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "stored": plain(TimeMs(message.store_timestamp_ms)),
        "reconsumeTimes": message.reconsume_times,
        "tags": message.tags,
        "keys": message.keys,
        "properties": own_properties(message),
    }
    return {**fields, **body_fields(message.body)}


_ACCEPTED: Final = ("body", "bodyBase64", "tags", "keys", "properties", "delayLevel", "shardingKey")
# Other fields that json_fields writes; ignored when sent.
_IGNORED: Final = frozenset(
    ("topic", "broker", "queue", "offset", "messageId", "offsetMessageId", "stored")
) | {"reconsumeTimes", "originTopic", "failure"}


_OPTIONS: Final = {
    PROPERTY_KEYS: "--key",
    PROPERTY_TAGS: "--tag",
    PROPERTY_DELAY: "--delay-level",
}


def check_property_names(names: Iterable[str]) -> None:
    """ConfigError if a name of ``--property`` is one of RocketMQ's own."""
    for name in names:
        if name in RESERVED_PROPERTIES:
            hint = f"; use {_OPTIONS[name]}" if name in _OPTIONS else " by RocketMQ"
            raise ConfigError(f"--property: {name} is reserved{hint}")


def message_from_json(topic: str, fields: Any) -> Message:
    """ConfigError says what is wrong with the object."""
    if not isinstance(fields, dict):
        raise ConfigError('a line must be a JSON object, such as {"body": "text"}')
    unknown = sorted(set(fields) - set(_ACCEPTED) - _IGNORED)
    if unknown:
        hint = did_you_mean(unknown[0], _ACCEPTED)
        raise ConfigError(
            f"unknown field {unknown[0]!r}{hint or '; known: ' + ' '.join(_ACCEPTED)}"
        )
    if ("body" in fields) == ("bodyBase64" in fields):
        raise ConfigError("give exactly one of body and bodyBase64")
    try:
        return Message(
            topic,
            _body(fields),
            tags=fields.get("tags"),
            keys=fields.get("keys") or None,
            delay_level=fields.get("delayLevel", 0),
            sharding_key=fields.get("shardingKey"),
            properties=fields.get("properties"),
        )
    except TypeError as error:
        raise ConfigError(str(error)) from error


def _body(fields: Mapping[str, Any]) -> bytes:
    if "body" in fields:
        if not isinstance(fields["body"], str):
            raise ConfigError("body must be a text; for other values write them as JSON text")
        return fields["body"].encode()
    try:
        return base64.b64decode(fields["bodyBase64"], validate=True)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"bodyBase64 is not Base64: {error}") from error


def terminal_text(body: bytes) -> str:
    """A body for a terminal: line breaks and tabs stay, other control characters are escaped."""
    text = body.decode("utf-8", "backslashreplace")
    return "".join(c if c in "\n\t" else printable(c) for c in text)
