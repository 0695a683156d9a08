"""The shares of a group's members, against what RocketMQ's own strategies answer."""

import pytest

from goddard.client.consume.allocation import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
)
from goddard.client.values import MessageQueue

SIZES = ((8, 3), (8, 5), (4, 3), (10, 4), (2, 3))


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, number) for number in range(count)]


def members(count: int) -> list[str]:
    return [f"c{number}" for number in range(1, count + 1)]


def shares(
    strategy: AllocationStrategy, owned: list[MessageQueue], clients: list[str]
) -> list[list[MessageQueue]]:
    return [strategy.allocate("group", client, owned, clients) for client in clients]


def digits(found: list[list[MessageQueue]]) -> str:
    return "·".join("".join(str(queue.queue_id) for queue in share) or "-" for share in found)


@pytest.mark.parametrize(
    ("strategy", "broker", "expected"),
    [
        (
            Averagely(),
            "broker-a",
            ("012·345·67", "01·23·45·6·7", "01·2·3", "012·345·67·89", "0·1·-"),
        ),
        (
            AveragelyByCircle(),
            "broker-a",
            ("036·147·25", "05·16·27·3·4", "03·1·2", "048·159·26·37", "0·1·-"),
        ),
        (
            ByMachineRoom({"room1"}),
            "room1@broker-a",
            ("016·237·45", "05·16·27·3·4", "03·1·2", "018·239·45·67", "0·1·-"),
        ),
    ],
    ids=["averagely", "circle", "machine-room"],
)
def test_the_table_of_shares(
    strategy: AllocationStrategy, broker: str, expected: tuple[str, ...]
) -> None:
    found = [
        digits(shares(strategy, queues(count, broker), members(clients)))
        for count, clients in SIZES
    ]
    assert tuple(found) == expected


def test_averagely_of_sixteen_and_of_more_members_than_queues() -> None:
    found = shares(Averagely(), queues(16), members(3))
    assert [[queue.queue_id for queue in share] for share in found] == [
        list(range(6)),
        list(range(6, 11)),
        list(range(11, 16)),
    ]
    assert digits(shares(Averagely(), queues(4), members(8))) == "0·1·2·3·-·-·-·-"
    assert digits(shares(AveragelyByCircle(), queues(8), members(9))) == "0·1·2·3·4·5·6·7·-"


def test_consistent_hash_puts_queues_where_java_does() -> None:
    assert digits(shares(ConsistentHash(), queues(8), members(3))) == "0457·16·23"
    assert digits(shares(ConsistentHash(), queues(8), members(2))) == "03457·126"


@pytest.mark.parametrize("strategy", [Averagely(), AveragelyByCircle(), ConsistentHash()])
@pytest.mark.parametrize("queue_count", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("client_count", [1, 2, 3, 8, 40])
def test_every_queue_is_given_exactly_once(
    strategy: AllocationStrategy, queue_count: int, client_count: int
) -> None:
    owned = queues(queue_count)
    found = shares(strategy, owned, sorted(members(client_count)))
    assert sorted(queue for share in found for queue in share) == owned


@pytest.mark.parametrize(
    "strategy",
    [
        Averagely(),
        AveragelyByCircle(),
        ByMachineRoom({"room1"}),
        ConsistentHash(),
        MachineRoomNearby(Averagely(), lambda queue: "room", lambda client_id: "room"),
    ],
)
def test_a_member_that_is_not_listed_gets_nothing(strategy: AllocationStrategy) -> None:
    owned = queues(4, "room1@broker-a")
    assert strategy.allocate("group", "unlisted", owned, members(2)) == []
    assert strategy.allocate("group", "unlisted", owned, []) == []
    assert strategy.allocate("group", "c1", [], members(2)) == []


def test_by_config_takes_its_list_as_far_as_the_topic_has_it() -> None:
    chosen = [MessageQueue("TopicTest", "broker-a", 1), MessageQueue("Other", "broker-a", 0)]
    strategy = ByConfig(chosen)
    assert strategy.allocate("group", "c1", queues(4), members(2)) == chosen[:1]
    assert strategy.allocate("group", "c1", queues(1), members(2)) == []


def test_machine_room_leaves_out_other_rooms_and_plain_names() -> None:
    owned = [
        *queues(2, "broker-a"),
        *queues(2, "room1@broker-b"),
        *queues(2, "room2@broker-c"),
        *queues(2, "room1@broker@d"),
    ]
    assert ByMachineRoom({"room1"}).allocate("group", "c1", owned, ["c1"]) == owned[2:4]


def room_of_broker(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.partition("-")[0]


def test_nearby_prefers_the_own_room_and_shares_rooms_without_members() -> None:
    strategy = MachineRoomNearby(Averagely(), room_of_broker, room_of_client)
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    here, there, lonely = (queues(4, f"{room}@broker") for room in ("r1", "r2", "r3"))
    clients = ["r1-a", "r1-b", "r2-a"]
    found = dict(zip(clients, shares(strategy, here + there + lonely, clients), strict=True))
    assert found == {
        "r1-a": here[:2] + lonely[:2],
        "r1-b": here[2:] + lonely[2:3],
        "r2-a": there + lonely[3:],
    }


def test_nearby_needs_to_know_every_room() -> None:
    nowhere = MachineRoomNearby(Averagely(), lambda queue: "", room_of_client)
    with pytest.raises(ValueError, match="no machine room is known for the queue"):
        nowhere.allocate("group", "r1-a", queues(1), ["r1-a"])


def test_a_ring_needs_points() -> None:
    with pytest.raises(ValueError, match="virtual_nodes is 0"):
        ConsistentHash(0)
