"""Job files: TOML, read section by section and checked as a whole.

Checking needs no Spark and no cluster: names, values, schemas and what goes together. Conditions
and queries are Spark's to check, which it does before the first row is read. Pure but for the
reading of the files.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from goddard.errors import ConfigError
from goddard.pipelines.jobs import ddl
from goddard.pipelines.jobs.checks import check_together
from goddard.pipelines.jobs.job import (
    AVAILABLE_NOW,
    INFER,
    LOG,
    MESSAGES,
    TABLES,
    WINDOW_COLUMNS,
    Action,
    Aggregate,
    Deduplicate,
    Emit,
    Expectation,
    Job,
    Parse,
    Run,
    Sink,
    Source,
    Transform,
)
from goddard.pipelines.jobs.sections import OpenSection, Section, interval_ms, near
from goddard.spark.columns import COLUMNS
from goddard.spark.log import parse_log
from goddard.spark.options import CONNECTION_OPTIONS, RawOptions, parse_connection, parse_source

_SPARK_FORMATS: Final = ("avro", "csv", "jdbc", "json", "kafka", "noop", "orc", "text")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_COLUMN: Final = re.compile(r"[A-Za-z_]\w{0,254}")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MAX_FILE_BYTES: Final = 1024 * 1024

_JOB: Final = (
    "name",
    "description",
    "source",
    "parse",
    "expect",
    "deduplicate",
    "transform",
    "aggregate",
    "sink",
    "quarantine",
    "run",
)


# What ``--set`` gives as text and a job file does not.
_INNER_TABLES: Final = ("catalog", "options", "settings", "values")
_FLAGS: Final = ("sink.compact", "quarantine.compact")
_COUNTS: Final = ("sink.rows", "parse.sample", "parse.skipBytes")
_LISTS: Final = ("sink.partitionBy", "quarantine.partitionBy", "deduplicate.keys", "aggregate.by")


def load_job(
    path: Path, changes: Mapping[str, str] | None = None, *, called: str | None = None
) -> Job:
    """Read and check a job file; ``changes`` replace values, named as in ``sink.path``.

    ``called`` is how errors name it, if not by its path.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} is over {_MAX_FILE_BYTES:,} bytes; that is no job file")
    try:
        return parse_job(tomllib.loads(data.decode()), folder=path.parent, changes=changes)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{called or path}: {error}") from error


def parse_job(
    given: dict[str, Any],
    *,
    folder: Path = Path(),
    changes: Mapping[str, str] | None = None,
) -> Job:
    """Check what a job file says."""
    for name, value in (changes or {}).items():
        _change(given, name, value)
    top = Section("", given, _JOB)
    name = top.needed_text("name", "orders")
    if not _NAME.fullmatch(name):
        raise top.error("name", f"is {name!r}; letters, digits, '.', '_' and '-' make a name")
    if "source" not in top or "sink" not in top:
        missing = "source" if "source" not in top else "sink"
        raise ConfigError(f"the table [{missing}] is missing")
    source = _source(top.value("source"))
    quarantine = None
    if "quarantine" in top:
        quarantine = _sink("[quarantine]", top.value("quarantine"), source)
        if not quarantine.is_exactly_once:
            raise ConfigError(f"[quarantine] format is {quarantine.format}; a table is wanted")
    job = Job(
        name=name,
        description=top.text("description") or "",
        folder=folder,
        source=source,
        parse=_parse(top.value("parse"), folder, quarantine) if "parse" in top else None,
        expectations=_expectations(top),
        deduplicate=_deduplicate(top.value("deduplicate")) if "deduplicate" in top else None,
        transforms=_transforms(top),
        aggregate=_aggregate(top.value("aggregate")) if "aggregate" in top else None,
        sink=_sink("[sink]", top.value("sink"), source),
        quarantine=quarantine,
        run=_run(top.value("run") if "run" in top else {}, name),
    )
    check_together(job)
    return job


def _change(given: dict[str, Any], name: str, value: str) -> None:
    """Replace a value, or add it; its type is the one that its place has."""
    first, _, last = name.partition(".")
    inner, _, rest = last.partition(".")
    tables: list[str] = []
    if not last:
        last = first
    elif rest and inner in _INNER_TABLES:
        tables, last = [first, inner], rest
    else:
        # Names of options have dots in them, too.
        tables = [first]
    target: Any = given
    for each in tables:
        target = target.setdefault(each, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{name} cannot be set: [{each}] is no table")
    if name in _FLAGS and value in ("true", "false"):
        target[last] = value == "true"
    elif name in _COUNTS and value.isascii() and value.isdigit():
        target[last] = int(value)
    elif name in _LISTS:
        target[last] = [each.strip() for each in value.split(",")]
    else:
        target[last] = value


def _source(given: object) -> Source:
    section = OpenSection("[source]", given)
    kind = section.choice("format", (MESSAGES, LOG), MESSAGES)
    options = section.rest(("format",))
    try:
        if kind == MESSAGES:
            parse_source(options, is_streaming=True)
        else:
            parse_log(options)
    except ConfigError as error:
        raise ConfigError(f"[source] {error}") from error
    return Source(format=kind, options=options)


def _parse(given: object, folder: Path, quarantine: Sink | None) -> Parse:
    section = Section(
        "[parse]",
        given,
        (
            "format",
            "schema",
            "schemaFile",
            "into",
            "otherwise",
            "sample",
            "skipBytes",
            "options",
        ),
    )
    kind = section.choice("format", ("json", "csv", "text", "avro"), "json")
    into = section.text("into")
    if into is not None and (not _COLUMN.fullmatch(into) or into in COLUMNS):
        raise section.error("into", f"is {into!r}; a name that no column has yet is wanted")
    avro_schema = None
    if kind == "text":
        schema = f"`{into or 'text'}` string"
        into = None
    elif kind == "avro":
        avro_schema = _json_file(section, folder)
        schema = ddl.avro_ddl(avro_schema)
    else:
        schema = _declared(section, kind, folder)
    for name in () if schema == INFER else ddl.field_names(schema):
        if into is None and name.lower() in {column.lower() for column in COLUMNS}:
            raise section.error(
                "schema", f'has {name}, a column that messages have already; write into = "value"'
            )
    by_default: Action = "fail" if quarantine is None else "quarantine"
    return Parse(
        format=kind,
        schema=schema,
        into=into,
        otherwise=_action(section, by_default),
        sample=section.count("sample", 1_000, low=1, high=1_000_000),
        skip_bytes=section.count("skipBytes", 0, low=0, high=1024),
        avro_schema=avro_schema,
        options=section.texts("options"),
    )


def _declared(section: Section, kind: str, folder: Path) -> str:
    if ("schema" in section) == ("schemaFile" in section):
        raise section.error(
            "schema", "is wanted, or schemaFile, and not both: schema = 'id long, at timestamp'"
        )
    schema = section.text("schema")
    if schema is None:
        schema = _file_text(section, folder)
    if schema == INFER:
        if kind != "json":
            raise section.error("schema", f"is infer, which is for json, not for {kind}")
        return INFER
    try:
        ddl.field_names(schema)
    except ConfigError as error:
        raise section.error("schema", f"is no schema: {error}") from error
    return schema


def _file_text(section: Section, folder: Path) -> str:
    path = folder / section.needed_text("schemaFile", "orders.avsc")
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise section.error("schemaFile", f"is {path}, which is over {_MAX_FILE_BYTES:,} bytes")
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise section.error("schemaFile", f"is {path}, which cannot be read: {error}") from error


def _json_file(section: Section, folder: Path) -> Any:
    text = _file_text(section, folder)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise section.error("schemaFile", f"has no JSON: {error}") from error


def _action(section: Section, default: Action) -> Action:
    chosen = section.choice("otherwise", ("quarantine", "drop", "fail"), default)
    if chosen == "quarantine":
        return "quarantine"
    return "drop" if chosen == "drop" else "fail"


def _expectations(top: Section) -> tuple[Expectation, ...]:
    found: list[Expectation] = []
    for given in _tables(top, "expect"):
        section = Section("[[expect]]", given, ("name", "condition", "otherwise"))
        condition = section.needed_text("condition", "amount > 0")
        name = section.text("name") or condition
        if any(name == each.name for each in found):
            raise section.error("name", f"is {name!r} a second time; names tell them apart")
        found.append(Expectation(name, condition, _action(section, "quarantine")))
    return tuple(found)


def _tables(top: Section, name: str) -> list[Any]:
    value = top.value(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise top.error(name, f"is no list of tables; write [[{name}]]")
    return value


def _deduplicate(given: object) -> Deduplicate:
    section = Section("[deduplicate]", given, ("keys", "within", "time"))
    keys = section.names("keys") or ("msgId",)
    within = section.interval("within", "10 minutes")
    assert within is not None
    return Deduplicate(keys, within, section.text("time") or "storeTimestamp")


def _transforms(top: Section) -> tuple[Transform, ...]:
    found = []
    for given in _tables(top, "transform"):
        section = Section("[[transform]]", given, ("sql", "python"))
        sql, python = section.text("sql"), section.text("python")
        if (sql is None) == (python is None):
            raise ConfigError("[[transform]] has either sql or python, and one of them only")
        if python is not None and not _FUNCTION.fullmatch(python):
            raise section.error("python", f"is {python!r}; write it as 'module:function'")
        if sql is not None and not re.search(r"\binput\b", sql):
            raise section.error("sql", "does not read from input: SELECT ... FROM input")
        found.append(Transform(sql, python))
    return tuple(found)


# How long windows wait if nothing is said: where waiting holds rows back, not for long.
_LATE: Final[Mapping[Emit, str | None]] = {"closed": "1 minute", "changed": "1 hour", "all": None}


def _aggregate(given: object) -> Aggregate:
    section = Section(
        "[aggregate]", given, ("time", "window", "slide", "late", "by", "values", "emit")
    )
    window = section.interval("window")
    if window is None:
        raise section.error("window", "is missing; write for example window = '1 minute'")
    slide = section.interval("slide")
    if slide is not None and (interval_ms(slide) or 0) > (interval_ms(window) or 0):
        raise section.error("slide", f"is {slide}, longer than the window of {window}")
    values = section.texts("values")
    by = section.names("by")
    if not values:
        raise section.error("values", "is missing; write values = { orders = 'count(*)' }")
    for name in (*values, *by):
        if not _COLUMN.fullmatch(name):
            raise section.error("values", f"has {name!r}, which is no name of a column")
        if name in WINDOW_COLUMNS or (name in values and name in by):
            raise section.error("values", f"has {name}, which is the name of another column")
    emit = _emit(section)
    if emit == "all" and "late" in section:
        raise section.error(
            "late", "is given, and emit = 'all' waits for ever; write emit = 'changed' or 'closed'"
        )
    return Aggregate(
        time=section.text("time") or "storeTimestamp",
        window=window,
        slide=slide,
        late=section.interval("late", _LATE[emit], may_be_zero=True),
        by=by,
        values=values,
        emit=emit,
    )


def _emit(section: Section) -> Emit:
    chosen = section.choice("emit", tuple(_LATE), "closed")
    if chosen == "closed":
        return "closed"
    return "changed" if chosen == "changed" else "all"


# What every message sink takes beside how to reach the cluster.
_SENDING: Final = ("topic", "producerGroup", "batchBytes", "requestsInFlight")


def _sink(place: str, given: object, source: Source) -> Sink:
    kind = OpenSection(place, given).text("format") or "parquet"
    if kind == "parquet":
        section = Section(place, given, ("format", "path", "partitionBy", "compact", "options"))
    elif kind == "delta":
        section = Section(place, given, ("format", "path", "partitionBy", "options"))
    elif kind == "iceberg":
        section = Section(place, given, ("format", "table", "catalog", "path", "partitionBy"))
    elif kind == "console":
        section = Section(place, given, ("format", "rows"))
        rows = section.count("rows", 20, low=1, high=100_000)
        return Sink(format=kind, options={"rows": str(rows)})
    elif kind == MESSAGES:
        section = Section(place, given, ("format", *CONNECTION_OPTIONS, *_SENDING))
        return Sink(format=kind, options=_sending(section.rest(("format",)), source))
    else:
        section = OpenSection(place, given)
        _check_format(section, kind)
        taken = ("format", "path", "partitionBy")
        return Sink(
            format=kind,
            path=section.text("path"),
            partition_by=section.names("partitionBy"),
            options=section.rest(taken),
        )
    if kind == "iceberg":
        table = section.needed_text("table", "shop.orders")
        catalog = section.texts("catalog")
        if "." not in table:
            raise section.error("table", f"is {table!r}; write it with its namespace: shop.orders")
        if not catalog:
            raise section.error(
                "catalog", "is missing; write catalog = { type = 'sql', uri = ... }"
            )
        return Sink(
            format=kind,
            table=table,
            catalog=catalog,
            path=section.text("path"),
            partition_by=section.names("partitionBy"),
        )
    return Sink(
        format=kind,
        path=section.needed_text("path", "tables/orders"),
        partition_by=section.names("partitionBy"),
        compacts=section.flag("compact", default=False),
        options=section.texts("options"),
    )


def _check_format(section: Section, kind: str) -> None:
    """Spark knows more formats than we do; one that looks like a slip is refused."""
    known = (*TABLES, "console", MESSAGES, *_SPARK_FORMATS)
    if kind not in known and difflib.get_close_matches(kind.lower(), known, 1, cutoff=0.75):
        raise section.error("format", f"is {kind!r}; {near(kind, known)}")


def _sending(options: dict[str, str], source: Source) -> dict[str, str]:
    """The options of a message sink; the cluster is the source's if no other is named."""
    if "nameServers" not in options:
        options = {
            name: value for name, value in source.options.items() if name in CONNECTION_OPTIONS
        } | options
    try:
        parse_connection(RawOptions(options, CONNECTION_OPTIONS | dict.fromkeys(_SENDING, "")))
    except ConfigError as error:
        raise ConfigError(f"[sink] {error}") from error
    return options


def _run(given: object, name: str) -> Run:
    section = Section("[run]", given, ("trigger", "checkpoint", "settings", "after"))
    after = section.text("after")
    if after is not None and not _FUNCTION.fullmatch(after):
        raise section.error("after", f"is {after!r}; write it as 'module:function'")
    trigger = section.text("trigger") or AVAILABLE_NOW
    if trigger != AVAILABLE_NOW:
        if not interval_ms(trigger):
            raise section.error("trigger", f"is {trigger!r}; write {AVAILABLE_NOW} or '10 seconds'")
        section.interval("trigger")
    return Run(
        trigger=trigger,
        checkpoint=section.text("checkpoint") or f"checkpoints/{name}",
        settings=section.texts("settings"),
        after=after,
    )
