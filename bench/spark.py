"""The Spark source and sink compared with Spark's Kafka source, on one machine in one run.

Both read and write the same bodies, with 4 queues or partitions and `local[2]`, each in its own
session. Each measurement is repeated in the session that it has warmed up, and the last repetition
is reported. Rows are discarded (`noop`). A ratio counts only if Kafka's source reaches its known
rate; else the report says so. Kafka needs Maven; without it only Goddard is measured.

The part ``queues`` measures streams of topics with many queues: the requests of an idle stream, and
the time until one message in each queue is read.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import kafka
from bench.loadgen import BenchError
from bench.report import Report, Row
from goddard import Message, Producer
from goddard.errors import GoddardError
from goddard.spark.java import provide_java
from goddard.spark.session import LOCAL_SETTINGS
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.site import Site

_QUEUES = 4
# With the default of five seconds: 3,000,000 rows of 100 bytes, and 1,000,000 of 1 KB.
_ROWS_PER_SECOND = {100: 600_000, 1_024: 200_000}
_RUNS = 5
# Rows/s that Spark's Kafka source reads when it is warm, by bytes of the body; a run in which it
# reaches less than this share is too cold, too short or disturbed.
_KNOWN_RATES = {100: 735_000, 1_024: 261_000}
_SHARE_THAT_COUNTS = 0.7
_MANY_QUEUES = (4, 200, 2_000, 10_000)
_IDLE_SECONDS = 10.0
_TIMEOUT_SECONDS = 1200
_LATENCY_RATE = 1_000
_LATENCY_SECONDS = 30.0  # a shorter run shows the warm-up of the session
_BODY = "body BINARY"
_SIX = (
    "keys STRING, body BINARY, topic STRING, queueId INT, queueOffset LONG, "
    "storeTimestamp TIMESTAMP"
)
_WORK = Path(__file__).with_name("spark_work.py")

Work = dict[str, Any]


class _Sessions:
    """Runs lists of works, each list in a new Spark session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def run(self, python: str, jars: str | None, works: list[Work]) -> list[list[Any]]:
        self._count += 1
        scratch = self._folder / f"session-{self._count}"
        scratch.mkdir()
        settings = LOCAL_SETTINGS | {
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.driver.memory": "2g",
        }
        if jars is not None:
            settings["spark.jars"] = jars
        path = scratch / "works.json"
        path.write_text(json.dumps({"settings": settings, "works": works}))
        environment = {
            **os.environ,
            "JAVA_HOME": str(provide_java()),
            "PYSPARK_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            [python, str(_WORK), str(path)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(f"{[work['kind'] for work in works]}: {done.stderr[-3000:]}")
        results: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
        return results

    def ours(self, works: list[Work]) -> list[list[Any]]:
        return self.run(sys.executable, None, works)


@contextmanager
def _site(folder: Path) -> Iterator[tuple[Site, Path]]:
    """A cluster with store files of the default size, and the path of its store."""
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
        yield site, cluster.brokers[0].home / "store"


class _Kafka:
    """The same works with Kafka, if it is available."""

    def __init__(self, sessions: _Sessions, stack: ExitStack, folder: Path) -> None:
        self._sessions = sessions
        self.problem: str | None = None
        try:
            self._python = str(kafka.spark_python())
            self._jars = kafka.spark_jars()
            self._address = stack.enter_context(kafka.broker(folder, _QUEUES))
        except (BenchError, GoddardError, OSError, subprocess.SubprocessError) as error:
            self.problem = str(error)

    def measure(self, topic: str, work: Work) -> dict[str, tuple[float, float]]:
        """The rate of each kind of work, and the processor time of a row."""
        if self.problem is not None:
            return {}
        server = {"kafka.bootstrap.servers": self._address}
        work = work | {"format": "kafka", "column": "value"}
        reading = server | {"subscribe": topic, "startingOffsets": "earliest"}
        works = [
            work | {"kind": "write", "options": server | {"topic": topic}, "runs": 1},
            work | {"kind": "read", "options": reading},
            work | {"kind": "stream", "options": reading},
            work | {"kind": "write", "options": server | {"topic": f"{topic}-written"}},
        ]
        _, *runs = self._sessions.run(self._python, self._jars, works)
        return {each["kind"]: found[-1] for each, found in zip(works[1:], runs, strict=True)}


def run(seconds: float, parts: Sequence[str]) -> list[Report]:
    peer_name = f"Kafka source, Spark {kafka.SPARK_VERSION}"
    report = Report("Spark", peer_name)
    times = Report("Spark: processor time of all processes, servers included", peer_name)
    with tempfile.TemporaryDirectory(prefix="goddard-bench-") as scratch, ExitStack() as stack:
        folder = Path(scratch)
        sessions = _Sessions(folder)
        sizes = [size for size in _KNOWN_RATES if str(size) in parts]
        peer = _Kafka(sessions, stack, folder / "kafka") if sizes else None
        for size in sizes:
            rows = max(2_000, int(_ROWS_PER_SECOND[size] * seconds))
            with _site(folder / f"site-{size}") as (site, store):
                _measure(report, times, sessions, peer, site, store, _work(rows, size))
        if "latency" in parts:
            with _site(folder / "site-latency") as (site, _):
                _measure_latency(report, sessions, site, folder / "latency", seconds)
        if "queues" in parts:
            for queues in _MANY_QUEUES:
                with _site(folder / f"site-queues-{queues}") as (site, _):
                    _measure_queues(report, sessions, site, folder / f"queues-{queues}", queues)
    if peer is not None and peer.problem is not None:
        report.notes.append(f"no Kafka: {peer.problem}")
    return [report, times] if times.rows else [report]


def _work(rows: int, size: int) -> Work:
    return {
        "rows": rows,
        "bytes": size,
        "partitions": _QUEUES,
        "column": "body",
        "format": "rocketmq",
        "runs": _RUNS,
    }


def _reading(kind: str, site: Site, topic: str, work: Work) -> Work:
    options = {"nameServers": site.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    return work | {"kind": kind, "options": options}


def _writing(site: Site, topic: str, work: Work) -> Work:
    return work | {"kind": "write", "options": {"nameServers": site.namesrv, "topic": topic}}


def _measure(
    report: Report,
    times: Report,
    sessions: _Sessions,
    peer: _Kafka | None,
    site: Site,
    store: Path,
    work: Work,
) -> None:
    topic = site.create_topic("bench", queues=_QUEUES)
    target = site.create_topic("written", queues=_QUEUES)
    theirs = peer.measure(topic, work) if peer is not None else {}
    reading = _reading("read", site, topic, work)
    files = work | {"kind": "read", "format": "rocketmq-log", "path": str(store), "options": {}}
    # The files are read before the other topic is written to them.
    named = {
        "batch read, all columns": reading,
        "batch read, six columns like Kafka's": reading | {"schema": _SIX},
        "batch read, body only": reading | {"schema": _BODY},
        "rocketmq-log, all columns": files,
        "rocketmq-log, body only": files | {"schema": _BODY},
        "stream, all columns": _reading("stream", site, topic, work),
        "stream, six columns": _reading("stream", site, topic, work) | {"schema": _SIX},
        "write": _writing(site, target, work),
    }
    fill = _writing(site, topic, work) | {"runs": 1}
    _, *runs = sessions.ours([fill, *named.values()])
    size = f"{work['bytes']} B" if work["bytes"] < 1_024 else f"{work['bytes'] // 1_024} KB"
    for (name, each), found in zip(named.items(), runs, strict=True):
        (rate, time_us), (peer_rate, peer_us) = found[-1], theirs.get(each["kind"], (None, None))
        report.add(Row(f"{name}, {size}", "rows/s", rate, peer_rate))
        times.add(Row(f"{name}, {size}", "us/row", time_us, peer_us, more_is_better=False))
    report.notes.append(f"{size}: {work['rows']:,} rows, {_QUEUES} queues, repetition {_RUNS}")
    known = _KNOWN_RATES[work["bytes"]]
    if "read" in theirs:
        rate, _ = theirs["read"]
        counts = rate >= _SHARE_THAT_COUNTS * known
        report.notes.append(
            f"{size}: Kafka's source reads {rate:,.0f} rows/s, known are {known:,}: the ratios "
            + ("count" if counts else "do NOT count")
        )


def _measure_latency(
    report: Report, sessions: _Sessions, site: Site, folder: Path, seconds: float
) -> None:
    folder.mkdir()
    topic = site.create_topic("latency", queues=_QUEUES)
    duration = max(_LATENCY_SECONDS, 2 * seconds)
    sending = threading.Thread(target=_send_evenly, args=(site, topic, folder, duration))
    sending.start()
    try:
        work = _reading("latency", site, topic, {"format": "rocketmq"}) | {"folder": str(folder)}
        (latencies,) = sessions.ours([work])
    finally:
        (folder / "reading").touch()
        sending.join()
    if not latencies:
        raise BenchError("no message was delivered")
    for name, part in (("p50", 50), ("p99", 99)):
        value = statistics.quantiles(latencies, n=100)[part - 1]
        work_name = f"source to table at {_LATENCY_RATE:,} messages/s, {name}"
        report.add(Row(work_name, "ms", value, more_is_better=False))


def _send_evenly(site: Site, topic: str, folder: Path, seconds: float) -> None:
    with Producer("latency", name_servers=site.namesrv) as producer:
        # One message for the first batch of the query, which is slow.
        producer.send(Message(topic, b"first"))
        wait_until((folder / "reading").exists, _TIMEOUT_SECONDS, "the query reads")
        began = time.monotonic()
        for number in range(int(_LATENCY_RATE * seconds)):
            due = began + number / _LATENCY_RATE
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            producer.send_async(Message(topic, b"x" * 100))
    (folder / "sent").touch()


def _measure_queues(
    report: Report, sessions: _Sessions, site: Site, folder: Path, queues: int
) -> None:
    """An idle stream of one topic, then one message in each of its queues."""
    folder.mkdir()
    topic = site.create_topic("queues", queues=queues)
    work = _reading("queues", site, topic, {"format": "rocketmq"})
    work |= {"folder": str(folder), "rows": queues}
    idle: list[float] = []
    filling = threading.Thread(target=_fill_queues, args=(site, topic, folder, idle))
    filling.start()
    try:
        ((seconds,),) = sessions.ours([work])
    finally:
        (folder / "reading").touch()
        filling.join()
    name = f"{queues:,} queues"
    report.add(Row(f"{name}, idle: broker's CPU", "%", 100 * idle[0], more_is_better=False))
    report.add(Row(f"{name}: one message in each is read", "s", seconds, more_is_better=False))


def _fill_queues(site: Site, topic: str, folder: Path, idle: list[float]) -> None:
    """Measure the broker's share of a core while the query is idle, then fill the queues."""
    with Producer("queues", name_servers=site.namesrv) as producer:
        wait_until((folder / "reading").exists, _TIMEOUT_SECONDS, "the query reads")
        before = _cpu_seconds(site.broker.pid)
        time.sleep(_IDLE_SECONDS)
        idle.append((_cpu_seconds(site.broker.pid) - before) / _IDLE_SECONDS)
        began = time.time()
        sent = [
            producer.send_async(Message(topic, b"x" * 100), queue=queue)
            for queue in producer.publish_queues(topic)
        ]
        for each in sent:
            each.result(_TIMEOUT_SECONDS)
    partial = folder / "began.partial"
    partial.write_text(str(began))
    partial.rename(folder / "began")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
