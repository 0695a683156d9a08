"""The state of a job: its offset in every queue, and whether a new job has anything to read.

Asks the cluster; needs no Spark.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from goddard.errors import ConfigError, GoddardError
from goddard.pipelines.errors import PipelineError
from goddard.pipelines.job import Job
from goddard.spark.options import parse_source
from goddard.spark.reading import offsets
from goddard.spark.reading.cluster import ClusterClient
from goddard.spark.reading.offsets import Offsets

_MAX_LOG_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """``position`` is the next message to read; None where nothing was read yet."""

    topic: str
    broker_name: str
    queue_id: int
    latest: int
    position: int | None
    lag: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    """``by`` says where the positions are from; ``last_batch`` is the checkpoint's, if local."""

    by: str
    last_batch: int | None
    queues: list[QueueStatus]

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)


def job_status(job: Job) -> JobStatus:
    """Ask how far a job is; ConfigError if that cannot be known."""
    if not job.source.is_stream:
        raise ConfigError(f"{job.name} reads files, which has no progress to ask for")
    options = parse_source(job.source.options, is_streaming=True)
    checkpoint = checkpoint_offsets(job.run.checkpoint)
    with ClusterClient(options.connection) as cluster:
        bounds = cluster.bounds(cluster.queues(options))
        earliest, latest = bounds.earliest, bounds.latest
        if options.group is not None:
            by = f"offsets of the group {options.group}"
            positions = cluster.group_offsets(options.group, latest)
        elif checkpoint is not None:
            by, positions = f"checkpoint {job.run.checkpoint}", checkpoint[1]
        else:
            raise ConfigError(
                f"{job.name} has no group, and there is no checkpoint at {job.run.checkpoint}; "
                "a group in [source] makes progress visible"
            )
    queues = []
    for queue, end in sorted(latest.items()):
        position = positions.get(queue)
        lag = max(0, end - max(earliest[queue], position or 0))
        queues.append(
            QueueStatus(queue.topic, queue.broker_name, queue.queue_id, end, position, lag)
        )
    return JobStatus(by, None if checkpoint is None else checkpoint[0], queues)


def checkpoint_offsets(checkpoint: str) -> tuple[int, Offsets] | None:
    """The last committed batch of a checkpoint on this machine, and where it ended."""
    folder = Path(checkpoint.removeprefix("file://").removeprefix("file:")) / "query"
    try:
        numbers = [int(path.name) for path in (folder / "commits").iterdir() if path.name.isdigit()]
        if not numbers:
            return None
        path = folder / "offsets" / str(max(numbers))
        if path.stat().st_size > _MAX_LOG_BYTES:
            return None
        last_line = path.read_text(encoding="utf-8").strip().splitlines()[-1]
        found = offsets.from_json(json.loads(last_line)).queues
    except (OSError, ValueError, IndexError, TypeError, GoddardError):
        return None
    return max(numbers), found


def check_source(job: Job) -> None:
    """PipelineError if a new job would read nothing.

    A job that has run before waits for unreachable servers, as its options say.
    """
    if not job.source.is_stream or not _is_new(job):
        return
    try:
        options = parse_source(job.source.options, is_streaming=True)
        with ClusterClient(options.connection) as cluster:
            cluster.queues(options)
    except GoddardError as error:
        raise PipelineError(f"{job.name}: {error}") from error


def _is_new(job: Job) -> bool:
    """Whether there is no checkpoint on this machine; other file systems are not asked."""
    checkpoint = job.run.checkpoint.removeprefix("file://").removeprefix("file:")
    return ":" not in checkpoint and not (Path(checkpoint) / "query").exists()
