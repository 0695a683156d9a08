"""DataFrame to DataFrame: deduplication, SQL and Python, windows over time; streams and batches."""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from goddard.errors import ConfigError
from goddard.pipelines.errors import PipelineError, near, root_cause, where_it_failed
from goddard.pipelines.job import WINDOW_COLUMNS, Aggregate, Deduplicate, Job, Transform

Step = Callable[[DataFrame], DataFrame]

# The view that queries read.
INPUT: Final = "input"


def deduplicated(frame: DataFrame, spec: Deduplicate, *, is_stream: bool) -> DataFrame:
    """One row of each key."""
    if is_stream:
        timed = frame.withWatermark(spec.time, spec.watermark)
        return timed.dropDuplicatesWithinWatermark(list(spec.keys))
    return frame.dropDuplicates(list(spec.keys))


def load_function(place: str, folder: Path) -> Callable[..., object]:
    """What ``module:function`` names, beside the job file or installed."""
    module_name, _, name = place.partition(":")
    here = str(folder.resolve())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"{place} cannot be used: {root_cause(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        hint = near(name, [each for each in vars(module) if callable(getattr(module, each))])
        raise ConfigError(f"{place} cannot be used: {module_name} has no function {name}; {hint}")
    found: Callable[..., object] = function
    return found


def check_functions(job: Job) -> None:
    """ConfigError if a function of the job does not exist."""
    for place in (*(each.python for each in job.transforms), job.run.after):
        if place is not None:
            load_function(place, job.folder)


def module_file(place: str) -> Path | None:
    """The file of a function's module, if executors do not have it."""
    module = sys.modules.get(place.partition(":")[0])
    path = getattr(module, "__file__", None)
    if path is None or hasattr(module, "__path__") or "site-packages" in path:
        return None
    return Path(path)


def steps(transforms: Sequence[Transform], folder: Path) -> list[Step]:
    """The transforms as functions; ConfigError if one does not exist."""
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
            raise ConfigError(f"[[transform]] {number}: {root_cause(error)}") from error

    return run


def _function(place: str, folder: Path) -> Step:
    function = load_function(place, folder)
    file = module_file(place) or Path()

    def run(frame: DataFrame) -> DataFrame:
        try:
            made = function(frame)
        except Exception as error:
            line = where_it_failed(error, file)
            raise PipelineError(f"{place} failed{line}: {root_cause(error)}") from error
        if not isinstance(made, DataFrame):
            raise ConfigError(f"{place} returned {type(made).__name__}; a DataFrame is wanted")
        return made

    return run


def aggregated(frame: DataFrame, spec: Aggregate, *, has_watermark: bool = False) -> DataFrame:
    """Values for each window and each combination of the columns ``by``."""
    if spec.delay is not None and not has_watermark:
        frame = frame.withWatermark(spec.time, spec.delay)
    window = sf.window(spec.time, spec.window, spec.slide)
    values = [sf.expr(str(text)).alias(name) for name, text in spec.values.items()]
    start, end = WINDOW_COLUMNS
    return (
        frame.groupBy(window.alias("_goddard_window"), *spec.by)
        .agg(*values)
        .select(
            sf.col("_goddard_window.start").alias(start),
            sf.col("_goddard_window.end").alias(end),
            *spec.by,
            *spec.values,
        )
    )
