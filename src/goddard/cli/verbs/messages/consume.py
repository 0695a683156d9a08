"""``goddard consume``: print the messages of a topic; without a group, nothing is committed."""

import json
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from goddard.cli.terminal.completion import complete_group, topic_argument
from goddard.cli.terminal.mistakes import REPORTED, FailedError, WrongUsageError, explained
from goddard.cli.terminal.output import Format, TimeMs, cell_text, csv_text, yaml_lines
from goddard.cli.terminal.target import Target, cluster_options
from goddard.cli.terminal.times import END, Range, parse_range
from goddard.cli.verbs.messages.execute import consume_with
from goddard.cli.verbs.messages.scanning import Scan
from goddard.cli.verbs.messages.templates import compile_template, json_fields, terminal_text
from goddard.client.consume.lite import LitePullConsumer
from goddard.client.consume.subscriptions import Expression, Sql
from goddard.client.message import ReceivedMessage
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.clock import SystemClock
from goddard.protocol.filters.sql92 import FilterSyntaxError, compile_sql

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_IDLE_MS: Final = 5_000
_POLL_MS: Final = 500
_QUEUE: Final = re.compile(r"(.+):([0-9]{1,9})")
_COLUMNS: Final = (
    *("broker", "queue", "offset", "stored", "messageId", "tags", "keys", "reconsumeTimes"),
    "body",
)

Print = Callable[[ReceivedMessage], None]
Messages = AsyncGenerator[ReceivedMessage, None]


@click.command()
@cluster_options
@topic_argument
@click.option("-r", "--range", "range_text", metavar="RANGE", help="start, end, 10:20, -10, @-1h.")
@click.option("--follow", is_flag=True, help="Then print new messages, until Ctrl-C.")
@click.option("-c", "--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--tag", metavar="TAGS", help="Only these tags, such as 'A || B'.")
@click.option("--sql", metavar="CONDITION", help="Only where properties fulfil this, as 'a > 5'.")
@click.option("--queue", metavar="BROKER:NUMBER", help="Only this queue.")
@click.option("-f", "--template", metavar="TEXT", help="How to print: %t %p %o %k %s and so on.")
@click.option(
    "-g",
    "--group",
    metavar="NAME",
    shell_complete=complete_group,
    help="Consume as a member of this group, and commit.",
)
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run a shell command for each message, with --group; it reads the body.",
)
@click.option(
    "--retries", type=click.IntRange(0), help="With --exec: retries before dead-lettering."
)
def consume(target: Target, topic: str, **options: Any) -> None:
    r"""Print messages of a topic, oldest first: all that are there, then stop.

    Ranges: start, end, 120:130 (offsets), -10 (the last 10 of each queue), @-1h:now, and
    @2026-11-18T10:00 (times, UTC). With --follow and without a range, only new messages.

    Templates are those of kcat: -f '%t %p@%o %k: %s\n'. --format json prints JSON lines, which
    'goddard produce --input json' accepts. Without a group, nothing is committed.

    --exec runs a command for each message until Ctrl-C: the body is its standard input, and
    $GODDARD_MESSAGE_ID, _KEYS, _TAGS, _TOPIC and _RETRIES say more. If it fails, the message is
    delivered again, and after the retries it is a dead letter with the reason.
    """
    _check(options)
    if options["command"] is not None:
        target.output.done(target.run(lambda _: _execute(target, topic, options)))
        return
    show = printer(target.output.format, options["template"])

    async def work(admin: "Admin") -> str | None:
        if options["group"] is not None:
            await _consume_as_member(target, topic, options, show)
            return None
        queue = await chosen_queue(admin, topic, options["queue"])
        scan = Scan(admin, topic, _range(options), _filter(options), queue=queue)
        await _print(scan.messages(follow=options["follow"]), show, options["count"])
        return scan.failure_text()

    incomplete = target.run(work)
    if incomplete is not None:
        raise FailedError(incomplete)


async def _print(
    messages: Messages,
    show: Print,
    count: int | None,
    done: Callable[[ReceivedMessage], Awaitable[None]] | None = None,
) -> None:
    """Print messages, at most ``count``; ``done`` is called after each."""
    number = 0
    async with aclosing(messages):
        async for message in messages:
            show(message)
            if done is not None:
                await done(message)
            number += 1
            if number == count:
                return


async def _execute(target: Target, topic: str, options: dict[str, Any]) -> str:
    return await consume_with(
        options["command"],
        topic,
        _filter(options),
        count=options["count"],
        retries=options["retries"],
        keywords={"group": options["group"], **target.client_keywords()},
    )


def _check(options: dict[str, Any]) -> None:
    if options["command"] is not None and options["group"] is None:
        raise WrongUsageError("--exec needs --group, whose progress is saved")
    if options["command"] is not None and options["template"] is not None:
        raise WrongUsageError("give --template or --exec, not both")
    if options["retries"] is not None and options["command"] is None:
        raise WrongUsageError("--retries has no effect without --exec")
    if options["tag"] is not None and options["sql"] is not None:
        raise WrongUsageError("give --tag or --sql, not both")
    for name, option in (("range_text", "--range"), ("queue", "--queue")):
        if options["group"] is not None and options[name] is not None:
            raise WrongUsageError(
                f"{option} has no effect with --group; 'goddard group reset' moves it"
            )
    try:
        if _range(options).end is not None and options["follow"]:
            raise WrongUsageError("--follow has no end; give --range only where to begin, as @-1h")
        _filter(options)
        if options["sql"] is not None:
            compile_sql(options["sql"])
    except FilterSyntaxError as error:
        raise WrongUsageError(
            f"--sql: {error.reason}, at character {error.position + 1}"
        ) from error
    except REPORTED as error:
        raise explained(error) from error


def _range(options: dict[str, Any]) -> Range:
    if options["range_text"] is not None:
        return parse_range(options["range_text"], SystemClock().now_ms())
    return Range(begin=END) if options["follow"] else Range()


def _filter(options: dict[str, Any]) -> Expression:
    if options["sql"] is not None:
        return Sql(options["sql"])
    tag: str | None = options["tag"]
    return tag


async def chosen_queue(admin: "Admin", topic: str, text: str | None) -> MessageQueue | None:
    """``broker:number`` as a queue of the topic; None for all queues."""
    if text is None:
        return None
    found = _QUEUE.fullmatch(text)
    if found is None:
        raise WrongUsageError(f"--queue {text!r} is not BROKER:NUMBER, such as broker-a:0")
    queue = MessageQueue(topic, found[1], int(found[2]))
    known = await admin.topic_queues(topic)
    if queue not in known:
        names = ", ".join(f"{one.broker_name}:{one.queue_id}" for one in known)
        raise WrongUsageError(f"topic {topic} has no queue {text}; it has {names}")
    return queue


async def _consume_as_member(
    target: Target, topic: str, options: dict[str, Any], show: Print
) -> None:
    """Print messages as a member of the group; each is committed when it is printed."""
    consumer = LitePullConsumer(
        options["group"],
        consume_from=ConsumeFrom.FIRST_OFFSET,
        auto_commit=False,
        **target.client_keywords(),
    )
    consumer.subscribe(topic, _filter(options))

    async def commit(message: ReceivedMessage) -> None:
        await consumer.commit({message.queue: message.queue_offset + 1})

    async with consumer:
        await _print(polled(consumer, follow=options["follow"]), show, options["count"], commit)


async def polled(consumer: LitePullConsumer, *, follow: bool) -> Messages:
    """Messages until none came for some seconds; without end if ``follow``.

    When a queue has moved to another member, which gets its messages from the committed offset on,
    the rest of its batch is left out: only messages of assigned queues can be committed.
    """
    idle_ms = 0
    while follow or idle_ms < _IDLE_MS:
        messages = await consumer.poll(_POLL_MS)
        idle_ms = 0 if messages else idle_ms + _POLL_MS
        for message in messages:
            if message.queue not in consumer.assignment():
                break
            yield message


# --- Printing -------------------------------------------------------------------------------------


def printer(format_: Format, template: str | None) -> Print:
    """Prints a message in the format or with the template; WrongUsageError if that is wrong."""
    if template is not None:
        if format_ not in (Format.TEXT, Format.WIDE):
            raise WrongUsageError(f"give --template or --format {format_}, not both")
        try:
            formatted = compile_template(template)
        except REPORTED as error:
            raise explained(error) from error
        return lambda message: _write(formatted(message))
    if format_ is Format.CSV:
        click.echo(csv_text(_COLUMNS, []), nl=False)
    return _PRINTERS[format_]


def _write(data: bytes) -> None:
    """Bytes to a pipe as they are; to a terminal without control characters."""
    if sys.stdout.isatty():
        click.echo(terminal_text(data), nl=False)
    else:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _print_body(message: ReceivedMessage) -> None:
    _write(message.body + b"\n")


def _print_line(message: ReceivedMessage) -> None:
    place = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    times = f" retry {message.reconsume_times}" if message.reconsume_times else ""
    head = (
        f"{TimeMs(message.store_timestamp_ms)} {place} {message.message_id} "
        f"tags={cell_text(message.tags)} keys={cell_text(message.keys)}{times} "
    )
    _write(head.encode() + message.body + b"\n")


def _print_json(message: ReceivedMessage) -> None:
    line = json.dumps(json_fields(message), ensure_ascii=False, separators=(",", ":"))
    click.echo(line)


def _print_yaml(message: ReceivedMessage) -> None:
    click.echo("\n".join(yaml_lines([json_fields(message)])))


def _print_csv(message: ReceivedMessage) -> None:
    fields = json_fields(message)
    values = [fields.get(name) for name in _COLUMNS]
    _, line = csv_text(_COLUMNS, [values]).split("\n", 1)
    click.echo(line, nl=False)


_PRINTERS: Final[dict[Format, Print]] = {
    Format.TEXT: _print_body,
    Format.WIDE: _print_line,
    Format.JSON: _print_json,
    Format.YAML: _print_yaml,
    Format.CSV: _print_csv,
}
