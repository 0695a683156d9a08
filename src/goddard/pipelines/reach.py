"""Whether there is anything to read, asked before Spark starts: the answer comes in a second.

Only of a job that begins. One that has begun waits for servers that are away, as long as its
options say.
"""

from pathlib import Path

from goddard.errors import GoddardError
from goddard.pipelines.failures import PipelineError
from goddard.pipelines.jobs.job import Job
from goddard.spark.options import parse_source
from goddard.spark.reading.cluster import ClusterClient


def check_source(job: Job) -> None:
    """PipelineError if a new job would read nothing."""
    if not job.source.is_stream or not _begins(job):
        return
    try:
        options = parse_source(job.source.options, is_streaming=True)
        with ClusterClient(options.connection) as cluster:
            cluster.queues(options)
    except GoddardError as error:
        raise PipelineError(f"{job.name}: {error}") from error


def _begins(job: Job) -> bool:
    """Whether a checkpoint on this machine is not there yet; of others it is not known."""
    checkpoint = job.run.checkpoint.removeprefix("file://").removeprefix("file:")
    return ":" not in checkpoint and not (Path(checkpoint) / "query").exists()
