"""Administration of offsets: query, reset, correction, copy."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.admin.topics import QUEUES_PER_TURN
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import LanguageCode, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from tests.support.admin_harness import AdminHarness, body_of
from tests.support.consumer_harness import bodies_of, pull_fields, tags

PROGRESS = RequestCode.GET_CONSUME_STATS
ALL_PROGRESS = RequestCode.GET_BROKER_CONSUME_STATS
TIMES = RequestCode.QUERY_CONSUME_TIME_SPAN
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
CORRECT = RequestCode.QUERY_CORRECTION_OFFSET
CLONE = RequestCode.CLONE_GROUP_OFFSET
PUSH = {"useServerSideResetOffset": "false"}
MOST = 2**63 - 1


def table_of(answer: RemotingCommand, name: str = "offsetTable") -> dict[tuple[str, int], Any]:
    """Topic and queue id → value."""
    return {
        (dict(queue)["topic"], dict(queue)["queueId"]): value
        for queue, value in body_of(answer)[name].items()
    }


class TestProgress:
    async def test_of_a_group(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.add_topic("T", queues=2)
            harness.put("T", b"1", b"2", b"3")
            stored_ms = harness.clock.now_ms()
            harness.offsets.commit("G", "T", 0, 1, "")
            harness.offsets.note_pulled("G", "T", 0, 2)
            harness.figures.get("T", "G", 5, 50)
            harness.figures.sample(0, 1)
            admin = harness.connect()
            answer = await admin.ask(PROGRESS, {"consumerGroup": "G"})
            assert body_of(answer)["consumeTps"] == 0.5
            expected = {
                ("T", 0): {
                    "brokerOffset": 3,
                    "consumerOffset": 1,
                    "lastTimestamp": stored_ms,
                    "pullOffset": 2,
                },
                ("T", 1): {
                    "brokerOffset": 0,
                    "consumerOffset": 0,
                    "lastTimestamp": 0,
                    "pullOffset": 0,
                },
            }
            assert table_of(answer) == expected
            for fields in ({"topic": "T"}, {"topicList": "T;X;"}, {"topic": " "}):
                assert table_of(await admin.ask(PROGRESS, {"consumerGroup": "G"} | fields)) == (
                    expected
                )
            assert table_of(await admin.ask(PROGRESS, {"consumerGroup": "X"})) == {}
            assert table_of(await admin.ask(PROGRESS, {"consumerGroup": "G", "topic": "X"})) == {}
            assert (await admin.ask(PROGRESS)).code == ResponseCode.SYSTEM_ERROR

    async def test_topics_without_subscription_are_left_out(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            for topic in ("T", "Old"):
                harness.add_topic(topic, queues=1)
                harness.offsets.commit("G", topic, 0, 1, "")
            await harness.connect().heartbeat("G", tags("T"))
            admin = harness.connect()
            assert set(table_of(await admin.ask(PROGRESS, {"consumerGroup": "G"}))) == {("T", 0)}
            fields = {"consumerGroup": "G", "topicList": "Old"}
            assert set(table_of(await admin.ask(PROGRESS, fields))) == {("Old", 0)}

    async def test_of_all_groups(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.add_topic("T", queues=1)
            harness.add_topic("Ordered", queues=1, order=True)
            harness.put("T", b"1", b"2", b"3")
            for group in ("G", "Idle"):
                harness.groups.put(SubscriptionGroupConfig(group_name=group))
            for topic in ("T", "Ordered", "Gone"):
                harness.offsets.commit("G", topic, 0, 1, "")
            admin = harness.connect()
            answer = body_of(await admin.ask(ALL_PROGRESS, {"isOrder": "false"}))
            assert answer["brokerAddr"] == harness.settings.current.broker_address
            # The empty queue of Ordered counts with the offset of its group, which is ahead.
            assert (answer["totalDiff"], answer["totalInflightDiff"]) == (1, -2)
            by_group = {
                name: stats for each in answer["consumeStatsList"] for name, stats in each.items()
            }
            assert {name: len(stats) for name, stats in by_group.items()} == {"G": 2, "Idle": 0}
            answer = body_of(await admin.ask(ALL_PROGRESS, {"isOrder": "true"}))
            assert [
                len(stats) for each in answer["consumeStatsList"] for stats in each.values()
            ] == [1, 0]
            assert (await admin.ask(ALL_PROGRESS)).code == ResponseCode.SYSTEM_ERROR


async def test_the_time_span_of_a_groups_progress(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.add_topic("T", queues=2)
        first_ms = harness.clock.now_ms()
        for body in (b"1", b"2", b"3"):
            harness.put("T", body)
            harness.clock.advance(1000)
        harness.offsets.commit("G", "T", 0, 1, "")
        admin = harness.connect()
        fields = {"topic": "T", "group": "G"}
        spans = body_of(await admin.ask(TIMES, fields))["consumeTimeSpanSet"]
        assert [span["messageQueue"]["queueId"] for span in spans] == [0, 1]
        full, empty = spans
        assert (full["minTimeStamp"], full["maxTimeStamp"], full["consumeTimeStamp"]) == (
            first_ms,
            first_ms + 2000,
            first_ms,
        )
        assert full["delayTime"] == 2000
        assert full["minTimeStampStr"].endswith(":000")
        assert len(full["minTimeStampStr"]) == len("2026-11-15#08:58:43:813")
        assert (empty["minTimeStamp"], empty["maxTimeStamp"], empty["consumeTimeStamp"]) == (
            -1,
            -1,
            -1,
        )
        answer = await admin.ask(TIMES, fields | {"topic": "X"})
        assert (answer.code, answer.remark) == (17, "topic[X] not exist")
        assert (await admin.ask(TIMES, {"topic": "T"})).code == ResponseCode.SYSTEM_ERROR


def reset(**changes: Any) -> dict[str, Any]:
    return {
        "topic": "T",
        "group": "G",
        "queueId": -1,
        "offset": -1,
        "timestamp": 0,
        "isForce": "true",
    } | changes


def three_messages(harness: AdminHarness) -> list[int]:
    """One message a second in queue 0 of T; returns their times."""
    harness.add_topic("T", queues=2)
    harness.groups.find("G")
    times = []
    for body in (b"1", b"2", b"3"):
        times.append(harness.clock.now_ms())
        harness.put("T", body)
        harness.clock.advance(1000)
    return times


class TestResetHere:
    async def test_by_time(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            times = three_messages(harness)
            admin = harness.connect()
            for timestamp, expected in ((0, 0), (times[1], 1), (times[2] + 1, 3), (-1, 3)):
                answer = await admin.ask(RESET, reset(timestamp=timestamp))
                assert table_of(answer) == {("T", 0): expected, ("T", 1): 0}
                assert harness.offsets.query("G", "T", 0) == expected

    async def test_one_queue(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            times = three_messages(harness)
            admin = harness.connect()
            answer = await admin.ask(RESET, reset(queueId=0, offset=2))
            assert table_of(answer) == {("T", 0): 2}
            answer = await admin.ask(RESET, reset(queueId=0, offset=None, timestamp=times[1]))
            assert table_of(answer) == {("T", 0): 1}
            assert harness.offsets.query("G", "T", 1) == -1

    async def test_the_next_pull_gets_the_reset_offset(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            three_messages(harness)
            harness.offsets.commit("G", "T", 0, 3, "")
            consumer, admin = harness.connect(), harness.connect()
            await admin.ask(RESET, reset(queueId=0, offset=1))
            commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 3}
            await consumer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            assert harness.offsets.query("G", "T", 0) == 1
            answer = await consumer.ask(RequestCode.PULL_MESSAGE, pull_fields("T", 3))
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.fields["nextBeginOffset"] == "1"
            answer = await consumer.ask(RequestCode.PULL_MESSAGE, pull_fields("T", 1))
            assert bodies_of(answer) == [b"2", b"3"]

    @pytest.mark.parametrize(
        ("changes", "code", "remark"),
        [
            ({"topic": "X"}, 17, "Topic X does not exist"),
            ({"group": "X"}, 26, "Group X does not exist"),
            ({"queueId": 0, "offset": 5}, 1, "Target offset 5 not in consume queue range [0-3]"),
            ({"queueId": 0, "offset": -2}, 1, "Target offset -2 not in consume queue range [0-3]"),
            ({"queueId": 2, "offset": 0}, 29, "no queue 2"),
            ({"queueId": 2**31 - 1}, 29, "no queue"),
            ({"queueId": 2**31}, 1, "queueId"),
            ({"timestamp": None}, 1, "timestamp is missing"),
            ({"timestamp": "yesterday"}, 1, "timestamp"),
            ({"group": None}, 1, "group is missing"),
        ],
    )
    async def test_refused(
        self, tmp_path: Path, changes: dict[str, Any], code: int, remark: str
    ) -> None:
        with AdminHarness(tmp_path) as harness:
            three_messages(harness)
            answer = await harness.connect().ask(RESET, reset(**changes))
            assert answer.code == code
            assert remark in (answer.remark or "")
            assert not list(harness.offsets.table.items())

    async def test_a_topic_without_queues(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.add_topic("T", queues=0)
            harness.groups.find("G")
            answer = await harness.connect().ask(RESET, reset())
            assert (answer.code, answer.remark) == (1, "No queues to reset.")


class TestResetAtClients:
    async def test_consumers_are_notified(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path, properties=PUSH) as harness:
            times = three_messages(harness)
            for queue_id, offset in ((0, 2), (1, 0)):
                harness.offsets.commit("G", "T", queue_id, offset, "")
            consumer, admin = harness.connect(), harness.connect()
            await consumer.heartbeat("G", tags("T"))
            await consumer.next_push()  # the members changed
            answer = await admin.ask(RESET, reset(timestamp=times[1]))
            assert answer.remark == "not set any response code"
            assert table_of(answer) == {("T", 0): 1, ("T", 1): 0}
            push = await consumer.next_push()
            assert push.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            assert push.is_oneway
            assert push.fields == {
                "topic": "T",
                "group": "G",
                "queueId": "-1",
                "timestamp": str(times[1]),
                "isForce": "false",
            }
            assert push.body == answer.body
            # The client commits them.
            assert harness.offsets.query("G", "T", 0) == 2
            # Without force, no consumer skips a message.
            answer = await admin.ask(RESET, reset(timestamp=-1, isForce="false"))
            assert table_of(answer) == {("T", 0): 2, ("T", 1): 0}

    async def test_clients_of_the_cpp_tool_get_a_list(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path, properties=PUSH) as harness:
            harness.add_topic("T", queues=1)
            harness.offsets.commit("G", "T", 0, 0, "")
            consumer, admin = harness.connect(), harness.connect()
            await consumer.heartbeat("G", tags("T"))
            await consumer.next_push()
            request = RemotingCommand(
                RESET,
                {name: str(value) for name, value in reset().items()},
                opaque=77,
                language=LanguageCode.CPP,
            )
            admin.peer.transport.write(encode_frame(request))
            assert (await admin.answer(77)).code == 0
            push = await consumer.next_push()
            assert push.body == (
                b'{"offsetTable":[{"brokerName":"DEFAULT_BROKER","offset":0,"queueId":0,'
                b'"topic":"T"}]}'
            )

    async def test_refused(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path, properties=PUSH) as harness:
            harness.add_topic("T", queues=1)
            admin = harness.connect()
            answer = await admin.ask(RESET, reset(topic="X"))
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            answer = await admin.ask(RESET, reset())
            assert (answer.code, answer.remark) == (1, "THe consumer group <G> not exist")
            harness.offsets.commit("G", "T", 0, 0, "")
            answer = await admin.ask(RESET, reset())
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
            assert answer.remark == (
                "Consumer not online, so can not reset offset, Group: G Topic: T Timestamp: 0"
            )


class TestCorrection:
    async def test_the_smallest_offset_of_all_groups(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.add_topic("T", queues=2)
            for group, queue_id, offset in (("A", 0, 5), ("B", 0, 3), ("B", 1, 9), ("C", 0, 1)):
                harness.offsets.commit(group, "T", queue_id, offset, "")
            harness.offsets.commit("A", "Other", 0, 0, "")
            admin = harness.connect()

            async def ask(**fields: str) -> Any:
                answer = await admin.ask(CORRECT, {"topic": "T"} | fields)
                return body_of(answer)["correctionOffsets"]

            assert await ask(compareGroup="X") == {0: 1, 1: 9}
            assert await ask(compareGroup="X", filterGroups="C,Z") == {0: 3, 1: 9}
            # A filter does not delete offsets (in Java it does).
            assert harness.offsets.query("C", "T", 0) == 1
            # No correction for a group behind all others, nor for a queue that only it has.
            assert await ask(compareGroup="C", filterGroups="C") == {0: MOST, 1: 9}
            assert await ask(compareGroup="B", filterGroups="B") == {0: 1, 1: MOST}
            for fields in ({"topic": "T"}, {"compareGroup": "A"}):
                assert (await admin.ask(CORRECT, fields)).code == ResponseCode.SYSTEM_ERROR

    async def test_others_have_their_turn_in_between(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.add_topic("T")
            for number in range(5_000):
                harness.offsets.commit(f"G{number}", "T", 0, number, "")
            admin = harness.connect()
            answered = asyncio.create_task(admin.ask(CORRECT, {"topic": "T", "compareGroup": "X"}))
            turns = 0
            async with asyncio.timeout(30):
                while not answered.done():
                    turns += 1
                    await asyncio.sleep(0)
            assert body_of(answered.result())["correctionOffsets"] == {0: 0}
            assert turns > 5_000 // QUEUES_PER_TURN


class TestClone:
    async def test_topics_of_a_group(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            for topic in ("T", "U"):
                harness.add_topic(topic)
                harness.offsets.commit("G", topic, 0, 5, "")
            harness.offsets.commit("G", "Gone", 0, 5, "")
            admin = harness.connect()
            fields = {"srcGroup": "G", "destGroup": "H", "offline": "false"}
            assert (await admin.ask(CLONE, fields | {"topic": "T"})).code == 0
            assert harness.offsets.table.topics_of("H") == ["T"]
            await harness.connect().heartbeat("G", tags("U"))
            assert (await admin.ask(CLONE, fields | {"destGroup": "Subscribed"})).code == 0
            assert harness.offsets.table.topics_of("Subscribed") == ["U"]
            assert (
                await admin.ask(CLONE, fields | {"destGroup": "All", "offline": "true"})
            ).code == 0
            assert harness.offsets.table.topics_of("All") == ["T", "U"]
            assert harness.offsets.query("All", "U", 0) == 5
            assert (await admin.ask(CLONE, {"srcGroup": "G"})).code == ResponseCode.SYSTEM_ERROR


async def test_tables_for_slaves(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.offsets.commit("G", "T", 1, 5, "")
        harness.delay_table.commit(3, 7)
        admin = harness.connect()
        answer = await admin.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        # Keys of queues have no quotes, as fastjson writes them.
        assert b'"offsetTable":{"T@G":{1:5}}' in bytes(answer.body)
        assert body_of(answer)["groupTopicMap"] == {"G": ["T"]}
        answer = await admin.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert b'"offsetTable":{3:7}' in bytes(answer.body)


async def test_a_large_table_does_not_block_other_requests(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        for number in range(2_000):
            harness.offsets.commit(f"G{number}", "T", 1, number, "")
        admin = harness.connect()
        table = asyncio.create_task(admin.ask(RequestCode.GET_ALL_CONSUMER_OFFSET))
        await asyncio.sleep(0)
        other = harness.connect()
        assert (await other.ask(RequestCode.GET_ALL_DELAY_OFFSET)).code == 0
        assert not table.done()
        offsets = body_of(await table)["offsetTable"]
        assert len(offsets) == 2_000
        assert offsets["T@G1999"] == {1: 1999}
