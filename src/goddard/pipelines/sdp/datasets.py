"""The datasets of a job in a Spark Declarative Pipelines project.

The Python file of an exported project declares tables and calls this. Spark runs such files with
Spark Connect, and in their queries forbids temporary views, settings, and whatever needs Spark's
analysis, such as ``frame.columns`` and ``frame.isStreaming``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from goddard.errors import ConfigError
from goddard.pipelines import expectations, parse, transforms
from goddard.pipelines.config import load_job
from goddard.pipelines.errors import root_cause
from goddard.pipelines.schemas import body_schema

_FRAME: Final = "goddard_rows"


class Datasets:
    """What the tables of a job have, as streams.

    Each table reads the topics, not another table: a query that needs analysis, such as a
    deduplication, cannot read a table of the same project.
    """

    def __init__(self, path: Path, changes: Mapping[str, str] | None = None) -> None:
        self.job = job = load_job(path, changes)
        self._schema: StructType | None = None
        if job.parse is not None:
            # Not later: Spark analyses nothing while it collects the queries of the tables.
            schema = StructType.fromDDL(body_schema(job.parse, job.folder))
            assert isinstance(schema, StructType)
            self._schema = schema

    def messages(self, spark: SparkSession) -> DataFrame:
        """The messages of the topics."""
        return spark.readStream.format("rocketmq").options(**self.job.source.options).load()

    def rows(self, messages: DataFrame) -> DataFrame:
        """The rows of the job's sink."""
        job = self.job
        frame = self._checked(messages)
        if job.has_rules:
            frame = expectations.valid_or_fail(frame)
        if job.deduplicate is not None:
            frame = transforms.deduplicated(frame, job.deduplicate, is_stream=True)
        for number, each in enumerate(job.transforms, 1):
            if each.sql is not None:
                frame = _query(frame, number, each.sql)
            else:
                (step,) = transforms.steps([each], job.folder)
                frame = step(frame)
        if job.aggregate is not None:
            has_watermark = job.deduplicate is not None
            frame = transforms.aggregated(frame, job.aggregate, has_watermark=has_watermark)
        return frame

    def quarantined(self, messages: DataFrame) -> DataFrame:
        """The rows of the quarantine table."""
        return expectations.quarantined(self._checked(messages))

    def sink_options(self) -> dict[str, Any]:
        """The options of the topic to write to."""
        return dict(self.job.sink.options)

    def _checked(self, messages: DataFrame) -> DataFrame:
        job = self.job
        frame = messages
        if job.parse is not None and self._schema is not None:
            frame = parse.parsed(frame, job.parse, self._schema, job.folder)
        return expectations.with_action(frame, job) if job.has_rules else frame


def _query(frame: DataFrame, number: int, sql: str) -> DataFrame:
    """A query over ``input``, without a temporary view."""
    escaped = sql.strip().rstrip(";").replace("{", "{{").replace("}", "}}")
    text = f"WITH {transforms.INPUT} AS (SELECT * FROM {{{_FRAME}}}) SELECT * FROM (\n{escaped}\n)"
    frames: dict[str, Any] = {_FRAME: frame}
    try:
        return frame.sparkSession.sql(text, **frames)
    except Exception as error:
        raise ConfigError(f"[[transform]] {number}: {root_cause(error)}") from error
