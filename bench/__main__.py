"""``python -m bench [SUITE ...]``: run benchmarks, print tables, save the results as JSON."""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module

from bench import broker, client, nameserver, official, store
from bench.loadgen import BenchError
from bench.report import Report, save, show

_SUITES: dict[str, Callable[[float, str], list[Report]]] = {
    "nameserver": lambda seconds, _: [nameserver.run(seconds)],
    "store": lambda seconds, _: [store.run(seconds)],
    "broker": lambda seconds, _: [broker.run(seconds)],
    "official": lambda *_: [official.run()],
    "client": client.run,
    # Imported on use, because Spark is an optional dependency.
    "spark": lambda seconds, _: [import_module("bench.spark").run(seconds)],
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(_SUITES)} (all)")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument(
        "--broker",
        choices=("goddard", "java"),
        default="goddard",
        help="broker that the clients use",
    )
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in _SUITES]
    if unknown:
        parser.error(f"unknown suite {', '.join(unknown)}; known: {', '.join(_SUITES)}")
    reports: list[Report] = []
    try:
        for name in options.suites or _SUITES:
            sys.stderr.write(f"measuring {name}; do not run anything else meanwhile ...\n")
            reports += _SUITES[name](options.seconds, options.broker)
    except BenchError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    show(reports)
    sys.stdout.write(f"saved as {save(reports)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
