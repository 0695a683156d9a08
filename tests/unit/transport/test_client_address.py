import pytest

from goddard.errors import ConfigError
from goddard.transport.client import split_address
from goddard.transport.connection import address_text


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" broker-a.example:1 ", ("broker-a.example", 1)),
        ("[::1]:9876", ("::1", 9876)),
        ("fe80::1:9876", ("fe80::1", 9876)),
    ],
)
def test_addresses(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["", "host", ":9876", "host:", "host:x", "h:0", "h:65536"])
def test_invalid_addresses_are_rejected(address: str) -> None:
    with pytest.raises(ConfigError):
        split_address(address)


def test_socket_names() -> None:
    assert address_text(("10.0.0.1", 80)) == "10.0.0.1:80"
    assert address_text(("::1", 80, 0, 0)) == "[::1]:80"
    assert address_text(None) == "unknown"
