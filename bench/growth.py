"""How a broker's cost per message grows with topics, connections, groups and the size of its log.

Each part runs the same load while one number grows. A curve that stays flat means that a message
costs the same. The curves show processor time, which other load of the machine disturbs less than
rates, and for the creation of topics the rate. Goddard and RocketMQ run one after the other, each
alone, as in ``bench.broker``. If a step fails (RocketMQ maps a file for each queue, for example),
the part ends there, and the report says why.
"""

import contextlib
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from bench.broker import PEER_VERSION, Start, running, start_java, start_ours
from bench.broker_requests import BATCH, TOPIC, batches, call, pulls, send, sends
from bench.growth_plot import Curve, plot
from bench.loadgen import BenchError, Load, load
from bench.report import Report, Row
from goddard.errors import GoddardError
from goddard.protocol.bodies import TopicConfig, encode_body
from goddard.protocol.bodies_admin import TopicConfigList
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.headers.admin import CreateTopicRequest
from goddard.protocol.headers.message import GetMaxOffsetRequest
from goddard.protocol.responses import check
from goddard.testing.process import Process
from tests.support.peers import RELEASES

PARTS: Final = ("topics", "connections", "groups", "log")
TOPICS: Final = (1, 10, 100, 1_000, 10_000)
CONNECTIONS: Final = (1, 64, 500, 1_000, 2_000, 5_000)
GROUPS: Final = (10, 100, 1_000, 10_000)
LOG_GB: Final = (1, 2, 4, 8, 20)
_CREATED: Final = 256
_CREATED_TOGETHER: Final = 32
_TOPICS_PER_REQUEST: Final = 500
_LOG_BODY_BYTES: Final = 4_000
_JVM_WARMUP_SECONDS: Final = 15.0
_PICTURE: Final = Path(__file__).parent / "results" / "growth.svg"
_MIN_FILES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Point:
    """One step: requests (or creations) a second, and processor time of the broker for each."""

    size: int
    per_second: float
    cpu_us: float = 0.0


Points: TypeAlias = list[Point]
# By the name of the curve.
Results: TypeAlias = dict[str, Points]


class _Requests:
    """One connection for requests that wait for their responses."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._decoder = FrameDecoder()

    def call(self, *commands: RemotingCommand) -> None:
        """Send requests at once, and wait for all responses."""
        self._socket.sendall(b"".join(map(encode_frame, commands)))
        answered = 0
        while answered < len(commands):
            data = self._socket.recv(1 << 18)
            if not data:
                raise BenchError("the broker closed the connection")
            for frame in self._decoder.feed(data):
                check(decode_frame(frame))
                answered += 1

    def close(self) -> None:
        self._socket.close()


def _create(port: int, names: Sequence[str]) -> None:
    """Create topics of one queue, many per request."""
    with contextlib.closing(_Requests(port)) as requests:
        for start in range(0, len(names), _TOPICS_PER_REQUEST):
            configs = [
                TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
                for name in names[start : start + _TOPICS_PER_REQUEST]
            ]
            body = encode_body(TopicConfigList(topic_config_list=configs))
            requests.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body))


def _created_per_second(port: int, prefix: str, at_once: int) -> float:
    """Create some topics, so many with requests that are sent together."""
    commands = []
    for number in range(_CREATED):
        header = CreateTopicRequest(
            topic=f"{prefix}{number}",
            default_topic="TBW102",
            read_queue_nums=1,
            write_queue_nums=1,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        commands.append(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
    with contextlib.closing(_Requests(port)) as requests:
        began = time.perf_counter()
        for start in range(0, _CREATED, at_once):
            requests.call(*commands[start : start + at_once])
        return _CREATED / (time.perf_counter() - began)


def _load(
    process: Process,
    port: int,
    frames: Sequence[bytes],
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
        warmup=max(1.0, seconds / 2),
        pid=process.pid,
    )
    if result.failures > result.responses // 2:
        raise BenchError(f"{result.failures} requests were rejected: {result.first_failure}")
    return result


class _Growth:
    """The parts at one broker, whose process and port are given."""

    def __init__(
        self, process: Process, port: int, seconds: float, log_gb: int, notes: list[str]
    ) -> None:
        self._process = process
        self._port = port
        self._seconds = seconds
        self._log_gb = log_gb
        self._notes = notes
        self._written = 0

    def warm_up(self) -> None:
        for connections, inflight in ((64, 1), (4, 256)):
            frames = sends(SerializeType.ROCKETMQ)
            _load(self._process, self._port, frames, connections, inflight, _JVM_WARMUP_SECONDS / 2)

    def run(self, part: str, results: Results) -> None:
        steps: Mapping[str, Callable[[], Iterator[tuple[str, Point]]]] = {
            "topics": self._topics,
            "connections": self._connections,
            "groups": self._groups,
            "log": self._log,
        }
        try:
            for curve, point in steps[part]():
                results.setdefault(curve, []).append(point)
        except (BenchError, GoddardError, OSError) as error:
            self._notes.append(f"{self._process.name}, {part}: stopped: {error}")

    def _measure(
        self, size: int, frames: Sequence[bytes], connections: int, inflight: int
    ) -> Point:
        found = _load(self._process, self._port, frames, connections, inflight, self._seconds)
        return Point(size, found.per_second, found.cpu_us)

    def _topics(self) -> Iterator[tuple[str, Point]]:
        names: list[str] = []
        for count in TOPICS:
            _create(self._port, [f"Growth{number}" for number in range(len(names), count)])
            names = [f"Growth{number}" for number in range(count)]
            frames = [
                encode_frame(send(number, SerializeType.ROCKETMQ, topic=names[number % count]))
                for number in range(max(count, 1024))
            ]
            # Each topic gets its first messages, and with them its files, before.
            _load(self._process, self._port, frames, 4, 256, self._seconds)
            yield "topics", self._measure(count, frames, 4, 256)
            created = _created_per_second(self._port, f"After{count}x", 1)
            yield "creating topics", Point(count, created)
            created = _created_per_second(self._port, f"More{count}x", _CREATED_TOGETHER)
            yield "creating topics together", Point(count, created)

    def _connections(self) -> Iterator[tuple[str, Point]]:
        frames = sends(SerializeType.ROCKETMQ)
        for count in CONNECTIONS:
            yield "connections", self._measure(count, frames, count, 1)

    def _groups(self) -> Iterator[tuple[str, Point]]:
        for _ in range(5):
            load(self._port, batches(), connections=4, inflight=32, seconds=0.3, warmup=0)
        time.sleep(1)  # RocketMQ's queues follow its log
        header = GetMaxOffsetRequest(topic=TOPIC, queue_id=0)
        answer = call(self._port, RemotingCommand(RequestCode.GET_MAX_OFFSET, header.encode()))
        available = min(int(answer.fields["offset"]) // 2, 50_000)
        for count in GROUPS:
            frames = pulls(available, BATCH, groups=count, count=max(count, 1024))
            # Each group is created before.
            _load(self._process, self._port, frames, 4, 16, self._seconds)
            yield "groups", self._measure(count, frames, 4, 16)

    def _log(self) -> Iterator[tuple[str, Point]]:
        frames = sends(SerializeType.ROCKETMQ)
        large = [
            encode_frame(send(number, SerializeType.ROCKETMQ, body=b"x" * _LOG_BODY_BYTES))
            for number in range(256)
        ]
        for gigabytes in LOG_GB:
            if gigabytes > self._log_gb:
                return
            while self._written < gigabytes << 30:
                result = load(self._port, large, connections=4, inflight=64, seconds=0.5, warmup=0)
                self._written += (result.responses - result.failures) * (_LOG_BODY_BYTES + 250)
            yield "log", self._measure(gigabytes, frames, 4, 256)


def run(seconds: float, parts: Sequence[str] = PARTS, log_gb: int = 4) -> Report:
    """Measure some parts; ``log_gb`` is the longest log that is written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _MIN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_MIN_FILES, hard), hard))
    report = Report("Growth, each broker alone on this machine; 100 B", f"RocketMQ {PEER_VERSION}")
    results: dict[str, Results] = {}
    brokers: dict[str, Start] = {"goddard": start_ours}
    if RELEASES[PEER_VERSION].is_complete and shutil.which("java"):
        brokers["rocketmq"] = start_java
    else:
        report.notes.append("RocketMQ was not measured: run `make peers` (Java 17+, Maven)")
    with tempfile.TemporaryDirectory() as folder:
        for name, start in brokers.items():
            results[name] = {}
            for part in parts:
                with running(start, Path(folder), {}) as (process, port):
                    growth = _Growth(process, port, seconds, log_gb, report.notes)
                    if start is start_java:
                        growth.warm_up()
                    growth.run(part, results[name])
    _add_rows(report, results)
    _PICTURE.parent.mkdir(exist_ok=True)
    _PICTURE.write_text(plot(_curves(results)))
    report.notes.append(f"the log was grown to {log_gb} GiB; curves: {_PICTURE}")
    return report


# Of each curve: the text of a row, the title of its panel, and the name of its sizes.
_TEXTS: Final = {
    "topics": ("sends to {} topics, 4 x 256", "us for a send, 4 x 256", "topics"),
    "creating topics": (
        "creating topics one by one when {} exist",
        "creations one by one, 1/s",
        "topics that exist",
    ),
    "creating topics together": (
        "creating 32 topics at a time when {} exist",
        "creations, 32 at a time, 1/s",
        "topics that exist",
    ),
    "connections": (
        "sends of {} connections x 1",
        "us for a send, one in flight each",
        "connections",
    ),
    "groups": ("pulls of 32 by {} groups, 4 x 16", "us for a pull of 32, 4 x 16", "groups"),
    "log": ("sends with a log of {} GiB, 4 x 256", "us for a send, 4 x 256", "GiB of log"),
}


def _add_rows(report: Report, results: Mapping[str, Results]) -> None:
    for curve, (text, _, _) in _TEXTS.items():
        ours = {point.size: point for point in results["goddard"].get(curve, ())}
        theirs = {point.size: point for point in results.get("rocketmq", {}).get(curve, ())}
        for size in sorted({*ours, *theirs}):
            mine, peer = ours.get(size), theirs.get(size)
            rate, peer_rate = _values(mine, peer, lambda point: point.per_second)
            report.add(Row(text.format(f"{size:,}"), "1/s", rate, peer_rate))
            if not curve.startswith("creating"):
                cost, peer_cost = _values(mine, peer, lambda point: point.cpu_us)
                report.add(Row("  processor time for each", "us", cost, peer_cost, False))


def _values(
    mine: Point | None, peer: Point | None, value: Callable[[Point], float]
) -> tuple[float | None, float | None]:
    return None if mine is None else value(mine), None if peer is None else value(peer)


def _curves(results: Mapping[str, Results]) -> list[tuple[str, str, list[Curve]]]:
    panels = []
    for curve, (_, title, axis) in _TEXTS.items():
        lines = [
            Curve(name, [(point.size, point.cpu_us or point.per_second) for point in found[curve]])
            for name, found in results.items()
            if curve in found
        ]
        if lines:
            panels.append((title, axis, lines))
    return panels
