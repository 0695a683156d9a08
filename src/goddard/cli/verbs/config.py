"""``goddard config``: key-value pairs and the configuration of the name servers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import FailedError
from goddard.cli.terminal.output import Table
from goddard.cli.terminal.target import (
    Target,
    cluster_options,
    confirm,
    parse_pairs,
    yes_option,
)

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin


@click.group(cls=Group)
def config() -> None:
    """Show and change the key-value pairs and the configuration of the name servers."""


@config.command("list")
@cluster_options
@click.argument("namespace")
def list_(target: Target, namespace: str) -> None:
    """List the pairs of a namespace, such as ORDER_TOPIC_CONFIG."""

    async def work(admin: "Admin") -> Mapping[str, str]:
        return await admin.kv_list(namespace)

    rows = sorted(target.run(work).items())
    target.output.table(Table(("key", "value"), rows, empty=f"namespace {namespace} has no keys"))


@config.command("get")
@cluster_options
@click.argument("namespace")
@click.argument("key")
def get(target: Target, namespace: str, key: str) -> None:
    """Show one value."""

    async def work(admin: "Admin") -> str | None:
        return await admin.kv(namespace, key)

    value = target.run(work)
    if value is None:
        raise FailedError(f"namespace {namespace} has no key {key}")
    target.output.record({"namespace": namespace, "key": key, "value": value})


@config.command("set")
@cluster_options
@click.argument("namespace")
@click.argument("key")
@click.argument("value")
def set_(target: Target, namespace: str, key: str, value: str) -> None:
    """Store a value on every name server."""

    async def work(admin: "Admin") -> None:
        await admin.set_kv(namespace, key, value)

    target.run(work)
    target.output.done(f"{namespace} {key} is set")


@config.command()
@cluster_options
@click.argument("namespace")
@click.argument("key")
@yes_option
def delete(target: Target, namespace: str, key: str, yes: bool) -> None:
    """Delete a value from every name server."""

    async def look(admin: "Admin") -> str | None:
        return await admin.kv(namespace, key)

    if target.run(look) is None:
        raise FailedError(f"namespace {namespace} has no key {key}")
    confirm(f"{namespace} {key} will be deleted from all name servers", yes=yes)

    async def work(admin: "Admin") -> None:
        await admin.delete_kv(namespace, key)

    target.run(work)
    target.output.done(f"{namespace} {key} is deleted")


@config.command("name-servers")
@cluster_options
@click.argument("pairs", nargs=-1, metavar="[NAME=VALUE...]")
@yes_option
def name_servers(target: Target, pairs: tuple[str, ...], yes: bool) -> None:
    """Show or change the configuration of the name servers.

    Changes are made on all of them.
    """
    wanted = parse_pairs(pairs, "argument")
    if wanted:
        confirm(f"{', '.join(wanted)} will be changed on all name servers", yes=yes)

    async def work(admin: "Admin") -> Mapping[str, Mapping[str, str]]:
        if wanted:
            await admin.update_name_server_config(wanted)
        return await admin.name_server_config()

    rows = [
        (address, name, value)
        for address, properties in sorted(target.run(work).items())
        for name, value in sorted(properties.items())
        if not wanted or name in wanted
    ]
    target.output.table(Table(("name server", "name", "value"), rows))
