"""Administration of a running broker: effects on name servers and producers, and after restarts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.config import NameServerConfig, parse_properties
from goddard.nameserver.server import NameServer
from goddard.protocol import fastjson
from goddard.protocol.bodies import TopicConfig, encode_body
from goddard.protocol.bodies_admin import TopicConfigList
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import check
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import ask, query_route
from goddard.transport.client import Client, ClientOptions
from tests.support.broker_client import BrokerClient

CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC
UPDATE = RequestCode.UPDATE_BROKER_CONFIG
READ = RequestCode.GET_BROKER_CONFIG


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client(ClientOptions())
    yield client
    await client.close()


def config(folder: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "brokerName": "broker-a",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": str(1 << 20),
            "mappedFileSizeConsumeQueue": "6000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            **properties,
        }
    )


def topic_fields(topic: str, queues: int = 2) -> dict[str, Any]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        # A broker without write permission refuses messages only of ordered topics.
        "order": "true",
    }


async def wait_perm(address: str, topic: str, perm: int) -> None:
    """Wait until the name server returns this permission for a topic."""

    def is_told() -> bool:
        route = query_route(address, topic)
        return route is not None and route["queueDatas"][0]["perm"] == perm

    await asyncio.to_thread(wait_until, is_told, 60, f"perm {perm} of {topic}")


async def test_changes_reach_name_servers_and_producers(tmp_path: Path, client: Client) -> None:
    name_server_config = NameServerConfig(listen_port=0, bind_address="127.0.0.1")
    async with NameServer(name_server_config) as name_server:
        address = f"127.0.0.1:{name_server.port}"
        async with Broker(config(tmp_path, namesrvAddr=address)) as broker:
            dialogue = BrokerClient(client, broker.address)
            check(await dialogue.ask(CREATE, topic_fields("T")))
            await wait_perm(address, "T", 6)
            await dialogue.send("T", b"1")
            # A broker without write permission.
            check(await dialogue.ask(UPDATE, {}, b"brokerPermission=4"))
            await wait_perm(address, "T", 4)
            header = dialogue.send_header("T", {})
            answer = await dialogue.ask(RequestCode.SEND_MESSAGE, header.encode(), b"2")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert len(await dialogue.pull("T")) == 1
            check(await dialogue.ask(UPDATE, {}, b"brokerPermission=6"))
            await wait_perm(address, "T", 6)
            await dialogue.send("T", b"3")
            # A deleted topic starts again at offset 0.
            check(await dialogue.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))
            sent = await dialogue.send("T", b"4")
            assert sent.queue_offset == 0
            assert [record.body for record in await dialogue.pull("T")] == [b"4"]


async def test_ten_thousand_topics(tmp_path: Path, client: Client) -> None:
    async with Broker(config(tmp_path)) as broker:
        dialogue = BrokerClient(client, broker.address)
        wanted = [TopicConfig(topic_name=f"Topic{number}") for number in range(10_000)]
        body = encode_body(TopicConfigList(wanted))
        check(await dialogue.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body))
        answer = check(await dialogue.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {}))
        table = fastjson.loads(bytes(answer.body))["topicConfigTable"]
        assert {each.topic_name for each in wanted} < set(table)
        for topic in ("Topic0", "Topic9999"):
            await dialogue.send(topic, b"x")
            check(await dialogue.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}))
    # All topics exist again, and so do the queues of those with messages.
    async with Broker(config(tmp_path)) as broker:
        dialogue = BrokerClient(client, broker.address)
        answer = check(await dialogue.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": 0}))
        assert int(answer.fields["totalTopicNum"]) >= 10_000
        assert len(await dialogue.pull("Topic9999")) == 1


async def test_statistics_of_sends_and_pulls(tmp_path: Path, client: Client) -> None:
    async with Broker(config(tmp_path)) as broker:
        dialogue = BrokerClient(client, broker.address)
        for number in range(5):
            await dialogue.send("T", b"%d" % number)
        assert len(await dialogue.pull("T")) == 5
        answer = check(await dialogue.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
        table = fastjson.loads(bytes(answer.body))["table"]
        assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("5", "5")
        assert table["putMessageTimesTotal"] == "5"
        assert table["putMessageFailedTimes"] == "0"
        assert table["commitLogMaxOffset"] == table["putMessageSizeTotal"]
        broker.stats.put_times.roll()  # as after a minute
        answer = check(await dialogue.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
        shown = fastjson.loads(bytes(answer.body))["table"]["putMessageDistributeTime"]
        assert sum(int(each.rpartition(":")[2]) for each in shown.split()) == 5


def test_updated_settings_survive_a_restart(tmp_path: Path) -> None:
    def read(address: str) -> dict[str, str]:
        answer = check(ask(address, RemotingCommand(READ)))
        return parse_properties(bytes(answer.body).decode())

    with Cluster(tmp_path, brokers=1) as cluster:
        (broker,) = cluster.brokers
        before = read(broker.address)
        body = b"waitTimeMillsInSendQueue=777\nslaveTimeout=4321\n"
        check(ask(broker.address, RemotingCommand(UPDATE, {}, body)))
        attack = b"filterServerNums=1\nrocketmqHome=-c $@|sh . echo id;\n"
        answer = ask(broker.address, RemotingCommand(UPDATE, {}, attack))
        assert answer.code == ResponseCode.NO_PERMISSION
        broker.stop()
        broker.start()
        wait_until(lambda: read(broker.address), 60, "the broker answers")
        after = read(broker.address)
        assert after == before | {"waitTimeMillsInSendQueue": "777", "slaveTimeout": "4321"}
