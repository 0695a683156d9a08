"""The example with plain PySpark runs as a program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from goddard.testing.site import Site

PROGRAM = Path(__file__).parents[2] / "examples" / "spark_batch.py"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("site", ["goddard"], indirect=True)
def test_a_topic_is_read_and_counted(site: Site) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "NAMESRV_ADDR": site.namesrv},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["new: 50", "paid: 50"]
