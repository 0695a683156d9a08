"""Notices members of a group that want different things; belongs to the event loop.

The broker is asked what it keeps of the group before each rebalance: one that follows a new member
finds what that member told it, before we tell it ours again. A difference is worth a warning, once:
messages that it concerns are skipped for everybody.
"""

import logging
from collections.abc import Iterable
from typing import Final

from goddard.client import broker_api
from goddard.client.consume.subscriptions import differences
from goddard.client.session import Session
from goddard.errors import GoddardError
from goddard.protocol.bodies_admin import ConsumerConnections
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import RequestCode
from goddard.protocol.headers_admin import GetConsumerConnectionsRequest

_logger: Final = logging.getLogger("goddard.client")


class GroupCheck:
    """Compares a consumer's subscriptions with its group's."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        # Each once: whose subscriptions the broker has may change with every heartbeat.
        self._warned: set[str] = set()

    async def check(self, own: Iterable[SubscriptionData]) -> None:
        """Warn of differences that were not there before."""
        found = await self._differences(list(own)) - self._warned
        if found:
            self._warned |= found
            _logger.warning(
                "the members of the group %s have different subscriptions, so that messages will "
                "be missed: %s. Give all members of a group the same subscriptions.",
                self._group,
                "; ".join(sorted(found)),
            )

    async def _differences(self, own: list[SubscriptionData]) -> set[str]:
        found: set[str] = set()
        for addresses in self._session.broker_addresses().values():
            address = addresses.get(0)
            if address is None:
                continue
            try:
                kept = await self._ask(address)
            except GoddardError as error:
                # The broker may not know the group yet, or not tell.
                _logger.debug("%s tells nothing about %s: %s", address, self._group, error)
                continue
            if len(kept.connection_set) > 1:
                found |= set(differences(own, kept.subscription_table))
        return found

    async def _ask(self, address: str) -> ConsumerConnections:
        command = broker_api.command(
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionsRequest(consumer_group=self._group),
        )
        timeout_ms = self._session.options.api_timeout_ms
        return await broker_api.read(
            await self._session.call(address, command, timeout_ms), ConsumerConnections
        )
