"""Verbs about name servers."""

from goddard.cli.mqadmin.call import Call


def chosen(call: Call) -> list[str] | None:
    """The name servers of the option ``-n``; None means all that the client knows."""
    return call.options.words("n", ";") or None


async def get_config(call: Call) -> None:
    configs = await call.admin.name_server_config(chosen(call))
    for address, config in configs.items():
        call.line(f"============{address}============")
        for name, value in sorted(config.items()):
            call.line(f"{name:<50}=  {value}")


async def update_config(call: Call) -> None:
    name, value = call.options.text("k"), call.options.text("v")
    addresses = chosen(call)
    await call.admin.update_name_server_config({name: value}, addresses)
    shown = "" if addresses is None else f"[{', '.join(addresses)}]"
    call.line(f"update name server config success!{shown}")
    call.line(f"{name} : {value}")


async def update_kv(call: Call) -> None:
    options = call.options
    await call.admin.set_kv(options.text("s"), options.text("k"), options.text("v"))
    call.line("create or update kv config to namespace success.")


async def delete_kv(call: Call) -> None:
    await call.admin.delete_kv(call.options.text("s"), call.options.text("k"))
    call.line("delete kv config from namespace success.")


async def wipe_write_permission(call: Call) -> None:
    name = call.options.text("b")
    for address, count in (await call.admin.wipe_write_permission(name)).items():
        call.line(f"wipe write perm of broker[{name}] in name server[{address}] OK, {count}")


async def add_write_permission(call: Call) -> None:
    name = call.options.text("b")
    for address, count in (await call.admin.add_write_permission(name)).items():
        call.line(f"add write perm of broker[{name}] in name server[{address}] OK, {count}")
