"""docs/FEATURES.md and docs/NAMES.md are complete; names in them and RELIABILITY.md exist."""

import ast
import importlib.util
import re
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FEATURES = ROOT / "docs" / "FEATURES.md"
RELIABILITY = ROOT / "docs" / "RELIABILITY.md"
NAMES = ROOT / "docs" / "NAMES.md"
BEHAVIOURS = 126
# The rows of the client library, without those of the broker or the protocol only.
CLIENT_SIDE = {*range(34, 63), *range(65, 81), *range(84, 88), *range(89, 112)}
NOT_YET: set[int] = set()
MODULES = [
    "acl",
    "broker",
    "client",
    "common",
    "distribution",
    "docs",
    "example",
    "filter",
    "logappender",
    "logging",
    "namesrv",
    "openmessaging",
    "remoting",
    "srvutil",
    "store",
    "test",
    "tools",
]
# Modules that RocketMQ alone has; docs/NAMES.md tells why.
WITHOUT_COUNTERPART = {"logappender", "openmessaging"}


def rows() -> list[list[str]]:
    """Number, behaviour, where, tests, status of each row."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in FEATURES.read_text().splitlines()
        if re.match(r"\| \d+ \|", line)
    ]


@cache
def named_tests(path: Path) -> set[str]:
    """The tests of a file as pytest names them."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{item.name}"
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def is_test(text: str) -> bool:
    path, _, name = text.partition("::")
    return (ROOT / path).is_file() and name in named_tests(ROOT / path)


def exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def test_every_behaviour_has_a_row() -> None:
    assert [int(row[0]) for row in rows()] == list(range(1, BEHAVIOURS + 1))
    assert {len(row) for row in rows()} == {5}


def test_every_row_that_works_names_tests_and_modules_that_exist() -> None:
    wrong = []
    for number, _, where, tests, status in rows():
        named = re.findall(r"`([^`]+)`", tests)
        if not named and not status.startswith("planned"):
            wrong.append(f"{number}: {status}, and no test")
        wrong += [f"{number}: there is no {test}" for test in named if not is_test(test)]
        modules = re.findall(r"`(goddard[\w.]*)`", where)
        wrong += [f"{number}: there is no {name}" for name in modules if not exists(name)]
        if not modules and not status.startswith("planned"):
            wrong.append(f"{number}: no module")
    assert wrong == []


def test_every_promise_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[^`]+\.py[^`]*)`", RELIABILITY.read_text())
    assert len(named) > 20
    assert [test for test in named if not is_test(test)] == []


def test_what_is_left_for_later() -> None:
    assert {int(row[0]) for row in rows() if row[4].startswith("planned")} == NOT_YET


def test_what_concerns_clients_is_shown_with_ours() -> None:
    for number, _, where, tests, _ in rows():
        if int(number) in CLIENT_SIDE:
            assert re.search(r"`tests/(?:\w+/)?client/", tests), number
            assert number == "62" or "`goddard.client." in where, number


def test_every_rocketmq_module_has_a_counterpart_or_a_reason() -> None:
    table = NAMES.read_text().partition("## Modules")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    counterparts = {cells[0].split()[0]: cells[1].strip() for cells in lines[1:]}
    assert list(counterparts) == MODULES
    for name, ours in counterparts.items():
        if name in WITHOUT_COUNTERPART:
            assert re.match(r"none: \w+", ours), f"{name}: a reason is missing"
            continue
        named = re.findall(r"`([^`]+)`", ours)
        assert named, f"{name}: no counterpart is named"
        assert [each for each in named if not is_there(each)] == [], name


def is_there(name: str) -> bool:
    """Whether this path, command or module exists."""
    if "/" in name or name.endswith(".toml"):
        return (ROOT / name).exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return name in project["scripts"] or exists(name)
