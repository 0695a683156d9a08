"""Brokers that stop sending while their connections stay open, like a frozen machine."""

import time
from collections.abc import Callable

import pytest

from goddard.testing.process import Process, wait_until
from goddard.testing.wire import query_brokers
from tests.support.java import JavaPeers

pytestmark = pytest.mark.java

# The shortest time that does not expire a running 4.9.4 broker, which registers every 10 s.
IDLE_SECONDS = 12
EXPIRY_MS = 2000
SCAN_MS = 500


@pytest.fixture(scope="module")
def name_server(start_name_server: Callable[[dict[str, str]], Process]) -> Process:
    properties = {
        "scanNotActiveBrokerInterval": str(SCAN_MS),
        "serverChannelMaxIdleTimeSeconds": str(IDLE_SECONDS),
    }
    return start_name_server(properties)


def seconds_until_gone(server: Process, broker: Process, limit: float) -> float:
    """Freeze a registered broker, and measure how long the name server still lists it."""
    wait_until(
        lambda: broker.address in _alive(server), 30, f"{broker.name} registered with {server.name}"
    )
    frozen = time.monotonic()
    broker.pause()
    wait_until(lambda: broker.address not in _alive(server), limit, f"{broker.name} expired")
    return time.monotonic() - frozen


def _alive(server: Process) -> set[str]:
    brokers = query_brokers(server.address).values()
    return {address for members in brokers for address in members.values()}


def test_broker_expires_after_its_own_timeout(name_server: Process, java540: JavaPeers) -> None:
    # Only in this mode, a 5.x broker sends its timeout, and a heartbeat every second.
    properties = {
        "enableSlaveActingMaster": "true",
        "brokerNotActiveTimeoutMillis": str(EXPIRY_MS),
    }
    with java540.start_broker(namesrv=name_server.address, properties=properties) as broker:
        seconds = seconds_until_gone(name_server, broker, limit=10)
        # Its last heartbeat is at most a second old when it freezes.
        assert EXPIRY_MS / 1000 - 1.2 < seconds < EXPIRY_MS / 1000 + SCAN_MS / 1000 + 3

        broker.resume()
        wait_until(lambda: broker.address in _alive(name_server), 30, "it is back when it wakes up")


def test_silent_connection_is_closed_and_its_broker_removed(
    name_server: Process, java494: JavaPeers
) -> None:
    with java494.start_broker(namesrv=name_server.address) as broker:
        seconds = seconds_until_gone(name_server, broker, limit=IDLE_SECONDS + 10)
        # Its last registration is at most 10 s old when it freezes.
        assert IDLE_SECONDS - 10.5 < seconds < IDLE_SECONDS + 4
