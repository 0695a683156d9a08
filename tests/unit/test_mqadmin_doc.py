"""The table of all verbs in the guide is complete and says what the tests show."""

import re
from pathlib import Path

import pytest

from goddard.cli.mqadmin.command import VERBS
from tests.client import test_mqadmin_changes as changes
from tests.client import test_mqadmin_command as command
from tests.client import test_mqadmin_guarded as guarded
from tests.support.mqadmin_twins import verbs_of

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "mqadmin.md"
ROW = re.compile(r"(?m)^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| (\[.*\)) \|$")
ROWS = {row[0]: row[1:] for row in ROW.findall(PAGE.read_text())}

READ = {line.split()[0] for line in (*command.READS.values(), *command.ENDLESS)}
CHANGED = verbs_of(changes.CASES)
REFUSED = {
    case.command.split()[0]
    for case in changes.CASES.values()
    if "goddard" in (case.refused_by or {})
} | changes.MISSING.keys()
GUARDED = verbs_of(guarded.CASES) | verbs_of(guarded.LEGACY_CASES)


def test_the_table_has_every_verb() -> None:
    assert list(ROWS) == [verb.name for verb in VERBS]


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_the_row_of_a_verb_says_what_is_tested(verb: str) -> None:
    at_goddard, _, tested_by = ROWS[verb]
    assert at_goddard.startswith(("refused: ", "no: ") if verb in REFUSED else "yes")
    tested = {
        "command": verb in READ,
        "changes": verb in CHANGED or verb in changes.MISSING,
        "guarded": verb in GUARDED,
    }
    assert any(tested.values())
    assert re.findall(r"\[(\w+)\]", tested_by) == [
        name for name, is_used in tested.items() if is_used
    ]
