"""``goddard store``: inspect, verify and repair a message store on disk.

Everything except ``repair`` is read-only, takes no lock and works while a broker runs. Exit codes:
0 success, 1 damage or an error, 2 wrong usage.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import click

from goddard.cli.render import (
    bytes_text,
    print_json,
    print_json_line,
    print_table,
    progress_bar,
    time_text,
)
from goddard.cli.store_items import has_topic, index_entries, queue_entries, records
from goddard.errors import StoreError
from goddard.store.check.compare import compare as compare_stores
from goddard.store.check.damage import Damage, Report
from goddard.store.check.inspect import IndexView, StoreView
from goddard.store.check.repair import RepairReport, refusal
from goddard.store.check.repair import repair as repair_store
from goddard.store.check.verify import verify as verify_store
from goddard.store.recovery.scan import FileEnd, chain_end

_DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
# At most this many stores are suggested if a parent directory of stores is given.
_MAX_HINTS = 5


class _RefusedError(click.ClickException):
    """The directory is not a message store."""

    exit_code = 2


class _StoreGroup(click.Group):
    """Reports errors of the system in one line (no permission, a broken disk)."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise  # the reader of the pipe has closed it
        except OSError as error:
            raise click.ClickException(f"{error.filename or ''}: {error.strerror}") from error


@click.group(cls=_StoreGroup, context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Inspect, verify and repair a message store on disk, written by Goddard or RocketMQ.

    DIRECTORY is the root of the store (storePathRootDir), which contains commitlog/.
    """


def _open(directory: Path) -> StoreView:
    try:
        return StoreView(directory)
    except StoreError as error:
        inner = _stores_below(directory)
        hint = f"; did you mean {' or '.join(map(str, inner))}?" if inner else ""
        raise _RefusedError(f"{error}{hint}") from error


def _stores_below(directory: Path) -> list[Path]:
    """Stores one or two levels below, for example of the brokers of a cluster."""
    found = (path for depth in ("*", "*/*") for path in directory.glob(f"{depth}/commitlog"))
    return sorted(path.parent for path in islice(found, _MAX_HINTS) if path.is_dir())


# --- compare --------------------------------------------------------------------------------------


@store.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@_JSON
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare the logs of two stores, as of master and slave.

    Exit code 1 if a byte that both have differs, or if one log is longer.
    """
    found = compare_stores(_open(first), _open(second))
    difference = found.difference
    if as_json:
        print_json(
            {
                "isEqual": found.is_equal,
                "first": found.first._asdict(),
                "second": found.second._asdict(),
                "compared": found.compared._asdict(),
                "difference": None if difference is None else difference._asdict(),
            }
        )
    else:
        for directory, bounds in ((first, found.first), (second, found.second)):
            click.echo(f"{directory}: offsets {bounds.min_offset} to {bounds.end_offset}")
        low, high = found.compared
        if difference is not None:
            click.echo(
                f"the logs are equal from {low} to {difference.physical_offset}, and differ in the "
                f"record at {difference.record_offset}"
            )
        elif low == high and not found.is_equal:
            click.echo("the logs have nothing in common")
        else:
            click.echo(f"the logs are equal from {low} to {high}")
            more = found.first.end_offset - found.second.end_offset
            if more:
                longer = first if more > 0 else second
                click.echo(f"{longer} has {bytes_text(abs(more))} more, from {high} on")
    sys.exit(0 if found.is_equal else 1)


# --- info -----------------------------------------------------------------------------------------


@store.command()
@_DIRECTORY
@_JSON
def info(directory: Path, as_json: bool) -> None:
    """Show files, offsets, topics and queue bounds, checkpoint, abort file and lock."""
    view = _open(directory)
    facts = _facts(view)
    if as_json:
        print_json(facts)
        return
    state = facts["state"]
    lock = "free" if state["lockHolder"] is None else f"held by process {state['lockHolder']}"
    abort = "present (running, or not stopped cleanly)" if state["abort"] else "none"
    click.echo(f"{directory}: lock {lock}; abort marker {abort}")
    checkpoint = facts["checkpoint"]
    if checkpoint is not None:
        times = [time_text(checkpoint[name]) for name in ("physicalMs", "logicalMs", "indexMs")]
        click.echo("checkpoint: log {}, queues {}, index {}".format(*times))
    log = facts["log"]
    print_table(
        f"Commit log: offsets {log['minOffset']} to {log['maxOffset']}, "
        f"{bytes_text(log['maxOffset'] - log['minOffset'])}",
        ("file", "from offset", "used", "size"),
        [
            (file["name"], file["start"], bytes_text(file["used"]), bytes_text(file["size"]))
            for file in log["files"]
        ],
    )
    print_table(
        f"Queues: {len(facts['queues'])}",
        ("topic", "queue", "min offset", "max offset", "messages", "files"),
        [
            (
                queue["topic"],
                queue["queueId"],
                queue["minOffset"],
                queue["maxOffset"],
                queue["maxOffset"] - queue["minOffset"],
                queue["files"],
            )
            for queue in facts["queues"]
        ],
    )
    print_table(
        f"Key index: {len(facts['index'])} files",
        ("file", "entries", "capacity", "from", "to", "last offset"),
        [
            (
                file["name"],
                file["entries"],
                "?" if file["capacity"] is None else file["capacity"],
                time_text(file["beginMs"]),
                time_text(file["endMs"]),
                file["endOffset"],
            )
            for file in facts["index"]
        ],
    )


def _facts(view: StoreView) -> dict[str, Any]:
    log_files = []
    minimum = maximum = None
    is_open = False
    for file in view.log_files():
        used, end = chain_end(file.map()) if file.size_bytes else (0, FileEnd.OPEN)
        minimum = file.start if minimum is None else minimum
        if not is_open:
            maximum = file.end if end is FileEnd.FILLED else file.start + used
            is_open = end is FileEnd.OPEN
        log_files.append(
            {"name": file.path.name, "start": file.start, "used": used, "size": file.size_bytes}
        )
    checkpoint = view.checkpoint()
    queues = []
    for queue in view.queues():
        low, high = queue.bounds(minimum or 0)
        queues.append(
            {
                "topic": queue.topic,
                "queueId": queue.queue_id,
                "minOffset": low,
                "maxOffset": high,
                "files": len(queue.files),
            }
        )
    return {
        "directory": str(view.directory),
        "state": {"abort": view.has_abort, "lockHolder": view.lock_holder()},
        "checkpoint": checkpoint
        and {
            "physicalMs": checkpoint.physical_ms,
            "logicalMs": checkpoint.logical_ms,
            "indexMs": checkpoint.index_ms,
            "masterFlushedOffset": checkpoint.master_flushed_offset,
            "confirmOffset": checkpoint.confirm_offset,
        },
        "log": {"minOffset": minimum or 0, "maxOffset": maximum or 0, "files": log_files},
        "queues": queues,
        "index": [_index_facts(IndexView(file)) for file in view.index_files()],
    }


def _index_facts(index: IndexView) -> dict[str, Any]:
    header, slots = index.header, index.slot_count
    return {
        "name": index.file.path.name,
        "entries": index.entry_count,
        "slots": slots,
        "capacity": None if slots is None else index.capacity(slots),
        "beginMs": header.begin_ms,
        "endMs": header.end_ms,
        "beginOffset": header.begin_physical_offset,
        "endOffset": header.end_physical_offset,
    }


# --- verify ---------------------------------------------------------------------------------------


@store.command()
@_DIRECTORY
@_JSON
@click.option("--no-crc", is_flag=True, help="Do not check the CRC of bodies; twice as fast.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Print at most this many damages.",
)
def verify(directory: Path, as_json: bool, no_crc: bool, limit: int) -> None:
    """Check every record, queue entry and index entry. Never writes; a broker may be running.

    The exit code is 0 without damage and 1 with damage. Each damage is printed with its file, its
    position in bytes, its kind, and what to do.
    """
    view = _open(directory)
    printed = 0

    def show(damage: Damage) -> None:
        nonlocal printed
        printed += 1
        if printed <= limit:
            _print_damage(view, damage)

    with progress_bar("verifying", shown=not as_json) as on_progress:
        report = verify_store(
            view,
            check_crc=not no_crc,
            on_damage=None if as_json else show,
            on_progress=on_progress,
        )
    if as_json:
        print_json(_report_json(view, report))
    else:
        if printed > limit:
            click.echo(f"... and {printed - limit} more; --limit shows them")
        _print_summary(report)
    sys.exit(0 if report.is_clean else 1)


def _where(view: StoreView, damage: Damage) -> str:
    path = damage.path
    return str(path.relative_to(view.directory) if view.directory in path.parents else path)


def _print_damage(view: StoreView, damage: Damage) -> None:
    word, colour = ("notice", "yellow") if damage.is_notice else ("DAMAGE", "red")
    at = f" at byte {damage.position}" if damage.length_bytes else ""
    offset = "" if damage.physical_offset is None else f" (log offset {damage.physical_offset})"
    click.echo(
        f"{click.style(word, fg=colour)} {damage.kind.value}: {_where(view, damage)}{at}{offset}"
    )
    click.echo(f"    {damage.detail}")
    click.echo(f"    what to do: {damage.remedy}")


def _print_summary(report: Report) -> None:
    speed = report.log_bytes / report.seconds if report.seconds else 0.0
    click.echo(
        f"{report.records} records in {report.log_files} files ({bytes_text(report.log_bytes)}), "
        f"{report.queues} queues, {report.index_entries} index entries: "
        f"{report.seconds:.1f} s, {bytes_text(int(speed))}/s"
    )
    if report.is_running:
        click.echo("a broker is running: data that it wrote meanwhile was not checked")
    elif report.is_unclean:
        click.echo("the last broker did not stop cleanly; the next start runs a recovery")
    if report.is_clean:
        notices = f" ({report.notice_count} notices)" if report.notice_count else ""
        click.echo(click.style("no damage found", fg="green") + notices)
    else:
        count = report.damage_count
        click.echo(click.style(f"{count} damage{'s' if count > 1 else ''} found", fg="red"))


def _report_json(view: StoreView, report: Report) -> dict[str, Any]:
    return {
        "clean": report.is_clean,
        "running": report.is_running,
        "unclean": report.is_unclean,
        "records": report.records,
        "logFiles": report.log_files,
        "logBytes": report.log_bytes,
        "minOffset": report.min_physical_offset,
        "maxOffset": report.max_physical_offset,
        "queues": report.queues,
        "queueEntries": report.queue_entries,
        "indexFiles": report.index_files,
        "indexEntries": report.index_entries,
        "seconds": round(report.seconds, 3),
        "damageCount": report.damage_count,
        "noticeCount": report.notice_count,
        "damages": [
            {
                "kind": damage.kind.value,
                "notice": damage.is_notice,
                "file": _where(view, damage),
                "position": damage.position,
                "length": damage.length_bytes,
                "physicalOffset": damage.physical_offset,
                "detail": damage.detail,
                "whatToDo": damage.remedy,
            }
            for damage in report.damages
        ],
    }


# --- dump -----------------------------------------------------------------------------------------


@store.command()
@_DIRECTORY
@_JSON
@click.option(
    "--what",
    type=click.Choice(["records", "queue", "index"]),
    default="records",
    show_default=True,
    help="Records of the log, entries of consume queues, or entries of the key index.",
)
@click.option("--topic", help="Only this topic.")
@click.option("--queue", type=int, help="Only this queue id.")
@click.option("--from", "first", type=int, default=0, help="Start at this offset (or entry).")
@click.option("--to", "end", type=int, help="End before this offset (or entry).")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="List at most this many; 0: all.",
)
@click.option(
    "--body",
    type=click.Choice(["none", "text", "hex"]),
    default="none",
    show_default=True,
    help="How to show bodies, which are decompressed.",
)
def dump(
    directory: Path,
    as_json: bool,
    what: str,
    topic: str | None,
    queue: int | None,
    first: int,
    end: int | None,
    limit: int,
    body: str,
) -> None:
    """List records, queue entries or index entries.

    --from and --to are log offsets for records, queue offsets for queue entries, and entry numbers
    for index entries. With --json, prints one object per line.
    """
    view = _open(directory)
    stop = 1 << 63 if end is None else end
    sources: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "records": lambda: records(view, topic, queue, first, stop, body),
        "queue": lambda: queue_entries(view, topic, queue, first, stop),
        "index": lambda: index_entries(view, first, stop),
    }
    if topic is not None and not has_topic(view, topic):
        raise click.ClickException(f"{directory} has no topic {topic}")
    items = sources[what]()
    for item in islice(items, limit or None):
        if as_json:
            print_json_line(item)
        else:
            _print_item(item)


def _print_item(item: dict[str, Any]) -> None:
    for number, (name, value) in enumerate(item.items()):
        text = str(value)
        if isinstance(value, dict):
            text = ", ".join(f"{key}={each}" for key, each in value.items())
        elif name.endswith("Ms") and isinstance(value, int):
            text = time_text(value)
        click.echo(f"{'' if number == 0 else '    '}{name}: {text}")


# --- repair ---------------------------------------------------------------------------------------


@store.command()
@_DIRECTORY
@_JSON
@click.option(
    "--copy-to",
    type=click.Path(path_type=Path),
    help="A new or empty directory for a full copy of the store; required with --yes.",
)
@click.option("--yes", is_flag=True, help="Repair. Without this, only print what would be done.")
@click.option(
    "--cut-corrupt",
    is_flag=True,
    help="Cut the log at damage in its middle; move the rest to commitlog.cut/.",
)
@click.option(
    "--segment-bytes",
    type=click.IntRange(min=1024),
    help="The size of the log's files (mappedFileSizeCommitLog), if the only file is truncated."
    "  [default: the size of the other files, or 1 GiB]",
)
def repair(
    directory: Path,
    as_json: bool,
    copy_to: Path | None,
    yes: bool,
    cut_corrupt: bool,
    segment_bytes: int | None,
) -> None:
    """Copy a stopped store, cut an incomplete tail, and rebuild queues and index from the log.

    Without --yes, print the damage and what would be done, and change nothing; the exit code is 0,
    or 1 if a repair would be refused.
    """
    view = _open(directory)
    if not yes:
        _announce_repair(
            view, copy_to, as_json=as_json, cut_corrupt=cut_corrupt, segment_bytes=segment_bytes
        )
    if copy_to is None:
        raise click.UsageError("--yes needs --copy-to, a directory for a full copy of the store")
    try:
        with progress_bar("copying", shown=not as_json) as on_progress:
            report = repair_store(
                view,
                copy_to,
                cut_corrupt=cut_corrupt,
                segment_bytes=segment_bytes,
                on_progress=on_progress,
            )
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    _print_repair(report, as_json=as_json)


def _announce_repair(
    view: StoreView,
    copy_to: Path | None,
    *,
    as_json: bool,
    cut_corrupt: bool,
    segment_bytes: int | None,
) -> NoReturn:
    """Print what a repair would do, or why it would be refused."""
    holder = view.lock_holder()
    with progress_bar("verifying", shown=not as_json) as on_progress:
        report = verify_store(view, on_progress=on_progress)
    refused = refusal(view, report, cut_corrupt=cut_corrupt, segment_bytes=segment_bytes)
    steps = [
        f"copy {view.directory} to {copy_to or 'the directory given with --copy-to'}",
        "cut the log at its first damage, and move the rest to commitlog.cut/"
        if cut_corrupt
        else "cut an incomplete tail of the log",
        "remove consumequeue/ and index/ and rebuild them from the log",
    ]
    if as_json:
        print_json(
            {
                **_report_json(view, report),
                "lockHolder": holder,
                "steps": steps,
                "refusal": None if refused is None else str(refused),
            }
        )
    else:
        for damage in report.damages:
            _print_damage(view, damage)
        _print_summary(report)
        click.echo("nothing was changed; with --yes, this command would")
        for step in steps:
            click.echo(f"  - {step}")
        if refused is not None:
            click.echo(f"but it would be refused: {refused}")
        if holder is not None:
            click.echo(f"but process {holder} holds the store's lock: stop the broker first")
    sys.exit(1 if refused is not None or holder is not None else 0)


def _print_repair(report: RepairReport, *, as_json: bool) -> None:
    recovery = report.recovery
    if as_json:
        print_json(
            {
                "copy": str(report.copy),
                "copiedBytes": report.copied_bytes,
                "grownFile": None if report.grown is None else str(report.grown.path),
                "endOffset": recovery.end_offset,
                "records": recovery.records,
                "dispatched": recovery.dispatched,
                "cutBytes": recovery.cut_bytes,
                "cutFiles": [str(path) for path in recovery.cut_files],
                "findings": [
                    {
                        "file": str(each.path),
                        "physicalOffset": each.physical_offset,
                        "detail": each.text,
                    }
                    for each in recovery.findings
                ],
            }
        )
        return
    click.echo(f"copied {bytes_text(report.copied_bytes)} to {report.copy}")
    if report.grown is not None:
        click.echo(
            f"extended {report.grown.path} to its full size of {report.grown.size_bytes} bytes"
        )
    for finding in recovery.findings:
        click.echo(f"{finding.path} at log offset {finding.physical_offset}: {finding.text}")
    if recovery.cut_bytes:
        files = ", ".join(str(path) for path in recovery.cut_files)
        click.echo(f"cut {recovery.cut_bytes} bytes from the log; they are in {files}")
    click.echo(
        f"rebuilt queues and index from {recovery.dispatched} records; "
        f"the log ends at {recovery.end_offset}"
    )
