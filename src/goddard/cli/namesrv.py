"""The name server's commands.

``goddard namesrv`` has defaults for a first try (its own home, loopback only); ``mqnamesrv`` has
the options and the behaviour of RocketMQ's script, including ROCKETMQ_HOME.
"""

import gc
import os
import sys
from pathlib import Path

import click

from goddard.cli.daemon import (
    HOME_PROPERTY,
    HOME_VARIABLE,
    OWN_OPTIONS,
    ROCKETMQ_OPTIONS,
    Daemon,
    OptionNames,
    config_file_option,
    exit_code_of,
    print_config_option,
    run_until_stopped,
    serve,
)
from goddard.cli.terminal.groups import HELP_OPTIONS
from goddard.config import NameServerConfig
from goddard.nameserver.server import NameServer
from goddard.transport.connection import address_text

_config_file_option = config_file_option("Name server")
_NAMESRV_ADDR = click.option(
    "-n",
    "--namesrvAddr",
    "namesrv_addr",
    metavar="ADDRESSES",
    help="Accepted as in all RocketMQ commands; has no effect.",
)


@click.command(context_settings=HELP_OPTIONS)
@_config_file_option
@print_config_option
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
    help=f"Folder for logs and state.  [default: ${HOME_VARIABLE}, or ~/.goddard]",
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

    Brokers register at it, and clients query it for the brokers of a topic. It listens on loopback
    unless --host or bindAddress is set: there is no access control, so everyone who can reach it
    can change routes.
    """
    home_folder = home or Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".goddard")
    saved_settings = home_folder / "namesrv" / "namesrv.properties"
    defaults = {
        "rocketmqHome": str(home_folder),
        "kvConfigPath": str(home_folder / "namesrv" / "kvConfig.json"),
        "configStorePath": str(saved_settings),
        "bindAddress": "127.0.0.1",
    }
    given = {"bindAddress": host, "listenPort": None if port is None else str(port)}
    if home is not None:
        given["rocketmqHome"] = str(home)
    overrides = {name: value for name, value in given.items() if value is not None}
    printed = dict if print_config else None
    daemon = _daemon("goddard namesrv", OWN_OPTIONS)
    sys.exit(
        serve(daemon, config_file, defaults, overrides, printed, saved_settings=saved_settings)
    )


@click.command("mqnamesrv", context_settings=HELP_OPTIONS)
@_config_file_option
@print_config_option
@_NAMESRV_ADDR
@click.option(
    "-D",
    "definitions",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"A Java system property: {HOME_PROPERTY}, user.home or tls.*.",
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
    home = defined.get(HOME_PROPERTY) or os.environ.get(HOME_VARIABLE)
    defaults = {
        "kvConfigPath": str(user_home / "namesrv" / "kvConfig.json"),
        "configStorePath": str(user_home / "namesrv" / "namesrv.properties"),
    }
    if home:
        defaults["rocketmqHome"] = home
    tls = {name: value for name, value in defined.items() if name.startswith("tls.")}
    printed = dict if print_config else None
    return serve(_daemon("mqnamesrv", ROCKETMQ_OPTIONS), config_file, defaults, tls, printed)


def run_mqnamesrv(arguments: list[str]) -> int:
    """The exit code of ``mqnamesrv`` with these arguments."""
    return exit_code_of(_mqnamesrv, "mqnamesrv", arguments)


def _daemon(program: str, options: OptionNames) -> Daemon[NameServerConfig]:
    return Daemon(
        program=program,
        config=NameServerConfig(),
        file_property="configStorePath",
        log_name="namesrv",
        options=options,
        main=_run_name_server,
    )


async def _run_name_server(config: NameServerConfig) -> None:
    # Routes are many objects without cycles. With Python's default thresholds, registering a broker
    # with 50,000 topics takes twice as long, because the collector scans the same objects
    # repeatedly.
    gc.set_threshold(100_000, 50, 100)
    await run_until_stopped(
        NameServer(config),
        lambda server: (
            "The Name Server boot success. serializeType=JSON, "
            f"address {address_text((config.bind_address, server.port))}"
        ),
    )
