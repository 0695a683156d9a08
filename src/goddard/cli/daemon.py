"""Running a daemon in the foreground: configuration, log file, ready line, signals, exit code.

The common part of ``goddard namesrv``, ``goddard broker`` and RocketMQ's commands for them.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import click

from goddard import __version__
from goddard.cli.build import implementations
from goddard.config import Configuration, read_properties
from goddard.errors import ConfigError, StoreError
from goddard.logs import logback_level, logging_to
from goddard.transport.loop import run

_log = logging.getLogger(__name__)

HOME_VARIABLE: Final = "ROCKETMQ_HOME"
HOME_PROPERTY: Final = "rocketmq.home.dir"
# The exit statuses of Java's System.exit(-2) and System.exit(-3).
_EXIT_WITHOUT_HOME: Final = 254
EXIT_WRONG_CONFIG: Final = 253

_UNUSABLE_FOLDER: Final = frozenset(
    {errno.EACCES, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS}
)
# At most this many unknown keys of a file are listed.
_MAX_LISTED_KEYS: Final = 10

print_config_option: Final = click.option(
    "-p", "--printConfigItem", "print_config", is_flag=True, help="Print all config items and exit."
)

ConfigT = TypeVar("ConfigT", bound=Configuration)
T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., object])


def config_file_option(server: str) -> Callable[[Command], Command]:
    return click.option(
        "-c",
        "--configFile",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"{server} config properties file.",
    )


class OptionNames(NamedTuple):
    """The names of the options for host, port and data, for error messages."""

    host: str
    port: str
    data: str


OWN_OPTIONS: Final = OptionNames("--host", "--port", "--data")
ROCKETMQ_OPTIONS: Final = OptionNames("bindAddress", "listenPort", "storePathRootDir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon(Generic[ConfigT]):
    """A kind of daemon: its default ``config``, and ``main``, which runs it."""

    program: str
    config: ConfigT
    # The property with the path of the configuration file.
    file_property: str
    log_name: str
    options: OptionNames
    main: Callable[[ConfigT], Coroutine[Any, Any, None]]
    # Checks the complete configuration, and may change it.
    check: Callable[[ConfigT], ConfigT] = lambda config: config


class StartRefusedError(ConfigError):
    """An error for which RocketMQ has a text, on standard output, and an exit code."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def serve(
    daemon: Daemon[ConfigT],
    config_file: Path | None,
    defaults: Mapping[str, str],
    overrides: Mapping[str, str],
    printed: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
    *,
    saved_settings: Path | None = None,
) -> int:
    """Run a daemon, or only print the properties that ``printed`` selects; returns the exit code.

    The configuration file overrides ``defaults``; ``overrides`` override the file. Without a file,
    ``saved_settings`` is the file with the settings that were changed at run time.
    """
    home = overrides.get("rocketmqHome") or defaults.get("rocketmqHome")
    warnings: list[str] = []
    try:
        config = daemon.config.updated(defaults)
        if config_file is not None:
            config = _with_file(daemon, config, config_file, warnings)
        elif saved_settings is not None and saved_settings.exists():
            # Other settings (paths, ports) cannot change at run time: ignore those in the file.
            found = read_properties(saved_settings).items()
            config = config.updated(
                {name: text for name, text in found if config.changes_at_run_time(name)}
            )
        config = daemon.check(config.updated(overrides))
        properties = config.properties()
        for text in warnings:
            click.echo(f"warning: {text}", err=True)
        if printed is not None:
            for name, value in sorted(printed(properties).items()):
                click.echo(f"{name}={value}")
            return 0
        home = properties.get("rocketmqHome")
        if not home:
            raise StartRefusedError(
                f"Please set the {HOME_VARIABLE} variable in your environment to match the "
                "location of the RocketMQ installation",
                _EXIT_WITHOUT_HOME,
            )
        with _logging(daemon, home):
            for text in warnings:
                _log.warning(text)
            run(daemon.main(config))
    except StartRefusedError as error:
        click.echo(str(error))
        code, text = error.exit_code, str(error)
    except (ConfigError, StoreError, OSError) as error:
        code, text = 1, error_text(error, daemon.options)
        click.echo(f"{daemon.program}: {text}", err=True)
    else:
        return 0
    if home and printed is None:
        # Log the error, too. If the log file cannot be written, that is already reported above.
        with contextlib.suppress(ConfigError), _logging(daemon, home):
            # Several processes may write one file.
            _log.error("%s (process %d) ends: %s", daemon.program, os.getpid(), text)
    return code


def _logging(daemon: Daemon[Any], home: str) -> contextlib.AbstractContextManager[None]:
    level = logback_level(Path(home) / "conf" / f"logback_{daemon.log_name}.xml")
    return logging_to(Path(home) / "logs" / f"{daemon.log_name}.log", level)


def error_text(error: Exception, options: OptionNames) -> str:
    """One line that says what is wrong and, if known, what to do."""
    if isinstance(error, StoreError):
        cause = error.__cause__
        is_folder_error = isinstance(cause, OSError) and cause.errno in _UNUSABLE_FOLDER
        advice = f"; choose a writable folder with {options.data}" if is_folder_error else ""
        return f"{error}{advice}"
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror + {
        errno.EADDRINUSE: f"; stop what listens there or choose another with {options.port}",
        errno.EADDRNOTAVAIL: f"; choose an address of this machine with {options.host}",
        errno.EACCES: f"; choose a port from 1024 on with {options.port}",
    }.get(error.errno or 0, "")


def _with_file(
    daemon: Daemon[ConfigT], config: ConfigT, file: Path, warnings: list[str]
) -> ConfigT:
    properties = read_properties(file)
    unknown = config.unknown_names(properties)
    for name in unknown[:_MAX_LISTED_KEYS]:
        similar = config.similar_name(name)
        hint = f"; did you mean {similar}?" if similar else ""
        warnings.append(f"unknown key {name[:80]} in {file}, ignored{hint}")
    if len(unknown) > _MAX_LISTED_KEYS:
        warnings.append(f"{len(unknown) - _MAX_LISTED_KEYS} more unknown keys in {file}, ignored")
    try:
        changed = config.updated({**properties, daemon.file_property: str(file)})
    except ConfigError as error:
        raise ConfigError(f"the configuration file {file}: {error}") from error
    click.echo(f"load config properties file OK, {file}")
    return changed


async def run_until_stopped(
    daemon: AbstractAsyncContextManager[T],
    ready_line: Callable[[T], str],
    *,
    warnings: Callable[[T], Iterable[str]] = lambda _: (),
    stops_with_input: bool = False,
) -> None:
    """Start, print the ready line, and stop on SIGTERM or Ctrl-C. ``warnings`` are about
    what it finds at the start.

    With ``stops_with_input`` it also stops at the end of standard input: a child with a pipe from
    its parent stops when the parent ends for any reason.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if stops_with_input:
        loop.add_reader(sys.stdin.fileno(), _watch_input, loop, stop)
    _allow_many_connections()
    async with daemon as started:
        # Exclude the objects of the start from garbage collection: they live until the end.
        gc.collect()
        gc.freeze()
        line = ready_line(started)
        _log.info("Goddard %s, %s", __version__, implementations())
        _log.info(line)
        click.echo(line)
        sys.stdout.flush()
        for warning in warnings(started):
            _log.warning(warning)
            click.echo(f"warning: {warning}", err=True)
        await stop.wait()


def _watch_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


def _allow_many_connections() -> None:
    """Raise the limit of open files as far as allowed; each connection needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS reports an infinite hard limit, but rejects it as the soft limit.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def exit_code_of(command: click.Command, program: str, arguments: list[str]) -> int:
    """Run a command that returns its exit code; 1 for wrong arguments, as in Java."""
    try:
        code = command.main(arguments, program, standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return 1
    return int(code or 0)
