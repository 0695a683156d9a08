"""Administration of topics: request in, answer and table out."""

from pathlib import Path
from typing import Any

import pytest

from goddard.broker.tables.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    AttributeProblemError,
    altered,
    parse_changes,
)
from goddard.protocol.bodies import TopicConfig, encode_body
from goddard.protocol.bodies_admin import TopicConfigList
from goddard.protocol.codes import RequestCode, ResponseCode
from tests.support.admin_harness import AdminHarness, body_of

CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC
CREATE_LIST = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
DELETE = RequestCode.DELETE_TOPIC_IN_BROKER
ALL = RequestCode.GET_ALL_TOPIC_CONFIG
ONE = RequestCode.GET_TOPIC_CONFIG
STATS = RequestCode.GET_TOPIC_STATS_INFO


def fields(**changes: Any) -> dict[str, Any]:
    return {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": "",
        "force": "false",
    } | changes


async def test_create_change_and_no_change(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        notified: list[list[str]] = []
        harness.topics.add_listener(notified.append)
        admin = harness.connect()
        answer = await admin.ask(CREATE, fields())
        # The remark is RocketMQ's, and the answer a success.
        assert (answer.code, answer.remark) == (0, "not set any response code")
        assert harness.topics.get("T") == TopicConfig(
            topic_name="T", read_queue_nums=4, write_queue_nums=3
        )
        await admin.ask(CREATE, fields())
        assert notified == [["T"]]
        version = harness.topics.data_version.counter
        await admin.ask(CREATE, fields(perm=4, order="true"))
        assert notified == [["T"], ["T"]]
        assert harness.topics.data_version.counter == version + 1
        config = harness.topics.get("T")
        assert config is not None
        assert (config.perm, config.order) == (4, True)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "Bad*Topic"}, 29, "contains illegal characters"),
        ({"topic": " "}, 29, "The specified topic is blank."),
        ({"topic": "T" * 128}, 29, "longer than topic max length"),
        ({"topic": "TBW102"}, 29, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "rmq_sys_x"}, 29, "conflict with system topic"),
        ({"topic": None}, 1, "topic is missing"),
        ({"readQueueNums": None}, 1, "readQueueNums is missing"),
        ({"readQueueNums": "x"}, 1, "readQueueNums"),
        ({"readQueueNums": -1}, 29, "queues"),
        ({"writeQueueNums": 65_536}, 29, "queues"),
        ({"writeQueueNums": 2**31}, 1, "writeQueueNums"),
        ({"perm": -1}, 29, "perm"),
        ({"perm": 16}, 29, "perm"),
        ({"topicFilterType": "X"}, 1, "topicFilterType = [X] value invalid"),
        ({"attributes": "+message.type=MIXED"}, 29, "MIXED message type is not supported."),
        ({"attributes": "+message.type=x"}, 1, "value is not in set"),
        ({"attributes": "message.type=x"}, 1, "add/alter attribute format is wrong"),
        ({"attributes": "+no.such=x"}, 1, "unsupported key: no.such"),
        ({"attributes": "-message.type"}, 1, "only add attribute is supported"),
    ],
)
async def test_topics_that_cannot_be_created(
    tmp_path: Path, changes: dict[str, Any], code: int, remark: str
) -> None:
    with AdminHarness(tmp_path) as harness:
        before = dict(harness.topics.configs)
        answer = await harness.connect().ask(CREATE, fields(**changes))
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert dict(harness.topics.configs) == before


async def test_attributes_are_changed_separately(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        admin = harness.connect()
        for text in ("+message.type=FIFO,+reserve.time=-1", "+message.type=DELAY", "-reserve.time"):
            assert (await admin.ask(CREATE, fields(attributes=text))).code == 0
        config = harness.topics.get("T")
        assert config is not None
        assert config.attributes == {"message.type": "DELAY"}
        answer = await admin.ask(CREATE, fields(attributes="+cleanup.policy=DELETE"))
        assert answer.remark == "attempt to update an unchangeable attribute. key: cleanup.policy"
        answer = await admin.ask(CREATE, fields(attributes="-reserve.time"))
        assert answer.remark == "attempt to delete a nonexistent key: reserve.time"


@pytest.mark.parametrize("text", ["+a=1,+a=2", "x", "=", "+=1,", "++a=1", "+a-b=1", "+", ","])
def test_invalid_changes(text: str) -> None:
    if text == ",":
        assert parse_changes(text) == {}
        return
    with pytest.raises(AttributeProblemError):
        altered({}, parse_changes(text), TOPIC_ATTRIBUTES)


@pytest.mark.parametrize(
    "attribute", ["cleanup.policy=COMPACTION", "queue.type=BatchCQ", "reserve.time=100"]
)
async def test_an_attribute_that_this_broker_cannot_act_on_is_refused(
    tmp_path: Path, attribute: str
) -> None:
    with AdminHarness(tmp_path) as harness:
        answer = await harness.connect().ask(CREATE, fields(attributes=f"+{attribute}"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not supported by this broker" in (answer.remark or "")
        assert harness.topics.get("T") is None


@pytest.mark.parametrize("value", ["-2", "x", "", "9" * 40, "--1", "9223372036854775808", "١٢"])
def test_reserve_times(value: str) -> None:
    with pytest.raises(AttributeProblemError):
        altered(None, {"+reserve.time": value}, TOPIC_ATTRIBUTES)
    assert altered(None, {"+reserve.time": "-1"}, TOPIC_ATTRIBUTES) == {"reserve.time": "-1"}


def test_an_attribute_can_be_changed_only_once_per_request() -> None:
    with pytest.raises(AttributeProblemError, match="duplication"):
        altered(
            {"priority.factor": "1"},
            {"+priority.factor": "2", "-priority.factor": ""},
            GROUP_ATTRIBUTES,
        )
    with pytest.raises(AttributeProblemError, match="wrong format"):
        altered({}, {"priority.factor": "2"}, GROUP_ATTRIBUTES)


async def test_a_list_is_created_completely_or_not_at_all(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        admin = harness.connect()
        notified: list[list[str]] = []
        harness.topics.add_listener(notified.append)
        good = [TopicConfig(topic_name=f"L{number}") for number in range(3)]
        answer = await admin.ask(
            CREATE_LIST, {}, encode_body(TopicConfigList([*good, TopicConfig(topic_name="B*d")]))
        )
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert notified == []
        answer = await admin.ask(CREATE_LIST, {}, encode_body(TopicConfigList(good)))
        assert answer.code == 0
        assert notified == [["L0", "L1", "L2"]]
        for body in (b"", b"x", b'{"topicConfigList":[1]}', b"[]"):
            assert (await admin.ask(CREATE_LIST, {}, body)).code == ResponseCode.SYSTEM_ERROR


class TestDeleting:
    async def test_everything_of_a_topic_is_deleted(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            retries = ["%RETRY%G_T", "%RETRY%G+T"]
            for topic in ("T", "Other", *retries):
                harness.add_topic(topic)
                harness.put(topic, b"1")
            harness.offsets.commit("G", "T", 0, 1, "")
            harness.offsets.commit("G", "Other", 0, 1, "")
            harness.figures.put("T", 1, 1)
            answer = await harness.connect().ask(DELETE, {"topic": "T"})
            assert (answer.code, answer.remark) == (0, None)
            for topic in ("T", *retries):
                assert topic not in harness.topics
                assert harness.store.max_offset(topic, 0) == 0
                assert not (tmp_path / "store" / "consumequeue" / topic).exists()
            assert harness.offsets.query("G", "T", 0) == -1
            assert harness.offsets.query("G", "Other", 0) == 1
            assert harness.store.max_offset("Other", 0) == 1
            assert harness.figures.view("TOPIC_PUT_NUMS", "T") is None

    async def test_deleting_an_unknown_topic_succeeds(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            assert (await harness.connect().ask(DELETE, {"topic": "../../etc"})).code == 0

    @pytest.mark.parametrize(
        ("topic", "code", "remark"),
        [
            ("", 29, "blank"),
            (" ", 29, "blank"),
            (None, 1, "topic is missing"),
            ("SCHEDULE_TOPIC_XXXX", 29, "conflict with system topic"),
            ("DefaultCluster", 29, "conflict with system topic"),
        ],
    )
    async def test_topics_that_cannot_be_deleted(
        self, tmp_path: Path, topic: str | None, code: int, remark: str
    ) -> None:
        with AdminHarness(tmp_path) as harness:
            answer = await harness.connect().ask(DELETE, {"topic": topic})
            assert answer.code == code
            assert remark in (answer.remark or "")


class TestPages:
    async def test_a_request_without_page_gets_all_topics(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.add_topic("T")
            answer = await harness.connect().ask(ALL)
            table = body_of(answer)
            assert set(table["topicConfigTable"]) == set(harness.topics.configs)
            assert answer.fields["totalTopicNum"] == str(len(harness.topics))
            assert table["dataVersion"]["counter"] == harness.topics.data_version.counter

    async def test_ten_thousand_topics_page_by_page(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.topics.put_all(TopicConfig(topic_name=f"T{n:05d}") for n in range(10_000))
            admin = harness.connect()
            seen: list[str] = []
            version = ""
            while True:
                page = {"topicSeq": len(seen), "maxTopicNum": 2_000, "dataVersion": version}
                answer = await admin.ask(ALL, page)
                table = body_of(answer)
                seen += table["topicConfigTable"]
                version = encode_body(table["dataVersion"]).decode()
                if len(seen) >= int(answer.fields["totalTopicNum"]):
                    break
            assert seen == sorted(harness.topics.configs)

    async def test_a_changed_table_is_paged_from_the_start(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            admin = harness.connect()
            for version in ("", "{", "{}", '{"counter":77}'):
                page = {"topicSeq": 5, "maxTopicNum": 2, "dataVersion": version}
                table = body_of(await admin.ask(ALL, page))
                assert list(table["topicConfigTable"]) == sorted(harness.topics.configs)[:2]

    @pytest.mark.parametrize(("seq", "most"), [(-5, -5), (2**31 - 1, 1), (0, 0), (None, -1)])
    async def test_pages_out_of_range_are_empty(
        self, tmp_path: Path, seq: int | None, most: int
    ) -> None:
        with AdminHarness(tmp_path) as harness:
            version = encode_body(harness.topics.data_version).decode()
            page = {"topicSeq": seq, "maxTopicNum": most, "dataVersion": version}
            assert body_of(await harness.connect().ask(ALL, page))["topicConfigTable"] == {}

    async def test_paging_can_be_disabled(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path, properties={"enableSplitMetadata": "false"}) as harness:
            table = body_of(await harness.connect().ask(ALL, {"topicSeq": 0, "maxTopicNum": 1}))
            assert len(table["topicConfigTable"]) == len(harness.topics)


async def test_one_topic(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.add_topic("T", queues=2, order=True)
        admin = harness.connect()
        config = body_of(await admin.ask(ONE, {"topic": "T", "lo": "true"}))
        assert config == {
            "attributes": {},
            "order": True,
            "perm": 6,
            "readQueueNums": 2,
            "topicFilterType": "SINGLE_TAG",
            "topicName": "T",
            "topicSysFlag": 0,
            "writeQueueNums": 2,
        }
        answer = await admin.ask(ONE, {"topic": "X"})
        assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: X")
        assert (await admin.ask(ONE)).code == ResponseCode.SYSTEM_ERROR


async def test_offsets_times_and_rate_of_a_topic(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.add_topic("T", queues=2)
        harness.put("T", b"1", b"2")
        stored_ms = harness.clock.now_ms()
        harness.figures.put("T", 2, 200)
        harness.figures.sample(0, 1)
        harness.clock.advance(1000)
        admin = harness.connect()
        table = body_of(await admin.ask(STATS, {"topic": "T"}))
        offsets = {dict(queue)["queueId"]: item for queue, item in table["offsetTable"].items()}
        assert offsets == {
            0: {"lastUpdateTimestamp": stored_ms, "maxOffset": 2, "minOffset": 0},
            1: {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
        }
        assert table["topicPutTps"] == 0.2
        answer = await admin.ask(STATS, {"topic": "X"})
        assert (answer.code, answer.remark) == (17, "topic[X] not exist")


async def test_a_topic_with_many_queues_does_not_block_other_requests(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.add_topic("T", queues=20_000)
        slow, quick = harness.connect(), harness.connect()
        pending = slow.send(STATS, {"topic": "T"})
        answer = await quick.ask(ONE, {"topic": "T"})
        assert answer.code == 0
        assert slow.peer.received.empty()
        table = body_of(await slow.answer(pending))
        assert len(table["offsetTable"]) == 20_000


async def test_system_topics(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        answer = await harness.connect().ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        topics = body_of(answer)["topicList"]
        assert {"TBW102", "DefaultCluster", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX"} <= set(topics)
