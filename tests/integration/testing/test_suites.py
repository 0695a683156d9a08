"""The test runner of ``make test``, run on small projects that pass, fail, or fail once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "run_suites.py"

PASSES = """
def test_passes():
    pass
"""
FAILS_ONCE = """
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range({count}))
def test_fails_once(number):
    marker = Path(__file__).with_name(f"{{Path(__file__).stem}}-{{number}}.seen")
    if not marker.exists():
        marker.touch()
        pytest.fail("first run")
"""
# Which tests exist depends on an option, as with --broker.
OPTION = """
def pytest_addoption(parser):
    parser.addoption("--broker", default="goddard")

def pytest_generate_tests(metafunc):
    if "broker" in metafunc.fixturenames:
        metafunc.parametrize("broker", [metafunc.config.getoption("broker")])
"""
FAILS_ONCE_AT_A_BROKER = FAILS_ONCE.format(count=1).replace("(number)", "(number, broker)")
FAILS = """
def test_always_fails():
    assert False
"""


def fails_once(count: int = 1) -> str:
    return FAILS_ONCE.format(count=count)


def run(folder: Path, *arguments: str, **suites: str) -> "subprocess.CompletedProcess[str]":
    (folder / "tools").mkdir()
    shutil.copy(TOOL, folder / "tools")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(OPTION)
    for suite, text in suites.items():
        (folder / "tests" / suite).mkdir(parents=True)
        (folder / "tests" / suite / f"test_{suite}.py").write_text(text)
    return subprocess.run(
        [sys.executable, str(folder / "tools" / TOOL.name), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


SHOWS_THE_SETTING = """
import os
from pathlib import Path

def test_setting():
    with Path(__file__).with_suffix(".settings").open("a") as file:
        print(os.environ.get("GODDARD_CORE", "unset"), file=file)
"""


def test_golden_tests_run_with_and_without_compiled_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GODDARD_CORE", raising=False)
    done = run(tmp_path, golden=SHOWS_THE_SETTING)
    assert done.returncode == 0, done.stdout
    settings = (tmp_path / "tests" / "golden" / "test_golden.settings").read_text()
    assert sorted(settings.split()) == ["0", "unset"]


def test_passing_run(tmp_path: Path) -> None:
    done = run(tmp_path, unit=PASSES, client=PASSES)
    assert done.returncode == 0, done.stdout
    assert "second run" not in done.stdout
    assert done.stdout.rstrip().endswith("PASSED")


def test_tests_that_pass_on_the_second_run_are_listed_at_the_end(tmp_path: Path) -> None:
    done = run(tmp_path, unit=fails_once(), client=fails_once())
    assert done.returncode == 0, done.stdout
    end = done.stdout.split("Passed only on the second run; fix these tests:")[1]
    assert end.split() == [
        "tests/unit/test_unit.py::test_fails_once[0]",
        "tests/client/test_client.py::test_fails_once[0]",
        "PASSED",
    ]


def test_second_run_has_the_arguments_of_the_first(tmp_path: Path) -> None:
    done = run(tmp_path, "--broker=java", unit=PASSES, client=FAILS_ONCE_AT_A_BROKER)
    assert done.returncode == 0, done.stdout
    end = done.stdout.split("Passed only on the second run; fix these tests:")[1]
    assert "tests/client/test_client.py::test_fails_once[" in end
    assert "java" in end


def test_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, unit=fails_once(), client=FAILS)
    assert done.returncode == 1
    twice, once = done.stdout.split("FAILED twice:")[1].split("Passed only on the second run")
    assert twice.split() == ["tests/client/test_client.py::test_always_fails"]
    assert "tests/unit/test_unit.py::test_fails_once[0]" in once
    assert "PASSED" not in once


@pytest.mark.parametrize(("unit", "client"), [(3, 0), (2, 1)])
def test_more_than_two_failures_are_not_run_again(tmp_path: Path, unit: int, client: int) -> None:
    suites = {"unit": fails_once(unit), "client": fails_once(client) if client else PASSES}
    done = run(tmp_path, **suites)
    assert done.returncode == 1
    assert "FAILED: 3 tests; at most 2 may run again" in done.stdout
    assert "second run" not in done.stdout


def test_group_that_is_not_completed_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, unit="import os\nos._exit(3)\n", client=fails_once())
    assert done.returncode == 1
    assert "FAILED: not completed: servers" in done.stdout
    assert "second run" not in done.stdout


def test_suite_in_no_group_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, unit=PASSES, client=PASSES, new=PASSES)
    assert done.returncode == 2
    assert done.stderr == "these suites are in no group: new\n"
