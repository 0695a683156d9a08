"""The options of the sources and the sink, checked as a whole before anything is read or written.

Names follow Spark's Kafka source where the meaning is the same; case does not matter, as everywhere
in Spark. Whatever is wrong is one ConfigError that names the option and says what to write.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from goddard.client.name_servers import parse_name_servers
from goddard.client.options import Credentials, SessionKeywords
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, ProtocolError
from goddard.protocol.filter import compile_sql, parse_tags
from goddard.protocol.names import group_problem, topic_problem
from goddard.spark import offsets
from goddard.spark.offsets import Offsets
from goddard.transport.tls import TlsOptions

T = TypeVar("T")

_MAX_COUNT: Final = 2**62
# Each is a task of Spark's, with a Python process and a connection: more only wait for each other.
_MAX_MIN_PARTITIONS: Final = 10_000
# For routes and the like, which name servers have at hand.
_NAME_SERVER_MS: Final = 3_000
# As Spark writes durations in options; a number alone is milliseconds.
_DURATION: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|min|h|d|)")
_UNIT_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

# What takes the place of options of Spark's Kafka source; of names that begin so, too.
_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "nameServers",
    "bootstrap.servers": "nameServers",
    "kafka.group.id": "group",
    "kafkaconsumer.polltimeoutms": "requestTimeoutMs",
    "kafka.security.protocol": "tls",
    "kafka.ssl.": "tls and tlsTrust",
    "kafka.sasl.": "accessKey and secretKey",
}

TAG: Final = "TAG"
SQL92: Final = "SQL92"


class Where(Enum):
    """A place in every queue that needs no number."""

    EARLIEST = "earliest"
    LATEST = "latest"
    # Where the consumer group stands; where it has no offset yet, the earliest.
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Place:
    """Where to start or to end reading; the first of these that is set counts.

    ``timestamp_ms`` for all topics, ``by_timestamp`` for some, ``numbers`` for some queues, and
    ``where`` for the others.
    """

    where: Where
    numbers: Offsets = field(default_factory=dict)
    timestamp_ms: int | None = None
    by_timestamp: Mapping[str, int | Offsets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connecting:
    """How to reach the cluster; both directions share it."""

    name_servers: str
    keywords: SessionKeywords
    request_timeout_ms: int
    retries: int
    retry_interval_ms: int
    # How long work that is under way waits for a server to come back.
    max_outage_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What ``spark.read`` and ``spark.readStream`` were told."""

    connecting: Connecting
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: frozenset[MessageQueue] = frozenset()
    includes_system_topics: bool = False
    start: Place
    end: Place
    fails_when_no_timestamp_matches: bool = True
    fails_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    expression: str = "*"
    expression_type: str = TAG
    group: str | None = None
    requests_in_flight: int = 8
    messages_per_request: int = 1_024
    rows_per_batch: int = 20_000
    pushes_filters: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the filter names; none if it names none."""
        return parse_tags(self.expression).tags if self.expression_type == TAG else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What ``df.write`` and ``df.writeStream`` were told."""

    connecting: Connecting
    topic: str | None = None
    producer_group: str = "goddard-spark"
    batch_bytes: int = 128 * 1024
    requests_in_flight: int = 8


class Given:
    """The options as given; what is taken from them is checked off, the rest is a mistake."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str]) -> None:
        """``known``: the names with a word each on their meaning."""
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            # Spark's own: what `load` and `save` were given, and nothing of ours.
            if name.lower() == "path" and "path" not in names:
                raise ConfigError(f"no path ({value}) is wanted; call load() or save() without one")
            if name.lower() not in names:
                raise ConfigError(f"unknown option {name}; {_meant(name.lower(), names)}")
            self._values[names[name.lower()]] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise ConfigError(f"{name} is empty; leave it out or give a value")
        return None if value is None else value.strip()

    def count(self, name: str, default: T, *, low: int = 1, high: int = _MAX_COUNT) -> int | T:
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?\d{1,19}", text) or not low <= int(text) <= high:
            raise ConfigError(f"{name} is {text!r}; a whole number from {low} to {high} is wanted")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} is {text!r}; write true or false")
        return text.lower() == "true"

    def duration_ms(self, name: str, default_ms: int) -> int:
        text = self.text(name)
        if text is None:
            return default_ms
        matched = _DURATION.fullmatch(text.lower())
        if matched is None:
            raise ConfigError(f"{name} is {text!r}; write it as 30s, 15m or 1h")
        return int(matched[1]) * _UNIT_MS[matched[2]]

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise ConfigError(f"{name} is {text!r}; choose one of: {', '.join(choices)}")

    def parsed(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        text = self.text(name)
        return default if text is None else parse(name, text)


def _meant(name: str, names: Mapping[str, str]) -> str:
    """A hint for somebody who gave an option that there is not; ``names`` by how Spark has them."""
    for begin, ours in _OF_KAFKA.items():
        if name == begin or (begin.endswith(".") and name.startswith(begin)):
            return f"did you mean {ours}?"
    if name.startswith("kafka."):
        return f"nothing is passed on to a client; known: {', '.join(names.values())}"
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {names[near[0]]}?" if near else f"known: {', '.join(names.values())}"


# How to reach the cluster; both directions.
CONNECTING: Final = {
    "nameServers": "addresses of the name servers, host:port;host:port",
    "accessKey": "with secretKey: signs requests (RocketMQ's access control)",
    "secretKey": "with accessKey",
    "securityToken": "a temporary credential's token, with the two keys",
    "namespace": "put before topics and groups",
    "tls": "true: encrypt connections",
    "tlsTrust": "PEM file of trusted authorities; the servers are verified against it",
    "tlsCertificate": "PEM file of our own certificate",
    "tlsKey": "PEM file of its key",
    "tlsKeyPassword": "password of the key",
    "requestTimeoutMs": "for one request (10000)",
    "fetchOffset.numRetries": "tries after the first when a server fails to answer (3)",
    "fetchOffset.retryIntervalMs": "pause between them (200)",
    "maxOutage": "how long a query that runs waits for a server to come back (2m)",
}

SOURCE: Final = CONNECTING | {
    "subscribe": "topics, separated by commas",
    "subscribePattern": "regular expression that topics match as a whole",
    "assign": 'queues: {"topic": {"broker": [0, 1]}}',
    "includeSystemTopics": "true: subscribePattern sees retry, dead-letter and system topics too",
    "startingOffsets": "earliest, latest, group, or JSON by topic, broker and queue",
    "endingOffsets": "the same, for batches (latest)",
    "startingTimestamp": "milliseconds since 1970",
    "endingTimestamp": "milliseconds since 1970, for batches",
    "startingOffsetsByTimestamp": 'JSON: {"topic": ms} or by broker and queue',
    "endingOffsetsByTimestamp": "the same, for batches",
    "startingOffsetsByTimestampStrategy": "no message that young: error or latest",
    "failOnDataLoss": "false: go on when messages were deleted before they were read (true)",
    "minPartitions": "cut queues so that at least about as many tasks read",
    "maxRecordsPerPartition": "cut queues into ranges of at most so many",
    "maxOffsetsPerTrigger": "at most so many messages in a micro-batch",
    "minOffsetsPerTrigger": "wait for so many ...",
    "maxTriggerDelay": "... but not longer than this (15m)",
    "filter": "tags (A || B) or an SQL92 condition, applied by the broker",
    "filterType": "tag or sql92 (tag)",
    "group": "consumer group that offsets are committed to, and read from",
    "requestsInFlight": "pull requests of a task under way at once (8)",
    "messagesPerRequest": "messages asked for in one pull (1024); brokers give 32 by default",
    "rowsPerBatch": "rows of an Arrow batch (20000)",
    "pushFilters": "true: apply conditions on topic, queue, offset and time before reading; "
    "needs spark.sql.python.filterPushdown.enabled",
}

SINK: Final = CONNECTING | {
    "topic": "where rows without a column topic go",
    "producerGroup": "name of the producers (goddard-spark)",
    "batchBytes": "bytes of a request (131072)",
    "requestsInFlight": "requests of a task under way at once (8)",
}


def parse_source(given: Mapping[str, str], *, is_streaming: bool | None) -> SourceOptions:
    """Check the options of a read; None: before it is known whether of a batch or a stream."""
    options = Given(given, SOURCE)
    group = options.text("group")
    if group is not None and (problem := group_problem(group)) is not None:
        raise ConfigError(f"group is {group!r}: {problem}")
    topics, pattern, assigned = _subscription(options)
    start = _place(options, "starting", Where.LATEST if is_streaming else Where.EARLIEST, group)
    end = _place(options, "ending", Where.LATEST, group)
    if is_streaming is not None:
        _check_direction(options, start, end, is_streaming=is_streaming)
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    least = options.count("minOffsetsPerTrigger", None)
    most = options.count("maxOffsetsPerTrigger", None)
    if least is not None and most is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger is {least}, over maxOffsetsPerTrigger, {most}")
    expression, expression_type = _filter(options)
    return SourceOptions(
        connecting=connecting(options),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        includes_system_topics=options.flag("includeSystemTopics", default=False),
        start=start,
        end=end,
        fails_when_no_timestamp_matches=strategy == "error",
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        min_partitions=options.count("minPartitions", None, high=_MAX_MIN_PARTITIONS),
        max_records_per_partition=options.count("maxRecordsPerPartition", None),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", 15 * 60_000),
        expression=expression,
        expression_type=expression_type,
        group=group,
        requests_in_flight=options.count("requestsInFlight", 8, high=256),
        messages_per_request=options.count("messagesPerRequest", 1_024, high=100_000),
        rows_per_batch=options.count("rowsPerBatch", 20_000, high=1_000_000),
        pushes_filters=options.flag("pushFilters", default=False),
    )


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write."""
    # Spark adds where a stream keeps its checkpoint; that is not for us.
    own = {name: text for name, text in given.items() if name.lower() != "checkpointlocation"}
    options = Given(own, SINK)
    topic = options.text("topic")
    if topic is not None and (problem := topic_problem(topic)) is not None:
        raise ConfigError(f"topic is {topic!r}: {problem}")
    group = options.text("producerGroup") or "goddard-spark"
    if (problem := group_problem(group)) is not None:
        raise ConfigError(f"producerGroup is {group!r}: {problem}")
    return SinkOptions(
        connecting=connecting(options),
        topic=topic,
        producer_group=group,
        batch_bytes=options.count("batchBytes", 128 * 1024, high=4 * 1024 * 1024),
        requests_in_flight=options.count("requestsInFlight", 8, high=256),
    )


def connecting(options: Given) -> Connecting:
    name_servers = options.text("nameServers")
    if name_servers is None:
        raise ConfigError('nameServers is missing; give .option("nameServers", "host:9876")')
    parse_name_servers(name_servers, use_environment=False)
    request_timeout_ms = options.count("requestTimeoutMs", 10_000, high=600_000)
    quick_ms = min(request_timeout_ms, _NAME_SERVER_MS)
    keywords = SessionKeywords(api_timeout_ms=quick_ms, connect_timeout_ms=quick_ms)
    keys = [options.text(name) for name in ("accessKey", "secretKey", "securityToken")]
    if keys[0] is not None and keys[1] is not None:
        keywords["credentials"] = Credentials(keys[0], keys[1], keys[2])
    elif any(key is not None for key in keys):
        raise ConfigError("accessKey and secretKey go together; one of them is missing")
    if (namespace := options.text("namespace")) is not None:
        if (problem := topic_problem(namespace)) is not None:
            raise ConfigError(f"namespace is {namespace!r}: {problem.replace('topic', 'name')}")
        keywords["namespace"] = namespace
    if (tls := _tls(options)) is not None:
        keywords["tls"] = tls
    return Connecting(
        name_servers=name_servers,
        keywords=keywords,
        request_timeout_ms=request_timeout_ms,
        retries=options.count("fetchOffset.numRetries", 3, low=0, high=1_000),
        retry_interval_ms=options.count("fetchOffset.retryIntervalMs", 200, low=1, high=600_000),
        max_outage_ms=options.duration_ms("maxOutage", 2 * 60_000),
    )


def _tls(options: Given) -> TlsOptions | None:
    """How connections are encrypted; the files are looked at, as this machine connects too."""
    files = {name: options.text(name) for name in ("tlsTrust", "tlsCertificate", "tlsKey")}
    password = options.text("tlsKeyPassword")
    given = [name for name in (*files, "tlsKeyPassword") if name in options]
    if not options.flag("tls", default=bool(given)):
        if given:
            raise ConfigError(f"{given[0]} is given, but tls is false")
        return None
    for name, needed in (("tlsKey", "tlsCertificate"), ("tlsKeyPassword", "tlsKey")):
        if name in options and needed not in options:
            raise ConfigError(f"{name} is given without {needed}")
    trust, certificate, key = (None if text is None else Path(text) for text in files.values())
    tls = TlsOptions(
        trust=trust,
        certificate=certificate,
        key=key,
        key_password=password,
        verify_peer=trust is not None,
    )
    tls.client_context()
    return tls


def _subscription(
    options: Given,
) -> tuple[tuple[str, ...], re.Pattern[str] | None, frozenset[MessageQueue]]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(ways) != 1:
        raise ConfigError(
            f"give one of subscribe, subscribePattern and assign; {len(ways) or 'none'} of them "
            f"{'is' if not ways else 'are'} given"
        )
    if (text := options.text("subscribe")) is not None:
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",")))
        for topic in topics:
            if (problem := topic_problem(topic)) is not None:
                raise ConfigError(f"subscribe names the topic {topic!r}: {problem}")
        return topics, None, frozenset()
    if (text := options.text("subscribePattern")) is not None:
        try:
            return (), re.compile(text), frozenset()
        except re.error as error:
            raise ConfigError(f"subscribePattern is {text!r}: {error}") from error
    nothing: set[MessageQueue] = set()
    assigned = options.parsed("assign", offsets.parse_assignment, nothing)
    return tuple(sorted({queue.topic for queue in assigned})), None, frozenset(assigned)


def _place(options: Given, side: str, default: Where, group: str | None) -> Place:
    name = f"{side}Offsets"
    where, numbers = default, Offsets()
    text = options.text(name)
    if text is not None and text.startswith("{"):
        numbers = offsets.parse_queue_numbers(name, text, lowest=offsets.EARLIEST)
        if not numbers:
            raise ConfigError(f"{name} is {text!r}, which names no queue; leave it out")
    elif text is not None:
        where = Where(options.choice(name, tuple(each.value for each in Where), default.value))
    if where is Where.GROUP and group is None:
        raise ConfigError(f"{name} is group, but no group is given")
    return Place(
        where,
        numbers,
        options.count(f"{side}Timestamp", None, low=0),
        options.parsed(f"{side}OffsetsByTimestamp", offsets.parse_topic_numbers, {}),
    )


def _check_direction(options: Given, start: Place, end: Place, *, is_streaming: bool) -> None:
    if is_streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in options:
                raise ConfigError(f"{name} is for batches; a stream has no end")
        return
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        if name in options:
            raise ConfigError(f"{name} is for streams; a batch is read at once")
    if start.where is Where.LATEST and "startingOffsets" in options:
        raise ConfigError("startingOffsets is latest: a batch that starts at the end has no rows")
    if any(number == offsets.LATEST for number in start.numbers.values()):
        raise ConfigError("startingOffsets has -1, the latest offset: a batch would have no rows")
    if end.where is not Where.LATEST and "endingOffsets" in options:
        raise ConfigError(f"endingOffsets is {end.where.value}: write latest, or JSON")
    if any(number == offsets.EARLIEST for number in end.numbers.values()):
        raise ConfigError("endingOffsets has -2, the earliest offset: a batch would have no rows")
    _check_order(start, end)


def _check_order(start: Place, end: Place) -> None:
    """Whether a batch ends where it starts or later, as far as the options tell."""
    if start.timestamp_ms is not None and end.timestamp_ms is not None:
        if end.timestamp_ms < start.timestamp_ms:
            raise ConfigError(
                f"endingTimestamp, {end.timestamp_ms}, is before startingTimestamp, "
                f"{start.timestamp_ms}"
            )
        return
    for queue, number in end.numbers.items():
        if 0 <= number < start.numbers.get(queue, 0):
            raise ConfigError(
                f"endingOffsets has {number} for {queue}, startingOffsets "
                f"{start.numbers[queue]}: a batch ends where it starts or later"
            )


def _filter(options: Given) -> tuple[str, str]:
    kind = options.choice("filterType", (TAG, SQL92), TAG)
    expression = options.text("filter")
    if expression is None:
        if "filterType" in options:
            raise ConfigError("filterType is given without a filter")
        return "*", TAG
    try:
        if kind == SQL92:
            compile_sql(expression)
        else:
            parse_tags(expression)
            if any(not tag.strip() for tag in expression.split("||")):
                raise ConfigError(f"filter is {expression!r}; there is no tag on one side of a ||")
    except ProtocolError as error:
        what = "SQL92 condition" if kind == SQL92 else "list of tags"
        raise ConfigError(f"filter is no {what}: {error}") from error
    return expression, kind
