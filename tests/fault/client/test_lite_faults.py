"""Lite pull consumers when the broker, a connection or a member fails: no message is lost.

A consumer that keeps running reads no offset twice; a new one starts at the committed offset.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from goddard.client.consume.lite import LitePullConsumer
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.record import Host, Record, encode_record
from goddard.testing.cluster import Cluster
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.fake_cluster import FakeCluster
from tests.support.fault_checks import (
    FAULTS,
    TIMEOUT_SECONDS,
    TOPIC,
    Deliveries,
    inject_fault,
    proxied_broker,
    running_sender,
    wait_for_all,
    wait_for_progress,
)
from tests.support.polling import until
from tests.support.rules import ANY_RULE

SHORT_INTERVALS: dict[str, Any] = {
    "rebalance_interval_ms": 100,
    "poll_name_server_interval_ms": 200,
    "persist_offsets_interval_ms": 100,
    "heartbeat_interval_ms": 500,
    "auto_commit_interval_ms": 1,
    "pull_error_delay_ms": 100,
    "broker_suspend_ms": 500,
    "pull_timeout_ms": 1_500,
    "api_timeout_ms": 1_500,
    "consume_from": ConsumeFrom.FIRST_OFFSET,
}


async def keep_polling(consumer: LitePullConsumer, deliveries: Deliveries) -> None:
    while True:
        deliveries(await consumer.poll(200))


@contextlib.asynccontextmanager
async def polling(consumer: LitePullConsumer, deliveries: Deliveries) -> AsyncIterator[None]:
    """Run the consumer, and poll it in a task."""
    async with consumer:
        task = asyncio.create_task(keep_polling(consumer, deliveries))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.result()


def reader() -> Deliveries:
    return Deliveries("lite", is_orderly=True)


def lite(namesrv: str, group: str, **options: Any) -> LitePullConsumer:
    consumer = LitePullConsumer(group, name_servers=namesrv, **SHORT_INTERVALS | options)
    consumer.subscribe(TOPIC)
    return consumer


async def test_broker_is_killed_and_restarted(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        deliveries = reader()
        async with running_sender(broker.address) as sender:
            async with polling(lite(cluster.namesrv, "Killed"), deliveries):
                for _ in range(2):
                    await wait_for_progress([deliveries])
                    broker.kill()
                    await asyncio.to_thread(broker.start)
                await wait_for_progress([deliveries])
                await wait_for_all(sender, [deliveries])
            assert deliveries.redelivered == 0


@pytest.mark.parametrize("fault", FAULTS)
async def test_connection_fails_and_recovers(tmp_path: Path, fault: str) -> None:
    deliveries = reader()
    with Cluster(tmp_path) as cluster:
        async with (
            proxied_broker(cluster) as link,
            polling(lite(cluster.namesrv, "Links"), deliveries),
        ):
            await wait_for_progress([deliveries])
            await inject_fault(link, fault)
            await wait_for_progress([deliveries])
            await wait_for_all(link.sender, [deliveries])
            assert deliveries.redelivered == 0


async def test_name_server_is_killed_and_restarted(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,), (name_server,) = cluster.brokers, cluster.name_servers
        deliveries = reader()
        async with (
            running_sender(broker.address) as sender,
            polling(lite(cluster.namesrv, "NameServerDown"), deliveries),
        ):
            await wait_for_progress([deliveries])
            name_server.kill()
            await wait_for_progress([deliveries])
            await asyncio.to_thread(name_server.start)
            await wait_for_progress([deliveries])
            await wait_for_all(sender, [deliveries])
            assert deliveries.redelivered == 0


async def test_members_join_and_leave(tmp_path: Path) -> None:
    """Messages that a member did not commit are delivered to the next owner of the queue."""
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        deliveries = reader()
        async with running_sender(broker.address) as sender:
            async with polling(lite(cluster.namesrv, "Members"), deliveries):
                await wait_for_progress([deliveries])
                second = lite(cluster.namesrv, "Members")
                async with polling(second, deliveries):
                    await until(lambda: len(second.assignment()) == 2, "both members have queues")
                    await wait_for_progress([deliveries])
                await wait_for_progress([deliveries])
            async with polling(lite(cluster.namesrv, "Members"), deliveries):
                await wait_for_progress([deliveries])
                await wait_for_all(sender, [deliveries])


async def test_stop_while_the_broker_is_down(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        deliveries = reader()
        consumer = lite(cluster.namesrv, "BrokerDown")
        async with running_sender(broker.address), polling(consumer, deliveries):
            await wait_for_progress([deliveries])
            broker.kill()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await consumer.stop()


async def test_broker_with_invalid_responses() -> None:
    """After an invalid response the consumer pulls the same offset again, with a delay."""
    queue = MessageQueue("T", "broker-g", 0)
    range_fields = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "9"}
    record = Record(
        topic="T",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=1,
        store_host=Host.parse("127.0.0.1:1"),
        born_timestamp_ms=1,
        born_host=Host.parse("127.0.0.1:1"),
        body=b"key:0",
    )
    found = range_fields | {"nextBeginOffset": "1"}
    answers = [
        (ResponseCode.SUCCESS, found, b"not a record"),
        (ResponseCode.SUCCESS, found, encode_record(record)[:-1]),
        (ResponseCode.SUCCESS, {}, b""),
        (ResponseCode.SUCCESS, range_fields | {"nextBeginOffset": "-7"}, b""),
        (ResponseCode.PULL_NOT_FOUND, range_fields | {"nextBeginOffset": "one"}, b""),
        (ResponseCode.SYSTEM_ERROR, {}, b""),
        (ResponseCode.FLOW_CONTROL, {}, b""),
        (12345, {}, b""),
        # No message, without long polling; then a valid message.
        (ResponseCode.PULL_NOT_FOUND, range_fields | {"nextBeginOffset": "0"}, b""),
        (ResponseCode.SUCCESS, found, encode_record(record)),
    ]
    offsets: list[int] = []

    def pull(request: RemotingCommand, _: Connection) -> RemotingCommand:
        offset = int(request.fields["queueOffset"])
        offsets.append(offset)
        code, fields, body = (
            answers.pop(0)
            # Pulls of offset 1 are sent before an answer to one of offset 0 is decoded.
            if answers and offset == 0
            else (ResponseCode.PULL_NOT_FOUND, range_fields | {"nextBeginOffset": "1"}, b"")
        )
        return request.reply(code, "invalid", dict(fields), body)

    handlers = Handlers()
    handlers.register(RequestCode.LITE_PULL_MESSAGE, pull, ANY_RULE)
    handlers.register(
        RequestCode.QUERY_CONSUMER_OFFSET,
        lambda request, _: request.reply(ext_fields={"offset": "0"}),
        ANY_RULE,
    )
    for code in (
        RequestCode.HEART_BEAT,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UNREGISTER_CLIENT,
    ):
        handlers.register(code, lambda request, _: request.reply(), ANY_RULE)
    deliveries = reader()
    async with Server(ServerOptions(), handlers) as broker, FakeCluster(queues=1) as cluster:
        cluster.address_overrides["broker-g"] = f"127.0.0.1:{broker.port}"
        consumer = LitePullConsumer(
            "Invalid", name_servers=cluster.namesrv, **SHORT_INTERVALS | {"pull_error_delay_ms": 10}
        )
        consumer.assign([queue])
        async with polling(consumer, deliveries):
            await until(lambda: deliveries.count == 1, "the valid message is received")
            await until(lambda: offsets[-3:] == [1, 1, 1], "pulls continue")
    assert deliveries.offsets == {(0, 0): 1}
    assert offsets.count(0) == 10
