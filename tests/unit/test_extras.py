"""The extras: declared in pyproject.toml, and explained to users who lack one."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from goddard.errors import GoddardError
from goddard.extras import PACKAGES, MissingExtraError, missing_extra, require

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def names(requirements: list[str]) -> set[str]:
    found = {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}
    return found - {"goddard"}


def test_packages_are_those_of_pyproject() -> None:
    declared = PYPROJECT["project"]["optional-dependencies"]
    assert {extra: names(declared[extra]) for extra in PACKAGES} == {
        extra: set(packages) for extra, packages in PACKAGES.items()
    }
    assert declared["all"] == ["goddard[server,spark]"]


def test_client_dependencies_are_in_no_extra() -> None:
    required = names(PYPROJECT["project"]["dependencies"])
    assert required == {"isal", "lz4", "msgspec", "uvloop", "zstandard"}
    assert not required & {name for packages in PACKAGES.values() for name in packages}


def test_missing_package_is_one_line_with_the_command() -> None:
    with pytest.raises(MissingExtraError) as caught:
        require("spark", "sys", "no_such_package")
    assert str(caught.value) == (
        "no_such_package is not installed; it comes with the extra 'spark': "
        "pip install '.[spark]' in the source folder of Goddard"
    )
    assert isinstance(caught.value, GoddardError)
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(
    ("name", "extra"), [("rich.table", "server"), ("pyspark", "spark"), ("deltalake", "spark")]
)
def test_failed_import_is_explained(name: str, extra: str) -> None:
    explained = missing_extra(ModuleNotFoundError("No module", name=name))
    assert f"pip install '.[{extra}]'" in str(explained)
    assert explained is not None
    assert missing_extra(explained) is explained


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'goddard.x'", name="goddard.x"),
        ModuleNotFoundError("no name"),
        ImportError("cannot import name 'x' from 'click'", name="click"),
    ],
)
def test_other_failed_imports_are_not_explained(error: ImportError) -> None:
    assert missing_extra(error) is None


WITHOUT_SPARK = """
import sys
for name in ("pyarrow", "pyspark"):
    sys.modules[name] = None
from goddard.cli import commands
sys.argv = ["goddard", "pipeline", "run", sys.argv[1]]
sys.exit(commands.run("goddard"))
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("trafic", "did you mean traffic?"), ("traffic", "pyarrow is not installed")],
)
def test_wrong_name_of_a_pipeline_is_reported_before_missing_packages(name: str, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
