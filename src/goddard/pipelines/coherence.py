"""Whether the sections of a job go together, as far as that can be known without Spark. Pure."""

import posixpath
from collections.abc import Iterable
from typing import Final

from goddard.errors import ConfigError
from goddard.pipelines import ddl
from goddard.pipelines.jobs import INFER, WINDOW_COLUMNS, Job, Sink
from goddard.pipelines.sections import near
from goddard.spark.columns import COLUMNS

# Sinks whose content a batch can replace as a whole.
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
        if aggregate.emit == "all":
            raise ConfigError("[aggregate] emit is all, which does not go with [deduplicate]")
    if aggregate is not None and aggregate.emit == "all" and job.sink.format not in _REPLACED:
        raise ConfigError(
            f"[aggregate] emit is all, which writes the whole table anew each time; "
            f"{job.sink.format} cannot, {' and '.join(_REPLACED)} can"
        )
    if job.sink.compacts and aggregate is not None and aggregate.emit == "all":
        raise ConfigError("[sink] compact has nothing to do when every batch replaces the table")
    if job.quarantine is not None:
        _check_apart(job.sink, job.quarantine)
    _check_columns(job)


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
        known = (*WINDOW_COLUMNS, *job.aggregate.by, *job.aggregate.values)
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
