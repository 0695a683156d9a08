"""``mqshutdown``: stop the brokers or name servers of this machine, as RocketMQ's command does.

It finds the processes that run ``mqbroker``, ``mqnamesrv``, ``goddard broker`` or ``goddard
namesrv``, sends them SIGTERM and waits for their end. Brokers of ``goddard up`` are not found:
they end with it.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from goddard.cli.daemon import exit_code_of
from goddard.cli.terminal.groups import HELP_OPTIONS
from goddard.cli.terminal.seconds import Seconds

_SERVERS: Final = {"broker": "mqbroker", "namesrv": "mqnamesrv"}
_MISSING: Final = ("controller", "controllerStandalone", "proxy")
_INTERPRETERS: Final = ("python", "pypy")
_OPTIONS_WITH_VALUE: Final = ("-W", "-X")
_POLL_SECONDS: Final = 0.05
_NONE_RUNS: Final = 255


@click.command("mqshutdown", context_settings=HELP_OPTIONS)
@click.argument("server", type=click.Choice([*_SERVERS, *_MISSING]))
@click.option("--pid", type=click.IntRange(1), help="Only this process.")
@click.option(
    "--timeout",
    type=Seconds(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long for the end.",
)
def _mqshutdown(server: str, pid: int | None, timeout: float) -> int:
    """Stop the brokers or name servers of this machine."""
    if server in _MISSING:
        click.echo(f"mqshutdown: Goddard has no {server}", err=True)
        return 1
    program = _SERVERS[server]
    found = [number for number, arguments in _processes() if server_of(arguments) == server]
    if pid is not None:
        found = [number for number in found if number == pid]
    if not found:
        click.echo(f"No {program} running." if pid is None else f"{pid} is not a {program}.")
        return _NONE_RUNS
    # As in RocketMQ's script, all at once and not one after the other.
    asked = []
    is_refused = False
    for number in found:
        click.echo(f"The {program}({number}) is running...")
        try:
            os.kill(number, signal.SIGTERM)
        except ProcessLookupError:
            continue
        except PermissionError:
            click.echo(f"mqshutdown: {program}({number}) belongs to another user", err=True)
            is_refused = True
            continue
        asked.append(number)
        click.echo(f"Send shutdown request to {program}({number}) OK")
    running = _wait_for_end(asked, timeout)
    for number in running:
        click.echo(
            f"mqshutdown: {program}({number}) has not ended after {timeout:g} s; its log says why",
            err=True,
        )
    return 1 if running or is_refused else 0


def run_mqshutdown(arguments: list[str]) -> int:
    """The exit code of ``mqshutdown`` with these arguments."""
    return exit_code_of(_mqshutdown, "mqshutdown", arguments)


def server_of(arguments: list[str]) -> str | None:
    """The server that a process with this command line is: a key of ``_SERVERS``, or None."""
    if "--with-parent" in arguments:
        return None
    if arguments and Path(arguments[0]).name.startswith(_INTERPRETERS):
        arguments = _without_interpreter(arguments)
    if not arguments:
        return None
    name = Path(arguments[0]).name
    if name in ("goddard", "goddard.cli.main"):
        return arguments[1] if arguments[1:2] and arguments[1] in _SERVERS else None
    return next((server for server, program in _SERVERS.items() if name == program), None)


def _without_interpreter(arguments: list[str]) -> list[str]:
    """The script or module that Python runs, and its arguments."""
    rest = arguments[1:]
    while rest and rest[0].startswith("-"):
        option, *rest = rest
        if option == "-m":
            break
        if option in _OPTIONS_WITH_VALUE:
            rest = rest[1:]
    return rest


def _processes() -> Iterator[tuple[int, list[str]]]:
    """The number and the command line of each process, but for this one."""
    listed = _from_proc() if Path("/proc/self/cmdline").exists() else _from_ps()
    return ((number, arguments) for number, arguments in listed if number != os.getpid())


def _from_proc() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().decode(errors="replace")
                yield int(folder.name), line.split("\0")[:-1]


def _from_ps() -> Iterator[tuple[int, list[str]]]:
    listed = subprocess.run(
        ["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True, timeout=30
    )
    for line in listed.stdout.splitlines():
        number, *arguments = line.split()
        yield int(number), arguments


def _wait_for_end(numbers: Iterable[int], timeout: float) -> list[int]:
    """Wait until processes have ended; those that still run after the timeout."""
    deadline = time.monotonic() + timeout
    running = [number for number in numbers if _is_running(number)]
    while running and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        running = [number for number in running if _is_running(number)]
    return running


def _is_running(number: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(number, 0)
        return not _is_zombie(number)
    return False


def _is_zombie(number: int) -> bool:
    """Whether a process has ended and its parent has not asked for its exit code yet."""
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]
