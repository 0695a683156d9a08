"""Reading job files from TOML.

``load_job`` reads a file; every problem is one ConfigError that says where it is ("[sink] path")
and what to write. SQL and the types of schemas are checked by Spark, before the first row is read.
What sections demand of each other is in ``validate``. Needs neither Spark nor a cluster.

Options of sources, sinks, catalogs and Spark may refer to secrets: ``${NAME}`` is an environment
variable, ``${file:PATH}`` the content of a file. Only the reference is ever shown.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from goddard.errors import ConfigError
from goddard.pipelines.errors import near
from goddard.pipelines.job import (
    FILES,
    LOG,
    MESSAGES,
    TABLES,
    Aggregate,
    Deduplicate,
    Expectation,
    Job,
    Monitoring,
    Parse,
    Run,
    Secret,
    Section,
    Sink,
    Source,
    Transform,
)
from goddard.pipelines.validate import validate_job
from goddard.spark.log import parse_log
from goddard.spark.options import CONNECTION_OPTIONS, RawOptions, parse_connection, parse_source

_SPARK_FORMATS: Final = (*FILES, "avro", "jdbc", "kafka", "noop")
_MAX_FILE_BYTES: Final = 1024 * 1024
_REFERENCE: Final = re.compile(r"\$\{(file:[^}]+|[A-Za-z_]\w*)\}")
_SECRET_NAMES: Final = ("secretkey", "securitytoken", "tlskeypassword", "password")
# Options of a message sink besides those of the connection.
_SENDING: Final = ("topic", "producerGroup", "batchBytes", "requestsInFlight")

_T = TypeVar("_T", bound=Struct)

# The keys of each format that has no options of Spark's beside them.
_SINK_KEYS: Final = {
    "delta": ("path", "partitionBy", "mode", "keys", "sequence", "compact", "options"),
    "iceberg": ("table", "catalog", "path", "partitionBy"),
    "console": ("rows",),
}


class _JobFile(Section, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
    description: str = ""
    source: Any
    parse: Any = None
    expect: tuple[Any, ...] = ()
    deduplicate: Any = None
    transform: tuple[Any, ...] = ()
    aggregate: Any = None
    sink: Any
    quarantine: Any = None
    run: Any = None
    monitoring: Any = None


# Reading


def load_job(
    path: Path, changes: Mapping[str, str] | None = None, *, called: str | None = None
) -> Job:
    """Read and check a job file; ``changes`` replace values, named as in ``sink.path``.

    ``called`` is its name in errors, by default its path.
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
    given: dict[str, Any], *, folder: Path = Path(), changes: Mapping[str, str] | None = None
) -> Job:
    """Check the content of a job file."""
    for name, value in (changes or {}).items():
        _change(given, name, value)
    top = _convert("", given, _JobFile)
    source = _source(top.source)
    run = _convert("[run]", {} if top.run is None else top.run, Run)
    quarantine = None if top.quarantine is None else _sink("[quarantine]", top.quarantine, source)
    parse = _optional("[parse]", top.parse, Parse)
    job = Job(
        name=top.name,
        description=top.description,
        folder=folder,
        source=source,
        parse=parse and _resolved_parse(parse, folder),
        expectations=tuple(_convert("[[expect]]", each, Expectation) for each in top.expect),
        deduplicate=_optional("[deduplicate]", top.deduplicate, Deduplicate),
        transforms=tuple(_convert("[[transform]]", each, Transform) for each in top.transform),
        aggregate=_optional("[aggregate]", top.aggregate, Aggregate),
        sink=_sink("[sink]", top.sink, source),
        quarantine=quarantine,
        run=replace(
            run,
            checkpoint=run.checkpoint or f"checkpoints/{top.name}",
            settings=_texts("[run]", run.settings),
        ),
        monitoring=_optional("[monitoring]", top.monitoring, Monitoring) or Monitoring(),
    )
    validate_job(job)
    return job


def _resolved_parse(parse: Parse, folder: Path) -> Parse:
    registry = parse.registry
    if registry is not None:
        registry = _resolved("[parse] registry", registry)
        if "://" not in registry:
            registry = str((folder / registry).absolute())
            if not Path(registry).is_dir():
                raise ConfigError(f"[parse] registry {registry} is no folder, and no URL")
    return replace(parse, options=_texts("[parse]", parse.options), registry=registry)


# Tables within sections, and lists: what ``--set`` gives as text.
_INNER_TABLES: Final = ("catalog", "options", "settings", "values")
_LISTS: Final = ("partitionBy", "keys", "by")


def _change(given: dict[str, Any], name: str, value: str) -> None:
    """Replace a value, or add it."""
    first, _, last = name.partition(".")
    inner, _, rest = last.partition(".")
    tables: list[str] = []
    if not last:
        last = first
    elif rest and inner in _INNER_TABLES:
        tables, last = [first, inner], rest
    else:
        # The names of options contain dots, too.
        tables = [first]
    target: Any = given
    for each in tables:
        target = target.setdefault(each, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{name} cannot be set: [{each}] is no table")
    is_list = len(tables) == 1 and last in _LISTS
    target[last] = [each.strip() for each in value.split(",")] if is_list else value


def _source(given: Any) -> Source:
    options = _texts("[source]", _table("[source]", given))
    kind = options.pop("format", MESSAGES)
    if kind not in (MESSAGES, LOG):
        raise ConfigError(f"[source] format is {kind!r}; {near(kind, (MESSAGES, LOG))}")
    try:
        if kind == MESSAGES:
            parse_source(options, is_streaming=True)
        else:
            parse_log(options)
    except ConfigError as error:
        raise ConfigError(f"[source] {error}") from error
    return Source(format=kind, options=options)


def _sink(place: str, given: Any, source: Source) -> Sink:
    kind = _table(place, given).get("format", "delta")
    known = (*TABLES, "console", MESSAGES, *_SPARK_FORMATS)
    if kind == MESSAGES:
        return Sink(format=kind, options=dict(_sending(place, given, source)))
    if kind in _SINK_KEYS:
        sink = _convert(place, given, Sink, ("format", *_SINK_KEYS[kind]))
        return _check_table(place, sink)
    # Spark knows more formats than we do; a misspelt one is refused.
    if kind not in known and difflib.get_close_matches(str(kind).lower(), known, 1, cutoff=0.75):
        raise ConfigError(f"{place} format is {kind!r}; {near(kind, known)}")
    if kind in FILES and given.get("mode", "append") != "append":
        raise ConfigError(f"{place} mode {given['mode']} is for Delta tables, not for {kind}")
    if "compact" in given:
        raise ConfigError(f"{place} compact is for Delta tables, not for {kind}")
    own = {name: given[name] for name in ("format", "path", "partitionBy") if name in given}
    sink = _convert(place, own, Sink)
    if kind in FILES and sink.path is None:
        raise ConfigError(f"{place} path is missing; write for example path = 'tables/orders'")
    rest = {name: value for name, value in given.items() if name not in own}
    return replace(sink, options=_texts(place, rest))


def _check_table(place: str, sink: Sink) -> Sink:
    if sink.format == "delta" and sink.path is None:
        raise ConfigError(f"{place} path is missing; write for example path = 'tables/orders'")
    if sink.format == "iceberg":
        if sink.table is None or "." not in sink.table:
            raise ConfigError(f"{place} table is {sink.table!r}; write namespace.table")
        if not sink.catalog:
            raise ConfigError(f"{place} catalog is missing; write {{ type = 'sql', uri = ... }}")
    return replace(sink, options=_texts(place, sink.options), catalog=_texts(place, sink.catalog))


def _sending(place: str, given: Any, source: Source) -> dict[str, str]:
    """The options of a message sink; by default its cluster is that of the source."""
    options = _texts(place, {name: value for name, value in given.items() if name != "format"})
    if "nameServers" not in options:
        options = {
            name: value for name, value in source.options.items() if name in CONNECTION_OPTIONS
        } | options
    try:
        parse_connection(RawOptions(options, CONNECTION_OPTIONS | dict.fromkeys(_SENDING, "")))
    except ConfigError as error:
        raise ConfigError(f"{place} {error}") from error
    return options


# Values


def _resolved(place: str, text: str) -> str:
    def value(matched: re.Match[str]) -> str:
        name = matched[1]
        try:
            if name.startswith("file:"):
                return Path(name.removeprefix("file:")).read_text(encoding="utf-8").strip()
            return os.environ[name]
        except KeyError as error:
            raise ConfigError(f"{place}: the environment variable {name} is not set") from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{place}: {name} cannot be read: {error}") from error

    found = _REFERENCE.sub(value, text)
    if found == text:
        return text
    secret = Secret(found)
    secret.reference = text
    return secret


def shown(options: Mapping[str, Any]) -> str:
    """Options as text, without secrets."""
    return ", ".join(
        f"{name}={'***' if name.lower() in _SECRET_NAMES else getattr(value, 'reference', value)}"
        for name, value in options.items()
    )


def _table(place: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError(f"{place} is {type(given).__name__}; write a table")
    return given


def _texts(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as Spark reads them, with the values of references."""
    found = {}
    for name, value in given.items():
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            found[name] = _resolved(f"{place} {name}", str(value))
        else:
            hint = "; put names with dots into quotes" if isinstance(value, dict) else ""
            kind = "table" if isinstance(value, dict) else type(value).__name__
            raise ConfigError(f"{place} {name} is a {kind}; write a text or a number{hint}")
    return found


# Errors

# Earlier words of job files, and those of Spark that took their place.
_RENAMED: Final = {
    "emit": "outputMode: closed is append, changed is update, all is complete",
    "late": "watermark",
    "within": "watermark",
    "otherwise": "onViolation",
}


def _optional(place: str, given: Any, type_: type[_T]) -> _T | None:
    return None if given is None else _convert(place, given, type_)


def _convert(place: str, given: Any, type_: type[_T], allowed: Iterable[str] = ()) -> _T:
    """A section as its type; ``allowed`` are its keys, by default all of the type."""
    fields = {each.encode_name: each for each in msgspec.structs.fields(type_)}
    known = tuple(allowed) or tuple(fields)
    for name in given if isinstance(given, dict) else ():
        if name not in known:
            hint = f"it is now {_RENAMED[name]}" if name in _RENAMED else near(name, known)
            raise ConfigError(f"{place} {name} is unknown; {hint}".strip())
    try:
        return msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        name = path.rstrip("`").lstrip(".")
        if missing := re.fullmatch(r"Object missing required field `(\w+)`", problem):
            raise ConfigError(f"{place} {missing[1]} is missing".strip()) from error
        value = given.get(name) if isinstance(given, dict) else None
        if problem.startswith("Invalid enum value"):
            field_type = fields[name].type
            literal = next((each for each in get_args(field_type) if get_args(each)), field_type)
            problem = f"is {value!r}; {near(str(value), get_args(literal))}"
        elif name and problem.startswith("Expected"):
            problem = f"is {value!r}: {problem[0].lower()}{problem[1:]}"
        raise ConfigError(f"{place} {name} {problem}".replace("  ", " ").strip()) from error
