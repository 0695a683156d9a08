"""The ``goddard`` command itself: version, help, and subcommands that are imported when run."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from goddard import __version__
from goddard.cli.main import goddard


def test_version() -> None:
    result = CliRunner().invoke(goddard, ["--version"])
    assert result.exit_code == 0
    assert __version__ in result.output


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_subcommands_and_tells_of_completion(option: str) -> None:
    result = CliRunner().invoke(goddard, [option])
    assert result.exit_code == 0
    assert "namesrv  Run a name server." in result.output
    assert "_GODDARD_COMPLETE" in result.output


def test_every_subcommand_has_help() -> None:
    listed = CliRunner().invoke(goddard, ["--help"]).output.split("Commands:")[1]
    names = [
        line.split()[0]
        for line in listed.splitlines()
        if line.startswith("  ") and "  " in line.strip()
    ]
    assert "namesrv" in names
    for name in names:
        result = CliRunner().invoke(goddard, [name, "--help"])
        assert result.exit_code == 0, name
        assert "Usage:" in result.output


def test_an_unknown_subcommand_is_refused() -> None:
    result = CliRunner().invoke(goddard, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.output


def test_help_imports_no_subcommand() -> None:
    program = (
        "import sys, goddard.cli.main as m\n"
        "m.goddard(['--help'], standalone_mode=False)\n"
        "sys.exit(any(n.startswith(('goddard.nameserver', 'goddard.store', 'asyncio'))"
        " for n in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_name_server_imports_no_heavy_library() -> None:
    """Its start-up time is its imports."""
    program = (
        "import sys, goddard.cli.serve\n"
        "print([n for n in ('numpy', 'rich', 'lz4', 'zstandard', 'xml', 'goddard.store')"
        " if n in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert result.stdout == "[]\n"
