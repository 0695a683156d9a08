"""A name server client for tests: it registers as a broker and queries routes over one connection.

Unlike ``testing.wire`` it uses the project's transport, and it keeps its connection open, as a
broker must.
"""

import json
from typing import Any

from goddard.protocol import fastjson
from goddard.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from goddard.protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import RegisterBrokerRequest
from goddard.transport.client import Client

_TIMEOUT_MS = 10_000


def registration(*topics: str, counter: int = 1) -> RegisterBrokerBody:
    """The body of a registration with these topics, four queues each."""
    table = TopicConfigTable(
        data_version=DataVersion(counter=counter, state_version=0, timestamp=counter),
        topic_config_table={
            topic: TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
            for topic in topics
        },
    )
    return RegisterBrokerBody(topic_config_serialize_wrapper=table)


def loads(answer: RemotingCommand) -> Any:
    """The JSON body of a successful response."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return fastjson.loads(bytes(answer.body))


class NameServerClient:
    """One connection to a name server, opened by the first request."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.client = Client()

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = CURRENT_VERSION,
    ) -> RemotingCommand:
        command = RemotingCommand(code, fields, body, version=version)
        return await self.client.request(self.address, command, _TIMEOUT_MS)

    async def register(
        self,
        *topics: str,
        name: str = "broker-a",
        broker_id: int = 0,
        address: str = "10.0.0.1:10911",
        counter: int = 1,
        compressed: bool = False,
        fields: dict[str, str] | None = None,
    ) -> RemotingCommand:
        """Register as a 5.x broker; ``fields`` are added to the header, or replace its own."""
        body = registration(*(topics or ("T1", "T2")), counter=counter)
        header = RegisterBrokerRequest(
            broker_name=name,
            broker_addr=address,
            cluster_name="DefaultCluster",
            ha_server_addr=address.replace("10911", "10912"),
            broker_id=broker_id,
            enable_acting_master=False,
            compressed=compressed,
        )
        return await self.ask(
            RequestCode.REGISTER_BROKER,
            {**header.encode(), **(fields or {})},
            encode_register_body(body, compressed=compressed),
        )

    async def route(self, topic: str) -> dict[str, Any] | None:
        """A topic's route with wire names; None if there is none."""
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        route: dict[str, Any] = json.loads(bytes(answer.body))
        return route

    async def close(self) -> None:
        await self.client.close()
