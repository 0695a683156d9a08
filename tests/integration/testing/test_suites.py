"""What ``make test`` makes of failures, tried on a small project."""

import shutil
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[3] / "tools" / "run_suites.py"

PASSES = """
def test_well():
    pass
"""
FAILS_ONCE = """
from pathlib import Path

def test_once():
    seen = Path(__file__).with_name("seen")
    was_there = seen.exists()
    seen.touch()
    assert was_there
"""
FAILS = """
def test_always():
    assert False
"""


def run(folder: Path, **suites: str) -> "subprocess.CompletedProcess[str]":
    (folder / "tools").mkdir()
    shutil.copy(TOOL, folder / "tools")
    (folder / "pytest.ini").write_text("[pytest]\n")
    for suite, text in suites.items():
        (folder / "tests" / suite).mkdir(parents=True)
        (folder / "tests" / suite / f"test_{suite}.py").write_text(text)
    return subprocess.run(
        [sys.executable, str(folder / "tools" / TOOL.name)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_all_is_well(tmp_path: Path) -> None:
    done = run(tmp_path, unit=PASSES, client=PASSES)
    assert done.returncode == 0, done.stdout
    assert "again" not in done.stdout


def test_passes_when_alone(tmp_path: Path) -> None:
    done = run(tmp_path, unit=FAILS_ONCE, client=PASSES)
    assert done.returncode == 0, done.stdout
    named = done.stdout.split("passed alone:")[1]
    assert named.split() == ["tests/unit/test_unit.py::test_once"]


def test_fails_again(tmp_path: Path) -> None:
    done = run(tmp_path, unit=FAILS_ONCE, client=FAILS)
    assert done.returncode == 1
    assert "tests/unit/test_unit.py::test_once" in done.stdout.split("passed alone:")[1]


def test_a_half_that_breaks_off_is_not_tried_again(tmp_path: Path) -> None:
    done = run(tmp_path, unit="import os\nos._exit(3)\n", client=PASSES)
    assert done.returncode == 1
    assert "again" not in done.stdout


def test_a_suite_of_no_half_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, unit=PASSES, client=PASSES, new=PASSES)
    assert done.returncode == 2
    assert "new" in done.stderr
