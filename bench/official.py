"""RocketMQ's own benchmark programs with Goddard's broker and with RocketMQ's, one after the other.

``benchmark.Producer`` and ``benchmark.Consumer`` come from rocketmq-example 4.7.0, the last
published version. They run on the 4.9.4 client, because that of 4.7.0 does not work with Java 17.
They print a line every ten seconds; the last line of a run is used, when the JVM is warm. The
consumer starts with the messages of the first producer, and a second producer runs meanwhile, so it
always has messages. Programs and broker share the machine, so the figures show what an application
sees and not the limit of the broker.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bench.broker import PEER_VERSION, start_java, start_ours
from bench.loadgen import BenchError
from bench.report import Report, Row
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from tests.support.peers import RELEASES

_CLIENT_VERSION: Final = "4.9.4"
_EXAMPLE_VERSION: Final = "4.7.0"
_THREADS: Final = 64
_BODY_BYTES: Final = 128  # the program's own choice
_LINES: Final = 2  # the first line is the warm-up
_LINE_TIMEOUT_SECONDS: Final = 60.0
_SENT: Final = re.compile(
    r"Send TPS: (\d+) Max RT: \d+ Average RT: +([\d.]+) Send Failed: (\d+) Response Failed: (\d+)"
)
_CONSUMED: Final = re.compile(r"^TPS: (\d+) FAIL: (\d+) ", re.MULTILINE)

_ROWS: Final = (
    (f"benchmark.Producer, {_THREADS} threads, {_BODY_BYTES} B", "1/s", "sent", True),
    ("the same, average RT", "ms", "rt", False),
    ("benchmark.Consumer, with a concurrent producer", "1/s", "consumed", True),
    ("the concurrent producer", "1/s", "sent_beside", True),
)

Start = Callable[[Path, Mapping[str, str]], tuple[Process, int]]


def parse_sent(output: str) -> list[tuple[int, float]]:
    """For each line of the producer: messages per second, average round trip in milliseconds.

    The failure counts are cumulative; those of the first line belong to the warm-up.
    """
    found: list[tuple[int, float]] = []
    failed_before = 0
    for rate, average_ms, *failures in _SENT.findall(output):
        failed = sum(map(int, failures))
        if found and failed > failed_before:
            raise BenchError(f"{failed - failed_before} sends of benchmark.Producer failed")
        failed_before = failed
        found.append((int(rate), float(average_ms)))
    return found


def parse_consumed(output: str) -> list[int]:
    """For each line of the consumer: messages per second."""
    found = []
    for rate, failed in _CONSUMED.findall(output):
        if int(failed):
            raise BenchError(f"benchmark.Consumer failed {failed} times")
        found.append(int(rate))
    return found


def _program(kind: str, name: str, folder: Path, *arguments: str) -> Process:
    home = folder / name
    home.mkdir()
    jars = [f"{RELEASES[version].lib}/*" for version in (_EXAMPLE_VERSION, _CLIENT_VERSION)]
    command = [shutil.which("java") or "java", "-server", "-Xms256m", "-Xmx256m"]
    command += [f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home / 'logs'}"]
    command += [
        "-cp",
        ":".join(jars),
        f"org.apache.rocketmq.example.benchmark.{kind}",
    ]
    return Process(name, [*command, *arguments], log=home / "out.log", ready="", cwd=home)


def _producer(name: str, folder: Path, namesrv: str) -> Process:
    words = ("-n", namesrv, "-t", "Official", "-w", str(_THREADS), "-s", str(_BODY_BYTES))
    return _program("Producer", name, folder, *words)


def _consumer(name: str, folder: Path, namesrv: str) -> Process:
    words = ("-n", namesrv, "-t", "Official", "-g", "official", "-p", "false")
    return _program("Consumer", name, folder, *words)


def _wait_for(process: Process, count: Callable[[str], int]) -> None:
    def has_printed() -> bool:
        if not process.is_running:
            raise BenchError(process.diagnosis())
        return count(process.output()) >= _LINES

    wait_until(has_printed, _LINES * _LINE_TIMEOUT_SECONDS, f"{_LINES} lines of {process.name}")


def _measure(start: Start, folder: Path) -> dict[str, float]:
    with Cluster(folder / "namesrv") as cluster:
        namesrv = cluster.start_name_server().address
        broker, _ = start(folder / "broker", {"namesrvAddr": namesrv})
        with broker:
            broker.start()
            with _producer("Producer-alone", folder, namesrv) as producer:
                producer.launch()
                _wait_for(producer, lambda output: len(parse_sent(output)))
                sent, average_ms = parse_sent(producer.output())[-1]
            with (
                _producer("Producer-beside", folder, namesrv) as producer,
                _consumer("Consumer", folder, namesrv) as consumer,
            ):
                producer.launch()
                consumer.launch()
                _wait_for(consumer, lambda output: len(parse_consumed(output)))
                consumed = parse_consumed(consumer.output())[-1]
                beside = parse_sent(producer.output())
                if not beside:
                    raise BenchError(producer.diagnosis())
    return {
        "sent": sent,
        "rt": average_ms,
        "consumed": consumed,
        "sent_beside": beside[-1][0],
    }


def run() -> Report:
    """Run the programs; their duration is fixed, about a minute per broker."""
    report = Report("RocketMQ's own benchmark programs", f"RocketMQ {PEER_VERSION}")
    needed = (_EXAMPLE_VERSION, _CLIENT_VERSION, PEER_VERSION)
    if not shutil.which("java") or not all(RELEASES[each].is_complete for each in needed):
        report.notes.append("not measured: run `make peers` (Java 17+, Maven)")
        return report
    found = []
    for start in (start_ours, start_java):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found.append(_measure(start, Path(folder)))
    ours, java = found
    for work, unit, key, more_is_better in _ROWS:
        report.add(Row(work, unit, ours[key], java[key], more_is_better))
    report.notes.append(
        f"the programs of rocketmq-example {_EXAMPLE_VERSION} on the {_CLIENT_VERSION} client, "
        "on the same cores as the broker"
    )
    return report
