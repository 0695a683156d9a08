"""A master and one slave, Goddard's pair compared with RocketMQ's: what replication costs.

SYNC_MASTER (``inSyncReplicas=2``, so that both wait for the slave): sends, 64 x 1. ASYNC_MASTER:
the same sends without a slave and with one. Catch-up: how fast an empty slave copies a log, from
its first bytes to the end. Both brokers, the load generator and a name server share this machine.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from bench.broker import PEER_VERSION, Start, start_java, start_ours
from bench.broker_requests import QUEUES, batches, call, send, sends
from bench.loadgen import BenchError, Load, load
from bench.report import Report, Row
from goddard.protocol.bodies import KvTable, decode_body
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import ResponseError
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from tests.support.peers import RELEASES

_JVM_WARMUP_SECONDS: Final = 10.0
_CATCH_UP_BYTES: Final = 400 << 20
_MAX_FILL_SECONDS: Final = 60
_SYNC: Final = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
_MB: Final = 1e6


def _log_end(port: int) -> int:
    try:
        answer = call(port, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    except ResponseError:  # of RocketMQ, as long as the log is empty
        return 0
    return int(decode_body(answer.body, KvTable).table["commitLogMaxOffset"])


@contextlib.contextmanager
def _running(
    start: Start, home: Path, properties: Mapping[str, str]
) -> Iterator[tuple[Process, int]]:
    process, port = start(home, properties)
    with process:
        process.start()
        yield process, port
    shutil.rmtree(home, ignore_errors=True)


def _slave(namesrv: str) -> dict[str, str]:
    return {"namesrvAddr": namesrv, "brokerRole": "SLAVE", "brokerId": "1"}


def _wait_level(master: int, slave: int) -> None:
    wait_until(lambda: _log_end(slave) >= _log_end(master) > 0, 60, "the slave to be level")


def _create_topic(port: int) -> None:
    for number in range(QUEUES):
        call(port, send(number, SerializeType.JSON))


def _sends(process: Process, port: int, seconds: float, *, is_java: bool) -> Load:
    frames = sends(SerializeType.ROCKETMQ)
    warmup = _JVM_WARMUP_SECONDS if is_java else 1.0
    found = load(
        port, frames, connections=64, inflight=1, seconds=seconds, warmup=warmup, pid=process.pid
    )
    if found.failures:
        raise BenchError(f"{found.failures} sends failed: {found.first_failure}")
    return found


def _catch_up(start: Start, folder: Path, namesrv: str, master: int) -> float:
    """Megabytes a second from the slave's first bytes to the master's end."""
    deadline = time.monotonic() + _MAX_FILL_SECONDS
    while _log_end(master) < _CATCH_UP_BYTES:
        if time.monotonic() > deadline:
            raise BenchError("the log was not filled within a minute")
        load(master, batches(), connections=4, inflight=32, seconds=1, warmup=0)
    end = _log_end(master)
    with _running(start, folder / "empty", _slave(namesrv)) as (_, slave):
        wait_until(lambda: _log_end(slave) > 0, 60, "the first bytes")
        began, first = time.perf_counter(), _log_end(slave)
        wait_until(lambda: _log_end(slave) >= end, 120, "the whole log")
        return (end - first) / (time.perf_counter() - began) / _MB


def _measure(start: Start, folder: Path, namesrv: str, seconds: float) -> dict[str, float]:
    is_java = start is start_java
    found: dict[str, float] = {}
    names = {"namesrvAddr": namesrv}
    with _running(start, folder / "async", names) as (master, port):
        _create_topic(port)
        found["alone"] = _sends(master, port, seconds, is_java=is_java).per_second
        with _running(start, folder / "slave", _slave(namesrv)) as (_, slave):
            _wait_level(port, slave)
            found["async"] = _sends(master, port, seconds, is_java=is_java).per_second
        found["catch-up"] = _catch_up(start, folder, namesrv, port)
    with (
        _running(start, folder / "sync", {**names, **_SYNC, "slaveTimeout": "30000"}) as (
            master,
            port,
        ),
        _running(start, folder / "slave", _slave(namesrv)) as (_, slave),
    ):
        _create_topic(port)
        _wait_level(port, slave)
        synced = _sends(master, port, seconds, is_java=is_java)
        found["sync"], found["sync p50"] = synced.per_second, synced.p50_us
        found["sync p99"] = synced.p99_us
    return found


def run(seconds: float) -> Report:
    report = Report("Master and slave on this machine; 100 B", f"RocketMQ {PEER_VERSION}")
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        starts: list[tuple[str, Start]] = [("goddard", start_ours)]
        if RELEASES[PEER_VERSION].is_complete and shutil.which("java"):
            starts.append(("rocketmq", start_java))
        else:
            report.notes.append("RocketMQ was not measured: run `make peers` (Java 17+, Maven)")
        for name, start in starts:
            home = Path(folder) / name
            with Cluster(home) as cluster:
                names = cluster.start_name_server()
                found.append(_measure(start, home, names.address, seconds))
    ours, java = [*found, {}][:2]

    def add(text: str, unit: str, key: str, *, more_is_better: bool = True) -> None:
        report.add(Row(text, unit, ours.get(key), java.get(key), more_is_better))

    add("SYNC_MASTER, sends, 64 x 1", "1/s", "sync")
    add("  p50", "us", "sync p50", more_is_better=False)
    add("  p99", "us", "sync p99", more_is_better=False)
    add("ASYNC_MASTER without a slave, sends, 64 x 1", "1/s", "alone")
    add("ASYNC_MASTER with a slave, sends, 64 x 1", "1/s", "async")
    add("catch-up of an empty slave", "MB/s", "catch-up")
    return report
