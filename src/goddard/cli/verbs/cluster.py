"""``goddard cluster``: the clusters of the name servers, and the state of one."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from goddard.cli.terminal.completion import complete_cluster
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import FailedError
from goddard.cli.terminal.output import Table
from goddard.cli.terminal.target import Target, cluster_options
from goddard.client.errors import ClusterNotFoundError

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin


@click.group(cls=Group)
def cluster() -> None:
    """List the clusters of the name servers, and show one."""


@cluster.command("list")
@cluster_options
def list_(target: Target) -> None:
    """List clusters with their brokers."""

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        places = await admin.brokers()
        return [
            (
                name,
                sorted({one.name for one in places if one.cluster == name}),
                sum(one.is_master for one in places if one.cluster == name),
                sum(not one.is_master for one in places if one.cluster == name),
            )
            for name in await admin.clusters()
        ]

    columns = ("cluster", "brokers", "masters", "replicas")
    target.output.table(Table(columns, target.run(work), empty="no cluster is registered"))


@cluster.command()
@cluster_options
@click.argument("name", required=False, shell_complete=complete_cluster)
def show(target: Target, name: str | None) -> None:
    """Show a cluster: name servers, brokers, topics, groups.

    NAME is needed if there are several clusters.
    """

    async def work(admin: "Admin") -> dict[str, Any]:
        known = await admin.clusters()
        chosen = name or (known[0] if len(known) == 1 else None)
        if chosen is None:
            raise FailedError(f"give a cluster: {', '.join(known) or 'none is registered'}")
        if chosen not in known:
            raise ClusterNotFoundError(chosen, known)
        places, topics, groups = await asyncio.gather(
            admin.brokers(cluster=chosen),
            admin.topics(cluster=chosen),
            admin.groups(cluster=chosen),
        )
        return {
            "cluster": chosen,
            "name servers": list(admin.name_servers),
            "topics": len(topics),
            "groups": len(groups),
            "brokers": Table(
                ("broker", "id", "address"),
                [(one.name, one.broker_id, one.address) for one in places],
            ),
        }

    target.output.record(target.run(work))
