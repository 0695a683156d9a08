"""``goddard up``: a whole cluster on this machine, until Ctrl-C.

The name server runs in this process and each broker in its own process, so that each can use a
core. The brokers are stopped before the name server, so that they can unregister. They have a pipe
from this process and stop when it ends for any reason. A broker that ends unexpectedly stops the
cluster.
"""

import asyncio
import contextlib
import os
import re
import signal
import string
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from goddard.aio import Admin as AsyncAdmin
from goddard.cli.daemon import EXIT_WRONG_CONFIG, OWN_OPTIONS, error_text
from goddard.cli.replicas import replica_rows
from goddard.cli.terminal.groups import HELP_OPTIONS
from goddard.config import NameServerConfig, read_properties
from goddard.errors import ConfigError
from goddard.logs import logging_to
from goddard.nameserver.server import NameServer
from goddard.transport.connection import address_text
from goddard.transport.loop import run

_FIRST_BROKER_PORT: Final = 10911
# Each broker also has a VIP port two below and a replication port one above its own.
_PORT_STEP: Final = 10
_MAX_SLAVES: Final = 3
_START_SECONDS: Final = 60.0
# How long to wait for slaves to follow before the table of replicas is printed.
_FOLLOW_SECONDS: Final = 10.0
# A broker needs less than two seconds; it is killed after this time.
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_BOOT: Final = re.compile(r"The broker\[(?P<name>[^,]+), (?P<address>\S+)\] boot success")


# What every broker gets from its own options, and the option of this command that decides it.
_OWN_PROPERTIES: Final = {
    "bindAddress": "--host",
    "brokerName": "--brokers",
    "listenPort": "--broker-port",
    "namesrvAddr": "--port",
    "rocketmqHome": "--data",
    "storePathRootDir": "--data",
}


class ClusterError(Exception):
    """The cluster cannot start or continue; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """``broker_port`` is the first broker's; a port of 0 means any free port.

    ``slaves`` is the number for each of the masters, of which there are ``brokers``.
    """

    brokers: int
    slaves: int = 0
    data: Path
    host: str
    port: int
    broker_port: int
    config: Path | None = None


@click.command(context_settings=HELP_OPTIONS)
@click.option(
    "--brokers",
    "--masters",
    type=click.IntRange(1, len(string.ascii_lowercase)),
    default=1,
    show_default=True,
    help="Number of brokers that are masters; each broker uses at most one core.",
)
@click.option(
    "--slaves",
    type=click.IntRange(0, _MAX_SLAVES),
    default=0,
    show_default=True,
    help="Number of slaves of each master.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path.home() / ".goddard" / "cluster",
    show_default="~/.goddard/cluster",
    help="Folder for messages and logs.",
)
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="Properties of the brokers, as in broker.conf.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9876,
    show_default=True,
    help="Port of the name server, 0 for any free one.",
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65535 - _PORT_STEP * len(string.ascii_lowercase) * (1 + _MAX_SLAVES)),
    default=_FIRST_BROKER_PORT,
    show_default=True,
    help=f"Port of the first broker, the next is {_PORT_STEP} higher; 0 for any free ones.",
)
def up(
    brokers: int,
    slaves: int,
    data: Path,
    config: Path | None,
    host: str,
    port: int,
    broker_port: int,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C.

    Starts a name server and brokers. They listen on loopback unless --host is set: there is no
    access control, so everyone who can reach them can read and delete everything. Any RocketMQ
    client can use the name server's address.
    """
    options = ClusterOptions(
        brokers=brokers,
        slaves=slaves,
        data=data,
        host=host,
        port=port,
        broker_port=broker_port,
        config=config,
    )
    try:
        for text in ignored_properties(config):
            click.echo(f"warning: {text}", err=True)
        with logging_to(data / "namesrv" / "logs" / "namesrv.log"):
            run(_run_cluster(options))
    except (ClusterError, ConfigError, OSError) as error:
        click.echo(f"goddard up: {error_text(error, OWN_OPTIONS)}", err=True)
        sys.exit(1)


async def _run_cluster(options: ClusterOptions) -> None:
    began = time.monotonic()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(_name_server(options))
        _print_address("name server", address_text((options.host, server.port)))
        children = await stack.enter_async_context(_brokers(options, server.port))
        if not await _all_ready(children, stop):
            return
        if options.slaves:
            await _print_replicas(options, server.port)
        seconds = time.monotonic() - began
        click.echo(f"ready in {seconds:.1f} s, data in {options.data}; Ctrl-C stops it")
        sys.stdout.flush()
        await _until_stopped(children, stop)
        click.echo("stopping")


def ignored_properties(config: Path | None) -> list[str]:
    """What is wrong with a file of properties for several brokers: it sets what is theirs alone."""
    found = () if config is None else read_properties(config)
    return [
        f"{name} in {config} has no effect: goddard up sets it for each broker, see {option}"
        for name, option in _OWN_PROPERTIES.items()
        if name in found
    ]


def broker_names(count: int) -> list[str]:
    return [f"broker-{letter}" for letter in string.ascii_lowercase[:count]]


def _print_address(what: str, address: str) -> None:
    click.echo(f"{what:<12} {address}")
    sys.stdout.flush()


@contextlib.asynccontextmanager
async def _name_server(options: ClusterOptions) -> AsyncIterator[NameServer]:
    home = options.data / "namesrv"
    config = NameServerConfig(
        rocketmq_home=str(home),
        kv_config_path=str(home / "kvConfig.json"),
        config_store_path=str(home / "namesrv.properties"),
        bind_address=options.host,
        listen_port=options.port,
    )
    async with NameServer(config) as server:
        yield server


class _Child:
    """A broker process. ``ended`` is done at its end; ``address`` is set when it is ready."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, *, prints_warnings: bool
    ) -> None:
        self.name = name
        self._prints_warnings = prints_warnings
        self.address: str | None = None
        self._process = process
        self._output: deque[str] = deque(maxlen=1)
        self._errors: deque[str] = deque(maxlen=1)
        self._readers = (
            asyncio.create_task(self._read(process.stdout, self._output_line)),
            asyncio.create_task(self._read(process.stderr, self._error_line)),
        )
        self.is_ready = asyncio.Event()
        self.ended = asyncio.create_task(self._wait())

    async def stop(self) -> None:
        """Terminate the process; kill it if it does not stop in time."""
        if not self.ended.done():
            self._process.terminate()
            await asyncio.wait((self.ended,), timeout=_STOP_SECONDS)
        if not self.ended.done():
            click.echo(f"{self.name} does not stop; killing it", err=True)
            self._process.kill()
        await self.ended

    def failure(self) -> str:
        """Why the process ended: its last error message, or its exit code."""
        code = self._process.returncode
        # As in RocketMQ, a broker prints to standard output why it refuses its configuration.
        lines = self._output if code == EXIT_WRONG_CONFIG else self._errors
        message = " ".join(lines).removeprefix("goddard broker: ").strip()
        # The child's message names the child's options.
        message = message.replace("with --port", "with --broker-port")
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"{self.name}: {message or f'it ended unexpectedly with {how}'}"

    async def _wait(self) -> None:
        await asyncio.gather(*self._readers)
        await self._process.wait()

    def _output_line(self, line: str) -> None:
        self._output.append(line)
        found = _BOOT.search(line)
        if found:
            self.address = found["address"]
            self.is_ready.set()

    def _error_line(self, line: str) -> None:
        if not line.startswith("warning: "):
            self._errors.append(line)
        elif self._prints_warnings:
            click.echo(line, err=True)

    async def _read(self, stream: asyncio.StreamReader | None, take: Callable[[str], None]) -> None:
        assert stream is not None
        while line := await stream.readline():
            take(line.decode(errors="replace").rstrip())


@contextlib.asynccontextmanager
async def _brokers(options: ClusterOptions, name_server_port: int) -> AsyncIterator[list[_Child]]:
    children: list[_Child] = []
    try:
        for number, (name, slave_id) in enumerate(_members(options)):
            arguments = broker_arguments(options, name, number, name_server_port, slave_id)
            # All brokers have the same properties, so they have the same warnings.
            process = await _launch(arguments)
            children.append(
                _Child(_home_name(name, slave_id), process, prints_warnings=number == 0)
            )
        yield children
    finally:
        await asyncio.gather(*(child.stop() for child in children))


def _members(options: ClusterOptions) -> list[tuple[str, int]]:
    """The name of each broker, and its id as a slave; 0 for a master. Masters come first."""
    names = broker_names(options.brokers)
    return [(name, slave_id) for slave_id in range(options.slaves + 1) for name in names]


def _home_name(name: str, slave_id: int) -> str:
    return f"{name}-{slave_id}" if slave_id else name


async def _print_replicas(options: ClusterOptions, name_server_port: int) -> None:
    """Say who follows whom; slaves that do not follow soon are shown as they are."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _FOLLOW_SECONDS
    async with AsyncAdmin(name_servers=_name_server_address(options, name_server_port)) as admin:
        while True:
            rows = [row for row in await replica_rows(admin) if row[3] == "slave"]
            is_done = len(rows) == options.brokers * options.slaves and all(row[4] for row in rows)
            if is_done or loop.time() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
    for name, slave_id, _, _, follows, _, behind in rows:
        state = f"follows {follows}, {behind} bytes behind" if follows else "does not follow yet"
        click.echo(f"{name}-{slave_id} {state}")


def _name_server_address(options: ClusterOptions, port: int) -> str:
    # A name server that listens on all addresses is reached through loopback.
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::") else options.host
    return address_text((host, port))


def broker_arguments(
    options: ClusterOptions, name: str, number: int, name_server_port: int, slave_id: int = 0
) -> list[str]:
    home = options.data / _home_name(name, slave_id)
    port = options.broker_port + number * _PORT_STEP if options.broker_port else 0
    return [
        *(() if options.config is None else ("--configFile", str(options.config))),
        *("--name", name),
        *("--host", options.host),
        *("--port", str(port)),
        *("--home", str(home)),
        *("--data", str(home / "store")),
        *("--namesrv", _name_server_address(options, name_server_port)),
        *(("--slave-id", str(slave_id)) if slave_id else ()),
        "--with-parent",
    ]


async def _launch(arguments: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "goddard.cli.main",
        "broker",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # Ctrl-C must reach this process only, which stops the others in order.
        start_new_session=True,
    )


async def _all_ready(children: list[_Child], stop: asyncio.Event) -> bool:
    """Wait until all brokers are ready; False if the user stops the cluster first."""
    waiting = list(children)
    stopped = asyncio.create_task(stop.wait())
    try:
        async with asyncio.timeout(_START_SECONDS):
            while waiting:
                _show_progress(len(children), len(waiting))
                ready = {asyncio.create_task(child.is_ready.wait()): child for child in waiting}
                ended = {child.ended: child for child in waiting}
                await asyncio.wait([*ready, *ended, stopped], return_when=asyncio.FIRST_COMPLETED)
                for task in ready:
                    task.cancel()
                if stop.is_set():
                    return False
                for child in list(waiting):
                    if child.is_ready.is_set():
                        waiting.remove(child)
                        _show_progress(0, 0)
                        _print_address(child.name, str(child.address))
                    elif child.ended.done():
                        _show_progress(0, 0)
                        raise ClusterError(child.failure())
    except TimeoutError:
        late = ", ".join(child.name for child in waiting)
        raise ClusterError(f"not ready within {_START_SECONDS:.0f} s: {late}") from None
    finally:
        stopped.cancel()
    return True


def _show_progress(total: int, waiting: int) -> None:
    """Show a line that the next one overwrites, if standard error is a terminal."""
    if sys.stderr.isatty():
        text = f"starting brokers: {total - waiting} of {total}" if total else ""
        click.echo(f"\r{text:<60}\r", nl=False, err=True)


async def _until_stopped(children: list[_Child], stop: asyncio.Event) -> None:
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait(
        [stopped, *(child.ended for child in children)], return_when=asyncio.FIRST_COMPLETED
    )
    stopped.cancel()
    if not stop.is_set():
        ended = next(child for child in children if child.ended.done())
        raise ClusterError(ended.failure())
