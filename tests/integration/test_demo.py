"""The demo runs, prints its results, and deletes its files."""

import subprocess
import sys
from pathlib import Path


def test_the_demo_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "goddard.cli.main", "demo", "--no-spark"],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split() for line in done.stdout.splitlines()]
    for broker in ("broker-a", "broker-b"):
        for queue in range(4):
            assert [broker, str(queue), "1250", "yes"] in shown
        (store,) = (words for words in shown if words[:1] == [broker] and words[-1] == "none")
        assert int(store[1]) >= 5_000
    assert ["rolled", "back", "never"] in shown
    assert not list(tmp_path.iterdir())
