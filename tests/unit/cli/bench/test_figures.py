"""``goddard bench``: percentiles, rates and charts."""

import random

import pytest

from goddard.cli.bench.figures import Figures, Latencies, Second, sparkline


def test_percentiles_are_within_a_tenth() -> None:
    latencies = Latencies()
    numbers = random.Random(1)
    values = sorted(numbers.lognormvariate(1.0, 1.0) for _ in range(10_000))
    for value in values:
        latencies.add(value)
    for share in (0.5, 0.9, 0.99, 0.999):
        exact = values[int(share * len(values)) - 1]
        assert latencies.percentile(share) == pytest.approx(exact, rel=0.1)
    assert latencies.percentile(1.0) == values[-1]
    assert latencies.percentile(0.0) == pytest.approx(values[0], rel=0.1)


def test_without_a_call_there_is_no_percentile() -> None:
    latencies = Latencies()
    assert latencies.percentile(0.5) is None
    assert latencies.bars() == []


def test_one_call() -> None:
    latencies = Latencies()
    latencies.add(0.2)
    assert [latencies.percentile(share) for share in (0.5, 0.999)] == [0.2, 0.2]


def test_values_beyond_the_buckets_are_kept() -> None:
    latencies = Latencies()
    for value in (0.0, 1e12):
        latencies.add(value)
    assert latencies.percentile(0.999) == 1e12
    assert latencies.percentile(0.5) == pytest.approx(0.001, rel=0.1)


def test_bars_add_up_and_fit_on_a_screen() -> None:
    latencies = Latencies()
    for exponent in range(20):
        for _ in range(exponent + 1):
            latencies.add(2.0**exponent)
    bars = latencies.bars()
    assert len(bars) <= 12
    assert max(len(bar) for bar in bars) <= 60
    assert sum(float(bar.split()[-2]) for bar in bars) == pytest.approx(100, abs=1)


def test_a_sparkline_is_relative_to_the_largest_value() -> None:
    assert sparkline([0, 4, 8]) == " ▄█"
    assert sparkline([]) == sparkline([0, 0]) == ""


def test_each_second_has_what_came_since_the_last() -> None:
    figures = Figures()
    figures.add(10, 100)
    assert figures.end_second() == Second(10, 100)
    figures.add(5, 50)
    assert figures.end_second() == Second(5, 50)
    assert (figures.messages, figures.bytes) == (15, 150)
