"""Good rows and bad ones: expectations, and what becomes of rows that do not meet them.

A row that parsed is held against every expectation; one whose condition is false or null fails it.
Of several that fail, the strictest decides: fail before quarantine before drop. ACTION is null for
good rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from goddard.errors import ConfigError, GoddardError
from goddard.pipelines.failures import sentence
from goddard.pipelines.jobs.job import Action, Expectation, Parse
from goddard.pipelines.parsing import PROBLEM

ACTION: Final = "_goddard_action"
_STRICTEST_FIRST: Final[tuple[Action, ...]] = ("fail", "quarantine", "drop")
# What a row in quarantine tells of its message; enough to find it, and to send it again.
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


class ExpectationError(GoddardError):
    """Rows that the job does not accept at all."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How the rows of a batch fared."""

    good: int
    quarantined: int
    dropped: int


def judged(frame: DataFrame, expectations: Sequence[Expectation], parse: Parse | None) -> DataFrame:
    """The rows with PROBLEM and ACTION."""
    unparsed = sf.col(PROBLEM) if parse is not None else sf.lit(None).cast("string")
    problem, action = unparsed, sf.lit(None).cast("string")
    if expectations:
        fails = {
            each: ~sf.coalesce(_condition(frame, each), sf.lit(False)) for each in expectations
        }
        names = sf.concat_ws("; ", *(sf.when(failed, each.name) for each, failed in fails.items()))
        problem = sf.when(unparsed.isNotNull(), unparsed).when(names != "", names)
        for kind in reversed(_STRICTEST_FIRST):
            for each, failed in fails.items():
                if each.otherwise == kind:
                    action = sf.when(failed, sf.lit(kind)).otherwise(action)
    if parse is not None:
        action = sf.when(unparsed.isNotNull(), sf.lit(parse.otherwise)).otherwise(action)
    return frame.withColumns({PROBLEM: problem, ACTION: action})


def _condition(frame: DataFrame, expectation: Expectation) -> Column:
    try:
        condition = sf.expr(expectation.condition)
        # Spark looks at it now, while it is known whose it is.
        frame.where(condition)
    except PySparkException as error:
        raise ConfigError(f"[[expect]] {expectation.name}: {sentence(error)}") from error
    return condition


def tally(frame: DataFrame) -> Tally:
    """Count the rows by their fate; ExpectationError if one of them must not be."""
    counted = (
        frame.groupBy(ACTION)
        .agg(
            sf.count(sf.lit(1)).alias("rows"),
            sf.min(sf.struct(PROBLEM, "msgId")).alias("first"),
        )
        .collect()
    )
    rows: dict[str | None, int] = {row[ACTION]: row["rows"] for row in counted}
    for row in counted:
        if row[ACTION] == "fail":
            raise ExpectationError(
                f"{row['rows']:,} rows are not accepted; one of them is the message "
                f"{row['first']['msgId']}: {row['first'][PROBLEM]}"
            )
    return Tally(rows.get(None, 0), rows.get("quarantine", 0), rows.get("drop", 0))


def good(frame: DataFrame) -> DataFrame:
    return frame.where(sf.col(ACTION).isNull()).drop(PROBLEM, ACTION)


def good_or_fail(frame: DataFrame) -> DataFrame:
    """The good rows of a stream; the query fails at a row that must not be."""
    words = sf.concat(
        sf.lit("a row is not accepted: "), sf.col(PROBLEM), sf.lit("; it is the message "), "msgId"
    )
    is_good = sf.when(sf.col(ACTION) == "fail", sf.raise_error(words).cast("boolean")).otherwise(
        sf.col(ACTION).isNull()
    )
    return frame.where(is_good).drop(PROBLEM, ACTION)


def quarantined(frame: DataFrame) -> DataFrame:
    """The rows that go into quarantine, as they are kept there."""
    return frame.where(sf.col(ACTION) == "quarantine").select(
        sf.col(PROBLEM).alias("reason"), *QUARANTINE_COLUMNS
    )
