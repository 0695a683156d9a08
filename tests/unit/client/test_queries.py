"""Requests to several brokers, their addresses in a route, and merging what they found."""

import pytest

from goddard.client.errors import BrokerError, PartialFailureError
from goddard.client.message import ReceivedMessage
from goddard.client.queries import (
    FoundMessages,
    address_to_ask,
    each,
    format_attributes,
    master_addresses,
    merge_found,
    message,
    message_by_offset_id,
    route_addresses,
)
from goddard.errors import ConfigError, RequestTimeoutError
from goddard.protocol.bodies import BrokerData, ClusterInfo, TopicRoute, encode_body
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.ids import offset_message_id
from goddard.protocol.record import Host, Record, encode_record

A, B, A_REPLICA = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def found_message(offset: int, *, store_ms: int = 1, properties: bytes = b"") -> ReceivedMessage:
    host = Host.parse(A)
    record = Record("T", 0, offset, offset, store_ms, host, 1, host, b"body", properties)
    return ReceivedMessage.from_record(record, "a")


class FakeSession:
    """A cluster of one broker at A, which has the same record at every offset."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        self.codes.append(command.code)
        if command.code == RequestCode.VIEW_MESSAGE_BY_ID:
            host = Host.parse(A)
            return command.reply(
                body=encode_record(Record("T", 0, 1, 7, 1, host, 1, host, b"body", b""))
            )
        brokers = {"a": BrokerData(broker_name="a", broker_addrs={0: A})}
        return command.reply(body=encode_body(ClusterInfo(broker_addr_table=brokers)))

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        return await self.request(address, command, timeout_ms)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        raise AssertionError

    async def request_name_server(
        self, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        return await self.request("", command, timeout_ms)


class FakeAsker:
    timeout_ms = 1_000

    def __init__(self) -> None:
        self.session = FakeSession()


async def test_message_by_the_id_of_a_broker_takes_two_requests() -> None:
    asker = FakeAsker()
    found = await message(asker, "T", offset_message_id(Host.parse(A), 7), now_ms=0)
    assert (found.body, found.broker_name) == (b"body", "a")
    assert asker.session.codes == [
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.VIEW_MESSAGE_BY_ID,
    ]


async def test_message_of_a_broker_that_registered_another_address() -> None:
    found = await message_by_offset_id(FakeAsker(), "T", offset_message_id(Host.parse(B), 7))
    assert (found.body, found.broker_name) == (b"body", "")


async def test_all_failed_servers_are_named_and_other_answers_are_kept() -> None:
    async def ask(address: str) -> int:
        if address == A:
            raise RequestTimeoutError("slow", address)
        if address == B:
            raise BrokerError(ResponseCode.NO_PERMISSION, "not you", address)
        return 7

    with pytest.raises(PartialFailureError) as failure:
        await each([A, A_REPLICA, B, A], ask)
    assert failure.value.results == {A_REPLICA: 7}
    assert list(failure.value.failures) == [A, B]
    text = str(failure.value)
    assert "2 of 3 failed" in text
    assert A in text
    assert "not you" in text
    assert "the request succeeded at the other servers" in text


async def test_single_server_raises_its_own_error() -> None:
    async def ask(address: str) -> int:
        raise BrokerError(ResponseCode.NO_PERMISSION, "not you", address)

    with pytest.raises(BrokerError) as failure:
        await each([A], ask)
    assert failure.value.address == A
    assert await each([], ask) == {}


async def test_program_errors_are_not_server_failures() -> None:
    async def ask(address: str) -> int:
        raise KeyError(address)

    with pytest.raises(KeyError):
        await each([A, B], ask)


def test_addresses_of_a_route() -> None:
    route = TopicRoute(
        broker_datas=[
            BrokerData(broker_name="a", cluster="one", broker_addrs={0: A, 1: A_REPLICA}),
            BrokerData(broker_name="b", cluster="two", broker_addrs={1: B}),
            BrokerData(broker_name="c", cluster="two"),
        ]
    )
    assert route_addresses(route) == {A: "a", B: "b"}
    assert route_addresses(route, "one") == {A: "a"}
    assert master_addresses(route) == {A: "a"}
    assert address_to_ask(BrokerData()) is None


def test_messages_that_only_share_the_hash_of_a_key_are_dropped() -> None:
    first = found_message(1, store_ms=5, properties=b"KEYS\x01k other\x02UNIQ_KEY\x01U1\x02")
    second = found_message(2, store_ms=3, properties=b"KEYS\x01k\x02UNIQ_KEY\x01U2\x02")
    other_key = found_message(3, properties=b"KEYS\x01kk\x02")
    answers = [FoundMessages([first, other_key], 10), FoundMessages([second], 20)]
    found = merge_found(answers, "T", "k", by_unique_key=False)
    assert found == FoundMessages([second, first], 20)
    assert merge_found(answers, "T", "U1", by_unique_key=True).messages == [first]
    assert merge_found(answers, "Other", "k", by_unique_key=False).messages == []


def test_attributes_are_formatted() -> None:
    assert format_attributes({}) == ""
    assert format_attributes({"a": "1", "b": None}) == "+a=1,-b"
    for wrong in ({"": "1"}, {"a,b": "1"}, {"a": "1,+b=2"}, {"a": "b=c"}):
        with pytest.raises(ConfigError):
            format_attributes(wrong)
