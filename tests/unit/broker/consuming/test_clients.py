"""Heartbeats, the clients that are registered by them, and who is notified."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.consuming.filters import ConsumerFilters
from goddard.broker.settings import BrokerConfig, Settings
from goddard.protocol import fastjson
from goddard.protocol.bodies import ConsumeType, MessageModel
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import CommandFlag, RequestCode, ResponseCode
from goddard.store.tables import ConsumerFilter, ConsumerFilterTable
from tests.support.clock import ManualClock
from tests.support.consumer_harness import Consumer, ConsumerHarness, sql, tags

NOTIFY = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


async def consumer_ids(consumer: Consumer, group: str = "G") -> list[str] | None:
    answer = await consumer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code != ResponseCode.SUCCESS:
        assert answer.remark == f"no consumer for this group, {group}"
        return None
    ids = fastjson.loads(bytes(answer.body))["consumerIdList"]
    assert isinstance(ids, list)
    return ids


class TestHeartbeats:
    async def test_a_consumer_and_a_producer_are_registered(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            answer = await one.heartbeat("G", tags("T"), client_id="c1", producer="P")
            assert answer.code == ResponseCode.SUCCESS
            assert answer.ext_fields == {
                "IS_SUPPORT_HEART_BEAT_V2": "true",
                "IS_SUB_CHANGE": "true",
            }
            assert await consumer_ids(one) == ["c1"]
            assert harness.clients.producer_connection("P") is one.connection
            assert harness.clients.find_client("c1") is one.connection
            assert harness.clients.connections_of("G") == [one.connection]
            assert harness.clients.groups_of("T") == ["G"]
            subscription = harness.clients.subscription("G", "T")
            assert subscription is not None
            assert subscription.sub_string == "*"

    async def test_the_retry_topic_is_created_at_once(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            notified: list[str] = []
            harness.topics.add_listener(notified.extend)
            await harness.connect().heartbeat("G", tags("T"), unit_mode=True)
            config = harness.topics.get("%RETRY%G")
            assert config is not None
            assert (config.read_queue_nums, config.perm, config.topic_sys_flag) == (1, 6, 2)
            assert notified == ["%RETRY%G"]
            assert "G" in harness.groups

    async def test_an_ordered_topic_makes_the_retry_topic_ordered(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T", order=True)
            one = harness.connect()
            await one.heartbeat("G", tags("T"))
            assert harness.topics.is_ordered("%RETRY%G")
            await one.heartbeat("G", fingerprint=5, without_sub=True)
            assert harness.topics.is_ordered("%RETRY%G")

    async def test_groups_that_may_not_be_created_are_skipped(self, tmp_path: Path) -> None:
        with ConsumerHarness(
            tmp_path, properties={"autoCreateSubscriptionGroup": "false"}
        ) as harness:
            one = harness.connect()
            answer = await one.heartbeat("G", tags("T"))
            assert answer.code == ResponseCode.SUCCESS
            assert await consumer_ids(one) is None
            assert "%RETRY%G" not in harness.topics

    async def test_pull_consumers_can_be_refused(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties={"rejectPullConsumerEnable": "true"}) as harness:
            one = harness.connect()
            await one.heartbeat("G", tags("T"), consume_type=ConsumeType.ACTIVELY)
            assert await consumer_ids(one) is None

    async def test_a_newer_version_of_a_subscription_replaces_the_older(
        self, tmp_path: Path
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one, two = harness.connect(), harness.connect()
            await one.heartbeat("G", tags("T", "A", version=5), client_id="c1")
            await two.heartbeat("G", tags("T", "B", version=4), client_id="c2")
            kept = harness.clients.subscription("G", "T")
            assert kept is not None
            assert kept.sub_string == "A"
            await two.heartbeat("G", tags("T", "B", version=6), client_id="c2")
            kept = harness.clients.subscription("G", "T")
            assert kept is not None
            assert kept.sub_string == "B"

    async def test_topics_missing_in_a_heartbeat_are_unsubscribed(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            await one.heartbeat("G", tags("T"), tags("U"))
            await one.heartbeat("G", tags("U"))
            assert harness.clients.subscription("G", "T") is None
            assert harness.clients.subscription("G", "U") is not None

    async def test_members_with_different_subscriptions_are_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with ConsumerHarness(tmp_path) as harness, caplog.at_level(logging.WARNING):
            one, two = harness.connect(), harness.connect()
            await one.heartbeat("G", tags("T", "A"), client_id="c-one")
            await two.heartbeat("G", tags("T", "A"), client_id="c-two")
            assert "differ" not in caplog.text
            await two.heartbeat("G", tags("T", "B", version=2), client_id="c-two")
            (line,) = [text for text in caplog.messages if "differ" in text]
            assert "c-one" in line
            assert "c-two" in line
            assert "topics: T" in line
            await two.heartbeat("G", tags("T", "B", version=2), client_id="c-two")
            assert len([text for text in caplog.messages if "differ" in text]) == 1


class TestFingerprints:
    async def test_known_subscriptions_may_be_left_out(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            answer = await one.heartbeat("G", tags("T"), fingerprint=7)
            assert answer.fields["IS_SUB_CHANGE"] == "false"
            answer = await one.heartbeat("G", fingerprint=7, without_sub=True)
            assert answer.fields["IS_SUB_CHANGE"] == "false"
            assert harness.clients.subscription("G", "T") is not None

    async def test_another_fingerprint_requests_the_data(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one, two = harness.connect(), harness.connect()
            await one.heartbeat("G", tags("T"), fingerprint=7)
            answer = await two.heartbeat("G", fingerprint=8, without_sub=True, client_id="c2")
            assert answer.fields["IS_SUB_CHANGE"] == "true"

    async def test_a_broker_without_the_data_requests_it(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            answer = await harness.connect().heartbeat("G", fingerprint=7, without_sub=True)
            assert answer.fields["IS_SUB_CHANGE"] == "true"


class TestOtherClients:
    """Heartbeats of clients in other languages, which leave out fields."""

    @pytest.mark.parametrize(
        "body",
        [
            b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
            b'"groupName":"G","messageModel":1,"subscriptionDataSet":[{"subString":"A || B",'
            b'"subVersion":"12","topic":"T"}],"unitMode":0}],"producerDataSet":[]}',
            b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":'
            b'[{"topic":"T","subString":"A||B","tagsSet":["A","B"],"codeSet":["65","66"],'
            b'"expressionType":""}]}]}',
            b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":'
            b'[{"topic":"T","subString":"A||B","tagsSet":null,"codeSet":null,'
            b'"expressionType":null}]}],"producerDataSet":null}\n',
        ],
    )
    async def test_subscriptions_with_missing_fields_work(
        self, tmp_path: Path, body: bytes
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            answer = await harness.connect().ask(RequestCode.HEART_BEAT, None, body)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            subscription = harness.clients.subscription("G", "T")
            assert subscription is not None
            assert sorted(subscription.code_set) == [65, 66]
            group = harness.clients.consumer_group("G")
            assert group is not None
            assert group.message_model is MessageModel.CLUSTERING
            assert group.consume_type is ConsumeType.PASSIVELY

    async def test_an_empty_expression_matches_everything(self, tmp_path: Path) -> None:
        body = (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":'
            b'[{"topic":"T","subString":""}]}]}'
        )
        with ConsumerHarness(tmp_path) as harness:
            await harness.connect().ask(RequestCode.HEART_BEAT, None, body)
            subscription = harness.clients.subscription("G", "T")
            assert subscription is not None
            assert subscription.sub_string == "*"

    @pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'{"clientID":7e999}', b"\xff"])
    async def test_a_body_that_is_not_a_heartbeat_is_refused(
        self, tmp_path: Path, body: bytes
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            answer = await harness.connect().ask(RequestCode.HEART_BEAT, None, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert not harness.clients.consumer_groups

    @pytest.mark.parametrize(
        "data",
        [
            {"clientID": "c" * 2000},
            {"clientID": "c", "producerDataSet": [{"groupName": "p" * 2000}]},
            {"clientID": "c", "producerDataSet": [{"groupName": f"p{n}"} for n in range(5000)]},
            {
                "clientID": "c",
                "consumerDataSet": [
                    {
                        "groupName": "G",
                        "subscriptionDataSet": [
                            {"topic": f"T{n}", "subString": "a > 1", "expressionType": "SQL92"}
                            for n in range(1000)
                        ],
                    }
                ],
            },
        ],
    )
    async def test_heartbeats_with_invalid_values_are_refused(
        self, tmp_path: Path, data: dict[str, Any]
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            answer = await harness.connect().ask(RequestCode.HEART_BEAT, None, fastjson.dumps(data))
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert not harness.clients.producer_groups
            assert not harness.clients.consumer_groups

    async def test_clients_per_connection_are_limited(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            codes = [
                (await one.heartbeat("G", client_id=f"c{number}")).code for number in range(1026)
            ]
            assert codes == [ResponseCode.SUCCESS] * 1024 + [ResponseCode.INVALID_PARAMETER] * 2
            assert (await one.heartbeat("G", client_id="c7")).code == ResponseCode.SUCCESS
            assert harness.clients.find_client("c1024") is None

    async def test_groups_per_connection_are_limited(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            codes = []
            for turn in range(5):
                producers = [{"groupName": f"P{turn}-{number}"} for number in range(4096)]
                body = fastjson.dumps({"clientID": "c", "producerDataSet": producers})
                codes.append((await one.ask(RequestCode.HEART_BEAT, {}, body)).code)
            assert codes == [ResponseCode.SUCCESS] * 4 + [ResponseCode.INVALID_PARAMETER]
            assert len(harness.clients.producer_groups) == 16_384

    async def test_a_group_with_an_illegal_name_is_skipped(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            for name in ("a b", "x" * 300, ""):
                answer = await one.heartbeat(name, tags("T"))
                assert answer.code == ResponseCode.SUCCESS
            assert not harness.clients.consumer_groups


class TestLeaving:
    async def test_unregister(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            await one.heartbeat("G", tags("T"), client_id="c1", producer="P")
            answer = await one.ask(
                RequestCode.UNREGISTER_CLIENT,
                {"clientID": "c1", "consumerGroup": "G", "producerGroup": ""},
            )
            assert (answer.code, answer.ext_fields) == (0, {})
            assert await consumer_ids(one) is None
            assert harness.clients.producer_connection("P") is one.connection
            await one.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "producerGroup": "P"})
            assert harness.clients.producer_connection("P") is None
            assert harness.clients.find_client("c1") is None
            # An unknown client can be unregistered, too.
            answer = await one.ask(
                RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "G"}
            )
            assert answer.code == 0
            answer = await one.ask(RequestCode.UNREGISTER_CLIENT, {})
            assert answer.code == ResponseCode.SYSTEM_ERROR

    async def test_the_end_of_a_connection(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one, two = harness.connect(), harness.connect()
            await one.heartbeat("G", tags("T"), client_id="c1", producer="P")
            await two.heartbeat("G", tags("T"), client_id="c2")
            assert (await two.next_push()).code == NOTIFY
            one.peer.transport.close()
            await asyncio.wait_for(one.connection.wait_closed(), 5)
            assert await consumer_ids(two) == ["c2"]
            assert harness.clients.producer_connection("P") is None
            assert harness.clients.find_client("c1") is None
            pushed = await two.next_push()
            assert (pushed.code, pushed.fields) == (NOTIFY, {"consumerGroup": "G"})
            assert pushed.is_oneway

    async def test_clients_without_heartbeats_expire(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one, two = harness.connect(), harness.connect()
            await one.heartbeat("G", tags("T"), client_id="c1", producer="P")
            harness.clock.advance(60_000)
            await two.heartbeat("G", tags("T"), client_id="c2")
            harness.clock.advance(60_000)
            harness.clients.scan()
            assert await consumer_ids(two) == ["c1", "c2"]
            harness.clock.advance(1)
            harness.clients.scan()
            assert await consumer_ids(two) == ["c2"]
            assert harness.clients.producer_connection("P") is None
            await asyncio.wait_for(one.connection.wait_closed(), 5)

    async def test_a_group_missing_in_heartbeats_expires_alone(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            await one.heartbeat("G", tags("T"), producer="P")
            harness.clock.advance(100_000)
            await one.heartbeat(producer="P")
            harness.clock.advance(100_000)
            harness.clients.scan()
            assert await consumer_ids(one) is None
            assert harness.clients.producer_connection("P") is one.connection

    async def test_the_same_client_on_a_new_connection(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one, two = harness.connect(), harness.connect()
            await one.heartbeat("G", tags("T"), client_id="c1")
            await two.heartbeat("G", tags("T"), client_id="c1")
            assert harness.clients.find_client("c1") is two.connection
            harness.connection_closed(one.connection)
            assert harness.clients.find_client("c1") is two.connection


class TestNotifying:
    async def test_many_changes_are_one_notification_per_member(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            members = [harness.connect() for _ in range(5)]
            for number, member in enumerate(members):
                await member.heartbeat("G", tags("T"), client_id=f"c{number}")
            for member in members:
                assert (await member.next_push()).fields == {"consumerGroup": "G"}
            # An unchanged heartbeat notifies nobody; it would arrive before the next.
            await members[0].heartbeat("G", tags("T"), client_id="c0")
            other = harness.connect()
            await other.heartbeat("Other", tags("T"), client_id="other")
            assert (await other.next_push()).fields == {"consumerGroup": "Other"}
            assert all(member.peer.received.empty() for member in members)
            await members[0].heartbeat("G", tags("T"), tags("U"), client_id="c0")
            for member in members:
                assert (await member.next_push()).code == NOTIFY

    @pytest.mark.parametrize(
        ("properties", "model", "is_enabled"),
        [
            ({}, MessageModel.BROADCASTING, True),
            ({}, MessageModel.CLUSTERING, False),
            ({"notifyConsumerIdsChangedEnable": "false"}, MessageModel.CLUSTERING, True),
        ],
    )
    async def test_who_is_not_notified(
        self,
        tmp_path: Path,
        properties: dict[str, str],
        model: MessageModel,
        is_enabled: bool,
    ) -> None:
        with ConsumerHarness(tmp_path, properties=properties) as harness:
            config = harness.groups.find("G")
            assert config is not None
            config.notify_consumer_ids_changed_enable = is_enabled
            one, notified = harness.connect(), harness.connect()
            await one.heartbeat("G", tags("T"), message_model=model)
            if not properties:
                # When another group is notified, this one would have been, too.
                await notified.heartbeat("Other", tags("T"), client_id="c2")
                assert (await notified.next_push()).code == NOTIFY
            assert one.peer.received.empty()

    async def test_member_that_does_not_read_does_not_delay_notifications(
        self, tmp_path: Path
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one, two = harness.connect(), harness.connect()
            await one.heartbeat("G", tags("T"), client_id="c1")
            one.peer.transport.pause_reading()
            one.connection.send_encoded(bytes(2 << 20))
            await two.heartbeat("G", tags("T"), client_id="c2")
            assert (await two.next_push()).code == NOTIFY

    async def test_a_thousand_members_start_together(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            members = [harness.connect() for _ in range(1000)]
            for number, member in enumerate(members):
                await member.heartbeat("G", tags("T"), client_id=f"c{number}")
            assert len(await consumer_ids(members[0]) or []) == 1000
            assert (await members[-1].next_push()).code == NOTIFY
            assert (await members[0].next_push()).code == NOTIFY
            assert len(members[0].pushed) + members[0].peer.received.qsize() < 500


class TestProducers:
    async def test_lookups_return_the_producers_in_turn(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            producers = [harness.connect() for _ in range(3)]
            for number, producer in enumerate(producers):
                await producer.heartbeat(producer="P", client_id=f"c{number}")
            found = {harness.clients.producer_connection("P") for _ in range(3)}
            assert found == {producer.connection for producer in producers}
            assert harness.clients.producer_connection("nobody") is None

    async def test_producers_are_not_registered_when_disabled(self, tmp_path: Path) -> None:
        properties = {"enableRegisterProducer": "false", "rejectTransactionMessage": "true"}
        with ConsumerHarness(tmp_path, properties=properties) as harness:
            await harness.connect().heartbeat(producer="P")
            assert not harness.clients.producer_groups


class TestCheckingSubscriptions:
    async def check(
        self, harness: ConsumerHarness, expression: str, kind: str | None = "SQL92"
    ) -> tuple[int, str | None]:
        subscription = {"topic": "T", "subString": expression, "expressionType": kind}
        body = {"clientId": "c", "group": "G", "subscriptionData": subscription}
        answer = await harness.connect().ask(
            RequestCode.CHECK_CLIENT_CONFIG, None, fastjson.dumps(body)
        )
        return answer.code, answer.remark

    async def test_with_property_filters(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties={"enablePropertyFilter": "true"}) as harness:
            assert await self.check(harness, "a > 5 AND b = 'x'") == (0, None)
            assert await self.check(harness, "A || B", "TAG") == (0, None)
            assert await self.check(harness, "whatever", None) == (0, None)
            for wrong in ("a >", "", "(" * 100_000, "a = 'x" * 200_000, "a = 1 OR " * 2_000 + "b"):
                code, remark = await self.check(harness, wrong)
                assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
                assert remark
            code, _ = await self.check(harness, "a > 5", "GROOVY")
            assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    async def test_without_property_filters(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            assert await self.check(harness, "a > 5") == (
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by SQL92",
            )
            answer = await harness.connect().ask(RequestCode.CHECK_CLIENT_CONFIG, None)
            assert answer.code == 0


class TestFilters:
    async def test_filters_follow_their_consumers(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties={"filterDataCleanTimeSpan": "1000"}) as harness:
            one = harness.connect()
            await one.heartbeat("G", sql("T", "a > 1", 5), sql("U", "b > 1", 5))
            found = harness.filters.table.get("T", "G")
            assert found is not None
            assert (found.expression, found.client_version, found.is_dead) == ("a > 1", 5, False)
            assert found.bloom_filter_data is not None
            assert found.bloom_filter_data.bit_num == 112
            harness.clock.advance(10)
            await one.heartbeat("G", sql("T", "a > 2", 6))
            changed = harness.filters.get("T", "G")
            assert changed is not None
            assert changed[0].expression == "a > 2"
            left_out = harness.filters.table.get("U", "G")
            assert left_out is not None
            assert left_out.is_dead
            await one.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "x", "consumerGroup": "G"})
            assert all(each.is_dead for each in harness.filters.table)
            harness.clock.advance(10)
            await one.heartbeat("G", sql("T", "a > 2", 6))
            revived = harness.filters.table.get("T", "G")
            assert revived is not None
            assert not revived.is_dead
            harness.clock.advance(2000)
            harness.clients.scan()
            assert [each.topic for each in harness.filters.table] == ["T"]

    def test_a_heartbeat_reads_only_the_filters_of_its_group(self, tmp_path: Path) -> None:
        class Unwalked(ConsumerFilterTable):
            is_loaded = False

            def __iter__(self) -> Iterator[ConsumerFilter]:
                assert not self.is_loaded, "the whole table is walked"
                return super().__iter__()

        table = Unwalked(tmp_path)
        filters = ConsumerFilters(table, Settings(BrokerConfig()), clock=ManualClock())
        table.is_loaded = True
        subscriptions = [
            SubscriptionData(topic=topic, sub_string="a > 1", expression_type="SQL92")
            for topic in ("T", "U")
        ]
        for group in ("G", "H"):
            filters.register(group, subscriptions)
        filters.register("G", subscriptions[:1])
        filters.unregister("Nobody")
        filters.unregister("H")
        dead = {
            (group, topic): found.is_dead
            for group in ("G", "H")
            for topic in ("T", "U")
            if (found := table.get(topic, group)) is not None
        }
        assert dead == {("G", "T"): False, ("G", "U"): True, ("H", "T"): True, ("H", "U"): True}

    async def test_an_invalid_expression_removes_the_filter(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            one = harness.connect()
            await one.heartbeat("G", sql("T", "a >", 5))
            assert harness.filters.get("T", "G") is None
            await one.heartbeat("G", sql("T", "a > 1", 6))
            assert harness.filters.get("T", "G") is not None
            await one.heartbeat("G", sql("T", "a >", 7))
            assert harness.filters.get("T", "G") is None
            await one.heartbeat("G", sql("T", "a > 1", 8))
            assert harness.filters.get("T", "G") is not None


async def test_oneway_heartbeats_are_not_answered(tmp_path: Path) -> None:
    with ConsumerHarness(tmp_path) as harness:
        one = harness.connect()
        body = b'{"clientID":"c","producerDataSet":[{"groupName":"P"}]}'
        one.send(RequestCode.HEART_BEAT, None, body, flag=CommandFlag.ONEWAY)
        assert await consumer_ids(one) is None
        assert harness.clients.find_client("c") is one.connection
