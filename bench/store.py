"""The store without a broker: appends, group commit, reads, dispatch, verification, recovery.

All measurements except recovery call the store in this process, so they show the cost of the store
and not the throughput of a broker. Recovery is compared with RocketMQ: both recover a copy of the
same directory after kill -9, measured from the start of the process until it is ready.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.loadgen import BenchError
from bench.report import Report, Row
from goddard.clock import SystemClock
from goddard.environment.files import SystemFiles
from goddard.environment.threads import new_thread_pool
from goddard.protocol.message import encode_properties
from goddard.protocol.record import Host
from goddard.store.check.inspect import StoreView
from goddard.store.check.verify import verify
from goddard.store.config import FlushMode, StoreConfig
from goddard.store.index.index import KeyIndex
from goddard.store.log.dispatch import Dispatcher
from goddard.store.log.records import (
    LogEntry,
    PreparedRecord,
    prepare_record,
)
from goddard.store.queues.table import QueueTable
from goddard.store.store import MessageStore
from tests.support.java import JavaPeers
from tests.support.peers import RELEASES

_PEER_VERSION = "5.4.0"
_HOST = Host.parse("127.0.0.1:10911")
_TOPIC = "BenchTopic"
_QUEUES = 4
_LOG_BYTES = int(os.environ.get("GODDARD_BENCH_LOG_BYTES", str(4 << 30)))


def _properties(number: int) -> bytes:
    return encode_properties({"TAGS": "TagA", "UNIQ_KEY": f"7F00000100002A9F{number:016X}"})


def _prepared(number: int, body: bytes) -> PreparedRecord:
    return prepare_record(
        topic=_TOPIC,
        queue_id=number % _QUEUES,
        body=body,
        properties=_properties(number),
        born_timestamp_ms=1_700_000_000_000,
        born_host=_HOST,
        store_host=_HOST,
    )


def _append_rate(folder: Path, body_bytes: int, group: int, seconds: float) -> float:
    """Messages per second through ``put_many``, without the time to create the records."""
    body = b"x" * body_bytes
    with MessageStore(StoreConfig(root=folder)) as store:
        spent, count = 0.0, 0
        while spent < seconds:
            groups = [
                [_prepared(number + i, body) for i in range(group)]
                for number in range(0, 4096, group)
            ]
            began = time.perf_counter()
            for records in groups:
                store.put_many(records)
            spent += time.perf_counter() - began
            count += 4096 // group * group
    shutil.rmtree(folder)
    return count / spent


def _prepare_us(body_bytes: int) -> float:
    body = b"x" * body_bytes
    numbers = range(20_000)
    began = time.perf_counter()
    for number in numbers:
        _prepared(number, body)
    return (time.perf_counter() - began) / len(numbers) * 1e6


def _setter(event: threading.Event) -> Callable[[object], None]:
    return lambda _: event.set()


def _dispatch_us(folder: Path, group: int) -> float:
    """Microseconds per record to write its queue and index entries, in groups."""
    files, clock = SystemFiles(), SystemClock()
    queues = QueueTable(
        files,
        folder / "queues",
        file_bytes=6_000_000,
        open_capacity=64,
        new_executor=new_thread_pool,
    )
    index = KeyIndex(
        files, folder / "index", clock, slots=500_000, entries=2_000_000, is_tag_indexed=False
    )
    queues.load(lambda *_: True, 0)
    index.load()
    dispatcher = Dispatcher(queues, index)
    count = 65_536
    now_ms = clock.now_ms()
    entries = [
        LogEntry(
            _TOPIC, i % _QUEUES, i // _QUEUES, i * 250, 250, 2598919, now_ms, 0, _properties(i)
        )
        for i in range(count)
    ]
    began = time.perf_counter()
    for first in range(0, count, group):
        dispatcher.apply(entries[first : first + group])
    dispatcher.write_pending()
    spent = time.perf_counter() - began
    queues.close()
    index.close()
    shutil.rmtree(folder)
    return spent / count * 1e6


def _commit_rate(folder: Path, waiting: int, seconds: float) -> float:
    """Messages per second made durable by group commit, with ``waiting`` messages per commit."""
    body = b"x" * 100
    config = StoreConfig(root=folder, flush_mode=FlushMode.SYNC, segment_bytes=256 << 20)
    with MessageStore(config) as store:
        count = 0
        began = time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            records = [_prepared(count + i, body) for i in range(waiting)]
            entries = store.put_many(records)
            durable = threading.Event()
            store.wait_durable(entries[-1].end_offset, _setter(durable))
            if not durable.wait(30):
                raise BenchError("a group commit did not end within 30 s")
            count += waiting
    shutil.rmtree(folder)
    return count / spent


def _read_rate(store: MessageStore, batch_size: int, seconds: float) -> float:
    """Messages per second of reads like pulls, over one queue from its start, repeatedly."""
    queue_offset, count = 0, 0
    limit = store.max_offset(_TOPIC, 0) - batch_size
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        found = store.get(_TOPIC, 0, queue_offset, batch_size, max_bytes=4 << 20)
        count += len(found.queue_offsets)
        queue_offset = found.next_offset if found.next_offset < limit else 0
    return count / spent


def _fill(folder: Path, log_bytes: int, body_bytes: int) -> None:
    """Write a log of that size in another process, which is then killed with SIGKILL."""
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from bench.store import _prepared, StoreConfig, MessageStore\n"
        "store = MessageStore(StoreConfig(root=Path(sys.argv[1])))\n"
        "store.open()\n"
        "body = os.urandom(int(sys.argv[3]))\n"
        "number = 0\n"
        "while store.log_max_offset < int(sys.argv[2]):\n"
        "    store.put_many([_prepared(number + i, body) for i in range(64)])\n"
        "    number += 64\n"
        "store.flush(); store.tick()\n"
        "print('written', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(folder), str(log_bytes), str(body_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        line = writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait(timeout=30)
    if line.strip() != "written":
        raise BenchError("the writer of the log ended early")


def _open_seconds(folder: Path) -> tuple[float, float]:
    """Recovery in a new process: seconds, and private memory in megabytes after opening."""
    script = (
        "import sys, time\n"
        "began = time.perf_counter()\n"
        "from pathlib import Path\n"
        "from bench.store import StoreConfig, MessageStore\n"
        "store = MessageStore(StoreConfig(root=Path(sys.argv[1])))\n"
        "store.open()\n"
        "spent = time.perf_counter() - began\n"
        "status = Path('/proc/self/status').read_text().split()\n"
        "print(spent, int(status[status.index('RssAnon:') + 1]) / 1024, flush=True)\n"
        "store.close()\n"
    )
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    spent, private = done.stdout.split()
    return float(spent), float(private)


def _java_seconds(folder: Path, work: Path) -> float:
    with JavaPeers(_PEER_VERSION, work) as java:
        properties = {
            "mappedFileSizeCommitLog": str(1 << 30),
            "mappedFileSizeConsumeQueue": "6000000",
            "maxHashSlotNum": "5000000",
            "maxIndexNum": "20000000",
        }
        began = time.perf_counter()
        java.start_broker(store_dir=folder, properties=properties, heap_mib=2048)
        return time.perf_counter() - began


def _java_start_seconds(work: Path) -> float:
    with JavaPeers(_PEER_VERSION, work) as java:
        began = time.perf_counter()
        java.start_broker(heap_mib=2048)
        return time.perf_counter() - began


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run(seconds: float) -> Report:
    report = Report("Store", f"RocketMQ {_PEER_VERSION}")
    with tempfile.TemporaryDirectory(prefix="goddard-bench-") as name:
        root = Path(name)
        for body_bytes in (100, 1024):
            for group in (1, 32):
                rate = _append_rate(root / "append", body_bytes, group, seconds)
                work = f"append {body_bytes} B, groups of {group} (queues and index included)"
                report.add(Row(work, "1/s", rate))
                report.add(Row("the same", "us/message", 1e6 / rate, more_is_better=False))
        report.add(Row("checking and encoding one (PreparedRecord)", "us", _prepare_us(100)))
        for group in (32, 1024):
            cost = _dispatch_us(root / "dispatch", group)
            report.add(Row(f"dispatch, groups of {group} (queue and index entry)", "us", cost))
        for waiting in (64, 512):
            rate = _commit_rate(root / "commit", waiting, seconds)
            report.add(Row(f"group commit, {waiting} waiting", "1/s", rate))
        _measure_log(report, root, seconds)
    return report


def _measure_log(report: Report, root: Path, seconds: float) -> None:
    log = root / "log"
    _fill(log, _LOG_BYTES, 1024)
    size = f"{_LOG_BYTES / (1 << 30):.1f} GiB"
    has_java = RELEASES[_PEER_VERSION].is_complete and shutil.which("java") is not None
    recovery: float | None = None
    if has_java:
        copy = root / "log-for-java"
        subprocess.run(["cp", "-r", "--sparse=always", log, copy], check=True, timeout=900)
        recovery = _java_seconds(copy, root / "java")
        shutil.rmtree(copy)
    spent, private = _open_seconds(log)
    report.add(Row(f"recovery of {size} after kill -9, 1 KB records", "s", spent, recovery, False))
    if has_java:
        plain_start = statistics.median([_java_start_seconds(root / f"java-{i}") for i in range(3)])
        report.notes.append(f"RocketMQ starts in {plain_start:.1f} s without anything to recover")
    report.add(Row(f"private memory with {size} open", "MB", private))
    view = StoreView(log)
    verified = _timed(lambda: verify(view))
    report.add(Row("verify", "MB/s", _LOG_BYTES / 1e6 / verified))
    with MessageStore(StoreConfig(root=log)) as store:
        for batch_size in (32, 256):
            rate = _read_rate(store, batch_size, seconds)
            report.add(Row(f"reads of {batch_size} x 1 KB, sequential", "1/s", rate))
