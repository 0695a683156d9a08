"""Goddard's name server compared with RocketMQ's: route queries, registration, memory, start-up.

Each server runs alone on one core, the load generator on another. The Java server gets the flags of
its start script (with a heap of 512 MiB) and a warm-up before each measurement.
"""

import contextlib
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.loadgen import SERVER_CORE, BenchError, Load, load, null_server, pinned
from bench.report import Report, Row
from goddard.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.headers.cluster import GetRouteRequest, RegisterBrokerRequest
from goddard.protocol.responses import check
from goddard.testing.ports import is_listening, lease_port
from goddard.testing.process import Process, wait_until
from tests.support.peers import RELEASES

_PEER_VERSION = "5.4.0"
_TOPICS = 5_000
_QUERIED_TOPICS = 256
_REGISTRATIONS = 20
_STARTS = 5

Start = Callable[[Path], tuple[Process, int]]


class _Caller:
    """A blocking connection: one request, one response."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._decoder = FrameDecoder()

    def close(self) -> None:
        self._socket.close()

    def call(self, command: RemotingCommand) -> RemotingCommand:
        self._socket.sendall(encode_frame(command))
        while True:
            data = self._socket.recv(1 << 18)
            if not data:
                raise BenchError("the name server closed the connection")
            for frame in self._decoder.feed(data):
                return check(decode_frame(frame))


def _topic(number: int) -> str:
    return f"BenchTopic{number:05d}"


def _registration(counter: int) -> RemotingCommand:
    topics = {
        _topic(i): TopicConfig(topic_name=_topic(i), read_queue_nums=8, write_queue_nums=8)
        for i in range(_TOPICS)
    }
    table = TopicConfigTable(
        topic_config_table=topics, data_version=DataVersion(counter=counter, timestamp=counter)
    )
    header = RegisterBrokerRequest(
        broker_name="bench-broker",
        broker_addr="127.0.0.1:10911",
        cluster_name="BenchCluster",
        ha_server_addr="127.0.0.1:10912",
        broker_id=0,
        enable_acting_master=False,
    )
    body = encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=table))
    return RemotingCommand(RequestCode.REGISTER_BROKER, header.encode(), body)


def _queries(kind: SerializeType) -> list[bytes]:
    return [
        encode_frame(
            RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                GetRouteRequest(topic=_topic(i * 7 % _TOPICS)).encode(),
                opaque=i,
                serialize_type=kind,
            )
        )
        for i in range(_QUERIED_TOPICS)
    ]


def _start_ours(folder: Path) -> tuple[Process, int]:
    port = lease_port()
    command = [sys.executable, "-m", "goddard.cli.main", "namesrv", "--port", str(port)]
    command += ["--home", str(folder / "home")]
    process = Process(
        "Goddard name server",
        pinned(SERVER_CORE, command),
        log=folder / "ours.log",
        ready="boot success",
    )
    return process, port


def _start_java(folder: Path) -> tuple[Process, int]:
    port = lease_port()
    home = folder / "java-home"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    config = home / "namesrv.conf"
    config.write_text(f"listenPort={port}\nkvConfigPath={home}/kv.json\n")
    release = RELEASES[_PEER_VERSION]
    java = shutil.which("java") or "java"
    command = [java, "-server", "-Xms512m", "-Xmx512m", f"-Duser.home={home}"]
    command += ["-cp", f"{release.lib}/*", "org.apache.rocketmq.namesrv.NamesrvStartup"]
    command += ["-c", str(config)]
    process = Process(
        f"RocketMQ {_PEER_VERSION} name server",
        pinned(SERVER_CORE, command),
        log=folder / "java.log",
        ready="boot success",
        env={"ROCKETMQ_HOME": str(home), "HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    return process, port


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchError("the memory of a process can be read on Linux only")


def _seconds_to_listen(start: Start, folder: Path) -> float:
    process, port = start(folder)
    with process:
        began = time.perf_counter()
        process.launch()
        wait_until(lambda: is_listening(port), 60, "the port to listen")
        return time.perf_counter() - began


@contextlib.contextmanager
def _registered(start: Start, folder: Path) -> Iterator[tuple[Process, int, list[float]]]:
    """A running server with the topics; also yields the duration of each registration in ms."""
    process, port = start(folder)
    with process:
        process.start()
        caller = _Caller(port)
        try:
            times = []
            for counter in range(_REGISTRATIONS):
                command = _registration(counter + 1)
                began = time.perf_counter()
                caller.call(command)
                times.append((time.perf_counter() - began) * 1000)
            yield process, port, times
        finally:
            caller.close()


def _measure(start: Start, folder: Path, seconds: float) -> dict[str, float]:
    results: dict[str, float] = {}
    starts = [_seconds_to_listen(start, folder) for _ in range(_STARTS)]
    results["start"] = statistics.median(starts)
    process, _ = start(folder)
    with process:
        process.start()
        results["idle_mb"] = _resident_mb(process.pid)
    with _registered(start, folder) as (process, port, times):
        results["register"] = statistics.median(times[len(times) // 2 :])

        def run(kind: SerializeType, connections: int, inflight: int) -> Load:
            result = load(
                port,
                _queries(kind),
                connections=connections,
                inflight=inflight,
                seconds=seconds,
                warmup=seconds,
            )
            if result.failures:
                raise BenchError(f"{result.failures} route queries failed")
            return result

        json_load = run(SerializeType.JSON, 64, 1)
        results["json_64"] = json_load.per_second
        results["json_p50"] = json_load.p50_us
        results["json_p99"] = json_load.p99_us
        results["binary_64"] = run(SerializeType.ROCKETMQ, 64, 1).per_second
        results["json_4x64"] = run(SerializeType.JSON, 4, 64).per_second
        results["loaded_mb"] = _resident_mb(process.pid)
    return results


def _ceiling(seconds: float) -> tuple[float, float]:
    frame = encode_frame(RemotingCommand(0, flag=1, body=b"x" * 400))
    with null_server(frame) as port:
        one = load(port, _queries(SerializeType.JSON), connections=64, inflight=1, seconds=seconds)
        many = load(port, _queries(SerializeType.JSON), connections=4, inflight=64, seconds=seconds)
    return one.per_second, many.per_second


def run(seconds: float) -> Report:
    report = Report("Name server, each on one core", f"RocketMQ {_PEER_VERSION}")
    with tempfile.TemporaryDirectory() as folder:
        ceiling_one, ceiling_many = _ceiling(seconds)
        ours = _measure(_start_ours, Path(folder), seconds)
        java: dict[str, float] = {}
        if RELEASES[_PEER_VERSION].is_complete and shutil.which("java"):
            java = _measure(_start_java, Path(folder), seconds)
        else:
            report.notes.append("RocketMQ was not measured: run `make peers` (Java 17+, Maven)")
    rows = (
        ("route queries, 64 connections x 1 in flight, JSON", "1/s", "json_64", True),
        ("the same, p50", "us", "json_p50", False),
        ("the same, p99", "us", "json_p99", False),
        ("the same, binary header", "1/s", "binary_64", True),
        ("route queries, 4 connections x 64 in flight, JSON", "1/s", "json_4x64", True),
        (f"registration of {_TOPICS:,} changed topics", "ms", "register", False),
        ("start to listening", "s", "start", False),
        ("resident after start", "MB", "idle_mb", False),
        ("resident after the load", "MB", "loaded_mb", False),
    )
    for work, unit, key, more_is_better in rows:
        report.add(Row(work, unit, ours[key], java.get(key), more_is_better))
    report.notes.append(
        f"limit of the load generator, measured with a null server: "
        f"{ceiling_one:,.0f}/s at 64 x 1, {ceiling_many:,.0f}/s at 4 x 64"
    )
    return report
