"""Compiled entries of batch requests: what is refused. Their bytes: tests/unit/spark/writing."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.core import IS_COMPILED

# With CI=true a core that is not compiled is a failure.
pytestmark = pytest.mark.skipif(
    not IS_COMPILED and os.environ.get("CI") != "true", reason="goddard.core is not compiled"
)

if IS_COMPILED:
    from goddard.core.entries import encode_entries


def entries(
    bounds: list[int], bodies: bytes, property_bounds: list[int], properties: bytes
) -> tuple[bytes, bytes, int] | None:
    numbers = np.arange(max(0, len(bounds) - 1))
    return encode_entries(
        np.array(bounds, np.int32),
        bodies,
        np.array(property_bounds, np.int32),
        properties,
        numbers,
        b"ROW\x01q-",
        b"UNIQ_KEY\x01A",
        7,
        b"",
    )


@given(
    st.lists(st.integers(-3, 12), max_size=5),
    st.binary(max_size=10),
    st.lists(st.integers(-3, 12), max_size=5),
    st.binary(max_size=10),
)
def test_offsets_outside_of_the_values_are_refused(
    bounds: list[int], bodies: bytes, property_bounds: list[int], properties: bytes
) -> None:
    def fit(offsets: list[int], size: int) -> bool:
        return offsets == sorted(offsets) and offsets[0] >= 0 and offsets[-1] <= size

    is_valid = len(bounds) > 0 and fit(bounds, len(bodies))
    if len(property_bounds) != 1:
        is_valid = is_valid and len(property_bounds) == len(bounds)
        is_valid = is_valid and fit(property_bounds, len(properties))
    if is_valid:
        assert entries(bounds, bodies, property_bounds, properties) is not None
    else:
        with pytest.raises(ValueError, match="the offsets do not fit to the values"):
            entries(bounds, bodies, property_bounds, properties)


def test_too_many_properties_are_left_to_the_caller() -> None:
    assert entries([0, 1], b"x", [0, 33_000], b"p" * 33_000) is None
