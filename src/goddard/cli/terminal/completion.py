"""Completion of the names of topics, groups, brokers and contexts in the shell.

The names come from the cluster. If it does not answer quickly, there are none, and no error.
"""

import contextlib
import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from goddard.cli.terminal.mistakes import REPORTED
from goddard.cli.terminal.output import Format, Output
from goddard.cli.terminal.target import Target, chosen_context
from goddard.contexts import contexts_file, load

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_TIMEOUT_MS: Final = 1_000
_RETRY: Final = ("%RETRY%", "%DLQ%")

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _from_cluster(read: "Callable[[Admin], Awaitable[list[str]]]") -> Complete:
    def complete(
        context: click.Context, _: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        with contextlib.suppress(click.ClickException, *REPORTED):
            given: dict[str, Any] = context.params
            where = chosen_context(given.get("namesrv"), given.get("context_name"))
            target = Target(where, _TIMEOUT_MS, Output(Format.TEXT))
            names = target.run(read)
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []

    return complete


async def _topics(admin: "Admin") -> list[str]:
    names = importlib.import_module("goddard.protocol.names")
    return [
        topic
        for topic in await admin.topics()
        if not topic.startswith(_RETRY) and not names.is_system_topic(topic)
    ]


async def _groups(admin: "Admin") -> list[str]:
    return await admin.groups()


async def _brokers(admin: "Admin") -> list[str]:
    return sorted({place.name for place in await admin.brokers()})


async def _clusters(admin: "Admin") -> list[str]:
    return await admin.clusters()


complete_topic = _from_cluster(_topics)
complete_group = _from_cluster(_groups)
complete_broker = _from_cluster(_brokers)
complete_cluster = _from_cluster(_clusters)


def complete_context(
    _: click.Context, __: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    with contextlib.suppress(*REPORTED):
        return [
            CompletionItem(name)
            for name in sorted(load(contexts_file()).by_name)
            if name.startswith(incomplete)
        ]
    return []


topic_argument = click.argument("topic", shell_complete=complete_topic)
group_argument = click.argument("group", shell_complete=complete_group)
broker_argument = click.argument("broker", shell_complete=complete_broker)
cluster_option = click.option(
    "--cluster", metavar="NAME", shell_complete=complete_cluster, help="On this cluster."
)
broker_option = click.option(
    "--broker", metavar="NAME", shell_complete=complete_broker, help="On this broker."
)
