"""``goddard group``: list, create, change and delete consumer groups; lag and offsets."""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import click

from goddard.cli.terminal.completion import (
    broker_option,
    cluster_option,
    complete_topic,
    group_argument,
)
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError
from goddard.cli.terminal.output import Table, TimeMs, Wide
from goddard.cli.terminal.reads import Reads, merge_names
from goddard.cli.terminal.seconds import Seconds
from goddard.cli.terminal.target import (
    Target,
    cluster_options,
    confirm,
    only_cluster,
    parse_pairs,
    yes_option,
)
from goddard.cli.verbs.group_state import (
    is_own_group,
    known_brokers,
    online_consumers,
    progress_of,
)
from goddard.cli.verbs.reset import reset
from goddard.client.admin.groups import merge_progress
from goddard.client.admin.values import GroupProgress
from goddard.protocol.names import is_retry_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin


@click.group(cls=Group)
def group() -> None:
    """List, create, change and delete consumer groups; show and reset their offsets."""


group.add_command(reset)


@group.command("list")
@cluster_options
@cluster_option
@click.option("--all", "with_all", is_flag=True, help="With RocketMQ's own groups.")
@click.option("--members", "with_members", is_flag=True, help="Count online consumers (slower).")
def list_(target: Target, cluster: str | None, with_all: bool, with_members: bool) -> None:
    """List groups with their lag; "-" where no offset was committed yet."""
    reads = Reads()

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        names = await reads.merged(admin.groups(cluster=cluster), merge_names)
        progress = await _lags(admin, cluster, reads)
        shown = [name for name in names if with_all or not is_own_group(name)]
        members: dict[str, int] = {}
        if with_members:
            members = await _member_counts(admin, shown, reads)
        return [
            (
                name,
                members.get(name),
                _total(progress.get(name, []), "lag"),
                _total(progress.get(name, []), "in_flight"),
                _topics(progress.get(name, [])),
            )
            for name in shown
        ]

    columns = ("group", "members" if with_members else Wide("members"), "lag", Wide("in flight"))
    rows = target.run(work)
    reads.print_table(target.output, Table((*columns, "topics"), rows, empty="no groups"))


async def _lags(
    admin: "Admin", cluster: str | None, reads: Reads
) -> dict[str, list[GroupProgress]]:
    """The progress of all groups, one request for each broker."""
    masters = [place for place in await admin.brokers(cluster=cluster) if place.is_master]
    answers = await reads.each(
        masters, lambda one: admin.broker_progress(one.address), lambda one: f"lags on {one.name}"
    )
    found: dict[str, list[GroupProgress]] = {}
    for answer in answers.values():
        for name, progress in answer.groups.items():
            found.setdefault(name, []).extend(progress)
    return found


def _total(progress: list[GroupProgress], what: str) -> int | None:
    """The sum of a number; None if the group has no offsets."""
    known: list[int] = [getattr(one, what) for one in progress if one.queues]
    return sum(known) if known else None


def _topics(progress: list[GroupProgress]) -> list[str]:
    topics = {queue.topic for one in progress for queue in one.queues}
    return sorted(topic for topic in topics if not is_retry_topic(topic))


async def _member_counts(admin: "Admin", groups: list[str], reads: Reads) -> dict[str, int]:
    """How many consumers of each group are online."""

    async def of_one(name: str) -> int:
        online = await online_consumers(admin, name)
        return len(online.connection_set) if online is not None else 0

    return await reads.each(groups, of_one, lambda name: f"consumers of {name}")


_SETTINGS = (
    click.option("--retries", type=click.IntRange(-1), help="Retries before dead-lettering."),
    click.option("--retry-queues", type=click.IntRange(0), help="Queues of the retry topic."),
    click.option("--consume/--no-consume", default=None, help="Whether consumers get messages."),
    click.option(
        "--broadcast/--no-broadcast", default=None, help="Whether consumers may broadcast."
    ),
    click.option(
        "--orderly/--no-orderly", default=None, help="Whether messages are consumed in order."
    ),
    click.option(
        "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Set an attribute."
    ),
)
_KEYWORDS: Final = {
    "retries": "max_retries",
    "retry_queues": "retry_queues",
    "consume": "consume_enabled",
    "broadcast": "broadcast_enabled",
    "orderly": "orderly",
}


def _settings(function: Any) -> Any:
    for option in reversed(_SETTINGS):
        function = option(function)
    return function


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, as keywords of Admin.create_group."""
    changes = {
        keyword: options[name] for name, keyword in _KEYWORDS.items() if options[name] is not None
    }
    if options["attributes"]:
        pairs = parse_pairs(options["attributes"], "--attribute")
        changes["attributes"] = {f"+{name}": value for name, value in pairs.items()}
    return changes


@group.command()
@cluster_options
@click.argument("group")
@cluster_option
@broker_option
@_settings
def create(target: Target, group: str, **options: Any) -> None:
    """Create a group on a cluster or a broker; it must not exist."""
    changes = _changes(options)

    async def work(admin: "Admin") -> list[str]:
        where = await only_cluster(admin, options["cluster"], options["broker"])
        known = await admin.groups(cluster=where, broker=options["broker"])
        if group in known:
            raise FailedError(f"group {group} exists; 'goddard group update' changes it")
        return await admin.create_group(group, cluster=where, broker=options["broker"], **changes)

    done = target.run(work)
    target.output.done(f"group {group} is created on {', '.join(done)}")


@group.command()
@cluster_options
@group_argument
@cluster_option
@_settings
def update(target: Target, group: str, **options: Any) -> None:
    """Change a group on all its brokers.

    Settings that are not given keep their values.
    """
    changes = _changes(options)
    if not changes:
        raise WrongUsageError("nothing to change; give --retries, --no-consume or another setting")

    async def change(admin: "Admin", broker: str) -> None:
        known = await admin.group_config(group, broker=broker)
        kept = {
            "consume_enabled": known.consume_enable,
            "consume_from_min_enabled": known.consume_from_min_enable,
            "broadcast_enabled": known.consume_broadcast_enable,
            "orderly": known.consume_message_orderly,
            "retry_queues": known.retry_queue_nums,
            "max_retries": known.retry_max_times,
            "retry_policy": known.group_retry_policy,
            "broker_id": known.broker_id,
            "broker_id_when_slow": known.which_broker_when_consume_slowly,
            "notify_consumer_changes": known.notify_consumer_ids_changed_enable,
            "consume_timeout_minutes": known.consume_timeout_minute,
        }
        await admin.create_group(group, broker=broker, **{**kept, **changes})

    async def work(admin: "Admin") -> list[str]:
        names = await known_brokers(admin, group, options["cluster"])
        for name in names:
            await change(admin, name)
        return names

    target.output.done(f"group {group} is changed on {', '.join(target.run(work))}")


@group.command()
@cluster_options
@group_argument
@cluster_option
@click.option("--offsets", "with_offsets", is_flag=True, help="Delete its offsets too.")
@yes_option
def delete(target: Target, group: str, **options: Any) -> None:
    """Delete a group from a cluster.

    With its retry topic and its dead letters.
    """

    async def find(admin: "Admin") -> str | None:
        await known_brokers(admin, group, options["cluster"])
        online = await online_consumers(admin, group)
        if online is not None:
            clients = ", ".join(one.client_id for one in online.connection_set)
            raise FailedError(f"group {group} has online consumers, stop them first: {clients}")
        return await only_cluster(admin, options["cluster"], None)

    cluster = target.run(find)
    confirm(f"group {group}, its retries and dead letters will be deleted", yes=options["yes"])

    async def work(admin: "Admin") -> list[str]:
        return await admin.delete_group(
            group, cluster=cluster, remove_offsets=options["with_offsets"]
        )

    target.output.done(f"group {group} is deleted from {', '.join(target.run(work))}")


@group.command()
@cluster_options
@group_argument
def show(target: Target, group: str) -> None:
    """Show a group: settings, consumers, subscriptions, topics."""

    async def work(admin: "Admin") -> dict[str, Any]:
        names = await known_brokers(admin, group, None)
        known = await admin.group_config(group, broker=names[0])
        online = await online_consumers(admin, group)
        members = [] if online is None else online.connection_set
        subscribed = {} if online is None else online.subscription_table
        return {
            "group": group,
            "brokers": names,
            "consume": known.consume_enable,
            "orderly": known.consume_message_orderly,
            "retries": known.retry_max_times,
            "retry queues": known.retry_queue_nums,
            "attributes": known.attributes,
            "message model": online.message_model if online is not None else None,
            "members": Table(
                ("client", "address", "language", "version"),
                [
                    (one.client_id, one.client_addr, one.language, one.version)
                    for one in sorted(members, key=lambda one: one.client_id)
                ],
                empty="no consumer is online",
            ),
            "subscriptions": Table(
                ("topic", "type", "expression"),
                [
                    (topic, data.expression_type, data.sub_string)
                    for topic, data in sorted(subscribed.items())
                ],
                empty="none: no consumer is online",
            ),
        }

    target.output.record(target.run(work))


def lag_rows(progress: GroupProgress) -> list[tuple[object, ...]]:
    """A row for each queue; a negative lag is an offset beyond the end of the queue."""
    return [
        (
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            at.consumer_offset if at.consumer_offset >= 0 else None,
            at.broker_offset,
            at.broker_offset - at.consumer_offset if at.consumer_offset >= 0 else None,
            at.pull_offset - at.consumer_offset,
            TimeMs(at.last_timestamp),
        )
        for queue, at in progress.queues.items()
    ]


_LAG_COLUMNS: Final = (
    "topic",
    "broker",
    "queue",
    "consumed to",
    "end",
    "lag",
    Wide("in flight"),
    "last consumed",
)


@group.command()
@cluster_options
@group_argument
@click.option("--topic", metavar="NAME", shell_complete=complete_topic, help="Only this topic.")
def lag(target: Target, group: str, topic: str | None) -> None:
    """Show how far a group has consumed each queue."""
    reads = Reads()

    async def work(admin: "Admin") -> GroupProgress:
        return await reads.merged(progress_of(admin, group, topic), merge_progress)

    progress = target.run(work)
    empty = f"group {group} has committed no offsets yet"
    reads.print_table(target.output, Table(_LAG_COLUMNS, lag_rows(progress), empty=empty))
    if target.output.is_text and progress.queues:
        target.output.done(
            f"lag {progress.lag}, in flight {progress.in_flight}, "
            f"{progress.consume_tps:.1f} messages/s"
        )


@group.command()
@cluster_options
@group_argument
@click.option("--interval", type=Seconds(0.1), default=2.0, show_default=True, help="Seconds.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many lines.")
@click.option("--until-empty", is_flag=True, help="Stop when the lag is 0.")
def watch(
    target: Target, group: str, interval: float, count: int | None, until_empty: bool
) -> None:
    """Print the lag of a group every few seconds.

    One line each time, until Ctrl-C.
    """

    async def work(admin: "Admin") -> None:
        number = 0
        before: GroupProgress | None = None
        before_at = 0.0
        while True:
            progress = await progress_of(admin, group)
            now = time.monotonic()
            rate = None if before is None else _rate(before, progress, now - before_at)
            _print_watch(target, admin.clock.now_ms(), progress, rate, is_first=before is None)
            before, before_at = progress, now
            number += 1
            if number == count or (until_empty and progress.lag == 0):
                return
            await asyncio.sleep(interval)

    target.run(work)


def _rate(before: GroupProgress, after: GroupProgress, seconds: float) -> float:
    """Consumed messages per second between two looks."""
    consumed = sum(
        at.consumer_offset - before.queues[queue].consumer_offset
        for queue, at in after.queues.items()
        if queue in before.queues
    )
    return consumed / seconds if seconds > 0 else 0.0


def _print_watch(
    target: Target, now_ms: int, progress: GroupProgress, rate: float | None, *, is_first: bool
) -> None:
    columns = ("time", "lag", "in flight", "consumed per second")
    values = (TimeMs(now_ms), progress.lag, progress.in_flight, rate)
    target.output.next_row(columns, values, is_first=is_first)
