"""``goddard client``: the online producers and consumers, and their state."""

from typing import TYPE_CHECKING, Any

import click

from goddard.cli.terminal.completion import complete_group, group_argument
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import FailedError
from goddard.cli.terminal.output import Table, TimeMs, Wide, printable
from goddard.cli.terminal.reads import Reads, merge_names
from goddard.cli.terminal.target import Target, cluster_options
from goddard.cli.verbs.group_state import is_own_group, online_consumers

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin
    from goddard.protocol.bodies_client import ConsumerRunningInfo


@click.group(cls=Group)
def client() -> None:
    """Show the online producers and consumers, and their state."""


@client.command("list")
@cluster_options
@click.option("--group", metavar="NAME", shell_complete=complete_group, help="Only this group.")
def list_(target: Target, group: str | None) -> None:
    """List online consumers, then producers.

    RocketMQ's brokers list producers from 4.9.3 on.
    """
    reads = Reads()

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        rows = await _consumers(admin, group, reads) + await _producers(admin, group, reads)
        return sorted(rows, key=lambda row: [str(value) for value in row[:3]])

    columns = ("kind", "group", "client", "address", "language", Wide("version"))
    reads.print_table(target.output, Table(columns, target.run(work), empty="no client is online"))


async def _consumers(admin: "Admin", group: str | None, reads: Reads) -> list[tuple[object, ...]]:
    names = [group] if group is not None else await reads.merged(admin.groups(), merge_names)

    async def of_one(name: str) -> list[tuple[object, ...]]:
        online = await online_consumers(admin, name)
        members = [] if online is None else online.connection_set
        return [
            ("consumer", name, one.client_id, one.client_addr, one.language, one.version)
            for one in members
        ]

    found = await reads.each(names, of_one, lambda name: f"consumers of {name}")
    return [row for rows in found.values() for row in rows]


async def _producers(admin: "Admin", group: str | None, reads: Reads) -> list[tuple[object, ...]]:
    masters = [place for place in await admin.brokers() if place.is_master]
    answers = await reads.each(
        masters, lambda one: admin.producers(one.address), lambda one: f"producers on {one.name}"
    )
    found = {
        (name, one.client_id): (
            *("producer", name, one.client_id, one.remote_ip, one.language, one.version),
        )
        for answer in answers.values()
        for name, producers in answer.items()
        for one in producers
        if group in (None, name) and not is_own_group(name)
    }
    return list(found.values())


async def _info(admin: "Admin", group: str, client: str, *, stacks: bool) -> "ConsumerRunningInfo":
    online = await online_consumers(admin, group)
    known = [] if online is None else [one.client_id for one in online.connection_set]
    if client not in known:
        names = ", ".join(sorted(known)) or "none is online"
        raise FailedError(f"group {group} has no consumer {client}; consumers: {names}")
    return await admin.running_info(group, client, with_stacks=stacks)


@client.command()
@cluster_options
@group_argument
@click.argument("client")
def show(target: Target, group: str, client: str) -> None:
    """Show the queues, rates and options of one consumer.

    The consumer itself reports them.
    """

    async def work(admin: "Admin") -> dict[str, Any]:
        info = await _info(admin, group, client, stacks=False)
        queues = [
            (
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                state.commit_offset,
                state.cached_msg_count,
                state.locked,
                TimeMs(state.last_pull_timestamp),
                TimeMs(state.last_consume_timestamp),
            )
            for queue, state in info.mq_table.items()
        ]
        rates = [
            (topic, one.consume_ok_tps, one.consume_failed_tps, one.consume_rt, one.pull_tps)
            for topic, one in sorted(info.status_table.items())
        ]
        return {
            "client": client,
            "group": group,
            "properties": info.properties,
            "queues": Table(
                (
                    *("topic", "broker", "queue", "committed", "buffered", "locked"),
                    *("last pull", "last consumed"),
                ),
                sorted(queues),
            ),
            "rates": Table(
                ("topic", "consumed per second", "failed per second", "milliseconds", "pulls"),
                rates,
            ),
        }

    target.output.record(target.run(work))


@client.command()
@cluster_options
@group_argument
@click.argument("client")
def stack(target: Target, group: str, client: str) -> None:
    """Show the stacks of all threads of one consumer."""

    async def work(admin: "Admin") -> str | None:
        return (await _info(admin, group, client, stacks=True)).jstack

    text = target.run(work)
    if not text:
        raise FailedError(f"{client} did not send stacks")
    if target.output.is_text:
        click.echo("\n".join(map(printable, text.expandtabs(4).splitlines())))
    else:
        target.output.record({"client": client, "stacks": text})
