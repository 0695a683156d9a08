"""Shells complete commands, options and names of the cluster."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster

PROGRAMS = Path(sys.executable).parent

# What a user has in the file that each shell reads, and how the shell is asked to complete
# `goddard topic show top`. zsh only has its functions at a terminal: the script is run, and then
# the command that its function runs.
ASK = {
    "bash": """
        eval "$(_GODDARD_COMPLETE=bash_source goddard)"
        COMP_WORDS=(goddard topic show topic-) COMP_CWORD=3
        _goddard_completion goddard
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        autoload -U compinit && compinit -u -d "$TMPDIR/zcompdump"
        eval "$(_GODDARD_COMPLETE=zsh_source goddard)"
        whence -w _goddard_completion >&2
        COMP_WORDS="goddard topic show topic-" COMP_CWORD=3 _GODDARD_COMPLETE=zsh_complete goddard
    """,
    "fish": """
        _GODDARD_COMPLETE=fish_source goddard | source
        complete --do-complete "goddard topic show topic-"
    """,
}


INSTALLED = [shell for shell in ASK if shutil.which(shell) is not None]


@pytest.mark.parametrize("shell", INSTALLED)
def test_names_of_topics_are_completed(
    cluster: Cluster, topic: str, shell: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [shell, "-c", ASK[shell]],
        env={
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path),
            "NAMESRV_ADDR": cluster.namesrv,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert topic in done.stdout.split()
