"""Requests about the role of the broker: 907 how far slaves are, 908, 1008 become master or slave.

Of the acting-master mode: 905 the smallest id changed, 906 where to follow the master, and 60,
which a master of RocketMQ asks a slave for before it goes online: here are no timer messages, so
the answer is older than any other.

Belongs to the loop.
"""

from collections.abc import Mapping
from typing import Final

from goddard.broker.roles.roles import RoleRefusedError, Roles
from goddard.broker.settings import Settings
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import HaClient, HaConnection, HaStatus
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import (
    ChangeRoleRequest,
    ExchangeHaInfoRequest,
    ExchangeHaInfoResponse,
    ResetMasterFlushOffsetRequest,
)
from goddard.protocol.responses import InvalidParameterError, SystemFailedError
from goddard.replication.decisions import is_in_sync
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

# Seven numbers of 64 bits: times, offsets and a version.
_NO_TIMER_CHECKPOINT: Final = bytes(56)


class AdminRoles:
    """The handlers of requests about the role."""

    def __init__(self, *, settings: Settings, store: MessageStore, roles: Roles) -> None:
        self._settings = settings
        self._store = store
        self._roles = roles
        self._start_offset = store.log_max_offset

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_BROKER_HA_STATUS: self.handle_status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.handle_reset_flush_offset,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.handle_change,
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.handle_min_id,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.handle_ha_info,
            RequestCode.GET_TIMER_CHECK_POINT: self.handle_timer_checkpoint,
        }

    def handle_status(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        status = self._roles.follow_status
        if status is not None:
            client = HaClient(
                activated=status.is_following,
                master_addr=status.ha_address,
                master_flush_offset=self._roles.master_flush_offset,
                max_offset=status.end_offset,
                last_read_timestamp=status.last_received_ms,
                last_write_timestamp=status.last_reported_ms,
                transferred_byte_in_second=status.received_in_last_second,
            )
            return request.reply(body=encode_body(HaStatus(ha_client_runtime_info=client)))
        end_offset = self._store.log_max_offset
        max_gap_bytes = self._settings.current.ha_max_gap_bytes
        connections = [
            HaConnection(
                addr=f"/{slave.address}",
                diff=end_offset - slave.acknowledged_offset,
                in_sync=is_in_sync(slave.acknowledged_offset, end_offset, max_gap_bytes),
                slave_ack_offset=slave.acknowledged_offset,
                transfer_from_where=slave.next_offset,
                transferred_byte_in_second=slave.sent_in_last_second,
            )
            for slave in self._roles.slaves
        ]
        body = HaStatus(
            master=True,
            master_commit_log_max_offset=end_offset,
            ha_connection_info=connections,
            in_sync_slave_nums=sum(connection.in_sync for connection in connections),
        )
        return request.reply(body=encode_body(body))

    def handle_reset_flush_offset(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """A slave notes how far its master has flushed; nothing is cut by it."""
        header = ResetMasterFlushOffsetRequest.decode(request.fields)
        if self._settings.current.is_slave:
            self._roles.master_flush_offset = header.master_flush_offset
        return request.reply()

    async def handle_min_id(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        await self._roles.min_id_changed()
        return request.reply()

    async def handle_ha_info(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """A master says where to follow it, or a slave asks the master."""
        header = ExchangeHaInfoRequest.decode(request.fields)
        config = self._settings.current
        if header.master_ha_address is not None:
            if config.is_slave:
                await self._roles.master_announced(
                    header.master_ha_address, header.master_address or ""
                )
            return request.reply()
        if config.is_slave:
            return request.reply(ext_fields=ExchangeHaInfoResponse().encode())
        answer = ExchangeHaInfoResponse(
            master_ha_address=config.ha_address,
            master_flush_offset=self._start_offset,
            master_address=config.broker_address,
        )
        return request.reply(ext_fields=answer.encode())

    def handle_timer_checkpoint(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        return request.reply(body=_NO_TIMER_CHECKPOINT)

    async def handle_change(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = ChangeRoleRequest.decode(request.fields)
        try:
            if header.master_address == self._settings.current.broker_address:
                await self._roles.promote(header.broker_role, force=header.force)
            elif header.broker_id is None:
                raise InvalidParameterError("a slave needs an id: brokerId is missing")
            else:
                await self._roles.demote(header.broker_id, force=header.force)
        except RoleRefusedError as error:
            raise SystemFailedError(str(error)) from error
        return request.reply()
