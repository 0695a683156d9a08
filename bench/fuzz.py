"""Mutation fuzzing of every decoder: ``python -m bench.fuzz``.

Recorded frames and their parts are bent in many ways and given to the decoders. A decoder may
accept or raise ProtocolError; any other exception, a slow input or a huge allocation is a failure.
Each failure is printed with the hexadecimal input; ``--replay TARGET HEX`` runs one again.
"""

import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType, TracebackType
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench.fuzz_targets import MAX_INPUT_BYTES, Target, targets
from goddard.errors import ProtocolError

CPU_SECONDS_PER_INPUT: Final = 2.0
EXTRA_MEMORY_BYTES: Final = 1 << 30
MAX_FAILURES_SHOWN: Final = 20
BATCH: Final = 500
GARBAGE_SHARE: Final = 0.05

# Numbers that sit at the edges of lengths and types.
EDGES: Final = (0, 1, 2, 3, 4, 7, 8, 0x7E, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF)
WIDE_EDGES: Final = (*EDGES, 0x10000, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def _flip_bit(data: bytearray, random: Random, _: bytes) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_byte(data: bytearray, random: Random, _: bytes) -> None:
    data[random.randrange(len(data))] = random.randrange(256)


def _truncate(data: bytearray, random: Random, _: bytes) -> None:
    del data[random.randrange(len(data)) :]


def _delete(data: bytearray, random: Random, _: bytes) -> None:
    start = random.randrange(len(data))
    del data[start : start + random.randint(1, 16)]


def _insert(data: bytearray, random: Random, _: bytes) -> None:
    at = random.randint(0, len(data))
    data[at:at] = random.randbytes(random.randint(1, 8))


def _repeat(data: bytearray, random: Random, _: bytes) -> None:
    start = random.randrange(len(data))
    data[start:start] = data[start : start + random.randint(1, 64)] * random.randint(1, 4)


def _splice(data: bytearray, random: Random, other: bytes) -> None:
    """The start of one and the end of another."""
    del data[random.randrange(len(data)) :]
    data += other[random.randint(0, len(other)) :]


def _set_word(data: bytearray, random: Random, _: bytes) -> None:
    """An edge value where a length may be; near the start, where most lengths are, more often."""
    reach = len(data) if random.random() < 0.5 else min(len(data), 24)
    at = random.randrange(reach)
    if random.random() < 0.5:
        data[at : at + 4] = random.choice(WIDE_EDGES).to_bytes(4, "big")
    else:
        data[at : at + 2] = random.choice(EDGES).to_bytes(2, "big")


def _nudge_word(data: bytearray, random: Random, _: bytes) -> None:
    """A length that is wrong by a little."""
    at = random.randrange(len(data))
    value = int.from_bytes(data[at : at + 4], "big") + random.choice((-2, -1, 1, 2, 4))
    data[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")


def _set_digits(data: bytearray, random: Random, _: bytes) -> None:
    """Text where a number may be."""
    at = random.randrange(len(data))
    text = random.choice(("-1", "0", "2147483648", "9" * 25, "1e999", "null", '"', "{", "[[", "\\"))
    data[at : at + len(text)] = text.encode()


MUTATIONS: Final[tuple[Callable[[bytearray, Random, bytes], None], ...]] = (
    _flip_bit,
    _set_byte,
    _truncate,
    _delete,
    _insert,
    _repeat,
    _splice,
    _set_word,
    _nudge_word,
    _set_digits,
)


def mutated(samples: list[bytes], random: Random) -> bytes:
    """One input: a sample bent one to four times, or now and then plain garbage."""
    if not samples or random.random() < GARBAGE_SHARE:
        return random.randbytes(random.randint(0, 200))
    data = bytearray(random.choice(samples))
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        if not data:
            break
        random.choice(MUTATIONS)(data, random, random.choice(samples))
    return bytes(data[: 2 * MAX_INPUT_BYTES])


class TooSlowError(BaseException):
    """Not an Exception, so that no decoder can take it for a malformed input."""


@dataclass(slots=True)
class Failure:
    target: str
    data: bytes
    report: str


@dataclass(slots=True)
class Tally:
    """Counts for one target, and its first failure of each kind. Also the context of a trial."""

    target: Target
    accepted: int = 0
    rejected: int = 0
    failed: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    data: bytes = b""

    @property
    def inputs(self) -> int:
        return self.accepted + self.rejected + self.failed

    def try_input(self, data: bytes) -> None:
        self.data = data
        with self:
            self.target.run(data)

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS_PER_INPUT)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if kind is None:
            self.accepted += 1
        elif issubclass(kind, ProtocolError):
            self.rejected += 1
        elif issubclass(kind, (Exception, TooSlowError)):
            self.failed += 1
            places = [at for at in traceback.extract_tb(trace) if at.name != _too_slow.__name__]
            place = places[-1]
            same = f"{kind.__name__} {place.filename}:{place.lineno}"
            if same not in self.failures:
                report = "".join(traceback.format_exception(kind, error, trace))
                self.failures[same] = Failure(self.target.name, self.data, report)
        else:
            return False
        return True


def _too_slow(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlowError(f"an input took over {CPU_SECONDS_PER_INPUT} s of processor time")


@contextmanager
def limits() -> Iterator[None]:
    """Turn endless loops and huge allocations into exceptions (the latter where /proc is)."""
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    memory = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    if statm.exists():
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY_BYTES, memory[1]))
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, memory)


def fuzz(
    chosen: list[Target],
    inputs: int,
    seed: int,
    seconds: float | None,
    on_progress: Callable[[int], None],
) -> list[Tally]:
    """Run the targets in turns, a batch each, until enough inputs or seconds are used up."""
    tallies = [Tally(target) for target in chosen]
    randoms = [Random(f"{seed} {target.name}") for target in chosen]
    deadline = None if seconds is None else time.monotonic() + seconds
    done = 0
    while done < inputs:
        for tally, random in zip(tallies, randoms, strict=True):
            count = min(BATCH, inputs - done)
            for _ in range(count):
                tally.try_input(mutated(tally.target.samples, random))
            done += count
            on_progress(count)
            if deadline is not None and time.monotonic() > deadline:
                return tallies
    return tallies


def show(tallies: list[Tally], took_seconds: float, console: Console) -> None:
    table = Table(title=f"{sum(t.inputs for t in tallies):,} inputs in {took_seconds:.0f} s")
    table.add_column("decoder")
    for name in ("inputs", "accepted", "rejected", "failures"):
        table.add_column(name, justify="right")
    for tally in tallies:
        counts = (tally.inputs, tally.accepted, tally.rejected, tally.failed)
        table.add_row(tally.target.name, *(f"{count:,}" for count in counts))
    console.print(table)
    failures = [failure for tally in tallies for failure in tally.failures.values()]
    for failure in failures[:MAX_FAILURES_SHOWN]:
        console.print(f"\n{failure.target}: reproduce with", markup=False)
        replay = f'python -m bench.fuzz --replay "{failure.target}" {failure.data.hex()}'
        console.print(replay, markup=False, soft_wrap=True)
        console.print(failure.report, markup=False, soft_wrap=True)


def replay_input(chosen: list[Target], name: str, data: bytes) -> None:
    """Run one input and let whatever it raises be seen."""
    try:
        next(target for target in chosen if target.name == name).run(data)
    except ProtocolError as error:
        click.echo(f"rejected: {error}")
    else:
        click.echo("accepted")


@click.command()
@click.option("--inputs", default=1_000_000, show_default=True, help="How many inputs in all.")
@click.option("--seed", default=1, show_default=True, help="The same seed gives the same inputs.")
@click.option("--seconds", type=float, help="Stop after this time.")
@click.option("--only", multiple=True, help="A decoder to fuzz; may be given again.")
@click.option("--replay", nargs=2, metavar="TARGET HEX", help="Run one input again.")
def main(
    inputs: int,
    seed: int,
    seconds: float | None,
    only: tuple[str, ...],
    replay: tuple[str, str] | None,
) -> None:
    """Feed the decoders hostile inputs; exit 1 if one does anything but accept or refuse."""
    chosen = targets()
    names = [target.name for target in chosen]
    for name in (*only, *(replay or ())[:1]):
        if name not in names:
            raise click.BadParameter(f"{name!r} is none of: {', '.join(names)}")
    if replay:
        replay_input(chosen, replay[0], bytes.fromhex(replay[1]))
        return
    chosen = [target for target in chosen if not only or target.name in only]
    console = Console()
    columns = (TextColumn("fuzzing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("fuzzing", total=inputs)
        with limits():
            tallies = fuzz(
                chosen, inputs, seed, seconds, lambda count: progress.advance(task, count)
            )
    show(tallies, time.monotonic() - started, console)
    sys.exit(1 if any(tally.failed for tally in tallies) else 0)


if __name__ == "__main__":
    main()
