"""Offsets of groups over loopback, and after restarts of the broker."""

import time
from pathlib import Path
from typing import Any

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.protocol import fastjson
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.responses import check
from goddard.transport.client import Client, ClientOptions
from tests.support.consumer_harness import pull_fields
from tests.support.polling import until

TIMEOUT_MS = 10_000


def config(folder: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": str(1 << 20),
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            **properties,
        }
    )


async def ask(client: Client, broker: Broker, code: int, **fields: Any) -> RemotingCommand:
    texts = {name: str(value) for name, value in fields.items()}
    return await client.request(broker.address, RemotingCommand(code, texts), TIMEOUT_MS)


async def fill(client: Client, broker: Broker, count: int) -> list[int]:
    """Send messages; returns the time of each by the test's clock."""
    times = []
    for number in range(count):
        times.append(int(time.time() * 1000))
        fields = {
            "producerGroup": "P",
            "topic": "T",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "0",
            "flag": "0",
        }
        command = RemotingCommand(RequestCode.SEND_MESSAGE, fields, b"%d" % number)
        check(await client.request(broker.address, command, TIMEOUT_MS))
    return times


async def committed(client: Client, broker: Broker) -> str | None:
    answer = await ask(
        client,
        broker,
        RequestCode.QUERY_CONSUMER_OFFSET,
        consumerGroup="G",
        topic="T",
        queueId=0,
        setZeroIfNotFound="false",
    )
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return answer.fields["offset"]


def saved_offsets(file: Path) -> dict[str, dict[str, int]]:
    """The table in ``consumerOffset.json``; empty while the file is being replaced."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return {}
    table: dict[str, dict[str, int]] = fastjson.loads(content)["offsetTable"]
    return table


async def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    async with Client(ClientOptions()) as client:
        async with Broker(config(tmp_path)) as broker:
            await fill(client, broker, 5)
            assert await committed(client, broker) is None
            answer = await ask(
                client,
                broker,
                RequestCode.PULL_MESSAGE,
                **pull_fields("T", 3, sysFlag=5, commitOffset=3),
            )
            assert answer.code == ResponseCode.SUCCESS
            assert await committed(client, broker) == "3"
            answer = await ask(
                client,
                broker,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup="G",
                topic="T",
                queueId=0,
                commitOffset=4,
            )
            assert answer.code == ResponseCode.SUCCESS
        async with Broker(config(tmp_path)) as broker:
            assert await committed(client, broker) == "4"
            answer = await ask(
                client, broker, RequestCode.PULL_MESSAGE, **pull_fields("T", 4, sysFlag=4)
            )
            assert answer.fields["nextBeginOffset"] == "5"


async def test_offsets_are_saved_while_the_broker_runs(tmp_path: Path) -> None:
    file = tmp_path / "config" / "consumerOffset.json"
    async with (
        Broker(config(tmp_path, flushConsumerOffsetInterval="50")) as broker,
        Client(ClientOptions()) as client,
    ):
        await fill(client, broker, 5)
        pull = pull_fields("T", 3, sysFlag=5, commitOffset=3)
        check(await ask(client, broker, RequestCode.PULL_MESSAGE, **pull))
        # In time: all tables are saved after 10 s anyway.
        await until(lambda: saved_offsets(file) == {"T@G": {"0": 3}}, seconds=8)
        queue = {"consumerGroup": "G", "topic": "T", "queueId": 0}
        update = RequestCode.UPDATE_CONSUMER_OFFSET
        check(await ask(client, broker, update, **queue, commitOffset=5))
        await until(lambda: saved_offsets(file) == {"T@G": {"0": 5}})


async def test_bounds_and_times_of_a_queue(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, Client(ClientOptions()) as client:
        times = await fill(client, broker, 5)
        queue = {"topic": "T", "queueId": 0}
        answer = await ask(client, broker, RequestCode.GET_MAX_OFFSET, **queue)
        assert answer.fields["offset"] == "5"
        answer = await ask(client, broker, RequestCode.GET_MIN_OFFSET, **queue)
        assert answer.fields["offset"] == "0"
        answer = await ask(client, broker, RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
        assert times[0] <= int(answer.fields["timestamp"]) <= times[0] + 5_000
        for timestamp, expected in ((0, "0"), (times[-1] + 60_000, "5")):
            answer = await ask(
                client,
                broker,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                **queue,
                timestamp=timestamp,
            )
            assert answer.fields["offset"] == expected


async def test_a_consumer_is_told_of_a_reset_by_its_next_pull(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, Client(ClientOptions()) as client:
        await fill(client, broker, 5)
        broker.offsets.reset("G", "T", 0, 2)
        answer = await ask(
            client, broker, RequestCode.PULL_MESSAGE, **pull_fields("T", 5, sysFlag=6)
        )
        assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        assert answer.fields["nextBeginOffset"] == "2"
        assert await committed(client, broker) == "2"
