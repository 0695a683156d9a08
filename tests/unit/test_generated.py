"""The API reference is what its tool writes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.write_reference", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
