"""Goddard's broker compared with RocketMQ's: sends, batches, pulls, SYNC_FLUSH, start-up, memory.

Each broker runs alone, with its defaults (files of 1 GiB, ASYNC_FLUSH unless stated) and four
queues: Goddard, Goddard without its compiled modules (``GODDARD_CORE=0``), and RocketMQ. Each may
use every core of the machine; the load generator is bound to one of them. The Java broker gets a
heap of 2 GiB and a warm-up of 20 seconds, and every measurement is preceded by the same work.

All brokers get long limits for "system busy" (``waitTimeMillsInSendQueue``,
``osPageCacheBusyTimeOutMills``), because throughput is measured and not flow control, and may
return 256 messages for a pull. Rejected requests do not count; the report says how many there were,
and why.
"""

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.broker_requests import BATCH, QUEUES, TOPIC, batches, call, pulls, send, sends
from bench.loadgen import BenchError, Load, load, null_server
from bench.report import Report, Row
from goddard import config
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.headers.message import GetMaxOffsetRequest
from goddard.testing.ports import is_listening, lease_port
from goddard.testing.process import Process, wait_until
from tests.support.peers import RELEASES

PEER_VERSION = "5.4.0"
COLUMNS: Final = ("goddard", "fallback", "rocketmq")
_STARTS = 3
_JVM_WARMUP_SECONDS = 20
_MAX_PULLED = 256
_MIN_MESSAGES = 50_000  # of each queue, before pulls are measured
_MAX_MESSAGES = 1_000_000
_MAX_REJECTED = 0.5  # share of rejected requests in one measurement; more is an error
_SYNC = {"flushDiskType": "SYNC_FLUSH"}
_OPENED = ("java.nio", "jdk.internal.ref", "java.util", "sun.nio.ch")
_EXPORTED = ("jdk.internal.ref", "sun.nio.ch", "jdk.internal.misc")

Start = Callable[[Path, Mapping[str, str]], tuple[Process, int]]


# Brokers


def _write_config(home: Path, port: int, properties: Mapping[str, str]) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    path = home / "broker.conf"
    settings = {
        "brokerName": "bench",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "storePathRootDir": str(home / "store"),
        "storePathCommitLog": str(home / "store" / "commitlog"),
        "diskMaxUsedSpaceRatio": "95",
        "waitTimeMillsInSendQueue": "10000",
        "osPageCacheBusyTimeOutMills": "10000",
        "maxTransferCountOnMessageInMemory": str(_MAX_PULLED),
        **properties,
    }
    path.write_text(config.format_properties(settings))
    return path


def start_ours(
    home: Path, properties: Mapping[str, str], env: Mapping[str, str] | None = None
) -> tuple[Process, int]:
    port = lease_port(-2, 1)
    path = _write_config(home, port, properties)
    command = [sys.executable, "-m", "goddard.cli.main", "broker", "-c", str(path)]
    command += ["--home", str(home)]
    process = Process(
        "Goddard broker", command, log=home / "out.log", ready="boot success", env=env
    )
    return process, port


def start_fallback(home: Path, properties: Mapping[str, str]) -> tuple[Process, int]:
    return start_ours(home, properties, {**os.environ, "GODDARD_CORE": "0"})


def start_java(home: Path, properties: Mapping[str, str]) -> tuple[Process, int]:
    port = lease_port(-2, 1)
    path = _write_config(home, port, properties)
    (home / "conf").mkdir(exist_ok=True)
    release = RELEASES[PEER_VERSION]
    command = [shutil.which("java") or "java", "-server", "-Xms2g", "-Xmx2g"]
    command += ["-XX:MaxDirectMemorySize=2g", f"-Duser.home={home}"]
    command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    command += [f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in _EXPORTED]
    command += ["-cp", f"{home}/conf:{release.lib}/*"]
    command += ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(path)]
    process = Process(
        f"RocketMQ {PEER_VERSION} broker",
        command,
        log=home / "out.log",
        ready="boot success",
        env={"ROCKETMQ_HOME": str(home), "HOME": str(home), "PATH": "/usr/bin:/bin"},
        start_timeout=60,
    )
    return process, port


def _private_mb(pid: int) -> float:
    """Private memory of a process, without mapped files, which belong to the page cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise BenchError("the memory of a process can be read on Linux only")


def _seconds_to_listen(start: Start, folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as home:
        process, port = start(Path(home), {})
        with process:
            began = time.perf_counter()
            process.launch()
            wait_until(lambda: is_listening(port), 60, "the port to listen")
            return time.perf_counter() - began


@contextlib.contextmanager
def running(
    start: Start, folder: Path, properties: Mapping[str, str]
) -> Iterator[tuple[Process, int]]:
    """A new broker with the topic."""
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as home:
        process, port = start(Path(home), properties)
        with process:
            process.start()
            for number in range(QUEUES):
                call(port, send(number, SerializeType.JSON))
            yield process, port


# Work


@dataclass(frozen=True, slots=True)
class _Work:
    """One kind of load. ``frames`` makes its requests for a broker that listens on a port."""

    text: str
    frames: Callable[[int], list[bytes]]
    connections: int
    inflight: int
    messages: int = 1  # of one request
    is_synced: bool = False

    @property
    def unit(self) -> str:
        return "1/s" if self.messages == 1 else "messages/s"


def _sends(kind: SerializeType) -> Callable[[int], list[bytes]]:
    return lambda _: sends(kind)


def _pulls(count: int) -> Callable[[int], list[bytes]]:
    return lambda port: pulls(min(_shortest_queue(port), _MAX_MESSAGES), count)


_BINARY: Final = _sends(SerializeType.ROCKETMQ)
_JSON: Final = _sends(SerializeType.JSON)
_WORK: Final = {
    "64x1": _Work("sends, 64 x 1, binary header", _BINARY, 64, 1),
    "64x1-json": _Work("sends, 64 x 1, JSON header", _JSON, 64, 1),
    "4x256": _Work("sends, 4 x 256, binary header", _BINARY, 4, 256),
    "4x256-json": _Work("sends, 4 x 256, JSON header", _JSON, 4, 256),
    "1x1": _Work("sends, 1 x 1, binary header", _BINARY, 1, 1),
    "batch": _Work("batches of 32, 4 x 32", lambda _: batches(), 4, 32, BATCH),
    "pull32": _Work("pulls of 32, 4 x 16", _pulls(32), 4, 16, 32),
    "pull256": _Work("pulls of 256, 4 x 16", _pulls(256), 4, 16, 256),
    "sync64x1": _Work("SYNC_FLUSH, 64 x 1", _BINARY, 64, 1, is_synced=True),
    "sync8x64": _Work("SYNC_FLUSH, 8 x 64", _BINARY, 8, 64, is_synced=True),
}
# Rows that are no load.
_OTHERS: Final = {
    "start": ("start to listening", "s"),
    "memory": ("private memory after start", "MB"),
    "memory-loaded": ("private memory after the load", "MB"),
}
ROWS: Final = (*_WORK, *_OTHERS)


# Measuring


def _run_load(
    rejections: list[str], process: Process, port: int, work: _Work, seconds: float
) -> Load:
    result = load(
        port,
        work.frames(port),
        connections=work.connections,
        inflight=work.inflight,
        seconds=seconds,
        warmup=seconds,
        pid=process.pid,
    )
    if result.failures:
        text = (
            f"{work.text}: {result.failures} of {result.responses} requests were rejected"
            f" ({result.first_failure})"
        )
        if result.failures > result.responses * _MAX_REJECTED:
            raise BenchError(text)
        rejections.append(text)
    return result


def _shortest_queue(port: int) -> int:
    """The number of messages in the shortest queue, after all sent messages can be pulled."""
    sent = [
        int(call(port, send(number, SerializeType.JSON)).fields["queueOffset"])
        for number in range(QUEUES)
    ]

    def is_visible(queue_id: int) -> bool:
        header = GetMaxOffsetRequest(topic=TOPIC, queue_id=queue_id)
        answer = call(port, RemotingCommand(RequestCode.GET_MAX_OFFSET, header.encode()))
        return int(answer.fields["offset"]) > sent[queue_id]

    for queue_id in range(QUEUES):
        wait_until(partial(is_visible, queue_id), 60, f"the messages of queue {queue_id}")
    return min(sent)


def _fill(port: int) -> None:
    """Send messages until there are enough for pulls."""
    for _ in range(60):
        if _shortest_queue(port) >= _MIN_MESSAGES:
            return
        load(port, batches(), connections=4, inflight=32, seconds=1, warmup=0)
    raise BenchError(f"a queue has not reached {_MIN_MESSAGES} messages in a minute")


def _measure(
    start: Start, folder: Path, seconds: float, rows: Collection[str], rejections: list[str]
) -> dict[str, float]:
    """The chosen rows of one broker; those with rejected requests are added to ``rejections``."""
    results: dict[str, float] = {}
    if "start" in rows:
        results["start"] = statistics.median(
            _seconds_to_listen(start, folder) for _ in range(_STARTS)
        )
    for is_synced, properties in ((False, {}), (True, _SYNC)):
        chosen = [key for key, work in _WORK.items() if key in rows and work.is_synced is is_synced]
        needs_memory = not is_synced and not {"memory", "memory-loaded"}.isdisjoint(rows)
        if not chosen and not needs_memory:
            continue
        with running(start, folder, properties) as (process, port):
            results.setdefault("memory", _private_mb(process.pid))
            if start is start_java:
                for key in ("64x1", "4x256"):
                    _run_load([], process, port, _WORK[key], _JVM_WARMUP_SECONDS / 4)
            for key in chosen:
                work = _WORK[key]
                if key.startswith("pull"):
                    _fill(port)
                found = _run_load(rejections, process, port, work, seconds)
                results[key] = found.per_second * work.messages
                results[f"{key} p50"] = found.p50_us
                results[f"{key} p99"] = found.p99_us
                results[f"{key} cpu"] = found.cpu_us / work.messages
            results.setdefault("memory-loaded", _private_mb(process.pid))
    return results


def _ceiling(seconds: float, work: _Work) -> float:
    """What the load generator reaches with a server that only answers, in requests a second."""
    frame = encode_frame(RemotingCommand(0, {"queueOffset": "1" * 200}, flag=1))
    with null_server(frame) as port:
        frames = sends(SerializeType.ROCKETMQ)
        return load(
            port, frames, connections=work.connections, inflight=work.inflight, seconds=seconds
        ).per_second


def _add_rows(report: Report, rows: Collection[str], found: Mapping[str, dict[str, float]]) -> None:
    ours, fallback, java = (found.get(column, {}) for column in COLUMNS)

    def add(text: str, unit: str, key: str, more_is_better: bool = False) -> None:
        report.add(
            Row(
                text, unit, ours.get(key), java.get(key), more_is_better, fallback=fallback.get(key)
            )
        )

    for key, work in _WORK.items():
        if key in rows:
            add(work.text, work.unit, key, True)
            add("  p50", "us", f"{key} p50")
            add("  p99", "us", f"{key} p99")
            add("  processor time per message", "us", f"{key} cpu")
    for key, (text, unit) in _OTHERS.items():
        if key in rows:
            add(text, unit, key)


def run(seconds: float, rows: Collection[str] = ROWS, columns: Collection[str] = COLUMNS) -> Report:
    """Measure some rows (see ``ROWS``) for some of the brokers (see ``COLUMNS``)."""
    report = Report("Broker, each alone on this machine; 100 B", f"RocketMQ {PEER_VERSION}")
    starts = {"goddard": start_ours, "fallback": start_fallback, "rocketmq": start_java}
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for column in COLUMNS:
            if column not in columns:
                continue
            if column == "rocketmq" and not (
                RELEASES[PEER_VERSION].is_complete and shutil.which("java")
            ):
                report.notes.append("RocketMQ was not measured: run `make peers` (Java 17+, Maven)")
                continue
            rejections: list[str] = []
            found[column] = _measure(starts[column], Path(folder), seconds, rows, rejections)
            report.notes += [f"{column}, not counted: {text}" for text in rejections]
    _add_rows(report, rows, found)
    ceilings = [
        f"{_ceiling(min(seconds, 2), _WORK[key]):,.0f}/s at {key}" for key in ("64x1", "4x256")
    ]
    report.notes.append(
        "limit of the load generator, measured with a null server: " + ", ".join(ceilings)
    )
    return report
