"""Notices members of a group that want different things; belongs to the event loop.

The broker is asked what it keeps of the group before each rebalance: one that follows a new member
finds what that member told it, before we tell it ours again. A difference is worth a warning, once:
messages that it concerns are skipped for everybody.
"""

import logging
from collections.abc import Iterable
from typing import Final

from goddard.client import calls
from goddard.client.session import Session
from goddard.client.subscriptions import differences
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
        self._warned: list[str] = []

    async def check(self, own: Iterable[SubscriptionData]) -> None:
        """Warn of differences that were not there the last time."""
        wanted = list(own)
        try:
            found = await self._differences(wanted)
        except GoddardError as error:
            # It may not be allowed to ask, and consumes all the same.
            _logger.debug("the members of %s cannot be compared: %s", self._group, error)
            return
        if found and found != self._warned:
            _logger.warning(
                "the members of the group %s have different subscriptions, so that messages will "
                "be missed: %s. Give all members of a group the same subscriptions.",
                self._group,
                "; ".join(found),
            )
        self._warned = found

    async def _differences(self, own: list[SubscriptionData]) -> list[str]:
        found: list[str] = []
        for addresses in self._session.broker_addresses().values():
            address = addresses.get(0)
            if address is None:
                continue
            response = await self._session.call(
                address,
                calls.command(
                    RequestCode.GET_CONSUMER_CONNECTION_LIST,
                    GetConsumerConnectionsRequest(consumer_group=self._group),
                ),
                self._session.options.api_timeout_ms,
            )
            kept = await calls.read(response, ConsumerConnections)
            if len(kept.connection_set) > 1:
                found += differences(own, kept.subscription_table)
        return sorted(set(found))
