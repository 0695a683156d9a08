"""Whether the sections of a job go together, as far as that can be known without Spark. Pure."""

import posixpath
from collections.abc import Iterable
from typing import Final

from goddard.errors import ConfigError
from goddard.pipelines.jobs import ddl
from goddard.pipelines.jobs.job import INFER, Aggregate, Job, Sink
from goddard.pipelines.jobs.sections import interval_ms, near
from goddard.spark.columns import COLUMNS

# Sinks that take rows in place of others.
_REPLACED: Final = ("parquet", "console")


def check_together(job: Job) -> None:
    """ConfigError if one section asks for what another does not have, or rules out."""
    wants_quarantine = [each.name for each in job.expectations if each.otherwise == "quarantine"]
    if job.parse is not None and job.parse.otherwise == "quarantine":
        wants_quarantine.append("[parse]")
    if wants_quarantine and job.quarantine is None:
        raise ConfigError(
            f"{wants_quarantine[0]!r} puts rows into quarantine, but there is no table "
            "[quarantine]; add one, or write otherwise = 'drop' or 'fail'"
        )
    if job.quarantine is not None and not wants_quarantine:
        raise ConfigError("[quarantine] is given, but nothing puts rows into it")
    aggregate = job.aggregate
    if aggregate is not None and job.deduplicate is not None:
        # Spark keeps one clock for a query's state.
        if aggregate.time != job.deduplicate.time:
            raise ConfigError(
                f"[aggregate] time is {aggregate.time}, [deduplicate] time {job.deduplicate.time}; "
                "one query has one time, so name the same"
            )
        if aggregate.emit != "closed":
            raise ConfigError(
                f"[aggregate] emit is {aggregate.emit}, which does not go with [deduplicate]"
            )
    if aggregate is not None and aggregate.emit != "closed":
        _check_replaced(aggregate, job.sink)
    if job.quarantine is not None:
        _check_apart(job.sink, job.quarantine)
    _check_columns(job)


def notes(job: Job) -> list[str]:
    """What is allowed, and may surprise whoever runs the job for long."""
    found = []
    aggregate, deduplicate = job.aggregate, job.deduplicate
    if aggregate is not None and aggregate.emit == "all":
        found.append(
            "[aggregate] emit = 'all' remembers every window for ever and writes all of them with "
            "each batch; 'changed' forgets those that are over"
        )
    waits = [deduplicate.within] if deduplicate is not None else []
    if aggregate is not None and aggregate.late is not None:
        waits.append(aggregate.late)
    limited = {name.lower() for name in job.source.options} & {"maxoffsetspertrigger"}
    if waits and limited and job.source.is_stream:
        longest = max(waits, key=lambda each: interval_ms(each) or 0)
        found.append(
            "[source] maxOffsetsPerTrigger: while the job catches up, queues may be at different "
            f"times; rows that are {longest} behind the newest of all queues are dropped as late"
        )
    return found


def _check_replaced(aggregate: Aggregate, sink: Sink) -> None:
    """Whether a sink can take rows in place of others."""
    if sink.format not in _REPLACED:
        raise ConfigError(
            f"[aggregate] emit is {aggregate.emit}, which writes rows in place of others; "
            f"{sink.format} cannot, {' and '.join(_REPLACED)} can"
        )
    if sink.compacts:
        raise ConfigError("[sink] compact has nothing to do when batches replace files anyway")
    if aggregate.emit == "changed":
        # Else a row would be in one folder first and in another later.
        _check_known("[sink] partitionBy", sink.partition_by, aggregate.keys)


def _check_columns(job: Job) -> None:
    """Whether columns that are named exist, as far as that can be known without Spark."""
    parse = job.parse
    known: tuple[str, ...] | None = tuple(COLUMNS)
    if parse is not None and parse.into is not None:
        known = (*COLUMNS, parse.into)
    elif parse is not None:
        known = None if parse.schema == INFER else (*COLUMNS, *ddl.field_names(parse.schema))
    if job.deduplicate is not None:
        _check_known("[deduplicate] keys", job.deduplicate.keys, known)
        _check_known("[deduplicate] time", (job.deduplicate.time,), known)
    if job.transforms:
        known = None
    if job.aggregate is not None:
        _check_known("[aggregate] time", (job.aggregate.time,), known)
        _check_known("[aggregate] by", job.aggregate.by, known)
        known = (*job.aggregate.keys, *job.aggregate.values)
    _check_known("[sink] partitionBy", job.sink.partition_by, known)


def _check_known(place: str, named: Iterable[str], known: tuple[str, ...] | None) -> None:
    """``known`` None: nobody knows yet."""
    if known is None:
        return
    by_lower = {each.lower() for each in known}
    for name in named:
        # A field of a column is written with a dot.
        if name.partition(".")[0].strip("`").lower() not in by_lower:
            raise ConfigError(
                f"{place} names {name}, which the rows do not have; {near(name, known)}"
            )


def _check_apart(sink: Sink, quarantine: Sink) -> None:
    """Two tables have two places; one inside of the other would be read as a part of it."""
    own, other = ((each.path or each.table or "").rstrip("/") for each in (sink, quarantine))
    if not own or not other:
        return
    own, other = posixpath.normpath(own), posixpath.normpath(other)
    if own == other:
        raise ConfigError(f"[sink] and [quarantine] are the same place, {own}")
    for inner, outer in ((own, other), (other, own)):
        if inner.startswith(f"{outer}/"):
            raise ConfigError(f"[sink] and [quarantine]: {inner} is inside of {outer}; part them")
