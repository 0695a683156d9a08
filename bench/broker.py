"""Goddard's broker compared with RocketMQ's: sends, batches, pulls, SYNC_FLUSH, start-up, memory.

Each broker runs alone, with its defaults (files of 1 GiB, ASYNC_FLUSH unless stated) and four
queues. Both may use every core of the machine; the load generator is bound to one of them. The Java
broker gets a heap of 2 GiB and a warm-up before each measurement. Both get long limits for "system
busy" (``waitTimeMillsInSendQueue``, ``osPageCacheBusyTimeOutMills``), because throughput is
measured and not flow control. Rejected requests do not count; the report says how many there were,
and why.
"""

import contextlib
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from bench.loadgen import BenchError, Load, load, null_server
from bench.report import Report, Row
from goddard import config
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.headers.message import (
    GetMaxOffsetRequest,
    PullRequest,
    SendRequest,
    SendRequestV2,
)
from goddard.protocol.message import BatchEntry, encode_batch, format_properties
from goddard.protocol.responses import check
from goddard.testing.ports import is_listening, lease_port
from goddard.testing.process import Process, wait_until
from tests.support.peers import RELEASES

PEER_VERSION = "5.4.0"
_TOPIC = "BenchTopic"
_QUEUES = 4
_BODY = b"x" * 100
_BATCH = 32
_FRAMES = 1024
_STARTS = 3
_MAX_REJECTED = 0.5  # share of rejected requests in one measurement; more is an error
_SYNC = {"flushDiskType": "SYNC_FLUSH"}
_OPENED = ("java.nio", "jdk.internal.ref", "java.util", "sun.nio.ch")
_EXPORTED = ("jdk.internal.ref", "sun.nio.ch", "jdk.internal.misc")

Start = Callable[[Path, Mapping[str, str]], tuple[Process, int]]


# Requests


def _properties(number: int) -> dict[str, str]:
    return {
        "KEYS": f"key{number}",
        "UNIQ_KEY": f"7F0000014E9F5FFD2B274A04{number:08X}",
        "WAIT": "true",
        "TAGS": "TagA",
    }


def _send(
    number: int,
    kind: SerializeType,
    *,
    body: bytes = _BODY,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
) -> RemotingCommand:
    is_batch = code is RequestCode.SEND_BATCH_MESSAGE
    header = SendRequest(
        producer_group="BenchProducers",
        topic=_TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=_QUEUES,
        queue_id=number % _QUEUES,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=format_properties({"WAIT": "true"} if is_batch else _properties(number)),
        reconsume_times=0,
        unit_mode=False,
        batch=is_batch,
        bname="bench",
    )
    fields = SendRequestV2.from_v1(header).encode()
    return RemotingCommand(code, fields, body, opaque=number, serialize_type=kind)


def _sends(kind: SerializeType) -> list[bytes]:
    return [encode_frame(_send(number, kind)) for number in range(_FRAMES)]


def _batches() -> list[bytes]:
    frames = []
    for number in range(_FRAMES // 4):
        entries = [
            BatchEntry(_BODY, format_properties(_properties(number * _BATCH + at)).encode())
            for at in range(_BATCH)
        ]
        command = _send(
            number,
            SerializeType.ROCKETMQ,
            body=encode_batch(entries),
            code=RequestCode.SEND_BATCH_MESSAGE,
        )
        frames.append(encode_frame(command))
    return frames


def _pulls(available: int) -> list[bytes]:
    """Pulls of 32 messages each, spread over the messages of all queues."""
    frames = []
    steps = max(available // _BATCH, 1)
    for number in range(_FRAMES):
        header = PullRequest(
            consumer_group="BenchConsumers",
            topic=_TOPIC,
            queue_id=number % _QUEUES,
            queue_offset=number * 7919 % steps * _BATCH,
            max_msg_nums=_BATCH,
            sys_flag=4,  # the subscription is in this header
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        command = RemotingCommand(
            RequestCode.PULL_MESSAGE,
            header.encode(),
            opaque=number,
            serialize_type=SerializeType.ROCKETMQ,
        )
        frames.append(encode_frame(command))
    return frames


def _call(port: int, command: RemotingCommand) -> RemotingCommand:
    decoder = FrameDecoder()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(encode_frame(command))
        while True:
            data = connection.recv(1 << 18)
            if not data:
                raise BenchError("the broker closed the connection")
            for frame in decoder.feed(data):
                return check(decode_frame(frame))


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
        **properties,
    }
    path.write_text(config.format_properties(settings))
    return path


def start_ours(home: Path, properties: Mapping[str, str]) -> tuple[Process, int]:
    port = lease_port(-2, 1)
    path = _write_config(home, port, properties)
    command = [sys.executable, "-m", "goddard.cli.main", "broker", "-c", str(path)]
    command += ["--home", str(home)]
    return Process("Goddard broker", command, log=home / "out.log", ready="boot success"), port


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
def _running(
    start: Start, folder: Path, properties: Mapping[str, str]
) -> Iterator[tuple[Process, int]]:
    """A new broker with the topic."""
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as home:
        process, port = start(Path(home), properties)
        with process:
            process.start()
            for number in range(_QUEUES):
                _call(port, _send(number, SerializeType.JSON))
            yield process, port


# Measuring


def _run_load(
    rejections: list[str],
    port: int,
    frames: list[bytes],
    connections: int,
    inflight: int,
    seconds: float,
) -> Load:
    result = load(
        port,
        frames,
        connections=connections,
        inflight=inflight,
        seconds=seconds,
        warmup=seconds,
    )
    if result.failures:
        text = (
            f"{connections} x {inflight}: {result.failures} of {result.responses} requests were"
            f" rejected ({result.first_failure})"
        )
        if result.failures > result.responses * _MAX_REJECTED:
            raise BenchError(text)
        rejections.append(text)
    return result


def _shortest_queue(port: int) -> int:
    """The number of messages in the shortest queue, after all sent messages can be pulled."""
    sent = [
        int(_call(port, _send(number, SerializeType.JSON)).fields["queueOffset"])
        for number in range(_QUEUES)
    ]

    def is_visible(queue_id: int) -> bool:
        header = GetMaxOffsetRequest(topic=_TOPIC, queue_id=queue_id)
        answer = _call(port, RemotingCommand(RequestCode.GET_MAX_OFFSET, header.encode()))
        return int(answer.fields["offset"]) > sent[queue_id]

    for queue_id in range(_QUEUES):
        wait_until(partial(is_visible, queue_id), 60, f"the messages of queue {queue_id}")
    return min(sent)


def _measure(start: Start, folder: Path, seconds: float, rejections: list[str]) -> dict[str, float]:
    """All measurements of one broker; those with rejected requests are added to ``rejections``."""
    measured = partial(_run_load, rejections)
    results = {
        "start": statistics.median(_seconds_to_listen(start, folder) for _ in range(_STARTS))
    }
    with _running(start, folder, {}) as (process, port):
        results["idle_mb"] = _private_mb(process.pid)
        binary, json = _sends(SerializeType.ROCKETMQ), _sends(SerializeType.JSON)
        measured(port, binary, 64, 1, seconds)  # for the JVM
        many = measured(port, binary, 64, 1, seconds)
        results["binary_64"], results["binary_p50"], results["binary_p99"] = (
            many.per_second,
            many.p50_us,
            many.p99_us,
        )
        results["json_64"] = measured(port, json, 64, 1, seconds).per_second
        results["json_4x256"] = measured(port, json, 4, 256, seconds).per_second
        results["binary_4x256"] = measured(port, binary, 4, 256, seconds).per_second
        one = measured(port, binary, 1, 1, seconds)
        results["one_p50"], results["one_p99"] = one.p50_us, one.p99_us
        results["batch"] = measured(port, _batches(), 4, 32, seconds).per_second * _BATCH
        pulls = _pulls(min(_shortest_queue(port), 1_000_000))
        results["pull"] = measured(port, pulls, 4, 16, seconds).per_second * _BATCH
        results["loaded_mb"] = _private_mb(process.pid)
    with _running(start, folder, _SYNC) as (_, port):
        synced = measured(port, _sends(SerializeType.ROCKETMQ), 64, 1, seconds)
        results["sync_64"], results["sync_p50"] = synced.per_second, synced.p50_us
    return results


def _ceiling(seconds: float) -> tuple[float, float]:
    frame = encode_frame(RemotingCommand(0, {"queueOffset": "1" * 200}, flag=1))
    frames = _sends(SerializeType.ROCKETMQ)
    with null_server(frame) as port:
        one = load(port, frames, connections=64, inflight=1, seconds=seconds)
        many = load(port, frames, connections=4, inflight=256, seconds=seconds)
    return one.per_second, many.per_second


_ROWS = (
    ("sends of 100 B, 64 connections x 1 in flight, binary header", "1/s", "binary_64", True),
    ("the same, p50", "us", "binary_p50", False),
    ("the same, p99", "us", "binary_p99", False),
    ("the same, JSON header", "1/s", "json_64", True),
    ("sends, 4 connections x 256 in flight, JSON header", "1/s", "json_4x256", True),
    ("the same, binary header", "1/s", "binary_4x256", True),
    ("sends, 1 connection x 1 in flight, p50", "us", "one_p50", False),
    ("the same, p99", "us", "one_p99", False),
    ("batches of 32, 4 connections x 32 in flight", "messages/s", "batch", True),
    ("pulls of 32, 4 connections x 16 in flight", "messages/s", "pull", True),
    ("sends with SYNC_FLUSH, 64 connections x 1 in flight", "1/s", "sync_64", True),
    ("the same, p50", "us", "sync_p50", False),
    ("start to listening", "s", "start", False),
    ("private memory after start", "MB", "idle_mb", False),
    ("private memory after the load", "MB", "loaded_mb", False),
)


def run(seconds: float) -> Report:
    report = Report("Broker, each alone on this machine", f"RocketMQ {PEER_VERSION}")
    with tempfile.TemporaryDirectory() as folder:
        ceiling_one, ceiling_many = _ceiling(seconds)
        rejections: dict[str, list[str]] = {"Goddard": [], "RocketMQ": []}
        ours = _measure(start_ours, Path(folder), seconds, rejections["Goddard"])
        java: dict[str, float] = {}
        if RELEASES[PEER_VERSION].is_complete and shutil.which("java"):
            java = _measure(start_java, Path(folder), seconds, rejections["RocketMQ"])
        else:
            report.notes.append("RocketMQ was not measured: run `make peers` (Java 17+, Maven)")
    for work, unit, key, more_is_better in _ROWS:
        report.add(Row(work, unit, ours[key], java.get(key), more_is_better))
    report.notes += [
        f"{name}, not counted: {text}" for name, texts in rejections.items() for text in texts
    ]
    report.notes.append(
        "limit of the load generator, measured with a null server: "
        f"{ceiling_one:,.0f}/s at 64 x 1, {ceiling_many:,.0f}/s at 4 x 256"
    )
    return report
