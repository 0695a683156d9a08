"""Pulls: every check, correction of offsets and kind of filter, on both paths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.broker.lane.pullwire import AnswerNumbers, PullFields, PullReader, encode_answer
from goddard.protocol.bodies import ConsumeType, MessageModel
from goddard.protocol.codes import CommandFlag, RequestCode, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand, decode_frame, encode_frame, encode_head
from goddard.protocol.headers.message import PullRequest, PullResponse
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

both_ways = pytest.mark.parametrize("hot", [False, True], ids=["commands", "frames"])


@both_ways
async def test_messages_are_found(tmp_path: Path, hot: bool) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T", topic_sys_flag=3)
        harness.put("T", b"one", b"two", b"three")
        consumer = harness.connect(hot=hot)
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
        for hot in (False, True):
            consumer = harness.connect(hot=hot)
            consumer.peer.transport.write(request)
            (answer,) = await consumer.peer.receive(1)
            assert answer.serialize_type is serialize_type
            answers.append(answer)
        assert answers[0] == answers[1]


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("numbers", [(0, 1, 2, 3, 4, 5), (7, -1, 2**63 - 1, -(2**63), 0, -1)])
def test_the_answer_is_encoded_like_a_command(
    serialize_type: SerializeType, numbers: tuple[int, ...]
) -> None:
    broker_id, next_offset, low, high, topic_flag, group_flag = numbers
    fields = PullResponse(
        suggest_which_broker_id=broker_id,
        next_begin_offset=next_offset,
        min_offset=low,
        max_offset=high,
        topic_sys_flag=topic_flag,
        group_sys_flag=group_flag,
    ).encode()
    command = RemotingCommand(
        20, fields, opaque=-7, flag=1, remark="FOUND", serialize_type=serialize_type
    )
    head = encode_answer(serialize_type, -7, 20, "FOUND", AnswerNumbers(*numbers), 1234)
    assert head == encode_head(command, 1234)


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
    hot: bool,
    stored: int,
    queue_offset: int,
    code: int,
    remark: str,
    next_offset: int,
) -> None:
    with ConsumerHarness(tmp_path) as harness:
        harness.add_topic("T")
        harness.put("T", *[b"x"] * stored)
        answer = await harness.connect(hot=hot).ask(PULL, pull_fields("T", queue_offset))
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
        queue.delete_before(harness.store.log_min_offset)
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
        self, tmp_path: Path, hot: bool, changes: dict[str, Any], code: int, remark: str
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            answer = await harness.connect(hot=hot).ask(PULL, pull_fields("T") | changes)
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
            for hot in (False, True):
                fields = pull_fields("T") | {name: value}
                answer = await harness.connect(hot=hot).ask(PULL, fields)
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
        self, tmp_path: Path, hot: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")

            def fail(*_: object, **__: object) -> None:
                raise StoreDiskError("cannot read the queue")

            monkeypatch.setattr(harness.store, "get", fail)
            answer = await harness.connect(hot=hot).ask(PULL, pull_fields("T"))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "cannot read the queue" in (answer.remark or "")

    @both_ways
    async def test_oneway_pulls_are_not_answered(self, tmp_path: Path, hot: bool) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            one = harness.connect(hot=hot)
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

    async def test_the_first_message_is_returned_whatever_its_size(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, segment_bytes=8 << 20) as harness:
            harness.add_topic("T")
            harness.put("T", bytes(range(256)) * 12_000, b"next")
            answer = await harness.connect(hot=True).ask(PULL, pull_fields("T"))
            assert bodies_of(answer) == [bytes(range(256)) * 12_000]


class TestFilters:
    @both_ways
    async def test_tags_in_the_pull(self, tmp_path: Path, hot: bool) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            for tag in ("A", "B", "", "C", "A"):
                harness.put("T", tag.encode() or b"none", tags=tag)
            one = harness.connect(hot=hot)
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
        self, tmp_path: Path, hot: bool, sys_flag: int, commit_offset: int, expected: int
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            await harness.connect(hot=hot).ask(
                PULL, pull_fields("T", sysFlag=sys_flag, commitOffset=commit_offset)
            )
            assert harness.offsets.query("G", "T", 0) == expected


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


class TestFrames:
    """Which pulls the fast path handles, and which it leaves."""

    @staticmethod
    def frame(*, order: Callable[[list[str]], list[str]] = list, **changes: Any) -> memoryview:
        values = {name: str(value) for name, value in pull_fields("T").items()}
        values |= changes.pop("fields", {})
        command = RemotingCommand(PULL, {name: values[name] for name in order(list(values))})
        for name, value in changes.items():
            setattr(command, name, value)
        return memoryview(encode_frame(command))[4:]

    @pytest.mark.parametrize("serialize_type", SerializeType)
    def test_pulls_are_handled(self, serialize_type: SerializeType) -> None:
        reader = PullReader()
        header = reader.read(self.frame(opaque=-5, serialize_type=serialize_type))
        assert header is not None
        assert (header.code, header.opaque, header.fields.topic) == (PULL, -5, "T")
        assert header.serialize_type is serialize_type
        header = reader.read(self.frame(code=LITE_PULL, serialize_type=serialize_type))
        assert header is not None
        assert header.code == LITE_PULL

    @pytest.mark.parametrize("serialize_type", SerializeType)
    @pytest.mark.parametrize("order", [list, sorted, lambda names: names[::-1]])
    def test_cached_values_are_those_of_the_request(
        self, serialize_type: SerializeType, order: Callable[[list[str]], list[str]]
    ) -> None:
        reader = PullReader()
        changes: list[dict[str, str]] = [
            {},
            {"queueOffset": "123456789012345678"},
            {"commitOffset": "7", "queueOffset": "99"},
            {"topic": "U", "queueOffset": "1"},
            {"queueOffset": "5", "commitOffset": "5", "subscription": "A || B"},
            {"bname": "broker", "ns": "x", "queueOffset": "31"},
            {"maxMsgBytes": "-1"},
        ]
        for fields in changes * 2:
            frame = self.frame(fields=fields, order=order, serialize_type=serialize_type)
            header = reader.read(frame)
            assert header is not None
            expected = PullFields.of(PullRequest.decode(decode_frame(frame).fields))
            assert header.fields == expected

    def test_offset_fields_within_other_values_are_ignored(self) -> None:
        reader = PullReader()
        lie = "\x00\x0bqueueOffset\x00\x00\x00\x019"
        # In sorted order these two are before the real one.
        for name in ("bname", "consumerGroup"):
            frame = self.frame(
                fields={name: lie}, serialize_type=SerializeType.ROCKETMQ, order=sorted
            )
            assert reader.read(frame) is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"code": 10},
            {"code": 110},
            {"code": 3610},
            {"flag": CommandFlag.RESPONSE},
            {"flag": CommandFlag.ONEWAY},
            {"ext_fields": None},
            {"ext_fields": {}},
            {"fields": {"queueOffset": ""}},
            {"fields": {"queueOffset": "x"}},
            {"fields": {"queueOffset": "9" * 30}},
            {"fields": {"queueId": "9999999999"}},
            {"fields": {"maxMsgNums": "many"}},
        ],
    )
    @pytest.mark.parametrize("serialize_type", SerializeType)
    def test_other_pulls_are_left(
        self, serialize_type: SerializeType, changes: dict[str, Any]
    ) -> None:
        frame = self.frame(**(changes | {"serialize_type": serialize_type}))
        assert PullReader().read(frame) is None

    def test_a_pull_with_a_remark_is_left(self) -> None:
        frame = self.frame(remark="x", serialize_type=SerializeType.ROCKETMQ)
        assert PullReader().read(frame) is None

    @pytest.mark.parametrize("serialize_type", SerializeType)
    def test_truncated_and_inconsistent_frames_are_left(
        self, serialize_type: SerializeType
    ) -> None:
        reader = PullReader()
        whole = bytes(self.frame(serialize_type=serialize_type))
        assert reader.read(memoryview(whole)) is not None
        for end in range(len(whole)):
            assert reader.read(memoryview(whole[:end])) is None
        assert reader.read(memoryview(b"\x7f" + whole[1:])) is None

    @given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
    def test_garbage_is_left_or_read_as_by_the_decoder(self, position: int, garbage: bytes) -> None:
        reader = PullReader()
        whole = bytearray(self.frame(serialize_type=SerializeType.ROCKETMQ))
        reader.read(memoryview(bytes(whole)))
        whole[position : position + len(garbage)] = garbage
        frame = memoryview(bytes(whole))
        header = reader.read(frame)
        if header is not None:
            command = decode_frame(frame)
            assert (header.code, header.opaque) == (command.code, command.opaque)
            assert header.fields == PullFields.of(PullRequest.decode(command.fields))

    async def test_left_pulls_keep_their_order(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            other = memoryview(encode_frame(RemotingCommand(RequestCode.HEART_BEAT)))[4:]
            one = harness.connect()
            frames = [other, self.frame(opaque=1), other, self.frame(opaque=2)]
            assert harness.hot_path.on_frames(one.connection, frames) == [other, other]
            assert [answer.opaque for answer in await one.peer.receive(2)] == [1, 2]
