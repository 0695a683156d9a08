"""Valid and invalid rows: expectations, and what happens to rows that violate them.

A row that was parsed is checked against every expectation; a condition that is false or null is
violated. Of several, the strictest action applies: fail before quarantine before drop. ACTION is
null for valid rows, VIOLATIONS has the names of what a row violates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from goddard.errors import ConfigError
from goddard.pipelines.errors import root_cause
from goddard.pipelines.job import Action, Job
from goddard.pipelines.parse import PROBLEM, rescued_column

ACTION: Final = "_goddard_action"
VIOLATIONS: Final = "_goddard_violations"
_OWN: Final = (PROBLEM, ACTION, VIOLATIONS)
# The rule that bodies can be parsed.
PARSE_RULE: Final = "[parse]"
_STRICTEST_FIRST: Final[tuple[Action, ...]] = ("fail", "quarantine", "drop")
# What a quarantine table has of a message: enough to find it, and to send it again.
QUARANTINE_COLUMNS: Final = (
    "msgId",
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "keys",
    "tags",
    "body",
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of a batch, from the metrics that Spark observed while it wrote them.

    ``violations`` are by rule; a row may violate several. ``rescued`` are rows with fields that the
    schema does not have.
    """

    rows: int = 0
    quarantined: int = 0
    dropped: int = 0
    rescued: int = 0
    violations: Mapping[str, int] = field(default_factory=dict)


def with_action(frame: DataFrame, job: Job) -> DataFrame:
    """The rows with VIOLATIONS and ACTION."""
    unparsed = sf.col(PROBLEM) if job.parse is not None else sf.lit(None).cast("string")
    violated = {
        each.label: ~sf.coalesce(_condition(frame, each.label, each.condition), sf.lit(False))
        for each in job.expectations
    }
    names = sf.array_compact(
        sf.array(*(sf.when(failed, sf.lit(name)) for name, failed in violated.items()))
        if violated
        else sf.array().cast("array<string>")
    )
    action = sf.lit(None).cast("string")
    for kind in reversed(_STRICTEST_FIRST):
        for each in job.expectations:
            if each.on_violation == kind:
                action = sf.when(violated[each.label], sf.lit(kind)).otherwise(action)
    action = sf.when(unparsed.isNotNull(), sf.lit(job.parse_action)).otherwise(action)
    columns = {
        VIOLATIONS: sf.when(unparsed.isNotNull(), sf.array(unparsed)).otherwise(names),
        ACTION: action,
    }
    return frame.withColumns(columns)


def _condition(frame: DataFrame, name: str, text: str) -> Column:
    try:
        condition = sf.expr(text)
        # Spark analyses it here, where its name is known.
        frame.where(condition)
    except PySparkException as error:
        raise ConfigError(f"[[expect]] {name}: {root_cause(error)}") from error
    return condition


def metrics(job: Job) -> list[Column]:
    """What Spark is to observe of the rows of ``with_action``."""
    found = [
        sf.count(sf.lit(1)).alias("rows"),
        sf.count_if(sf.col(ACTION) == "quarantine").alias("quarantined"),
        sf.count_if(sf.col(ACTION) == "drop").alias("dropped"),
    ]
    if job.parse is not None:
        found.append(sf.count_if(sf.col(PROBLEM).isNotNull()).alias(PARSE_RULE))
        if (rescued := rescued_column(job.parse)) is not None:
            found.append(sf.count_if(sf.col(rescued).isNotNull()).alias("rescued"))
    for number, each in enumerate(job.expectations):
        has_violated = sf.array_contains(VIOLATIONS, each.label)
        found.append(sf.count_if(has_violated).alias(f"rule{number}"))
    return found


def counts(job: Job, observed: Mapping[str, Any]) -> Counts:
    """The counts of observed metrics."""
    violations = {} if job.parse is None else {PARSE_RULE: int(observed[PARSE_RULE])}
    for number, each in enumerate(job.expectations):
        violations[each.label] = int(observed[f"rule{number}"])
    return Counts(
        rows=int(observed["rows"]),
        quarantined=int(observed["quarantined"]),
        dropped=int(observed["dropped"]),
        rescued=int(observed["rescued"]) if "rescued" in observed else 0,
        violations=violations,
    )


def valid_or_fail(frame: DataFrame) -> DataFrame:
    """The valid rows; the query fails at a row whose violation is to fail the job."""
    words = sf.concat(
        sf.lit("a row is not accepted: "),
        sf.concat_ws("; ", VIOLATIONS),
        sf.lit("; it is the message "),
        "msgId",
    )
    is_valid = sf.when(sf.col(ACTION) == "fail", sf.raise_error(words).cast("boolean")).otherwise(
        sf.col(ACTION).isNull()
    )
    return frame.where(is_valid).drop(*_OWN)


def quarantined(frame: DataFrame) -> DataFrame:
    """The rows of the quarantine table."""
    return frame.where(sf.col(ACTION) == "quarantine").select(
        sf.concat_ws("; ", VIOLATIONS).alias("reason"), *QUARANTINE_COLUMNS
    )
