"""Connected clients, and requests that the broker forwards to them for administrators."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.admin import clients as admin_clients
from goddard.protocol.bodies import ConsumeType, MessageModel
from goddard.protocol.codes import LanguageCode, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.ids import offset_message_id
from goddard.protocol.record import Host
from tests.support.admin_harness import AdminHarness, body_of
from tests.support.consumer_harness import Consumer, records_of, tags
from tests.support.store import put_forged

CONSUMERS = RequestCode.GET_CONSUMER_CONNECTION_LIST
PRODUCERS = RequestCode.GET_PRODUCER_CONNECTION_LIST
ALL_PRODUCERS = RequestCode.GET_ALL_PRODUCER_INFO
RUNNING = RequestCode.GET_CONSUMER_RUNNING_INFO
CONSUME = RequestCode.CONSUME_MESSAGE_DIRECTLY
OFFSETS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
CLIENT = "127.0.0.1@1"


async def join_group(harness: AdminHarness, client_id: str = CLIENT) -> Consumer:
    """A consumer of G on T that has been notified of the group's members."""
    consumer = harness.connect()
    await consumer.heartbeat("G", tags("T"), client_id=client_id)
    await consumer.next_push()
    return consumer


async def next_call(consumer: Consumer) -> RemotingCommand:
    while True:
        push = await consumer.next_push()
        if push.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return push


def reply(consumer: Consumer, call: RemotingCommand, **fields: Any) -> None:
    answer = call.reply(**fields)
    answer.version = 401
    consumer.peer.transport.write(encode_frame(answer))


async def test_consumers_of_a_group(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        consumer = harness.connect()
        await consumer.heartbeat(
            "G",
            tags("T", "A"),
            consume_type=ConsumeType.ACTIVELY,
            message_model=MessageModel.BROADCASTING,
        )
        admin = harness.connect()
        found = body_of(await admin.ask(CONSUMERS, {"consumerGroup": "G"}))
        (connection,) = found["connectionSet"]
        assert connection == {
            "clientAddr": consumer.connection.remote,
            "clientId": CLIENT,
            "language": "JAVA",
            "version": 493,
        }
        assert (found["consumeType"], found["messageModel"], found["consumeFromWhere"]) == (
            "CONSUME_ACTIVELY",
            "BROADCASTING",
            "CONSUME_FROM_LAST_OFFSET",
        )
        assert found["subscriptionTable"]["T"]["tagsSet"] == ["A"]
        answer = await admin.ask(CONSUMERS, {"consumerGroup": "X"})
        assert (answer.code, answer.remark) == (206, "the consumer group[X] not online")
        assert (await admin.ask(CONSUMERS)).code == ResponseCode.SYSTEM_ERROR


async def test_producers(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        admin = harness.connect()
        assert body_of(await admin.ask(ALL_PRODUCERS)) == {"data": {}}
        producer = harness.connect()
        await producer.heartbeat(producer="P")
        heard_ms = harness.clock.now_ms()
        harness.clock.advance(5_000)
        harness.clock.jump(-3_600_000)  # the time of a heartbeat does not depend on it
        found = body_of(await admin.ask(PRODUCERS, {"producerGroup": "P"}))
        assert [each["clientId"] for each in found["connectionSet"]] == [CLIENT]
        found = body_of(await admin.ask(ALL_PRODUCERS))
        assert found == {
            "data": {
                "P": [
                    {
                        "clientId": CLIENT,
                        "language": "JAVA",
                        "lastUpdateTimestamp": heard_ms - 3_600_000,
                        "remoteIP": f"/{producer.connection.remote}",
                        "version": 493,
                    }
                ]
            }
        }
        answer = await admin.ask(PRODUCERS, {"producerGroup": "X"})
        assert (answer.code, answer.remark) == (1, "the producer group[X] not exist")
        assert (await admin.ask(PRODUCERS)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("language", [*LanguageCode, 99])
async def test_every_language_has_a_name(tmp_path: Path, language: int) -> None:
    with AdminHarness(tmp_path) as harness:
        producer = harness.connect()
        await producer.heartbeat(producer="P")
        (client,) = harness.clients.producer_groups["P"].values()
        client.language = language
        found = body_of(await harness.connect().ask(PRODUCERS, {"producerGroup": "P"}))
        expected = LanguageCode(language).name if language in list(LanguageCode) else "OTHER"
        assert found["connectionSet"][0]["language"] == expected


class TestAskingAClient:
    async def test_its_answer_is_forwarded(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            consumer, admin = await join_group(harness), harness.connect()
            fields = {"consumerGroup": "G", "clientId": CLIENT, "jstackEnable": "true"}
            pending = admin.send(RUNNING, fields)
            call = await next_call(consumer)
            assert (call.code, call.fields) == (RUNNING, fields)
            reply(consumer, call, remark="not set any response code", body=b'{"jstack":"x"}')
            answer = await admin.answer(pending)
            assert (answer.code, bytes(answer.body)) == (0, b'{"jstack":"x"}')
            assert (answer.remark, answer.version) == ("not set any response code", 401)

    async def test_its_error_is_forwarded(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            consumer, admin = await join_group(harness), harness.connect()
            pending = admin.send(RUNNING, {"consumerGroup": "G", "clientId": CLIENT})
            reply(consumer, await next_call(consumer), code=1, remark="no")
            answer = await admin.answer(pending)
            assert (answer.code, answer.remark) == (1, "no")

    async def test_an_unknown_client(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            await join_group(harness)
            admin = harness.connect()
            for group, client in (("G", "other"), ("X", CLIENT)):
                fields = {"consumerGroup": group, "clientId": client}
                answer = await admin.ask(RUNNING, fields)
                assert (answer.code, answer.remark) == (
                    1,
                    f"The Consumer <{group}> <{client}> not online",
                )
            for fields in ({"consumerGroup": "G"}, {"clientId": CLIENT}):
                assert (await admin.ask(RUNNING, fields)).code == ResponseCode.SYSTEM_ERROR

    async def test_a_client_that_does_not_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admin_clients, "_CALL_MS", 20)
        with AdminHarness(tmp_path) as harness:
            await join_group(harness)
            fields = {"consumerGroup": "G", "clientId": CLIENT}
            answer = await harness.connect().ask(RUNNING, fields)
            assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
            assert (answer.remark or "").startswith(f"consumer <G> <{CLIENT}> Timeout: ")

    async def test_a_client_that_disconnects(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            consumer, admin = await join_group(harness), harness.connect()
            pending = admin.send(RUNNING, {"consumerGroup": "G", "clientId": CLIENT})
            await next_call(consumer)
            consumer.peer.transport.close()
            answer = await admin.answer(pending)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith(f"invoke consumer <G> <{CLIENT}> Exception: ")

    async def test_a_client_that_is_too_old(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            await join_group(harness)
            group = harness.clients.consumer_group("G")
            assert group is not None
            for client in group.clients.values():
                client.version = 20
            admin = harness.connect()
            answer = await admin.ask(RUNNING, {"consumerGroup": "G", "clientId": CLIENT})
            assert "please upgrade it to V3_1_8_SNAPSHOT" in (answer.remark or "")
            answer = await admin.ask(OFFSETS, {"group": "G", "topic": "T"})
            assert "does not support this feature" in (answer.remark or "")


def message_id(physical_offset: int) -> str:
    return offset_message_id(Host.parse("127.0.0.1:10911"), physical_offset)


class TestConsumingDirectly:
    async def test_a_message_goes_to_the_consumer(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.add_topic("T", topic_sys_flag=2)
            harness.put("T", b"1")
            consumer, admin = await join_group(harness), harness.connect()
            fields = {
                "consumerGroup": "G",
                "clientId": CLIENT,
                "msgId": message_id(0),
                "topic": "T",
            }
            pending = admin.send(CONSUME, fields)
            call = await next_call(consumer)
            assert call.fields == fields | {
                "brokerName": "DEFAULT_BROKER",
                "topicSysFlag": "2",
                "groupSysFlag": "0",
            }
            assert [record.body for record in records_of(call)] == [b"1"]
            reply(consumer, call, body=b'{"consumeResult":"CR_SUCCESS"}')
            answer = await admin.answer(pending)
            assert body_of(answer) == {"consumeResult": "CR_SUCCESS"}

    @pytest.mark.parametrize(
        ("changes", "remark"),
        [
            ({"msgId": None}, "msgId is missing"),
            ({"msgId": "x"}, ""),
            ({"msgId": "F" * 32}, ""),
            ({"msgId": message_id(5)}, "can not find message by the offset, 5"),
            ({"msgId": message_id(2**62)}, "can not find message"),
            ({"consumerGroup": None}, "consumerGroup is missing"),
            ({"clientId": None}, "The Consumer <G> <> not online"),
        ],
    )
    async def test_refused(self, tmp_path: Path, changes: dict[str, Any], remark: str) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1")
            await join_group(harness)
            fields = {"consumerGroup": "G", "clientId": CLIENT, "msgId": message_id(0)}
            answer = await harness.connect().ask(CONSUME, fields | changes)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert remark in (answer.remark or "")

    async def test_a_record_inside_of_a_body_is_not_consumed(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            forged = put_forged(harness.store, "Secret", b"")
            await join_group(harness)
            fields = {"consumerGroup": "G", "clientId": CLIENT, "msgId": message_id(forged)}
            answer = await harness.connect().ask(CONSUME, fields)
            assert answer.remark == f"can not find message by the offset, {forged}"


class TestOffsetsOfClients:
    BODY = b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7}}'

    async def test_all_clients_are_asked_concurrently(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            first = await join_group(harness, "first")
            second = await join_group(harness, "second")
            admin = harness.connect()
            pending = admin.send(OFFSETS, {"group": "G", "topic": "T"})
            calls = [await next_call(consumer) for consumer in (first, second)]
            assert {call.code for call in calls} == {RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT}
            assert calls[0].fields == {"topic": "T", "group": "G"}
            reply(first, calls[0], body=self.BODY)
            reply(second, calls[1], body=b"{{{")  # treated as no answer
            answer = await admin.answer(pending)
            assert answer.remark == "not set any response code"
            assert bytes(answer.body) == (
                b'{"consumerTable":{"first":{{"brokerName":"b","queueId":0,"topic":"T"}:7}}}'
            )

    async def test_a_single_client_is_asked(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            first = await join_group(harness, "first")
            await join_group(harness, "second")
            admin = harness.connect()
            pending = admin.send(OFFSETS, {"group": "G", "topic": "T", "clientAddr": "first"})
            reply(first, await next_call(first), body=self.BODY)
            assert set(body_of(await admin.answer(pending))["consumerTable"]) == {"first"}

    async def test_a_client_that_does_not_answer_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admin_clients, "_STATUS_MS", 20)
        with AdminHarness(tmp_path) as harness:
            await join_group(harness)
            async with asyncio.timeout(60):
                answer = await harness.connect().ask(OFFSETS, {"group": "G", "topic": "T"})
            assert body_of(answer) == {"consumerTable": {}}

    async def test_an_unknown_client(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            admin = harness.connect()
            answer = await admin.ask(OFFSETS, {"group": "G", "topic": "T"})
            assert (answer.code, answer.remark) == (
                1,
                "No Any Consumer online in the consumer group: [G]",
            )
            assert (await admin.ask(OFFSETS, {"group": "G"})).code == ResponseCode.SYSTEM_ERROR
