"""``goddard user``: users of the access control of brokers (RocketMQ 5.3 and later)."""

from typing import TYPE_CHECKING

import click

from goddard.cli.terminal.completion import broker_option, cluster_option
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError
from goddard.cli.terminal.output import Table
from goddard.cli.terminal.secrets import read_secret
from goddard.cli.terminal.target import Target, cluster_options, confirm, yes_option
from goddard.cli.verbs.access import at_brokers, first_broker, with_access_control
from goddard.protocol.bodies_admin import UserInfo

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_PASSWORD_VARIABLE = "GODDARD_USER_PASSWORD"

_type_option = click.option(
    "--type",
    "user_type",
    type=click.Choice(["Normal", "Super"]),
    help="Super users may do everything.",
)


@click.group(cls=Group)
def user() -> None:
    """List, create, change and delete users of the brokers' access control."""


@user.command("list")
@cluster_options
@broker_option
def list_(target: Target, broker: str | None) -> None:
    """List users; passwords are not shown."""

    async def work(admin: "Admin") -> list[UserInfo]:
        return await admin.users(broker=broker or await first_broker(admin))

    users = sorted(target.run(with_access_control(work)), key=lambda one: one.username or "")
    rows = [(one.username, one.user_type, one.user_status) for one in users]
    target.output.table(Table(("user", "type", "status"), rows, empty="no users"))


async def _known(admin: "Admin", name: str, broker: str | None) -> UserInfo:
    found = await admin.user(name, broker=broker or await first_broker(admin))
    if found is None:
        raise FailedError(f"there is no user {name}; 'goddard user list' shows all")
    return found


@user.command()
@cluster_options
@click.argument("name")
@broker_option
def show(target: Target, name: str, broker: str | None) -> None:
    """Show a user; the password is not shown."""

    async def work(admin: "Admin") -> UserInfo:
        return await _known(admin, name, broker)

    found = target.run(with_access_control(work))
    fields = {"user": found.username, "type": found.user_type, "status": found.user_status}
    target.output.record(fields)


@user.command()
@cluster_options
@click.argument("name")
@_type_option
@cluster_option
@broker_option
def create(
    target: Target, name: str, user_type: str | None, cluster: str | None, broker: str | None
) -> None:
    """Create a user on all brokers.

    The password comes from GODDARD_USER_PASSWORD or standard input, or is asked for.
    """
    password = read_secret("password", _PASSWORD_VARIABLE)

    async def work(admin: "Admin") -> list[str]:
        if await admin.user(name, broker=broker or await first_broker(admin)) is not None:
            raise FailedError(f"user {name} exists; 'goddard user update' changes it")
        place = await at_brokers(admin, cluster, broker)
        return await admin.create_user(name, password, user_type=user_type or "Normal", **place)

    done = target.run(with_access_control(work))
    target.output.done(f"user {name} is created on {', '.join(done)}")


@user.command()
@cluster_options
@click.argument("name")
@click.option("--password", "new_password", is_flag=True, help="Read a new password.")
@_type_option
@click.option("--enable/--disable", "is_enabled", default=None, help="Accept its requests, or not.")
@cluster_option
@broker_option
def update(
    target: Target,
    name: str,
    new_password: bool,
    user_type: str | None,
    is_enabled: bool | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    """Change the password, the type or the status of a user."""
    if not new_password and user_type is None and is_enabled is None:
        raise WrongUsageError("nothing to change; give --password, --type, --enable or --disable")
    password = read_secret("password", _PASSWORD_VARIABLE) if new_password else None
    status = None if is_enabled is None else "enable" if is_enabled else "disable"

    async def work(admin: "Admin") -> list[str]:
        await _known(admin, name, broker)
        place = await at_brokers(admin, cluster, broker)
        return await admin.update_user(
            name, password=password, user_type=user_type, user_status=status, **place
        )

    done = target.run(with_access_control(work))
    target.output.done(f"user {name} is changed on {', '.join(done)}")


@user.command()
@cluster_options
@click.argument("name")
@cluster_option
@broker_option
@yes_option
def delete(
    target: Target, name: str, cluster: str | None, broker: str | None, *, yes: bool
) -> None:
    """Delete a user; its rules stay until 'goddard acl delete'."""

    async def find(admin: "Admin") -> UserInfo:
        return await _known(admin, name, broker)

    target.run(with_access_control(find))
    confirm(f"user {name} will be deleted", yes=yes)

    async def work(admin: "Admin") -> list[str]:
        return await admin.delete_user(name, **await at_brokers(admin, cluster, broker))

    done = target.run(with_access_control(work))
    target.output.done(f"user {name} is deleted from {', '.join(done)}")
