"""What commands ask about groups: who has them, who is online, how far they have consumed."""

import asyncio
from typing import TYPE_CHECKING

from goddard.client.admin.values import GroupProgress
from goddard.client.errors import BrokerError, NoRouteError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.names import SYSTEM_GROUPS, is_system_group

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin
    from goddard.protocol.bodies_admin import ConsumerConnections


def is_own_group(group: str) -> bool:
    """Whether a group belongs to RocketMQ itself."""
    return group in SYSTEM_GROUPS or is_system_group(group) or group.startswith("CID_ONSAPI")


async def online_consumers(admin: "Admin", group: str) -> "ConsumerConnections | None":
    """The online consumers of a group; None if there are none."""
    try:
        return await admin.consumer_connections(group)
    except NoRouteError:
        return None
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None


async def _brokers_with(admin: "Admin", group: str, cluster: str | None) -> list[str]:
    """The names of the brokers that have a group."""
    masters = [place for place in await admin.brokers(cluster=cluster) if place.is_master]
    tables = await asyncio.gather(*(admin.groups(broker=place.address) for place in masters))
    return [place.name for place, known in zip(masters, tables, strict=True) if group in known]


async def known_brokers(admin: "Admin", group: str, cluster: str | None) -> list[str]:
    """The brokers that have a group; an error with the similar name if there are none."""
    names = await _brokers_with(admin, group, cluster)
    if not names:
        raise NoRouteError(f"%RETRY%{group}")
    return names


async def progress_of(admin: "Admin", group: str, topic: str | None = None) -> GroupProgress:
    """The progress of a group; also of one whose consumers were never online."""
    try:
        return await admin.group_progress(group, topic=topic)
    except NoRouteError:
        names = await known_brokers(admin, group, None)
    found = await asyncio.gather(
        *(admin.group_progress(group, topic=topic, broker=name) for name in names)
    )
    queues = {queue: at for one in found for queue, at in one.queues.items()}
    return GroupProgress(sum(one.consume_tps for one in found), queues)
