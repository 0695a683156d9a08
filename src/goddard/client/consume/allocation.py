"""Which queues of a topic a consumer of a group gets. Pure: every member computes the same shares.

A strategy sees all queues and all client ids of the group, both sorted, and answers for one member.
The shares of the members of a group must not overlap, so all of them must use the same strategy.
A member that the broker does not list yet gets nothing.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import md5
from itertools import groupby
from typing import Protocol, TypeVar

from goddard.client.checks import check_list
from goddard.client.values import MessageQueue

_T = TypeVar("_T")


class AllocationStrategy(Protocol):
    """Gives a member its share. A class of yours needs these two members and no base class."""

    @property
    def name(self) -> str: ...

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]: ...


class Averagely:
    """Consecutive queues in equal parts; the first members get one more if they do not divide."""

    name = "AVG"

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        share, more = divmod(len(queues), len(client_ids))
        start = index * share + min(index, more)
        return list(queues[start : start + share + (index < more)])


class AveragelyByCircle:
    """Queues are assigned one by one, to each member in turn."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class ByConfig:
    """The queues that this member was configured to take, whatever the other members do."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self.queues = tuple(check_list("queues", queues, MessageQueue))

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        # Java's strategy knows a single topic; here each topic sees its own queues of the list.
        known = set(queues)
        return [queue for queue in self.queues if queue in known]


class ByMachineRoom:
    """Equal shares of the queues whose broker is called ``room@broker`` with one of the rooms."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self.rooms = frozenset(check_list("rooms", rooms, str))

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        near = [queue for queue in queues if self._is_near(queue.broker_name)]
        share, more = divmod(len(near), len(client_ids))
        result = near[index * share : (index + 1) * share]
        if index < more:
            result.append(near[share * len(client_ids) + index])
        return result

    def _is_near(self, broker_name: str) -> bool:
        room, at, broker = broker_name.partition("@")
        return bool(at and broker) and "@" not in broker and room in self.rooms


class ConsistentHash:
    """Members and queues on a ring of hashes: few queues move when a member comes or goes."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"virtual_nodes is {virtual_nodes}; it must be at least 1")
        self.virtual_nodes = virtual_nodes

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        ring = {
            _ring_hash(f"{member}-{node}"): member
            for member in client_ids
            for node in range(self.virtual_nodes)
        }
        points = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            return ring[points[bisect_left(points, _ring_hash(str(queue))) % len(points)]]

        return [queue for queue in queues if owner(queue) == client_id]


class MachineRoomNearby:
    """Another strategy within each room; rooms without members are shared by everybody.

    ``broker_room`` returns the room of a queue, ``consumer_room`` that of a client id.
    """

    def __init__(
        self,
        within: AllocationStrategy,
        broker_room: Callable[[MessageQueue], str],
        consumer_room: Callable[[str], str],
    ) -> None:
        self.within = within
        self._broker_room = broker_room
        self._consumer_room = consumer_room

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.within.name}"

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        members = _by_room(client_ids, self._consumer_room, "client id")
        rooms = _by_room(queues, self._broker_room, "queue")
        own_room = self._consumer_room(client_id)
        near = rooms.pop(own_room, [])
        result = self.within.allocate(group, client_id, near, members[own_room]) if near else []
        for room, orphans in rooms.items():
            if room not in members:
                result += self.within.allocate(group, client_id, orphans, client_ids)
        return result


def _by_room(items: Sequence[_T], room_of: Callable[[_T], str], what: str) -> dict[str, list[_T]]:
    rooms = {item: room_of(item) for item in items}
    for item, room in rooms.items():
        if not room:
            raise ValueError(f"no machine room is known for the {what} {item}")
    ordered = sorted(items, key=lambda item: rooms[item])
    return {room: list(group) for room, group in groupby(ordered, key=lambda item: rooms[item])}


def _ring_hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
