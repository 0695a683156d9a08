"""The demo with Spark: it creates a chart and removes all other files."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest


@pytest.mark.timeout(300)
def test_demo_creates_a_chart_of_its_messages(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "goddard.cli.main", "demo", "--spark", "--chart", "chart.svg"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "traffic: 10,0" in done.stdout
    assert ET.parse(tmp_path / "chart.svg").getroot().tag.endswith("svg")
    assert [path.name for path in tmp_path.iterdir() if path != scratch] == ["chart.svg"]
    assert not list(scratch.iterdir())
