"""The Spark source and sink compared with Spark's Kafka source, on one machine in one run.

Both read and write the same bodies, with 4 queues or partitions and `local[2]`, each in its own
session. Each measurement is run four times: the first run is the warm-up, the best of the other
three is reported. Rows are discarded (`noop`). Kafka needs Maven; without it only Goddard is
measured.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
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
_ROWS_PER_SECOND = 200_000
_RUNS = 4
_TIMEOUT_SECONDS = 1200
_LATENCY_RATE = 1_000
_LATENCY_SECONDS = 30.0  # a shorter run shows the warm-up of the session
_BODY = "body BINARY"
_WORK = Path(__file__).with_name("spark_work.py")

# Limits of one pull; RocketMQ's defaults are 32 messages and 256 KiB, Kafka's default is 1 MiB.
_LARGE_PULLS = {
    "maxTransferCountOnMessageInMemory": "1024",
    "maxTransferCountOnMessageInDisk": "1024",
    "maxTransferBytesOnMessageInMemory": str(1 << 20),
    "maxTransferBytesOnMessageInDisk": str(1 << 20),
}

Work = dict[str, Any]


class _Sessions:
    """Runs lists of works, each list in a new Spark session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def run(self, python: str, jars: str | None, works: list[Work]) -> list[list[float]]:
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
        results: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
        return results

    def ours(self, works: list[Work]) -> list[list[float]]:
        return self.run(sys.executable, None, works)


@contextmanager
def _site(folder: Path, properties: dict[str, str]) -> Iterator[tuple[Site, Path]]:
    """A cluster with store files of the default size, and the path of its store."""
    with Cluster(folder) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(
            cluster,
            properties={
                "mappedFileSizeCommitLog": str(1 << 30),
                "mappedFileSizeConsumeQueue": "6000000",
                "waitTimeMillsInSendQueue": "10000",
                **properties,
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

    def measure(self, topic: str, work: Work) -> dict[str, float]:
        """The rate of each kind of work."""
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
        _, *rates = self._sessions.run(self._python, self._jars, works)
        return {each["kind"]: max(found[1:]) for each, found in zip(works[1:], rates, strict=True)}


def run(seconds: float) -> Report:
    report = Report("Spark", f"Kafka source, Spark {kafka.SPARK_VERSION}")
    rows = max(2_000, int(_ROWS_PER_SECOND * seconds))
    with tempfile.TemporaryDirectory(prefix="goddard-bench-") as scratch, ExitStack() as stack:
        folder = Path(scratch)
        sessions = _Sessions(folder)
        peer = _Kafka(sessions, stack, folder / "kafka")
        for size in (100, 1_024):
            with _site(folder / f"site-{size}", _LARGE_PULLS) as (site, store):
                _measure(report, sessions, peer, site, store, _work(rows, size))
        with _site(folder / "site-defaults", {}) as (site, _):
            work = _work(rows, 100)
            topic = site.create_topic("bench", queues=_QUEUES)
            reading = _reading("read", site, topic, work) | {"schema": _BODY}
            _, rates = sessions.ours([_writing(site, topic, work) | {"runs": 1}, reading])
            name = "batch read, body only, 100 B, 32 messages per pull"
            report.add(Row(name, "rows/s", max(rates[1:])))
            _measure_latency(report, sessions, site, folder / "latency", seconds)
    if peer.problem is not None:
        report.notes.append(f"no Kafka: {peer.problem}")
    report.notes.append(
        f"{rows:,} rows, {_QUEUES} queues, local[2]; a pull returns up to 1,024 messages or "
        "1 MiB, as with Kafka, unless stated otherwise"
    )
    return report


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
    report: Report, sessions: _Sessions, peer: _Kafka, site: Site, store: Path, work: Work
) -> None:
    topic = site.create_topic("bench", queues=_QUEUES)
    target = site.create_topic("written", queues=_QUEUES)
    theirs = peer.measure(topic, work)
    reading = _reading("read", site, topic, work)
    files = work | {"kind": "read", "format": "rocketmq-log", "path": str(store), "options": {}}
    # The files are read before the other topic is written to them.
    named = {
        "batch read, all columns": reading,
        "batch read, body only": reading | {"schema": _BODY},
        "rocketmq-log, all columns": files,
        "rocketmq-log, body only": files | {"schema": _BODY},
        "stream, all columns": _reading("stream", site, topic, work),
        "write": _writing(site, target, work),
    }
    fill = _writing(site, topic, work) | {"runs": 1}
    _, *rates = sessions.ours([fill, *named.values()])
    size = f"{work['bytes']} B" if work["bytes"] < 1_024 else f"{work['bytes'] // 1_024} KB"
    for (name, each), found in zip(named.items(), rates, strict=True):
        report.add(Row(f"{name}, {size}", "rows/s", max(found[1:]), theirs.get(each["kind"])))


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
