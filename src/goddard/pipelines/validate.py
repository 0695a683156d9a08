"""Whether the sections of a job go together, as far as that can be known without Spark. Pure."""

import posixpath
from collections.abc import Iterable

from goddard.errors import ConfigError
from goddard.pipelines.errors import near
from goddard.pipelines.job import INFER, TABLES, Aggregate, Job, Sink, interval_ms
from goddard.pipelines.schemas import body_schema, field_names
from goddard.spark.columns import COLUMNS


def validate_job(job: Job) -> None:
    """ConfigError if one section needs what another does not have, or excludes."""
    labels = [each.label for each in job.expectations]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"[[expect]] name is {label!r} twice; names must differ")
    _check_quarantine(job)
    aggregate = job.aggregate
    if aggregate is not None and job.deduplicate is not None:
        # A Spark query has one watermark.
        if aggregate.time != job.deduplicate.time:
            raise ConfigError(
                f"[aggregate] time is {aggregate.time}, [deduplicate] time {job.deduplicate.time}; "
                "a query has one watermark, so use the same time"
            )
        if aggregate.output_mode != "append":
            raise ConfigError(
                f"[aggregate] outputMode is {aggregate.output_mode}; with [deduplicate] it must "
                "be append"
            )
    if aggregate is not None and aggregate.output_mode != "append" and job.sink.mode != "append":
        raise ConfigError(
            f"[sink] mode is {job.sink.mode}; with [aggregate] it needs outputMode 'append'"
        )
    if aggregate is not None and aggregate.output_mode != "append":
        _check_replacing(aggregate, job.sink)
    _check_columns(job)


def notes(job: Job) -> list[str]:
    """What is allowed, but may surprise in a long run."""
    found = []
    aggregate, deduplicate = job.aggregate, job.deduplicate
    if aggregate is not None and aggregate.output_mode == "complete":
        found.append(
            "[aggregate] outputMode = 'complete' keeps every window and writes all of them with "
            "each batch; 'update' drops windows after the watermark"
        )
    delays = [deduplicate.watermark] if deduplicate is not None else []
    if aggregate is not None and aggregate.delay is not None:
        delays.append(aggregate.delay)
    limited = {name.lower() for name in job.source.options} & {"maxoffsetspertrigger"}
    if delays and limited and job.source.is_stream:
        longest = max(delays, key=lambda each: interval_ms(each) or 0)
        found.append(
            "[source] maxOffsetsPerTrigger: while the job catches up, queues may be at different "
            f"times; rows that are {longest} behind the newest of all queues are dropped as late"
        )
    return found


def _check_quarantine(job: Job) -> None:
    using = [each.label for each in job.expectations if each.on_violation == "quarantine"]
    if job.parse is not None and job.parse_action == "quarantine":
        using.append("[parse]")
    if job.quarantine is not None and job.quarantine.mode != "append":
        raise ConfigError("[quarantine] has no mode; its rows are appended")
    if job.quarantine is None:
        if using:
            raise ConfigError(
                f"{using[0]!r} puts rows into quarantine, but there is no table [quarantine]; add "
                "one, or write onViolation = 'drop' or 'fail'"
            )
        return
    if not using:
        raise ConfigError("[quarantine] is given, but nothing puts rows into it")
    if not job.quarantine.is_exactly_once:
        raise ConfigError(
            f"[quarantine] format is {job.quarantine.format}; write {' or '.join(TABLES)}"
        )
    _check_apart(job.sink, job.quarantine)


def _check_replacing(aggregate: Aggregate, sink: Sink) -> None:
    """Whether a sink can replace rows."""
    if sink.format not in ("delta", "console"):
        raise ConfigError(
            f"[aggregate] outputMode is {aggregate.output_mode}, which replaces rows; "
            f"{sink.format} cannot, delta and console can"
        )
    if aggregate.output_mode == "update":
        # Otherwise a row would move between partitions.
        _check_known("[sink] partitionBy", sink.partition_by, aggregate.keys)


def _check_columns(job: Job) -> None:
    """Whether named columns exist, as far as that can be known without Spark."""
    parse = job.parse
    known: tuple[str, ...] | None = tuple(COLUMNS)
    if parse is not None:
        schema = body_schema(parse, job.folder)
        names = () if schema == INFER else field_names(schema)
        is_inner = parse.into is not None and parse.format != "text"
        taken = {column.lower() for column in COLUMNS}
        for name in () if is_inner else names:
            if name.lower() in taken:
                raise ConfigError(
                    f"[parse] schema has {name}, a column that messages have already; "
                    'write into = "value"'
                )
        inner = (parse.into,) if is_inner and parse.into is not None else names
        known = None if schema == INFER and not is_inner else (*COLUMNS, *inner)
    if job.deduplicate is not None:
        _check_known("[deduplicate] keys", job.deduplicate.keys, known)
        _check_known("[deduplicate] time", (job.deduplicate.time,), known)
    if job.transforms:
        known = None
    if job.aggregate is not None:
        _check_known("[aggregate] time", (job.aggregate.time,), known)
        _check_known("[aggregate] by", job.aggregate.by, known)
        known = (*job.aggregate.keys, *job.aggregate.values)
    sink = job.sink
    _check_known("[sink] partitionBy", sink.partition_by, known)
    _check_known("[sink] keys", sink.keys, known)
    _check_known("[sink] sequence", () if sink.sequence is None else (sink.sequence,), known)


def _check_known(place: str, named: Iterable[str], known: tuple[str, ...] | None) -> None:
    """``known`` None: the columns are not known yet."""
    if known is None:
        return
    by_lower = {each.lower() for each in known}
    for name in named:
        # Fields of a column are written with a dot.
        if name.partition(".")[0].strip("`").lower() not in by_lower:
            raise ConfigError(
                f"{place} names {name}, which the rows do not have; {near(name, known)}"
            )


def _check_apart(sink: Sink, quarantine: Sink) -> None:
    """A table within the folder of another would be read as a part of it."""
    own, other = ((each.path or each.table or "").rstrip("/") for each in (sink, quarantine))
    if not own or not other:
        return
    own, other = posixpath.normpath(own), posixpath.normpath(other)
    if own == other:
        raise ConfigError(f"[sink] and [quarantine] are the same place, {own}")
    for inner, outer in ((own, other), (other, own)):
        if inner.startswith(f"{outer}/"):
            raise ConfigError(f"[sink] and [quarantine]: {inner} is inside of {outer}")
