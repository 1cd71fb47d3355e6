"""What holds of simulated time and figures, whatever the numbers."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.sim.calibrate.search import least
from epp.sim.demand.traffic import hurried
from epp.sim.fleet.begun import begin
from epp.sim.fleet.scenario import Burst
from epp.sim.fleet.timeline import Timeline, VirtualLoop
from epp.sim.report.figures import spread_of
from epp.sim.report.seeds import interval

seconds = st.floats(0.0, 1e4)
bursts = st.lists(
    st.builds(Burst, at=seconds, seconds=st.floats(0.1, 100), times=st.floats(0.1, 20)), max_size=3
)


@given(bursts, seconds, seconds)
def test_bursts_keep_the_order_of_what_happens(each: list[Burst], one: float, other: float):
    first, last = sorted((one, other))
    assert hurried(first, each) <= hurried(last, each) + 1e-6


@given(bursts, seconds)
def test_nothing_changes_before_the_first_burst(each: list[Burst], at: float):
    if all(at <= burst.at for burst in each):
        assert hurried(at, each) == at


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9)), max_size=40))
def test_events_happen_in_order_and_ties_in_the_order_told(events: list[tuple[float, int]]):
    timeline, happened = Timeline(), []
    for number, (at, _) in enumerate(events):
        timeline.at(at, lambda n=number: happened.append((timeline.now(), n)))
    while timeline.next_at < float("inf"):
        timeline.step()
    assert happened == sorted((at, number) for number, (at, _) in enumerate(events))


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=8))
def test_coroutines_sleep_in_virtual_time_beside_events(naps: list[float]):
    timeline, woke = Timeline(), []
    loop = VirtualLoop(timeline)

    async def nap(length: float) -> float:
        await asyncio.sleep(length)
        return timeline.now()

    for length in naps:
        timeline.at(5.0, lambda n=length: begin(nap(n), loop, woke.append))
    loop.run()
    loop.close()
    assert len(woke) == len(naps)
    assert all(abs(a - b) < 1e-3 for a, b in zip(woke, sorted(5.0 + n for n in naps), strict=True))


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_rise_and_lie_within_the_values(values: list[float]):
    found = spread_of(values)
    assert found is not None
    assert min(values) <= found.p50 <= found.p90 <= found.p95 <= found.p99 <= max(values)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_an_interval_holds_its_mean(values: list[float]):
    found = interval(values)
    assert found.low <= found.mean <= found.high


@settings(max_examples=20)
@given(st.floats(-3, 3), st.floats(-3, 3))
def test_a_search_never_ends_worse_than_it_began(x: float, y: float):
    def loss(point: tuple[float, ...]) -> float:
        return abs(point[0] - x) + (point[1] - y) ** 2

    assert loss(least(loss, (0.0, 0.0), (0.5, 0.5), 40)) <= loss((0.0, 0.0))
