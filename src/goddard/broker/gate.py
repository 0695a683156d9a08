"""The broker's gate: a slave refuses writes, and an overloaded broker refuses messages.

Access control will be asked here, too. Belongs to the loop.
"""

import sys
from typing import Final

from goddard.broker.sending.overload import Overload
from goddard.broker.settings import BrokerConfig, Settings
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.transport.connection import Connection
from goddard.transport.rules import Rule

_NO_MESSAGES_ON_SLAVE: Final = "[REJECTREQUEST]system busy, start flow control for a while"
_NOT_ONLINE: Final = "[REJECTREQUEST]this broker is not online yet"
_LOCKS: Final = (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
_NO_WRITES_ON_SLAVE: Final = (
    "Can't modify topic or subscription group from slave broker, please execute it from master "
    "broker."
)


class BrokerGate:
    """One per broker."""

    def __init__(self, overload: Overload, settings: Settings) -> None:
        # A broker that is not online yet stores no messages.
        self.is_isolated = False
        # A slave that acts for its master locks queues for orderly consumers.
        self.is_acting = False
        self._overload = overload
        self._configure(settings.current)
        settings.add_listener(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        self._is_slave = config.is_slave

    def refusal(
        self, request: RemotingCommand, rule: Rule, connection: Connection
    ) -> RemotingCommand | None:
        if not rule.is_write:
            return None
        if self._is_slave and not (self.is_acting and request.code in _LOCKS):
            if rule.stores_messages:  # clients try another broker after this code
                return request.reply(ResponseCode.SYSTEM_BUSY, _NO_MESSAGES_ON_SLAVE)
            return request.reply(ResponseCode.SYSTEM_ERROR, _NO_WRITES_ON_SLAVE)
        if rule.stores_messages:
            if self.is_isolated:
                return request.reply(ResponseCode.SYSTEM_BUSY, _NOT_ONLINE)
            busy = self._overload.refusal()
            if busy is not None:
                return request.reply(ResponseCode.SYSTEM_BUSY, busy)
        return None

    def room(self, rule: Rule) -> int:
        if rule.is_write and (self._is_slave or self.is_isolated):
            return 0
        return self._overload.room() if rule.stores_messages else sys.maxsize
