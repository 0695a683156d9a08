"""Mutation fuzzing of every decoder: ``python -m bench.fuzz``.

Recorded frames and their parts are mutated and passed to the decoders. A decoder may accept an
input or raise ProtocolError; any other exception, a slow input or a huge allocation is a failure.
Each failure is printed with its input in hexadecimal; ``--replay TARGET HEX`` repeats it.
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

# Boundary values of lengths and types.
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
    """Join the start of one input and the end of another."""
    del data[random.randrange(len(data)) :]
    data += other[random.randint(0, len(other)) :]


def _set_word(data: bytearray, random: Random, _: bytes) -> None:
    """Write a boundary value, more often near the start, where most lengths are."""
    end = len(data) if random.random() < 0.5 else min(len(data), 24)
    at = random.randrange(end)
    if random.random() < 0.5:
        data[at : at + 4] = random.choice(WIDE_EDGES).to_bytes(4, "big")
    else:
        data[at : at + 2] = random.choice(EDGES).to_bytes(2, "big")


def _nudge_word(data: bytearray, random: Random, _: bytes) -> None:
    """Change a word by a small amount."""
    at = random.randrange(len(data))
    value = int.from_bytes(data[at : at + 4], "big") + random.choice((-2, -1, 1, 2, 4))
    data[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")


def _set_digits(data: bytearray, random: Random, _: bytes) -> None:
    """Write unusual text, as in place of a number."""
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
    """One input: a sample with one to four mutations, or sometimes random bytes."""
    if not samples or random.random() < GARBAGE_SHARE:
        return random.randbytes(random.randint(0, 200))
    data = bytearray(random.choice(samples))
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        if not data:
            break
        random.choice(MUTATIONS)(data, random, random.choice(samples))
    return bytes(data[: 2 * MAX_INPUT_BYTES])


class TooSlowError(BaseException):
    """Not an Exception, so that no decoder can handle it as a malformed input."""


@dataclass(slots=True)
class Failure:
    target: str
    data: bytes
    report: str


@dataclass(slots=True)
class TargetResult:
    """Counts for one target, and its first failure of each kind; the context of each input."""

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
            frames = [at for at in traceback.extract_tb(trace) if at.name != _too_slow.__name__]
            origin = f"{kind.__name__} {frames[-1].filename}:{frames[-1].lineno}"
            if origin not in self.failures:
                report = "".join(traceback.format_exception(kind, error, trace))
                self.failures[origin] = Failure(self.target.name, self.data, report)
        else:
            return False
        return True


def _too_slow(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlowError(f"an input took over {CPU_SECONDS_PER_INPUT} s of processor time")


@contextmanager
def limits() -> Iterator[None]:
    """Turn endless loops and huge allocations into exceptions (allocations on Linux only)."""
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
    selected: list[Target],
    inputs: int,
    seed: int,
    seconds: float | None,
    on_progress: Callable[[int], None],
) -> list[TargetResult]:
    """Run the targets in turn, one batch each, up to a number of inputs or seconds."""
    results = [TargetResult(target) for target in selected]
    randoms = [Random(f"{seed} {target.name}") for target in selected]
    deadline = None if seconds is None else time.monotonic() + seconds
    done = 0
    while done < inputs:
        for result, random in zip(results, randoms, strict=True):
            count = min(BATCH, inputs - done)
            for _ in range(count):
                result.try_input(mutated(result.target.samples, random))
            done += count
            on_progress(count)
            if deadline is not None and time.monotonic() > deadline:
                return results
    return results


def show(results: list[TargetResult], took_seconds: float, console: Console) -> None:
    table = Table(title=f"{sum(t.inputs for t in results):,} inputs in {took_seconds:.0f} s")
    table.add_column("decoder")
    for name in ("inputs", "accepted", "rejected", "failures"):
        table.add_column(name, justify="right")
    for result in results:
        counts = (result.inputs, result.accepted, result.rejected, result.failed)
        table.add_row(result.target.name, *(f"{count:,}" for count in counts))
    console.print(table)
    failures = [failure for result in results for failure in result.failures.values()]
    for failure in failures[:MAX_FAILURES_SHOWN]:
        console.print(f"\n{failure.target}: reproduce with", markup=False)
        replay = f'python -m bench.fuzz --replay "{failure.target}" {failure.data.hex()}'
        console.print(replay, markup=False, soft_wrap=True)
        console.print(failure.report, markup=False, soft_wrap=True)


def replay_input(selected: list[Target], name: str, data: bytes) -> None:
    """Run one input; exceptions other than ProtocolError are raised."""
    try:
        next(target for target in selected if target.name == name).run(data)
    except ProtocolError as error:
        click.echo(f"rejected: {error}")
    else:
        click.echo("accepted")


@click.command()
@click.option("--inputs", default=1_000_000, show_default=True, help="Total number of inputs.")
@click.option("--seed", default=1, show_default=True, help="The same seed gives the same inputs.")
@click.option("--seconds", type=float, help="Stop after this time.")
@click.option("--only", multiple=True, help="Decoder to fuzz; may be repeated.")
@click.option("--replay", nargs=2, metavar="TARGET HEX", help="Run one input again.")
def main(
    inputs: int,
    seed: int,
    seconds: float | None,
    only: tuple[str, ...],
    replay: tuple[str, str] | None,
) -> None:
    """Run the decoders with mutated inputs; exit with 1 if one fails instead of rejecting."""
    selected = targets()
    names = [target.name for target in selected]
    for name in (*only, *(replay or ())[:1]):
        if name not in names:
            raise click.BadParameter(f"unknown decoder {name!r}; known: {', '.join(names)}")
    if replay:
        replay_input(selected, replay[0], bytes.fromhex(replay[1]))
        return
    selected = [target for target in selected if not only or target.name in only]
    console = Console()
    columns = (TextColumn("fuzzing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("fuzzing", total=inputs)
        with limits():
            results = fuzz(
                selected, inputs, seed, seconds, lambda count: progress.advance(task, count)
            )
    show(results, time.monotonic() - started, console)
    sys.exit(1 if any(result.failed for result in results) else 0)


if __name__ == "__main__":
    main()
