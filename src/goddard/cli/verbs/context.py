"""``goddard context``: named clusters, and the one that commands use."""

from collections.abc import Callable
from pathlib import Path

import click

from goddard.cli.terminal.completion import complete_context
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import REPORTED, WrongUsageError, check_texts, explained
from goddard.cli.terminal.output import Format, Output, Table
from goddard.cli.terminal.secrets import read_secret
from goddard.client.name_servers import parse_name_servers
from goddard.contexts import Context, Contexts, change, contexts_file, load

_SECRET_VARIABLE = "GODDARD_SECRET_KEY"

_FORMAT = click.option(
    "--format",
    "format_name",
    type=click.Choice([one.value for one in Format]),
    default=Format.TEXT.value,
    show_default=True,
    help="Output format.",
)
_NAME = click.argument("name", shell_complete=complete_context)


@click.group(cls=Group)
def context() -> None:
    """Name clusters and choose the one that commands use.

    Contexts are in ~/.goddard/contexts.json, which only its owner may read, or where
    GODDARD_CONTEXTS says. -n and NAMESRV_ADDR take precedence over the selected context.
    """


def _load() -> Contexts:
    try:
        return load(contexts_file())
    except REPORTED as error:
        raise explained(error) from error


def _change(changed: Callable[[Contexts], Contexts]) -> Contexts:
    try:
        return change(contexts_file(), changed)
    except REPORTED as error:
        raise explained(error) from error


@context.command("set")
@click.argument("name")
@click.option("-n", "--namesrv", required=True, metavar="HOST:PORT;...", help="Name servers.")
@click.option(
    "--access-key",
    metavar="KEY",
    help=f"Sign requests; the secret key comes from {_SECRET_VARIABLE}, or is asked for.",
)
@click.option(
    "--security-token", metavar="TOKEN", help="A temporary token, in addition to the keys."
)
@click.option("--tls", is_flag=True, help="Encrypt; without --trust, servers are not verified.")
@click.option("--trust", metavar="FILE", help="Authorities that servers are verified with (PEM).")
@click.option("--certificate", metavar="FILE", help="Own certificate (PEM).")
@click.option("--key", metavar="FILE", help="Key of the own certificate (PEM).")
def set_(
    name: str,
    namesrv: str,
    access_key: str | None,
    security_token: str | None,
    tls: bool,
    trust: str | None,
    certificate: str | None,
    key: str | None,
) -> None:
    """Create or replace a context; the first one is selected."""
    check_texts(click.get_current_context())
    files = {"--trust": trust, "--certificate": certificate, "--key": key}
    for option, path in files.items():
        if path is not None and not tls:
            raise WrongUsageError(f"{option} has no effect without --tls")
        if path is not None and not Path(path).is_file():
            raise WrongUsageError(f"{option}: there is no file {path}")
    if security_token is not None and access_key is None:
        raise WrongUsageError("--security-token has no effect without --access-key")
    _check_addresses(namesrv)
    made = Context(
        name_servers=namesrv,
        access_key=access_key,
        secret_key=read_secret("secret key", _SECRET_VARIABLE) if access_key is not None else None,
        security_token=security_token,
        tls=tls,
        trust=_absolute(trust),
        certificate=_absolute(certificate),
        key=_absolute(key),
    )
    contexts = _change(lambda known: known.with_context(name, made))
    selected = " and selected" if contexts.selected == name else ""
    click.echo(f"context {name} is set{selected}", err=True)


def _absolute(path: str | None) -> str | None:
    return str(Path(path).absolute()) if path else None


def _check_addresses(namesrv: str) -> None:
    try:
        parse_name_servers(namesrv, use_environment=False)
    except REPORTED as error:
        raise explained(error) from error


@context.command()
@_NAME
def use(name: str) -> None:
    """Select the context that commands use."""
    _change(lambda known: known.selecting(name))
    click.echo(f"using context {name}", err=True)


@context.command("list")
@_FORMAT
def list_(format_name: str) -> None:
    """List all contexts."""
    contexts = _load()
    rows = [
        (name == contexts.selected, name, one.name_servers, one.access_key, one.tls)
        for name, one in sorted(contexts.by_name.items())
    ]
    columns = ("selected", "name", "name servers", "access key", "tls")
    Output(Format(format_name)).table(
        Table(columns, rows, empty="no contexts; 'goddard context set NAME -n HOST:PORT' makes one")
    )


@context.command()
@click.argument("name", required=False, shell_complete=complete_context)
@_FORMAT
def show(name: str | None, format_name: str) -> None:
    """Show a context, or the selected one; secrets are not shown."""
    contexts = _load()
    chosen = name or contexts.selected
    if chosen is None:
        raise WrongUsageError("no context is selected; 'goddard context list' shows all")
    try:
        found = contexts.get(chosen)
    except REPORTED as error:
        raise explained(error) from error
    Output(Format(format_name)).record(
        {
            "name": chosen,
            "name servers": found.name_servers,
            "access key": found.access_key,
            "secret key": "set" if found.secret_key else None,
            "security token": "set" if found.security_token else None,
            "tls": found.tls,
            "trust": found.trust,
            "certificate": found.certificate,
            "key": found.key,
            "file": str(contexts_file()),
        }
    )


@context.command()
@_NAME
def delete(name: str) -> None:
    """Delete a context; no cluster is changed."""
    _change(lambda known: known.without(name))
    click.echo(f"context {name} is deleted", err=True)
