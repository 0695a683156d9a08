"""Verbs about the accounts of 4.5 to 5.2 (ACL 1.0)."""

from typing import Final

import msgspec

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.java_text import boolean, seconds_text, text_or_null
from goddard.protocol.bodies import DataVersion, decode_body
from goddard.protocol.bodies_admin import AccessKey

_VERSION: Final = "%-16s  %-22s  %-22s  %-20s  %-22s  %-22s"


async def update_access_key(call: Call) -> None:
    options = call.options
    key = AccessKey(
        access_key=options.text("a"),
        secret_key=options.get("s"),
        white_remote_address=options.get("w"),
        admin=options.boolean("m"),
        default_topic_perm=options.get("i"),
        default_group_perm=options.get("u"),
        topic_perms=options.words("t") or None,
        group_perms=options.words("g") or None,
    )

    async def update(address: str) -> None:
        await call.admin.update_access_key(key, broker=address)

    await call.on_each(
        await call.all_brokers(),
        update,
        lambda one: f"create or update plain access config to {one} success.",
    )


async def delete_access_key(call: Call) -> None:
    name = call.options.text("a")

    async def delete(address: str) -> None:
        await call.admin.delete_access_key(name, broker=address)

    await call.on_each(
        await call.all_brokers(),
        delete,
        lambda one: f"delete plain access config account from {one} success.",
    )
    call.line(f"account's accesskey is:{name}")


async def access_key_versions(call: Call) -> None:
    columns = ("#Cluster Name", "#Broker Name", "#Broker Addr", "#AclFilePath")
    addresses = await call.masters()
    answers = await in_parallel(addresses, lambda one: call.admin.access_key_versions(broker=one))
    call.row(_VERSION, *columns, "#AclConfigVersionNum", "#AclLastUpdateTime")
    for one in answers:
        versions = decode_body((one.all_acl_file_version or "{}").encode(), dict[str, DataVersion])
        for path, version in sorted(versions.items()):
            updated = seconds_text(version.timestamp)
            place = (one.cluster_name, one.broker_name, one.broker_addr)
            call.row(_VERSION, *place, path, version.counter, updated)
    call.line("get cluster's plain access config version success.")


async def update_white_addresses(call: Call) -> None:
    addresses, path = call.options.words("g"), call.options.get("p")

    async def update(address: str) -> None:
        await call.admin.update_white_addresses(addresses, path=path, broker=address)

    await call.on_each(
        await call.all_brokers(),
        update,
        lambda one: f"update global white remote addresses to {one} success.",
    )


async def get_access_keys(call: Call) -> None:
    addresses = await call.masters()
    for found in await in_parallel(addresses, lambda one: call.admin.access_keys(broker=one)):
        call.line()
        call.line(f"{'globalWhiteRemoteAddresses':<20}: [{', '.join(found.global_white_addrs)}]")
        call.line()
        call.line("accounts:")
        for key in found.plain_access_configs:
            for name, value in _fields(key):
                call.line(f"  {name:<18}: {value}")
            call.line()


def _fields(key: AccessKey) -> list[tuple[str, str]]:
    """In Java's order."""
    values: dict[str, object] = msgspec.structs.asdict(key)
    order = (
        ("accessKey", "access_key"),
        ("secretKey", "secret_key"),
        ("whiteRemoteAddress", "white_remote_address"),
        ("admin", "admin"),
        ("defaultTopicPerm", "default_topic_perm"),
        ("defaultGroupPerm", "default_group_perm"),
        ("topicPerms", "topic_perms"),
        ("groupPerms", "group_perms"),
    )
    return [(name, _value_text(values[field])) for name, field in order]


def _value_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return boolean(value) if isinstance(value, bool) else text_or_null(value)
