"""What a consumer wants of a queue: tag and SQL92 filters over queue entries, records and arrivals.

A filter is asked three times at most: for the 64 bits of a queue entry, for the record itself, and,
while a pull is parked, for a message that just arrived. No filter (None) means every message.

``ConsumerFilters`` keeps the SQL expressions of groups, as ``consumerFilter.json`` holds them, for
pulls that do not carry their own. It belongs to the loop.
"""

import logging
from array import array
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from goddard.broker.settings import Settings
from goddard.clock import Clock, SystemClock
from goddard.errors import ProtocolError
from goddard.protocol import names
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.filters.expression import (
    ALL_TAGS,
    BLOOM_BITS,
    FilterSyntaxError,
    SqlFilter,
    bloom_positions,
    compile_sql,
    is_tag_type,
    parse_tags,
)
from goddard.protocol.message import PROPERTY_RETRY_TOPIC, decode_properties, find_property
from goddard.protocol.record import read_summary
from goddard.store.log.records import LogEntry
from goddard.store.tables import (
    FILTER_LIFE_AFTER_DEATH_MS,
    BloomFilterData,
    ConsumerFilter,
    ConsumerFilterTable,
)

_log = logging.getLogger(__name__)

SQL92: Final = "SQL92"
# A broker that starts takes every consumer of a filter for gone since half a minute.
_DEAD_BEFORE_START_MS: Final = 30_000


# Compiling takes some microseconds per character, on the loop; no sane expression is this long.
MAX_SQL_CHARS: Final = 16_384
# Expressions up to here are remembered once compiled: pulls that carry theirs repeat it.
_REMEMBERED_CHARS: Final = 4096

_compiled = lru_cache(maxsize=256)(compile_sql)


def check_expression(expression_type: str, expression: str) -> SqlFilter:
    """Compile an expression that is not of tags; FilterSyntaxError says what is wrong."""
    if expression_type != SQL92:
        raise FilterSyntaxError(f"no filter of the type {expression_type[:80]!r}", 0)
    if not expression:
        raise FilterSyntaxError("the expression is empty", 0)
    if len(expression) > MAX_SQL_CHARS:
        raise FilterSyntaxError(
            f"{len(expression)} characters; at most {MAX_SQL_CHARS} are allowed", MAX_SQL_CHARS
        )
    if len(expression) > _REMEMBERED_CHARS:
        return compile_sql(expression)
    return _compiled(expression)


def normalised(subscription: SubscriptionData) -> SubscriptionData:
    """A subscription with what some clients leave to the broker: ``*`` for nothing, the hashes."""
    if not is_tag_type(subscription.expression_type) or subscription.code_set:
        return subscription
    try:
        tags = parse_tags(subscription.sub_string)
    except FilterSyntaxError:
        return subscription
    return msgspec.structs.replace(
        subscription,
        sub_string=tags.expression,
        tags_set=list(tags.tags),
        code_set=list(tags.codes),
    )


class PullFilter(Protocol):
    """A filter of the store that also knows arriving messages."""

    @property
    def needs_records(self) -> bool:
        """Whether queue entries alone do not tell."""
        ...

    def matches_code(self, tags_code: int) -> bool: ...

    def matches_record(self, record: memoryview) -> bool: ...

    def matches_arrival(self, entry: LogEntry) -> bool: ...


class TagCodes:
    """Tags by their hashes; the consumer compares the text itself."""

    __slots__ = ("_codes", "codes")

    needs_records: Final = False

    def __init__(self, codes: Iterable[int]) -> None:
        # A queue entry holds the hash sign-extended, but its low 32 bits are what counts.
        self._codes = frozenset(code & 0xFFFFFFFF for code in codes)
        self.codes = array("I", sorted(self._codes))

    def matches_code(self, tags_code: int) -> bool:
        return tags_code & 0xFFFFFFFF in self._codes

    def matches_record(self, record: memoryview) -> bool:
        return True

    def matches_arrival(self, entry: LogEntry) -> bool:
        return entry.tags_code & 0xFFFFFFFF in self._codes


@lru_cache(maxsize=4096)
def _tag_codes(codes: tuple[int, ...]) -> TagCodes:
    return TagCodes(codes)


def tag_filter(expression: str) -> PullFilter | None:
    """The filter of a tag expression; None for ``*``. FilterSyntaxError when it names no tag."""
    if not expression or expression == ALL_TAGS:
        return None
    if len(expression) > _REMEMBERED_CHARS:
        return TagCodes(parse_tags(expression).codes)
    return _parsed(expression)


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> TagCodes:
    return TagCodes(parse_tags(expression).codes)


class SqlMatch:
    """An SQL92 expression over the properties of messages."""

    __slots__ = ("_sql",)
    needs_records: Final = True

    def __init__(self, sql: SqlFilter) -> None:
        self._sql = sql

    def matches_code(self, tags_code: int) -> bool:
        return True

    def matches_record(self, record: memoryview) -> bool:
        try:
            properties = read_summary(record).properties
        except ProtocolError:
            return False
        return self.matches_properties(properties)

    def matches_arrival(self, entry: LogEntry) -> bool:
        return self.matches_properties(entry.properties)

    def matches_properties(self, properties: bytes) -> bool:
        return self._sql.matches(decode_properties(properties))


class RetryMatch(SqlMatch):
    """For retry topics: each message is filtered as in the topic that it came from."""

    __slots__ = ("_filters", "_group")

    def __init__(self, sql: SqlFilter, filters: "ConsumerFilters", group: str) -> None:
        super().__init__(sql)
        self._filters = filters
        self._group = group

    def matches_properties(self, properties: bytes) -> bool:
        origin = find_property(properties, PROPERTY_RETRY_TOPIC.encode())
        if origin is None:
            return True
        found = self._filters.get(origin.decode("utf-8", "replace"), self._group)
        return found is None or found[1].matches(decode_properties(properties))


class ConsumerFilters:
    """The SQL filters of groups, and the making of filters from subscriptions."""

    def __init__(
        self, table: ConsumerFilterTable, settings: Settings, *, clock: Clock | None = None
    ) -> None:
        """The table is to be loaded already."""
        self.table = table
        self._settings = settings
        self._clock = clock or SystemClock()
        died_ms = self._clock.now_ms() - _DEAD_BEFORE_START_MS
        for each in list(table):
            if each.dead_time == 0:
                table.put(each.die(max(died_ms, each.born_time)))
        # By group, the topics with filters that are not dead: a heartbeat looks at these alone.
        self._active: dict[str, set[str]] = {}

    def get(self, topic: str, group: str) -> tuple[ConsumerFilter, SqlFilter] | None:
        """A group's filter and its compiled form; None without one that compiles."""
        found = self.table.get(topic, group)
        if found is None:
            return None
        try:
            return found, check_expression(found.expression_type, found.expression)
        except FilterSyntaxError:
            return None

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take the expressions of a heartbeat; filters on topics that it leaves out are dead."""
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription)
        self._mark_dead(group, kept=topics)

    def unregister(self, group: str) -> None:
        """The group has no consumer any more."""
        self._mark_dead(group, kept=frozenset())

    def purge(self) -> None:
        """Forget filters whose consumers are gone for longer than ``filterDataCleanTimeSpan``."""
        life_ms = self._settings.current.filter_life_ms
        self.table.purge(self._clock.now_ms() + FILTER_LIFE_AFTER_DEATH_MS - life_ms)

    def of_tags(self, subscription: SubscriptionData) -> PullFilter | None:
        """The filter of a tag subscription; None when it wants every message."""
        if subscription.sub_string == ALL_TAGS:
            return None
        return _tag_codes(tuple(subscription.code_set))

    def of_sql(self, sql: SqlFilter, topic: str, group: str) -> PullFilter:
        if self._settings.current.filter_retries and names.is_retry_topic(topic):
            return RetryMatch(sql, self, group)
        return SqlMatch(sql)

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, expression = subscription.topic, subscription.sub_string
        kind, version = subscription.expression_type, subscription.sub_version
        old = self.table.get(topic, group)
        if old is not None and version <= old.client_version:
            if version == old.client_version and old.is_dead:
                self._put(old.revive())
            return
        if old is not None and (expression, kind) == (old.expression, old.expression_type):
            self._put(msgspec.structs.replace(old.revive(), client_version=version))
            return
        now_ms = self._clock.now_ms()
        filter_ = ConsumerFilter(
            topic=topic,
            consumer_group=group,
            expression=expression,
            expression_type=kind,
            born_time=now_ms,
            client_version=version,
            bloom_filter_data=BloomFilterData(BLOOM_BITS, list(bloom_positions(group, topic))),
        )
        try:
            check_expression(kind, expression)
        except FilterSyntaxError as error:
            _log.error(
                "parse error: expr=%s, topic=%s, group=%s, error=%s",
                expression[:1000],
                topic,
                group,
                error,
            )
            if old is not None:
                # It must not go on to filter by the old one: its pulls are told (code 27).
                self._put(filter_.die(now_ms))
            return
        _log.info("Consumer filter registered, old: %s, new: %s", old, filter_)
        self._put(filter_)

    def _mark_dead(self, group: str, kept: Collection[str]) -> None:
        for topic in self._active.get(group, set()).difference(kept):
            each = self.table.get(topic, group)
            if each is not None:
                _log.info("Unregister consumer filter: %s", each)
                self._put(each.die(self._clock.now_ms()))

    def _put(self, filter_: ConsumerFilter) -> None:
        self.table.put(filter_)
        topics = self._active.setdefault(filter_.consumer_group, set())
        if filter_.is_dead:
            topics.discard(filter_.topic)
            if not topics:
                del self._active[filter_.consumer_group]
        else:
            topics.add(filter_.topic)
