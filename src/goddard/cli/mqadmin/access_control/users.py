"""Verbs about users and their rights (from 5.3 on)."""

from collections.abc import Iterable
from typing import Final

from goddard.cli.mqadmin.call import Call
from goddard.cli.mqadmin.java_text import text_or_null
from goddard.cli.mqadmin.options import Options
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError
from goddard.protocol.bodies_admin import AclInfo, Policy, PolicyEntry, UserInfo

_USER: Final = "%-16s  %-22s  %-22s  %-22s"
_ACL: Final = "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s"
_TYPES: Final = ("Super", "Normal")
_STATUSES: Final = ("enable", "disable")
_DECISIONS: Final = ("Allow", "Deny")


# --- Users ----------------------------------------------------------------------------------------


async def create_user(call: Call) -> None:
    options = call.options
    kind = options.choice("t", _TYPES) if "t" in options else "Normal"
    name, password = options.text("u"), options.text("p")

    async def create(address: str) -> None:
        await call.admin.create_user(name, password, user_type=kind, broker=address)

    addresses = await call.all_brokers()
    await call.on_each(addresses, create, lambda one: f"create user to {one} success.")


async def update_user(call: Call) -> None:
    options = call.options
    if not {"p", "t", "s"} & options.given:
        raise WrongUsageError("-p, -t or -s must be given")
    kind = options.choice("t", _TYPES) if "t" in options else None
    status = options.choice("s", _STATUSES) if "s" in options else None
    name, password = options.text("u"), options.get("p")

    async def update(address: str) -> None:
        await call.admin.update_user(
            name, password=password, user_type=kind, user_status=status, broker=address
        )

    addresses = await call.all_brokers()
    await call.on_each(addresses, update, lambda one: f"update user to {one} success.")


async def delete_user(call: Call) -> None:
    name = call.options.text("u")

    async def delete(address: str) -> None:
        await call.admin.delete_user(name, broker=address)

    addresses = await call.all_brokers()
    await call.on_each(addresses, delete, lambda one: f"delete user to {one} success.")


async def get_user(call: Call) -> None:
    name = call.options.text("u")
    for address in await call.masters():
        found = await call.admin.user(name, broker=address)
        if found is not None:
            _print_users(call, [found])
            return
    raise FailedError(f"there is no user {name}")


async def list_users(call: Call) -> None:
    for address in await call.masters():
        found = await call.admin.users(broker=address, containing=call.options.text("f"))
        if found:
            _print_users(call, found)
            if "c" in call.options:
                call.line(f"get user from {address} success.")
            return


def _print_users(call: Call, users: Iterable[UserInfo]) -> None:
    call.row(_USER, "#UserName", "#Password", "#UserType", "#UserStatus")
    for one in users:
        fields = (one.username, one.password, one.user_type, one.user_status)
        call.row(_USER, *map(text_or_null, fields))


async def copy_users(call: Call) -> None:
    options = call.options
    source, target = await call.broker("f"), await call.broker("t")
    if "u" in options:
        found = [await call.admin.user(name, broker=source) for name in options.words("u")]
        users = [one for one in found if one is not None]
    else:
        users = await call.admin.users(broker=source)
    for one in users:
        name = one.username or ""
        if await call.admin.user(name, broker=target) is None:
            await call.admin.create_user(
                name,
                one.password or "",
                user_type=one.user_type or "Normal",
                user_status=one.user_status,
                broker=target,
            )
        else:
            await call.admin.update_user(
                name,
                password=one.password,
                user_type=one.user_type,
                user_status=one.user_status,
                broker=target,
            )
        call.line(f"copy user of {name} from {source} to {target} success.")


# --- Rights ---------------------------------------------------------------------------------------


def acl_of(options: Options) -> AclInfo:
    """The rights that the options describe."""
    decision = options.choice("d", _DECISIONS)
    entries = [
        PolicyEntry(
            resource=resource,
            actions=options.words("a"),
            source_ips=options.words("i") or None,
            decision=decision,
        )
        for resource in options.words("r")
    ]
    policies = [Policy(policy_type="Custom", entries=entries)]
    return AclInfo(subject=options.text("s"), policies=policies)


async def create_acl(call: Call) -> None:
    rights = acl_of(call.options)

    async def create(address: str) -> None:
        await call.admin.create_acl(rights, broker=address)

    addresses = await call.all_brokers()
    await call.on_each(addresses, create, lambda one: f"create acl to {one} success.")


async def update_acl(call: Call) -> None:
    rights = acl_of(call.options)

    async def update(address: str) -> None:
        await call.admin.update_acl(rights, broker=address)

    addresses = await call.all_brokers()
    await call.on_each(addresses, update, lambda one: f"update acl to {one} success.")


async def delete_acl(call: Call) -> None:
    subject, resource = call.options.text("s"), call.options.get("r")

    async def delete(address: str) -> None:
        await call.admin.delete_acl(subject, resource=resource, broker=address)

    addresses = await call.all_brokers()
    await call.on_each(addresses, delete, lambda one: f"delete acl to {one} success.")


async def get_acl(call: Call) -> None:
    subject = call.options.text("s")
    is_known = False
    for address in await call.masters():
        found = await call.admin.acl(subject, broker=address)
        if found is not None:
            is_known = True
            _print_acls(call, [found])
    if not is_known:
        raise FailedError(f"{subject} has no rights")


async def list_acls(call: Call) -> None:
    options = call.options
    for address in await call.masters():
        found = await call.admin.acls(
            broker=address,
            subject_containing=options.text("s"),
            resource_containing=options.text("r"),
        )
        if found:
            _print_acls(call, found)


def _print_acls(call: Call, acls: Iterable[AclInfo]) -> None:
    columns = ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")
    call.row(_ACL, *columns)
    for one in acls:
        subject = text_or_null(one.subject)
        if not one.policies:
            call.row(_ACL, subject, "", "", "", "", "")
        for policy in one.policies:
            for entry in policy.entries:
                call.row(
                    _ACL,
                    subject,
                    text_or_null(policy.policy_type),
                    text_or_null(entry.resource),
                    _list_text(entry.actions),
                    _list_text(entry.source_ips),
                    text_or_null(entry.decision),
                )


def _list_text(values: list[str] | None) -> str:
    return "null" if values is None else f"[{', '.join(values)}]"


async def copy_acls(call: Call) -> None:
    options = call.options
    source, target = await call.broker("f"), await call.broker("t")
    if "s" in options:
        found = [await call.admin.acl(name, broker=source) for name in options.words("s")]
        acls = [one for one in found if one is not None]
    else:
        acls = await call.admin.acls(broker=source)
    for one in acls:
        subject = one.subject or ""
        if await call.admin.acl(subject, broker=target) is None:
            await call.admin.create_acl(one, broker=target)
        else:
            await call.admin.update_acl(one, broker=target)
        call.line(f"copy acl of {subject} from {source} to {target} success.")
