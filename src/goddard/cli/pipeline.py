"""``goddard pipeline``: run, validate and inspect job files.

Spark is imported only by commands that use it, so that validating a file takes a fraction of a
second.
"""

import contextlib
import importlib
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from goddard.cli.render import print_json, print_table
from goddard.cli.terminal.groups import HELP_OPTIONS
from goddard.errors import ConfigError, GoddardError
from goddard.extras import missing_extra, require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from goddard.pipelines.job import Job, Sink
    from goddard.pipelines.monitoring import Progress

_SHOWN_BATCHES: Final = 10
_LAKE: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
_OUTPUT_MODES: Final = {
    "append": "each window is written once, {delay} after its end",
    "update": "windows are written when they change, and dropped {delay} after their end",
    "complete": "all windows are written with each batch, and never dropped",
}


@click.group(context_settings=HELP_OPTIONS)
def pipeline() -> None:
    """Write topics to tables with Spark: job files, and pipelines that come with Goddard."""


_job = click.argument("job", metavar="FILE|NAME")
_changes = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Replace a value of the job file, as in --set sink.path=tables/x.",
)
_name_servers = click.option(
    "--name-servers", "-n", metavar="HOST:PORT", help="Short for --set source.nameServers=..."
)
_master = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="A Spark master, such as spark://host:7077.",
)
_settings = click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."
)
_spark_log = click.option(
    "--spark-log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file for Spark's own log, which is discarded by default.",
)


@pipeline.command()
@_job
@_changes
@_name_servers
@_master
@_settings
@_spark_log
@click.option("--from", "start", metavar="TIME", help="Back-fill: messages stored from here ...")
@click.option("--to", "end", metavar="TIME", help="... to here (not included).")
def run(
    job: str,
    changes: tuple[str, ...],
    name_servers: str | None,
    master: str,
    settings: tuple[str, ...],
    spark_log: Path | None,
    start: str | None,
    end: str | None,
) -> None:
    """Run a pipeline until all messages are read or, with a trigger like "10 seconds", until
    Ctrl-C.

    With --from or --to, it runs once, as a batch over the messages stored in that time; the
    position of the stream is unchanged. TIME is like 2026-01-31T12:00 (UTC without a time zone), or
    in milliseconds since 1970.
    """
    with _errors_in_one_line():
        loaded = _load(job, changes, name_servers)
        start_ms, end_ms = _time_ms("--from", start), _time_ms("--to", end)
        if start_ms is not None and end_ms is not None and end_ms <= start_ms:
            raise ConfigError(f"--to {end} is not after --from {start}")
        _check_code(loaded)
        is_batch = start_ms is not None or end_ms is not None or not loaded.source.is_stream
        checkpoint: Any = _pipelines("checkpoint")
        stopped_by = 0
        what = (
            checkpoint.back_fill_name(loaded, start_ms, end_ms) if is_batch else checkpoint.STREAM
        )
        with _lock(loaded, what, settings) as is_held:
            with _quiet_retries():
                _pipelines("status").check_source(loaded)
            with (
                _session(loaded, master, settings, spark_log) as spark,
                _ProgressDisplay(loaded.name) as display,
            ):
                runner: Any = importlib.import_module("goddard.pipelines.runner")
                prepared = runner.Pipeline(loaded, spark, is_held=is_held)
                if is_batch:
                    prepared.back_fill(start_ms, end_ms, display.report)
                else:
                    with stop_on_signals() as stop:
                        prepared.run(display.report, stop)
                    if loaded.run.trigger == "availableNow" and not prepared.has_read_all:
                        stopped_by = stop.number
        display.close(loaded, prepared.summary)
        if stopped_by:
            # The exit code must differ from that of a complete run.
            click.echo(
                "stopped before all messages were read; the next run continues from here", err=True
            )
            sys.exit(128 + stopped_by)


@pipeline.command()
@_job
@_changes
@_name_servers
@click.option("--explain", is_flag=True, help="Start Spark and show its execution plan, too.")
def plan(job: str, changes: tuple[str, ...], name_servers: str | None, explain: bool) -> None:
    """Show the steps of a pipeline without running it."""
    with _errors_in_one_line():
        loaded = _load(job, changes, name_servers)
        _check_code(loaded)
        print_table(loaded.name, ("step", "what"), _steps(loaded))
        _show_notes(loaded)
        if explain:
            with _session(loaded, "local[1]", (), None) as spark:
                runner: Any = importlib.import_module("goddard.pipelines.runner")
                prepared = runner.Pipeline(loaded, spark)
                prepared.valid_frame(prepared.messages()).explain("formatted")


@pipeline.command()
@_job
@_changes
@_name_servers
@click.option(
    "--sdp",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder for a project of Spark Declarative Pipelines.",
)
def export(job: str, changes: tuple[str, ...], name_servers: str | None, folder: Path) -> None:
    """Write a pipeline as a project of Spark Declarative Pipelines, for spark-pipelines run."""
    with _errors_in_one_line():
        left_out = _pipelines("sdp.export").export(job, folder, _values(changes, name_servers))
    for note in left_out:
        click.echo(f"left out: {note}")
    click.echo(f"{folder} is written; run it there: spark-pipelines run")


@pipeline.command()
@_job
@_changes
@_name_servers
def validate(job: str, changes: tuple[str, ...], name_servers: str | None) -> None:
    """Validate a job file, without Spark and without a cluster."""
    with _errors_in_one_line():
        loaded = _load(job, changes, name_servers)
        _check_code(loaded)
        click.echo(f"{loaded.name}: valid")
        _show_notes(loaded)


@pipeline.command("list")
def list_builtin() -> None:
    """Show the pipelines that come with Goddard."""
    with _errors_in_one_line():
        builtin: Any = _pipelines("builtin")
        rows = [(name, builtin.find_job(name).description) for name in builtin.builtin_names()]
    print_table("", ("name", "what it does"), rows)
    click.echo("Run one with: goddard pipeline run NAME -n HOST:PORT")


@pipeline.command()
@_job
@_changes
@_name_servers
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(job: str, changes: tuple[str, ...], name_servers: str | None, as_json: bool) -> None:
    """Show the position and the lag of a pipeline in every queue."""
    with _errors_in_one_line(), _quiet_retries():
        loaded = _load(job, changes, name_servers)
        found = _pipelines("status").job_status(loaded)
    if as_json:
        print_json(
            {
                "job": loaded.name,
                "by": found.by,
                "lastBatch": found.last_batch,
                "lag": found.lag,
                "queues": [
                    {
                        "topic": queue.topic,
                        "brokerName": queue.broker_name,
                        "queueId": queue.queue_id,
                        "latest": queue.latest,
                        "position": queue.position,
                        "lag": queue.lag,
                    }
                    for queue in found.queues
                ],
            }
        )
        return
    # Leave out empty queues: every cluster has many.
    rows = [
        (
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            "-" if queue.position is None else f"{queue.position:,}",
            f"{queue.latest:,}",
            queue.lag,
        )
        for queue in found.queues
        if queue.latest or queue.position
    ]
    columns = ("topic", "broker", "queue", "read to", "ends at", "lag")
    print_table(f"{loaded.name} by {found.by}", columns, rows)
    batch = "" if found.last_batch is None else f"; the last batch was {found.last_batch}"
    empty = len(found.queues) - len(rows)
    queues = "queue is" if empty == 1 else "queues are"
    others = f"; {empty} other {queues} empty" if empty else ""
    click.echo(f"{found.lag:,} messages behind{batch}{others}")


@pipeline.command()
@click.option(
    "--where",
    required=True,
    metavar="CONDITION",
    help='Which ones: a condition like "originTopic = \'orders\'"; "true" for all.',
)
@click.option("--job", default="dead-letter", show_default=True, metavar="FILE|NAME")
@click.option("--again", is_flag=True, help="Also send messages that were already sent again.")
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@_changes
@_name_servers
@_master
@_settings
@_spark_log
def replay(
    where: str,
    job: str,
    again: bool,
    dry_run: bool,
    changes: tuple[str, ...],
    name_servers: str | None,
    master: str,
    settings: tuple[str, ...],
    spark_log: Path | None,
) -> None:
    """Send dead letters again, from the table of the pipeline dead-letter to their topics."""
    with _errors_in_one_line():
        loaded = _load(job, changes, name_servers)
        with _session(loaded, master, settings, spark_log) as spark:
            module: Any = importlib.import_module("goddard.pipelines.builtin.dead_letter")
            done = module.replay(loaded, spark, where=where, again=again, only_show=dry_run)
    if done.rows:
        print_table("", ("origin topic", "messages"), sorted(done.rows.items()))
    verb = "would be sent" if dry_run else "were sent"
    click.echo(f"{done.total:,} messages {verb} again")


# Jobs


def _pipelines(module: str) -> Any:
    """A module of the package, which needs the extra ``spark``."""
    return importlib.import_module(f"goddard.pipelines.{module}")


def _load(name: str, changes: tuple[str, ...], name_servers: str | None) -> "Job":
    loaded: Job = _pipelines("builtin").find_job(name, _values(changes, name_servers))
    return loaded


def _values(changes: tuple[str, ...], name_servers: str | None) -> dict[str, str]:
    """The values of the job file that the options replace."""
    values = dict(_pair("--set", each) for each in changes)
    if name_servers is not None:
        values["source.nameServers"] = name_servers
    return values


def _check_code(job: "Job") -> None:
    """Check for missing packages and functions before Spark starts."""
    _pipelines("transforms").check_functions(job)
    for sink in (job.sink, job.quarantine):
        package = None if sink is None else _LAKE.get(sink.format)
        if package is not None:
            require("spark", package)


def _shown(options: Mapping[str, Any]) -> str:
    text: str = _pipelines("config").shown(options)
    return text


def _show_notes(job: "Job") -> None:
    for note in _pipelines("validate").notes(job):
        click.echo(f"note: {note}")


def _pair(option: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{option} {text} has no '='; write {option} key=value")
    return key.strip(), value


def _time_ms(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if re.fullmatch(r"\d{1,16}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} is {text!r}; write it as 2026-01-31T12:00") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _steps(job: "Job") -> list[tuple[str, str]]:
    """The steps of a job, for people."""
    rows = [(f"read {job.source.format}", _shown(job.source.options))]
    if job.parse is not None:
        rows.append((f"parse {job.parse.format}", job.parse.schema or job.parse.schema_file or ""))
        rows.append(("", f"else {job.parse_action}"))
    rows += [
        ("expect", f"{each.label}: {each.condition}, else {each.on_violation}")
        for each in job.expectations
    ]
    if job.deduplicate is not None:
        spec = job.deduplicate
        rows.append(
            ("deduplicate", f"{', '.join(spec.keys)} within {spec.watermark} of {spec.time}")
        )
    rows += [("transform", each.sql or each.python or "") for each in job.transforms]
    if job.aggregate is not None:
        windows = job.aggregate
        by = f" by {', '.join(windows.by)}" if windows.by else ""
        rows.append(("aggregate", f"{windows.window} of {windows.time}{by}"))
        rows += [("", f"{name} = {text}") for name, text in windows.values.items()]
        rows.append(("", _OUTPUT_MODES[windows.output_mode].format(delay=windows.delay)))
    rows.append(("write", _sink_text(job.sink)))
    if job.quarantine is not None:
        rows.append(("quarantine", _sink_text(job.quarantine)))
    rows.append(("run", f"{job.run.trigger}, checkpoint {job.run.checkpoint}"))
    return rows


def _sink_text(sink: "Sink") -> str:
    place = sink.path or sink.table or _shown(sink.options)
    once = "exactly once" if sink.is_exactly_once or sink.is_files else "at least once"
    by = f", by {', '.join(sink.partition_by)}" if sink.partition_by else ""
    return f"{sink.format} {place}{by} ({once})"


# Running


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise click.ClickException(str(missing_extra(error) or error)) from error
    except GoddardError as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        # Recognise Spark's errors without importing Spark.
        is_known = isinstance(error, OSError) or type(error).__module__.startswith(
            ("pyspark.", "py4j.")
        )
        if not is_known:
            raise
        raise click.ClickException(_pipelines("errors").root_cause(error)) from error


@contextlib.contextmanager
def _lock(job: "Job", what: str, settings: tuple[str, ...]) -> Iterator[bool]:
    """Refuse a second run before the slow start of Spark; yields whether the lock is held."""
    checkpoint: Any = _pipelines("checkpoint")
    given = dict(_pair("--conf", each) for each in settings)
    folder = checkpoint.local_folder(job.run.checkpoint, dict(job.run.settings) | given)
    if folder is None:
        yield False
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(checkpoint.held(folder, what))
        except ConfigError as error:
            raise ConfigError(f"{job.name}: {error}") from error
        yield True


@contextlib.contextmanager
def _session(
    job: "Job", master: str, settings: tuple[str, ...], log: Path | None
) -> Iterator["SparkSession"]:
    """A Spark session for a job; an existing session is used, and not stopped."""
    session: Any = importlib.import_module("goddard.spark.session")
    active = importlib.import_module("pyspark.sql").SparkSession.getActiveSession()
    given = dict(_pair("--conf", each) for each in settings)
    _quiet_spark()
    with _spinner("Spark starts"):
        spark: SparkSession = session.spark_session(
            master, name=job.name, settings=dict(job.run.settings) | given, log=log
        )
    errors: Any = _pipelines("errors")
    try:
        yield spark
    except GoddardError:
        raise
    except Exception as error:
        if errors.java_has_ended(spark, error):
            raise errors.PipelineError(f"{job.name}: {errors.JAVA_ENDED}") from error
        raise
    finally:
        if active is None and not errors.java_has_ended(spark):
            _stop(spark)


def _stop(spark: "SparkSession") -> None:
    errors: Any = _pipelines("errors")
    try:
        spark.stop()
    except Exception as error:
        # The signal has also ended Java.
        if not errors.java_has_ended(spark, error, is_ending=True):
            raise


def _quiet_spark() -> None:
    """Disable Spark's log of its errors, in JSON: our messages contain the relevant part."""
    logger: Any = importlib.import_module("pyspark.logger").PySparkLogger
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logger.getLogger(name).setLevel("CRITICAL")
    # py4j logs many lines when Java has ended, some of them with the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(is_not_of_py4j)


def is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


@contextlib.contextmanager
def _quiet_retries() -> Iterator[None]:
    """Do not print the log lines of retries: only the result matters."""
    logger, silence = logging.getLogger("goddard"), logging.NullHandler()
    logger.addHandler(silence)
    try:
        yield
    finally:
        logger.removeHandler(silence)


@contextlib.contextmanager
def _spinner(text: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    console: Any = importlib.import_module("rich.console").Console(stderr=True)
    with console.status(f"{text} ..."):
        yield


class Stop(threading.Event):
    """Set by a signal; ``number`` is the number of that signal."""

    number = 0


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """An event that SIGTERM and the first Ctrl-C set; a second Ctrl-C raises KeyboardInterrupt.

    The current batch is aborted, and repeated by the next run.
    """
    stop = Stop()

    def stop_now(number: int, _frame: object) -> None:
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        stop.number = number
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, stop_now) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _ProgressDisplay:
    """Progress: a live table on a terminal, otherwise a line for each batch."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._batches: list[Progress] = []
        self._rows = 0
        self._is_counted = True
        self._quarantined = 0
        self._dropped = 0
        self._rescued = 0
        self._late = 0
        self._began = time.monotonic()
        self._live: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            console: Any = importlib.import_module("rich.console").Console(stderr=True)
            self._live = importlib.import_module("rich.live").Live(
                console=console, transient=True, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def report(self, progress: "Progress") -> None:
        if progress.rows is None:
            self._is_counted = False
        elif not progress.query.endswith("-quarantine"):
            self._rows += progress.rows
        if progress.counts is not None:
            self._quarantined += progress.counts.quarantined
            self._dropped += progress.counts.dropped
            self._rescued += progress.counts.rescued
        self._late += progress.late
        self._batches = [*self._batches, progress][-_SHOWN_BATCHES:]
        if self._live is not None:
            self._live.update(self._table())
        else:
            click.echo(_line(progress))

    def close(self, job: "Job", summary: str | None) -> None:
        seconds = time.monotonic() - self._began
        bad = f", {self._quarantined:,} quarantined" if self._quarantined else ""
        bad += f", {self._dropped:,} dropped" if self._dropped else ""
        bad += f", {self._rescued:,} with fields outside of the schema" if self._rescued else ""
        bad += f", {self._late:,} were late and dropped" if self._late else ""
        count = f"{self._rows:,} messages" if self._is_counted else "done"
        click.echo(f"{self._name}: {count} in {seconds:.1f} s{bad}; {_sink_text(job.sink)}")
        if summary:
            click.echo(summary)

    def _table(self) -> Any:
        table = importlib.import_module("rich.table").Table(title=self._name, title_justify="left")
        for column in ("batch", "rows", "seconds", "rows/s", "bad", "lag"):
            table.add_column(column, justify="right")
        for each in self._batches:
            table.add_row(*_cells(each))
        table.caption = f"{self._rows:,} messages"
        return table


def _cells(progress: "Progress") -> tuple[str, ...]:
    counts = progress.counts
    bad = "" if counts is None else f"{counts.quarantined + counts.dropped:,}"
    rate = None if progress.rows is None else progress.rows / max(progress.seconds, 0.001)
    return (
        str(progress.batch),
        "" if progress.rows is None else f"{progress.rows:,}",
        f"{progress.seconds:.1f}",
        "" if rate is None else f"{rate:,.0f}",
        bad,
        "" if progress.lag is None else f"{progress.lag:,}",
    )


def _line(progress: "Progress") -> str:
    batch, rows, seconds, rate, bad, lag = _cells(progress)
    text = f"{progress.query} batch {batch}: "
    text += f"{rows} rows in {seconds} s ({rate}/s)" if rows else f"done in {seconds} s"
    text += f", {bad} bad" if bad not in ("", "0") else ""
    text += f", {progress.late:,} too late" if progress.late else ""
    return text + (f", {lag} behind" if lag else "")
