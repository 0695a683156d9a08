"""DataFrame to DataFrame: duplicates out, SQL and Python, windows over time.

Duplicates and windows need Spark's memory between batches in a stream, and none in a batch; the
same functions do both.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

from goddard.errors import ConfigError
from goddard.pipelines.failures import PipelineError, sentence, where_it_failed
from goddard.pipelines.jobs.functions import load_function, module_file
from goddard.pipelines.jobs.job import WINDOW_COLUMNS, Aggregate, Deduplicate, Transform
from goddard.pipelines.quality import ACTION

Step = Callable[[DataFrame], DataFrame]

# Under this name a query finds the rows.
INPUT: Final = "input"
_KEY: Final = "_goddard_key_"
_TIME: Final = "_goddard_time"
# Names of folders cannot tell these from null.
_NULL_FOLDERS: Final = ("", "__HIVE_DEFAULT_PARTITION__")


def deduplicated(frame: DataFrame, spec: Deduplicate) -> DataFrame:
    """One row of each key. Bad rows have no keys to go by; each of them stays."""
    keys, time = list(spec.keys), spec.time
    extra: dict[str, Any] = {}
    if ACTION in frame.columns:
        place = sf.concat_ws("/", "brokerName", "topic", "queueId", "queueOffset")
        is_good = sf.col(ACTION).isNull()
        extra = {f"{_KEY}{at}": sf.when(is_good, sf.col(key)) for at, key in enumerate(keys)}
        extra[f"{_KEY}bad"] = sf.when(~is_good, place)
        keys, time = list(extra), _TIME
        # One bad row from the year 9999 would make all good ones that follow late.
        extra[_TIME] = sf.when(is_good, sf.col(spec.time))
        frame = frame.withColumns(extra)
    if frame.isStreaming:
        timed = frame.withWatermark(time, spec.within)
        frame = timed.dropDuplicatesWithinWatermark(keys)
    else:
        frame = frame.dropDuplicates(keys)
    return frame.drop(*extra)


def steps(transforms: Sequence[Transform], folder: Path) -> list[Step]:
    """The transforms as functions; ConfigError if one is not to be found."""
    return [
        _query(number, each.sql) if each.sql is not None else _function(each.python or "", folder)
        for number, each in enumerate(transforms, 1)
    ]


def _query(number: int, sql: str) -> Step:
    def run(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView(INPUT)
        try:
            return frame.sparkSession.sql(sql)
        except PySparkException as error:
            raise ConfigError(f"[[transform]] {number}: {sentence(error)}") from error

    return run


def _function(place: str, folder: Path) -> Step:
    function = load_function(place, folder)
    file = module_file(place) or Path()

    def run(frame: DataFrame) -> DataFrame:
        try:
            made = function(frame)
        except Exception as error:
            line = where_it_failed(error, file)
            raise PipelineError(f"{place} failed{line}: {sentence(error)}") from error
        if not isinstance(made, DataFrame):
            raise ConfigError(f"{place} returned {type(made).__name__}; a DataFrame is wanted")
        return made

    return run


def aggregated(
    frame: DataFrame,
    spec: Aggregate,
    *,
    has_watermark: bool = False,
    folders: Sequence[str] = (),
) -> DataFrame:
    """Values for each window, and for each combination of the columns ``by``.

    ``folders`` are those of which a table knows only what names of folders can tell. To Spark, no
    text is null there; so it is here, lest two rows have one key in the table.
    """
    if spec.late is not None and not has_watermark:
        frame = frame.withWatermark(spec.time, spec.late)
    window = sf.window(spec.time, spec.window, spec.slide)
    values = [sf.expr(text).alias(name) for name, text in spec.values.items()]
    start, end = WINDOW_COLUMNS
    in_folders = {name.lower() for name in folders}
    texts = {
        each.name.lower() for each in frame.schema if isinstance(each.dataType, StringType)
    } & in_folders
    by = [_as_in_folder(name) if name.lower() in texts else sf.col(name) for name in spec.by]
    return (
        frame.groupBy(window.alias("_goddard_window"), *by)
        .agg(*values)
        .select(
            sf.col("_goddard_window.start").alias(start),
            sf.col("_goddard_window.end").alias(end),
            *spec.by,
            *spec.values,
        )
    )


def _as_in_folder(name: str) -> Column:
    value = sf.col(name)
    return sf.when(~value.isin(*_NULL_FOLDERS), value).alias(name)
