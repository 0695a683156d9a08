"""Goddard's client compared with RocketMQ's Java client and the C++ client `rocketmq` from PyPI.

All three do the same work with the same broker, one after the other, each in its own process: sends
of 100 B one at a time, sends with at most 1,000 in flight, and consumption by a push consumer with
an empty listener and default settings. CPU time is that of the client's process alone. The warm-up
is as long as the measurement, for the JVM at least ten seconds.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from bench.loadgen import BenchError
from bench.report import Report, Row
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support import cpp
from tests.support.java import JavaPeers, compile_java, start_java_broker
from tests.support.peers import POM_DIR, RELEASES

_PEER_VERSION = "5.4.0"
_CONSUMED = 400_000
_IMPORTS = 7
_MARGIN_SECONDS = 400.0

Work = dict[str, float]
RunWork = Callable[[str, str], Work]

_groups = count(1)


@contextlib.contextmanager
def _site(broker: str, folder: Path) -> Iterator[Site]:
    """A cluster with store files of the default size."""
    if broker == "java":
        with JavaPeers(_PEER_VERSION, folder) as java:
            site = Site(java.start_name_server())
            start_java_broker(site, java)
            yield site
        return
    with Cluster(folder) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(
            cluster,
            properties={
                "mappedFileSizeCommitLog": str(1 << 30),
                "mappedFileSizeConsumeQueue": "6000000",
                "waitTimeMillsInSendQueue": "10000",
            },
        )
        yield site


def _run(command: list[str], folder: Path, seconds: float) -> Work:
    environment = {**os.environ, "HOME": str(folder)}
    with tempfile.TemporaryFile(dir=folder) as errors:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            timeout=2 * seconds + _MARGIN_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            errors.seek(max(0, errors.tell() - 2000))
            raise BenchError(f"{command[0]}: {errors.read().decode(errors='replace')}")
    work: Work = json.loads(done.stdout.splitlines()[-1])
    return work


def _ours(site: Site, topic: str, folder: Path, seconds: float) -> RunWork:
    def run(work: str, amount: str) -> Work:
        words = [site.namesrv, topic, f"bench-{next(_groups)}", work, amount]
        return _run([sys.executable, "-m", "bench.client_work", *words], folder, seconds)

    return run


def _java(site: Site, topic: str, folder: Path, seconds: float) -> RunWork | None:
    release = RELEASES[_PEER_VERSION]
    java = shutil.which("java")
    if java is None or not release.is_complete:
        return None
    classes = compile_java(_PEER_VERSION, "ClientBench", ["ClientBench.java"])
    command = [java, "-Xmx512m", f"-Duser.home={folder}"]
    command += [f"-Drocketmq.client.logRoot={folder / 'logs'}"]
    command += ["-cp", f"{classes}{os.pathsep}{release.lib}/*", "ClientBench"]

    def run(work: str, amount: str) -> Work:
        words = [site.namesrv, topic, f"bench-{next(_groups)}", work, amount]
        return _run([*command, *words], folder, seconds)

    return run


def _cpp(site: Site, topic: str, folder: Path, seconds: float) -> RunWork | None:
    if cpp.why_unavailable() is not None:
        return None
    program = POM_DIR / "cpp" / "bench.py"

    def run(work: str, amount: str) -> Work:
        words = [site.namesrv, topic, f"bench-{next(_groups)}", work, amount]
        return _run([str(cpp.interpreter()), str(program), *words], folder, seconds)

    return run


def _rate(work: Work) -> float:
    return work["count"] / work["seconds"]


def _cpu_us(work: Work) -> float:
    return work["cpu_seconds"] * 1e6 / work["count"]


def _import_ms(statement: str) -> float:
    """The median import time, with compiled modules as after the first run of a program."""
    program = (
        f"import time; began = time.perf_counter(); {statement}; "
        "print((time.perf_counter() - began) * 1000)"
    )
    command = [sys.executable, "-c", program]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        times = [
            float(
                subprocess.run(
                    command, stdout=subprocess.PIPE, env=environment, check=True, timeout=60
                ).stdout
            )
            for _ in range(1 + _IMPORTS)
        ]
    return statistics.median(times[1:])


def _compare(report: Report, ours: dict[str, Work], peer: dict[str, Work]) -> None:
    def add(text: str, unit: str, mine: float, theirs: float, *, more_is_better: bool) -> None:
        report.add(Row(text, unit, mine, theirs, more_is_better))

    sync, theirs = ours["sync"], peer["sync"]
    add("sends one at a time", "1/s", _rate(sync), _rate(theirs), more_is_better=True)
    for name in ("p50_us", "p99_us"):
        text = f"the same, {name.removesuffix('_us')}"
        add(text, "us", sync[name], theirs[name], more_is_better=False)
    add("the same, CPU", "us/message", _cpu_us(sync), _cpu_us(theirs), more_is_better=False)
    theirs = peer["async"]
    for work, text in (
        ("async", "pipelined, asyncio"),
        ("threads", "pipelined, from a thread"),
        ("accumulate", "with the accumulator, compared with the peer's pipelined sends"),
    ):
        mine = ours[work]
        add(text, "1/s", _rate(mine), _rate(theirs), more_is_better=True)
        add("the same, CPU", "us/message", _cpu_us(mine), _cpu_us(theirs), more_is_better=False)
    mine, theirs = ours["consume"], peer["consume"]
    add("push consumption, empty listener", "1/s", _rate(mine), _rate(theirs), more_is_better=True)
    add("the same, CPU", "us/message", _cpu_us(mine), _cpu_us(theirs), more_is_better=False)


def run(seconds: float, broker: str = "goddard") -> list[Report]:
    """Run all measurements; one report per peer."""
    reports: list[Report] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with _site(broker, folder / "site") as site:
            sends, full = site.create_topic("bench-sends"), site.create_topic("bench-full")
            amount = str(seconds)
            mine = _ours(site, sends, folder, seconds)
            ours = {work: mine(work, amount) for work in ("sync", "async", "threads", "accumulate")}
            readers = _ours(site, full, folder, seconds)
            readers("fill", str(_CONSUMED))
            ours["consume"] = readers("consume", str(_CONSUMED))
            for title, make in ((f"Java client {_PEER_VERSION}", _java), ("C++ client", _cpp)):
                report = Report(f"Client with a {broker} broker, compared with {title}", title)
                sender, reader = (make(site, topic, folder, seconds) for topic in (sends, full))
                reports.append(report)
                if sender is None or reader is None:
                    report.notes.append(f"{title} was not measured: run `make peers`")
                    continue
                peer = {work: sender(work, amount) for work in ("sync", "async")}
                peer["consume"] = reader("consume", str(_CONSUMED))
                _compare(report, ours, peer)
    for statement in ("import goddard", "from goddard import Message, Producer, PushConsumer"):
        reports[0].notes.append(f"{statement}: {_import_ms(statement):.0f} ms")
    return reports
