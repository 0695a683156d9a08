"""The command ``goddard`` with its subcommands, and RocketMQ's ``mqnamesrv``, ``mqbroker``,
``mqshutdown`` and ``mqadmin``.

The module of a subcommand is imported when the subcommand runs, so that a server starts in a
fraction of a second.
"""

import errno
import importlib
import os
import sys
from typing import Final

import click

from goddard import __version__
from goddard.cli.terminal.groups import Lazy, LazyGroup
from goddard.cli.terminal.mistakes import print_error

# The exit code of a shell for a process that SIGPIPE ended.
_EXIT_PIPE: Final = 141
_OUTPUT_ERRORS: Final = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)


def _verbs(name: str, text: str) -> Lazy:
    return Lazy(f"goddard.cli.verbs.{name}", name.rpartition(".")[2], text)


_COMMANDS: Final = {
    "acl": Lazy("goddard.cli.verbs.access", "acl", "List, grant and revoke rights of users."),
    "bench": Lazy("goddard.cli.bench.command", "bench", "Measure how fast a cluster is."),
    "broker": _verbs("broker", "Run a broker; show and configure running ones."),
    "client": _verbs("client", "Show online producers and consumers."),
    "cluster": _verbs("cluster", "List clusters, and show one."),
    "config": _verbs("config", "Show and change values of the name servers."),
    "consume": _verbs("messages.consume", "Print the messages of a topic."),
    "context": _verbs("context", "Name clusters and choose the one that commands use."),
    "demo": Lazy("goddard.cli.demo", "demo", "Show a small cluster at work."),
    "dlq": _verbs("messages.dlq", "Show, resend and export dead letters."),
    "doctor": Lazy(
        "goddard.cli.doctor.command", "doctor", "Say what is wrong in a cluster, and what to do."
    ),
    "group": _verbs("group", "List, create, reset and watch consumer groups."),
    "message": _verbs("messages.message", "Find, send and trace messages."),
    "namesrv": Lazy("goddard.cli.namesrv", "namesrv", "Run a name server."),
    "pipeline": Lazy("goddard.cli.pipeline", "pipeline", "Write topics to tables with Spark."),
    "produce": _verbs("messages.produce", "Send lines of standard input to a topic."),
    "store": Lazy("goddard.cli.store", "store", "Inspect, verify and repair a message store."),
    "top": Lazy("goddard.cli.top.command", "top", "Show rates and lag as they change."),
    "topic": _verbs("topic", "List, create, change and delete topics."),
    "up": Lazy("goddard.cli.up", "up", "Run a whole cluster on this machine."),
    "user": _verbs("user", "List, create, change and delete users."),
}


def _show_version(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        build = importlib.import_module("goddard.cli.build")
        click.echo(f"goddard, version {__version__}\n{build.implementations()}")
        context.exit()


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
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
    """Run one of the programs below; returns the exit code.

    Raises KeyboardInterrupt on Ctrl-C. If the output cannot be written, prints one line about it.
    """
    try:
        code = _PROGRAMS[program]()
        sys.stdout.flush()
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except BrokenPipeError:
        # The reader of a pipe has enough: `mqadmin topicList | head`.
        _discard_output()
        return _EXIT_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        print(f"{program}: the output cannot be written: {error.strerror}", file=sys.stderr)
        _discard_output()
        return 1
    return code


def _discard_output() -> None:
    """Otherwise the rest of the buffer would cause another error when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_goddard() -> int:
    try:
        code = goddard.main(prog_name="goddard", standalone_mode=False)
    except click.ClickException as error:
        print_error("goddard", error)
        return error.exit_code
    return code if isinstance(code, int) else 0


def _run_mqnamesrv() -> int:
    namesrv = importlib.import_module("goddard.cli.namesrv")
    return int(namesrv.run_mqnamesrv(sys.argv[1:]))


def _run_mqadmin() -> int:
    command = importlib.import_module("goddard.cli.mqadmin.command")
    return int(command.run(sys.argv[1:]))


def _run_mqbroker() -> int:
    broker = importlib.import_module("goddard.cli.broker")
    return int(broker.run_mqbroker(sys.argv[1:]))


def _run_mqshutdown() -> int:
    shutdown = importlib.import_module("goddard.cli.shutdown")
    return int(shutdown.run_mqshutdown(sys.argv[1:]))


_PROGRAMS: Final = {
    "goddard": _run_goddard,
    "mqadmin": _run_mqadmin,
    "mqbroker": _run_mqbroker,
    "mqnamesrv": _run_mqnamesrv,
    "mqshutdown": _run_mqshutdown,
}
