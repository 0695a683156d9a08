"""``goddard dlq``: look at dead letters, send them to their group again, and export them."""

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from goddard.cli.terminal.completion import group_argument
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import REPORTED, FailedError, WrongUsageError, explained
from goddard.cli.terminal.output import Table, TimeMs, Wide
from goddard.cli.terminal.target import Target, cluster_options, confirm, yes_option
from goddard.cli.terminal.times import Range, parse_range
from goddard.cli.verbs.messages.message import message_record
from goddard.cli.verbs.messages.produce import GROUP
from goddard.cli.verbs.messages.scanning import Scan
from goddard.cli.verbs.messages.templates import json_fields
from goddard.client.errors import NoRouteError
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.producer import Producer
from goddard.clock import SystemClock
from goddard.errors import GoddardError
from goddard.protocol.message import (
    CONSUME_FAILURE,
    DELAY_PROPERTIES,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MIN_OFFSET,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
)
from goddard.protocol.names import DLQ_PREFIX, dlq_topic, retry_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

# What would make a broker treat the message as one that already failed.
_DROPPED: Final = DELAY_PROPERTIES | {
    CONSUME_FAILURE,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MIN_OFFSET,
    PROPERTY_RECONSUME_TIME,
}

_RANGE = click.option(
    "-r", "--range", "range_text", default="start", metavar="RANGE", help="-10, @-1h, 5:20."
)
_IDS = click.option(
    "--id", "ids", multiple=True, metavar="ID", help="Only these messages; repeatable."
)


@click.group(cls=Group)
def dlq() -> None:
    """Look at dead letters, send them to their group again, and export them."""


def origin_topic(letter: ReceivedMessage) -> str | None:
    """The topic that the message was first sent to."""
    return letter.get(PROPERTY_RETRY_TOPIC) or letter.get(PROPERTY_DLQ_ORIGIN_TOPIC)


@dlq.command("list")
@cluster_options
def list_(target: Target) -> None:
    """List the groups that have dead letters."""

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        topics = [name for name in await admin.topics() if name.startswith(DLQ_PREFIX)]
        found = await asyncio.gather(*(admin.topic_stats(topic) for topic in topics))
        rows: list[tuple[object, ...]] = []
        for topic, stats in zip(topics, found, strict=True):
            last_ms = max((one.last_update_timestamp for one in stats.queues.values()), default=0)
            group = topic.removeprefix(DLQ_PREFIX)
            rows.append((group, stats.message_count, TimeMs(last_ms), topic))
        return rows

    columns = ("group", "dead letters", "last", Wide("topic"))
    target.output.table(Table(columns, target.run(work), empty="no dead letters"))


async def _letters(
    admin: "Admin", group: str, options: dict[str, Any]
) -> tuple[list[ReceivedMessage], str | None]:
    """The dead letters of a range or with some ids, and what could not be read."""
    try:
        scan = Scan(admin, dlq_topic(group), _range(options))
        ids = options["ids"]
        async with aclosing(scan.messages()) as messages:
            letters = [one async for one in messages if not ids or one.message_id in ids]
    except NoRouteError as error:
        if group in await admin.groups():
            raise FailedError(f"group {group} has no dead letters") from error
        raise NoRouteError(retry_topic(group)) from error
    missing = sorted(set(options["ids"]) - {letter.message_id for letter in letters})
    if missing:
        raise FailedError(f"group {group} has no dead letter {missing[0]}")
    return letters, scan.failure_text()


def _range(options: dict[str, Any]) -> Range:
    return parse_range(options["range_text"], SystemClock().now_ms())


def _check_range(options: dict[str, Any]) -> None:
    try:
        _range(options)
    except REPORTED as error:
        raise explained(error) from error


@dlq.command()
@cluster_options
@group_argument
@_RANGE
@_IDS
def show(target: Target, group: str, **options: Any) -> None:
    """Show the dead letters of a group, and why they failed; a single one with its body.

    Goddard's consumers send the failure to Goddard's brokers; others do not know it.
    """
    _check_range(options)

    async def work(admin: "Admin") -> tuple[list[ReceivedMessage], str | None]:
        return await _letters(admin, group, options)

    letters, incomplete = target.run(work)
    if len(options["ids"]) == 1:
        (letter, *_) = letters
        reason = {"origin topic": origin_topic(letter), "failure": letter.get(CONSUME_FAILURE)}
        target.output.record({**reason, **message_record(letter)})
    else:
        columns = (
            *("dead since", "origin topic", "message id", "tags", "keys", "tries", "bytes"),
            Wide("offset"),
            "failure",
        )
        rows = [
            (
                TimeMs(letter.store_timestamp_ms),
                origin_topic(letter),
                letter.message_id,
                letter.tags,
                letter.keys,
                letter.reconsume_times,
                len(letter.body),
                letter.queue_offset,
                letter.get(CONSUME_FAILURE),
            )
            for letter in letters
        ]
        target.output.table(Table(columns, rows, empty="no dead letters in this range"))
    if incomplete is not None:
        raise FailedError(incomplete)


def for_retry(letter: ReceivedMessage, group: str) -> Message:
    """The message for the retry topic of the group, which no other group reads.

    It keeps its id, keys, tags and properties, and begins with no retries used.
    """
    again = Message(retry_topic(group), letter.body, flag=letter.flag)
    again.properties = {
        name: value for name, value in letter.properties.items() if name not in _DROPPED
    }
    again.properties[PROPERTY_RETRY_TOPIC] = origin_topic(letter) or letter.topic
    return again


@dlq.command()
@cluster_options
@group_argument
@_RANGE
@_IDS
@click.option("--all", "is_all", is_flag=True, help="All dead letters of the range.")
@yes_option
def resend(target: Target, group: str, **options: Any) -> None:
    """Send dead letters to their group again, and to no other group.

    They stay in the dead-letter topic too. Prints a result for each message; the exit code is 1 if
    one failed.
    """
    _check_range(options)
    if bool(options["ids"]) == options["is_all"]:
        raise WrongUsageError("give --id for some messages, or --all")

    async def find(admin: "Admin") -> tuple[list[ReceivedMessage], str | None]:
        return await _letters(admin, group, options)

    letters, incomplete = target.run(find)
    if incomplete is not None:
        raise FailedError(incomplete)
    if not letters:
        raise FailedError(f"group {group} has no dead letters in this range")
    confirm(f"{len(letters)} messages will be sent to group {group} again", yes=options["yes"])

    async def work(_: "Admin") -> list[str | None]:
        async with Producer(GROUP, **target.client_keywords()) as producer:
            return [await _send(producer, for_retry(letter, group)) for letter in letters]

    problems = target.run(work)
    rows = [
        (letter.message_id, origin_topic(letter), "failed" if problem else "sent", problem)
        for letter, problem in zip(letters, problems, strict=True)
    ]
    target.output.table(Table(("message id", "origin topic", "result", "problem"), rows))
    failed = sum(problem is not None for problem in problems)
    if failed:
        raise FailedError(f"{failed} of {len(letters)} messages could not be sent")
    target.output.done(f"{len(letters)} messages sent to group {group}")


async def _send(producer: Producer, message: Message) -> str | None:
    """Send a message; returns what went wrong, or None."""
    try:
        await producer.send(message)
    except GoddardError as error:
        return str(error)
    return None


@dlq.command()
@cluster_options
@group_argument
@_RANGE
@_IDS
def export(target: Target, group: str, **options: Any) -> None:
    """Print dead letters as JSON lines, with all properties, to keep or to edit them."""
    _check_range(options)

    async def work(admin: "Admin") -> tuple[list[ReceivedMessage], str | None]:
        return await _letters(admin, group, options)

    letters, incomplete = target.run(work)
    for letter in letters:
        fields = {
            "originTopic": origin_topic(letter),
            "failure": letter.get(CONSUME_FAILURE),
            **json_fields(letter),
        }
        click.echo(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))
    if incomplete is not None:
        raise FailedError(incomplete)
    target.output.done(f"{len(letters)} dead letters of group {group}")
