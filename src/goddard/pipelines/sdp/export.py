"""Write a job as a project of Spark Declarative Pipelines, for ``spark-pipelines run``.

The project has Spark's specification, a Python file that declares the tables, and a copy of the job
file, which stays the only description of what happens to rows. Spark manages tables, checkpoints
and retries: the job's own table paths and checkpoint are not used.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from goddard.errors import ConfigError
from goddard.pipelines.builtin import job_path
from goddard.pipelines.config import load_job
from goddard.pipelines.job import AVAILABLE_NOW, FILES, INFER, MESSAGES, TABLES, Job
from goddard.pipelines.transforms import load_function, module_file

_JOB: Final = "job.toml"

_SPEC: Final = """\
# {name}, exported from a job file of Goddard. In this folder:
#   pip install 'pyspark[pipelines]'
#   spark-pipelines run --conf spark.sql.catalogImplementation=hive
# With that setting the catalog of tables is kept for the next run.
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

_HEAD: Final = '''\
"""Tables of the pipeline {name}; {job} says what happens to rows."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from goddard.pipelines.sdp.datasets import Datasets

spark = SparkSession.active()
datasets = Datasets(Path(__file__).parents[1] / "{job}", {changes})
'''

_TABLE: Final = """

@dp.table(name="{base}"{arguments})
def rows() -> DataFrame:
    return datasets.rows(datasets.messages(spark))
"""

_SINK: Final = """

dp.create_sink("{base}", "rocketmq", datasets.sink_options())


@dp.append_flow(target="{base}")
def rows() -> DataFrame:
    return datasets.rows(datasets.messages(spark))
"""

_QUARANTINE: Final = """

@dp.table(name="{base}_quarantine", comment="Messages that are not valid, with the reason")
def quarantine() -> DataFrame:
    return datasets.quarantined(datasets.messages(spark))
"""


def export(name: str, folder: Path, changes: Mapping[str, str] | None = None) -> list[str]:
    """Write the project of a job into a new folder; returns what it leaves out.

    ``name`` is a job file or a built-in job. ``changes`` replace values of it, in the project too.
    """
    path = job_path(name)
    job = load_job(path, changes, called=name)
    _check(job)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; give a new folder")
    own_files = list(_own_files(job))
    spec = _SPEC.format(name=json.dumps(_base(job)), storage=_storage(folder))
    files = {
        "spark-pipeline.yml": spec,
        f"transformations/{_base(job)}.py": python_of(job, changes or {}),
        _JOB: path.read_text(encoding="utf-8"),
    }
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for source in own_files:
        target = folder / source.relative_to(job.folder.resolve())
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    return list(_left_out(job))


def python_of(job: Job, changes: Mapping[str, str]) -> str:
    """The Python file of the project. Pure."""
    base = _base(job)
    text = _HEAD.format(name=job.name, job=_JOB, changes=_dictionary(changes))
    if job.sink.format == MESSAGES:
        text += _SINK.format(base=base)
    else:
        arguments = ""
        if job.sink.partition_by:
            arguments += f", partition_cols={json.dumps(list(job.sink.partition_by))}"
        if job.sink.is_files:
            arguments += f', format="{job.sink.format}"'
        text += _TABLE.format(base=base, arguments=arguments)
    if job.quarantine is not None:
        text += _QUARANTINE.format(base=base)
    return text


def _base(job: Job) -> str:
    """The name of the job as an identifier of SQL."""
    name = re.sub(r"\W", "_", job.name, flags=re.ASCII)
    return name if name[0].isalpha() else f"p{name}"


def _storage(folder: Path) -> str:
    return json.dumps(f"file://{(folder / 'storage').resolve()}")


def _dictionary(changes: Mapping[str, str]) -> str:
    if not changes:
        return "{}"
    return "{" + ", ".join(f"{name!r}: {value!r}" for name, value in changes.items()) + "}"


def _check(job: Job) -> None:
    """Refuse what Declarative Pipelines cannot do."""
    problem = None
    if not job.source.is_stream:
        problem = f"its source is {job.source.format}, which is no stream"
    elif job.sink.format not in (MESSAGES, *TABLES, *FILES):
        problem = f"its sink is {job.sink.format}; tables, files and topics can be exported"
    elif job.sink.mode != "append":
        problem = f"[sink] mode is {job.sink.mode}, which needs tables that Spark can merge into"
    elif job.aggregate is not None and job.aggregate.output_mode != "append":
        problem = f"[aggregate] outputMode is {job.aggregate.output_mode}; only append is possible"
    elif job.parse is not None and job.parse.schema == INFER:
        problem = "[parse] schema is infer; declare the schema"
    if problem is not None:
        raise ConfigError(f"{job.name} cannot be exported: {problem}")


def _left_out(job: Job) -> Iterator[str]:
    if job.run.trigger != AVAILABLE_NOW:
        yield f"[run] trigger {job.run.trigger}: each run reads what is available, and ends"
    if job.run.after is not None:
        yield f"[run] after {job.run.after}"
    if job.run.settings:
        yield "[run] settings: give them to spark-pipelines with --conf"
    if job.sink.format in TABLES:
        yield (
            f"[sink] {job.sink.format} {job.sink.place}: Spark writes a table of its catalog, in "
            "its default format"
        )
    if job.quality is not None or job.monitoring.prometheus_file is not None:
        yield "[monitoring]: see Spark's event log"


def _own_files(job: Job) -> Iterator[Path]:
    """The schema file and the Python modules beside the job file."""
    here = job.folder.resolve()
    if job.parse is not None and job.parse.schema_file is not None:
        schema = (here / job.parse.schema_file).resolve()
        if not schema.is_relative_to(here):
            raise ConfigError(
                f"{job.name} cannot be exported: [parse] schemaFile {schema} is not in the folder "
                "of the job file"
            )
        yield schema
    for each in job.transforms:
        if each.python is not None:
            load_function(each.python, job.folder)
            file = module_file(each.python)
            if file is not None and file.resolve().is_relative_to(here):
                yield file.resolve()
