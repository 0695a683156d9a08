"""The broker's commands.

``goddard broker`` has defaults for a first try (its own home, loopback only, a local name server);
``mqbroker`` has the options and the behaviour of RocketMQ's script.
"""

import dataclasses
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from goddard.broker.broker import Broker
from goddard.broker.properties import IMPORTANT
from goddard.broker.settings import QUEUE_LOCK_PROPERTY, BrokerConfig
from goddard.broker.tuning import tune_process
from goddard.cli.daemon import (
    EXIT_WRONG_CONFIG,
    HOME_PROPERTY,
    HOME_VARIABLE,
    OWN_OPTIONS,
    ROCKETMQ_OPTIONS,
    Command,
    Daemon,
    OptionNames,
    StartRefusedError,
    config_file_option,
    exit_code_of,
    print_config_option,
    run_until_stopped,
    serve,
)
from goddard.cli.terminal.groups import HELP_OPTIONS
from goddard.errors import ConfigError
from goddard.transport.client import split_address

NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
_NAMESRV_PROPERTY: Final = "rocketmq.namesrv.addr"
_LOCAL_NAME_SERVER: Final = "127.0.0.1:9876"

_config_file_option = config_file_option("Broker")
_PRINT_IMPORTANT = click.option(
    "-m",
    "--printImportantConfig",
    "print_important",
    is_flag=True,
    help="Print the important config items and exit.",
)


def _name_servers_option(default: str) -> Callable[[Command], Command]:
    return click.option(
        "-n",
        "--namesrvAddr",
        "--namesrv",
        "namesrv_addr",
        metavar="ADDRESSES",
        help=f"Name servers, as 127.0.0.1:9876;192.168.0.1:9876.  [default: {default}]",
    )


@click.command(context_settings=HELP_OPTIONS)
@_config_file_option
@print_config_option
@_PRINT_IMPORTANT
@_name_servers_option(f"namesrvAddr, or ${NAMESRV_VARIABLE}, or {_LOCAL_NAME_SERVER}")
@click.option("--name", help="The name of this broker.  [default: brokerName, or broker-a]")
@click.option(
    "--cluster", help="The cluster of this broker.  [default: brokerClusterName, or DefaultCluster]"
)
@click.option(
    "--slave-id",
    type=click.IntRange(1),
    help="Run as a slave with this id, unless the configuration or a promotion says otherwise.",
)
@click.option("--host", help="Address to listen on.  [default: bindAddress, or 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on, 0 for any free one.  [default: listenPort, or 10911]",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder for messages.  [default: storePathRootDir, or store in the home]",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    help=f"Folder for logs.  [default: ${HOME_VARIABLE}, or ~/.goddard]",
)
@click.option("--with-parent", is_flag=True, hidden=True)
def broker(
    config_file: Path | None,
    print_config: bool,
    print_important: bool,
    namesrv_addr: str | None,
    name: str | None,
    cluster: str | None,
    slave_id: int | None,
    host: str | None,
    port: int | None,
    data: Path | None,
    home: Path | None,
    with_parent: bool,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Producers send messages to it and consumers fetch them. It listens on loopback unless --host or
    bindAddress is set: there is no access control, so everyone who can reach it can read and delete
    everything.
    """
    home_folder = home or Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".goddard")
    saved_settings = (data or home_folder / "store") / "config" / "broker.properties"
    bind = host or "127.0.0.1"
    defaults = {
        "brokerConfigPath": str(saved_settings),
        "brokerName": "broker-a",
        "namesrvAddr": os.environ.get(NAMESRV_VARIABLE) or _LOCAL_NAME_SERVER,
        "bindAddress": bind,
        "rocketmqHome": str(home_folder),
        "storePathRootDir": str(home_folder / "store"),
        **_addresses(local_address() if bind in ("0.0.0.0", "::") else bind),
        **({} if slave_id is None else {"brokerRole": "SLAVE", "brokerId": str(slave_id)}),
    }
    given = {
        "namesrvAddr": namesrv_addr,
        "brokerName": name,
        "brokerClusterName": cluster,
        "bindAddress": host,
        "listenPort": None if port is None else str(port),
        "storePathRootDir": None if data is None else str(data),
        "rocketmqHome": None if home is None else str(home),
    }
    overrides = {key: value for key, value in given.items() if value is not None}
    sys.exit(
        _serve(
            "goddard broker",
            OWN_OPTIONS,
            config_file,
            defaults,
            overrides,
            printed=_printed(print_config, print_important),
            saved_settings=saved_settings,
            with_parent=with_parent,
        )
    )


@click.command("mqbroker", context_settings=HELP_OPTIONS)
@_config_file_option
@print_config_option
@_PRINT_IMPORTANT
@_name_servers_option(f"namesrvAddr, or ${NAMESRV_VARIABLE}, or none")
@click.option(
    "-D",
    "definitions",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"A Java system property: {HOME_PROPERTY}, {_NAMESRV_PROPERTY}, user.home, tls.* or "
    f"{QUEUE_LOCK_PROPERTY}.",
)
def _mqbroker(
    config_file: Path | None,
    print_config: bool,
    print_important: bool,
    namesrv_addr: str | None,
    definitions: tuple[str, ...],
) -> int:
    """Run a broker, as RocketMQ's mqbroker does."""
    defined = dict(definition.partition("=")[::2] for definition in definitions)
    user_home = Path(defined.get("user.home") or Path.home())
    home = defined.get(HOME_PROPERTY) or os.environ.get(HOME_VARIABLE)
    name_servers = defined.get(_NAMESRV_PROPERTY) or os.environ.get(NAMESRV_VARIABLE)
    defaults = {
        "brokerName": socket.gethostname() or "DEFAULT_BROKER",
        "storePathRootDir": str(user_home / "store"),
        **_addresses(local_address()),
    }
    if home:
        defaults["rocketmqHome"] = home
    if name_servers:
        defaults["namesrvAddr"] = name_servers
    overrides = {
        name: value
        for name, value in defined.items()
        if name.startswith("tls.") or name == QUEUE_LOCK_PROPERTY
    }
    if namesrv_addr:
        overrides["namesrvAddr"] = namesrv_addr
    return _serve(
        "mqbroker",
        ROCKETMQ_OPTIONS,
        config_file,
        defaults,
        overrides,
        printed=_printed(print_config, print_important),
    )


def run_mqbroker(arguments: list[str]) -> int:
    """The exit code of ``mqbroker`` with these arguments."""
    return exit_code_of(_mqbroker, "mqbroker", arguments)


def _serve(
    program: str,
    options: OptionNames,
    config_file: Path | None,
    defaults: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    printed: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
    saved_settings: Path | None = None,
    with_parent: bool = False,
) -> int:
    async def main(config: BrokerConfig) -> None:
        tune_process()
        await run_until_stopped(
            Broker(config), _boot_line, warnings=start_warnings, stops_with_input=with_parent
        )

    daemon = Daemon(
        program=program,
        config=BrokerConfig(),
        file_property="brokerConfigPath",
        log_name="broker",
        options=options,
        main=main,
        check=_check,
    )
    return serve(daemon, config_file, defaults, overrides, printed, saved_settings=saved_settings)


def _check(config: BrokerConfig) -> BrokerConfig:
    """Check the name servers' addresses and the role, with RocketMQ's error texts."""
    try:
        for address in config.name_servers:
            split_address(address)
    except ConfigError as error:
        raise StartRefusedError(
            f"The Name Server Address[{config.namesrv_addr}] illegal, please set it as follows, "
            '"127.0.0.1:9876;192.168.0.1:9876"',
            EXIT_WRONG_CONFIG,
        ) from error
    if config.broker_role != "SLAVE":
        return dataclasses.replace(config, broker_id=0)
    if config.broker_id == 0:
        raise StartRefusedError("Slave's brokerId must be > 0", EXIT_WRONG_CONFIG)
    return config


def _boot_line(broker: Broker) -> str:
    config = broker.settings.current
    line = f"The broker[{config.broker_name}, {broker.address}] boot success. serializeType=JSON"
    return line + (f" and name server is {config.namesrv_addr}" if config.namesrv_addr else "")


def start_warnings(broker: Broker) -> Iterator[str]:
    """What clients of a broker that has just started will notice."""
    if broker.registration.is_unheard:
        where = ", ".join(broker.settings.current.name_servers)
        yield (
            f"no name server answers at {where}; start one with `goddard namesrv` (retrying every "
            "few seconds)"
        )
    config, used = broker.store.config, broker.store.last_disk_ratio
    if used > config.disk_full_ratio:
        yield f"the disk of {config.root} is {used:.0%} full: messages are refused; free space"


def _printed(
    print_config: bool, print_important: bool
) -> Callable[[Mapping[str, str]], Mapping[str, str]] | None:
    if print_config:
        return dict
    return _important if print_important else None


def _important(properties: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in properties.items() if name in IMPORTANT}


def _addresses(ip: str) -> dict[str, str]:
    return {"brokerIP1": ip, "brokerIP2": ip}


def local_address() -> str:
    """The local address of the default route, by which other machines can reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address; nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
