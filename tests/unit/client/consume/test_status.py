"""What a consumer tells tools about itself."""

from goddard.client.consume.status import ConsumeRates
from goddard.protocol.bodies_client import ConsumeStatus


def test_rates_of_a_topic() -> None:
    rates = ConsumeRates()
    for second in range(10):
        rates.pulled("T", 20, 4, second * 1000)
        rates.consumed("T", 20, 5, 40, second * 1000)
    status = rates.status("T", 10_000)
    assert (status.pull_rt, status.pull_tps) == (4.0, 20.0)
    assert (status.consume_rt, status.consume_ok_tps, status.consume_failed_tps) == (2.0, 15.0, 5.0)
    assert status.consume_failed_msgs == 50


def test_rates_are_of_the_last_minute() -> None:
    rates = ConsumeRates()
    rates.consumed("T", 1000, 10, 1, 0)
    assert rates.status("T", 90_000) == ConsumeStatus(consume_failed_msgs=10)
    rates.consumed("T", 30, 0, 1, 90_000)
    assert rates.status("T", 91_000).consume_ok_tps == 30.0


def test_an_unknown_topic_has_none() -> None:
    assert ConsumeRates().status("T", 5) == ConsumeStatus()
