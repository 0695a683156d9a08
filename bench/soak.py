"""``python -m bench.soak --minutes 10``: a broker under mixed load, checked for leaks and failures.

A broker in its own process gets all kinds of requests: sends, batches, delayed messages,
transactions with checks, long polling, send-backs, consumers that join and leave, queries,
administration, and garbage. Its private memory and its descriptors are printed periodically. After
the warm-up they may grow by a given bound until the load has ended and all clients have left. If
they grow more, there is a leak, and the exit code is 1. It is also 1 if a request fails
unexpectedly.
"""

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from goddard.errors import GoddardError, RequestTimeoutError
from goddard.protocol.bodies import MessageQueue, encode_body
from goddard.protocol.bodies_client import ConsumerData, HeartbeatData, LockQueuesBody
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import CheckTransactionRequest, EndTransactionRequest
from goddard.protocol.message import BatchEntry, encode_batch
from goddard.protocol.responses import ResponseError, check
from goddard.testing.cluster import Cluster, Daemon
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.loop import run
from goddard.transport.rules import FROM_SERVER
from tests.support.broker_client import BrokerClient
from tests.support.consumer_harness import pull_fields, tags
from tests.support.process_resources import descriptors, private_bytes
from tests.support.send_harness import send_request

TOPIC: Final = "Soak"
QUEUES: Final = 8
COMMIT: Final = 8
ROLLBACK: Final = 12
MIB: Final = 1 << 20
_SEGMENT_BYTES: Final = 64 * MIB
_PROPERTIES: Final = {
    "mappedFileSizeCommitLog": str(_SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "6000000",
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "2000",
    "transactionOpBatchInterval": "500",
    "enablePropertyFilter": "true",
}
_WAIT_MS: Final = 5_000
_WAIT_COMMIT_SUBSCRIPTION: Final = 0x1 | 0x2 | 0x4
_SETTLE_SECONDS: Final = 5.0


@dataclass(slots=True)
class Sample:
    seconds: float
    sent: int
    received: int
    private_mib: float
    descriptors: int
    threads: int
    failures: int


class Soak:
    """The load on one broker. Each kind of request is a coroutine that runs until cancelled."""

    def __init__(self, address: str, rate: int) -> None:
        self._address = address
        self._rate = rate
        self._random = random.Random(20)
        self._numbers = itertools.count()
        self.sent = 0
        self.received = 0
        self.done: Counter[str] = Counter()
        self.busy = 0
        self.failures: list[str] = []

    async def run(self, stopping: asyncio.Event) -> None:
        handlers = Handlers()
        handlers.register(RequestCode.CHECK_TRANSACTION_STATE, self._check_transaction, FROM_SERVER)
        async with (
            Client(ClientOptions(), handlers) as producing,
            Client(ClientOptions()) as consuming,
            Client(ClientOptions()) as administrating,
        ):
            producer = BrokerClient(producing, self._address)
            consumer = BrokerClient(consuming, self._address)
            admin = BrokerClient(administrating, self._address)
            await producer.heartbeat("P")
            await producer.send(TOPIC, b"first", default_topic_queue_nums=QUEUES)
            per_second = self._rate
            loads = [
                self._repeat("send", per_second, lambda: self._send(producer)),
                self._repeat("batch", per_second / 64, lambda: self._send_batch(producer)),
                self._repeat("delayed", per_second / 20, lambda: self._send_delayed(producer)),
                self._repeat(
                    "transaction", per_second / 40, lambda: self._send_transaction(producer)
                ),
                self._repeat("heartbeat", 0.2, lambda: producer.heartbeat("P")),
                self._repeat("send back", 5, lambda: self._send_back(consumer)),
                self._repeat("join", 4, self._join_and_leave),
                self._repeat("lookup", 5, lambda: self._query(admin)),
                self._repeat("administration", 2, lambda: self._administrate(admin)),
                self._repeat("garbage", 2, self._send_garbage),
                *(self._consume(consumer, queue_id) for queue_id in range(QUEUES)),
            ]
            tasks = [asyncio.create_task(load) for load in loads]
            await stopping.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(
        self, name: str, per_second: float, action: Callable[[], Awaitable[None]]
    ) -> None:
        """Repeat an action at this average rate, or as fast as the broker answers."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + 1 / per_second, loop.time() - 1)
            await asyncio.sleep(due - loop.time())
            await self._count(name, action)

    async def _count(self, name: str, action: Callable[[], Awaitable[None]]) -> None:
        try:
            await action()
            self.done[name] += 1
        except ResponseError as error:
            if error.code == ResponseCode.SYSTEM_BUSY:
                self.busy += 1
            else:
                self._record_failure(f"{name}: {error.code} {error.remark}")
        except (GoddardError, OSError, AssertionError, LookupError, ValueError) as error:
            self._record_failure(f"{name}: {type(error).__name__} {error}")

    def _record_failure(self, text: str) -> None:
        self.failures.append(text)

    # Producers

    async def _send(self, broker: BrokerClient) -> None:
        number = next(self._numbers)
        properties = {"KEYS": f"key-{number % 10_000}", "TAGS": "ABCD"[number % 4]}
        body = bytes(self._random.randrange(50, 600))
        await broker.send(TOPIC, body, properties, queue_id=number % QUEUES)
        self.sent += 1

    async def _send_batch(self, broker: BrokerClient) -> None:
        entries = [BatchEntry(b"batch %d" % number, b"TAGS\x01B\x02", 0) for number in range(32)]
        request = send_request(
            TOPIC,
            encode_batch(entries),
            code=RequestCode.SEND_BATCH_MESSAGE,
            e=str(next(self._numbers) % QUEUES),
        )
        check(await broker.client.request(self._address, request, 10_000))
        self.sent += 32

    async def _send_delayed(self, broker: BrokerClient) -> None:
        level = str(self._random.choice((1, 1, 2)))
        await broker.send(TOPIC, b"later", {"DELAY": level}, queue_id=1)
        self.sent += 1

    async def _send_transaction(self, broker: BrokerClient) -> None:
        body = b"half %d" % next(self._numbers)
        half = await broker.send_half(TOPIC, body)
        decision = self._random.choice((COMMIT, COMMIT, ROLLBACK, None))
        if decision is not None:  # otherwise the broker checks the transaction
            check(await broker.end(half, decision))
        self.sent += 1

    def _check_transaction(self, request: RemotingCommand, connection: Connection) -> None:
        header = CheckTransactionRequest.decode(request.fields)
        answer = EndTransactionRequest(
            producer_group="P",
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=self._random.choice((COMMIT, ROLLBACK, 0)),
            from_transaction_check=True,
            msg_id=header.msg_id or "",
            transaction_id=header.transaction_id,
        )
        connection.oneway(RemotingCommand(RequestCode.END_TRANSACTION, answer.encode()))
        self.done["check-back"] += 1

    # Consumers

    async def _consume(self, broker: BrokerClient, queue_id: int) -> None:
        """Long polling with commits; every second queue is filtered by tag or SQL."""
        position = 0
        subscription = ("*", "A || B", "*", "TAGS IS NULL OR TAGS <> 'C'")[queue_id % 4]
        kind = "SQL92" if queue_id % 4 == 3 else "TAG"

        async def pull() -> None:
            nonlocal position
            fields = pull_fields(
                TOPIC,
                position,
                queueId=queue_id,
                sysFlag=_WAIT_COMMIT_SUBSCRIPTION,
                commitOffset=position,
                suspendTimeoutMillis=_WAIT_MS,
                subscription=subscription,
                expressionType=kind,
            )
            answer = await broker.ask(RequestCode.PULL_MESSAGE, fields, timeout_ms=30_000)
            if answer.code == ResponseCode.SUCCESS:
                self.received += int(answer.fields["nextBeginOffset"]) - position
            elif answer.code not in (
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            ):
                check(answer)
            position = int(answer.fields["nextBeginOffset"])

        while True:
            await self._count("pull", pull)
            # Like a consumer that processes messages: the next pull returns several.
            await asyncio.sleep(0.02)

    async def _send_back(self, broker: BrokerClient) -> None:
        """Send a message back, to the dead-letter queue or for a retry."""
        fields = {"topic": TOPIC, "queueId": 0}
        answer = check(await broker.ask(RequestCode.GET_MAX_OFFSET, fields))
        records = await broker.pull(TOPIC, max(0, int(answer.fields["offset"]) - 1))
        if records:
            max_times = self._random.choice((0, 16))
            back = await broker.send_back(
                records[0], "Retrying", 1, max_reconsume_times=max_times, origin_topic=TOPIC
            )
            check(back)

    async def _join_and_leave(self) -> None:
        """A member joins, lists the members, locks a queue, and leaves or disconnects."""
        client_id = f"member-{next(self._numbers)}"
        group = f"Members-{self._random.randrange(4)}"
        member = ConsumerData(group_name=group, subscription_data_set=[tags(TOPIC)])
        heartbeat = HeartbeatData(client_id=client_id, consumer_data_set=[member])
        queue = MessageQueue("broker-0", self._random.randrange(QUEUES), TOPIC)
        locks = LockQueuesBody(consumer_group=group, client_id=client_id, mq_set=[queue])
        async with Client(ClientOptions()) as client:
            broker = BrokerClient(client, self._address)
            check(await broker.ask(RequestCode.HEART_BEAT, {}, encode_body(heartbeat)))
            fields = {"consumerGroup": group}
            answer = check(await broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields))
            assert client_id.encode() in bytes(answer.body)
            check(await broker.ask(RequestCode.LOCK_BATCH_MQ, {}, encode_body(locks)))
            if self._random.random() < 0.5:
                check(await broker.ask(RequestCode.UNLOCK_BATCH_MQ, {}, encode_body(locks)))
                fields = {"clientID": client_id, "consumerGroup": group}
                check(await broker.ask(RequestCode.UNREGISTER_CLIENT, fields))
            else:  # disconnects while a pull is pending
                pull = pull_fields("TBW102", consumerGroup=group, sysFlag=6)
                try:
                    await broker.ask(RequestCode.PULL_MESSAGE, pull, timeout_ms=50)
                except RequestTimeoutError:
                    return

    # Other requests

    async def _query(self, broker: BrokerClient) -> None:
        sent = await broker.send(TOPIC, b"to be found", {"KEYS": "needle"})
        fields: dict[str, Any] = {"offset": int(sent.msg_id[16:], 16)}
        check(await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields))
        fields = {
            "topic": TOPIC,
            "key": "needle",
            "maxNum": 32,
            "beginTimestamp": 0,
            "endTimestamp": 2**62,
        }
        check(await broker.ask(RequestCode.QUERY_MESSAGE, fields))
        fields = {"topic": TOPIC, "queueId": 0, "timestamp": time.time_ns() // 1_000_000 - 5_000}
        check(await broker.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields))

    async def _administrate(self, broker: BrokerClient) -> None:
        """Create and delete topics and groups with their data; read statistics."""
        number = next(self._numbers)
        topic, group = f"passing-{number}", f"Passing-{number}"
        fields: dict[str, Any] = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        check(await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        body = b'{"groupName":"%s"}' % group.encode()
        check(await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))
        for queue_id in range(4):
            await broker.send(topic, b"passing", queue_id=queue_id)
            offset = {
                "topic": topic,
                "consumerGroup": group,
                "queueId": queue_id,
                "commitOffset": 1,
            }
            check(await broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset))
        for code, wanted in (
            (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
            (RequestCode.GET_BROKER_CONFIG, {}),
            (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
            (RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}),
            (RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic}),
            (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"}),
        ):
            check(await broker.ask(code, wanted))

    async def _send_garbage(self) -> None:
        host, _, port = self._address.rpartition(":")
        expects_close = self._random.random() < 0.5
        reader, writer = await asyncio.open_connection(host, int(port))
        # One in 256 inputs starts like a frame, and the broker waits for the rest. The first byte
        # of the inputs whose connection must be closed prevents that.
        writer.write((b"\x7f" if expects_close else b"") + self._random.randbytes(200))
        async with asyncio.timeout(30):
            if expects_close:
                await reader.read()
        writer.transport.abort()


def _sample(broker: Daemon, soak: Soak, began: float) -> Sample:
    return Sample(
        seconds=time.monotonic() - began,
        sent=soak.sent,
        received=soak.received,
        private_mib=private_bytes(broker.pid) / MIB,
        descriptors=descriptors(broker.pid),
        threads=sum(1 for _ in Path(f"/proc/{broker.pid}/task").iterdir()),
        failures=len(soak.failures),
    )


_COLUMNS: Final = ("seconds", "sent", "received", "private MiB", "descriptors", "threads", "failed")


def _show(sample: Sample, note: str = "") -> None:
    sys.stdout.write(
        f"{sample.seconds:>12.0f}{sample.sent:>12,}{sample.received:>12,}"
        f"{sample.private_mib:>12.1f}{sample.descriptors:>12}{sample.threads:>12}"
        f"{sample.failures:>12}  {note}\n"
    )
    sys.stdout.flush()


async def _load(broker: Daemon, options: argparse.Namespace) -> tuple[Soak, Sample, Sample]:
    """Run the load; returns it with the samples after the warm-up and at the end."""
    soak = Soak(broker.address, options.rate)
    seconds = options.minutes * 60
    warm_up = min(max(seconds / 5, 20), 120)
    began = time.monotonic()
    stopping = asyncio.Event()
    sys.stdout.write("".join(f"{name:>12}" for name in _COLUMNS) + "\n")
    _show(_sample(broker, soak, began), "idle")
    running = asyncio.create_task(soak.run(stopping))
    await asyncio.wait((running,), timeout=warm_up)
    warm = _sample(broker, soak, began)
    _show(warm, "warmed up")
    while (left := began + seconds - time.monotonic()) > 0 and not running.done():
        await asyncio.wait((running,), timeout=min(left, options.every))
        _show(_sample(broker, soak, began))
    stopping.set()
    await running
    await asyncio.sleep(_SETTLE_SECONDS)
    last = _sample(broker, soak, began)
    _show(last, "all clients have left")
    return soak, warm, last


def _problems(
    soak: Soak, warm: Sample, last: Sample, options: argparse.Namespace, segments: int
) -> list[str]:
    grown_mib = last.private_mib - warm.private_mib
    # Each commit-log file has a descriptor; consume queues have a cache of a fixed size.
    grown = last.descriptors - warm.descriptors - segments
    problems = []
    if grown_mib > options.grow_mib:
        problems.append(f"private memory grew by {grown_mib:.1f} MiB, over {options.grow_mib}")
    if grown > options.grow_descriptors:
        problems.append(f"descriptors grew by {grown}, over {options.grow_descriptors}")
    if soak.received < soak.sent / 2:
        problems.append(f"only {soak.received:,} of {soak.sent:,} messages were consumed")
    kinds = Counter(text.partition(":")[0] for text in soak.failures)
    problems += [f"{count} failures of {kind}" for kind, count in kinds.items()]
    problems += [f"  {text}" for text in dict.fromkeys(soak.failures[:10])]
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=400, help="single messages sent per second")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two samples")
    parser.add_argument(
        "--grow-mib", type=float, default=16.0, help="allowed growth of private memory"
    )
    parser.add_argument(
        "--grow-descriptors", type=int, default=64, help="allowed growth of open files"
    )
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="goddard-soak-") as folder,
        Cluster(Path(folder), brokers=1, properties=_PROPERTIES) as cluster,
    ):
        (broker,) = cluster.brokers
        soak, warm, last = run(_load(broker, options))
        segments = sum(1 for _ in (broker.home / "store" / "commitlog").iterdir())
        problems = _problems(soak, warm, last, options, segments)
        counts = ", ".join(f"{name} {count:,}" for name, count in soak.done.most_common())
        sys.stdout.write(f"done: {counts}; rejected with system busy: {soak.busy}\n")
        began = time.monotonic()
        if broker.stop() != 0:
            problems.append(f"the broker ended with {broker.exit_code}")
        sys.stdout.write(f"stopped in {time.monotonic() - began:.1f} s\n")
        log = (broker.home / "logs" / "broker.log").read_text()
        unexpected = log.count("Traceback (most recent call last)")
        if unexpected:
            problems.append(f"{unexpected} unexpected exceptions in the log")
            problems.append(log[log.index("Traceback (most recent call last)") :][:3_000])
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    sys.stdout.write("LEAK OR FAILURE\n" if problems else "no leak, no failure\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
