"""The guides: programs pass strict type checking, links exist, and the tables for users of the Java
client name exactly our options."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import click
import pytest

import goddard
from goddard import LitePullConsumer, Producer, PushConsumer, TransactionProducer
from goddard.cli.commands import goddard as goddard_command
from goddard.client.consume.options import LiteKeywords, PushKeywords
from goddard.client.options import SessionKeywords
from goddard.client.produce.options import ProducerKeywords

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
JAVA = (GUIDE / "coming-from-java.md").read_text()


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


ABOUT_COMMANDS = {"README.md", "command-line.md", "mqadmin.md", "operations.md"}


def test_every_page_is_listed_and_has_a_program() -> None:
    index = (GUIDE / "README.md").read_text()
    for page in PAGES:
        assert page.name == "README.md" or f"({page.name})" in index, page.name
        assert page.name in ABOUT_COMMANDS or blocks(page), page.name


def test_the_programs_pass_strict_type_checking(tmp_path: Path) -> None:
    """The blocks of a page, from top to bottom, are one program."""
    for page in PAGES:
        name = page.stem.replace("-", "_").lower() + "_guide.py"
        (tmp_path / name).write_text("\n\n".join(blocks(page)))
    command = [sys.executable, "-m", "mypy", *map(str, sorted(tmp_path.glob("*.py")))]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_link_targets_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def commands(page: Path) -> set[str]:
    """The ``goddard`` commands of a page, in code spans and indented lines, without arguments."""
    text = page.read_text()
    found = re.findall(r"(?:`|^ {4,})goddard ([a-z][^`\n#|>]*)", text, re.MULTILINE)
    return {re.sub(r"[^a-z -].*", "", line).partition(" -")[0].strip() for line in found}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_every_command_exists(page: Path) -> None:
    for line in commands(page):
        command: click.Command | None = goddard_command
        for word in line.split():
            if not isinstance(command, click.Group):
                break  # its arguments follow
            command = command.get_command(click.Context(command), word)
            assert command is not None, f"goddard {line}"


def keywords(function: object) -> set[str]:
    parameters = inspect.signature(function).parameters if callable(function) else {}
    return {name for name in parameters if name not in ("self", "options")}


SESSION = set(get_type_hints(SessionKeywords)) | {"name_servers"}
SECTIONS = {
    "## All clients": SESSION,
    "## DefaultMQProducer": set(get_type_hints(ProducerKeywords))
    | keywords(Producer.__init__) - SESSION,
    "## TransactionMQProducer": keywords(TransactionProducer.__init__) - {"group"},
    "## DefaultMQPushConsumer": set(get_type_hints(PushKeywords))
    | keywords(PushConsumer.__init__) - SESSION,
    "## DefaultLitePullConsumer": set(get_type_hints(LiteKeywords))
    | keywords(LitePullConsumer.__init__) - SESSION,
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_tables_for_java_users_name_every_option(heading: str) -> None:
    section = JAVA.partition(heading)[2].partition("\n## ")[0]
    table = section.partition("| Java | Python | default |\n|---|---|---|\n")[2].partition("\n\n")[
        0
    ]
    named = [re.findall(r"`(\w+)`", line.split(" | ")[1])[0] for line in table.splitlines()]
    wanted = SECTIONS[heading] - (set() if heading == "## All clients" else SESSION)
    assert sorted(named) == sorted(wanted)


def test_every_class_named_in_the_guides_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"from goddard import (\w+)$", page.read_text(), re.MULTILINE):
            assert hasattr(goddard, name), f"{page.name}: {name}"
