"""``docs/NAMES.md`` names modules and classes that exist."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

NAMES = Path(__file__).parents[2] / "docs" / "NAMES.md"
PLACES = "goddard|protocol|transport|nameserver|broker|store|cli|testing|config|files|logs"


def named_here() -> list[str]:
    rows = [line for line in NAMES.read_text().splitlines() if line.startswith("| ")]
    found: set[str] = set()
    for row in rows:
        if "planned" not in row:
            ours = row.split("|")[2]
            found.update(re.findall(rf"`((?:{PLACES})(?:\.\w+)+)`", ours))
    return sorted(found)


@pytest.mark.parametrize("name", named_here())
def test_a_name_of_ours_exists(name: str) -> None:
    thing: object = importlib.import_module("goddard")
    for part in name.removeprefix("goddard.").split("."):
        if isinstance(thing, ModuleType) and not hasattr(thing, part):
            importlib.import_module(f"{thing.__name__}.{part}")
        thing = getattr(thing, part)


def test_every_package_is_named() -> None:
    folder = Path(importlib.import_module("goddard").__path__[0])
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert {name.removeprefix("goddard.").split(".")[0] for name in named_here()} >= packages
