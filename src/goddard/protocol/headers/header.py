"""Declarative command headers: a class per header, a line per field.

A field is snake_case here and camelCase on the wire; ``wire("name")`` sets another wire name.
Annotations define the wire type: ``str``, ``bool``, ``Int32``, ``Int64``; with ``| None`` the
field is optional. A field without default is required: its absence raises HeaderError, as Java's
``@CFNotNull`` does.

Decoding is as lenient as Java: unknown fields are ignored, only "true" in any case is true, a null
or empty number or boolean is treated as absent, numbers must fit their type.
"""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, dataclass_transform

from goddard.errors import HeaderError

Int32 = Annotated[int, 32]
Int64 = Annotated[int, 64]

_SMALL_NUMBERS: Final = {str(number): number for number in range(1024)}
_BOOLS: Final = {"true": True, "false": False}

# The default of a field that has no default.
_MISSING: Final = object()


class _Wire(NamedTuple):
    name: str
    default: Any


def wire(name: str, *, default: Any = _MISSING) -> Any:
    """A field whose wire name is not its own name in camelCase."""
    return _Wire(name, default)


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _parse_int(bits: int) -> Callable[[str], int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    always_fits = 9 if bits == 32 else 18  # so many digits

    def parse(text: str) -> int:
        # Java's parseInt accepts ASCII digits with a sign and nothing else; int() would also accept
        # spaces, underscores and other digits, and is slow for very long text.
        if text.isdigit() and text.isascii() and len(text) <= always_fits:
            return int(text)
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
    parse: Callable[[str], Any] | None  # None: text, used unchanged
    frequent: dict[str, Any]  # what parse returns for some texts, because a call is slower
    write: Callable[[Any], str] | None
    default: Any


def _field_of(name: str, annotation: Any, default: Any) -> _Field:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (annotation,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
    parse: Callable[[str], Any] | None
    write: Callable[[Any], str] | None
    frequent: dict[str, Any] = {}
    if annotation is str:
        parse, write = None, None
    elif annotation is bool:
        parse, write, frequent = _parse_bool, _write_bool, _BOOLS
    elif typing.get_origin(annotation) is Annotated:
        parse, write = _parse_int(typing.get_args(annotation)[1]), str
        frequent = _SMALL_NUMBERS
    else:
        raise TypeError(f"{name}: {annotation} is not a header field type")
    if isinstance(default, _Wire):
        return _Field(name, default.name, parse, frequent, write, default.default)
    return _Field(name, camel_case(name), parse, frequent, write, default)


@dataclass_transform(kw_only_default=True, field_specifiers=(wire,))
class Header:
    """Base of all headers. The annotations of a subclass are its fields, passed by keyword.

    There are more than a hundred headers, and a program uses few of them: the annotations of a
    class are resolved when it is first used, which keeps the import fast.
    """

    _fields: ClassVar[tuple[_Field, ...] | None] = None
    # The attributes of an instance created without arguments; those of them that have defaults.
    _template: ClassVar[dict[str, Any]] = {}
    _defaults: ClassVar[dict[str, Any]] = {}
    # Of each field, by its wire name: name, parser, values of frequent texts.
    _by_wire_name: ClassVar[dict[str, tuple[str, Callable[[str], Any] | None, dict[str, Any]]]] = {}

    def __init_subclass__(cls) -> None:
        cls._fields = None

    def __init__(self, **values: Any) -> None:
        fields = self._fields or self._resolve_fields()
        attributes = vars(self)
        attributes.update(self._template)
        attributes.update(values)
        if len(attributes) != len(fields) or _MISSING in attributes.values():
            self._raise_wrong_fields(values)

    @classmethod
    def _resolve_fields(cls) -> tuple[_Field, ...]:
        """The fields of a class from its annotations, those of its parents first."""
        hints = typing.get_type_hints(cls, include_extras=True)
        fields = tuple(
            _field_of(name, hint, getattr(cls, name, _MISSING))
            for name, hint in hints.items()
            if typing.get_origin(hint) is not ClassVar
        )
        cls._template = {field.name: field.default for field in fields}
        cls._defaults = {
            name: default for name, default in cls._template.items() if default is not _MISSING
        }
        cls._by_wire_name = {
            field.wire_name: (field.name, field.parse, field.frequent) for field in fields
        }
        # Set last: a thread that sees _fields must see the others.
        cls._fields = fields
        return fields

    def _raise_wrong_fields(self, values: dict[str, Any]) -> None:
        name = type(self).__name__
        if unknown := sorted(values.keys() - self._template.keys()):
            raise TypeError(f"{name} has no field {', '.join(unknown)}")
        missing = [field for field, value in vars(self).items() if value is _MISSING]
        raise TypeError(f"{name} needs {', '.join(missing)}")

    @classmethod
    def wire_names(cls) -> dict[str, str]:
        """The wire name of each field, by field name."""
        return {field.name: field.wire_name for field in cls._fields or cls._resolve_fields()}

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
        """Decode the header from a command's fields; HeaderError names the invalid field."""
        header = cls.__new__(cls)
        header.__dict__ = cls._decode_values(fields)
        return header

    @classmethod
    def _decode_values(cls, fields: Mapping[str, str]) -> dict[str, Any]:
        """The attributes of the header that a command's fields hold."""
        all_fields = cls._fields or cls._resolve_fields()
        by_wire_name = cls._by_wire_name
        values = cls._defaults.copy()
        try:
            for wire_name, text in fields.items():
                known = by_wire_name.get(wire_name)
                if known is None:
                    continue
                name, parse, frequent = known
                if parse is None:
                    values[name] = text
                elif (value := frequent.get(text)) is not None:
                    values[name] = value
                elif text:
                    values[name] = parse(text)
        except ValueError:
            raise cls._first_error(fields) from None
        if len(values) != len(all_fields):  # a field without default is missing
            raise cls._first_error(fields)
        return values

    @classmethod
    def _first_error(cls, fields: Mapping[str, str]) -> HeaderError:
        """What is wrong with the first invalid field, in the order of the class."""
        for _, wire_name, parse, _, _, default in cls._fields or ():
            text = fields.get(wire_name)
            if text is None or (not text and parse is not None):
                if default is _MISSING:
                    return HeaderError(f"the header field {wire_name} is missing")
            elif parse is not None:
                try:
                    parse(text)
                except ValueError as error:
                    return HeaderError(f"the header field {wire_name}: {error}")
        raise AssertionError(f"{cls.__name__} has no invalid field")

    def encode(self) -> dict[str, str]:
        """Encode the header as a command's fields, without those that are None."""
        encoded: dict[str, str] = {}
        values = vars(self)
        for name, wire_name, _, _, write, _ in self._fields or self._resolve_fields():
            value = values[name]
            if value is not None:
                encoded[wire_name] = value if write is None else write(value)
        return encoded
