"""Functions named by job files are found, or reported as missing, without importing anything."""

import sys
import tomllib
from pathlib import Path

import pytest

from goddard.errors import ConfigError
from goddard.pipelines.failures import line_in_worker
from goddard.pipelines.jobs.files import parse_job
from goddard.pipelines.jobs.functions import check_functions

_JOB = """
name = "small"
[source]
nameServers = "127.0.0.1:9876"
subscribe = "t"
[sink]
path = "tables/t"
"""

_MODULE = """
import nothing_of_the_kind
from elsewhere import imported as renamed

raise SystemExit("nobody is to import this")

def plain(frame):
    inner = 1

made = nothing_of_the_kind.function()
number: int = 5
text = "no function"
try:
    import quick
    def tried(frame): ...
except ImportError:
    tried = None
"""


def check(place: str, folder: Path) -> None:
    job = tomllib.loads(_JOB) | {"transform": [{"python": place}]}
    check_functions(parse_job(job, folder=folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_module.py").write_text(_MODULE)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "own_package" / "steps.py").write_text("def step(frame): ...\n")
    (tmp_path / "wrong.py").write_text("def step(:\n")
    (tmp_path / "open.py").write_text("from elsewhere import *\n")
    (tmp_path / "empty_folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "place",
    [
        "own_module:plain",
        "own_module:renamed",
        "own_module:made",
        "own_package.steps:step",
        "open:anything",
        "goddard.pipelines.ready.traffic:finish",
        "json:dumps",
        "sys:exit",
    ],
)
def test_existing_functions_are_accepted(folder: Path, place: str) -> None:
    check(place, folder)
    assert not {"own_module", "own_package", "open"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nomod:fn", "is 'nomod:fn': there is no module nomod, neither beside the job file nor"),
        ("own_package.nothing:fn", "there is no module own_package.nothing"),
        ("own_module.inner:fn", "there is no module own_module.inner"),
        ("own_module:plian", "own_module has no function plian; did you mean plain?"),
        ("own_module:inner", "own_module has no function inner"),
        ("own_module:number", "number of own_module is no function"),
        ("own_module:text", "text of own_module is no function"),
        ("wrong:step", "cannot be read as Python: "),
        ("empty_folder:step", "empty_folder is a folder, and no module"),
    ],
)
def test_missing_functions_are_refused(folder: Path, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(place, folder)
    assert str(caught.value).startswith("[[transform]] python is ")
    assert words in str(caught.value)


def test_the_after_function_is_checked_too(folder: Path) -> None:
    job = tomllib.loads(_JOB) | {"run": {"after": "own_module:nothing"}}
    with pytest.raises(ConfigError, match=r"\[run\] after is 'own_module:nothing': own_module has"):
        check_functions(parse_job(job, folder=folder))


def test_the_line_in_a_workers_copy_of_a_file() -> None:
    error = RuntimeError(
        'Traceback ...\n  File "/tmp/spark-1/userFiles-2/steps.py", line 3, in outer\n'
        '  File "/tmp/spark-1/userFiles-2/steps.py", line 12, in boom\n'
        '  File "/lib/other_steps.py", line 99, in deeper\nValueError: row boom'
    )
    assert line_in_worker(error, Path("/jobs/steps.py")) == 12
    assert line_in_worker(error, Path("/jobs/none.py")) is None
