"""What tools write is what is there: the blocking clients and the API reference."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("tool", ["write_blocking", "write_reference"])
def test_generated_files_are_up_to_date(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tools.{tool}", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
