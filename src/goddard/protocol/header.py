"""Declarative command headers: a class per header, a line per field.

A field is written snake_case here and camelCase on the wire; ``wire("name")`` gives another wire
name. Annotations say the wire type: ``str``, ``bool``, ``Int32``, ``Int64``, each also ``| None``
for optional. A field without default is required: its absence raises HeaderError, as Java's
``@CFNotNull`` does.

Java's leniency is kept: unknown fields are ignored, only "true" in any case is true, a null or
empty value of a number or boolean counts as absent, numbers must fit their type.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Self, dataclass_transform

from goddard.errors import HeaderError

Int32 = Annotated[int, 32]
Int64 = Annotated[int, 64]

_MISSING: Final = dataclasses.MISSING


def wire(name: str, *, default: Any = _MISSING) -> Any:
    """A field whose wire name is not the camelCase of its own."""
    return dataclasses.field(default=default, metadata={"wire": name})


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _parse_int(bits: int) -> Callable[[str], int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def parse(text: str) -> int:
        # Java's parseInt takes ASCII digits with a sign and nothing else; int() would also take
        # spaces, underscores and other scripts' digits, and be slow on absurd lengths.
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
            raise ValueError(f"{text[:40]!r} is not a number")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"{text} does not fit {bits} bits")
        return value

    return parse


def _parse_bool(text: str) -> bool:
    return text.lower() == "true"


def _write_bool(value: Any) -> str:
    return "true" if value else "false"


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    wire_name: str
    parse: Callable[[str], Any] | None  # None: text, taken as it is
    write: Callable[[Any], str] | None
    required: bool


def _field_of(field: dataclasses.Field[Any], annotation: Any) -> _Field:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (annotation,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
    parse: Callable[[str], Any] | None
    write: Callable[[Any], str] | None
    if annotation is str:
        parse, write = None, None
    elif annotation is bool:
        parse, write = _parse_bool, _write_bool
    elif typing.get_origin(annotation) is Annotated:
        parse, write = _parse_int(typing.get_args(annotation)[1]), str
    else:
        raise TypeError(f"{field.name}: {annotation} is not a header field type")
    wire_name = field.metadata.get("wire") or camel_case(field.name)
    return _Field(field.name, wire_name, parse, write, field.default is _MISSING)


@dataclass_transform(kw_only_default=True, field_specifiers=(wire, dataclasses.field))
class Header:
    """Base of all headers. Subclasses become keyword-only dataclasses by being defined."""

    _fields: ClassVar[tuple[_Field, ...]] = ()

    def __init_subclass__(cls) -> None:
        # There are more than a hundred, and each costs time whenever anything is imported: what
        # dataclass would write for every one is below once, and a docstring spares a signature.
        cls.__doc__ = cls.__doc__ or cls.__name__
        made: Any = dataclasses.dataclass(kw_only=True, repr=False, eq=False)(cls)
        hints = typing.get_type_hints(cls, include_extras=True)
        cls._fields = tuple(_field_of(f, hints[f.name]) for f in dataclasses.fields(made))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        raise TypeError(f"unhashable type: {type(self).__name__!r}")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__qualname__}({values})"

    @classmethod
    def decode(cls, fields: Mapping[str, str]) -> Self:
        """Read the header from a command's fields; HeaderError names the field that is wrong."""
        values: dict[str, Any] = {}
        for field in cls._fields:
            text = fields.get(field.wire_name)
            if text is None or (not text and field.parse is not None):
                if field.required:
                    raise HeaderError(f"the header field {field.wire_name} is missing")
                continue
            if field.parse is None:
                values[field.name] = text
                continue
            try:
                values[field.name] = field.parse(text)
            except ValueError as error:
                raise HeaderError(f"the header field {field.wire_name}: {error}") from error
        return cls(**values)

    def encode(self) -> dict[str, str]:
        """The header as a command's fields; None is left out."""
        encoded: dict[str, str] = {}
        for field in self._fields:
            value = getattr(self, field.name)
            if value is not None:
                encoded[field.wire_name] = value if field.write is None else field.write(value)
        return encoded
