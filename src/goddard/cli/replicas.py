"""Who follows whom, and how far behind: for ``goddard broker replicas`` and ``goddard up``."""

import asyncio
from typing import TYPE_CHECKING, Final

from goddard.errors import GoddardError

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin
    from goddard.client.admin.values import BrokerPlace

REPLICA_COLUMNS: Final = ("broker", "id", "address", "role", "follows", "log end", "bytes behind")


async def replica_rows(admin: "Admin", broker: str | None = None) -> list[tuple[object, ...]]:
    """A row for each broker, or for each of one name; "-" for what it does not tell."""
    places = [one for one in await admin.brokers() if broker in (None, one.name)]
    ends = await asyncio.gather(*(_log_end(admin, one) for one in places))
    followed = await asyncio.gather(*(_followed(admin, one) for one in places))
    master_ends = {one.name: end for one, end in zip(places, ends, strict=True) if one.is_master}
    rows: list[tuple[object, ...]] = []
    for place, end, follows in zip(places, ends, followed, strict=True):
        master_end = None if place.is_master else master_ends.get(place.name)
        behind = None if end is None or master_end is None else max(0, master_end - end)
        role = "master" if place.is_master else "slave"
        rows.append((place.name, place.broker_id, place.address, role, follows, end, behind))
    return rows


async def _log_end(admin: "Admin", place: "BrokerPlace") -> int | None:
    try:
        return int((await admin.broker_runtime(place.address))["commitLogMaxOffset"])
    except (GoddardError, KeyError, ValueError):
        return None


async def _followed(admin: "Admin", place: "BrokerPlace") -> str | None:
    """The HA address of the master, if a slave follows it now."""
    if place.is_master:
        return None
    try:
        client = (await admin.ha_status(place.address)).ha_client_runtime_info
    except GoddardError:  # 4.9 does not know this request
        return None
    return client.master_addr if client.activated else None
