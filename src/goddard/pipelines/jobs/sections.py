"""A table of a job file: what is taken from it is typed and checked off, the rest is a mistake.

Every problem is one ConfigError that says where it is ("[sink] partitionBy") and what to write.
Pure.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from goddard.errors import ConfigError

_INTERVAL: Final = re.compile(r"(\d{1,9}) (millisecond|second|minute|hour|day|week)s?")
_UNIT_MS: Final = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_MAX_INTERVAL_DAYS: Final = 36_500
_MAX_INTERVAL_MS: Final = _MAX_INTERVAL_DAYS * _UNIT_MS["day"]


def near(name: str, known: Iterable[str]) -> str:
    """A hint for somebody who wrote ``name`` where one of ``known`` was wanted."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1, cutoff=0.5)
    if found:
        return f"did you mean {by_lower[found[0]]}?"
    return f"known: {', '.join(by_lower.values())}"


def interval_ms(text: str) -> int | None:
    """How long "10 minutes" is; None if it is not written that way."""
    matched = _INTERVAL.fullmatch(text.strip().lower())
    return None if matched is None else int(matched[1]) * _UNIT_MS[matched[2]]


class Section:
    """One table; ``place`` is how messages call it."""

    def __init__(self, place: str, given: object, known: Iterable[str]) -> None:
        self.place = place
        if not isinstance(given, Mapping):
            raise ConfigError(f"{place} is {_kind(given)}; a table is wanted")
        self._values: Mapping[str, Any] = given
        names = tuple(known)
        for name in given:
            if name not in names:
                raise ConfigError(f"{self._at(name)} is unknown; {near(name, names)}")

    def _at(self, name: str) -> str:
        return f"{self.place} {name}".strip()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> object:
        return self._values.get(name)

    def error(self, name: str, problem: str) -> ConfigError:
        return ConfigError(f"{self._at(name)} {problem}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.error(name, f"is {_kind(value)}; a text in quotes is wanted")
        if not value.strip():
            raise self.error(name, "is empty; leave it out or give a value")
        return value.strip()

    def needed_text(self, name: str, example: str) -> str:
        if self._values.get(name) == "":
            raise self.error(name, f"is empty; write for example {name} = {example!r}")
        value = self.text(name)
        if value is None:
            raise self.error(name, f"is missing; write for example {name} = {example!r}")
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        value = self.text(name)
        known = tuple(choices)
        if value is not None and value not in known:
            raise self.error(name, f"is {value!r}; {near(value, known)}")
        return default if value is None else value

    def interval(
        self, name: str, default: str | None = None, *, may_be_zero: bool = False
    ) -> str | None:
        value = self.text(name)
        if value is None:
            return default
        length_ms = interval_ms(value)
        if length_ms is None or (length_ms == 0 and not may_be_zero):
            raise self.error(name, f"is {value!r}; write it as '30 seconds' or '10 minutes'")
        if length_ms > _MAX_INTERVAL_MS:
            raise self.error(name, f"is {value!r}; the longest is {_MAX_INTERVAL_DAYS} days")
        return value

    def count(self, name: str, default: int, *, low: int, high: int) -> int:
        value = self._values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(name, f"is {value!r}; a whole number from {low} to {high} is wanted")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"is {_kind(value)}; write true or false")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of texts, none of them twice."""
        value = self._values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(name, 'is no list of texts; write it as ["a", "b"]')
        if any(not each.strip() for each in value) or len(set(value)) != len(value):
            raise self.error(name, "has an empty entry, or one twice")
        return tuple(value)

    def texts(self, name: str) -> dict[str, str]:
        """A table of texts; numbers and flags are written as Spark reads them."""
        value = self._values.get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(name, f"is {_kind(value)}; a table is wanted")
        return {key: self._option(f"{name}.{key}", each) for key, each in value.items()}

    def rest(self, taken: Iterable[str]) -> dict[str, str]:
        """All but what has names of its own, as options for Spark."""
        own = frozenset(taken)
        return {
            key: self._option(key, value) for key, value in self._values.items() if key not in own
        }

    def _option(self, name: str, value: object) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (str, int, float)):
            return str(value)
        if isinstance(value, Mapping) and "." in name:
            raise self.error(name, "is a table; names with dots in them are written in quotes")
        raise self.error(name, f"is {_kind(value)}; a text, a number or true or false is wanted")


class OpenSection(Section):
    """A table whose names are not ours alone to know."""

    def __init__(self, place: str, given: object) -> None:
        super().__init__(place, given, given if isinstance(given, Mapping) else ())


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return f"{value!r}"
