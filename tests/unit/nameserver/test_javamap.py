"""The order of Java's HashMap; the expected lists are what OpenJDK 17 printed."""

from goddard.nameserver.javamap import in_map_order


def test_a_few_names() -> None:
    expected = ["broker-b", "x", "broker-a", "broker-golden"]
    assert in_map_order(["broker-b", "broker-a", "broker-golden", "x"]) == expected
    assert in_map_order({"DefaultCluster": 1, "broker-golden": 2}) == [
        "broker-golden",
        "DefaultCluster",
    ]


def test_more_names_than_the_first_table_holds() -> None:
    numbers = [2, 3, 0, 1, 13, 14, 8, 11, 9, 12, 6, 7, 10, 4, 5, 19, 17, 18, 15, 16]
    assert in_map_order(f"broker-{n}" for n in range(20)) == [f"broker-{n}" for n in numbers]


def test_names_outside_ascii_and_outside_the_basic_plane() -> None:
    names = ["br\u00f6k\u00e9r", "b\U0001d4b3", "\u65e5\u672c", "z"]
    assert in_map_order(names) == ["z", "\u65e5\u672c", "br\u00f6k\u00e9r", "b\U0001d4b3"]


def test_no_name_and_one_name() -> None:
    assert in_map_order([]) == []
    assert in_map_order(["x"]) == ["x"]
