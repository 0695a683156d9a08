"""Pulls: every check, correction of offsets and kind of filter, on both paths."""

from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.bodies import ConsumeType, MessageModel
from goddard.protocol.codes import CommandFlag, RequestCode, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.store.errors import StoreDiskError
from tests.support.consumer_harness import (
    ConsumerHarness,
    bodies_of,
    pull_fields,
    records_of,
    sql,
    tags,
)

PULL = RequestCode.PULL_MESSAGE
LITE_PULL = RequestCode.LITE_PULL_MESSAGE
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
WITH_SQL = {"enablePropertyFilter": "true"}

both_ways = pytest.mark.parametrize("lane", [False, True], ids=["general", "lane"])


@both_ways
async def test_messages_are_found(tmp_path: Path, lane: bool) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T", topic_sys_flag=3)
        harness.put("T", b"one", b"two", b"three")
        consumer = harness.connect(lane=lane)
        answer = await consumer.ask(PULL, pull_fields("T", 1))
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
        assert answer.ext_fields == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "3",
            "minOffset": "0",
            "maxOffset": "3",
            "topicSysFlag": "3",
            "groupSysFlag": "0",
        }
        assert bodies_of(answer) == [b"two", b"three"]
        assert [record.queue_offset for record in records_of(answer)] == [1, 2]
        assert harness.stats.gets == {("T", "G"): (2, len(answer.body))}
        assert harness.offsets.pulled("G", "T", 0) == 3
        assert "G" in harness.groups


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("queue_offset", [0, 2, 5])
async def test_both_paths_give_the_answer_of_the_encoder(
    tmp_path: Path, serialize_type: SerializeType, queue_offset: int
) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T")
        harness.put("T", b"one", b"two")
        fields = {name: str(value) for name, value in pull_fields("T", queue_offset).items()}
        request = encode_frame(
            RemotingCommand(LITE_PULL, fields, opaque=7, serialize_type=serialize_type)
        )
        answers = []
        for lane in (False, True):
            consumer = harness.connect(lane=lane)
            consumer.peer.transport.write(request)
            (answer,) = await consumer.peer.receive(1)
            assert answer.serialize_type is serialize_type
            answers.append(answer)
        assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("stored", "queue_offset", "code", "remark", "next_offset"),
    [
        (0, 0, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0),
        (0, 5, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
        (0, -1, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
        (3, 3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (3, 4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (3, 2**63 - 1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (3, -1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (3, -(2**63), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (3, 2, ResponseCode.SUCCESS, "FOUND", 3),
    ],
)
@both_ways
async def test_corrections_of_offsets(
    tmp_path: Path,
    lane: bool,
    stored: int,
    queue_offset: int,
    code: int,
    remark: str,
    next_offset: int,
) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T")
        harness.put("T", *[b"x"] * stored)
        answer = await harness.connect(lane=lane).ask(PULL, pull_fields("T", queue_offset))
        assert (answer.code, answer.remark) == (code, remark)
        assert answer.fields["nextBeginOffset"] == str(next_offset)
        assert answer.fields["maxOffset"] == str(stored)
        assert answer.fields["minOffset"] == "0"


async def test_an_offset_before_the_first_message_is_moved(tmp_path: Path) -> None:
    with ConsumerHarness(tmp_path, segment_bytes=4096, queue_file_bytes=40) as harness:
        harness.add_topic("T")
        harness.put("T", *[bytes(1000)] * 12)
        for segment in harness.store.log.forget_first(2):
            segment.delete()
        queue = harness.store.queues.get("T", 0)
        assert queue is not None
        queue.forget_before(harness.store.log_min_offset)
        first = harness.store.min_offset("T", 0)
        assert first > 0
        answer = await harness.connect().ask(PULL, pull_fields("T", 0))
        assert (answer.code, answer.remark) == (
            ResponseCode.PULL_OFFSET_MOVED,
            "OFFSET_TOO_SMALL",
        )
        assert answer.fields["nextBeginOffset"] == answer.fields["minOffset"] == str(first)
        answer = await harness.connect().ask(PULL, pull_fields("T", first))
        assert answer.code == ResponseCode.SUCCESS


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "code", "remark"),
        [
            (
                {"topic": "X"},
                ResponseCode.TOPIC_NOT_EXIST,
                "topic[X] not exist, apply first please! " + FAQ,
            ),
            (
                {"consumerGroup": "a b"},
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                "subscription group [a b] does not exist, " + FAQ,
            ),
            (
                {"queueId": 4},
                ResponseCode.INVALID_PARAMETER,
                "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4] "
                "consumer:[/127.0.0.1:50001]",
            ),
            (
                {"queueId": -1},
                ResponseCode.INVALID_PARAMETER,
                "queueId[-1] is illegal, topic:[T] topicConfig.readQueueNums:[4] "
                "consumer:[/127.0.0.1:50001]",
            ),
            (
                {"sysFlag": 0},
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist" + FAQ,
            ),
            (
                {"subscription": "||"},
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                "parse the consumer's subscription failed",
            ),
            (
                {"expressionType": "SQL92", "subscription": "a >"},
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                "parse the consumer's subscription failed",
            ),
            (
                {"expressionType": "SQL92", "subscription": "a > 1"},
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by SQL92",
            ),
            (
                {"expressionType": "SQL92", "subscription": "a = 'x' OR " * 90_000},
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                "parse the consumer's subscription failed",
            ),
            (
                {"expressionType": "GROOVY"},
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                "parse the consumer's subscription failed",
            ),
            (
                {"sysFlag": 12},
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by CLASS",
            ),
        ],
    )
    @both_ways
    async def test_errors_name_what_is_wrong(
        self, tmp_path: Path, lane: bool, changes: dict[str, Any], code: int, remark: str
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            answer = await harness.connect(lane=lane).ask(PULL, pull_fields("T") | changes)
            assert (answer.code, answer.remark) == (code, remark)
            assert answer.ext_fields == {}
            assert not answer.body

    @pytest.mark.parametrize("name", sorted(set(pull_fields("T")) - {"subscription"}))
    @pytest.mark.parametrize("value", [None, "", "x", "1.5", "99999999999999999999"])
    async def test_missing_and_mistyped_fields(
        self, tmp_path: Path, name: str, value: str | None
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            answers = []
            for lane in (False, True):
                fields = pull_fields("T") | {name: value}
                answer = await harness.connect(lane=lane).ask(PULL, fields)
                answers.append((answer.code, answer.remark))
            assert answers[0] == answers[1]
            if name not in ("consumerGroup", "topic", "expressionType"):
                assert answers[0][0] == ResponseCode.SYSTEM_ERROR
                assert name in (answers[0][1] or "")

    @pytest.mark.parametrize(
        ("properties", "code", "remark"),
        [
            (
                {"brokerPermission": "2"},
                PULL,
                "the broker[127.0.0.1] pulling message is forbidden",
            ),
            (
                {"litePullMessageEnable": "false"},
                LITE_PULL,
                "the broker[127.0.0.1] for lite pull consumer is forbidden",
            ),
        ],
    )
    async def test_a_broker_without_read_permission(
        self, tmp_path: Path, properties: dict[str, str], code: int, remark: str
    ) -> None:
        with ConsumerHarness(tmp_path, properties=properties) as harness:
            harness.add_topic("T")
            answer = await harness.connect().ask(code, pull_fields("T"))
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, remark)
            assert answer.ext_fields == {"forbiddenType": "1"}

    async def test_a_group_that_may_not_consume(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.groups.find("G")
            harness.groups.disable_consuming("G")
            answer = await harness.connect().ask(PULL, pull_fields("T"))
            assert answer.remark == "subscription group no permission, G"
            assert answer.ext_fields == {"forbiddenType": "2"}

    async def test_a_topic_without_read_permission(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T", perm=2)
            answer = await harness.connect().ask(PULL, pull_fields("T"))
            assert answer.remark == "the topic[T] pulling message is forbidden"
            assert answer.ext_fields == {"forbiddenType": "3"}

    async def test_broadcasting_can_be_forbidden(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            config = harness.groups.find("G")
            assert config is not None
            config.consume_broadcast_enable = False
            one = harness.connect()
            await one.heartbeat("G", tags("T"), message_model=MessageModel.BROADCASTING)
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0))
            assert answer.remark == "the consumer group[G] can not consume by broadcast way"
            assert answer.ext_fields == {"forbiddenType": "4"}

    async def test_a_topic_can_be_forbidden_to_a_group(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            await one.heartbeat("G", tags("T"))
            harness.groups.forbid("G", "T", 1 << 2)
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0))
            assert answer.remark == "the consumer group[G] is forbidden for topic[T]"
            assert answer.ext_fields == {"forbiddenType": "5"}

    async def test_a_pull_newer_than_the_heartbeat(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.add_topic("U")
            harness.put("T", b"x")
            one = harness.connect()
            await one.heartbeat("G", tags("T", version=5))
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0, subVersion=6))
            assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
            assert answer.remark == "the consumer's subscription not latest"
            await one.heartbeat("G", tags("T", version=6))
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0, subVersion=6))
            assert answer.code == ResponseCode.SUCCESS
            answer = await one.ask(PULL, pull_fields("U", sysFlag=0))
            assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            assert answer.remark == "the consumer's subscription not exist" + FAQ

    async def test_pull_consumers_can_be_refused(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties={"rejectPullConsumerEnable": "true"}) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            one = harness.connect()
            answer = await one.ask(PULL, pull_fields("T"))
            assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            await one.heartbeat("G", tags("T"), consume_type=ConsumeType.PASSIVELY)
            assert (await one.ask(PULL, pull_fields("T"))).code == ResponseCode.SUCCESS
            answer = await one.ask(PULL, pull_fields("T", consumerGroup="CID_RMQ_SYS_X"))
            assert answer.code == ResponseCode.SUCCESS

    @both_ways
    async def test_a_failing_disk_is_answered_with_an_error(
        self, tmp_path: Path, lane: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")

            def fail(*_: object, **__: object) -> None:
                raise StoreDiskError("cannot read the queue")

            monkeypatch.setattr(harness.store, "get", fail)
            monkeypatch.setattr(harness.store, "gather", fail)
            answer = await harness.connect(lane=lane).ask(PULL, pull_fields("T"))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "cannot read the queue" in (answer.remark or "")

    @both_ways
    async def test_oneway_pulls_are_not_answered(self, tmp_path: Path, lane: bool) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            one = harness.connect(lane=lane)
            one.send(PULL, pull_fields("T"), flag=CommandFlag.ONEWAY)
            opaque = one.send(PULL, pull_fields("T"))
            (first,) = await one.peer.receive(1)
            assert first.opaque == opaque


class TestLimits:
    @pytest.mark.parametrize(
        ("wanted", "expected"), [(1, 1), (5, 5), (0, 1), (-7, 1), (33, 32), (2**31 - 1, 32)]
    )
    async def test_number_of_messages(self, tmp_path: Path, wanted: int, expected: int) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", *[b"x"] * 40)
            answer = await harness.connect().ask(PULL, pull_fields("T", maxMsgNums=wanted))
            assert len(records_of(answer)) == expected
            assert answer.fields["nextBeginOffset"] == str(expected)

    @pytest.mark.parametrize(("wanted", "expected"), [(None, 4), (0, 1), (-1, 1), (2500, 2)])
    async def test_number_of_bytes(self, tmp_path: Path, wanted: int | None, expected: int) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", *[bytes(1000)] * 4)
            answer = await harness.connect().ask(PULL, pull_fields("T", maxMsgBytes=wanted))
            assert len(records_of(answer)) == expected

    @both_ways
    @pytest.mark.parametrize(
        ("wanted_bytes", "limit_bytes", "expected"),
        [
            (262_145, 1 << 20, 100),
            (262_144, 1 << 20, 32),  # as RocketMQ's clients ask for
            (262_145, 0, 32),
            (2**31 - 1, 1500, 11),
        ],
    )
    async def test_bulk_reads_are_limited_by_bytes(
        self, tmp_path: Path, lane: bool, wanted_bytes: int, limit_bytes: int, expected: int
    ) -> None:
        with ConsumerHarness(tmp_path, max_bulk_read_bytes=limit_bytes) as harness:
            harness.add_topic("T")
            harness.put("T", *[bytes(40)] * 150)
            one = harness.connect(lane=lane)
            fields = pull_fields("T", maxMsgNums=100, maxMsgBytes=wanted_bytes)
            answer = await one.ask(PULL, fields)
            assert len(records_of(answer)) == expected
            assert answer.fields["nextBeginOffset"] == str(expected)

    async def test_the_first_message_is_returned_whatever_its_size(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, segment_bytes=8 << 20) as harness:
            harness.add_topic("T")
            harness.put("T", bytes(range(256)) * 12_000, b"next")
            answer = await harness.connect(lane=True).ask(PULL, pull_fields("T"))
            assert bodies_of(answer) == [bytes(range(256)) * 12_000]


class TestFilters:
    @both_ways
    async def test_tags_in_the_pull(self, tmp_path: Path, lane: bool) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            for tag in ("A", "B", "", "C", "A"):
                harness.put("T", tag.encode() or b"none", tags=tag)
            one = harness.connect(lane=lane)
            for expression, expected in (
                ("A", [b"A", b"A"]),
                ("A || C", [b"A", b"C", b"A"]),
                ("*", [b"A", b"B", b"none", b"C", b"A"]),
                ("", [b"A", b"B", b"none", b"C", b"A"]),
                (None, [b"A", b"B", b"none", b"C", b"A"]),
            ):
                fields = pull_fields("T", subscription=expression, expressionType=None)
                answer = await one.ask(PULL, fields)
                assert bodies_of(answer) == expected, expression
                assert answer.fields["nextBeginOffset"] == "5"
            answer = await one.ask(PULL, pull_fields("T", subscription="D"))
            assert (answer.code, answer.remark) == (
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                "NO_MATCHED_MESSAGE",
            )
            assert answer.fields["nextBeginOffset"] == "5"

    async def test_tags_of_the_heartbeat(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            for tag in ("A", "polygenelubricants"):
                harness.put("T", tag.encode(), tags=tag)
            one = harness.connect()
            await one.heartbeat("G", tags("T", "polygenelubricants"))
            # The subscription of a pull without flag 4 does not count.
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0, subscription="A"))
            assert bodies_of(answer) == [b"polygenelubricants"]

    async def test_sql_in_the_pull(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties=WITH_SQL) as harness:
            harness.add_topic("T")
            for number in range(6):
                harness.put("T", b"%d" % number, properties=b"a\x01%d\x02" % number)
            answer = await harness.connect().ask(
                PULL, pull_fields("T", subscription="a BETWEEN 2 AND 4", expressionType="SQL92")
            )
            assert bodies_of(answer) == [b"2", b"3", b"4"]

    async def test_sql_of_the_heartbeat(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties=WITH_SQL) as harness:
            harness.add_topic("T")
            harness.put("T", b"no", properties=b"a\x011\x02")
            harness.put("T", b"yes", properties=b"a\x019\x02")
            one = harness.connect()
            await one.heartbeat("G", sql("T", "a > 5", 3))
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0, subVersion=3))
            assert bodies_of(answer) == [b"yes"]

    async def test_filter_data_that_is_missing_or_old(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties=WITH_SQL) as harness:
            harness.add_topic("T")
            one, two = harness.connect(), harness.connect()
            await one.heartbeat("G", sql("T", "a >", 3))
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0, subVersion=3))
            assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
            assert answer.remark == (
                "The broker's consumer filter data is not exist!Your expression may be wrong!"
            )
            await one.heartbeat("G", sql("T", "a > 1", 4))
            # A consumer whose newer expression is a tag does not use the filter.
            subscription = harness.clients.subscription("G", "T")
            assert subscription is not None
            subscription.sub_version = 9
            answer = await two.ask(PULL, pull_fields("T", sysFlag=0, subVersion=9))
            assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST
            assert answer.remark == "the consumer's consumer filter data not latest"

    async def test_sql_needs_to_be_enabled(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            await one.heartbeat("G", sql("T", "a > 5"))
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0))
            assert (answer.code, answer.remark) == (
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by SQL92",
            )

    async def test_retries_use_the_filter_of_their_topic(self, tmp_path: Path) -> None:
        properties = WITH_SQL | {"filterSupportRetry": "true"}
        with ConsumerHarness(tmp_path, properties=properties) as harness:
            retry = "%RETRY%G"
            one = harness.connect()
            await one.heartbeat("G", sql("T", "a > 5"), sql(retry, "a > 100"))
            for value in (b"1", b"9"):
                harness.put(retry, value, properties=b"RETRY_TOPIC\x01T\x02a\x01%b\x02" % value)
            harness.put(retry, b"unknown", properties=b"RETRY_TOPIC\x01U\x02a\x011\x02")
            answer = await one.ask(PULL, pull_fields(retry, sysFlag=0))
            assert bodies_of(answer) == [b"9", b"unknown"]

    async def test_class_filters_of_the_heartbeat_are_refused(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            subscription = tags("T")
            subscription.class_filter_mode = True
            await one.heartbeat("G", subscription)
            answer = await one.ask(PULL, pull_fields("T", sysFlag=0))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "does not support" in (answer.remark or "")


class TestCommits:
    @both_ways
    @pytest.mark.parametrize(
        ("sys_flag", "commit_offset", "expected"),
        [(5, 2, 2), (4, 2, -1), (5, -1, -1), (5, 0, 0), (5, -(2**63), -1)],
    )
    async def test_a_pull_commits_its_offset(
        self, tmp_path: Path, lane: bool, sys_flag: int, commit_offset: int, expected: int
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            await harness.connect(lane=lane).ask(
                PULL, pull_fields("T", sysFlag=sys_flag, commitOffset=commit_offset)
            )
            assert harness.offsets.query("G", "T", 0) == expected

    @both_ways
    async def test_a_slave_commits_no_offset(self, tmp_path: Path, lane: bool) -> None:
        with ConsumerHarness(tmp_path, properties={"brokerRole": "SLAVE"}) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            answer = await harness.connect(lane=lane).ask(
                PULL, pull_fields("T", sysFlag=5, commitOffset=2)
            )
            assert bodies_of(answer) == [b"x"]
            assert harness.offsets.query("G", "T", 0) == -1


class TestCounting:
    async def test_empty_pulls_are_counted_as_misses(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            one = harness.connect()
            for offset in (0, 1, 2, 0):
                await one.ask(PULL, pull_fields("T", offset))
            assert harness.stats.misses == 2
            assert harness.stats.gets["T", "G"][0] == 2

    async def test_groups_with_a_large_lag_can_be_disabled(self, tmp_path: Path) -> None:
        properties = {
            "disableConsumeIfConsumerReadSlowly": "true",
            "consumerFallbehindThreshold": "3000",
        }
        with ConsumerHarness(tmp_path, properties=properties) as harness:
            harness.add_topic("T")
            harness.put("T", *[bytes(900)] * 4)
            one = harness.connect()
            assert (await one.ask(PULL, pull_fields("T", 3))).code == ResponseCode.SUCCESS
            assert (await one.ask(PULL, pull_fields("T", 0))).code == ResponseCode.SUCCESS
            answer = await one.ask(PULL, pull_fields("T", 3))
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.ext_fields == {"forbiddenType": "2"}


class TestSuggestedBroker:
    async def test_a_slow_consumer_is_sent_to_a_slave_that_may_be_read(
        self, tmp_path: Path
    ) -> None:
        properties = {"slaveReadEnable": "true"}
        with ConsumerHarness(tmp_path, properties=properties, memory_bytes=3000) as harness:
            harness.add_topic("T")
            config = harness.groups.find("G")
            assert config is not None
            config.which_broker_when_consume_slowly = 7
            harness.put("T", *[bytes(900)] * 30)
            one = harness.connect()
            answer = await one.ask(PULL, pull_fields("T", 0))
            assert answer.fields["suggestWhichBrokerId"] == "7"
            assert len(records_of(answer)) == 8
            answer = await one.ask(PULL, pull_fields("T", 29))
            assert answer.fields["suggestWhichBrokerId"] == "0"
