"""``goddard produce``: send lines of standard input, or one message, to a topic."""

import asyncio
import contextlib
import json
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from goddard.cli.render import counted
from goddard.cli.terminal.completion import topic_argument
from goddard.cli.terminal.mistakes import FailedError, one_line
from goddard.cli.terminal.target import Target, cluster_options, parse_pairs
from goddard.cli.verbs.messages.templates import message_from_json
from goddard.client.errors import ClientError
from goddard.client.message import Message
from goddard.client.produce.producer import Producer
from goddard.client.values import SendResult
from goddard.errors import ConfigError, GoddardError

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

GROUP: Final = "goddard_produce"
_MAX_PENDING: Final = 256
_READ_BYTES: Final = 64 * 1024
_COLUMNS: Final = ("broker", "queue", "offset", "message id")

# Messages with their line numbers, or what is wrong with a line.
Batch = list[tuple[int, Message | str]]

MessageOptions = tuple[Callable[[Any], Any], ...]

MESSAGE_OPTIONS: Final[MessageOptions] = (
    click.option("-k", "--key", "keys", multiple=True, metavar="KEY", help="A key; repeatable."),
    click.option("-t", "--tag", metavar="TAG", help="The tag."),
    click.option(
        "-p",
        "--property",
        "properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="A property; repeatable.",
    ),
    click.option("--sharding-key", metavar="KEY", help="Same key, same queue."),
    click.option(
        "--delay-level", type=click.IntRange(0, 18), default=0, help="1 (1 s) to 18 (2 h)."
    ),
)


def message_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the messages to send."""
    for option in reversed(MESSAGE_OPTIONS):
        function = option(function)
    return function


def message_maker(topic: str, options: dict[str, Any]) -> Callable[[bytes], Message]:
    """Makes the message of a body with the options of the command."""
    properties = parse_pairs(options["properties"], "--property")

    def make(body: bytes) -> Message:
        return Message(
            topic,
            body,
            keys=options["keys"] or None,
            tags=options["tag"],
            delay_level=options["delay_level"],
            sharding_key=options["sharding_key"],
            properties=properties,
        )

    return make


@click.command()
@cluster_options
@topic_argument
@click.option(
    "--input",
    "kind",
    type=click.Choice(["text", "json", "whole"]),
    default="text",
    show_default=True,
    help="Each line is a body, or a JSON object; or all of it is one body.",
)
@message_options
@click.option("--results", is_flag=True, help="Print where each message is stored.")
def produce(target: Target, topic: str, **options: Any) -> None:
    """Send each line of standard input as a message; stops at the first that fails.

    With --input json a line is an object: {"body": "text", "tags": "A", "keys": ["k"],
    "properties": {"a": "1"}}; bodyBase64 for bytes. This is what 'goddard consume --format json'
    prints, so one can be piped into the other.
    """
    make = message_maker(topic, options)
    shows = options["results"] or not target.output.is_text
    if sys.stdin.isatty():
        click.echo("each line is a message; Ctrl-D ends", err=True)

    async def work(admin: "Admin") -> tuple[int, str | None]:
        await admin.topic_route(topic)
        # The defaults of RocketMQ's producer, but without automatic topics: a misspelt name is an
        # error here.
        async with Producer(GROUP, **target.client_keywords()) as producer:
            sending = _Sending(producer, target, shows=shows)
            async with aclosing(_messages(topic, options["kind"], make)) as batches:
                await sending.send_all(batches)
            return sending.sent, sending.failure

    sent, failure = target.run(work)
    if failure is not None:
        raise FailedError(f"{failure}; {counted(sent, 'message')} sent before")
    target.output.done(f"{counted(sent, 'message')} sent to {topic}")


class _Sending:
    """Sends up to ``_MAX_PENDING`` messages at a time; results are printed in order."""

    def __init__(self, producer: Producer, target: Target, *, shows: bool) -> None:
        self.sent = 0
        self.failure: str | None = None
        self._producer = producer
        self._target = target
        self._shows = shows
        self._pending: deque[tuple[int, asyncio.Task[SendResult]]] = deque()

    async def send_all(self, batches: AsyncGenerator[Batch, None]) -> None:
        while (batch := await self._next(batches)) is not None:
            for line, message in batch:
                if isinstance(message, str):
                    await self._finish(0)
                    self._fail(line, message)
                else:
                    send = self._producer.send(message, key=message.sharding_key)
                    self._pending.append((line, asyncio.create_task(send)))
                    await self._finish(_MAX_PENDING)
                if self.failure:
                    break
        await self._finish(0)

    async def _next(self, batches: AsyncGenerator[Batch, None]) -> Batch | None:
        """The next messages; while they are awaited, results are printed. None after a failure."""
        reading = asyncio.ensure_future(anext(batches, None))
        try:
            while self._pending and not self.failure and not reading.done():
                oldest = self._pending[0][1]
                await asyncio.wait((reading, oldest), return_when=asyncio.FIRST_COMPLETED)
                if oldest.done():
                    await self._finish(len(self._pending) - 1)
            return None if self.failure else await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _finish(self, allowed: int) -> None:
        """Wait for the oldest sends until at most so many are pending."""
        while len(self._pending) > allowed:
            line, task = self._pending.popleft()
            try:
                result = await task
            except GoddardError as error:
                self._fail(line, str(error))
            else:
                self.sent += 1
                if self._shows:
                    self._show(result)

    def _fail(self, line: int, reason: str) -> None:
        self.failure = self.failure or one_line(f"line {line}: {reason}")

    def _show(self, result: SendResult) -> None:
        queue = result.queue
        values = (queue.broker_name, queue.queue_id, result.queue_offset, result.message_id)
        self._target.output.next_row(_COLUMNS, values, is_first=self.sent == 1)


async def _messages(
    topic: str, kind: str, make: Callable[[bytes], Message]
) -> AsyncGenerator[Batch, None]:
    """The messages of standard input, those of each read together."""
    # Without the buffer, whose lock a waiting thread would hold when the program ends.
    stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    if kind == "whole":
        parts = []
        while data := await _read(stream):
            parts.append(data)
        yield [(1, make(b"".join(parts)))]
        return
    number = 0
    rest = b""
    while True:
        data = await _read(stream)
        *lines, rest = (rest + data).split(b"\n")
        if not data:
            lines, rest = [rest], b""
        batch: Batch = []
        for line in lines:
            number += 1
            body = line.removesuffix(b"\r")
            if body:  # brokers refuse empty messages
                batch.append((number, make(body) if kind == "text" else _from_json(topic, body)))
        yield batch
        if not data:
            return


async def _read(stream: BinaryIO) -> bytes:
    """The next bytes; empty at the end.

    Each read has a daemon thread: nothing can interrupt a read of a terminal or a pipe, and the
    program must be able to end before it returns.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        data: bytes | OSError
        try:
            data = stream.read(_READ_BYTES)
        except OSError as error:
            data = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, data)

    def finish(data: bytes | OSError) -> None:
        if result.done():
            return  # cancelled
        if isinstance(data, OSError):
            result.set_exception(data)
        else:
            result.set_result(data)

    threading.Thread(target=read, name="goddard-produce-input", daemon=True).start()
    return await result


def _from_json(topic: str, line: bytes) -> Message | str:
    try:
        return message_from_json(topic, json.loads(line))
    except ValueError as error:
        return f"not JSON: {error}"
    except (ConfigError, ClientError) as error:
        return str(error)


async def send_one(target: Target, message: Message) -> SendResult:
    """Send one message."""
    async with Producer(GROUP, **target.client_keywords()) as producer:
        return await producer.send(message, key=message.sharding_key)
