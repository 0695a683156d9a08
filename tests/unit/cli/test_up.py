"""``goddard up``: its options, and the arguments of each broker."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from goddard.cli.commands import goddard
from goddard.cli.up import ClusterOptions, broker_arguments, broker_names


def arguments(number: int, host: str = "127.0.0.1", broker_port: int = 10911) -> dict[str, str]:
    """The options of one broker."""
    options = ClusterOptions(
        brokers=3, data=Path("/data"), host=host, port=9876, broker_port=broker_port
    )
    *pairs, last = broker_arguments(options, "broker-b", number, 9876)
    assert last == "--with-parent"
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def test_broker_names() -> None:
    assert broker_names(3) == ["broker-a", "broker-b", "broker-c"]
    assert broker_names(26)[-1] == "broker-z"


def test_each_broker_has_its_own_folder_and_port() -> None:
    assert arguments(1) == {
        "--name": "broker-b",
        "--host": "127.0.0.1",
        "--port": "10921",
        "--home": "/data/broker-b",
        "--data": "/data/broker-b/store",
        "--namesrv": "127.0.0.1:9876",
    }


def test_brokers_share_a_file_of_properties() -> None:
    options = ClusterOptions(
        brokers=2, data=Path("/data"), host="h", port=1, broker_port=0, config=Path("/broker.conf")
    )
    for number, name in enumerate(broker_names(2)):
        given = broker_arguments(options, name, number, 1)
        assert given[:4] == ["--configFile", "/broker.conf", "--name", name]


def test_port_zero_means_a_free_port_for_each_broker() -> None:
    assert {arguments(number, broker_port=0)["--port"] for number in range(3)} == {"0"}


def test_a_cluster_on_all_addresses_connects_through_loopback() -> None:
    given = arguments(0, host="0.0.0.0")
    assert given["--host"] == "0.0.0.0"
    assert given["--namesrv"] == "127.0.0.1:9876"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--brokers", "0"],
        ["--brokers", "27"],
        ["--brokers", "many"],
        ["--port", "70000"],
        ["--port", "-1"],
        ["--broker-port", "65500"],
        ["nonsense"],
    ],
)
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    result = CliRunner().invoke(goddard, ["up", *wrong])
    assert result.exit_code == 2
    assert wrong[-1] in result.output


def test_data_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = CliRunner().invoke(goddard, ["up", "--data", str(file)])
    assert result.exit_code == 2
    assert "is a file" in result.output


def test_an_ipv6_address_has_brackets_before_a_port() -> None:
    assert arguments(0, host="::1")["--namesrv"] == "[::1]:9876"
