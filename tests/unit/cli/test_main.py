"""The ``goddard`` command: version, help, and subcommands that are imported when run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from goddard import __version__
from goddard.cli.commands import goddard


def test_version() -> None:
    result = CliRunner().invoke(goddard, ["--version"])
    assert result.exit_code == 0
    assert __version__ in result.output


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_subcommands_and_completion(option: str) -> None:
    result = CliRunner().invoke(goddard, [option])
    assert result.exit_code == 0
    assert re.search(r"namesrv +Run a name server\.", result.output)
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
        "import sys, goddard.cli.commands as m\n"
        "m.goddard(['--help'], standalone_mode=False)\n"
        "sys.exit(any(n.startswith(('goddard.nameserver', 'goddard.store', 'asyncio'))"
        " for n in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_name_server_imports_no_heavy_library() -> None:
    """Imports determine its start-up time."""
    program = (
        "import sys\nbefore = set(sys.modules)\nimport goddard.cli.namesrv\n"
        "print([n for n in ('numpy', 'rich', 'lz4', 'zstandard', 'xml', 'goddard.store')"
        " if n in set(sys.modules) - before])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert result.stdout == "[]\n"


def test_an_output_error_is_reported_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "goddard.cli.main", "demo"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "goddard: the output cannot be written: No space left on device\n"


def test_a_reader_that_has_enough_is_no_error() -> None:
    program = (
        "import sys\nfrom goddard.cli import main\nfrom goddard.cli.mqadmin import command\n"
        "def many(words):\n    for _ in range(1_000_000):\n        print('line')\n"
        "command.run = many\nsys.argv = ['mqadmin']\nmain.mqadmin()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 141)


@pytest.mark.parametrize("entry", ["main", "mqbroker", "mqnamesrv"])
def test_ctrl_c_while_a_command_is_imported_is_quiet(entry: str) -> None:
    program = (
        "import importlib, os, signal, sys\n"
        "from goddard.cli import main\n"
        "def interrupted(name):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return sys\n"
        "importlib.import_module = interrupted\n"
        "sys.argv = ['goddard', 'broker']\n"
        f"main.{entry}()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr.strip()) == (130, b"", b"")


def test_wrong_usage_is_reported() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "goddard.cli.main", "broker", "--port", "far"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    assert "Invalid value for '--port'" in ended.stderr
