"""The ``goddard`` command with its subcommands, and RocketMQ's ``mqnamesrv`` and ``mqbroker``.

The module of a subcommand is imported when the subcommand runs, so that a server starts in a
fraction of a second.
"""

import errno
import importlib
import os
import sys
from typing import Final, NamedTuple

import click

from goddard import __version__

_OUTPUT_ERRORS: Final = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)


class _Lazy(NamedTuple):
    module: str
    attribute: str
    help: str


_COMMANDS: Final = {
    "broker": _Lazy("goddard.cli.broker", "broker", "Run a broker."),
    "demo": _Lazy("goddard.cli.demo", "demo", "Show a small cluster at work."),
    "namesrv": _Lazy("goddard.cli.namesrv", "namesrv", "Run a name server."),
    "pipeline": _Lazy("goddard.cli.pipeline", "pipeline", "Write topics to tables with Spark."),
    "store": _Lazy("goddard.cli.store", "store", "Inspect, verify and repair a message store."),
    "up": _Lazy("goddard.cli.up", "up", "Run a whole cluster on this machine."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = _COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(importlib.import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table: the commands themselves would have to be imported.
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name].help) for name in sorted(_COMMANDS)])


def _show_version(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        build = importlib.import_module("goddard.cli.build")
        click.echo(f"goddard, version {__version__}\n{build.implementations()}")
        context.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Shell completion: put eval "
        '"$(_GODDARD_COMPLETE=bash_source goddard)" into ~/.bashrc '
        "(zsh_source and ~/.zshrc, fish_source and config.fish for the other shells)."
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def goddard() -> None:
    """RocketMQ in Python, with Spark built in."""


def run(program: str) -> int:
    """Run ``goddard``, ``mqnamesrv`` or ``mqbroker``; returns the exit code.

    Raises KeyboardInterrupt on Ctrl-C. If the output cannot be written, prints one line about it.
    """
    try:
        code = _PROGRAMS[program]()
        sys.stdout.flush()
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        print(f"{program}: the output cannot be written: {error.strerror}", file=sys.stderr)
        # Otherwise the rest of the buffer would cause another error when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _run_goddard() -> int:
    try:
        code = goddard.main(prog_name="goddard", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0


def _run_mqnamesrv() -> int:
    namesrv = importlib.import_module("goddard.cli.namesrv")
    return int(namesrv.run_mqnamesrv(sys.argv[1:]))


def _run_mqbroker() -> int:
    broker = importlib.import_module("goddard.cli.broker")
    return int(broker.run_mqbroker(sys.argv[1:]))


_PROGRAMS: Final = {
    "goddard": _run_goddard,
    "mqbroker": _run_mqbroker,
    "mqnamesrv": _run_mqnamesrv,
}
