"""Pipelines that come with Goddard: job files beside this module, and what two of them do besides.

``archive`` keeps everything, ``dead-letter`` what consumers gave up on (``dead_letter`` sends it
again), ``traffic`` counts and draws (``traffic``).
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from goddard.errors import ConfigError
from goddard.pipelines.errors import near

if TYPE_CHECKING:
    from goddard.pipelines.job import Job

_FOLDER = Path(__file__).parent


def builtin_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def find_job(name: str, changes: Mapping[str, str] | None = None) -> "Job":
    """The job of a file, or a built-in one by its name."""
    path = job_path(name)
    # After the name is found, because reading a job needs the extra ``spark``.
    config = importlib.import_module("goddard.pipelines.config")
    job: Job = config.load_job(path, changes, called=name)
    return job


def job_path(name: str) -> Path:
    """The job file of this name, or that of a built-in job."""
    path = Path(name)
    if path.is_file():
        return path
    if name in builtin_names():
        return _FOLDER / f"{name}.toml"
    if path.is_dir():
        raise ConfigError(
            f"{name} is a folder; a job file is wanted, or {', '.join(builtin_names())}"
        )
    if path.suffix == ".toml" or len(path.parts) > 1:
        raise ConfigError(f"{name} does not exist")
    raise ConfigError(
        f"{name} is neither a file nor a built-in pipeline; {near(name, builtin_names())}"
    )
