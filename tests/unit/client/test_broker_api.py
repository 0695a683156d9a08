"""The requests that the functions send, and the results from responses, without a network."""

import asyncio
import json
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


class FakeCaller:
    """A caller that returns the same response to every request, and records the requests."""

    def __init__(
        self,
        code: int = ResponseCode.SUCCESS,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        self.answer = RemotingCommand(code, fields, body, remark="because", version=493)
        self.requests: list[RemotingCommand] = []
        self.oneways: list[RemotingCommand] = []

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        assert address == ADDRESS
        assert timeout_ms > 0
        self.requests.append(command)
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


async def test_queue_offset_requests_have_topic_and_number() -> None:
    caller = FakeCaller(fields={"offset": "7", "timestamp": "9"})
    assert await broker_api.max_offset(caller, ADDRESS, QUEUE) == 7
    assert await broker_api.min_offset(caller, ADDRESS, QUEUE) == 7
    assert await broker_api.earliest_store_time_ms(caller, ADDRESS, QUEUE) == 9
    boundary = broker_api.Boundary.UPPER
    assert await broker_api.search_offset(caller, ADDRESS, QUEUE, 12, boundary=boundary) == 7
    assert [command.code for command in caller.requests] == [30, 31, 32, 29]
    for command in caller.requests:
        queue_fields = {key: command.fields[key] for key in ("topic", "queueId", "bname")}
        assert queue_fields == {"topic": "T", "queueId": "3", "bname": "broker-a"}
    assert caller.requests[-1].fields["timestamp"] == "12"
    assert caller.requests[-1].fields["boundaryType"] == "UPPER"


async def test_response_without_its_field_is_rejected() -> None:
    with pytest.raises(HeaderError, match="offset"):
        await broker_api.max_offset(FakeCaller(), ADDRESS, QUEUE)
    with pytest.raises(HeaderError, match="offset"):
        await broker_api.max_offset(FakeCaller(fields={"offset": "many"}), ADDRESS, QUEUE)


async def test_only_query_not_found_means_no_offset() -> None:
    found = FakeCaller(fields={"offset": "0"})
    assert await broker_api.query_consumer_offset(found, ADDRESS, "g", QUEUE) == 0
    assert "setZeroIfNotFound" not in only(found.requests).fields
    none = FakeCaller(ResponseCode.QUERY_NOT_FOUND)
    query = broker_api.query_consumer_offset(none, ADDRESS, "g", QUEUE, set_zero_if_not_found=False)
    assert await query is None
    assert only(none.requests).fields["setZeroIfNotFound"] == "false"
    with pytest.raises(BrokerError) as failure:
        await broker_api.query_consumer_offset(
            FakeCaller(ResponseCode.SYSTEM_ERROR), ADDRESS, "g", QUEUE
        )
    assert (failure.value.code, failure.value.remark) == (1, "because")
    assert failure.value.address == ADDRESS


async def test_offsets_are_committed_with_and_without_response() -> None:
    caller = FakeCaller()
    await broker_api.update_consumer_offset(caller, ADDRESS, "g", QUEUE, 5)
    await broker_api.update_consumer_offset_oneway(caller, ADDRESS, "g", QUEUE, 5)
    assert only(caller.requests).fields == only(caller.oneways).fields
    assert only(caller.oneways).fields == {
        "topic": "T",
        "queueId": "3",
        "bname": "broker-a",
        "consumerGroup": "g",
        "commitOffset": "5",
    }


async def test_heartbeat_returns_the_broker_version() -> None:
    caller = FakeCaller(fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"})
    version, answer = await broker_api.heartbeat(caller, ADDRESS, HeartbeatData(client_id="c"))
    assert (version, answer.supports_v2, answer.subscription_changed) == (493, True, False)
    assert b'"clientID":"c"' in bytes(only(caller.requests).body)


async def test_group_membership_requests() -> None:
    caller = FakeCaller(body=b'{"consumerIdList":["a","b"]}')
    assert await broker_api.consumer_ids(caller, ADDRESS, "g") == ["a", "b"]
    await broker_api.unregister_client(caller, ADDRESS, "c", consumer_group="g")
    subscription = SubscriptionData(topic="T", expression_type="SQL92", sub_string="a > 1")
    await broker_api.check_client_config(caller, ADDRESS, "c", "g", subscription)
    assert [command.code for command in caller.requests] == [38, 35, 46]
    assert caller.requests[1].fields == {"clientID": "c", "consumerGroup": "g"}
    assert b'"subString":"a > 1"' in bytes(caller.requests[2].body)


async def test_queue_lock_requests() -> None:
    body = b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}'
    caller = FakeCaller(body=body)
    other = MessageQueue("T", "broker-a", 4)
    assert await broker_api.lock_queues(caller, ADDRESS, "g", "c", [QUEUE, other]) == {QUEUE}
    assert await broker_api.lock_queues(FakeCaller(), ADDRESS, "g", "c", [QUEUE]) == set()
    await broker_api.unlock_queues_oneway(caller, ADDRESS, "g", "c", [QUEUE])
    assert [command.code for command in (*caller.requests, only(caller.oneways))] == [41, 42]
    assert json.loads(bytes(only(caller.oneways).body)) == {
        "consumerGroup": "g",
        "clientId": "c",
        "mqSet": [{"topic": "T", "brokerName": "broker-a", "queueId": 3}],
        "onlyThisBroker": False,
    }


async def test_send_back_request() -> None:
    caller = FakeCaller()
    await broker_api.send_back(
        caller,
        ADDRESS,
        "g",
        99,
        delay_level=3,
        max_reconsume_times=16,
        message_id="id",
        topic="T",
        failure="ValueError: bad",
    )
    assert only(caller.requests).fields == {
        "offset": "99",
        "group": "g",
        "delayLevel": "3",
        "originMsgId": "id",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
        "consumeFailure": "ValueError: bad",
    }


async def test_end_transaction_is_oneway() -> None:
    caller = FakeCaller()
    header = EndTransactionRequest(
        producer_group="p",
        tran_state_table_offset=1,
        commit_log_offset=2,
        commit_or_rollback=8,
        msg_id="id",
    )
    await broker_api.end_transaction_oneway(caller, ADDRESS, header, remark="listener failed")
    command = only(caller.oneways)
    assert (command.code, command.remark) == (RequestCode.END_TRANSACTION, "listener failed")
    assert command.fields["commitOrRollback"] == "8"


async def test_messages_are_found_by_offset_and_by_key() -> None:
    caller = FakeCaller(body=b"record")
    assert await broker_api.view_message(caller, ADDRESS, 5, topic="T") == b"record"
    with pytest.raises(ProtocolError, match="no message at 5"):
        await broker_api.view_message(FakeCaller(), ADDRESS, 5)
    fresh = {"indexLastUpdateTimestamp": "11", "indexLastUpdatePhyoffset": "12"}
    caller = FakeCaller(fields=fresh, body=b"records")
    found = await broker_api.query_messages(
        caller, ADDRESS, "T", "k", max_count=2, begin_ms=0, end_ms=9, by_unique_key=True
    )
    assert found == broker_api.FoundRecords(b"records", 11, 12)
    fields = only(caller.requests).fields
    assert (fields["indexType"], fields["_UNIQUE_KEY_QUERY"]) == ("U", "true")
    for caller in (
        FakeCaller(ResponseCode.QUERY_NOT_FOUND),
        FakeCaller(
            ResponseCode.QUERY_NOT_FOUND,
            {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"},
        ),
    ):
        found = await broker_api.query_messages(
            caller, ADDRESS, "T", "k", max_count=2, begin_ms=0, end_ms=9
        )
        assert found == broker_api.FoundRecords(b"", 0, 0)
    with pytest.raises(BrokerError):
        await broker_api.query_messages(
            FakeCaller(ResponseCode.NO_PERMISSION),
            ADDRESS,
            "T",
            "k",
            max_count=2,
            begin_ms=0,
            end_ms=9,
        )


async def test_name_server_requests() -> None:
    assert await broker_api.topic_route(FakeCaller(ResponseCode.TOPIC_NOT_EXIST), "T") is None
    with pytest.raises(BrokerError):
        await broker_api.topic_route(FakeCaller(ResponseCode.SYSTEM_ERROR), "T")
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:1"},"brokerName":"a","cluster":"c"}]}'
    route = await broker_api.topic_route(FakeCaller(body=body), "T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:1"}
    info = await broker_api.cluster_info(FakeCaller(body=b'{"clusterAddrTable":{"c":["a"]}}'))
    assert info.cluster_addr_table == {"c": ["a"]}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"topicList":3}', b"null"])
@pytest.mark.parametrize(
    "call",
    [
        broker_api.cluster_info,
        lambda caller: broker_api.consumer_ids(caller, ADDRESS, "g"),
    ],
)
async def test_malformed_body_is_rejected(
    body: bytes, call: Callable[[FakeCaller], "asyncio.Future[object]"]
) -> None:
    try:
        answer = await call(FakeCaller(body=body))
    except ProtocolError:
        return
    # A body without any of the fields decodes to an empty result, as in Java.
    assert not getattr(answer, "cluster_addr_table", answer)


async def test_long_body_is_decoded_in_a_thread() -> None:
    names = [f"topic-{number}" for number in range(MAX_SLOW_BYTES // 8)]
    body = encode_body(TopicList(topic_list=names))
    assert len(body) > MAX_SLOW_BYTES
    reading = asyncio.create_task(broker_api.read(RemotingCommand(0, body=body), TopicList))
    await asyncio.sleep(0)
    assert not reading.done()
    assert (await reading).topic_list == names
