"""Push consumers when the broker, a connection or a member fails: no message is lost.

A concurrent and an orderly group consume the same topic. Messages delivered twice are counted; the
count is printed with ``-rP``.
"""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

from goddard.client.consume.push import PushConsumer
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_client import ConsumerList
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.record import Host, Record, encode_record
from goddard.protocol.responses import check
from goddard.testing.cluster import Cluster
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.fault_checks import (
    FAULTS,
    QUEUES,
    TIMEOUT_SECONDS,
    TOPIC,
    Deliveries,
    inject_fault,
    proxied_broker,
    running_sender,
    wait_for_all,
    wait_for_progress,
)
from tests.support.name_server_client import NameServerClient
from tests.support.polling import until
from tests.support.push_consumers import listener_threads, push

PULLED = {
    "nextBeginOffset": "8",
    "minOffset": "0",
    "maxOffset": "8",
    "suggestWhichBrokerId": "0",
}
RECORD = encode_record(
    Record(
        topic=TOPIC,
        body=b"key-1:0",
        queue_id=0,
        queue_offset=7,
        physical_offset=0,
        store_timestamp_ms=0,
        born_timestamp_ms=0,
        born_host=Host(b"\x7f\0\0\1", 1),
        store_host=Host(b"\x7f\0\0\1", 2),
    )
)
SHORT_INTERVALS: dict[str, Any] = {"heartbeat_interval_ms": 500, "api_timeout_ms": 1_500}


def groups() -> list[Deliveries]:
    return [Deliveries("concurrent", is_orderly=False), Deliveries("orderly", is_orderly=True)]


def member(namesrv: str, deliveries: Deliveries, **options: Any) -> PushConsumer:
    group = f"Group-{deliveries.name}"
    consumer = push(
        namesrv, group, deliveries, orderly=deliveries.is_orderly, **SHORT_INTERVALS | options
    )
    consumer.subscribe(TOPIC)
    return consumer


async def test_broker_is_killed_and_restarted(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        all_deliveries = groups()
        async with running_sender(broker.address) as sender, contextlib.AsyncExitStack() as stack:
            for deliveries in all_deliveries:
                # Two members of each group, which share its queues.
                for _ in range(2):
                    await stack.enter_async_context(member(cluster.namesrv, deliveries))
            for _ in range(2):
                await wait_for_progress(all_deliveries)
                broker.kill()
                await asyncio.to_thread(broker.start)
            await wait_for_progress(all_deliveries)
            await wait_for_all(sender, all_deliveries)
    assert listener_threads() == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_connection_fails_and_recovers(tmp_path: Path, fault: str) -> None:
    all_deliveries = groups()
    with Cluster(tmp_path) as cluster:
        async with proxied_broker(cluster) as link, contextlib.AsyncExitStack() as stack:
            for deliveries in all_deliveries:
                await stack.enter_async_context(member(cluster.namesrv, deliveries))
            for _ in range(2):
                await wait_for_progress(all_deliveries)
                await inject_fault(link, fault)
            await wait_for_progress(all_deliveries)
            await wait_for_all(link.sender, all_deliveries)
    assert listener_threads() == []


MEMBER = """
import asyncio, os, sys
from tests.support.push_consumers import push

def listener(messages, context):
    for message in messages:
        line = f"{message.queue_id} {message.queue_offset} {message.body.decode()}\\n"
        os.write(1, line.encode())

async def main():
    orderly = sys.argv[4] == "orderly"
    consumer = push(sys.argv[1], sys.argv[2], listener, orderly=orderly)
    consumer.subscribe(sys.argv[3])
    async with consumer:
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["concurrent", "orderly"])
async def test_another_member_takes_over_after_a_kill(tmp_path: Path, name: str) -> None:
    """For orderly members, the queues stay locked until the lock of the killed member expires."""
    properties = {"rocketmq.broker.rebalance.lockMaxLiveTime": "3000"}
    with Cluster(tmp_path) as cluster:
        cluster.start_name_server()
        broker = cluster.start_broker(properties=properties)
        deliveries = Deliveries(name, is_orderly=name == "orderly")
        async with running_sender(broker.address) as sender:
            await consume_until_killed(cluster.namesrv, deliveries)
            async with member(cluster.namesrv, deliveries) as second:
                await wait_for_progress([deliveries])
                await wait_for_all(sender, [deliveries])
                taken = {queue.queue_id for queue in second.assigned_queues()}
        assert taken == set(range(QUEUES))
    assert listener_threads() == []


async def consume_until_killed(namesrv: str, deliveries: Deliveries) -> None:
    """Consume in another process, and kill it while it consumes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", MEMBER, namesrv, f"Group-{deliveries.name}", TOPIC, deliveries.name),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while deliveries.count < 500:
                record_line(deliveries, await process.stdout.readline())
    finally:
        process.kill()
        rest = await process.stdout.read()
        await process.wait()
    for line in rest.splitlines(keepends=True):
        record_line(deliveries, line)


def record_line(deliveries: Deliveries, line: bytes) -> None:
    """Record a line of a member; ignore an incomplete last line."""
    if line.endswith(b"\n"):
        queue_id, queue_offset, body = line.decode().split()
        deliveries.record(int(queue_id), int(queue_offset), body)


async def test_stop_while_the_broker_is_down(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        all_deliveries = groups()
        async with running_sender(broker.address):
            consumers = [member(cluster.namesrv, deliveries) for deliveries in all_deliveries]
            for consumer in consumers:
                await consumer.start()
            await wait_for_progress(all_deliveries)
            broker.kill()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                for consumer in consumers:
                    await consumer.stop()
    assert listener_threads() == []


async def test_broker_with_invalid_responses(tmp_path: Path) -> None:
    """After an invalid response the consumer pulls again; valid messages are consumed."""
    answers: list[tuple[int, dict[str, str], bytes]] = [
        (ResponseCode.SUCCESS, {}, b""),
        (
            ResponseCode.SUCCESS,
            PULLED,
            b"not a record, but as long as one" * 4,
        ),
        (ResponseCode.SUCCESS, PULLED | {"nextBeginOffset": "-5"}, b""),
        (ResponseCode.SUCCESS, PULLED | {"minOffset": "many"}, RECORD),
        (ResponseCode.SUCCESS, PULLED, RECORD[:-1]),
        (ResponseCode.SUCCESS, PULLED, RECORD + RECORD[:20]),
        (ResponseCode.SUCCESS, PULLED, (2**31 - 1).to_bytes(4) + RECORD[4:]),
        (ResponseCode.SYSTEM_ERROR, {}, b""),
        (4711, {}, b""),
        (ResponseCode.SUCCESS, PULLED, RECORD),
    ]
    pulls = 0

    def answer(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        nonlocal pulls
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return request.reply(body=encode_body(ConsumerList(consumer_id_list=[client_id])))
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return request.reply(ResponseCode.QUERY_NOT_FOUND)
        if request.code != RequestCode.PULL_MESSAGE:
            return request.reply()
        if request.fields["queueId"] != "0" or request.fields["topic"] != TOPIC:
            return request.reply(ResponseCode.SYSTEM_ERROR)
        pulls += 1
        code, fields, body = answers[min(pulls, len(answers)) - 1]
        if pulls > len(answers):
            code = ResponseCode.PULL_NOT_FOUND
        response = request.reply(code, body=body)
        response.ext_fields = dict(fields)
        return response

    handlers = Handlers()
    handlers.set_fallback(answer)
    deliveries = Deliveries("concurrent", is_orderly=False)
    with Cluster(tmp_path) as cluster:
        name_server = cluster.start_name_server()
        registration = NameServerClient(int(name_server.address.rpartition(":")[2]))
        server = Server(ServerOptions(), handlers)
        consumer = member(cluster.namesrv, deliveries, pull_error_delay_ms=10)
        client_id = consumer.client_id
        async with server, contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(registration.close)
            check(
                await registration.register(
                    TOPIC, "AnotherTopic", name="broker-0", address=f"127.0.0.1:{server.port}"
                )
            )
            async with consumer:
                await until(lambda: deliveries.count > 0, "the valid message is consumed")
                await until(lambda: pulls > len(answers), "pulls continue")
    assert deliveries.offsets == {(0, 7): 1}
    assert listener_threads() == []
