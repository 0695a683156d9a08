"""What push and lite pull consumers have in common, against a cluster that answers as told."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from goddard.aio import (
    BrokerNotFoundError,
    ClientError,
    ForkedError,
    LitePullConsumer,
    MessageQueue,
    PushConsumer,
    ServiceState,
)
from goddard.client.options import session_options
from goddard.client.session import Session
from goddard.environment import Environment
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_client import ConsumerList
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.members import member_of
from tests.support.polling import until

KINDS = ("concurrent", "orderly", "lite")
QUEUE = MessageQueue("T", "a", 0)


class BrokenStrategy:
    """A user's allocation strategy that fails."""

    name = "BROKEN"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        raise ZeroDivisionError("no strategy")


async def consume(messages: object, context: object) -> None:
    """A listener."""


def consumer_of(
    kind: str, cluster: FakeCluster, topic: str = "T", **options: Any
) -> PushConsumer | LitePullConsumer:
    consumer: PushConsumer | LitePullConsumer
    if kind == "lite":
        consumer = LitePullConsumer("g", name_servers=cluster.namesrv, **options)
    else:
        is_orderly = kind == "orderly"
        consumer = PushConsumer(
            "g", name_servers=cluster.namesrv, listener=consume, orderly=is_orderly, **options
        )
    consumer.subscribe(topic)
    return consumer


def know(broker: FakeBroker, consumer: PushConsumer | LitePullConsumer) -> None:
    """Let a broker answer that the consumer is the only member of its group."""

    def members(request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=encode_body(ConsumerList(consumer_id_list=[consumer.client_id])))

    broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members


@pytest.mark.parametrize("kind", ["concurrent", "lite"])
async def test_a_strategy_that_fails_takes_no_queues(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster("a") as cluster:
        consumer = consumer_of(kind, cluster, allocation=BrokenStrategy())
        know(cluster.broker("a"), consumer)
        async with consumer:
            assert consumer.state is ServiceState.RUNNING
    assert "the allocation strategy BROKEN failed" in caplog.text


@pytest.mark.parametrize("kind", ["concurrent", "lite"])
async def test_a_topic_without_a_route_is_not_rebalanced_again_and_again(kind: str) -> None:
    async with FakeCluster("a", topics=("%RETRY%g",)) as cluster:
        consumer = consumer_of(kind, cluster, topic="missing")
        know(cluster.broker("a"), consumer)
        async with consumer:
            assert await member_of(consumer).rebalance()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_running_consumer_is_refused_to_a_forked_process(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeCluster("a") as cluster, consumer_of(kind, cluster) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            use: Callable[[], object] = (
                consumer.assignment if isinstance(consumer, LitePullConsumer) else consumer.suspend
            )
            with pytest.raises(ForkedError, match="create clients after the fork"):
                use()


@pytest.mark.parametrize("kind", ["concurrent", "lite"])
async def test_an_unknown_first_offset_is_warned_of_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "goddard.client")
    async with FakeCluster("a", queues=1) as cluster:
        broker = cluster.broker("a")
        consumer = consumer_of(kind, cluster, pull_error_delay_ms=1)
        know(broker, consumer)
        asked: list[RemotingCommand] = []

        def refuse(request: RemotingCommand) -> RemotingCommand:
            if "%RETRY%" not in request.fields["topic"]:
                asked.append(request)
            return request.reply(ResponseCode.SYSTEM_ERROR, "no offset here")

        broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = refuse
        async with consumer:
            await until(lambda: len(asked) >= 4, "the offset is not asked for again")
    lines = [record for record in caplog.records if "no offset here" in record.getMessage()]
    assert len(lines) == 1


async def test_a_commit_with_a_queue_of_others_changes_nothing() -> None:
    mine, other = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
    async with FakeCluster("a") as cluster:
        consumer = LitePullConsumer("g", name_servers=cluster.namesrv)
        consumer.assign([mine])
        async with consumer:
            with pytest.raises(ClientError, match="not in assigned list"):
                await consumer.commit({mine: 7, other: 9}, persist=False)
            await consumer.commit([mine], persist=False)
            cluster.broker("a").answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda request: (
                request.reply(ResponseCode.QUERY_NOT_FOUND, "none")
            )
            assert await consumer.committed(mine) is None


async def test_an_unknown_broker_is_looked_up_once_more() -> None:
    async with FakeCluster("a") as cluster:
        options = session_options(cluster.namesrv, {"instance_name": "locate"})
        async with Session(options, environment=Environment()) as session:
            address = cluster.broker("a").address
            assert await session.locate(QUEUE) == (address, False)
            assert await session.locate(QUEUE, 1) == (address, False)
            assert cluster.route_requests == ["T"]
            for queue, only_this in ((MessageQueue("T", "x", 0), False), (QUEUE, True)):
                with pytest.raises(BrokerNotFoundError):
                    await session.locate(queue, 1, only_this=only_this)
            assert cluster.route_requests == ["T"] * 3
