"""The daemons' commands as a user types them: run to their end, or until they serve.

They find nothing of ours in the environment unless a test puts it there.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from goddard.testing.process import Process

_TIMEOUT_SECONDS = 60


def environment(**changes: str) -> dict[str, str]:
    """This process's variables, without those that tell a daemon of a home or of name servers."""
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
    """A daemon, not started yet, that prints to ``output.log`` in the folder and runs there."""
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
