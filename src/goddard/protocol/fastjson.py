"""The JSON dialect of Java's fastjson, in which RocketMQ writes its bodies.

It adds to standard JSON: unquoted integer keys ``{0:"a"}``, objects as keys ``{{"queueId":0}:1}``
and references to earlier values, ``{"$ref":"$.path[0]"}``.

``loads`` returns an ``int`` for an unquoted key and an ``ObjectKey`` for an object used as a key,
resolves the references, and raises ProtocolError and nothing else. Its work is bounded: msgspec
reads standard JSON; the dialect, which is parsed here in Python and therefore slowly, has its own
size limit; both have a limit of nesting; references may not form a cycle, nor expand the document
by more than a fixed number of values.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from goddard.errors import ProtocolError

MAX_DEPTH: Final = 64
MAX_DIALECT_BYTES: Final = 4 * 1024 * 1024
MAX_EXPANDED_VALUES: Final = 100_000
MAX_REFERENCE_LENGTH: Final = 256
# A Java long has 19 digits; the protocol has no longer numbers.
_MAX_NUMBER_LENGTH: Final = 40
# Larger numbers are rejected in keys: thousands of them with equal hashes are easy to find, and a
# dict of these takes quadratic time.
_MAX_KEY_NUMBER: Final = 2**63

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PLAIN_STRING: Final = re.compile(r'"([^"\\\x00-\x1f]*)"')
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_INTEGER: Final = re.compile(r"-?[0-9]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: Final = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
# One step of a reference: .name, [3] or ["name"]; fastjson escapes special characters with \.
_STEP: Final = re.compile(r'\.((?:[^.\[\]\\"]|\\.)+)|\[([0-9]{1,9})\]|\["((?:[^"\\]|\\.)*)"\]')
_ESCAPED: Final = re.compile(r"\\(.)")

_decode_standard: Final = msgspec.json.Decoder().decode
_encode_standard: Final = msgspec.json.Encoder().encode


class _Reference(NamedTuple):
    """A reference to another value of the document; resolved after parsing."""

    path: str


class ObjectKey(Mapping[str, Any]):
    """A JSON object used as a key: read-only, hashable, with scalar values only."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[Any, Any]) -> None:
        for name, value in fields.items():
            if not isinstance(name, str) or isinstance(value, dict | list | _Reference):
                raise ProtocolError("an object used as a key may hold only scalar values")
            if isinstance(value, int) and abs(value) > _MAX_KEY_NUMBER:
                raise ProtocolError("a number in a key is out of range")
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return hash(frozenset(self._fields.items()))

    def __repr__(self) -> str:
        return f"ObjectKey({self._fields})"


def loads(data: bytes | memoryview, *, max_dialect_bytes: int = MAX_DIALECT_BYTES) -> Any:
    """Decode one JSON value, standard or in fastjson's dialect."""
    data = bytes(data)
    if b'"$ref"' not in data:
        try:
            value = _decode_standard(data)
        except msgspec.DecodeError:
            # Not standard JSON; ValidationError (a number out of range) is a DecodeError, too.
            pass
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"the JSON cannot be read: {error}") from error
        else:
            _check_depth(value, data)
            return value
    if len(data) > max_dialect_bytes:
        raise ProtocolError(
            f"JSON in fastjson's dialect of {len(data)} bytes; the limit is {max_dialect_bytes}"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the JSON is not UTF-8: {error}") from error
    parser = _Parser(text)
    value = parser.document()
    return _Expansion(value).expanded() if parser.has_references else value


def _check_depth(value: Any, data: bytes) -> None:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below.extend(v for v in node.values() if isinstance(v, dict | list))
            elif isinstance(node, list):
                below.extend(v for v in node if isinstance(v, dict | list))
        if not below:
            return
        level = below
    raise ProtocolError(f"the JSON is nested deeper than {MAX_DEPTH}")


class _Parser:
    """Recursive descent over the text; ``position`` is the next character to read."""

    __slots__ = ("has_references", "position", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.has_references = False

    def document(self) -> Any:
        value = self._value(0)
        if self._next() != "":
            raise self._malformed("extra text after the value")
        return value

    def _malformed(self, what: str) -> ProtocolError:
        return ProtocolError(f"malformed JSON at character {self.position}: {what}")

    def _next(self) -> str:
        """The next character that is not a space, without consuming it; empty at the end."""
        space = _SPACE.match(self.text, self.position)
        if space is not None:
            self.position = space.end()
        return self.text[self.position : self.position + 1]

    def _take(self, character: str) -> None:
        if self._next() != character:
            raise self._malformed(f"expected {character!r}")
        self.position += 1

    def _value(self, depth: int) -> Any:
        first = self._next()
        if first == '"':
            return self._string()
        if first == "{":
            return self._object(depth + 1)
        if first == "[":
            return self._array(depth + 1)
        if first in _WORDS:
            word, value = _WORDS[first]
            if self.text.startswith(word, self.position):
                self.position += len(word)
                return value
        return self._number()

    def _string(self) -> str:
        plain = _PLAIN_STRING.match(self.text, self.position)
        if plain is not None:
            self.position = plain.end()
            return plain[1]
        literal = _STRING.match(self.text, self.position)
        if literal is None:
            raise self._malformed("unterminated string")
        try:
            value = _decode_standard(literal[0])
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._malformed(f"invalid escape or character in a string: {error}") from error
        self.position = literal.end()
        return str(value)

    def _number(self) -> int | float:
        number = _NUMBER.match(self.text, self.position)
        if number is None:
            raise self._malformed("expected a value")
        if number.end() - number.start() > _MAX_NUMBER_LENGTH:
            raise self._malformed("number too long")
        self.position = number.end()
        if number[1] is None and number[2] is None:
            return int(number[0])
        value = float(number[0])
        if math.isinf(value):
            raise self._malformed("number out of range")
        return value

    def _array(self, depth: int) -> list[Any]:
        self._check_depth(depth)
        self.position += 1
        values: list[Any] = []
        if self._next() == "]":
            self.position += 1
            return values
        while True:
            values.append(self._value(depth))
            if self._next() == ",":
                self.position += 1
            else:
                self._take("]")
                return values

    def _object(self, depth: int) -> Any:
        self._check_depth(depth)
        self.position += 1
        fields: dict[Any, Any] = {}
        if self._next() == "}":
            self.position += 1
            return fields
        while True:
            key = self._key(depth)
            self._take(":")
            fields[key] = self._value(depth)
            if self._next() == ",":
                self.position += 1
            else:
                self._take("}")
                break
        path = fields.get("$ref")
        if len(fields) == 1 and isinstance(path, str):
            self.has_references = True
            return _Reference(path)
        return fields

    def _key(self, depth: int) -> str | int | ObjectKey | _Reference:
        first = self._next()
        if first == '"':
            return self._string()
        if first == "{":
            key = self._object(depth + 1)
            return key if isinstance(key, _Reference) else ObjectKey(key)
        number = _INTEGER.match(self.text, self.position)
        if number is None or number.end() - number.start() > _MAX_NUMBER_LENGTH:
            raise self._malformed("expected a key")
        key_number = int(number[0])
        if abs(key_number) > _MAX_KEY_NUMBER:
            raise self._malformed("a number in a key is out of range")
        self.position = number.end()
        return key_number

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._malformed(f"nested deeper than {MAX_DEPTH}")


class _Expansion:
    """Replaces references with copies of their targets, up to a number of values."""

    __slots__ = ("_active", "_budget", "_root")

    def __init__(self, root: Any) -> None:
        self._root = root
        self._budget = MAX_EXPANDED_VALUES
        self._active: set[str] = set()

    def expanded(self) -> Any:
        return self._copy(self._root, 0)

    def _copy(self, node: Any, depth: int) -> Any:
        # Only values reached through a reference use the budget; all others are copied once.
        if self._active:
            self._budget -= 1
        if self._budget < 0 or depth > MAX_DEPTH:
            raise ProtocolError("the references of the JSON expand to too many values")
        if isinstance(node, _Reference):
            return self._resolve(node.path, depth)
        if isinstance(node, list):
            return [self._copy(value, depth + 1) for value in node]
        if isinstance(node, dict):
            return {
                self._key(key, depth): self._copy(value, depth + 1) for key, value in node.items()
            }
        return node

    def _key(self, key: Any, depth: int) -> Any:
        if not isinstance(key, _Reference):
            return key
        target = self._resolve(key.path, depth)
        if isinstance(target, dict):
            return ObjectKey(target)
        if isinstance(target, ObjectKey | str | int):
            return target
        raise ProtocolError(
            f"the JSON reference {key.path} is used as a key but does not refer to a key"
        )

    def _resolve(self, path: str, depth: int) -> Any:
        # ".." (the parent), "@" (itself) and "$" (the root) can only form cycles.
        if path in self._active:
            raise ProtocolError(f"the JSON reference {path} refers to itself")
        self._active.add(path)
        value = self._copy(self._find(path), depth + 1)
        self._active.discard(path)
        return value

    def _find(self, path: str) -> Any:
        if len(path) > MAX_REFERENCE_LENGTH or not path.startswith("$"):
            raise ProtocolError(f"the JSON reference {path[:40]!r} is not supported")
        node = self._root
        position = 1
        while position < len(path):
            step = _STEP.match(path, position)
            if step is None:
                raise ProtocolError(f"the JSON reference {path!r} is not supported")
            position = step.end()
            name, index, quoted = step.groups()
            if index is not None and isinstance(node, list) and int(index) < len(node):
                node = node[int(index)]
                continue
            key = index if index is not None else _ESCAPED.sub(r"\1", name or quoted or "")
            if not isinstance(node, dict) or (key not in node and not key.isdecimal()):
                raise ProtocolError(f"the JSON reference {path!r} refers to nothing")
            if key in node:
                node = node[key]
            elif int(key) in node:
                node = node[int(key)]
            else:
                raise ProtocolError(f"the JSON reference {path!r} refers to nothing")
        return node


def dumps(value: Any, *, unquoted_int_keys: bool = False) -> bytes:
    """Encode as compact JSON.

    Integer keys are quoted unless ``unquoted_int_keys``; objects and structs as keys are written as
    fastjson writes them. Numbers that are not finite become null.
    """
    if not unquoted_int_keys:
        try:
            return _encode_standard(value)
        except TypeError:
            # Keys that standard JSON does not allow.
            pass
    parts: list[bytes] = []
    _write(value, parts, unquoted_int_keys)
    return b"".join(parts)


def _write(value: Any, parts: list[bytes], unquoted: bool) -> None:
    if isinstance(value, msgspec.Struct):
        value = _fields_of(value)
    if isinstance(value, Mapping):
        separator = b"{"
        for key, item in value.items():
            parts.append(separator)
            separator = b","
            _write_key(key, parts, unquoted)
            parts.append(b":")
            _write(item, parts, unquoted)
        parts.append(b"{}" if separator == b"{" else b"}")
    elif isinstance(value, list | tuple | set | frozenset):
        separator = b"["
        for item in value:
            parts.append(separator)
            separator = b","
            _write(item, parts, unquoted)
        parts.append(b"[]" if separator == b"[" else b"]")
    else:
        parts.append(_encode_standard(value))


def _write_key(key: Any, parts: list[bytes], unquoted: bool) -> None:
    if isinstance(key, msgspec.Struct | Mapping):
        _write(key, parts, unquoted)
    elif isinstance(key, int) and not isinstance(key, bool):
        parts.append(b"%d" % key if unquoted else b'"%d"' % key)
    elif isinstance(key, str):
        parts.append(_encode_standard(key))
    else:
        raise TypeError(f"{type(key).__name__} cannot be a JSON key")


def _fields_of(struct: msgspec.Struct) -> dict[str, Any]:
    """The fields by wire name, without those that are None."""
    names = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    fields = ((wire_name, getattr(struct, name)) for name, wire_name in names)
    return {wire_name: value for wire_name, value in fields if value is not None}
