"""What time it is elsewhere: the quickest messages of late tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.peers.offset import WINDOW, Offset


def test_the_quickest_message_tells_how_far_the_clocks_are_apart() -> None:
    offset = Offset()
    assert offset.see(100.5, 0.0) == 100.5
    assert offset.lag == 0.0
    assert offset.see(101.1, 1.0) == pytest.approx(100.1)  # it came sooner
    assert offset.see(105.1, 2.0) == pytest.approx(100.1)
    assert offset.lag == pytest.approx(3.0)


def test_what_was_long_ago_is_forgotten_since_clocks_drift() -> None:
    offset = Offset()
    offset.see(100.0, 0.0)
    late = 0.0
    for second in range(1, int(2 * WINDOW) + 2):
        late = offset.see(100.0 + second * 1.001, float(second))
    assert late > 100.0


def test_the_quickest_of_the_window_before_counts_until_this_one_is_over() -> None:
    offset = Offset()
    offset.see(100.0, 0.0)  # the quickest
    for second in range(1, int(WINDOW) + 2):  # all others take half a second more
        assert offset.see(100.5 + second, float(second)) == pytest.approx(100.0)
        assert offset.lag == pytest.approx(0.5)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=1))
def test_a_time_of_theirs_is_never_later_than_the_message_that_tells_it(
    steps: list[tuple[float, float]],
) -> None:
    offset, there = Offset(), 50.0
    for wait, way in steps:
        there += wait
        here = there + 1000.0 + way
        assert there + offset.see(here, there) <= here + 1e-9
        assert offset.lag >= 0.0
