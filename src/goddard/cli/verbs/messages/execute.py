"""``goddard consume --exec``: a shell command consumes each message.

The command gets the body on standard input and the rest in environment variables. Exit code 0 means
that the message is consumed; with any other one it is delivered again later, and in the end goes to
the dead-letter queue with the exit code and the last line of standard error as its failure.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping
from typing import Any, Final

import click

from goddard.cli.render import counted
from goddard.cli.terminal.mistakes import one_line
from goddard.client.consume.push import PushConsumer
from goddard.client.consume.subscriptions import Expression
from goddard.client.listeners.listener import ConsumeContext
from goddard.client.message import ReceivedMessage
from goddard.client.values import ConsumeFrom

_MAX_ERROR_BYTES: Final = 64 * 1024


def variables(message: ReceivedMessage) -> Mapping[str, str]:
    """What the command learns of a message; properties of the message are not among it."""
    return {
        "GODDARD_TOPIC": message.topic,
        "GODDARD_MESSAGE_ID": message.message_id or "",
        "GODDARD_KEYS": " ".join(message.keys),
        "GODDARD_TAGS": message.tags or "",
        "GODDARD_RETRIES": str(message.reconsume_times),
    }


async def run_command(command: str, message: ReceivedMessage) -> None:
    """Run a shell command for a message; ChildProcessError unless it succeeds.

    It has its own session: Ctrl-C at the terminal goes to goddard alone. If this is cancelled, the
    command and the processes that it started are killed. Processes that it left running are not
    waited for when it ends.
    """
    # Files and not pipes: a command that ends without reading its input is no error, and a process
    # in the background may keep standard error open.
    with tempfile.TemporaryFile() as body, tempfile.TemporaryFile() as errors:
        body.write(message.body)
        body.seek(0)
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=body,
            stderr=errors,
            env={**os.environ, **variables(message)},
            start_new_session=True,
        )
        try:
            code = await process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        if code:
            lines = _last_bytes(errors.fileno()).decode(errors="replace").strip().splitlines()
            reason = f": {one_line(lines[-1])}" if lines else ""
            raise ChildProcessError(f"exit code {code}{reason}")


def _last_bytes(descriptor: int) -> bytes:
    """The end of a file, at most some kilobytes."""
    begin = max(0, os.fstat(descriptor).st_size - _MAX_ERROR_BYTES)
    return os.pread(descriptor, _MAX_ERROR_BYTES, begin)


async def consume_with(
    command: str,
    topic: str,
    expression: Expression,
    *,
    count: int | None,
    retries: int | None,
    keywords: Mapping[str, Any],
) -> str:
    """Consume until ``count`` messages were tried, or a signal ends it; says how it went."""
    tried = {"consumed": 0, "failed": 0}
    enough = asyncio.Event()

    async def consume(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
        if enough.is_set():
            # Until the consumer stops and cancels this call: the message is delivered again.
            await asyncio.Event().wait()
        (message,) = messages
        if retries is not None and message.reconsume_times >= retries:
            context.delay_level = -1  # the dead-letter queue
        try:
            await run_command(command, message)
        except ChildProcessError as error:
            tried["failed"] += 1
            click.echo(f"message {message.message_id}: {error}", err=True)
            raise
        else:
            tried["consumed"] += 1
        finally:
            if count is not None and sum(tried.values()) >= count:
                enough.set()

    consumer = PushConsumer(
        listener=consume, consume_from=ConsumeFrom.FIRST_OFFSET, consume_threads=1, **keywords
    )
    consumer.subscribe(topic, "*" if expression is None else expression)
    async with consumer:
        ends = [asyncio.ensure_future(enough.wait()), asyncio.ensure_future(consumer.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
    return f"{counted(tried['consumed'], 'message')} consumed, {tried['failed']} failed"
