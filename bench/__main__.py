"""``python -m bench [SUITE ...]``: run benchmarks, print tables, save the results as JSON."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

from bench import (
    broker,
    client,
    commands,
    growth,
    nameserver,
    official,
    replication,
    store,
)
from bench.loadgen import BenchError
from bench.report import Report, save, show

_SUITES: dict[str, Callable[[argparse.Namespace], list[Report]]] = {
    "nameserver": lambda options: [nameserver.run(options.seconds)],
    "store": lambda options: [store.run(options.seconds)],
    "broker": lambda options: [broker.run(options.seconds, options.rows, options.columns)],
    "official": lambda _: [official.run()],
    "replication": lambda options: [replication.run(options.seconds)],
    "client": lambda options: client.run(options.seconds, options.broker),
    "growth": lambda options: [growth.run(options.seconds, options.growth, options.log_gb)],
    "commands": lambda _: [commands.run()],
    # Imported on use, because Spark is an optional dependency.
    "spark": lambda options: import_module("bench.spark").run(options.seconds, options.parts),
}
_SPARK_PARTS: Final = ("100", "1024", "latency", "queues")


def _some_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes names separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return chosen

    return parse


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
    for option, names in (("--rows", broker.ROWS), ("--columns", broker.COLUMNS)):
        parser.add_argument(
            option,
            type=_some_of(names),
            default=names,
            metavar="NAME[,NAME...]",
            help=f"of the suite broker: {', '.join(names)} (all)",
        )
    parser.add_argument(
        "--parts",
        type=_some_of(_SPARK_PARTS),
        default=_SPARK_PARTS,
        metavar="NAME[,NAME...]",
        help=f"of the suite spark: {', '.join(_SPARK_PARTS)} (all); numbers are bytes of a body",
    )
    parser.add_argument(
        "--growth",
        type=_some_of(growth.PARTS),
        default=growth.PARTS,
        metavar="NAME[,NAME...]",
        help=f"of the suite growth: {', '.join(growth.PARTS)} (all)",
    )
    parser.add_argument(
        "--log-gb", type=int, default=4, help="of the suite growth: the longest log to write"
    )
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in _SUITES]
    if unknown:
        parser.error(f"unknown suite {', '.join(unknown)}; known: {', '.join(_SUITES)}")
    reports: list[Report] = []
    try:
        for name in options.suites or _SUITES:
            sys.stderr.write(f"measuring {name}; do not run anything else meanwhile ...\n")
            reports += _SUITES[name](options)
    except BenchError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    show(reports)
    sys.stdout.write(f"saved as {save(reports)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
