"""How clients start and stop, as their logs and the servers see it."""

import asyncio
import logging

import pytest

from goddard.aio import Message, Producer
from goddard.protocol.codes import RequestCode
from goddard.testing.fakecluster import FakeCluster

WAIT_SECONDS = 30


async def test_the_default_topic_is_looked_up_from_the_start_on() -> None:
    async with FakeCluster("a", topics=("TBW102",)) as cluster:
        async with Producer("early", name_servers=cluster.namesrv) as producer:
            assert "TBW102" in producer.published_topics()
            async with asyncio.timeout(WAIT_SECONDS):
                await cluster.broker("a").asked[RequestCode.HEART_BEAT].wait()
        assert cluster.route_requests[0] == "TBW102"


async def test_what_is_done_in_which_order_and_what_the_log_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "goddard.client")
    async with FakeCluster("a", topics=("known",)) as cluster:
        producer = Producer("ordered", name_servers=cluster.namesrv, topics=["known"])
        async with producer:
            await producer.send(Message("known", b"body"))
        codes = [request.code for request in cluster.broker("a").requests]
    assert "known" in cluster.route_requests
    heartbeat = codes.index(RequestCode.HEART_BEAT)
    send = codes.index(RequestCode.SEND_MESSAGE_V2)
    leave = codes.index(RequestCode.UNREGISTER_CLIENT)
    assert heartbeat < send < leave
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    lines = [
        f"the client factory [{producer.client_id}] start OK",
        "the producer [ordered] start OK. sendMessageWithVIPChannel=false",
        f"the client factory [{producer.client_id}] shutdown OK",
        "the producer [ordered] shutdown OK",
    ]
    assert [line for line in said if line in lines] == lines
