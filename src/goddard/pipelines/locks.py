"""One run of a job at a time on this machine, by a lock on a file in its checkpoint's folder.

Needs no Spark, so that a second run is refused before Spark has started. The system lets go of the
lock of a process that is killed. Other places than disks know no locks.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from goddard.errors import ConfigError
from goddard.pipelines.jobs.job import Job
from goddard.pipelines.tables.batches import single

# What a stream holds its lock under; back-fills of other times run beside it.
STREAM: Final = "run"
_FOLDER: Final = "locks"
_LOCAL: Final = "file:"


def back_fill(job: Job, start_ms: int | None, end_ms: int | None) -> str:
    """What a back-fill between two times holds its lock under."""
    return f"back-fill-{single(job.name, job.source.format, start_ms, end_ms).query}"


def local_folder(path: str, settings: Mapping[str, str] | None = None) -> Path | None:
    """Where on this machine's disks Spark finds a path; None if it may be anywhere else."""
    if path.startswith(_LOCAL):
        # Hadoop writes it with one slash or with three.
        return Path("/" + path.removeprefix(_LOCAL).lstrip("/"))
    is_elsewhere = "HADOOP_CONF_DIR" in os.environ or "spark.hadoop.fs.defaultFS" in (
        settings or {}
    )
    return None if "://" in path or is_elsewhere else Path(path)


@contextmanager
def held(checkpoint: Path, what: str) -> Iterator[None]:
    """Keep other processes from running the same; ConfigError if one does already."""
    folder = checkpoint / _FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / what).open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{checkpoint} cannot be written to ({error.strerror}); is the path right, and may "
            "this user write there?"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ConfigError(
                f"it runs already, as process {file.read(20).strip()}; wait for it or stop it"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
