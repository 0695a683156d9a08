"""Consumers that join and leave over real connections, and the notifications of the others."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.protocol import fastjson
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_client import ConsumerData, HeartbeatData, SubscriptionData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.consumer_harness import tags
from tests.support.rules import ANY_RULE

TIMEOUT_MS = 10_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    config = BrokerConfig.from_properties(
        {
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(tmp_path),
            "mappedFileSizeCommitLog": str(1 << 20),
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
        }
    )
    async with Broker(config) as running:
        yield running


class Member:
    """A client process with one consumer."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        self._broker = broker
        self.client_id = client_id
        self.notified: asyncio.Queue[str] = asyncio.Queue()
        handlers = Handlers()
        handlers.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notify, ANY_RULE)
        self._client = Client(ClientOptions(), handlers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def _notify(self, request: RemotingCommand, connection: Connection) -> None:
        self.notified.put_nowait(request.fields["consumerGroup"])

    async def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        command = RemotingCommand(code, fields, body)
        return await self._client.request(self._broker.address, command, TIMEOUT_MS)

    async def heartbeat(self, group: str, *subscriptions: SubscriptionData) -> None:
        consumer = ConsumerData(group_name=group, subscription_data_set=list(subscriptions))
        data = HeartbeatData(client_id=self.client_id, consumer_data_set=[consumer])
        answer = await self.ask(RequestCode.HEART_BEAT, {}, encode_body(data))
        assert answer.code == ResponseCode.SUCCESS

    async def members(self, group: str) -> list[str]:
        answer = await self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        if answer.code != ResponseCode.SUCCESS:
            return []
        ids: list[str] = fastjson.loads(bytes(answer.body))["consumerIdList"]
        return sorted(ids)

    async def is_notified(self, group: str, within_seconds: float = 1.0) -> None:
        assert await asyncio.wait_for(self.notified.get(), within_seconds) == group


async def join(stack: AsyncExitStack, broker: Broker, client_id: str) -> Member:
    member = await stack.enter_async_context(Member(broker, client_id))
    await member.heartbeat("G", tags("T"))
    return member


async def test_members_are_notified_of_joins_and_leaves_within_a_second(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        one = await join(stack, broker, "c1")
        await one.is_notified("G")
        two = await join(stack, broker, "c2")
        await one.is_notified("G")
        await two.is_notified("G")
        assert await one.members("G") == await two.members("G") == ["c1", "c2"]
        answer = await two.ask(
            RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "G"}
        )
        assert answer.code == ResponseCode.SUCCESS
        await one.is_notified("G")
        assert await one.members("G") == ["c1"]


async def test_a_closed_connection_removes_its_members(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        one = await join(stack, broker, "c1")
        await one.is_notified("G")
        async with Member(broker, "c2") as two:
            await two.heartbeat("G", tags("T"))
            await one.is_notified("G")
        await one.is_notified("G")
        assert await one.members("G") == ["c1"]


async def test_members_are_notified_of_a_changed_subscription(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        one = await join(stack, broker, "c1")
        await one.is_notified("G")
        await one.heartbeat("G", tags("T"), tags("U"))
        await one.is_notified("G")


async def test_the_vip_port_serves_the_same_members(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        one = await join(stack, broker, "c1")
        await one.is_notified("G")
        host, port = broker.address.split(":")
        client = await stack.enter_async_context(Client(ClientOptions()))
        command = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
        answer = await client.request(f"{host}:{int(port) - 2}", command, TIMEOUT_MS)
        assert fastjson.loads(bytes(answer.body)) == {"consumerIdList": ["c1"]}


async def test_queue_locks_pass_from_member_to_member(broker: Broker) -> None:
    def queues(member: Member, *numbers: int) -> bytes:
        body: dict[str, Any] = {
            "clientId": member.client_id,
            "consumerGroup": "G",
            "mqSet": [{"brokerName": "b", "queueId": n, "topic": "T"} for n in numbers],
        }
        return fastjson.dumps(body)

    async def lock(member: Member, *numbers: int) -> list[int]:
        answer = await member.ask(RequestCode.LOCK_BATCH_MQ, {}, queues(member, *numbers))
        locked = fastjson.loads(bytes(answer.body))["lockOKMQSet"]
        return sorted(queue["queueId"] for queue in locked)

    async with AsyncExitStack() as stack:
        one = await join(stack, broker, "c1")
        two = await join(stack, broker, "c2")
        assert await lock(one, 0, 1, 2, 3) == [0, 1, 2, 3]
        assert await lock(two, 2, 3) == []
        await one.ask(RequestCode.UNLOCK_BATCH_MQ, {}, queues(one, 2, 3))
        assert await lock(two, 1, 2, 3) == [2, 3]


async def test_three_hundred_members_see_one_list(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(Member(broker, f"c{number:03}"))
            for number in range(300)
        ]
        begun = time.monotonic()
        await asyncio.gather(*(member.heartbeat("G", tags("T")) for member in members))
        expected = [member.client_id for member in members]
        lists = await asyncio.gather(*(member.members("G") for member in members))
        assert all(seen == expected for seen in lists)
        for member in members:
            await member.is_notified("G", within_seconds=5)
        # Each member gets a few notifications, not one for each other member.
        assert sum(member.notified.qsize() for member in members) < 300 * 30
        assert time.monotonic() - begun < 30
