"""A job: a pipeline from topics to tables, as a job file declares it. Values only.

``config`` reads job files, ``validate`` checks what sections demand of each other.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from goddard.spark.columns import COLUMNS

MESSAGES: Final = "rocketmq"
LOG: Final = "rocketmq-log"
AVAILABLE_NOW: Final = "availableNow"
INFER: Final = "infer"
RESCUED: Final = "_rescued"
# The window columns of an aggregate's rows.
WINDOW_COLUMNS: Final = ("windowStart", "windowEnd")
# Formats that are committed with the batch's number and end offsets.
TABLES: Final = ("delta", "iceberg")
# Formats that Spark's own file sink writes.
FILES: Final = ("csv", "json", "orc", "parquet", "text")

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
_COLUMN: Final = re.compile(r"[A-Za-z_]\w{0,254}")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Action = Literal["quarantine", "drop", "fail"]
OutputMode = Literal["append", "update", "complete"]
SinkMode = Literal["append", "upsert", "scd2"]
Text = Annotated[str, Meta(min_length=1)]
Names = tuple[Text, ...]
Options = dict[str, str | int | float | bool]


class Secret(str):
    """A value from a reference, which is shown in its place."""

    __slots__ = ("reference",)
    reference: str


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A table of a job file."""


class Parse(Section, frozen=True, kw_only=True):
    """How bodies become columns. ``schema`` is in Spark's DDL, or "infer"."""

    format: Literal["json", "csv", "text", "avro"] = "json"
    schema: Text | None = None
    schema_file: Text | None = None
    # Where the schemas of Avro bodies are looked up: a URL or a folder.
    registry: Text | None = None
    into: Text | None = None
    # The column for JSON fields that the schema does not have.
    rescue: Text | None = None
    on_violation: Action | None = None
    sample: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    skip_bytes: Annotated[int, Meta(ge=0, le=1024)] = 0
    options: Options = {}

    def __post_init__(self) -> None:
        for name in filter(None, (self.into, self.rescue)):
            if not _COLUMN.fullmatch(name) or name in COLUMNS:
                raise ValueError(f"{name!r} is not the name of a new column")
        if self.format == "text":
            return
        needed = "schemaFile" if self.format == "avro" else "schema"
        if (self.schema is None) == (self.schema_file is None):
            raise ValueError(f"give {needed}, for example schema = 'id long, at timestamp'")
        if self.format == "avro" and self.schema is not None:
            raise ValueError("format avro needs a schemaFile")
        if self.registry is not None and (self.format != "avro" or self.skip_bytes):
            raise ValueError("registry is for avro, without skipBytes")
        if self.schema == INFER and self.format != "json":
            raise ValueError(f"schema = 'infer' is for json, not for {self.format}")
        if self.rescue is not None and self.format != "json":
            raise ValueError(f"rescue is for json, not for {self.format}")


class Expectation(Section, frozen=True, kw_only=True):
    """A condition that every valid row fulfils; null violates it."""

    condition: Text
    name: Text | None = None
    on_violation: Action = "quarantine"

    @property
    def label(self) -> str:
        return self.name or self.condition


class Deduplicate(Section, frozen=True, kw_only=True):
    keys: Names = ("msgId",)
    watermark: Text = "10 minutes"
    time: Text = "storeTimestamp"

    def __post_init__(self) -> None:
        _check_names("keys", self.keys)
        _check_interval("watermark", self.watermark)


class Transform(Section, frozen=True, kw_only=True):
    """A query over ``input``, or ``module:function`` from DataFrame to DataFrame."""

    sql: Text | None = None
    python: Text | None = None

    def __post_init__(self) -> None:
        if (self.sql is None) == (self.python is None):
            raise ValueError("give either sql or python")
        if self.python is not None:
            _check_function("python", self.python)
        if self.sql is not None and not re.search(r"\binput\b", self.sql):
            raise ValueError("sql does not read from input: SELECT ... FROM input")


class Aggregate(Section, frozen=True, kw_only=True):
    """Windows over time, written in one of Spark's output modes."""

    time: Text = "storeTimestamp"
    window: Text
    slide: Text | None = None
    watermark: Text | None = None
    by: Names = ()
    values: Annotated[Options, Meta(min_length=1)]
    output_mode: OutputMode = "append"

    def __post_init__(self) -> None:
        length_ms = _check_interval("window", self.window)
        if self.slide is not None and _check_interval("slide", self.slide) > length_ms:
            raise ValueError(f"slide is {self.slide}, longer than the window of {self.window}")
        if self.watermark is not None:
            _check_interval("watermark", self.watermark, may_be_zero=True)
            if self.output_mode == "complete":
                raise ValueError("outputMode 'complete' keeps every window and has no watermark")
        _check_names("by", self.by)
        for name in (*self.values, *self.by):
            if not _COLUMN.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a column")
            if name in WINDOW_COLUMNS or (name in self.values and name in self.by):
                raise ValueError(f"{name} is the name of another column")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (*WINDOW_COLUMNS, *self.by)

    @property
    def delay(self) -> str | None:
        """How long a window accepts late rows; None without limit."""
        if self.output_mode == "complete":
            return None
        return self.watermark or ("1 hour" if self.output_mode == "update" else "1 minute")


class Run(Section, frozen=True, kw_only=True):
    """``after`` is ``module:function``, called with job and session after a successful run."""

    trigger: Text = AVAILABLE_NOW
    checkpoint: str = ""
    settings: Options = {}
    after: Text | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            _check_function("after", self.after)
        if self.trigger != AVAILABLE_NOW:
            _check_interval("trigger", self.trigger)


class Monitoring(Section, frozen=True, kw_only=True):
    """Where a run reports: a Delta table of violations, a file of Prometheus metrics."""

    quality: Text | None = None
    prometheus_file: Text | None = None


class Source(Struct, frozen=True, kw_only=True):
    """Where messages come from: options of Spark's ``format``."""

    format: str
    options: dict[str, str]

    @property
    def is_stream(self) -> bool:
        return self.format == MESSAGES


class Sink(Section, frozen=True, kw_only=True):
    """Where rows go. ``table`` and ``catalog`` are Iceberg's.

    The mode "upsert" keeps the newest row of each of the ``keys``, by the column ``sequence``;
    "scd2" keeps all rows, with the range of the sequence in which each was current.
    """

    format: Text = "delta"
    path: Text | None = None
    table: Text | None = None
    catalog: Options = {}
    partition_by: Names = ()
    mode: SinkMode = "append"
    keys: Names = ()
    sequence: Text | None = None
    compact: bool = False
    rows: Annotated[int, Meta(ge=1, le=100_000)] = 20
    options: Options = {}

    def __post_init__(self) -> None:
        _check_names("partitionBy", self.partition_by)
        _check_names("keys", self.keys)
        if self.mode == "append" and (self.keys or self.sequence):
            raise ValueError("keys and sequence need mode = 'upsert' or 'scd2'")
        if self.mode != "append" and not (self.keys and self.sequence):
            raise ValueError(f"mode '{self.mode}' needs keys and sequence")

    @property
    def is_exactly_once(self) -> bool:
        return self.format in TABLES

    @property
    def is_files(self) -> bool:
        return self.format in FILES

    @property
    def place(self) -> str:
        """The table or folder as messages name it."""
        return self.path or self.table or self.format


class Job(Struct, frozen=True, kw_only=True):
    """A whole job file."""

    name: str
    source: Source
    sink: Sink
    run: Run
    description: str = ""
    # The folder of the job file, where Python modules and schema files are looked for.
    folder: Path = Path()
    parse: Parse | None = None
    expectations: tuple[Expectation, ...] = ()
    deduplicate: Deduplicate | None = None
    transforms: tuple[Transform, ...] = ()
    aggregate: Aggregate | None = None
    quarantine: Sink | None = None
    monitoring: Monitoring = Monitoring()

    @property
    def quality(self) -> str | None:
        """The table of violations, by default beside the table of the sink."""
        if self.monitoring.quality is not None or not self.has_rules:
            return self.monitoring.quality
        return f"{self.sink.path}_quality" if self.sink.format == "delta" else None

    @property
    def is_stateful(self) -> bool:
        return self.deduplicate is not None or self.aggregate is not None

    @property
    def has_rules(self) -> bool:
        """Whether rows may be invalid."""
        return self.parse is not None or bool(self.expectations)

    @property
    def parse_action(self) -> Action:
        """What happens to bodies that cannot be parsed."""
        chosen = None if self.parse is None else self.parse.on_violation
        return chosen or ("fail" if self.quarantine is None else "quarantine")

    def redacted(self, text: str) -> str:
        """The text with references in place of the secrets of this job."""
        given: list[Mapping[str, Any]] = [self.source.options, self.run.settings]
        given += [self.sink.options, self.sink.catalog]
        if self.quarantine is not None:
            given += [self.quarantine.options, self.quarantine.catalog]
        for value in (value for options in given for value in options.values()):
            if isinstance(value, Secret):
                text = text.replace(value, value.reference)
        return text


def interval_ms(text: str) -> int | None:
    """The length of "10 minutes"; None if it is not written like this."""
    matched = _INTERVAL.fullmatch(text.strip().lower())
    return None if matched is None else int(matched[1]) * _UNIT_MS[matched[2]]


def _check_interval(name: str, text: str, *, may_be_zero: bool = False) -> int:
    length_ms = interval_ms(text)
    if length_ms is None or (length_ms == 0 and not may_be_zero):
        other = f"{AVAILABLE_NOW} or " if name == "trigger" else ""
        raise ValueError(f"{name} is {text!r}; write it as {other}'30 seconds' or '10 minutes'")
    if length_ms > _MAX_INTERVAL_DAYS * _UNIT_MS["day"]:
        raise ValueError(f"{name} is {text!r}; the longest is {_MAX_INTERVAL_DAYS} days")
    return length_ms


def _check_names(name: str, given: Names) -> None:
    if len(set(given)) != len(given):
        raise ValueError(f"{name} has an entry twice")


def _check_function(name: str, text: str) -> None:
    if not _FUNCTION.fullmatch(text):
        raise ValueError(f"{name} is {text!r}; write it as 'module:function'")
