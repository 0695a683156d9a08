"""What consumers do as they join a group, and as they find their share of a topic's queues."""

import logging
from collections.abc import Iterable
from typing import Final

from goddard.client import broker_api
from goddard.client.consume.allocation import AllocationStrategy
from goddard.client.consume.assignment import member_ids
from goddard.client.consume.subscriptions import is_sql
from goddard.client.errors import BrokerNotFoundError
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.bodies_client import SubscriptionData

_logger: Final = logging.getLogger("goddard.client")


async def learn_route(session: Session, topic: str) -> None:
    """Ask where a topic lives. If it is not known yet it may be soon: that is no failure."""
    try:
        await session.refresh_route(topic)
    except GoddardError as error:
        _logger.warning("the route of %s is not known yet: %s", topic, error)
    else:
        if session.route(topic) is None:
            _logger.warning("the topic %s does not exist; it is consumed once it does", topic)


async def check_conditions(
    session: Session, group: str, wanted: Iterable[SubscriptionData]
) -> None:
    """Have brokers try the SQL92 conditions among subscriptions; BrokerError if one refuses.

    Otherwise every pull would be refused.
    """
    for each in wanted:
        if not is_sql(each):
            continue
        queues = await session.subscribe_queues(each.topic)
        found = session.find_broker(queues[0].broker_name)
        if found is None:
            raise BrokerNotFoundError(queues[0].broker_name)
        await broker_api.check_client_config(
            session,
            found[0],
            session.client_id,
            group,
            each,
            namespace=session.options.namespace or None,
            timeout_ms=session.options.api_timeout_ms,
        )


async def share_of(
    session: Session,
    group: str,
    queues: Iterable[MessageQueue],
    strategy: AllocationStrategy | None,
) -> tuple[set[MessageQueue], bool] | None:
    """Which queues of one topic are ours, and whether others of the group get the rest.

    Without a strategy all are ours, as of everybody: broadcasting. None if it is not known: no
    broker answers, the strategy fails, or the broker does not know us yet, as after its restart and
    before our next heartbeat.
    """
    if strategy is None:
        return set(queues), False
    ordered = sorted(queues)
    members = await member_ids(session, group, ordered[0].topic)
    if members is None or session.client_id not in members:
        return None
    try:
        share = strategy.allocate(group, session.client_id, ordered, sorted(members))
    except Exception:
        # The strategy may be the user's own. Queues stay where they are.
        _logger.exception("the allocation strategy %s failed", strategy.name)
        return None
    return set(share), len(members) > 1
