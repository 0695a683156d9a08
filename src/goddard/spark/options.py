"""The options of the sources and the sink; all are checked before anything is read or written.

Names follow Spark's Kafka source where the meaning is the same, and are case-insensitive, as
everywhere in Spark. A wrong option raises ConfigError with its name and what to write instead.
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
from goddard.protocol.filters.expression import compile_sql, parse_tags
from goddard.protocol.names import group_problem, is_internal_topic, topic_problem
from goddard.spark.reading import offsets
from goddard.spark.reading.offsets import Offsets
from goddard.transport.tls import TlsOptions

T = TypeVar("T")

_MAX_COUNT: Final = 2**62
# Each partition is a Spark task with a Python process and a connection.
_MAX_MIN_PARTITIONS: Final = 10_000
# Timeout of requests to name servers, which answer from memory.
_NAME_SERVER_MS: Final = 3_000
# Spark's syntax for durations; a number without a unit is milliseconds.
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

# Spark's syntax for sizes; a number without a unit is bytes.
_SIZE: Final = re.compile(r"(\d{1,9})(b|k|m|g|t|)b?")
_UNIT_BYTES: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

# Our equivalents of options of Spark's Kafka source; a name with a final dot is a prefix.
_KAFKA_EQUIVALENTS: Final = {
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


class OffsetMode(Enum):
    """An offset that is determined for each queue when a query starts."""

    EARLIEST = "earliest"
    LATEST = "latest"
    # The committed offset of the consumer group; the earliest offset if there is none.
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """The offsets at which reading starts or ends.

    For each queue the first of these that has a value is used: ``timestamp_ms`` (all topics),
    ``timestamps_ms`` (by topic or queue), ``offsets`` (by queue), ``mode``.
    """

    mode: OffsetMode
    offsets: Offsets = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[str, int | Offsets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to connect to the cluster; shared by the sources and the sink."""

    name_servers: str
    keywords: SessionKeywords
    request_timeout_ms: int
    retries: int
    retry_interval_ms: int
    # How long a running query or write waits for an unreachable server.
    max_outage_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of ``spark.read`` and ``spark.readStream``."""

    connection: ConnectionOptions
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: frozenset[MessageQueue] = frozenset()
    includes_system_topics: bool = False
    start: OffsetSpec
    end: OffsetSpec
    fails_when_no_timestamp_matches: bool = True
    fails_on_data_loss: bool = True
    # Where to start in queues that are created while a query runs: earliest or latest.
    new_queues: OffsetMode = OffsetMode.EARLIEST
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int = 4 * 1024**3
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    expression: str = "*"
    expression_type: str = TAG
    group: str | None = None
    requests_in_flight: int = 8
    requests_in_flight_per_broker: int = 256
    messages_per_request: int = 1_024
    rows_per_batch: int = 20_000
    pushes_filters: bool = False

    def selects_topic(self, topic: str) -> bool:
        """Whether the query reads the topic, if it exists."""
        if self.pattern is None:
            return topic in self.topics
        is_hidden = is_internal_topic(topic) and not self.includes_system_topics
        return not is_hidden and self.pattern.fullmatch(topic) is not None

    def selects(self, queue: MessageQueue) -> bool:
        """Whether the query reads the queue, if it exists."""
        return queue in self.assigned if self.assigned else self.selects_topic(queue.topic)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the filter; empty without a filter or with an SQL92 filter."""
        return parse_tags(self.expression).tags if self.expression_type == TAG else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of ``df.write`` and ``df.writeStream``."""

    connection: ConnectionOptions
    topic: str | None = None
    producer_group: str = "goddard-spark"
    batch_bytes: int = 128 * 1024
    requests_in_flight: int = 8
    # With a transaction topic, a stream writes each row exactly once.
    transaction_topic: str | None = None


class RawOptions:
    """The options as the user gave them; typed access to their values."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str]) -> None:
        """``known``: option names and their descriptions. Unknown options raise ConfigError."""
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            # Spark passes the argument of load() and save() as the option `path`.
            if name.lower() == "path" and "path" not in names:
                raise ConfigError(
                    f"the path {value} is not used here; call load() or save() without a path"
                )
            if name.lower() not in names:
                raise ConfigError(f"unknown option {name}; {_suggestion(name.lower(), names)}")
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
            raise ConfigError(f"{name} is {text!r}; give a whole number from {low} to {high}")
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

    def size_bytes(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        matched = _SIZE.fullmatch(text.lower())
        if matched is None or not int(matched[1]):
            raise ConfigError(f"{name} is {text!r}; write it as 512m or 4g")
        return int(matched[1]) * _UNIT_BYTES[matched[2]]

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


def _suggestion(name: str, names: Mapping[str, str]) -> str:
    """A hint for an unknown option. ``names``: lower-case names to names as documented."""
    for begin, ours in _KAFKA_EQUIVALENTS.items():
        if name == begin or (begin.endswith(".") and name.startswith(begin)):
            return f"did you mean {ours}?"
    if name.startswith("kafka."):
        return f"options are not passed on to a client; known: {', '.join(names.values())}"
    near = difflib.get_close_matches(name, names, 1)
    return f"did you mean {names[near[0]]}?" if near else f"known: {', '.join(names.values())}"


# Shared by the sources and the sink.
CONNECTION_OPTIONS: Final = {
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

SOURCE_OPTIONS: Final = CONNECTION_OPTIONS | {
    "subscribe": "topics, separated by commas",
    "subscribePattern": "regular expression that must match the whole name of a topic",
    "assign": 'queues to read: {"topic": {"broker": [0, 1]}}',
    "includeSystemTopics": "true: subscribePattern matches retry, dead-letter and system topics",
    "startingOffsets": "earliest, latest, group, or JSON by topic, broker and queue",
    "endingOffsets": "latest, or JSON by topic, broker and queue; batches only (latest)",
    "startingTimestamp": "milliseconds since 1970, for all topics",
    "endingTimestamp": "milliseconds since 1970, for all topics; batches only",
    "startingOffsetsByTimestamp": 'JSON {"topic": ms}, or by topic, broker and queue',
    "endingOffsetsByTimestamp": 'JSON {"topic": ms}, or by topic, broker and queue; batches only',
    "startingOffsetsByTimestampStrategy": "if no message is that recent: error or latest (error)",
    "newQueues": "where streams start in queues that are created later: earliest or latest "
    "(earliest)",
    "failOnDataLoss": "false: continue with a warning if messages were deleted unread (true)",
    "minPartitions": "split queues to get at least about this number of partitions",
    "maxRecordsPerPartition": "split queues into ranges of at most this number of messages",
    "maxOffsetsPerTrigger": "maximum messages of a micro-batch",
    "maxBytesPerTrigger": "maximum bytes of a micro-batch, by the size of some messages (4g)",
    "minOffsetsPerTrigger": "start a micro-batch only when this number of messages is available",
    "maxTriggerDelay": "maximum wait for minOffsetsPerTrigger (15m)",
    "filter": "tags (A || B) or an SQL92 condition, applied by the broker",
    "filterType": "tag or sql92 (tag)",
    "group": "consumer group whose offsets are committed, and read with startingOffsets=group",
    "requestsInFlight": "concurrent pull requests of a task (8)",
    "requestsInFlightPerBroker": "concurrent pull requests of all tasks to a broker (256); each "
    "task sends at least one",
    "messagesPerRequest": "maximum messages of a pull (1024); RocketMQ returns 32 by default",
    "rowsPerBatch": "maximum rows of an Arrow batch (20000)",
    "pushFilters": "true: apply conditions on topic, queue, offset and time before reading; "
    "requires spark.sql.python.filterPushdown.enabled",
}

SINK_OPTIONS: Final = CONNECTION_OPTIONS | {
    "topic": "topic of rows without a column topic",
    "producerGroup": "group name of the producers (goddard-spark)",
    "batchBytes": "maximum bytes of a request (131072)",
    "requestsInFlight": "concurrent requests of a task (8)",
    "deliveryGuarantee": "at-least-once, or exactly-once for streams with a transactionTopic "
    "(at-least-once)",
    "transactionTopic": "for exactly-once: a topic of this query alone, with one queue",
}


def parse_source(given: Mapping[str, str], *, is_streaming: bool | None) -> SourceOptions:
    """Parse and check the options of a read; ``is_streaming`` is None if not known yet."""
    options = RawOptions(given, SOURCE_OPTIONS)
    group = options.text("group")
    if group is not None and (problem := group_problem(group)) is not None:
        raise ConfigError(f"group is {group!r}: {problem}")
    topics, pattern, assigned = _subscription(options)
    default_start = OffsetMode.LATEST if is_streaming else OffsetMode.EARLIEST
    start = _offset_spec(options, "starting", default_start, group)
    end = _offset_spec(options, "ending", OffsetMode.LATEST, group)
    if is_streaming is not None:
        _check_direction(options, start, end, is_streaming=is_streaming)
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    min_offsets = options.count("minOffsetsPerTrigger", None)
    max_offsets = options.count("maxOffsetsPerTrigger", None)
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise ConfigError(
            f"minOffsetsPerTrigger {min_offsets} is greater than maxOffsetsPerTrigger {max_offsets}"
        )
    expression, expression_type = _filter(options)
    return SourceOptions(
        connection=parse_connection(options),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        includes_system_topics=options.flag("includeSystemTopics", default=False),
        start=start,
        end=end,
        fails_when_no_timestamp_matches=strategy == "error",
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        new_queues=OffsetMode(options.choice("newQueues", ("earliest", "latest"), "earliest")),
        min_partitions=options.count("minPartitions", None, high=_MAX_MIN_PARTITIONS),
        max_records_per_partition=options.count("maxRecordsPerPartition", None),
        max_offsets_per_trigger=max_offsets,
        max_bytes_per_trigger=options.size_bytes("maxBytesPerTrigger", 4 * 1024**3),
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", 15 * 60_000),
        expression=expression,
        expression_type=expression_type,
        group=group,
        requests_in_flight=options.count("requestsInFlight", 8, high=256),
        requests_in_flight_per_broker=options.count("requestsInFlightPerBroker", 256, high=65_536),
        messages_per_request=options.count("messagesPerRequest", 1_024, high=100_000),
        rows_per_batch=options.count("rowsPerBatch", 20_000, high=1_000_000),
        pushes_filters=options.flag("pushFilters", default=False),
    )


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    """Parse and check the options of a write."""
    # Spark passes the checkpoint location of a stream to the sink too.
    own = {name: text for name, text in given.items() if name.lower() != "checkpointlocation"}
    options = RawOptions(own, SINK_OPTIONS)
    topic = options.text("topic")
    if topic is not None and (problem := topic_problem(topic)) is not None:
        raise ConfigError(f"topic is {topic!r}: {problem}")
    group = options.text("producerGroup") or "goddard-spark"
    if (problem := group_problem(group)) is not None:
        raise ConfigError(f"producerGroup is {group!r}: {problem}")
    guarantee = options.choice(
        "deliveryGuarantee", ("at-least-once", "exactly-once"), "at-least-once"
    )
    transaction_topic = options.text("transactionTopic")
    if (transaction_topic is None) != (guarantee == "at-least-once"):
        raise ConfigError(
            "deliveryGuarantee=exactly-once and transactionTopic must be given together; one is "
            "missing"
        )
    if transaction_topic and (problem := topic_problem(transaction_topic)) is not None:
        raise ConfigError(f"transactionTopic is {transaction_topic!r}: {problem}")
    return SinkOptions(
        connection=parse_connection(options),
        topic=topic,
        producer_group=group,
        batch_bytes=options.count("batchBytes", 128 * 1024, high=4 * 1024 * 1024),
        requests_in_flight=options.count("requestsInFlight", 8, high=256),
        transaction_topic=transaction_topic,
    )


def parse_connection(options: RawOptions) -> ConnectionOptions:
    name_servers = options.text("nameServers")
    if name_servers is None:
        raise ConfigError('nameServers is missing; give .option("nameServers", "host:9876")')
    parse_name_servers(name_servers, use_environment=False)
    request_timeout_ms = options.count("requestTimeoutMs", 10_000, high=600_000)
    name_server_ms = min(request_timeout_ms, _NAME_SERVER_MS)
    keywords = SessionKeywords(api_timeout_ms=name_server_ms, connect_timeout_ms=name_server_ms)
    keys = [options.text(name) for name in ("accessKey", "secretKey", "securityToken")]
    if keys[0] is not None and keys[1] is not None:
        keywords["credentials"] = Credentials(keys[0], keys[1], keys[2])
    elif any(key is not None for key in keys):
        raise ConfigError("accessKey and secretKey must be given together; one is missing")
    if (namespace := options.text("namespace")) is not None:
        if (problem := topic_problem(namespace)) is not None:
            raise ConfigError(f"namespace is {namespace!r}: {problem.replace('topic', 'name')}")
        keywords["namespace"] = namespace
    if (tls := _tls(options)) is not None:
        keywords["tls"] = tls
    return ConnectionOptions(
        name_servers=name_servers,
        keywords=keywords,
        request_timeout_ms=request_timeout_ms,
        retries=options.count("fetchOffset.numRetries", 3, low=0, high=1_000),
        retry_interval_ms=options.count("fetchOffset.retryIntervalMs", 200, low=1, high=600_000),
        max_outage_ms=options.duration_ms("maxOutage", 2 * 60_000),
    )


def _tls(options: RawOptions) -> TlsOptions | None:
    """The TLS options; the files are loaded as a check, because the driver connects too."""
    files = {name: options.text(name) for name in ("tlsTrust", "tlsCertificate", "tlsKey")}
    password = options.text("tlsKeyPassword")
    given = [name for name in (*files, "tlsKeyPassword") if name in options]
    if not options.flag("tls", default=bool(given)):
        if given:
            raise ConfigError(f"{given[0]} is given, but tls is false; remove one of them")
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
    options: RawOptions,
) -> tuple[tuple[str, ...], re.Pattern[str] | None, frozenset[MessageQueue]]:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(given) != 1:
        raise ConfigError(
            "give exactly one of subscribe, subscribePattern and assign; "
            f"{', '.join(given) or 'none of them'} {'are' if given else 'is'} given"
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
    no_queues: set[MessageQueue] = set()
    assigned = options.parsed("assign", offsets.parse_assignment, no_queues)
    return tuple(sorted({queue.topic for queue in assigned})), None, frozenset(assigned)


def _offset_spec(
    options: RawOptions, side: str, default: OffsetMode, group: str | None
) -> OffsetSpec:
    name = f"{side}Offsets"
    mode, by_queue = default, Offsets()
    text = options.text(name)
    if text is not None and text.startswith("{"):
        by_queue = offsets.parse_queue_numbers(name, text, lowest=offsets.EARLIEST)
        if not by_queue:
            raise ConfigError(f"{name} is {text!r}, which names no queue; leave it out")
    elif text is not None:
        choices = tuple(each.value for each in OffsetMode)
        mode = OffsetMode(options.choice(name, choices, default.value))
    if mode is OffsetMode.GROUP and group is None:
        raise ConfigError(f"{name} is group, but the option group is missing")
    return OffsetSpec(
        mode,
        by_queue,
        options.count(f"{side}Timestamp", None, low=0),
        options.parsed(f"{side}OffsetsByTimestamp", offsets.parse_topic_numbers, {}),
    )


def _check_direction(
    options: RawOptions, start: OffsetSpec, end: OffsetSpec, *, is_streaming: bool
) -> None:
    """Refuse options of streams in a batch, options of batches in a stream, and empty batches."""
    if is_streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in options:
                raise ConfigError(f"{name} is for batches; a stream has no end")
        return
    for name in (
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "newQueues",
    ):
        if name in options:
            raise ConfigError(f"{name} is for streams; a batch is read at once")
    if start.mode is OffsetMode.LATEST and "startingOffsets" in options:
        raise ConfigError("startingOffsets is latest, so the batch would have no rows")
    if any(number == offsets.LATEST for number in start.offsets.values()):
        raise ConfigError("startingOffsets has -1 (latest), so the batch would have no rows")
    if end.mode is not OffsetMode.LATEST and "endingOffsets" in options:
        raise ConfigError(f"endingOffsets is {end.mode.value}; write latest, or JSON")
    if any(number == offsets.EARLIEST for number in end.offsets.values()):
        raise ConfigError("endingOffsets has -2 (earliest), so the batch would have no rows")
    _check_order(start, end)


def _check_order(start: OffsetSpec, end: OffsetSpec) -> None:
    """Refuse an end before the start, as far as the options alone show it."""
    if start.timestamp_ms is not None and end.timestamp_ms is not None:
        if end.timestamp_ms < start.timestamp_ms:
            raise ConfigError(
                f"endingTimestamp {end.timestamp_ms} is before startingTimestamp "
                f"{start.timestamp_ms}"
            )
        return
    for queue, number in end.offsets.items():
        if 0 <= number < start.offsets.get(queue, 0):
            raise ConfigError(
                f"endingOffsets has {number} for {queue}, which is before its startingOffsets "
                f"{start.offsets[queue]}"
            )


def _filter(options: RawOptions) -> tuple[str, str]:
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
                raise ConfigError(f"filter is {expression!r}; a tag is missing beside ||")
    except ProtocolError as error:
        what = "SQL92 condition" if kind == SQL92 else "list of tags"
        raise ConfigError(f"filter is not a valid {what}: {error}") from error
    return expression, kind
