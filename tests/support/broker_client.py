"""Send single requests to one broker, for integration tests."""

import asyncio
import time
from typing import Any

from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_client import ConsumerData, HeartbeatData, ProducerData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import (
    EndTransactionRequest,
    SendBackRequest,
    SendRequest,
    SendRequestV2,
    SendResponse,
    UpdateConsumerOffsetRequest,
)
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.message import format_properties
from goddard.protocol.record import Record, iter_records
from goddard.protocol.responses import check
from goddard.transport.client import Client
from tests.support.consumer_harness import pull_fields, tags

TIMEOUT_MS = 10_000
_WAIT_FLAG = 2


class BrokerClient:
    """The requests of producers and consumers to one broker."""

    def __init__(self, client: Client, address: str) -> None:
        self.client = client
        self.address = address

    async def ask(
        self, code: int, fields: dict[str, Any], body: bytes = b"", *, timeout_ms: int = TIMEOUT_MS
    ) -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        command = RemotingCommand(code, texts, body)
        return await self.client.request(self.address, command, timeout_ms)

    async def heartbeat(self, *producer_groups: str, client_id: str = "client-1") -> None:
        data = HeartbeatData(
            client_id=client_id,
            producer_data_set=[ProducerData(group_name=group) for group in producer_groups],
        )
        check(await self.ask(RequestCode.HEART_BEAT, {}, encode_body(data)))

    async def consumer_heartbeat(self, group: str, topic: str) -> None:
        consumer = ConsumerData(group_name=group, subscription_data_set=[tags(topic)])
        data = HeartbeatData(client_id="client-1", consumer_data_set=[consumer])
        check(await self.ask(RequestCode.HEART_BEAT, {}, encode_body(data)))

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        header = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        check(await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode()))

    def send_header(self, topic: str, properties: dict[str, str], **fields: Any) -> SendRequest:
        values: dict[str, Any] = {
            "producer_group": "P",
            "topic": topic,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": time.time_ns() // 1_000_000,
            "flag": 0,
            "properties": format_properties(properties),
        } | fields
        return SendRequest(**values)

    async def send(
        self, topic: str, body: bytes, properties: dict[str, str] | None = None, **fields: Any
    ) -> SendResponse:
        answer = check(await self.ask_to_send(topic, body, properties, **fields))
        return SendResponse.decode(answer.fields)

    async def ask_to_send(
        self, topic: str, body: bytes, properties: dict[str, str] | None = None, **fields: Any
    ) -> RemotingCommand:
        """As ``send``; returns the answer, whatever its code."""
        header = self.send_header(topic, properties or {}, **fields)
        encoded = SendRequestV2.from_v1(header).encode()
        return await self.ask(RequestCode.SEND_MESSAGE_V2, encoded, body)

    async def send_half(self, topic: str, body: bytes, **properties: str) -> SendResponse:
        marks = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": f"U-{body.decode()}"}
        return await self.send(topic, body, marks | properties, sys_flag=4)

    async def end(self, half: SendResponse, decision: int) -> RemotingCommand:
        _, physical_offset = parse_offset_message_id(half.msg_id)
        header = EndTransactionRequest(
            producer_group="P",
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=decision,
            msg_id=half.transaction_id or "",
        )
        return await self.ask(RequestCode.END_TRANSACTION, header.encode())

    async def send_back(
        self, record: Record, group: str, delay_level: int, **fields: Any
    ) -> RemotingCommand:
        header = SendBackRequest(
            offset=record.physical_offset, group=group, delay_level=delay_level, **fields
        )
        return await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())

    async def pull(
        self, topic: str, queue_offset: int = 0, *, queue_id: int = 0, wait_ms: int = 0
    ) -> list[Record]:
        """Messages of a queue from an offset on; ``wait_ms``: how long to wait for the first."""
        fields = pull_fields(topic, queue_offset, queueId=queue_id)
        if wait_ms:
            fields["sysFlag"] |= _WAIT_FLAG
            fields["suspendTimeoutMillis"] = wait_ms
        code = RequestCode.PULL_MESSAGE
        answer = await self.ask(code, fields, timeout_ms=TIMEOUT_MS + wait_ms)
        return list(iter_records(answer.body)) if answer.code == ResponseCode.SUCCESS else []

    async def receive(
        self, topic: str, count: int, *, queue_id: int = 0, timeout_seconds: float = 60.0
    ) -> list[Record]:
        """Wait until a queue has ``count`` messages, and return them."""
        found: list[Record] = []
        async with asyncio.timeout(timeout_seconds):
            while len(found) < count:
                records = await self.pull(topic, len(found), queue_id=queue_id, wait_ms=1_000)
                found += records
                if not records:  # a pull of a topic that does not exist yet returns at once
                    await asyncio.sleep(0.05)
        return found
