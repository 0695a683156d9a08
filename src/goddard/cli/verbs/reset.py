"""``goddard group reset``: where a group continues, with a preview of each queue.

``plan`` is pure: it says for each queue what is skipped and what is consumed again.
"""

import asyncio
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from goddard.cli.render import counted
from goddard.cli.terminal.completion import complete_topic, group_argument
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError, explained
from goddard.cli.terminal.output import Table
from goddard.cli.terminal.target import Target, cluster_options, confirm, yes_option
from goddard.cli.terminal.times import parse_time
from goddard.cli.verbs.group_state import online_consumers, progress_of
from goddard.client.values import MessageQueue
from goddard.protocol.names import is_retry_topic

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin


class QueueState(NamedTuple):
    """The ends of a queue and the offset of the group; None if it has none."""

    min_offset: int
    max_offset: int
    committed: int | None


class Move(NamedTuple):
    """What a reset does to one queue; ``before`` is None if the group had no offset."""

    queue: MessageQueue
    before: int | None
    after: int
    skipped: int
    repeated: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where to continue: exactly one of the fields is given.

    ``offsets`` has the offsets of a file or of a time; queues without one are left alone.
    """

    to: str | None = None
    shift: int | None = None
    offsets: Mapping[MessageQueue, int] | None = None


def plan(states: Mapping[MessageQueue, QueueState], wanted: Wanted) -> list[Move]:
    """The moves of all queues, sorted; offsets are kept within the queue."""
    moves = []
    for queue, state in sorted(states.items()):
        offset = _offset(queue, state, wanted)
        if offset is None:
            continue
        after = min(max(offset, state.min_offset), state.max_offset)
        # A group without an offset would begin at the end, or at the start of a young queue.
        before = state.committed
        moved = 0 if before is None else after - max(before, state.min_offset)
        moves.append(Move(queue, before, after, max(0, moved), max(0, -moved)))
    return moves


def _offset(queue: MessageQueue, state: QueueState, wanted: Wanted) -> int | None:
    if wanted.offsets is not None:
        return wanted.offsets.get(queue)
    if wanted.shift is not None:
        begin = state.max_offset if state.committed is None else state.committed
        return begin + wanted.shift
    if wanted.to == "earliest":
        return state.min_offset
    if wanted.to == "latest":
        return state.max_offset
    assert wanted.to is not None
    return int(wanted.to)


def read_offsets(text: str, topic: str) -> dict[MessageQueue, int]:
    """``broker,queue,offset`` lines; a header names the columns, others are ignored.

    The output of ``goddard group lag --format csv`` has a header with ``consumedTo``.
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    header = ["broker", "queue", "offset"]
    if rows and not rows[0][-1].strip().lstrip("-").isdigit() and "broker" in rows[0]:
        header, rows = rows[0], rows[1:]
    offset_column = "offset" if "offset" in header else "consumedTo"
    found: dict[MessageQueue, int] = {}
    for number, row in enumerate(rows, start=1):
        values = dict(zip(header, (cell.strip() for cell in row), strict=False))
        if values.get("topic", topic) != topic:
            continue
        try:
            queue = MessageQueue(topic, values["broker"], int(values["queue"]))
            found[queue] = int(values[offset_column])
        except (KeyError, ValueError):
            raise WrongUsageError(
                f"--to-file: row {number} is not broker,queue,offset: {','.join(row)}"
            ) from None
    return found


def _offsets_of_file(path: Path, topic: str) -> dict[MessageQueue, int]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WrongUsageError(f"--to-file: {path} is not UTF-8 text") from error
    except OSError as error:
        raise explained(error) from error
    return read_offsets(text, topic)


def check_queues(offsets: Iterable[MessageQueue], known: Iterable[MessageQueue]) -> None:
    """WrongUsageError names the first queue of a file that does not exist."""
    unknown = sorted(set(offsets).difference(known))
    if unknown:
        topic, broker_name, queue_id = unknown[0]
        raise WrongUsageError(f"--to-file: {topic} has no queue {broker_name}:{queue_id}")


@click.command()
@cluster_options
@group_argument
@click.option("--topic", metavar="NAME", shell_complete=complete_topic, help="Only this topic.")
@click.option("--to", metavar="earliest|latest|OFFSET", help="The start, the end, or an offset.")
@click.option("--to-time", metavar="TIME", help="What was stored since: -1h, 2026-11-18T10:30.")
@click.option("--shift", type=int, metavar="COUNT", help="So many messages on; negative: back.")
@click.option(
    "--to-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="broker,queue,offset lines, or the output of 'group lag --format csv'.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@yes_option
def reset(target: Target, group: str, **options: Any) -> None:
    """Change the offsets of a group; shows the effect first.

    Shows each queue, then asks.

    "skipped" messages will not be consumed, "repeated" ones are consumed again. Offsets beyond the
    ends of a queue become its ends.
    """
    _check(options)
    path = options["to_file"]
    of_file = _offsets_of_file(path, options["topic"]) if path is not None else None

    async def look(admin: "Admin") -> list[Move]:
        topics = await _topics(admin, group, options["topic"])
        moves: list[Move] = []
        for topic in topics:
            states = await _states(admin, group, topic)
            moves += plan(states, await _wanted(admin, topic, list(states), options, of_file))
        return moves

    moves = target.run(look)
    _show(target, moves)
    if options["dry_run"] or not moves:
        return
    skipped = sum(move.skipped for move in moves)
    repeated = sum(move.repeated for move in moves)
    effect = f"{counted(skipped, 'message')} skipped, {repeated} repeated"
    confirm(f"the offsets of group {group} will be reset: {effect}", yes=options["yes"])

    async def work(admin: "Admin") -> None:
        await admin.reset_offsets(group, {move.queue: move.after for move in moves})

    target.run(work)
    target.output.done(f"group {group} is reset: {effect}")


def _check(options: Mapping[str, Any]) -> None:
    given = [name for name in ("to", "to_time", "shift", "to_file") if options[name] is not None]
    if len(given) != 1:
        raise WrongUsageError("give exactly one of --to, --to-time, --shift and --to-file")
    to = options["to"]
    if to is not None and to not in ("earliest", "latest") and not to.isdecimal():
        raise WrongUsageError(f"--to is earliest, latest or an offset, not {to!r}")
    if options["to_file"] is not None and options["topic"] is None:
        raise WrongUsageError("--to-file needs --topic")
    if to is not None and to.isdecimal() and options["topic"] is None:
        raise WrongUsageError("--to with an offset needs --topic")


async def _topics(admin: "Admin", group: str, topic: str | None) -> list[str]:
    """The topic, or all topics that the group has offsets of or is subscribed to."""
    if topic is not None:
        await admin.topic_route(topic)
        return [topic]
    known = {queue.topic for queue in (await progress_of(admin, group)).queues}
    online = await online_consumers(admin, group)
    known.update(online.subscription_table if online is not None else ())
    found = sorted(name for name in known if not is_retry_topic(name))
    if not found:
        raise FailedError(f"group {group} has no offsets and no online consumers; give --topic")
    return found


async def _states(admin: "Admin", group: str, topic: str) -> dict[MessageQueue, QueueState]:
    stats = await admin.topic_stats(topic)
    queues = list(stats.queues)
    committed = await asyncio.gather(*(admin.consumer_offset(group, queue) for queue in queues))
    return {
        queue: QueueState(ends.min_offset, ends.max_offset, offset)
        for (queue, ends), offset in zip(stats.queues.items(), committed, strict=True)
    }


async def _wanted(
    admin: "Admin",
    topic: str,
    queues: Sequence[MessageQueue],
    options: Mapping[str, Any],
    of_file: Mapping[MessageQueue, int] | None,
) -> Wanted:
    if options["to_time"] is not None:
        time_ms = parse_time(options["to_time"], admin.clock.now_ms())
        offsets = await asyncio.gather(*(admin.search_offset(queue, time_ms) for queue in queues))
        return Wanted(offsets=dict(zip(queues, offsets, strict=True)))
    if of_file is not None:
        check_queues(of_file, queues)
        return Wanted(offsets=of_file)
    return Wanted(to=options["to"], shift=options["shift"])


def _show(target: Target, moves: Sequence[Move]) -> None:
    rows = [
        (
            move.queue.topic,
            move.queue.broker_name,
            move.queue.queue_id,
            move.before,
            move.after,
            move.skipped,
            move.repeated,
        )
        for move in moves
    ]
    columns = ("topic", "broker", "queue", "from", "to", "skipped", "repeated")
    target.output.table(Table(columns, rows, empty="no queue is named; nothing to reset"))
