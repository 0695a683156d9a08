"""What the calls send, and what they make of answers; a script stands for the network."""

import asyncio
from collections.abc import Callable

import pytest

from goddard.client import broker_api
from goddard.client.errors import BrokerError
from goddard.client.values import MessageQueue
from goddard.errors import HeaderError, ProtocolError
from goddard.protocol.bodies import MAX_SLOW_BYTES, TopicList, encode_body
from goddard.protocol.bodies_client import HeartbeatData, SubscriptionData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import EndTransactionRequest

ADDRESS = "10.0.0.1:10911"
QUEUE = MessageQueue("T", "broker-a", 3)


class Script:
    """Gives one answer to everything, and remembers what it was asked."""

    def __init__(
        self,
        code: int = ResponseCode.SUCCESS,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        self.answer = RemotingCommand(code, fields, body, remark="because", version=493)
        self.asked: list[RemotingCommand] = []
        self.oneways: list[RemotingCommand] = []

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        assert address == ADDRESS
        assert timeout_ms > 0
        self.asked.append(command)
        return self.answer

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        answer = await self.request(address, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, address)
        return answer

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        assert address == ADDRESS
        self.oneways.append(command)

    async def request_name_server(
        self, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        return await self.request(ADDRESS, command, timeout_ms)


def only(commands: list[RemotingCommand]) -> RemotingCommand:
    (command,) = commands
    return command


async def test_offsets_of_a_queue_are_asked_for_by_topic_and_number() -> None:
    script = Script(fields={"offset": "7", "timestamp": "9"})
    assert await broker_api.max_offset(script, ADDRESS, QUEUE) == 7
    assert await broker_api.min_offset(script, ADDRESS, QUEUE) == 7
    assert await broker_api.earliest_store_time_ms(script, ADDRESS, QUEUE) == 9
    boundary = broker_api.Boundary.UPPER
    assert await broker_api.search_offset(script, ADDRESS, QUEUE, 12, boundary=boundary) == 7
    assert [command.code for command in script.asked] == [30, 31, 32, 29]
    for command in script.asked:
        named = {key: command.fields[key] for key in ("topic", "queueId", "bname")}
        assert named == {"topic": "T", "queueId": "3", "bname": "broker-a"}
    assert script.asked[-1].fields["timestamp"] == "12"
    assert script.asked[-1].fields["boundaryType"] == "UPPER"


async def test_an_answer_without_its_field_is_refused() -> None:
    with pytest.raises(HeaderError, match="offset"):
        await broker_api.max_offset(Script(), ADDRESS, QUEUE)
    with pytest.raises(HeaderError, match="offset"):
        await broker_api.max_offset(Script(fields={"offset": "many"}), ADDRESS, QUEUE)


async def test_only_one_code_means_that_there_is_no_offset() -> None:
    found = Script(fields={"offset": "0"})
    assert await broker_api.query_consumer_offset(found, ADDRESS, "g", QUEUE) == 0
    assert "setZeroIfNotFound" not in only(found.asked).fields
    none = Script(ResponseCode.QUERY_NOT_FOUND)
    known = broker_api.query_consumer_offset(none, ADDRESS, "g", QUEUE, set_zero_if_not_found=False)
    assert await known is None
    assert only(none.asked).fields["setZeroIfNotFound"] == "false"
    with pytest.raises(BrokerError) as failure:
        await broker_api.query_consumer_offset(
            Script(ResponseCode.SYSTEM_ERROR), ADDRESS, "g", QUEUE
        )
    assert (failure.value.code, failure.value.remark) == (1, "because")
    assert failure.value.address == ADDRESS


async def test_offsets_are_noted_with_and_without_waiting() -> None:
    script = Script()
    await broker_api.update_consumer_offset(script, ADDRESS, "g", QUEUE, 5)
    await broker_api.update_consumer_offset_oneway(script, ADDRESS, "g", QUEUE, 5)
    assert only(script.asked).fields == only(script.oneways).fields
    assert only(script.oneways).fields == {
        "topic": "T",
        "queueId": "3",
        "bname": "broker-a",
        "consumerGroup": "g",
        "commitOffset": "5",
    }


async def test_a_heartbeat_gives_the_version_of_the_broker() -> None:
    script = Script(fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"})
    version, answer = await broker_api.heartbeat(script, ADDRESS, HeartbeatData(client_id="c"))
    assert (version, answer.supports_v2, answer.subscription_changed) == (493, True, False)
    assert b'"clientID":"c"' in bytes(only(script.asked).body)


async def test_membership() -> None:
    script = Script(body=b'{"consumerIdList":["a","b"]}')
    assert await broker_api.consumer_ids(script, ADDRESS, "g") == ["a", "b"]
    await broker_api.unregister_client(script, ADDRESS, "c", consumer_group="g")
    subscription = SubscriptionData(topic="T", expression_type="SQL92", sub_string="a > 1")
    await broker_api.check_client_config(script, ADDRESS, "c", "g", subscription)
    assert [command.code for command in script.asked] == [38, 35, 46]
    assert script.asked[1].fields == {"clientID": "c", "consumerGroup": "g"}
    assert b'"subString":"a > 1"' in bytes(script.asked[2].body)


async def test_locks() -> None:
    body = b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}'
    script = Script(body=body)
    other = MessageQueue("T", "broker-a", 4)
    assert await broker_api.lock_queues(script, ADDRESS, "g", "c", [QUEUE, other]) == {QUEUE}
    assert await broker_api.lock_queues(Script(), ADDRESS, "g", "c", [QUEUE]) == set()
    await broker_api.unlock_queues(script, ADDRESS, "g", "c", [QUEUE])
    await broker_api.unlock_queues_oneway(script, ADDRESS, "g", "c", [QUEUE])
    assert script.asked[1].body == only(script.oneways).body
    assert [command.code for command in script.asked] == [41, 42]


async def test_a_message_is_given_back() -> None:
    script = Script()
    await broker_api.send_back(
        script,
        ADDRESS,
        "g",
        99,
        delay_level=3,
        max_reconsume_times=16,
        message_id="id",
        topic="T",
    )
    assert only(script.asked).fields == {
        "offset": "99",
        "group": "g",
        "delayLevel": "3",
        "originMsgId": "id",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }


async def test_a_transaction_is_ended_without_waiting() -> None:
    script = Script()
    header = EndTransactionRequest(
        producer_group="p",
        tran_state_table_offset=1,
        commit_log_offset=2,
        commit_or_rollback=8,
        msg_id="id",
    )
    await broker_api.end_transaction_oneway(script, ADDRESS, header, remark="listener failed")
    command = only(script.oneways)
    assert (command.code, command.remark) == (RequestCode.END_TRANSACTION, "listener failed")
    assert command.fields["commitOrRollback"] == "8"


async def test_records_are_looked_up() -> None:
    script = Script(body=b"record")
    assert await broker_api.view_message(script, ADDRESS, 5, topic="T") == b"record"
    with pytest.raises(ProtocolError, match="no message at 5"):
        await broker_api.view_message(Script(), ADDRESS, 5)
    fresh = {"indexLastUpdateTimestamp": "11", "indexLastUpdatePhyoffset": "12"}
    script = Script(fields=fresh, body=b"records")
    found = await broker_api.query_messages(
        script, ADDRESS, "T", "k", max_count=2, begin_ms=0, end_ms=9, by_unique_key=True
    )
    assert found == broker_api.FoundRecords(b"records", 11, 12)
    fields = only(script.asked).fields
    assert (fields["indexType"], fields["_UNIQUE_KEY_QUERY"]) == ("U", "true")
    for nothing in (
        Script(ResponseCode.QUERY_NOT_FOUND),
        Script(
            ResponseCode.QUERY_NOT_FOUND,
            {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"},
        ),
    ):
        found = await broker_api.query_messages(
            nothing, ADDRESS, "T", "k", max_count=2, begin_ms=0, end_ms=9
        )
        assert found == broker_api.FoundRecords(b"", 0, 0)
    with pytest.raises(BrokerError):
        await broker_api.query_messages(
            Script(ResponseCode.NO_PERMISSION),
            ADDRESS,
            "T",
            "k",
            max_count=2,
            begin_ms=0,
            end_ms=9,
        )


async def test_routes_and_clusters() -> None:
    assert await broker_api.topic_route(Script(ResponseCode.TOPIC_NOT_EXIST), "T") is None
    with pytest.raises(BrokerError):
        await broker_api.topic_route(Script(ResponseCode.SYSTEM_ERROR), "T")
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:1"},"brokerName":"a","cluster":"c"}]}'
    route = await broker_api.topic_route(Script(body=body), "T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:1"}
    info = await broker_api.cluster_info(Script(body=b'{"clusterAddrTable":{"c":["a"]}}'))
    assert info.cluster_addr_table == {"c": ["a"]}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"topicList":3}', b"null"])
@pytest.mark.parametrize(
    "call",
    [
        broker_api.cluster_info,
        lambda script: broker_api.consumer_ids(script, ADDRESS, "g"),
    ],
)
async def test_a_body_that_is_garbage_is_refused(
    body: bytes, call: Callable[[Script], "asyncio.Future[object]"]
) -> None:
    try:
        answer = await call(Script(body=body))
    except ProtocolError:
        return
    # What has none of the fields is an empty answer, as Java takes it.
    assert not getattr(answer, "cluster_addr_table", answer)


async def test_a_long_body_is_read_beside_the_loop() -> None:
    names = [f"topic-{number}" for number in range(MAX_SLOW_BYTES // 8)]
    body = encode_body(TopicList(topic_list=names))
    assert len(body) > MAX_SLOW_BYTES
    reading = asyncio.create_task(broker_api.read(RemotingCommand(0, body=body), TopicList))
    await asyncio.sleep(0)
    assert not reading.done()
    assert (await reading).topic_list == names
