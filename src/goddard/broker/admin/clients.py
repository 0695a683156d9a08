"""Requests about those who are connected, and questions that a broker passes on to them.

Handled: 203 consumers of a group, 204 producers of a group, 328 all producers; 307 running
information, 309 consume a message now and 223 offsets, which the client itself answers (223 by
221). A client that does not answer costs the one who asked 5 or 10 seconds, and nobody else.
Belongs to the loop.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from goddard.broker.admin.topics import UNSET_REMARK
from goddard.broker.consuming.clients import Clients
from goddard.broker.consuming.members import Client
from goddard.broker.settings import Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.clock import Clock, SystemClock
from goddard.errors import GoddardError, RequestTimeoutError
from goddard.protocol.bodies import MessageQueue, decode_body, encode_body
from goddard.protocol.bodies_admin import Connection as ConnectionBody
from goddard.protocol.bodies_admin import (
    ConsumerConnections,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
)
from goddard.protocol.bodies_client import ClientOffsets, GroupOffsets
from goddard.protocol.codes import LanguageCode, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import (
    ConsumeDirectlyRequest,
    GetConsumerConnectionsRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
    GetProducerConnectionsRequest,
)
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.responses import (
    ConsumerNotOnlineError,
    ConsumeTimeoutError,
    SystemFailedError,
)
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

_CALL_MS: Final = 10_000
_STATUS_MS: Final = 5_000
# V3_0_7_SNAPSHOT and V3_1_8_SNAPSHOT: the first clients that answer 221, and 307 and 309.
KNOWS_OFFSETS_VERSION: Final = 28
_KNOWS_CALLS_VERSION: Final = 62
# Some ten thousand queues.
_MAX_OFFSETS_BYTES: Final = 1024 * 1024


class AdminClients:
    """The handlers of requests about clients."""

    def __init__(
        self,
        *,
        settings: Settings,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        store: MessageStore,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._store = store
        self._clock = clock or SystemClock()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.handle_consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.handle_producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.handle_all_producers,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.handle_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.handle_consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.handle_offsets,
        }

    # Who is there

    def handle_consumers(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        name = GetConsumerConnectionsRequest.decode(request.fields).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise ConsumerNotOnlineError(f"the consumer group[{name[:255]}] not online")
        body = ConsumerConnections(
            connection_set=[_connection(client) for client in group.clients.values()],
            consume_from_where=group.consume_from_where,
            consume_type=group.consume_type,
            message_model=group.message_model,
            subscription_table=dict(group.subscriptions),
        )
        return request.reply(body=encode_body(body))

    def handle_producers(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        name = GetProducerConnectionsRequest.decode(request.fields).producer_group
        producers = self._clients.producer_groups.get(name)
        if producers is None:
            raise SystemFailedError(f"the producer group[{name[:255]}] not exist")
        body = ProducerConnections([_connection(client) for client in producers.values()])
        return request.reply(body=encode_body(body))

    def handle_all_producers(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        # Clients are remembered by a clock that never jumps.
        offset_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        table = {
            group: [
                ProducerInfo(
                    client_id=client.client_id,
                    language=_language(client.language),
                    last_update_timestamp=client.last_heartbeat_ms + offset_ms,
                    # As Java prints an address.
                    remote_ip=f"/{client.connection.remote}",
                    version=client.version,
                )
                for client in producers.values()
            ]
            for group, producers in self._clients.producer_groups.items()
        }
        return request.reply(body=encode_body(ProducerTable(data=table)))

    # What they answer

    async def handle_running_info(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = GetConsumerRunningInfoRequest.decode(request.fields)
        command = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, dict(request.fields))
        return await self._call(request, header.consumer_group, header.client_id, command)

    async def handle_consume(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """Have a consumer consume a message of the store and tell what came of it."""
        header = ConsumeDirectlyRequest.decode(request.fields)
        if header.msg_id is None:
            raise SystemFailedError("msgId is missing")
        _, physical_offset = parse_offset_message_id(header.msg_id)
        record = self._store.lookup(physical_offset)
        if record is None:
            raise SystemFailedError(f"can not find message by the offset, {physical_offset}")
        fields = {**request.fields, "brokerName": self._settings.current.broker_name}
        topic = self._topics.get(header.topic) if header.topic else None
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._groups.get(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        command = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, bytes(record))
        return await self._call(request, header.consumer_group, header.client_id or "", command)

    async def _call(
        self, request: RemotingCommand, group_name: str, client_id: str, command: RemotingCommand
    ) -> RemotingCommand:
        """Ask a consumer, and answer what it answers."""
        who = f"<{group_name[:255]}> <{client_id[:255]}>"
        group = self._clients.consumer_group(group_name)
        client = None if group is None else group.find_client(client_id)
        if client is None:
            raise SystemFailedError(f"The Consumer {who} not online")
        if client.version < _KNOWS_CALLS_VERSION:
            raise SystemFailedError(
                f"The Consumer <{client_id[:255]}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT"
            )
        try:
            answer = await client.connection.request(command, _CALL_MS)
        except RequestTimeoutError as error:
            raise ConsumeTimeoutError(f"consumer {who} Timeout: {error}") from error
        except GoddardError as error:
            raise SystemFailedError(f"invoke consumer {who} Exception: {error}") from error
        reply = request.reply(answer.code, answer.remark, answer.ext_fields, answer.body)
        reply.version = answer.version
        return reply

    async def handle_offsets(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """What the consumers of a group say they have consumed."""
        header = GetConsumerStatusRequest.decode(request.fields)
        _log.info(
            "[get-consumer-status] get consumer status by %s. topic=%s, group=%s",
            connection.remote,
            header.topic[:255],
            header.group[:255],
        )
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise SystemFailedError(
                f"No Any Consumer online in the consumer group: [{header.group[:255]}]"
            )
        wanted = header.client_addr
        asked = [
            client
            for client in group.clients.values()
            if not wanted or not wanted.strip() or client.client_id == wanted
        ]
        for client in asked:
            if client.version < KNOWS_OFFSETS_VERSION:
                raise SystemFailedError(
                    f"the client does not support this feature. version={client.version}"
                )
        fields = GetConsumerStatusRequest(topic=header.topic, group=header.group).encode()
        tables = await asyncio.gather(*(self._offsets_of(client, fields) for client in asked))
        body = GroupOffsets(
            consumer_table={
                client.client_id: table
                for client, table in zip(asked, tables, strict=True)
                if table is not None
            }
        )
        return request.reply(remark=UNSET_REMARK, body=encode_body(body))

    async def _offsets_of(
        self, client: Client, fields: dict[str, str]
    ) -> dict[MessageQueue, int] | None:
        command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(fields))
        try:
            answer = await client.connection.request(command, _STATUS_MS)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            # Java's clients have objects for keys, which takes a while to read.
            offsets = await asyncio.to_thread(
                decode_body, answer.body, ClientOffsets, max_dialect_bytes=_MAX_OFFSETS_BYTES
            )
            return offsets.message_queue_table
        except GoddardError as error:
            _log.error("[get-consumer-status] %s did not tell its offsets: %s", client, error)
            return None


def _connection(client: Client) -> ConnectionBody:
    return ConnectionBody(
        client_addr=client.connection.remote,
        client_id=client.client_id,
        language=_language(client.language),
        version=client.version,
    )


def _language(code: int) -> str:
    try:
        return LanguageCode(code).name
    except ValueError:
        return LanguageCode.OTHER.name
