"""Attributes of topics and groups: how requests change them, and which values they take. Pure.

A change is ``+key=value`` (add or replace) or ``-key`` (remove). What is wrong with one is an
AttributeProblemError in RocketMQ's words.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from goddard.errors import GoddardError

_MAX_INT64: Final = 2**63 - 1


class AttributeProblemError(GoddardError):
    """A change of attributes cannot be made."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """``problem`` tells what is wrong with a value; ``is_changeable`` whether it may be altered."""

    problem: Callable[[str], str | None]
    is_changeable: bool


def _one_of(*values: str, unsupported: str = "") -> Callable[[str], str | None]:
    """One of Java's values. ``unsupported`` is the one that this broker could not act on."""

    def problem(value: str) -> str | None:
        if value and value == unsupported:
            return f"the value {value} is not supported by this broker"
        return None if value in values else f"value is not in set: [{', '.join(values)}]"

    return problem


def _within(low: int, high: int) -> Callable[[str], str | None]:
    def problem(value: str) -> str | None:
        if not re.fullmatch(r"-?[0-9]{1,19}", value):
            return f'For input string: "{value[:80]}"'
        return None if low <= int(value) <= high else f"value is not in range({low}, {high})"

    return problem


def _reserve_time(value: str) -> str | None:
    problem = _within(-1, _MAX_INT64)(value)
    if problem is None and int(value) != -1:
        return "a retention time per topic is not supported by this broker"
    return problem


MIXED: Final = "MIXED"
MESSAGE_TYPE: Final = "message.type"
TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(
        _one_of("BatchCQ", "SimpleCQ", unsupported="BatchCQ"), is_changeable=False
    ),
    "cleanup.policy": Attribute(
        _one_of("COMPACTION", "DELETE", unsupported="COMPACTION"), is_changeable=False
    ),
    MESSAGE_TYPE: Attribute(
        _one_of("UNSPECIFIED", MIXED, "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "NORMAL"),
        is_changeable=True,
    ),
    "reserve.time": Attribute(_reserve_time, is_changeable=True),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(_within(0, 100), is_changeable=True),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """The changes in ``+key=value,-key``: signed key → value."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        key, is_addition, value = part.partition("=")
        if is_addition and "+" not in key:
            raise AttributeProblemError(f"add/alter attribute format is wrong: {key[:80]}")
        if not is_addition and "-" not in key:
            raise AttributeProblemError(f"delete attribute format is wrong: {key[:80]}")
        if key in changes:
            raise AttributeProblemError(f"key duplication: {key[:80]}")
        changes[key] = value
    return changes


def altered(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    known: Mapping[str, Attribute],
) -> dict[str, str]:
    """The attributes after some changes; ``current`` is None for what is being created."""
    attributes = dict(current or {})
    seen = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise AttributeProblemError("kv string format wrong.")
        if key in seen:
            raise AttributeProblemError(f"alter duplication key. key: {key[:80]}")
        seen.add(key)
        if current is None and sign != "+":
            raise AttributeProblemError(
                f"only add attribute is supported while creating topic. key: {key[:80]}"
            )
        if sign == "-" and key not in attributes:
            raise AttributeProblemError(f"attempt to delete a nonexistent key: {key[:80]}")
        if sign not in ("+", "-"):
            raise AttributeProblemError(f"wrong format key: {key[:80]}")
        attribute = known.get(key)
        if attribute is None:
            raise AttributeProblemError(f"unsupported key: {key[:80]}")
        if current is not None and not attribute.is_changeable:
            raise AttributeProblemError(
                f"attempt to update an unchangeable attribute. key: {key[:80]}"
            )
        if sign == "-":
            del attributes[key]
            continue
        problem = attribute.problem(value)
        if problem is not None:
            raise AttributeProblemError(problem)
        attributes[key] = value
    return attributes
