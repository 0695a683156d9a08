"""What a consumer wants of its topics, and whether the rest of its group wants the same. Pure.

A broker keeps one subscription per group and topic. Members that want different things of a topic
overwrite each other there with every heartbeat, and messages are skipped for all of them;
``differences`` finds that out from what the broker keeps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from goddard.errors import ConfigError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.filter import FilterSyntaxError, is_tag_type, parse_tags

SQL92 = "SQL92"


@dataclass(frozen=True, slots=True, init=False)
class Tags:
    """Messages with one of these tags: ``Tags("TagA", "TagB")`` is ``"TagA || TagB"``."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f'tags are texts, one by one: Tags("A", "B"), not {name!r:.200}')
        if not names or not all(name.strip() for name in names):
            raise ConfigError("Tags needs the name of a tag at least; write '*' for all messages")
        if any("||" in name for name in names):
            raise ConfigError(
                "a tag has no || in its name; give each tag as an argument of its own"
            )
        object.__setattr__(self, "names", names)


@dataclass(frozen=True, slots=True)
class Sql:
    """Messages whose properties fulfil an SQL92 condition, as ``Sql("a > 5 AND b = 'x'")``.

    The broker must allow it (``enablePropertyFilter=true``).
    """

    condition: str

    def __post_init__(self) -> None:
        if not isinstance(self.condition, str):
            raise TypeError(f"an SQL92 condition is a text, not {self.condition!r:.200}")
        if not self.condition.strip():
            raise ConfigError("an SQL92 condition must not be empty")


Expression: TypeAlias = str | Tags | Sql | None
"""``"*"`` (all), ``"TagA || TagB"``, Tags or Sql."""


def subscription(topic: str, expression: Expression, version_ms: int) -> SubscriptionData:
    """A subscription as heartbeats and pulls carry it. Of two versions the newer counts."""
    if isinstance(expression, Sql):
        return SubscriptionData(
            topic=topic,
            sub_string=expression.condition,
            expression_type=SQL92,
            sub_version=version_ms,
        )
    text = _tags_text(topic, expression)
    try:
        tags = parse_tags(text)
    except FilterSyntaxError as error:
        raise ConfigError(f"the subscription {text!r} of {topic} is wrong: {error}") from error
    return SubscriptionData(
        topic=topic,
        sub_string=tags.expression,
        tags_set=list(tags.tags),
        code_set=sorted(tags.codes),
        sub_version=version_ms,
    )


def _tags_text(topic: str, expression: object) -> str | None:
    if isinstance(expression, Tags):
        return " || ".join(expression.names)
    if expression is None or isinstance(expression, str):
        return expression
    raise ConfigError(
        f"the subscription {expression!r} of {topic} is wrong: give 'TagA || TagB', Tags or Sql"
    )


def is_sql(wanted: SubscriptionData) -> bool:
    return not is_tag_type(wanted.expression_type)


def differences(
    own: Iterable[SubscriptionData], group: Mapping[str, SubscriptionData]
) -> list[str]:
    """What a group's subscriptions, as a broker keeps them, have different from our own."""
    found = []
    topics = set()
    for wanted in own:
        topics.add(wanted.topic)
        kept = group.get(wanted.topic)
        if kept is None:
            found.append(f"{wanted.topic} is not subscribed to by the others")
        elif _meaning(kept) != _meaning(wanted):
            found.append(
                f"{wanted.topic} is subscribed to with {wanted.sub_string!r} here "
                f"and with {kept.sub_string!r} by others"
            )
    found += [
        f"{topic} is subscribed to by others and not here"
        for topic in sorted(group.keys() - topics)
    ]
    return found


def _meaning(wanted: SubscriptionData) -> tuple[object, ...]:
    if is_sql(wanted):
        return (wanted.expression_type, wanted.sub_string.strip())
    # Clients leave out the sets, or list them in any order.
    try:
        return ("TAG", *sorted(parse_tags(wanted.sub_string).tags))
    except FilterSyntaxError:
        return ("TAG", wanted.sub_string)
