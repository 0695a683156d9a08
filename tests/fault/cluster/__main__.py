"""Faults in clusters of real processes: ``python -m tests.fault.cluster --seed 7 --minutes 5``.

A run consists of rounds, each with a cluster, modes and a schedule of its own; round 3 of seed 7
has the seed 7.3, and ``--round 3`` repeats it alone. The exit code is 1 if a round fails.
"""

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.faults.network import enter_private_network, is_private
from tests.support.faults.run import Result, run_round
from tests.support.faults.schedule import JAVA_VERSIONS, make_setup
from tests.support.peers import RELEASES

_MODULE: Final = "tests.fault.cluster"
# A round takes about as long again: to start, to heal, and to read everything.
_SAFETY_SECONDS: Final = 35.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0, help="begin no round after that")
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--rounds", type=int, default=1_000_000, help="at most so many")
    parser.add_argument("--defect", default="", help="with this defect, which must be found")
    parser.add_argument("--loopback", action="store_true", help="as without namespaces")
    parser.add_argument("--safety", type=float, default=_SAFETY_SECONDS, help="seconds with faults")
    parser.add_argument("--directory", type=Path, help="keep the files of all rounds here")
    options = parser.parse_args(arguments)
    if not options.loopback:
        enter_private_network(["-W", "ignore", "-m", _MODULE, *arguments])
        if not is_private():
            print("no network namespaces here: loopback, with fault proxies", flush=True)
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        try:
            return _run(options, options.directory or Path(folder))
        except KeyboardInterrupt:
            print("stopped", flush=True)
            return 130


def _run(options: argparse.Namespace, directory: Path) -> int:
    began = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    # What clients write when brokers are away.
    logging.basicConfig(filename=directory / "clients.log", format="%(asctime)s %(message)s")
    has_java = all(RELEASES[version].is_complete for version in JAVA_VERSIONS)
    has_java = has_java and shutil.which("java") is not None and not options.loopback
    results: list[Result] = []
    first = options.round or 1
    last = options.round or options.rounds
    for number in range(first, last + 1):
        if results and time.monotonic() - began > options.minutes * 60:
            break
        setup = make_setup(
            f"{options.seed}.{number}", safety_seconds=options.safety, has_java=has_java
        )
        print(setup, flush=True)
        result = asyncio.run(
            run_round(
                setup,
                directory / str(number),
                _show,
                is_private=is_private(),
                defect=options.defect,
            )
        )
        results.append(result)
        print(result.report() if result.violations else _line(result), flush=True)
    print(_summary(options.seed, results, time.monotonic() - began), flush=True)
    return 1 if any(result.violations for result in results) else 0


def _show(line: str) -> None:
    print(f"  {line:.200}", flush=True)


def _line(result: Result) -> str:
    return (
        f"seed {result.setup.seed} passed: {result.faults.total()} faults, {result.sent} sent, "
        f"{result.acknowledged} acknowledged, {len(result.history.deliveries)} deliveries, "
        f"{len(result.history.progress)} observations of slaves, "
        f"healed after {result.healed_seconds:.1f} s"
    )


def _summary(seed: int, results: list[Result], seconds: float) -> str:
    faults: Counter[str] = sum((result.faults for result in results), Counter())
    failed = [result.setup.seed for result in results if result.violations]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    named = f" ({', '.join(failed)})" if failed else ""
    return (
        f"seed {seed}: {len(results)} rounds, {len(failed)} failed{named}; "
        f"{sum(result.sent for result in results)} messages sent, "
        f"{sum(result.acknowledged for result in results)} acknowledged, "
        f"{sum(result.lost for result in results)} lost, "
        f"{sum(len(result.history.deliveries) for result in results)} deliveries; "
        f"{faults.total()} faults ({kinds}); {seconds / 60:.1f} minutes"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
