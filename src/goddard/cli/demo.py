"""``goddard demo``: a cluster that works for a few seconds, in a folder that is then deleted.

A name server and two brokers run inside this process and use real connections, RocketMQ's protocol
and RocketMQ's files. If Spark is installed, a pipeline in a separate process reads all messages and
draws a chart, which is kept.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.cli.render import print_table
from goddard.config import NameServerConfig
from goddard.nameserver.server import NameServer
from goddard.protocol.bodies import TopicRoute, decode_body
from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import CreateTopicRequest
from goddard.protocol.headers.cluster import GetRouteRequest
from goddard.protocol.headers.message import (
    EndTransactionRequest,
    PullRequest,
    SendRequestV2,
    SendResponse,
)
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.message import TransactionType, format_properties
from goddard.protocol.record import iter_records
from goddard.protocol.responses import check
from goddard.store.check.inspect import StoreView
from goddard.store.check.verify import verify
from goddard.transport.client import Client
from goddard.transport.loop import run

_BROKERS: Final = ("broker-a", "broker-b")
_TOPIC: Final = "orders"
_QUEUES: Final = 4
_MESSAGES: Final = 10_000
_IN_FLIGHT: Final = 256
_TIMEOUT_MS: Final = 5_000
_GROUP: Final = "demo"
_WITH_SUBSCRIPTION: Final = 4
_SUSPEND: Final = 2
_SPARK_SECONDS: Final = 300.0


@click.command()
@click.option(
    "--spark/--no-spark",
    "with_spark",
    default=None,
    help="Run a Spark pipeline, too.  [default: if pyspark is installed]",
)
@click.option(
    "--chart",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("goddard-demo.svg"),
    show_default=True,
    help="The file for the chart of the pipeline.",
)
def demo(with_spark: bool | None, chart: Path) -> None:
    """Show a name server and two brokers at work, then delete all files except the chart."""
    if with_spark is None:
        with_spark = importlib.util.find_spec("pyspark") is not None
    with tempfile.TemporaryDirectory(prefix="goddard-demo-") as folder:
        run(_Demo(Path(folder), chart if with_spark else None).show())
        _check_stores(Path(folder), step=6 if with_spark else 5)
    click.secho("\nDone. Next: goddard up, goddard store --help.", bold=True)


def _step(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


class _Demo:
    def __init__(self, folder: Path, chart: Path | None) -> None:
        self._folder = folder
        self._chart = chart
        self._name_server = ""
        self._client = Client()

    async def show(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            _step("1. Start a name server and two brokers")
            server = await stack.enter_async_context(NameServer(self._name_server_config()))
            self._name_server = f"127.0.0.1:{server.port}"
            click.echo(f"   name server  {self._name_server}")
            brokers = []
            for name in _BROKERS:
                broker = await stack.enter_async_context(Broker(self._broker_config(name)))
                click.echo(f"   {name}     {broker.address}")
                brokers.append(broker.address)
            await stack.enter_async_context(self._client)
            await self._create_topic(brokers)
            await self._send_and_read(brokers)
            await self._special_messages(brokers[0])
            if self._chart is not None:
                await self._run_pipeline(self._chart)

    def _name_server_config(self) -> NameServerConfig:
        folder = self._folder / "namesrv"
        return NameServerConfig().updated(
            {
                "listenPort": "0",
                "bindAddress": "127.0.0.1",
                "kvConfigPath": str(folder / "kvConfig.json"),
                "configStorePath": str(folder / "namesrv.properties"),
            }
        )

    def _broker_config(self, name: str) -> BrokerConfig:
        return BrokerConfig.from_properties(
            {
                # Everything shares one process: allow for delays on a busy machine.
                "waitTimeMillsInSendQueue": "10000",
                "brokerName": name,
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "listenPort": "0",
                "namesrvAddr": self._name_server,
                "storePathRootDir": str(self._folder / name),
                "mappedFileSizeCommitLog": str(16 << 20),
            }
        )

    async def _create_topic(self, brokers: list[str]) -> None:
        _step(f"2. Create the topic {_TOPIC} on both; the name server has its route immediately")
        header = CreateTopicRequest(
            topic=_TOPIC,
            default_topic="TBW102",
            read_queue_nums=_QUEUES,
            write_queue_nums=_QUEUES,
            perm=Permission.READ | Permission.WRITE,
            topic_filter_type="SINGLE_TAG",
        )
        for address in brokers:
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
        answer = await self._ask(
            self._name_server,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            GetRouteRequest(topic=_TOPIC).encode(),
        )
        route = decode_body(answer.body, TopicRoute)
        masters = {each.broker_name: each.broker_addrs[0] for each in route.broker_datas}
        rows = [
            (_TOPIC, queues.broker_name, masters[queues.broker_name], queues.write_queue_nums)
            for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name)
        ]
        print_table("", ("topic", "broker", "address", "queues"), rows)

    async def _send_and_read(self, brokers: list[str]) -> None:
        _step(f"3. Send {_MESSAGES:,} messages to all queues in turn, and read them back")
        targets = [(address, queue) for address in brokers for queue in range(_QUEUES)]
        numbers = iter(range(_MESSAGES))
        began = time.perf_counter()

        async def send_some() -> None:
            for number in numbers:
                address, queue = targets[number % len(targets)]
                await self._send(address, queue, b"order %d" % number, {"KEYS": f"key-{number}"})

        await asyncio.gather(*(send_some() for _ in range(_IN_FLIGHT)))
        sent_seconds = time.perf_counter() - began
        began = time.perf_counter()
        rows = []
        for name, address in zip(_BROKERS, brokers, strict=True):
            for queue in range(_QUEUES):
                bodies = await self._read(address, queue)
                in_order = bodies == sorted(bodies, key=lambda body: int(body.split()[1]))
                rows.append((name, queue, len(bodies), "yes" if in_order else "NO"))
        read_seconds = time.perf_counter() - began
        print_table("", ("broker", "queue", "messages", "in order"), rows)
        click.echo(
            f"   sent {_MESSAGES / sent_seconds:,.0f}/s, read {_MESSAGES / read_seconds:,.0f}/s, "
            "with client and brokers in one process"
        )

    async def _special_messages(self, address: str) -> None:
        _step("4. Send a delayed message, commit a transaction and roll one back")
        start = await self._max_offset(address)
        began = time.perf_counter()
        await self._send(address, 0, b"later", {"DELAY": "1"})
        for decision, body in (
            (TransactionType.COMMIT, b"committed"),
            (TransactionType.ROLLBACK, b"rolled back"),
        ):
            await self._transact(address, body, decision)
        seen: dict[bytes, float] = {}
        while b"later" not in seen:
            for body in await self._read(address, 0, start + len(seen), wait_ms=3_000):
                seen[body] = time.perf_counter() - began
        rows = [
            ("delayed by 1 s", _when(seen.get(b"later"))),
            ("committed", _when(seen.get(b"committed"))),
            ("rolled back", _when(seen.get(b"rolled back"))),
        ]
        print_table("", ("message", "seen by a consumer"), rows)

    async def _run_pipeline(self, chart: Path) -> None:
        _step("5. Read all messages with a Spark pipeline, count them by second and draw a chart")
        table = self._folder / "tables" / "traffic"
        arguments = ["pipeline", "run", "traffic", "--name-servers", self._name_server]
        click.echo(f"   goddard {' '.join(arguments)} ...")
        own = {
            "aggregate.window": "1 second",
            "sink.path": str(table),
            "run.checkpoint": str(self._folder / "checkpoint"),
        }
        settings = [part for name, value in own.items() for part in ("--set", f"{name}={value}")]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "goddard.cli.main", *arguments, *settings, "--master", "local[2]"),
            # Spark's temporary files are deleted with the others. For so short a run, Java's
            # optimising compiler costs more than it saves.
            env={"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"}
            | os.environ
            | {"TMPDIR": str(self._folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _SPARK_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        for line in output.decode(errors="replace").splitlines():
            if not line.startswith("chart:"):
                click.echo(f"   {line.replace(str(self._folder), '...')}")
        if process.returncode != 0:
            raise click.ClickException("the pipeline failed; to skip it: goddard demo --no-spark")
        shutil.copyfile(table.with_name("traffic.svg"), chart)
        click.echo(f"   chart: {chart}")

    async def _transact(self, address: str, body: bytes, decision: int) -> None:
        properties = {"TRAN_MSG": "true", "PGROUP": _GROUP}
        half = await self._send(address, 0, body, properties, TransactionType.PREPARED)
        _, physical_offset = parse_offset_message_id(half.msg_id)
        header = EndTransactionRequest(
            producer_group=_GROUP,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=decision,
            msg_id=half.msg_id,
        )
        await self._ask(address, RequestCode.END_TRANSACTION, header.encode())

    async def _send(
        self, address: str, queue: int, body: bytes, properties: dict[str, str], sys_flag: int = 0
    ) -> SendResponse:
        header = SendRequestV2(
            producer_group=_GROUP,
            topic=_TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=_QUEUES,
            queue_id=queue,
            sys_flag=sys_flag,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties=format_properties(properties),
        )
        answer = await self._ask(address, RequestCode.SEND_MESSAGE_V2, header.encode(), body)
        return SendResponse.decode(answer.fields)

    async def _read(
        self, address: str, queue: int, queue_offset: int = 0, wait_ms: int = 0
    ) -> list[bytes]:
        """The bodies of a queue from an offset on; waits up to ``wait_ms`` for the first."""
        bodies: list[bytes] = []
        while True:
            may_wait = bool(wait_ms) and not bodies
            header = PullRequest(
                consumer_group=_GROUP,
                topic=_TOPIC,
                queue_id=queue,
                queue_offset=queue_offset + len(bodies),
                max_msg_nums=32,
                sys_flag=_WITH_SUBSCRIPTION | (_SUSPEND if may_wait else 0),
                commit_offset=0,
                suspend_timeout_millis=wait_ms,
                subscription="*",
                sub_version=0,
                expression_type="TAG",
            )
            request = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
            answer = await self._client.request(address, request, _TIMEOUT_MS + wait_ms)
            if answer.code != ResponseCode.SUCCESS:
                return bodies
            bodies += [bytes(record.body) for record in iter_records(answer.body)]
            if may_wait:
                return bodies

    async def _max_offset(self, address: str) -> int:
        fields = {"topic": _TOPIC, "queueId": "0"}
        answer = await self._ask(address, RequestCode.GET_MAX_OFFSET, fields)
        return int(answer.fields["offset"])

    async def _ask(
        self, address: str, code: int, fields: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        request = RemotingCommand(code, fields, body)
        return check(await self._client.request(address, request, _TIMEOUT_MS), address)


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.1f} s"


def _check_stores(folder: Path, *, step: int) -> None:
    _step(f"{step}. Stop both brokers and verify their stores")
    rows = []
    for name in _BROKERS:
        report = verify(StoreView(folder / name))
        verdict = "none" if report.is_clean else f"{report.damage_count}"
        rows.append((name, report.records, report.queue_entries, report.index_entries, verdict))
    print_table("", ("store", "records", "queue entries", "index entries", "damage"), rows)
