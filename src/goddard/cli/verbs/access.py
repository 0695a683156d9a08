"""``goddard acl``: what users may do (RocketMQ 5.3 and later), and what ``user`` shares with it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

from goddard.cli.terminal.completion import broker_option, cluster_option
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import FailedError
from goddard.cli.terminal.output import Table
from goddard.cli.terminal.target import (
    Target,
    cluster_options,
    confirm,
    only_cluster,
    yes_option,
)
from goddard.client.errors import BrokerError
from goddard.protocol.bodies_admin import AclInfo, Policy, PolicyEntry
from goddard.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

T = TypeVar("T")

_ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


class Place(TypedDict, total=False):
    """Where users and rules are changed."""

    cluster: str
    broker: str


async def at_brokers(admin: "Admin", cluster: str | None, broker: str | None) -> Place:
    """The broker or the cluster of the options, or the only cluster."""
    if broker is not None:
        return {"broker": broker}
    found = await only_cluster(admin, cluster, None)
    assert found is not None
    return {"cluster": found}


async def first_broker(admin: "Admin") -> str:
    """A broker to read from: users and rules are the same on all."""
    places = [one for one in await admin.brokers() if one.is_master]
    if not places:
        raise FailedError("no broker is registered; 'goddard doctor' says more")
    return min(place.address for place in places)


def with_access_control(
    work: "Callable[[Admin], Awaitable[T]]",
) -> "Callable[[Admin], Awaitable[T]]":
    """The work; brokers without access control are reported in one line."""

    async def checked(admin: "Admin") -> T:
        try:
            return await work(admin)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise FailedError(
                f"the broker {error.address} does not support access control: Goddard's brokers "
                "do not have it yet, and RocketMQ's have it from 5.3 on"
            ) from error

    return checked


@click.group(cls=Group)
def acl() -> None:
    """List, grant and revoke the rights of users."""


def _rows(found: list[AclInfo]) -> list[tuple[object, ...]]:
    return [
        (
            one.subject,
            entry.resource,
            entry.actions or [],
            entry.source_ips or [],
            entry.decision,
            policy.policy_type,
        )
        for one in sorted(found, key=lambda one: one.subject or "")
        for policy in one.policies
        for entry in policy.entries
    ]


@acl.command("list")
@cluster_options
@click.argument("subject", required=False)
@click.option("--resource", metavar="TEXT", default="", help="Only resources with this text.")
@broker_option
def list_(target: Target, subject: str | None, resource: str, broker: str | None) -> None:
    """List rights, of all subjects or of one (User:NAME)."""

    async def work(admin: "Admin") -> list[AclInfo]:
        place = broker or await first_broker(admin)
        found = await admin.acls(
            broker=place, subject_containing=subject or "", resource_containing=resource
        )
        return [one for one in found if subject in (None, one.subject)]

    columns = ("subject", "resource", "actions", "source addresses", "decision", "policy")
    rows = _rows(target.run(with_access_control(work)))
    target.output.table(Table(columns, rows, empty="no rights"))


@acl.command()
@cluster_options
@click.argument("subject")
@click.argument("resource")
@click.option(
    "--action",
    "actions",
    multiple=True,
    required=True,
    type=click.Choice(_ACTIONS),
    help="May be given more than once.",
)
@click.option("--from", "sources", multiple=True, metavar="ADDRESS", help="Only from there.")
@click.option("--deny", is_flag=True, help="Forbid instead of allow.")
@cluster_option
@broker_option
def grant(
    target: Target,
    subject: str,
    resource: str,
    actions: tuple[str, ...],
    sources: tuple[str, ...],
    *,
    deny: bool,
    cluster: str | None,
    broker: str | None,
) -> None:
    """Grant rights to a subject.

    SUBJECT is User:NAME; RESOURCE is Topic:NAME, Group:NAME, Cluster:NAME, or *."""
    entry = PolicyEntry(
        resource=resource,
        actions=list(actions),
        source_ips=list(sources) or None,
        decision="Deny" if deny else "Allow",
    )
    rights = AclInfo(subject=subject, policies=[Policy(policy_type="Custom", entries=[entry])])

    async def work(admin: "Admin") -> list[str]:
        known = await admin.acl(subject, broker=broker or await first_broker(admin))
        change = admin.create_acl if known is None else admin.update_acl
        return await change(rights, **await at_brokers(admin, cluster, broker))

    done = target.run(with_access_control(work))
    verb = "may not" if deny else "may"
    words = f"{subject} {verb} {', '.join(actions)} {resource}"
    target.output.done(f"{words} on {', '.join(done)}")


@acl.command()
@cluster_options
@click.argument("subject")
@click.argument("resource", required=False)
@cluster_option
@broker_option
@yes_option
def delete(
    target: Target,
    subject: str,
    resource: str | None,
    *,
    cluster: str | None,
    broker: str | None,
    yes: bool,
) -> None:
    """Delete the rights of SUBJECT to RESOURCE, or all of them."""

    async def find(admin: "Admin") -> None:
        known = await admin.acl(subject, broker=broker or await first_broker(admin))
        resources = {row[1] for row in _rows([known] if known is not None else [])}
        if not resources or (resource is not None and resource not in resources):
            to = f" to {resource}" if resource is not None else ""
            raise FailedError(f"{subject} has no rights{to}; 'goddard acl list' shows all")

    target.run(with_access_control(find))
    what = f"its rights to {resource}" if resource else "all its rights"
    confirm(f"{subject} will lose {what}", yes=yes)

    async def work(admin: "Admin") -> list[str]:
        place = await at_brokers(admin, cluster, broker)
        return await admin.delete_acl(subject, resource=resource, **place)

    done = target.run(with_access_control(work))
    target.output.done(f"{subject} has lost {what} on {', '.join(done)}")
