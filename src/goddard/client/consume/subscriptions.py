"""A consumer's subscriptions, and whether the other members of its group have the same ones.

A broker keeps one subscription per group and topic. Members with different subscriptions to a topic
overwrite each other there with every heartbeat, and messages are skipped for all of them.
``SubscriptionCheck`` asks the broker before each rebalance and warns, once for each difference.
The rest of this module does no I/O.
"""

import logging
import re
from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec.structs import replace

from goddard.client import broker_api
from goddard.client.session import Session
from goddard.errors import ArgumentTypeError, ConfigError, GoddardError
from goddard.protocol.bodies_admin import ConsumerConnections
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import RequestCode
from goddard.protocol.filters.expression import FilterSyntaxError, is_tag_type, parse_tags
from goddard.protocol.headers.admin import GetConsumerConnectionsRequest

SQL92: Final = "SQL92"

_logger: Final = logging.getLogger("goddard.client")

# What a condition contains and a list of tags hardly ever does.
_CONDITION: Final = re.compile(
    r"[<>=]|\s(?:and|or|not|in|is|between|contains|startswith|endswith)\s", re.IGNORECASE
)
_ONE_BAR: Final = re.compile(r"(?<!\|)\|(?!\|)")


@dataclass(frozen=True, slots=True, init=False)
class Tags:
    """Messages with one of these tags: ``Tags("TagA", "TagB")`` is ``"TagA || TagB"``."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f'a tag is a str, as in Tags("A", "B"), not {name!r:.200}')
        if not names or not all(name.strip() for name in names):
            raise ConfigError("Tags needs at least one tag; write '*' for all messages")
        if any("||" in name for name in names):
            raise ConfigError("a tag cannot contain ||; give each tag as its own argument")
        object.__setattr__(self, "names", names)


@dataclass(frozen=True, slots=True)
class Sql:
    """Messages whose properties fulfil an SQL92 condition, as ``Sql("a > 5 AND b = 'x'")``.

    The broker must allow it (``enablePropertyFilter=true``).
    """

    condition: str

    def __post_init__(self) -> None:
        if not isinstance(self.condition, str):
            raise TypeError(f"an SQL92 condition is a str, not {self.condition!r:.200}")
        if not self.condition.strip():
            raise ConfigError("an SQL92 condition must not be empty")


Expression: TypeAlias = str | Tags | Sql | None
"""``"*"`` (all), ``"TagA || TagB"``, Tags or Sql."""


def subscription(topic: str, expression: Expression, version_ms: int) -> SubscriptionData:
    """A subscription as heartbeats and pulls carry it. A broker keeps the newest version."""
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
        raise ConfigError(f"the subscription {text!r} to {topic} is wrong: {error}") from error
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
    if expression is None:
        return None
    if isinstance(expression, str):
        if _CONDITION.search(expression):
            raise ConfigError(
                f"the subscription {expression!r} to {topic} is not a list of tags: write "
                f"Sql({expression!r}) for a condition, or Tags({expression!r}) if this is one tag"
            )
        if _ONE_BAR.search(expression):
            raise ConfigError(
                f"the subscription {expression!r} to {topic} is not a list of tags: separate tags "
                "with ||"
            )
        return expression
    raise ArgumentTypeError(
        f"the subscription {expression!r} to {topic} is wrong: give 'TagA || TagB', Tags or Sql"
    )


def is_sql(wanted: SubscriptionData) -> bool:
    return not is_tag_type(wanted.expression_type)


def differences(
    own: Iterable[SubscriptionData], group: Mapping[str, SubscriptionData]
) -> list[str]:
    """How a group's subscriptions, as a broker keeps them, differ from our own."""
    found = []
    topics = set()
    for wanted in own:
        topics.add(wanted.topic)
        kept = group.get(wanted.topic)
        if kept is None:
            found.append(f"{wanted.topic} is subscribed to here and not by others")
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
    # Other clients leave out the tags, or list them in any order.
    try:
        return ("TAG", *sorted(parse_tags(wanted.sub_string).tags))
    except FilterSyntaxError:
        return ("TAG", wanted.sub_string)


class Subscriptions:
    """The subscriptions of one consumer, by topic as brokers know it.

    Pulls carry the version that was announced to the brokers: a broker refuses a newer one.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, SubscriptionData] = {}
        self._announced: dict[str, SubscriptionData] = {}
        self._last_version_ms = 0

    @property
    def topics(self) -> KeysView[str]:
        """A live view."""
        return self._wanted.keys()

    @property
    def all(self) -> list[SubscriptionData]:
        return list(self._wanted.values())

    def __contains__(self, topic: str) -> bool:
        return topic in self._wanted

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def set(self, topic: str, expression: Expression, now_ms: int) -> None:
        """Subscribe to a topic; replaces an earlier subscription to it."""
        self._wanted[topic] = subscription(topic, expression, self._next_version(now_ms))

    def remove(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self._announced.pop(topic, None)

    def renew(self, topic: str, now_ms: int) -> None:
        """Give a subscription a new version, so that brokers take it over another member's."""
        if topic in self._wanted:
            version_ms = self._next_version(now_ms)
            self._wanted[topic] = replace(self._wanted[topic], sub_version=version_ms)

    def of(self, topic: str) -> SubscriptionData | None:
        return self._wanted.get(topic)

    def announced(self, topic: str) -> SubscriptionData | None:
        """The subscription to a topic, as brokers know it."""
        return self._announced.get(topic)

    def unannounced(self) -> list[str]:
        """Topics of which brokers know nothing yet."""
        return sorted(self._wanted.keys() - self._announced.keys())

    def mark_announced(self, told: Iterable[SubscriptionData]) -> list[str]:
        """Brokers know these subscriptions now; returns the topics of those that are new."""
        before, self._announced = self._announced, {each.topic: each for each in told}
        return [topic for topic, each in self._announced.items() if each != before.get(topic)]

    def _next_version(self, now_ms: int) -> int:
        """Grows even if the clock is set back: a broker keeps the newest version."""
        self._last_version_ms = max(now_ms, self._last_version_ms + 1)
        return self._last_version_ms


class SubscriptionCheck:
    """Compares a consumer's subscriptions with those of its group.

    The broker is asked before each rebalance. In the rebalance after a new member joined, it has
    that member's subscriptions, until our next heartbeat replaces them.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        # What was warned of: the subscriptions that a broker keeps may change with every heartbeat.
        self._warned: set[str] = set()

    async def check(self, own: Iterable[SubscriptionData]) -> None:
        """Warn of differences that were not there before."""
        found = await self._differences(list(own)) - self._warned
        if found:
            self._warned |= found
            _logger.warning(
                "the members of the group %s have different subscriptions, so that messages will "
                "be missed: %s. Give all members of a group the same subscriptions.",
                self._group,
                "; ".join(sorted(found)),
            )

    async def _differences(self, own: list[SubscriptionData]) -> set[str]:
        found: set[str] = set()
        for addresses in self._session.broker_addresses().values():
            address = addresses.get(0)
            if address is None:
                continue
            try:
                kept = await self._connections(address)
            except GoddardError as error:
                # The broker may not know the group yet, or may not allow the request.
                _logger.debug("broker %s does not describe %s: %s", address, self._group, error)
                continue
            if len(kept.connection_set) > 1:
                found |= set(differences(own, kept.subscription_table))
        return found

    async def _connections(self, address: str) -> ConsumerConnections:
        command = broker_api.command(
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionsRequest(consumer_group=self._group),
        )
        timeout_ms = self._session.options.api_timeout_ms
        return await broker_api.read(
            await self._session.call(address, command, timeout_ms), ConsumerConnections
        )
