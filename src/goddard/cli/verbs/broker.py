"""``goddard broker``: without a verb it runs a broker; the verbs are about running ones."""

import asyncio
import importlib
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from goddard.cli.replicas import REPLICA_COLUMNS, replica_rows
from goddard.cli.terminal.completion import broker_argument, cluster_option, complete_broker
from goddard.cli.terminal.groups import Group, did_you_mean
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError
from goddard.cli.terminal.output import Table, TimeMs
from goddard.cli.terminal.target import (
    Target,
    cluster_options,
    confirm,
    parse_pairs,
    yes_option,
)
from goddard.errors import GoddardError

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_RUN: Final = "run"
_HELP: Final = ("-h", "--help")


class BrokerGroup(Group):
    """``goddard broker [OPTIONS]`` is short for ``goddard broker run [OPTIONS]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in _HELP):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), _RUN])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == _RUN:
            command = importlib.import_module("goddard.cli.broker").broker
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=BrokerGroup)
def broker() -> None:
    """Run a broker, or show and configure running ones.

    'goddard broker [OPTIONS]' is short for 'goddard broker run [OPTIONS]'.
    """


def _number(figures: Mapping[str, str], name: str, part: int = 0) -> float | None:
    """One number of a runtime figure, such as the first of ``12.5 11.9 11.8``."""
    try:
        return float(figures[name].split()[part])
    except (KeyError, IndexError, ValueError):
        return None


@broker.command("list")
@cluster_options
@cluster_option
def list_(target: Target, cluster: str | None) -> None:
    """List brokers with their rates.

    A broker that does not answer has "-" instead of figures.
    """

    async def of_one(admin: "Admin", address: str) -> Mapping[str, str]:
        try:
            return await admin.broker_runtime(address)
        except GoddardError:
            return {}

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        places = await admin.brokers(cluster=cluster)
        figures = await asyncio.gather(*(of_one(admin, place.address) for place in places))
        return [
            (
                place.cluster,
                place.name,
                place.broker_id,
                place.address,
                known.get("brokerVersionDesc"),
                _number(known, "putTps"),
                _number(known, "getTransferredTps"),
                _number(known, "commitLogDiskRatio"),
                bool(known),
            )
            for place, known in zip(places, figures, strict=True)
        ]

    columns = (
        *("cluster", "broker", "id", "address", "version", "in per second", "out per second"),
        *("disk used", "answers"),
    )
    target.output.table(Table(columns, target.run(work), empty="no brokers are registered"))


@broker.command()
@cluster_options
@broker_argument
def show(target: Target, broker: str) -> None:
    """Show the main figures of a broker; 'broker stats' has all."""

    async def work(admin: "Admin") -> dict[str, Any]:
        figures = await admin.broker_runtime(broker)
        replicas = await admin.brokers()
        booted = figures.get("bootTimestamp", "0")
        return {
            "broker": broker,
            "version": figures.get("brokerVersionDesc"),
            "running since": TimeMs(int(booted) if booted.isdecimal() else 0),
            "in per second": _number(figures, "putTps"),
            "out per second": _number(figures, "getTransferredTps"),
            "messages in today": _number(figures, "msgPutTotalTodayNow"),
            "disk used": _number(figures, "commitLogDiskRatio"),
            "producers": figures.get("producerConnectionSize"),
            "consumers": figures.get("consumerConnectionSize"),
            "replicas": Table(
                ("id", "address"),
                [(one.broker_id, one.address) for one in replicas if one.name == broker],
            ),
        }

    target.output.record(target.run(work))


@broker.command()
@cluster_options
@broker_argument
def stats(target: Target, broker: str) -> None:
    """Show all runtime figures of a broker, under RocketMQ's names."""

    async def work(admin: "Admin") -> Mapping[str, str]:
        return await admin.broker_runtime(broker)

    target.output.table(Table(("name", "value"), list(target.run(work).items())))


@broker.group(cls=Group)
def config() -> None:
    """Show and change the configuration of running brokers."""


@config.command("get")
@cluster_options
@broker_argument
@click.argument("names", nargs=-1)
def get_config(target: Target, broker: str, names: tuple[str, ...]) -> None:
    """Show the properties of a broker, all or those with these NAMES."""

    async def work(admin: "Admin") -> Mapping[str, str]:
        return await admin.broker_config(broker)

    known = target.run(work)
    for name in names:
        _check_known(name, known)
    chosen = names or sorted(known)
    target.output.table(Table(("name", "value"), [(name, known[name]) for name in chosen]))


def _check_known(name: str, known: Mapping[str, str]) -> None:
    if name not in known:
        raise FailedError(f"the broker has no property {name}{did_you_mean(name, known)}")


@config.command("set")
@cluster_options
@broker_argument
@click.argument("pairs", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.option("--unknown", is_flag=True, help="Also properties that the broker does not list.")
@yes_option
def set_config(target: Target, broker: str, pairs: tuple[str, ...], **options: Any) -> None:
    """Change properties of a running broker.

    Shows the old values, and reads back the new ones.
    """
    wanted = parse_pairs(pairs, "argument")

    async def look(admin: "Admin") -> Mapping[str, str]:
        return await admin.broker_config(broker)

    known = target.run(look)
    if not options["unknown"]:
        for name in wanted:
            _check_known(name, known)
    changes = ", ".join(f"{name}: {known.get(name)} to {value}" for name, value in wanted.items())
    confirm(f"{broker} will be changed: {changes}", yes=options["yes"])

    async def work(admin: "Admin") -> Mapping[str, str]:
        await admin.update_broker_config(wanted, broker=broker)
        return await admin.broker_config(broker)

    now = target.run(work)
    kept = [name for name, value in wanted.items() if now.get(name) != value]
    if kept:
        raise FailedError(f"{broker} did not take {kept[0]}; it has {now.get(kept[0])}")
    target.output.done(f"{broker} is changed: {changes}")


@broker.command()
@cluster_options
@click.argument("broker", required=False, shell_complete=complete_broker)
def replicas(target: Target, broker: str | None) -> None:
    """Show which slaves follow which master.

    With how many bytes a slave is behind.
    """

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        return await replica_rows(admin, broker)

    target.output.table(Table(REPLICA_COLUMNS, target.run(work), empty="no brokers are registered"))


@broker.command()
@cluster_options
@click.argument("address")
@click.option(
    "--role",
    type=click.Choice(["SYNC_MASTER", "ASYNC_MASTER"]),
    help="The role of the new master.  [default: that of the last master]",
)
@click.option("--force", is_flag=True, help="Also if messages that were acknowledged are lost.")
@yes_option
def promote(target: Target, address: str, role: str | None, **options: bool) -> None:
    """Make the slave at ADDRESS the master of its group.

    The slave refuses as long as the master answers (see 'demote'), and if messages that were
    acknowledged could be lost: unless it has all of them, or the last master is a slave now.
    """
    lost = ", and messages may be lost" if options["force"] else ""
    confirm(f"{address} will become the master of its group{lost}", yes=options["yes"])

    async def work(admin: "Admin") -> None:
        await admin.promote_broker(address, role=role, force=options["force"])

    target.run(work)
    target.output.done(f"{address} is the master of its group")


@broker.command()
@cluster_options
@broker_argument
@click.option("--id", "broker_id", type=click.IntRange(1), help="Its id.  [default: a free one]")
@click.option("--force", is_flag=True, help="Also if no slave has its whole log.")
@yes_option
def demote(target: Target, broker: str, broker_id: int | None, **options: bool) -> None:
    """Make the master of BROKER a slave; then promote another.

    From then on it refuses writes. It stays the master if no slave has its whole log.
    """
    confirm(f"the master of {broker} will become a slave and refuse writes", yes=options["yes"])

    async def work(admin: "Admin") -> tuple[str, int]:
        places = await admin.brokers()
        masters = [one for one in places if one.is_master and broker in (one.name, one.address)]
        if not masters:
            raise FailedError(f"no master of {broker} is registered")
        master = masters[0]
        taken = {one.broker_id for one in places if one.name == master.name}
        free = next(number for number in itertools.count(1) if number not in taken)
        chosen = broker_id or free
        await admin.demote_broker(master.address, broker_id=chosen, force=options["force"])
        return master.address, chosen

    address, chosen = target.run(work)
    target.output.done(
        f"{address} is a slave with the id {chosen}; now promote one of its slaves with "
        "'goddard broker promote ADDRESS'"
    )


@broker.group(cls=Group)
def permission() -> None:
    """Stop producers from using a broker, or let them again.

    Use it before a broker is stopped for maintenance.
    """


@permission.command("wipe")
@cluster_options
@broker_argument
@yes_option
def wipe(target: Target, broker: str, yes: bool) -> None:
    """Have producers send to other brokers."""
    confirm(f"producers will no longer send to {broker}", yes=yes)

    async def work(admin: "Admin") -> Mapping[str, int]:
        return await admin.wipe_write_permission(broker)

    _show_topics(target, broker, target.run(work), "no longer written")


@permission.command("restore")
@cluster_options
@broker_argument
def restore(target: Target, broker: str) -> None:
    """Have producers send to the broker again."""

    async def work(admin: "Admin") -> Mapping[str, int]:
        return await admin.add_write_permission(broker)

    _show_topics(target, broker, target.run(work), "written again")


def _show_topics(target: Target, broker: str, counts: Mapping[str, int], what: str) -> None:
    if not any(counts.values()):
        raise WrongUsageError(
            f"no topic of {broker} was changed; is {broker} its name, not its address?"
        )
    rows = list(counts.items())
    target.output.table(Table(("name server", "topics"), rows))
    target.output.done(f"topics of {broker} are {what}")
