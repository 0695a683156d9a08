"""Mutation fuzzing of the compiled decoders, in bulk: ``python -m bench.fuzz_core``.

``bench.fuzz`` calls each decoder with one input at a time and compares the results with those of
the interpreted decoders. That costs tens of microseconds for an input. Here each mutated sample is
also varied some hundred times by NumPy, and the compiled decoders alone are called with the
variants: about a microsecond for an input, so 10^8 inputs take minutes. A decoder may accept an
input or reject it; an exception or a crash is a failure. What stays behind an accepted input
(records, answers, queue entries, columns) is encoded as well. Of each ``CHECKED_VARIANTS`` variants
one is also passed to the target of ``bench.fuzz``.

The same seed gives the same inputs. After a crash, the last line of ``--log`` has the target and
the round.
"""

import faulthandler
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final, TextIO

import click
import numpy as np
from rich.console import Console

from bench.fuzz import TargetResult, limits, mutated, show
from bench.fuzz_targets import Target, targets
from goddard.core import columns, index, pulls, records
from goddard.core.sends import PlainSends
from goddard.core.staged_sends import OpenTopic, Peer, StagedSends
from goddard.errors import ProtocolError
from goddard.protocol.frame import FrameDecoder, decode_frame
from goddard.protocol.headers.message import decode_send
from goddard.protocol.record import decode_record
from tests.support.send_harness import plain_sends

VARIANTS: Final = 512
CHECKED_VARIANTS: Final = 256
MAX_BASE_BYTES: Final = 2048
_EDGES: Final = np.array((0, 1, 2, 0x1F, 0x20, 0x22, 0x5C, 0x7B, 0x7F, 0x80, 0xDA, 0xFF), np.uint8)
_IS_TEXT: Final = np.array([chr(byte).isalnum() and byte < 128 for byte in range(256)])
_MOST_CHANGES: Final = 3
# A staged block is placed, and a new one begun, after so many messages.
_BLOCK_MESSAGES: Final = 256
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
_ENTRY_BYTES: Final = 20
_LIMITS: Final = (1 << 20, 1 << 18, 32, 1 << 16, 8)

# Calls a decoder with each input, and returns how many it accepted.
Decode = Callable[[Sequence[bytes]], int]


def variants(base: bytes, count: int, random: np.random.Generator) -> list[bytes]:
    """Copies of ``base`` with some bytes changed; some copies are cut off at the end.

    In every other call only values next to the old ones replace digits and letters: what such bytes
    are part of stays well-formed more often, and is decoded further.
    """
    length = len(base)
    if not length:
        return []
    table = np.tile(np.frombuffer(base, np.uint8), (count, 1))
    rows = np.arange(count)
    is_gentle = random.random() < 0.5
    for number in range(_MOST_CHANGES):
        changed = rows[random.random(count) < 1 / (number + 1)]
        at = random.integers(0, length, len(changed))
        old = table[changed, at]
        if is_gentle:
            step = random.integers(1, 5, len(changed)).astype(np.uint8)
            table[changed, at] = np.where(_IS_TEXT[old], old ^ step, old)
            continue
        kind = random.integers(0, 3, len(changed))
        flipped = old ^ (1 << random.integers(0, 8, len(changed))).astype(np.uint8)
        edge = _EDGES[random.integers(0, len(_EDGES), len(changed))]
        other = random.integers(0, 256, len(changed)).astype(np.uint8)
        table[changed, at] = np.choose(kind, (flipped, edge, other))
    data = table.tobytes()
    ends = np.arange(1, count + 1) * length
    cut = random.random(count) < 1 / 16
    ends[cut] -= random.integers(1, length + 1, int(cut.sum()))
    starts = range(0, count * length, length)
    return [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]


def decode_pulls(inputs: Sequence[bytes]) -> int:
    read = pulls.read_pull
    return sum(read(data) is not None for data in inputs)


class SendDecoder:
    """The compiled lane of sends; all topics of the samples are open."""

    def __init__(self, samples: Sequence[bytes]) -> None:
        self._lane: PlainSends = plain_sends()
        self._peer = Peer(_HOST, None)
        for sample in samples:
            with suppress(ProtocolError):
                for frame in FrameDecoder().feed(sample):
                    topic = decode_send(decode_frame(frame).fields).topic
                    if 0 < len(topic) <= 127:
                        self._lane.add_topic(OpenTopic(topic, 16))

    def __call__(self, inputs: Sequence[bytes]) -> int:
        lane, peer = self._lane, self._peer
        accepted = 0
        staged = StagedSends()
        for data in inputs:
            accepted += lane.take(staged, data, peer, 100) > 0
            if staged.message_count >= _BLOCK_MESSAGES:
                self._place(staged)
                staged = StagedSends()
        self._place(staged)
        return accepted

    def _place(self, staged: StagedSends) -> None:
        if not staged.message_count:
            return
        staged.set_queue_offsets([7] * len(staged.queue_keys))
        stored = staged.place(0, 1 << 40, 1_700_000_000_000)
        at = 0
        while at < len(stored):
            at = decode_record(stored, at)[1]
        for _, answers in self._lane.answers(staged):
            for frame in FrameDecoder().feed(answers):
                decode_frame(frame)
        staged.queue_entries()
        staged.key_columns()
        staged.entries()


def _decode_pulled(inputs: Sequence[bytes]) -> int:
    accepted = 0
    found: list[object] = []
    for number, data in enumerate(inputs):
        queue_id = int.from_bytes(data[12:16], "big", signed=True)
        body_bytes = int.from_bytes(data[84:88], "big")
        topic = (
            data[88 + body_bytes :][: 1 + data[88 + body_bytes]]
            if len(data) > 88 + body_bytes
            else b"\0"
        )
        tags = frozenset(("TagA",)) if number & 1 else frozenset[str]()
        end = records.add_messages(found, data, 0, _make, None, queue_id, "", topic, None, tags)
        accepted += end > 0
        found.clear()
    return accepted


def _make(*values: object) -> object:
    return values[0]


_NAMES: Final = frozenset(("msgId", "keys", "tags", "properties"))


def _decode_columns(inputs: Sequence[bytes]) -> int:
    accepted = 0
    for data in inputs:
        columns.count_records(data, 0, 1 << 40, True)
        rows = columns.Rows()
        if not rows.add(data):
            continue
        accepted += 1
        rows.properties(_NAMES)
        rows.bodies(), rows.topics(), rows.offset_ids(), rows.times(True)
        rows.reconsume_times(), rows.prepared_offsets()
        rows.hosts(False, bytes), rows.hosts(True, bytes)
    return accepted


def _decode_keys(inputs: Sequence[bytes]) -> int:
    """The properties of all inputs at once, as the key index has them."""
    count = len(inputs)
    ends = np.cumsum([len(data) for data in inputs], dtype=np.int64)
    data = b"".join(inputs)
    room = len(data) + 3 * count
    rows, hashes = np.empty(room, np.int64), np.empty(room, np.int64)
    is_left = np.empty(count, np.uint8)
    topics = np.full(count, 7, np.uint32)
    flags = np.zeros(count, np.int64)
    found = index.hash_keys(data, ends, topics, flags, True, rows, hashes, is_left)
    return len(np.unique(rows[:found]))


class _Segment:
    base_offset = 1000

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(data)


_SEGMENT: Final = _Segment(bytes(4096))


def _find_segment(offset: int) -> _Segment | None:
    return _SEGMENT if 1000 <= offset < 5096 else None


_CODES: Final = np.array((5, 9, 70000), np.uint32)


def _gather(inputs: Sequence[bytes]) -> int:
    accepted = 0
    for number, data in enumerate(inputs):
        codes = _CODES if number & 1 else None
        found = pulls.gather(data, 3, 5096, 32, 1 << 18, _LIMITS, codes, _find_segment)
        if found is None:
            continue
        accepted += 1
        found.min_offset, found.max_offset = 0, 100
        found.answer(bool(number & 2), 1, 0, b"FOUND", 0, 0, 0)
    return accepted


def _entry_samples() -> list[bytes]:
    def entry(at: int, size: int, code: int) -> bytes:
        return at.to_bytes(8, "big") + size.to_bytes(4, "big") + code.to_bytes(8, "big")

    return [
        b"".join(entry(1000 + 100 * (step * at % 40), 100, at % 10) for at in range(count))
        for count in (1, 4, 40)
        for step in (1, 3)
    ]


class Compiled:
    """A compiled decoder, its samples, and the target of ``bench.fuzz`` that checks some inputs."""

    def __init__(
        self, name: str, decode: Decode, samples: list[bytes], check: Target | None
    ) -> None:
        self.name = name
        self.decode = decode
        self.samples = [sample for sample in samples if len(sample) <= MAX_BASE_BYTES]
        self.check = check


def compiled_decoders() -> list[Compiled]:
    by_name = {target.name: target for target in targets()}
    pulled, sends = by_name["pulled messages"], by_name["plain sends"]
    pull, properties = by_name["pull requests"], by_name["properties"]
    return [
        Compiled("pulls", decode_pulls, pull.samples, pull),
        Compiled("sends and batches", SendDecoder(sends.samples), sends.samples, sends),
        Compiled("pulled records", _decode_pulled, pulled.samples, pulled),
        Compiled("columns of records", _decode_columns, pulled.samples, None),
        Compiled("keys", _decode_keys, properties.samples, None),
        Compiled("queue entries", _gather, _entry_samples(), None),
    ]


def fuzz(
    decoders: Sequence[Compiled], inputs: int, seed: int, seconds: float | None, log: TextIO | None
) -> list[TargetResult]:
    """Run the decoders in turn, up to a number of inputs or seconds."""
    results = [TargetResult(Target(each.name, lambda _: None)) for each in decoders]
    deadline = None if seconds is None else time.monotonic() + seconds
    done = number = 0
    while done < inputs:
        for decoder, result in zip(decoders, results, strict=True):
            if log is not None:
                log.write(f"{seed} {decoder.name} {number}\n")
                log.flush()
            done += run_round(decoder, result, seed, number)
        number += 1
        if deadline is not None and time.monotonic() > deadline:
            break
    return results


def run_round(decoder: Compiled, result: TargetResult, seed: int, number: int) -> int:
    """The variants of one mutated sample; returns how many there were."""
    random = Random(f"{seed} {decoder.name} {number}")
    base = mutated(decoder.samples, random)[: 2 * MAX_BASE_BYTES]
    if random.random() < 0.5:  # most mutations end in rejection; sound samples are varied, too
        base = random.choice(decoder.samples)
    inputs = variants(base, VARIANTS, np.random.default_rng(random.getrandbits(64)))
    if not inputs:
        return 0
    before = result.failed
    with result:
        accepted = decoder.decode(inputs)
        result.accepted += accepted - 1  # the context counts one
        result.rejected += len(inputs) - accepted
    if result.failed > before:  # find the input
        for data in inputs:
            result.data = data
            with result:
                decoder.decode([data])
                result.accepted -= 1
    if decoder.check is not None:
        for data in inputs[::CHECKED_VARIANTS]:
            result.data = data
            with result:
                with suppress(ProtocolError):
                    decoder.check.run(data)
                result.accepted -= 1
    return len(inputs)


@click.command()
@click.option("--inputs", default=10_000_000, show_default=True, help="Total number of inputs.")
@click.option("--seed", default=1, show_default=True, help="The same seed gives the same inputs.")
@click.option("--seconds", type=float, help="Stop after this time.")
@click.option("--only", multiple=True, help="Decoder to fuzz; may be repeated.")
@click.option("--log", type=click.Path(path_type=Path), help="Where to note each round.")
def main(
    inputs: int, seed: int, seconds: float | None, only: tuple[str, ...], log: Path | None
) -> None:
    """Run the compiled decoders with mutated inputs; exit with 1 if one fails."""
    faulthandler.enable()
    decoders = [each for each in compiled_decoders() if not only or each.name in only]
    started = time.monotonic()
    with limits():
        if log is None:
            results = fuzz(decoders, inputs, seed, seconds, None)
        else:
            with log.open("w") as notes:
                results = fuzz(decoders, inputs, seed, seconds, notes)
    show(results, time.monotonic() - started, Console())
    sys.exit(1 if any(result.failed for result in results) else 0)


if __name__ == "__main__":
    main()
