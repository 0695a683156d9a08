"""Administration of consumer groups: request in, answer and table out."""

from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import SubscriptionGroupConfig, SubscriptionGroupList
from goddard.protocol.codes import RequestCode, ResponseCode
from tests.support.admin_harness import AdminHarness, body_of
from tests.support.consumer_harness import tags

CREATE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
CREATE_LIST = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
DELETE = RequestCode.DELETE_SUBSCRIPTIONGROUP
ALL = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
ONE = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
FORBID = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
BY_TOPIC = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
BY_GROUP = RequestCode.QUERY_TOPICS_BY_CONSUMER
SUBSCRIPTION = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER


def group(name: str = "G", **changes: Any) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name=name, **changes)


async def test_creating_and_changing(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        admin = harness.connect()
        answer = await admin.ask(CREATE, {}, encode_body(group(retry_max_times=3)))
        assert (answer.code, answer.remark) == (0, None)
        assert harness.groups.get("G") == group(retry_max_times=3)
        changed = group(consume_enable=False, attributes={"+priority.factor": "7"})
        assert (await admin.ask(CREATE, {}, encode_body(changed))).code == 0
        found = harness.groups.get("G")
        assert found is not None
        assert (found.consume_enable, found.attributes) == (False, {"priority.factor": "7"})
        # An empty body changes nothing.
        assert (await admin.ask(CREATE)).code == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (encode_body(group("B*d")), 29),
        (encode_body(group("")), 29),
        (encode_body(group("G" * 300)), 29),
        (encode_body(group(retry_queue_nums=-1)), 29),
        (encode_body(group(retry_queue_nums=65_536)), 29),
        (encode_body(group(attributes={"+x": "1"})), 1),
        (encode_body(group(attributes={"+priority.factor": "101"})), 1),
        (b"x", 1),
        (b"[1]", 1),
        (b'{"groupName":{}}', 1),
        (b'{"groupName":"G","retryMaxTimes":99999999999}', 1),
        (b"[" * 100_000, 1),
    ],
)
async def test_groups_that_cannot_be_created(tmp_path: Path, body: bytes, code: int) -> None:
    with AdminHarness(tmp_path) as harness:
        admin = harness.connect()
        assert (await admin.ask(CREATE, {}, body)).code == code
        many = b'{"groupConfigList":[{"groupName":"Good"},' + body + b"]}"
        assert (await admin.ask(CREATE_LIST, {}, many)).code == code
        assert len(harness.groups) == 0


async def test_a_list(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        notified: list[list[str]] = []
        harness.groups.add_listener(notified.append)
        body = encode_body(SubscriptionGroupList([group("A"), group("B")]))
        assert (await harness.connect().ask(CREATE_LIST, {}, body)).code == 0
        assert notified == [["A", "B"]]


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        ({}, True),
        ({"cleanOffset": "false"}, True),
        ({"cleanOffset": "true"}, False),
        ({"removeOffset": "true"}, False),  # the name that 4.9 uses
    ],
)
async def test_deleting(tmp_path: Path, fields: dict[str, str], is_kept: bool) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.groups.put(group())
        harness.offsets.commit("G", "T", 0, 5, "")
        harness.figures.get("T", "G", 1, 1)
        admin = harness.connect()
        assert (await admin.ask(DELETE, {"groupName": "G"} | fields)).code == 0
        assert "G" not in harness.groups
        assert harness.offsets.query("G", "T", 0) == (5 if is_kept else -1)
        assert harness.figures.view("GROUP_GET_NUMS", "T@G") is None
        assert (await admin.ask(DELETE, {"groupName": "NoSuch"})).code == 0
        assert (await admin.ask(DELETE)).code == ResponseCode.SYSTEM_ERROR


async def test_the_whole_table_and_its_pages(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        for name in "ABC":
            harness.groups.put(group(name))
        harness.groups.forbid("B", "T", 4)
        admin = harness.connect()
        answer = await admin.ask(ALL)
        table = body_of(answer)
        assert answer.fields == {"totalGroupNum": "3"}
        assert set(table["subscriptionGroupTable"]) == {"A", "B", "C"}
        assert table["forbiddenTable"] == {"B": {"T": 4}}
        page = {"groupSeq": 0, "maxGroupNum": 1, "dataVersion": ""}
        table = body_of(await admin.ask(ALL, page))
        assert set(table["subscriptionGroupTable"]) == {"A"}
        assert table["forbiddenTable"] == {}
        page |= {"groupSeq": 1, "dataVersion": encode_body(table["dataVersion"]).decode()}
        table = body_of(await admin.ask(ALL, page))
        assert set(table["subscriptionGroupTable"]) == {"B"}


async def test_one_group(tmp_path: Path) -> None:
    with AdminHarness(tmp_path, properties={"autoCreateSubscriptionGroup": "false"}) as harness:
        harness.groups.put(group(retry_max_times=3))
        admin = harness.connect()
        assert body_of(await admin.ask(ONE, {"group": "G"}))["retryMaxTimes"] == 3
        answer = await admin.ask(ONE, {"group": "X"})
        assert (answer.code, answer.remark) == (26, "No group in this broker")
        assert (await admin.ask(ONE)).code == ResponseCode.SYSTEM_ERROR


async def test_forbidding_a_topic(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        admin = harness.connect()
        fields = {"group": "G", "topic": "T"}
        expected = {"group": "G", "topic": "T", "readable": True}
        answer = await admin.ask(FORBID, fields)
        assert (body_of(answer), answer.remark) == (expected, "")
        assert body_of(await admin.ask(FORBID, fields | {"readable": "false"})) == expected | {
            "readable": False
        }
        assert harness.groups.table.forbidden("G", "T") == 4
        assert body_of(await admin.ask(FORBID, fields))["readable"] is False
        assert body_of(await admin.ask(FORBID, fields | {"readable": "true"})) == expected
        assert harness.groups.table.forbidden("G", "T") == 0
        for changes, code in (
            ({"group": "B*d"}, 29),
            ({"topic": "T" * 500}, 29),
            ({"topic": None}, 1),
            ({"group": None}, 1),
        ):
            answer = await admin.ask(FORBID, {**fields, "readable": "false", **changes})
            assert answer.code == code


async def test_groups_of_a_topic_and_topics_of_a_group(tmp_path: Path) -> None:
    with AdminHarness(tmp_path) as harness:
        harness.offsets.commit("Offline", "T", 0, 1, "")
        harness.offsets.commit("Offline", "U", 0, 1, "")
        consumer = harness.connect()
        await consumer.heartbeat("Online", tags("T", "A || B"))
        admin = harness.connect()
        assert body_of(await admin.ask(BY_TOPIC, {"topic": "T"})) == {
            "groupList": ["Offline", "Online"]
        }
        assert body_of(await admin.ask(BY_TOPIC, {"topic": "X"})) == {"groupList": []}
        assert body_of(await admin.ask(BY_GROUP, {"group": "Offline"})) == {
            "brokerAddr": harness.settings.current.broker_address,
            "topicList": ["T", "U"],
        }
        assert body_of(await admin.ask(BY_GROUP, {"group": "X"}))["topicList"] == []
        found = body_of(await admin.ask(SUBSCRIPTION, {"group": "Online", "topic": "T"}))
        assert found["subscriptionData"]["subString"] == "A || B"
        for fields in ({"group": "Online", "topic": "X"}, {"group": "Online"}):
            assert "subscriptionData" not in body_of(await admin.ask(SUBSCRIPTION, fields))
        for code in (BY_TOPIC, BY_GROUP, SUBSCRIPTION):
            assert (await admin.ask(code)).code == ResponseCode.SYSTEM_ERROR
