"""Run the command line as a user does: commands to their end, daemons until they are ready.

The environment has no RocketMQ settings unless a test adds them.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from goddard.testing.process import Process

_TIMEOUT_SECONDS = 60


def environment(**changes: str) -> dict[str, str]:
    """The variables of this process without ROCKETMQ_HOME and NAMESRV_ADDR, with changes."""
    dropped = ("ROCKETMQ_HOME", "NAMESRV_ADDR")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, **changes}


def run_to_end(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )


def daemon(folder: Path, command: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
    """A daemon that is not started yet; it runs in the folder and prints to ``output.log``."""
    folder.mkdir(parents=True, exist_ok=True)
    return Process(
        "daemon",
        command,
        log=folder / "output.log",
        ready="boot success",
        env=environment() if env is None else env,
        cwd=folder,
        start_timeout=_TIMEOUT_SECONDS,
    )
