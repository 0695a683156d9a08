"""Running a daemon in the foreground: configuration, log file, ready line, signals, exit code.

``goddard namesrv`` has defaults that suit a first try (its own home, loopback only); ``mqnamesrv``
takes what RocketMQ's script takes and behaves as it does, ROCKETMQ_HOME included.
"""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from goddard.config import NameServerConfig, read_properties
from goddard.errors import ConfigError
from goddard.logs import logback_level, logging_to
from goddard.nameserver.server import NameServer
from goddard.transport.loop import run

_HOME_VARIABLE: Final = "ROCKETMQ_HOME"
_HOME_PROPERTY: Final = "rocketmq.home.dir"
# What Java's System.exit(-2) is to a shell.
_EXIT_WITHOUT_HOME: Final = 254

_CONFIG_FILE = click.option(
    "-c",
    "--configFile",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Name server config properties file.",
)
_PRINT_CONFIG = click.option(
    "-p", "--printConfigItem", "print_config", is_flag=True, help="Print all config items and exit."
)
_NAMESRV_ADDR = click.option(
    "-n",
    "--namesrvAddr",
    "namesrv_addr",
    metavar="ADDRESSES",
    help="Accepted as in every RocketMQ command; a name server has no use for it.",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@_CONFIG_FILE
@_PRINT_CONFIG
@_NAMESRV_ADDR
@click.option("--host", help="Address to listen on.  [default: bindAddress, or 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on, 0 for any free one.  [default: listenPort, or 9876]",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    help=f"Where logs and state are kept.  [default: ${_HOME_VARIABLE}, or ~/.goddard]",
)
def namesrv(
    config_file: Path | None,
    print_config: bool,
    namesrv_addr: str | None,
    host: str | None,
    port: int | None,
    home: Path | None,
) -> None:
    """Run a name server until SIGTERM or Ctrl-C.

    Brokers register here and clients ask here where a topic is. It listens on loopback only unless
    --host or bindAddress says otherwise: whoever can reach it can change routes.
    """
    chosen = home or Path(os.environ.get(_HOME_VARIABLE) or Path.home() / ".goddard")
    # Without -c, settings changed while running are kept in, and read from, the home.
    kept = chosen / "namesrv" / "namesrv.properties"
    if config_file is None and kept.exists():
        config_file = kept
    defaults = {
        "rocketmqHome": str(chosen),
        "kvConfigPath": str(chosen / "namesrv" / "kvConfig.json"),
        "configStorePath": str(kept),
        "bindAddress": "127.0.0.1",
    }
    told = {"bindAddress": host, "listenPort": None if port is None else str(port)}
    if home is not None:
        told["rocketmqHome"] = str(home)
    overrides = {name: value for name, value in told.items() if value is not None}
    sys.exit(_serve("goddard namesrv", config_file, print_config, defaults, overrides))


@click.command("mqnamesrv", context_settings={"help_option_names": ["-h", "--help"]})
@_CONFIG_FILE
@_PRINT_CONFIG
@_NAMESRV_ADDR
@click.option(
    "-D",
    "definitions",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"A Java system property: {_HOME_PROPERTY}, user.home or tls.*.",
)
def _mqnamesrv(
    config_file: Path | None,
    print_config: bool,
    namesrv_addr: str | None,
    definitions: tuple[str, ...],
) -> int:
    """Run a name server, as RocketMQ's mqnamesrv does."""
    defined = dict(definition.partition("=")[::2] for definition in definitions)
    user_home = Path(defined.get("user.home") or Path.home())
    home = defined.get(_HOME_PROPERTY) or os.environ.get(_HOME_VARIABLE)
    defaults = {
        "kvConfigPath": str(user_home / "namesrv" / "kvConfig.json"),
        "configStorePath": str(user_home / "namesrv" / "namesrv.properties"),
    }
    if home:
        defaults["rocketmqHome"] = home
    tls = {name: value for name, value in defined.items() if name.startswith("tls.")}
    return _serve("mqnamesrv", config_file, print_config, defaults, tls)


def run_mqnamesrv(arguments: list[str]) -> int:
    """The exit code of ``mqnamesrv`` with these arguments; 1 for wrong ones, as Java's."""
    try:
        code = _mqnamesrv.main(arguments, "mqnamesrv", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return 1
    except click.Abort:
        return 1
    return int(code or 0)


def _serve(
    program: str,
    config_file: Path | None,
    print_config: bool,
    defaults: Mapping[str, str],
    overrides: Mapping[str, str],
) -> int:
    try:
        config = NameServerConfig().updated(defaults)
        if config_file is not None:
            config = _with_file(config, config_file)
        config = config.updated(overrides)
        if print_config:
            for name, value in sorted(config.properties().items()):
                click.echo(f"{name}={value}")
            return 0
        if not config.rocketmq_home:
            click.echo(
                f"Please set the {_HOME_VARIABLE} variable in your environment to match the "
                "location of the RocketMQ installation"
            )
            return _EXIT_WITHOUT_HOME
        home = Path(config.rocketmq_home)
        level = logback_level(home / "conf" / "logback_namesrv.xml")
        with logging_to(home / "logs" / "namesrv.log", level):
            run(_run_name_server(config))
    except (ConfigError, OSError) as error:
        # The one line that says what is wrong; an OSError of listening names the address.
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        click.echo(f"{program}: {text}", err=True)
        return 1
    return 0


def _with_file(config: NameServerConfig, file: Path) -> NameServerConfig:
    properties = read_properties(file)
    try:
        changed = config.updated({**properties, "configStorePath": str(file)})
    except ConfigError as error:
        raise ConfigError(f"the configuration file {file}: {error}") from error
    click.echo(f"load config properties file OK, {file}")
    return changed


async def _run_name_server(config: NameServerConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _allow_many_connections()
    async with NameServer(config) as server:
        _calm_collector()
        click.echo(
            "The Name Server boot success. serializeType=JSON, "
            f"address {config.bind_address}:{server.port}"
        )
        sys.stdout.flush()
        await stop.wait()


def _calm_collector() -> None:
    """Collect cycles seldom: what is loaded stays, and routes are many objects without cycles.

    With Python's own thresholds, taking in a broker of 50,000 topics takes more than twice as long,
    most of it looking through the same objects again and again.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _allow_many_connections() -> None:
    """Raise the limit of open files as far as we may; each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
