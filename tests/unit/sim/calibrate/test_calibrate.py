"""Engines are made as fast as measured ones: search, fit, capacity."""

from __future__ import annotations

import msgspec
import pytest

from epp.recording.record import Record
from epp.sim.calibrate.capacity import Card, ModelSize, kv_tokens
from epp.sim.calibrate.fit import Numbers, corrected, fit
from epp.sim.calibrate.measured import demand_measured
from epp.sim.calibrate.quality import quality
from epp.sim.calibrate.search import least, least_squares
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import scenario_of
from epp.traffic.trace import Trace, TraceError

SCENARIO = scenario_of(
    "fleet: [{count: 1, profile: llama-3.1-8b-h100}]\npolicy: random\ntraffic: {preset: chat}"
)


def trace(count: int) -> Trace:
    records = tuple(
        Record(at=0.05 * i, input_tokens=500 + 300 * (i % 7), output_tokens=20 + i % 11,
               ttft=1.0, duration=2.0)
        for i in range(count)
    )  # fmt: skip
    return Trace(records, 64)


def measured(numbers: Numbers, count: int = 40) -> Trace:
    """What engines with these numbers would have been measured to do."""
    asked = demand_measured(trace(count))
    outcome = run(corrected(SCENARIO, numbers), demand=asked)
    by_id = {story.talk: story for story in outcome.stories}
    records = tuple(
        msgspec.structs.replace(record, ttft=by_id[i].ttft, duration=by_id[i].duration)
        for i, record in enumerate(asked.trace.records)
    )
    return Trace(records, 64)


def test_the_search_finds_the_bottom_of_a_bowl():
    found = least(lambda p: (p[0] - 3) ** 2 + 4 * (p[1] + 1) ** 2, (0.0, 0.0), (1.0, 1.0), 120)
    assert found == pytest.approx((3.0, -1.0), abs=0.05)


def test_least_squares_find_what_a_curve_was_drawn_with_in_few_calls():
    """A power and its factor; and a third number that changes nothing is left where it was."""
    asked: list[tuple[float, ...]] = []

    def misses(point: tuple[float, ...]) -> list[float]:
        asked.append(point)
        return [point[0] * x ** point[1] - 3 * x**1.5 for x in (0.5, 1.0, 2.0, 3.0)]

    assert least_squares(misses, (1.0, 1.0, 7.0), 60) == pytest.approx((3.0, 1.5, 7.0), rel=1e-3)
    assert len(asked) <= 75


def test_least_squares_stay_above_zero():
    found = least_squares(lambda point: [point[0] + 5, point[1] - 2], (1.0, 1.0), 40)
    assert 0 < found[0] < 0.01
    assert found[1] == pytest.approx(2.0)


def test_engines_are_made_as_slow_as_they_were_measured():
    demand = demand_measured(measured(Numbers(1.6, 1.4, 0.003, 0.0001, 0.02)))
    found = fit(SCENARIO, demand, calls=40)
    assert found.before.loss > 0.15
    assert found.after.loss < found.before.loss / 4
    assert abs(found.after.all.e2e_p50) < 0.05
    again = quality(corrected(SCENARIO, found.numbers), demand)
    assert again == found.after  # the numbers that are told are those that were tried


def test_a_trace_without_times_is_refused():
    with pytest.raises(TraceError, match="2 of 2 requests tell TTFT"):
        demand_measured(trace(2))


@pytest.mark.parametrize(
    ("model", "card", "reported"),
    [
        # What vLLM reported for Llama-3.1-70B on four H100, and Yi-34B on two.
        (ModelSize(weights_gib=131.5, layers=80, kv_heads=8), Card(count=4), 486_800),
        (ModelSize(weights_gib=64.05, layers=60, kv_heads=8), Card(count=2), 332_688),
    ],
)
def test_capacities_are_close_to_reported_ones(model: ModelSize, card: Card, reported: int):
    assert kv_tokens(model, card) == pytest.approx(reported, rel=0.01)


def test_weights_that_leave_no_room_leave_no_tokens():
    assert kv_tokens(ModelSize(weights_gib=200, layers=80, kv_heads=8), Card()) == 0
