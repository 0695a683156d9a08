"""Reading the words after a verb, by the rules of Apache Commons CLI. Pure.

``-t NAME``, ``-tNAME``, ``-t=NAME``, ``--topic NAME``, ``--topic=NAME`` and ``-topic NAME`` are the
same, and so is a unique beginning of a long name. The first of several values counts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from goddard.cli.mqadmin.declare import Flag, Verb, all_flags
from goddard.cli.terminal.groups import did_you_mean
from goddard.cli.terminal.mistakes import WrongUsageError, is_utf8

_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_NEGATIVE: Final = re.compile(r"-\.?[0-9].*")
_LONG_MAX: Final = 2**63 - 1
_BOOLEANS: Final = {"true": True, "false": False}


class Options:
    """The values of one call of a verb, by short name (or long name, if a flag has no other)."""

    def __init__(self, verb: Verb, given: Mapping[str, str | None], ignored: Sequence[str]) -> None:
        self.verb = verb
        self.ignored = ignored
        """Words that belong to no option."""
        self.given = frozenset(given)
        """The names of the given options."""
        self._given = given
        self._titles = {one.key: one.title for one in all_flags(verb)}

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def get(self, name: str) -> str | None:
        """A value; None if the option is not given."""
        value = self._given.get(name)
        return None if value is None else value.strip()

    def text(self, name: str, default: str = "") -> str:
        """A value that is required, or has a default."""
        value = self.get(name)
        return default if value is None else value

    def words(self, name: str, separator: str = ",") -> list[str]:
        """The parts of a value that is a list; empty if it is not given."""
        return [part.strip() for part in self.text(name).split(separator) if part.strip()]

    def number(self, name: str, default: int = 0, *, least: int = -_LONG_MAX) -> int:
        """A whole number."""
        value = self.get(name)
        if value is None:
            return default
        if not _NUMBER.fullmatch(value) or not least <= int(value) <= _LONG_MAX:
            at_least = f" from {least} on" if least > -_LONG_MAX else ""
            raise self.wrong(name, f"takes a whole number{at_least}, not {value!r}")
        return int(value)

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if name in self else None

    def boolean(self, name: str, default: bool = False) -> bool:
        """``true`` or ``false``; Java reads every other word as false."""
        value = self.get(name)
        if value is None:
            return default
        if value.lower() not in _BOOLEANS:
            raise self.wrong(name, f"takes true or false, not {value!r}")
        return _BOOLEANS[value.lower()]

    def choice(self, name: str, known: Iterable[str]) -> str:
        """One of the known words."""
        value, words = self.text(name), list(known)
        if value not in words:
            hint = did_you_mean(value, words)
            raise self.wrong(name, f"takes {' or '.join(words)}, not {value!r}{hint}")
        return value

    def wrong(self, name: str, text: str) -> WrongUsageError:
        """The error for a wrong value."""
        return WrongUsageError(f"{self._titles.get(name, name)} {text}")


def parse(verb: Verb, words: Sequence[str]) -> Options:
    """Read the words after a verb; WrongUsageError says what is wrong with them."""
    flags = all_flags(verb)
    given: dict[str, str | None] = {}
    ignored: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            ignored.append(word)
            continue
        found, value = _find(verb, flags, word)
        if found.takes_value and value is None:
            if not rest or _is_flag(flags, rest[0]):
                raise WrongUsageError(f"{found.title} needs a value")
            value = rest.pop(0)
        if value is not None and not is_utf8(value):
            raise WrongUsageError(f"{found.title} is not UTF-8 text")
        given.setdefault(found.key, value)
    if "h" not in given:
        _check(verb, given)
    return Options(verb, given, ignored)


def _find(verb: Verb, flags: Sequence[Flag], word: str) -> tuple[Flag, str | None]:
    """The flag of a word, and the value that is written in the same word."""
    name, equals, value = word.lstrip("-").partition("=")
    for one in flags:
        if name and (name == one.long or (name == one.short and not word.startswith("--"))):
            if equals and not one.takes_value:
                break
            return one, value if equals else None
    begun = [one for one in flags if len(name) > 1 and one.long.startswith(name)]
    if len(begun) == 1 and (begun[0].takes_value or not equals):
        return begun[0], value if equals else None
    if len(begun) > 1:
        raise WrongUsageError(f"{word} may be {' or '.join('--' + one.long for one in begun)}")
    if not word.startswith("--"):
        for one in flags:
            if one.takes_value and len(one.short) == 1 and word[1:2] == one.short:
                return one, word[2:]
    known = [f"--{one.long}" for one in flags] + [f"-{one.short}" for one in flags if one.short]
    hint = did_you_mean(f"--{name}" if len(name) > 1 else word, known)
    raise WrongUsageError(f"there is no option {word.partition('=')[0]}{hint}")


def _is_flag(flags: Sequence[Flag], word: str) -> bool:
    if not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word):
        return False
    name = word.lstrip("-").partition("=")[0]
    return any(name in (one.short, one.long) for one in flags)


def _check(verb: Verb, given: Mapping[str, str | None]) -> None:
    by_key = {one.key: one for one in verb.flags}
    missing = [one.title for one in verb.flags if one.is_required and one.key not in given]
    if missing:
        raise WrongUsageError(f"{' and '.join(missing)} must be given")
    for group in verb.one_of:
        names = group.split()
        chosen = [name for name in names if name in given]
        titles = " or ".join(by_key[name].title for name in names)
        if not chosen:
            raise WrongUsageError(f"{titles} must be given")
        if len(chosen) > 1:
            raise WrongUsageError(f"only one of {titles} can be given")
