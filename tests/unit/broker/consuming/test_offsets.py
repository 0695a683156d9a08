"""Offsets of groups and queues, request by request."""

from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.codes import CommandFlag, RequestCode, ResponseCode
from goddard.store.tables import ConsumerOffsetTable
from tests.support.consumer_harness import ConsumerHarness, pull_fields

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET


def fields(**changes: Any) -> dict[str, Any]:
    return {"consumerGroup": "G", "topic": "T", "queueId": 0} | changes


async def test_a_query_returns_the_updated_offset(tmp_path: Path) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T")
        harness.groups.find("G")
        consumer = harness.connect()
        answer = await consumer.ask(UPDATE, fields(commitOffset=42))
        assert (answer.code, answer.remark, answer.ext_fields) == (0, None, {})
        answer = await consumer.ask(QUERY, fields())
        assert (answer.code, answer.ext_fields) == (0, {"offset": "42"})
        consumer.send(UPDATE, fields(commitOffset=7), flag=CommandFlag.ONEWAY)
        answer = await consumer.ask(QUERY, fields())
        assert answer.ext_fields == {"offset": "7"}


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"consumerGroup": "X"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group X not exist!"),
        ({"topic": "X"}, ResponseCode.TOPIC_NOT_EXIST, "Topic X not exist!"),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER, "queueId[-1] is illegal"),
        ({"queueId": 2**31}, ResponseCode.SYSTEM_ERROR, "queueId"),
        ({"queueId": None}, ResponseCode.SYSTEM_ERROR, "queueId is missing"),
        ({"commitOffset": "x"}, ResponseCode.SYSTEM_ERROR, "commitOffset"),
        ({"commitOffset": None}, ResponseCode.SYSTEM_ERROR, "commitOffset is missing"),
        ({"commitOffset": 2**63}, ResponseCode.SYSTEM_ERROR, "commitOffset"),
        ({"consumerGroup": None}, ResponseCode.SYSTEM_ERROR, "consumerGroup is missing"),
    ],
)
async def test_updates_that_are_refused(
    tmp_path: Path, changes: dict[str, Any], code: int, remark: str
) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T")
        harness.groups.find("G")
        answer = await harness.connect().ask(UPDATE, fields(**{"commitOffset": 1, **changes}))
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert not list(harness.offsets.table.items())


async def test_committing_minus_one_sets_no_offset(tmp_path: Path) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T")
        harness.groups.find("G")
        answer = await harness.connect().ask(UPDATE, fields(commitOffset=-1))
        assert answer.code == 0
        assert harness.offsets.query("G", "T", 0) == -1


async def test_a_queue_beyond_the_topic_may_be_committed_while_it_has_messages(
    tmp_path: Path,
) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T", queues=8)
        harness.put("T", b"1", queue_id=7)
        harness.add_topic("T", queues=4)
        harness.groups.find("G")
        answer = await harness.connect().ask(UPDATE, fields(commitOffset=1, queueId=7))
        assert answer.code == 0


class TestUnknownOffsets:
    async def test_a_young_queue_is_read_from_its_beginning(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.put("T", b"1")
            answer = await harness.connect().ask(QUERY, fields())
            assert (answer.code, answer.ext_fields) == (0, {"offset": "0"})

    async def test_a_young_queue_has_none_if_the_client_asks_so(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.put("T", b"1")
            answer = await harness.connect().ask(QUERY, fields(setZeroIfNotFound="false"))
            assert answer.code == ResponseCode.QUERY_NOT_FOUND
            assert answer.remark == "Not found, do not set to zero, maybe this group boot first"
            assert answer.ext_fields == {}

    async def test_a_queue_without_messages_has_none(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            answer = await harness.connect().ask(QUERY, fields())
            assert answer.code == ResponseCode.QUERY_NOT_FOUND
            assert answer.remark == (
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )

    async def test_a_queue_whose_first_message_is_not_in_memory_has_none(
        self, tmp_path: Path
    ) -> None:
        with ConsumerHarness(tmp_path, memory_bytes=300) as harness:
            harness.put("T", *[b"x" * 100] * 4)
            answer = await harness.connect().ask(QUERY, fields())
            assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_ends_and_times_of_a_queue(tmp_path: Path) -> None:
    with ConsumerHarness(tmp_path) as harness:
        times = []
        for number in range(4):
            times.append(harness.clock.now_ms())
            harness.put("T", b"%d" % number)
            harness.clock.advance(10)
        consumer = harness.connect()
        queue = {"topic": "T", "queueId": 0}
        answer = await consumer.ask(RequestCode.GET_MAX_OFFSET, queue)
        assert (answer.remark, answer.ext_fields) == (None, {"offset": "4"})
        answer = await consumer.ask(RequestCode.GET_MIN_OFFSET, queue)
        assert (answer.remark, answer.ext_fields) == ("", {"offset": "0"})
        answer = await consumer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
        assert answer.ext_fields == {"timestamp": str(times[0])}
        search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        for kind, expected in (("LOWER", "2"), ("lower", "2"), (None, "2"), ("UPPER", "1")):
            answer = await consumer.ask(
                search, queue | {"timestamp": times[1] + 5, "boundaryType": kind}
            )
            assert answer.ext_fields == {"offset": expected}, kind


async def test_old_go_clients_search_with_another_code(tmp_path: Path) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.put("T", b"1", b"2")
        answer = await harness.connect().ask(
            RequestCode.GET_MAX_OFFSET, {"Topic": "T", "QueueId": 0, "timestamp": 0}
        )
        assert answer.ext_fields == {"offset": "0"}


@pytest.mark.parametrize("queue_id", [0, -1, 2**31 - 1])
async def test_unknown_queues_are_empty(tmp_path: Path, queue_id: int) -> None:
    with ConsumerHarness(tmp_path) as harness:
        consumer = harness.connect()
        queue = {"topic": "nowhere", "queueId": queue_id, "timestamp": 5}
        for code in (
            RequestCode.GET_MAX_OFFSET,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        ):
            assert (await consumer.ask(code, queue)).ext_fields == {"offset": "0"}
        answer = await consumer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
        assert answer.ext_fields == {"timestamp": "-1"}


class TestResets:
    async def test_the_next_pull_begins_at_the_new_offset(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", *[b"x"] * 5)
            consumer = harness.connect()
            harness.offsets.commit("G", "T", 0, 5, "test")
            harness.offsets.reset("G", "T", 0, 2)
            answer = await consumer.ask(QUERY, fields())
            assert answer.ext_fields == {"offset": "2"}
            harness.groups.find("G")
            answer = await consumer.ask(UPDATE, fields(commitOffset=5))
            assert answer.remark == "Offset has been previously reset"
            answer = await consumer.ask(
                RequestCode.PULL_MESSAGE, pull_fields("T", 5, sysFlag=7, commitOffset=5)
            )
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.remark == "OFFSET_RESET"
            assert answer.fields["nextBeginOffset"] == "2"
            assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == ("0", "5")
            # The offset committed by the pull must not undo the reset.
            assert harness.offsets.query("G", "T", 0) == 2
            assert not harness.offsets.is_reset("G", "T", 0)
            answer = await consumer.ask(RequestCode.PULL_MESSAGE, pull_fields("T", 2))
            assert answer.code == ResponseCode.SUCCESS

    async def test_without_server_side_reset_a_reset_has_no_effect(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties={"useServerSideResetOffset": "false"}) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            harness.offsets.reset("G", "T", 0, 0)
            harness.offsets.commit("G", "T", 0, 1, "test")
            assert harness.offsets.query("G", "T", 0) == 1
            answer = await harness.connect().ask(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
            assert answer.code == ResponseCode.SUCCESS

    async def test_removing_and_cloning(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            offsets = harness.offsets
            offsets.reset("G", "T", 0, 3)
            offsets.note_pulled("G", "T", 0, 9)
            assert offsets.pulled("G", "T", 0) == 9
            offsets.clone("G", "H", "T")
            assert offsets.query("H", "T", 0) == 3
            offsets.remove(group="G")
            assert offsets.query("G", "T", 0) == -1
            assert offsets.pulled("G", "T", 0) == -1
            assert not offsets.is_reset("G", "T", 0)
            offsets.remove(topic="T")
            assert offsets.query("H", "T", 0) == -1


async def test_the_number_of_offsets_is_limited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ConsumerHarness(tmp_path, properties={"maxConsumerOffsets": "2"}) as harness:
        harness.add_topic("T")
        harness.groups.find("G")
        consumer = harness.connect()
        for queue_id in (0, 1, 0):
            answer = await consumer.ask(UPDATE, fields(queueId=queue_id, commitOffset=queue_id))
            assert answer.code == 0
        for _ in range(2):
            answer = await consumer.ask(UPDATE, fields(queueId=2, commitOffset=5))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "2 offsets already (maxConsumerOffsets)" in (answer.remark or "")
        assert (await consumer.ask(UPDATE, fields(queueId=1, commitOffset=9))).code == 0
        assert caplog.text.count("maxConsumerOffsets=2") == 1
        for queue_id in range(4):
            harness.offsets.note_pulled("G", "T", queue_id, 100)
        assert [harness.offsets.pulled("G", "T", each) for each in range(4)] == [100, 100, -1, -1]
        harness.offsets.remove(group="G")
        assert harness.offsets.table.count == 0
        assert (await consumer.ask(UPDATE, fields(queueId=2, commitOffset=5))).code == 0
        harness.offsets.note_pulled("G", "T", 3, 100)
        assert harness.offsets.pulled("G", "T", 3) == 100


def test_the_count_of_offsets_follows_every_change(tmp_path: Path) -> None:
    table = ConsumerOffsetTable(tmp_path)
    for group, queue_id in (("A", 0), ("A", 1), ("A", 1), ("B", 0)):
        table.commit(group, "T", queue_id, 7)
    assert table.count == 3
    table.clone("A", "B", "T")
    assert table.count == 4
    table.save()
    loaded = ConsumerOffsetTable(tmp_path)
    loaded.load()
    assert loaded.count == 4
    loaded.remove(group="A")
    assert loaded.count == 2
