"""The cluster that a command works on: its options, the connection, and the errors.

``cluster_options`` gives a command the options and passes it a Target. The name servers are those
of ``-n``, of ``--context``, of NAMESRV_ADDR, or of the selected context, in this order.
"""

import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from goddard.cli.terminal.groups import did_you_mean
from goddard.cli.terminal.mistakes import (
    REPORTED,
    FailedError,
    WrongUsageError,
    check_texts,
    explained,
    one_line,
)
from goddard.cli.terminal.output import Format, Output, is_terminal
from goddard.cli.terminal.seconds import Seconds
from goddard.contexts import Context, contexts_file, load, selected_context
from goddard.errors import ConfigError
from goddard.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin
    from goddard.client.errors import BrokerNotFoundError, NoRouteError

T = TypeVar("T")

_RETRY_PREFIX: Final = "%RETRY%"
_NO_CLUSTER: Final = (
    "no name server is given; use -n HOST:PORT, set NAMESRV_ADDR, or select a context with "
    "'goddard context use NAME'"
)


def chosen_context(name_servers: str | None, context_name: str | None) -> Context:
    """The cluster that the options, the environment or the contexts say."""
    if name_servers is not None and not name_servers.strip():
        # As in -n "$UNSET": another cluster than the wanted one could be changed.
        raise ConfigError("-n is empty; write it as HOST:PORT")
    if context_name is not None:
        known = load(contexts_file()).get(context_name)
        return known if name_servers is None else replace(known, name_servers=name_servers)
    given = name_servers or os.environ.get("NAMESRV_ADDR")
    if given:
        return Context(name_servers=given)
    selected = selected_context()
    if selected is None:
        raise ConfigError(_NO_CLUSTER)
    return selected


@dataclass(frozen=True, slots=True)
class Target:
    """Runs the work of a command against a cluster, and prints its result."""

    context: Context
    timeout_ms: int
    output: Output

    @property
    def name_servers(self) -> str:
        return self.context.name_servers

    def client_keywords(self) -> dict[str, Any]:
        """The keywords of another client of the same cluster."""
        options = importlib.import_module("goddard.client.options")
        return {"name_servers": self.name_servers, **options.context_keywords(self.context)}

    def admin(self) -> "Admin":
        """A new Admin for the cluster, not started."""
        admin = importlib.import_module("goddard.client.admin.admin")
        made: Admin = admin.Admin(timeout_ms=self.timeout_ms, **self.client_keywords())
        return made

    def run(self, work: "Callable[[Admin], Awaitable[T]]") -> T:
        """The result of the work; its errors become one line."""
        loop = importlib.import_module("goddard.transport.loop")
        # Warnings of the client would be printed between the results; errors are raised.
        logging.getLogger("goddard").addHandler(logging.NullHandler())
        try:
            result: T = loop.run(self._run(work))
        except BrokenPipeError:
            raise
        except REPORTED as error:
            raise explained(error) from error
        except TypeError as error:
            # The client's checks of arguments; elsewhere it is a bug and has a traceback.
            if not str(error).startswith(("topic", "group", "broker", "cluster")):
                raise
            raise explained(error) from error
        return result

    async def _run(self, work: "Callable[[Admin], Awaitable[T]]") -> T:
        errors = importlib.import_module("goddard.client.errors")
        async with self.admin() as admin:
            try:
                return await work(admin)
            except errors.NoRouteError as error:
                raise await _unknown_name(admin, error) from error
            except errors.BrokerNotFoundError as error:
                raise await _unknown_broker(admin, error) from error
            except errors.BrokerError as error:
                # An error without an address is from a name server.
                if error.address or error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                raise FailedError(
                    f"{self.name_servers} is not a name server, or an old one; is it a broker? "
                    f"({one_line(error.remark)})"
                ) from error


async def _unknown_name(admin: "Admin", error: "NoRouteError") -> click.ClickException:
    """An unknown topic or group, with the similar name that exists, if there is one."""
    try:
        if error.topic.startswith(_RETRY_PREFIX):
            name, kind, known = error.topic.removeprefix(_RETRY_PREFIX), "group", admin.groups()
        else:
            name, kind, known = error.topic, "topic", admin.topics()
        names = await known
    except REPORTED:
        return explained(error)
    if kind == "group" and name in names:
        return FailedError(f"group {name} has no consumers yet: nothing has been consumed")
    hint = did_you_mean(name, names) or f"; 'goddard {kind} list' shows all"
    return FailedError(one_line(f"there is no {kind} {name}{hint}"))


async def _unknown_broker(admin: "Admin", error: "BrokerNotFoundError") -> click.ClickException:
    """An unknown broker, with those that exist."""
    try:
        names = sorted({place.name for place in await admin.brokers()})
    except REPORTED:
        return explained(error)
    hint = did_you_mean(error.broker_name, names)
    known = hint or f"; the name server knows {', '.join(names[:10]) or 'none'}"
    return FailedError(one_line(f"there is no broker {error.broker_name}{known}"))


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the connection; pass a Target for text as first argument."""

    @click.option(
        "-n",
        "--namesrv",
        metavar="HOST:PORT;...",
        help="Name servers; otherwise NAMESRV_ADDR, or those of the selected context.",
    )
    @click.option("--context", "context_name", metavar="NAME", help="A context to use this once.")
    @click.option(
        "--timeout",
        "timeout_seconds",
        type=Seconds(0.1),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="Wait this long for each answer.",
    )
    @wraps(function)
    def command(
        *arguments: Any,
        namesrv: str | None,
        context_name: str | None,
        timeout_seconds: float,
        **options: Any,
    ) -> Any:
        check_texts(click.get_current_context())
        try:
            context = chosen_context(namesrv, context_name)
        except REPORTED as error:
            raise explained(error) from error
        target = Target(context, int(timeout_seconds * 1000), Output(Format.TEXT))
        return function(target, *arguments, **options)

    return command


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the connection and of the output; pass a Target as first argument."""

    @connection_options
    @click.option(
        "--format",
        "format_name",
        type=click.Choice([one.value for one in Format]),
        default=Format.TEXT.value,
        show_default=True,
        help="Output format.",
    )
    @wraps(function)
    def command(target: Target, *arguments: Any, format_name: str, **options: Any) -> Any:
        return function(replace(target, output=Output(Format(format_name))), *arguments, **options)

    return command


yes_option = click.option("--yes", is_flag=True, help="Do not ask; needed without a terminal.")


def confirm(what: str, *, yes: bool) -> None:
    """Ask before something is destroyed; WrongUsageError if nobody can be asked."""
    if yes:
        return
    if not is_terminal():
        raise WrongUsageError(f"{what}; add --yes to do it")
    if not click.confirm(f"{what}. Continue?", err=True):
        raise FailedError("nothing was changed")


async def only_cluster(admin: "Admin", cluster: str | None, broker: str | None) -> str | None:
    """The cluster to change: the given one, or the only one there is; None for a broker."""
    if cluster is not None or broker is not None:
        return cluster
    known = await admin.clusters()
    if len(known) == 1:
        return known[0]
    names = ", ".join(known) or "none"
    raise WrongUsageError(f"give --cluster or --broker; clusters known to the name server: {names}")


def parse_pairs(pairs: Iterable[str], what: str) -> dict[str, str]:
    """``key=value`` arguments."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise WrongUsageError(f"{what} {pair!r} is not key=value")
        found[key] = value
    return found
