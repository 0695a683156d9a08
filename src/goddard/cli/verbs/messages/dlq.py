"""``goddard dlq``: look at dead letters, send them to their group again, and export them."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from goddard.cli.render import counted, print_json_line
from goddard.cli.terminal.completion import group_argument
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import REPORTED, FailedError, WrongUsageError, explained
from goddard.cli.terminal.output import Table, TimeMs, Wide
from goddard.cli.terminal.reads import Reads
from goddard.cli.terminal.target import Target, cluster_options, confirm, yes_option
from goddard.cli.terminal.times import Range, parse_range
from goddard.cli.verbs.messages.message import message_record
from goddard.cli.verbs.messages.produce import GROUP
from goddard.cli.verbs.messages.scanning import Scan
from goddard.cli.verbs.messages.templates import json_fields, message_from_json
from goddard.client.admin.topics import merge_topic_stats
from goddard.client.errors import NoRouteError
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.producer import Producer
from goddard.client.values import SendResult
from goddard.clock import SystemClock
from goddard.errors import GoddardError
from goddard.protocol.message import (
    CONSUME_FAILURE,
    DELAY_PROPERTIES,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MIN_OFFSET,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
)
from goddard.protocol.names import DLQ_PREFIX, dlq_topic, retry_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

# What would make a broker treat the message as one that already failed, or as the half message of a
# transaction, which nobody would commit.
_DROPPED: Final = DELAY_PROPERTIES | {
    CONSUME_FAILURE,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MIN_OFFSET,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_TRANSACTION_PREPARED,
}

_MAX_PENDING: Final = 64
_RESULTS: Final = ("message id", "origin topic", "result", "problem")

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
    reads = Reads()

    async def work(admin: "Admin") -> list[tuple[object, ...]]:
        topics = [name for name in await admin.topics() if name.startswith(DLQ_PREFIX)]
        found = await reads.each(
            topics,
            lambda topic: reads.merged(admin.topic_stats(topic), merge_topic_stats),
            lambda topic: topic,
        )
        rows: list[tuple[object, ...]] = []
        for topic, stats in found.items():
            last_ms = max((one.last_update_timestamp for one in stats.queues.values()), default=0)
            group = topic.removeprefix(DLQ_PREFIX)
            rows.append((group, stats.message_count, TimeMs(last_ms), topic))
        return rows

    columns = ("group", "dead letters", "last", Wide("topic"))
    reads.print_table(target.output, Table(columns, target.run(work), empty="no dead letters"))


class _Letters:
    """The dead letters of a range or with some ids, one at a time: there may be very many.

    A message that failed again after it was sent again is there twice; ``distinct`` leaves out the
    second one.
    """

    def __init__(
        self, admin: "Admin", group: str, options: dict[str, Any], *, distinct: bool = False
    ) -> None:
        self.count = 0
        self._seen: set[str] | None = set() if distinct else None
        self._admin = admin
        self._group = group
        self._scan = Scan(admin, dlq_topic(group), _range(options))
        self._ids = frozenset(options["ids"])
        self._missing = set(self._ids)

    async def messages(self) -> AsyncGenerator[ReceivedMessage, None]:
        try:
            async with aclosing(self._scan.messages()) as messages:
                async for one in messages:
                    name = one.message_id or one.offset_message_id
                    if self._ids and name not in self._ids:
                        continue
                    if self._seen is not None:
                        if name in self._seen:
                            continue
                        self._seen.add(name)
                    self._missing.discard(name)
                    self.count += 1
                    yield one
        except NoRouteError as error:
            if self._group in await self._admin.groups():
                raise FailedError(f"group {self._group} has no dead letters") from error
            raise NoRouteError(retry_topic(self._group)) from error

    @property
    def problem(self) -> str | None:
        """What is missing when all were read; None if nothing is."""
        incomplete = self._scan.failure_text()
        if incomplete is None and self._missing:
            return f"group {self._group} has no dead letter {min(self._missing)}"
        return incomplete


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
@click.option("-c", "--count", type=click.IntRange(1), default=1_000, show_default=True)
def show(target: Target, group: str, **options: Any) -> None:
    """Show the dead letters of a group, and why they failed.

    With one --id, shows everything about that message. Goddard's consumers send the failure to
    Goddard's brokers; others do not know it.
    """
    _check_range(options)

    async def work(admin: "Admin") -> str | None:
        letters = _Letters(admin, group, options)
        rows: list[tuple[object, ...]] = []
        has_more = False
        last = None
        async with aclosing(letters.messages()) as found:
            async for letter in found:
                last = letter
                if len(rows) == options["count"]:
                    has_more = True
                    break
                rows.append(_row(letter))
        if last is not None and len(options["ids"]) == 1:
            target.output.record(_record(last))
        elif rows or letters.problem is None:
            target.output.table(Table(_COLUMNS, rows, empty="no dead letters in this range"))
        if has_more:
            target.output.done(f"only the first {len(rows)}; --count or --range shows the others")
            return None
        return letters.problem

    problem = target.run(work)
    if problem is not None:
        raise FailedError(problem)


def _record(letter: ReceivedMessage) -> dict[str, Any]:
    reason = {"origin topic": origin_topic(letter), "failure": letter.get(CONSUME_FAILURE)}
    return {**reason, **message_record(letter)}


_COLUMNS: Final = (
    *("dead since", "origin topic", "message id", "tags", "keys", "tries", "bytes"),
    Wide("offset"),
    "failure",
)


def _row(letter: ReceivedMessage) -> tuple[object, ...]:
    """The values of _COLUMNS."""
    return (
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
@click.option(
    "--file",
    type=click.File("rb"),
    help="Instead, lines of 'dlq export', maybe with corrected bodies; - is standard input.",
)
@yes_option
def resend(target: Target, group: str, **options: Any) -> None:
    """Send dead letters to their group again, and to no other group.

    A message that is there several times is sent once. They stay in the dead-letter topic too.
    Prints a result for each message as it is sent; the exit code is 1 if one failed.
    """
    _check_range(options)
    if bool(options["ids"]) + options["is_all"] + (options["file"] is not None) != 1:
        raise WrongUsageError("give --id for some messages, --all, or --file")
    if options["file"] is not None:
        lines = options["file"].readlines()
        try:
            made = [_from_line(group, line) for line in lines if line.strip()]
        except REPORTED as error:
            raise explained(error) from error
        _confirm_resend(group, len(made), options)
        target.run(lambda admin: _resend_lines(target, admin, group, made))
        return
    if not options["yes"]:
        _confirm_resend(group, target.run(lambda admin: _counted(admin, group, options)), options)
    target.run(lambda admin: _resend_letters(target, admin, group, options))


def _confirm_resend(group: str, count: int, options: dict[str, Any]) -> None:
    confirm(f"{counted(count, 'message')} will be sent to group {group} again", yes=options["yes"])


async def _counted(admin: "Admin", group: str, options: dict[str, Any]) -> int:
    letters = _Letters(admin, group, options, distinct=True)
    async for _ in letters.messages():
        pass
    _check_found(group, letters)
    return letters.count


def _check_found(group: str, letters: _Letters) -> None:
    if letters.problem is not None:
        raise FailedError(letters.problem)
    if not letters.count:
        raise FailedError(f"group {group} has no dead letters in this range")


def _from_line(group: str, line: bytes) -> tuple[str | None, Message]:
    """The id of a dead letter and the message to send, from a line of 'dlq export'."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise WrongUsageError(f"--file: a line is not JSON: {error}") from error
    again = message_from_json(retry_topic(group), fields)
    if not isinstance(fields.get("originTopic"), str):
        raise WrongUsageError("--file: a line has no originTopic; it must be of 'dlq export'")
    again.properties[PROPERTY_RETRY_TOPIC] = fields["originTopic"]
    return fields.get("messageId"), again


async def _resend_lines(
    target: Target, admin: "Admin", group: str, made: list[tuple[str | None, Message]]
) -> None:
    if group not in await admin.groups():
        raise NoRouteError(retry_topic(group))
    async with Producer(GROUP, **target.client_keywords()) as producer:
        resending = _Resending(producer, target)
        for message_id, message in made:
            await resending.send(message_id, message)
        await resending.finish(group)


async def _resend_letters(
    target: Target, admin: "Admin", group: str, options: dict[str, Any]
) -> None:
    letters = _Letters(admin, group, options, distinct=True)
    async with Producer(GROUP, **target.client_keywords()) as producer:
        resending = _Resending(producer, target)
        async for letter in letters.messages():
            await resending.send(letter.message_id, for_retry(letter, group))
        await resending.finish(group)
    _check_found(group, letters)


class _Resending:
    """Sends up to ``_MAX_PENDING`` messages at a time; results are printed in order."""

    def __init__(self, producer: Producer, target: Target) -> None:
        self._producer = producer
        self._target = target
        self._pending: deque[tuple[str | None, Message, asyncio.Task[SendResult]]] = deque()
        self._count = 0
        self._failed = 0

    async def send(self, message_id: str | None, message: Message) -> None:
        task = asyncio.create_task(self._producer.send(message))
        self._pending.append((message_id, message, task))
        if len(self._pending) >= _MAX_PENDING:
            await self._finish_one()

    async def finish(self, group: str) -> None:
        """Wait for all; FailedError if one failed."""
        while self._pending:
            await self._finish_one()
        if self._failed:
            raise FailedError(f"{self._failed} of {self._count} messages could not be sent")
        if self._count:
            self._target.output.done(f"{counted(self._count, 'message')} sent to group {group}")

    async def _finish_one(self) -> None:
        message_id, message, task = self._pending.popleft()
        problem = None
        try:
            await task
        except GoddardError as error:
            problem = str(error)
            self._failed += 1
        self._count += 1
        topic = message.properties[PROPERTY_RETRY_TOPIC]
        values = (message_id, topic, "sent" if problem is None else "failed", problem)
        self._target.output.next_row(_RESULTS, values, is_first=self._count == 1, first_width=32)


@dlq.command()
@cluster_options
@group_argument
@_RANGE
@_IDS
def export(target: Target, group: str, **options: Any) -> None:
    """Print dead letters as JSON lines.

    With all properties; 'dlq resend --file' accepts them, also with other bodies.
    """
    _check_range(options)

    async def work(admin: "Admin") -> _Letters:
        letters = _Letters(admin, group, options)
        async for letter in letters.messages():
            fields = {
                "originTopic": origin_topic(letter),
                "failure": letter.get(CONSUME_FAILURE),
                **json_fields(letter),
            }
            print_json_line(fields)
        return letters

    letters = target.run(work)
    if letters.problem is not None:
        raise FailedError(letters.problem)
    target.output.done(f"{counted(letters.count, 'dead letter')} of group {group}")
