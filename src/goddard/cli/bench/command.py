"""``goddard bench``: send to a topic, or receive from it, as fast as possible, and measure it."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import click

from goddard.cli.bench.figures import Figures, sparkline
from goddard.cli.render import counted
from goddard.cli.terminal.completion import topic_argument
from goddard.cli.terminal.groups import Group
from goddard.cli.terminal.mistakes import FailedError, one_line
from goddard.cli.terminal.seconds import Seconds
from goddard.cli.terminal.target import Target, cluster_options
from goddard.client.consume.push import PushConsumer
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.producer import Producer
from goddard.client.values import ConsumeFrom
from goddard.errors import GoddardError

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_PRODUCER_GROUP: Final = "goddard_bench"
_DEFAULT_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 5
_MAX_FAILURES: Final = 1_000
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}

_LIMITS: Final = (
    click.option("--messages", type=click.IntRange(1), help="Stop after so many messages."),
    click.option(
        "--seconds",
        type=Seconds(0.1),
        help=f"Stop after this time.  [default: {_DEFAULT_SECONDS:g}, without --messages]",
    ),
)


def _limits(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_LIMITS):
        function = option(function)
    return function


@click.group(cls=Group)
def bench() -> None:
    """Measure how fast a cluster takes and delivers messages."""


@bench.command()
@cluster_options
@topic_argument
@_limits
@click.option(
    "--size",
    type=click.IntRange(1, 4 * 1024 * 1024),
    default=128,
    show_default=True,
    help="Bytes in the body of each message.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 65_536),
    default=64,
    show_default=True,
    help="Sends that wait for their answer at the same time.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 4_096),
    default=1,
    show_default=True,
    help="Messages in each request.",
)
def produce(target: Target, topic: str, **options: Any) -> None:
    """Send messages to an existing topic.

    Latencies are those of whole requests.

    One process sends, so this measures client and brokers together. Several at the same time show
    how much the brokers can take.
    """
    figures = Figures()

    async def work(admin: "Admin") -> float:
        await admin.topic_route(topic)
        async with Producer(_PRODUCER_GROUP, **target.client_keywords()) as producer:
            sending = _Sending(producer, topic, figures, options)
            async with _stopping(options) as stop:
                return await _watch(figures, sending.run(stop), stop)

    _show(target, figures, target.run(work), "request")


class _Sending:
    """Keeps ``in_flight`` requests waiting for their answers."""

    def __init__(
        self, producer: Producer, topic: str, figures: Figures, options: dict[str, Any]
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._figures = figures
        self._batch: int = options["batch"]
        self._in_flight: int = options["in_flight"]
        self._left: float = float("inf") if options["messages"] is None else options["messages"]
        self._body = os.urandom(options["size"])

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(self._send_until(stop))

    async def _send_until(self, stop: asyncio.Event) -> None:
        figures = self._figures
        while self._left > 0 and not stop.is_set():
            count = int(min(self._batch, self._left))
            self._left -= count
            began = time.perf_counter()
            try:
                await self._send(count)
            except GoddardError as error:
                figures.fail(count, one_line(str(error)))
                if figures.failed >= _MAX_FAILURES:
                    stop.set()
            else:
                figures.add(count, count * len(self._body))
                figures.latencies.add((time.perf_counter() - began) * 1000)

    async def _send(self, count: int) -> None:
        if count == 1:
            await self._producer.send(Message(self._topic, self._body))
        else:
            await self._producer.send_batch(
                [Message(self._topic, self._body) for _ in range(count)]
            )


@bench.command()
@cluster_options
@topic_argument
@_limits
@click.option("--new", is_flag=True, help="Only messages that come from now on.")
@click.option(
    "--batch",
    type=click.IntRange(1, 1_024),
    default=32,
    show_default=True,
    help="Messages for each call of the listener, and for each pull.",
)
def consume(target: Target, topic: str, **options: Any) -> None:
    """Receive the messages of a topic.

    Uses a new group, which is deleted at the end.

    Latencies are from the producer's clock to this one's, so they mean something only with --new,
    and if the clocks agree. Without --new it also stops when no message has come for 5 seconds.
    """
    figures = Figures()
    group = f"goddard_bench_{os.getpid()}_{time.time_ns()}"

    async def work(admin: "Admin") -> float:
        await admin.topic_route(topic)
        receiving = _Receiving(figures, options, is_live=options["new"])
        consumer = PushConsumer(
            group,
            consume_from=ConsumeFrom.LAST_OFFSET if options["new"] else ConsumeFrom.FIRST_OFFSET,
            consume_batch_size=options["batch"],
            pull_batch_size=options["batch"],
            listener=receiving.receive,
            **target.client_keywords(),
        )
        consumer.subscribe(topic)
        try:
            async with _stopping(options) as stop, consumer:
                seconds = await _watch(figures, receiving.wait(stop), stop)
        finally:
            await _delete_group(admin, group)
        return seconds - receiving.idle_seconds

    _show(target, figures, target.run(work), "message")


async def _delete_group(admin: "Admin", group: str) -> None:
    for cluster in await admin.clusters():
        with contextlib.suppress(GoddardError):
            await admin.delete_group(group, cluster=cluster, remove_offsets=True)


class _Receiving:
    """Counts what the listener gets."""

    def __init__(self, figures: Figures, options: dict[str, Any], *, is_live: bool) -> None:
        self.idle_seconds = 0.0
        self._figures = figures
        self._limit: float = float("inf") if options["messages"] is None else options["messages"]
        self._is_live = is_live
        self._is_enough = asyncio.Event()
        self._last = time.perf_counter()

    async def receive(self, messages: list[ReceivedMessage], _: object) -> None:
        figures = self._figures
        self._last = time.perf_counter()
        figures.add(len(messages), sum(len(message.body) for message in messages))
        if self._is_live:
            now_ms = time.time() * 1000
            for message in messages:
                figures.latencies.add(max(0.0, now_ms - message.born_timestamp_ms))
        if figures.messages >= self._limit:
            self._is_enough.set()

    async def wait(self, stop: asyncio.Event) -> None:
        while not (stop.is_set() or self._is_enough.is_set()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._is_enough.wait()
            idle = time.perf_counter() - self._last
            if idle >= _IDLE_SECONDS and not self._is_live:
                self.idle_seconds = idle
                return


@contextlib.asynccontextmanager
async def _stopping(options: dict[str, Any]) -> AsyncIterator[asyncio.Event]:
    """An event that is set after the seconds of the options, and by Ctrl-C."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    seconds = options["seconds"]
    if seconds is None and options["messages"] is None:
        seconds = _DEFAULT_SECONDS
    timer = None if seconds is None else loop.call_later(seconds, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if timer is not None:
            timer.cancel()


async def _watch(figures: Figures, work: Awaitable[None], stop: asyncio.Event) -> float:
    """Run the work and print a line each second; how long it took."""
    began = time.perf_counter()
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=1.0)
            if not task.done():
                _print_second(figures)
    finally:
        stop.set()
        await asyncio.wait((task,))
    task.result()
    return time.perf_counter() - began


def _print_second(figures: Figures) -> None:
    second = figures.end_second()
    p99 = figures.latencies.percentile(0.99)
    parts = [
        f"{len(figures.seconds):>5} s",
        f"{second.messages:>10,}/s",
        f"{second.bytes / 1e6:>8.1f} MB/s",
    ]
    if p99 is not None:
        parts.append(f"p99 {p99:.1f} ms")
    if figures.failed:
        parts.append(f"{figures.failed} failed: {figures.last_failure}")
    if sys.stderr.isatty():
        click.echo("\r\x1b[K" + "  ".join(parts), nl=False, err=True)
    else:
        click.echo("  ".join(parts), err=True)


def _show(target: Target, figures: Figures, seconds: float, unit: str) -> None:
    if sys.stderr.isatty() and figures.seconds:
        click.echo("\r\x1b[K", nl=False, err=True)
    if not figures.messages and figures.last_failure is not None:
        raise FailedError(f"no message was sent: {figures.last_failure}")
    seconds = max(seconds, 0.001)
    latencies = figures.latencies
    fields: dict[str, Any] = {
        "messages": figures.messages,
        "seconds": round(seconds, 3),
        "messages per second": round(figures.messages / seconds),
        "MB per second": round(figures.bytes / seconds / 1e6, 3),
        "failed": figures.failed,
    }
    if latencies.count:
        for name, share in _SHARES.items():
            fields[f"{name} ms"] = _rounded(latencies.percentile(share))
        fields["max ms"] = _rounded(latencies.max_ms)
    target.output.record(fields)
    if target.output.is_text:
        rates = [second.messages for second in figures.seconds]
        if len(rates) > 1:
            click.echo(f"\nmessages in each second, at most {max(rates):,}\n{sparkline(rates)}")
        if latencies.count:
            click.echo("\n".join([f"\nlatency of a {unit}, up to", *latencies.bars()]))
    if figures.failed:
        raise FailedError(
            f"{counted(figures.failed, 'message')} failed, the last: {figures.last_failure}"
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
