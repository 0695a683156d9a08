"""Run seeds: ``python -m tests.simulation --seed 7 --runs 100``.

``--planted`` plants one defect after the other and counts the seeds until it is found.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

from tests.support.simulation.planted import DEFECTS, planted
from tests.support.simulation.run import Result, shorten, simulate

_SHOWN = 3


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=100, help="how many seeds")
    parser.add_argument("--defect", choices=sorted(DEFECTS), help="with this defect in Goddard")
    parser.add_argument("--planted", action="store_true", help="seeds until each defect is found")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    options = parser.parse_args(arguments)
    if options.planted:
        return _find_defects(options.seed, options.runs)
    with planted(options.defect) if options.defect else nullcontext():
        return _run(options.seed, options.runs, options.seconds)


def _run(first: int, runs: int, seconds: float) -> int:
    began = time.monotonic()
    results: list[Result] = []
    failed = 0
    for seed in range(first, first + runs):
        result = simulate(str(seed))
        results.append(result)
        if result.violations:
            failed += 1
            if failed <= _SHOWN:
                print(shorten(result).report(), flush=True)
            else:
                print(f"seed {seed}: {result.violations[0]}", flush=True)
        if time.monotonic() - began > seconds:
            break
    print(
        f"seeds {first} to {first + len(results) - 1}: {failed} failed; "
        f"{sum(each.virtual_seconds for each in results) / 3600:.2f} virtual hours, "
        f"{sum(each.faults for each in results)} faults, "
        f"{sum(each.sent for each in results)} messages sent, "
        f"{sum(each.acknowledged for each in results)} acknowledged, "
        f"{sum(_lost(each) for each in results)} lost, "
        f"{sum(each.delivered for each in results)} deliveries; "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    return 1 if failed else 0


def _lost(result: Result) -> int:
    return sum(violation.startswith("lost:") for violation in result.violations)


def _find_defects(first: int, most: int) -> int:
    missed = 0
    print("| defect | what it does | seeds needed | found by |\n|---|---|---|---|")
    for name, (text, _) in DEFECTS.items():
        for number in range(1, most + 1):
            with planted(name):
                result = simulate(str(first + number - 1))
            if result.violations:
                print(f"| {name} | {text} | {number} | {result.violations[0]} |", flush=True)
                break
        else:
            missed += 1
            print(f"| {name} | {text} | not in {most} | |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of text have the same order in each process
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
