"""What a job is: a pipeline from topics to tables, as a job file declares it.

Only values; ``files`` reads them, ``checks`` says whether they go together. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

MESSAGES: Final = "rocketmq"
LOG: Final = "rocketmq-log"
AVAILABLE_NOW: Final = "availableNow"
INFER: Final = "infer"
# What the windows of an aggregate are called in its rows.
WINDOW_COLUMNS: Final = ("windowStart", "windowEnd")
TABLES: Final = ("parquet", "iceberg", "delta")

Action = Literal["quarantine", "drop", "fail"]
Emit = Literal["closed", "changed", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where messages come from: options of Spark's ``format``."""

    format: str
    options: Mapping[str, str]

    @property
    def is_stream(self) -> bool:
        return self.format == MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Parse:
    """How bodies become columns. ``schema`` is Spark's text, or "infer"."""

    format: str
    schema: str
    into: str | None = None
    otherwise: Action = "fail"
    sample: int = 1_000
    skip_bytes: int = 0
    avro_schema: Any = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition that is true of every good row; one that is null is not true."""

    name: str
    condition: str
    otherwise: Action = "quarantine"


@dataclass(frozen=True, slots=True)
class Deduplicate:
    keys: tuple[str, ...]
    within: str
    time: str


@dataclass(frozen=True, slots=True)
class Transform:
    """A query over ``input``, or ``module:function`` from DataFrame to DataFrame; one of them."""

    sql: str | None = None
    python: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Windows over time.

    "closed" writes each once, when it is complete; "changed" those that a batch changed, in place
    of what was written of them before; "all" the table as it stands, and remembers it for ever.
    """

    time: str
    window: str
    slide: str | None = None
    # None: nothing is ever too late.
    late: str | None = None
    by: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    emit: Emit = "closed"

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which one row is told from all others."""
        return (*WINDOW_COLUMNS, *self.by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where rows go. ``path`` is where a table is; ``table`` and ``catalog`` are Iceberg's."""

    format: str
    path: str | None = None
    partition_by: tuple[str, ...] = ()
    compacts: bool = False
    table: str | None = None
    catalog: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_exactly_once(self) -> bool:
        return self.format in TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    checkpoint: str
    trigger: str = AVAILABLE_NOW
    settings: Mapping[str, str] = field(default_factory=dict)
    # ``module:function``, called with the job and the session when a run has ended well.
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A whole job file."""

    name: str
    source: Source
    sink: Sink
    run: Run
    description: str = ""
    # Where the job file is: Python modules and schema files are looked for there.
    folder: Path = field(default_factory=Path)
    parse: Parse | None = None
    expectations: tuple[Expectation, ...] = ()
    deduplicate: Deduplicate | None = None
    transforms: tuple[Transform, ...] = ()
    aggregate: Aggregate | None = None
    quarantine: Sink | None = None

    @property
    def is_stateful(self) -> bool:
        return self.deduplicate is not None or self.aggregate is not None

    @property
    def judges_rows(self) -> bool:
        """Whether rows may turn out to be bad."""
        return self.parse is not None or bool(self.expectations)
