"""``goddard topic``: list, create, change and delete topics, and show their state."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from goddard.cli.terminal.completion import broker_option, cluster_option, topic_argument
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError
from goddard.cli.terminal.output import Table, TimeMs, Wide
from goddard.cli.terminal.reads import Reads
from goddard.cli.terminal.target import (
    Target,
    cluster_options,
    confirm,
    only_cluster,
    parse_pairs,
    yes_option,
)
from goddard.cli.terminal.times import parse_time
from goddard.client.admin.topics import merge_topic_stats
from goddard.client.errors import NoRouteError
from goddard.protocol.codes import Permission
from goddard.protocol.names import is_dlq_topic, is_retry_topic, is_system_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

PERMISSIONS: Final = {
    "none": Permission(0),
    "w": Permission.WRITE,
    "r": Permission.READ,
    "rw": Permission.READ | Permission.WRITE,
}
_MAX_QUEUES: Final = 65_535
_QUEUES = click.IntRange(1, _MAX_QUEUES)
_PERMISSION = click.option(
    "--permission", type=click.Choice(list(PERMISSIONS)), help="Whether it is read and written."
)
_ATTRIBUTE = click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an attribute, such as message.type=FIFO; NAME= removes it. Repeatable.",
)


def permission_text(bits: int) -> str:
    """``rw``, ``r``, ``w`` or ``none``."""
    text = ("r" if bits & Permission.READ else "") + ("w" if bits & Permission.WRITE else "")
    return text or "none"


def kind_of(topic: str, system: frozenset[str]) -> str:
    """What a topic is for."""
    if is_retry_topic(topic):
        return "retry"
    if is_dlq_topic(topic):
        return "dead letter"
    return "system" if topic in system or is_system_topic(topic) else "normal"


@click.group(cls=Group)
def topic() -> None:
    """List, create, change and delete topics, and show their state."""


@topic.command("list")
@cluster_options
@cluster_option
@click.option("--all", "with_all", is_flag=True, help="With retry, dead-letter and system topics.")
def list_(target: Target, **options: Any) -> None:
    """List topics with their queues."""
    name, with_all = options["cluster"], options["with_all"]
    reads = Reads()

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        known = await admin.topics(cluster=name)
        system = frozenset(await reads.answer("system topics", admin.system_topics()) or ())
        found = await _settings(admin, name, reads)
        return [
            (each, kind, *_summary(found.get(each, {})))
            for each in known
            if (kind := kind_of(each, system)) == "normal" or with_all
        ]

    columns = ("topic", "kind", "queues", "permission", "brokers")
    reads.print_table(target.output, Table(columns, target.run(work), empty="no topics"))


async def _settings(admin: "Admin", cluster: str | None, reads: Reads) -> dict[str, dict[str, Any]]:
    """The settings of all topics, by topic and broker."""
    masters = [place for place in await admin.brokers(cluster=cluster) if place.is_master]
    tables = await reads.each(
        masters, lambda place: admin.topic_configs(place.address), lambda place: place.name
    )
    found: dict[str, dict[str, Any]] = {}
    for place, table in tables.items():
        for name, config in table.topic_config_table.items():
            found.setdefault(name, {})[place.name] = config
    return found


def _summary(by_broker: Mapping[str, Any]) -> tuple[object, ...]:
    """The number of queues, the permission and the brokers of a topic."""
    permissions = sorted({permission_text(config.perm) for config in by_broker.values()})
    queues = sum(config.read_queue_nums for config in by_broker.values())
    return (queues if by_broker else None, permissions, sorted(by_broker))


@topic.command()
@cluster_options
@click.argument("topic")
@cluster_option
@broker_option
@click.option("--queues", type=_QUEUES, default=8, show_default=True, help="On each broker.")
@_PERMISSION
@click.option(
    "--order",
    is_flag=True,
    help="Keep the list of queues while brokers are down, for ordered messages.",
)
@_ATTRIBUTE
def create(target: Target, topic: str, **options: Any) -> None:
    """Create a topic on a cluster or a broker; it must not exist."""
    attributes = _attributes(options["attributes"])

    async def work(admin: "Admin") -> list[str]:
        where = await only_cluster(admin, options["cluster"], options["broker"])
        if await _exists(admin, topic, options["broker"]):
            raise FailedError(f"topic {topic} exists; 'goddard topic update' changes it")
        return await admin.create_topic(
            topic,
            cluster=where,
            broker=options["broker"],
            queues=options["queues"],
            permission=PERMISSIONS[options["permission"] or "rw"],
            order=options["order"],
            attributes=attributes,
        )

    done = target.run(work)
    target.output.done(f"topic {topic} is created on {', '.join(done)}")


async def _exists(admin: "Admin", topic: str, broker: str | None) -> bool:
    try:
        found = await admin.topic_route(topic)
    except NoRouteError:
        return False
    return broker is None or any(
        broker == data.broker_name or broker in data.broker_addrs.values()
        for data in found.broker_datas
    )


def _attributes(pairs: tuple[str, ...]) -> dict[str, str | None]:
    return {name: value or None for name, value in parse_pairs(pairs, "--attribute").items()}


@topic.command()
@cluster_options
@topic_argument
@broker_option
@click.option("--queues", type=_QUEUES, help="Read and write queues on each broker.")
@click.option("--read-queues", type=_QUEUES, help="Queues that consumers read.")
@click.option("--write-queues", type=_QUEUES, help="Queues that producers write.")
@_PERMISSION
@click.option("--order/--no-order", default=None, help="For ordered messages.")
@_ATTRIBUTE
def update(target: Target, topic: str, **options: Any) -> None:
    """Change a topic on all its brokers, or on one.

    Settings that are not given keep their values.
    """
    attributes = _attributes(options["attributes"])
    reads = options["read_queues"] or options["queues"]
    writes = options["write_queues"] or options["queues"]
    given = (reads, writes, options["permission"], options["order"], attributes or None)
    if all(value is None for value in given):
        raise WrongUsageError(
            "nothing to change; give --queues, --permission, --order or --attribute"
        )

    async def change(admin: "Admin", broker: str) -> None:
        known = await admin.topic_config(topic, broker=broker)
        wanted = options["permission"]
        order = options["order"]
        await admin.create_topic(
            topic,
            broker=broker,
            read_queues=reads or known.read_queue_nums,
            write_queues=writes or known.write_queue_nums,
            permission=PERMISSIONS[wanted] if wanted else Permission(known.perm),
            order=known.order if order is None else order,
            attributes=attributes,
        )

    async def work(admin: "Admin") -> list[str]:
        found = await admin.topic_route(topic)
        names = [options["broker"]] if options["broker"] else _broker_names(found)
        for name in names:
            await change(admin, name)
        return names

    target.output.done(f"topic {topic} is changed on {', '.join(target.run(work))}")


def _broker_names(route: Any) -> list[str]:
    return sorted(data.broker_name for data in route.broker_datas)


@topic.command()
@cluster_options
@topic_argument
@cluster_option
@yes_option
def delete(target: Target, topic: str, **options: Any) -> None:
    """Delete a topic and all its messages from a cluster."""

    async def find(admin: "Admin") -> list[str]:
        return await admin.topic_clusters(topic)

    found = target.run(find)
    wanted = options["cluster"]
    if wanted is not None and wanted not in found:
        raise FailedError(
            f"there is no topic {topic} in cluster {wanted}; it is in {', '.join(found)}"
        )
    chosen = [wanted] if wanted else found
    confirm(f"topic {topic} and its messages will be deleted", yes=options["yes"])

    async def work(admin: "Admin") -> None:
        for name in chosen:
            await admin.delete_topic(topic, cluster=name)

    target.run(work)
    target.output.done(f"topic {topic} is deleted from {', '.join(chosen)}")


@topic.command()
@cluster_options
@topic_argument
def show(target: Target, topic: str) -> None:
    """Show a topic: settings on each broker, and its groups."""

    async def work(admin: "Admin") -> dict[str, Any]:
        found = await admin.topic_route(topic)
        names = _broker_names(found)
        configs = await asyncio.gather(*(admin.topic_config(topic, broker=one) for one in names))
        stats = await admin.topic_stats(topic)
        rows = [
            (
                name,
                config.read_queue_nums,
                config.write_queue_nums,
                permission_text(config.perm),
                config.order,
                config.attributes,
            )
            for name, config in zip(names, configs, strict=True)
        ]
        columns = ("broker", "read queues", "write queues", "permission", "order", "attributes")
        return {
            "topic": topic,
            "clusters": sorted({data.cluster for data in found.broker_datas}),
            "messages": stats.message_count,
            "groups": await admin.topic_groups(topic),
            "brokers": Table(columns, rows),
        }

    target.output.record(target.run(work))


@topic.command()
@cluster_options
@topic_argument
def route(target: Target, topic: str) -> None:
    """Show the brokers of a topic and their addresses."""

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        found = await admin.topic_route(topic)
        queues = {data.broker_name: data for data in found.queue_datas}
        return [
            (
                data.cluster,
                data.broker_name,
                broker_id,
                address,
                queues[data.broker_name].read_queue_nums if data.broker_name in queues else None,
                queues[data.broker_name].write_queue_nums if data.broker_name in queues else None,
                permission_text(queues[data.broker_name].perm)
                if data.broker_name in queues
                else None,
            )
            for data in sorted(found.broker_datas, key=lambda data: data.broker_name)
            for broker_id, address in sorted(data.broker_addrs.items())
        ]

    columns = ("cluster", "broker", "id", "address", "read queues", "write queues", "permission")
    target.output.table(Table(columns, target.run(work)))


@topic.command()
@cluster_options
@topic_argument
@broker_option
def stats(target: Target, topic: str, broker: str | None) -> None:
    """Show the offsets and the number of messages of each queue."""
    reads = Reads()

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        found = await reads.merged(admin.topic_stats(topic, broker=broker), merge_topic_stats)
        return [
            (
                queue.broker_name,
                queue.queue_id,
                ends.min_offset,
                ends.max_offset,
                ends.max_offset - ends.min_offset,
                TimeMs(ends.last_update_timestamp),
            )
            for queue, ends in found.queues.items()
        ]

    columns = ("broker", "queue", "min offset", "max offset", "messages", "last stored")
    reads.print_table(target.output, Table(columns, target.run(work)))


@topic.command()
@cluster_options
@topic_argument
@click.option("--time", "time_text", default="now", show_default=True, help="now, -1h, a date.")
def offsets(target: Target, topic: str, time_text: str) -> None:
    """Show the offset of each queue at a time.

    It is the offset of the first message that was stored at that time or later.
    """

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        time_ms = parse_time(time_text, admin.clock.now_ms())
        queues = await admin.topic_queues(topic)
        found = await asyncio.gather(*(admin.search_offset(queue, time_ms) for queue in queues))
        return [
            (queue.broker_name, queue.queue_id, offset, TimeMs(time_ms))
            for queue, offset in zip(queues, found, strict=True)
        ]

    columns = ("broker", "queue", "offset", Wide("time"))
    target.output.table(Table(columns, target.run(work)))
