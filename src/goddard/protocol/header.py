"""Declarative command headers: a class per header, a line per field.

A field is written snake_case here and camelCase on the wire; ``wire("name")`` gives another wire
name. Annotations say the wire type: ``str``, ``bool``, ``Int32``, ``Int64``, each also ``| None``
for optional. A field without default is required: its absence raises HeaderError, as Java's
``@CFNotNull`` does.

Java's leniency is kept: unknown fields are ignored, only "true" in any case is true, a null or
empty value of a number or boolean counts as absent, numbers must fit their type.
"""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, dataclass_transform

from goddard.errors import HeaderError

Int32 = Annotated[int, 32]
Int64 = Annotated[int, 64]

# In the place of a default, for a field that has none.
_MISSING: Final = object()


class _Wire(NamedTuple):
    name: str
    default: Any


def wire(name: str, *, default: Any = _MISSING) -> Any:
    """A field whose wire name is not the camelCase of its own."""
    return _Wire(name, default)


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


class _Field(NamedTuple):
    name: str
    wire_name: str
    parse: Callable[[str], Any] | None  # None: text, taken as it is
    write: Callable[[Any], str] | None
    default: Any


def _field_of(name: str, annotation: Any, default: Any) -> _Field:
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
        raise TypeError(f"{name}: {annotation} is not a header field type")
    if isinstance(default, _Wire):
        return _Field(name, default.name, parse, write, default.default)
    return _Field(name, camel_case(name), parse, write, default)


@dataclass_transform(kw_only_default=True, field_specifiers=(wire,))
class Header:
    """Base of all headers. What a subclass declares are its fields, given by keyword.

    There are more than a hundred, and few are used by any one program: the annotations of a class
    are looked at when it is first used, which leaves next to nothing to do when it is imported.
    """

    _fields: ClassVar[tuple[_Field, ...] | None] = None
    # The attributes of an instance that was given nothing.
    _template: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._fields = None

    def __init__(self, **values: Any) -> None:
        fields = self._fields or self._look()
        made = vars(self)
        made.update(self._template)
        made.update(values)
        if len(made) != len(fields) or _MISSING in made.values():
            self._refuse(values)

    @classmethod
    def _look(cls) -> tuple[_Field, ...]:
        """Find the fields of a class, those of its parents first."""
        hints = typing.get_type_hints(cls, include_extras=True)
        fields = tuple(
            _field_of(name, hint, getattr(cls, name, _MISSING))
            for name, hint in hints.items()
            if typing.get_origin(hint) is not ClassVar
        )
        cls._template = {field.name: field.default for field in fields}
        # Last: whoever sees it sees the other.
        cls._fields = fields
        return fields

    def _refuse(self, values: dict[str, Any]) -> None:
        name = type(self).__name__
        if unknown := sorted(values.keys() - self._template.keys()):
            raise TypeError(f"{name} has no field {', '.join(unknown)}")
        missing = [each for each, value in vars(self).items() if value is _MISSING]
        raise TypeError(f"{name} needs {', '.join(missing)}")

    @classmethod
    def wire_names(cls) -> dict[str, str]:
        """The fields by name, and what they are called on the wire."""
        return {field.name: field.wire_name for field in cls._fields or cls._look()}

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
        header = cls.__new__(cls)
        values = vars(header)
        for name, wire_name, parse, _, default in cls._fields or cls._look():
            text = fields.get(wire_name)
            if text is None or (not text and parse is not None):
                if default is _MISSING:
                    raise HeaderError(f"the header field {wire_name} is missing")
                values[name] = default
            elif parse is None:
                values[name] = text
            else:
                try:
                    values[name] = parse(text)
                except ValueError as error:
                    raise HeaderError(f"the header field {wire_name}: {error}") from error
        return header

    def encode(self) -> dict[str, str]:
        """The header as a command's fields; None is left out."""
        encoded: dict[str, str] = {}
        values = vars(self)
        for name, wire_name, _, write, _ in self._fields or self._look():
            value = values[name]
            if value is not None:
                encoded[wire_name] = value if write is None else write(value)
        return encoded
