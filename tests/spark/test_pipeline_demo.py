"""The demo with Spark: from nothing to a chart, and nothing but the chart is left."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest


@pytest.mark.timeout(300)
def test_the_demo_ends_with_a_chart_of_its_messages(tmp_path: Path) -> None:
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
