"""What a plan never does, whatever the trace: lose a request, or go before an answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.recording.record import Record, shortened
from epp.traffic.replay.plan import Pace, Step, plan
from epp.traffic.replay.player import Player
from epp.traffic.replay.prompts import Prompts
from epp.traffic.sessions import conversations
from epp.traffic.study.arrivals import detick
from epp.traffic.trace import Trace, trace_of

BLOCK = 16
SECONDS = st.none() | st.sampled_from([0.0, 0.25, 8.0])


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Clocks that tick and such that do not, sessions, chains of blocks, neither."""
    ticks = draw(st.booleans())
    moments = st.integers(0, 4).map(lambda i: 3.0 * i) if ticks else st.floats(0, 100)
    records = []
    for i in range(draw(st.integers(1, 14))):
        chain = draw(st.lists(st.integers(0, 2), max_size=4))
        ids = [7 * i + each if draw(st.booleans()) else each for each in chain]
        records.append(
            Record(
                at=draw(moments), input_tokens=BLOCK * len(ids) + draw(st.integers(0, 15)),
                output_tokens=5, runs=shortened(ids), id=str(i),
                session=draw(st.sampled_from(["", "a", "b"])), think=draw(SECONDS),
                duration=draw(SECONDS),
            )
        )  # fmt: skip
    return trace_of(records, BLOCK)


paces = st.builds(
    Pace,
    speed=st.sampled_from([0.5, 1.0, 4.0]),
    think_speed=st.sampled_from([0.5, 1.0, 4.0]),
    smooth=st.booleans(),
)


@settings(deadline=None)
@given(traces(), paces)
def test_every_request_is_planned_once_in_its_conversation_s_order(
    trace: Trace, pace: Pace
) -> None:
    talks = plan(trace, pace)
    planned = [step.record.id for talk in talks for step in talk.steps]
    assert sorted(planned) == sorted(record.id for record in trace.records)
    assert len({step.name for talk in talks for step in talk.steps}) == len(planned)
    place = {record.id: i for i, record in enumerate(trace.records)}
    for talk in talks:
        order = [place[step.record.id] for step in talk.steps]
        assert order == sorted(order)
        assert all(step.gap >= 0 and (step.think or 0) >= 0 for step in talk.steps)
    sessions = [{step.record.session for step in talk.steps} for talk in talks]
    assert all(len(names) == 1 for names in sessions)
    begins = [talk.begins_at for talk in talks]
    assert begins == sorted(begins)
    assert begins[0] == 0.0


@settings(deadline=None)
@given(traces(), st.sampled_from([0.5, 4.0]), st.sampled_from([0.5, 4.0]))
def test_speeds_scale_beginnings_and_think_times_and_nothing_else(
    trace: Trace, speed: float, think_speed: float
) -> None:
    plain, scaled = (
        plan(trace, pace) for pace in (Pace(), Pace(speed=speed, think_speed=think_speed))
    )
    for one, two in zip(plain, scaled, strict=True):
        assert two.begins_at == pytest.approx(one.begins_at / speed)
        for before, after in zip(one.steps, two.steps, strict=True):
            assert (before.record, before.name) == (after.record, after.name)
            assert after.gap == pytest.approx(before.gap / think_speed)
            assert (after.think is None) == (before.think is None)
            assert (after.think or 0) == pytest.approx((before.think or 0) / think_speed)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.sampled_from([0.001, 1.0, 3.0]))
def test_spreading_keeps_the_order_and_moves_nobody_out_of_his_tick(
    ticks: list[int], tick: float
) -> None:
    known = np.sort(np.array(ticks) * tick)
    spread = detick(known)
    assert len(spread) == len(known)
    assert (np.diff(spread) >= 0).all()
    assert (detick(known) == spread).all()
    distinct = np.unique(known)
    ticking = len(distinct) >= 3 and len(known) >= 2 * len(distinct)
    if not ticking:
        assert (spread == known).all()
    else:
        assert spread[0] == 0.0
        moved = (spread - spread[0]) - (known - known[0])
        widest = float(np.median(np.diff(distinct)))
        assert np.abs(moved).max() <= widest + 1e-9


@settings(deadline=None)
@given(traces(), st.integers(1, 6))
def test_a_shorter_replay_is_the_beginning_of_the_trace(trace: Trace, most: int) -> None:
    planned = {step.record.id for talk in plan(trace, Pace(most=most)) for step in talk.steps}
    assert planned == {record.id for record in trace.records[:most]}


@settings(deadline=None)
@given(
    st.floats(0, 100), st.floats(0, 100), st.none() | st.floats(0, 50), st.floats(0, 50),
)  # fmt: skip
def test_a_later_turn_is_never_due_before_the_answer(
    sent: float, took: float, think: float | None, gap: float
) -> None:
    step = Step(Record(at=0.0, input_tokens=1, output_tokens=1), "s", think, gap)
    due = Player._due(step, sent=sent, ended=sent + took)
    assert due >= sent + took
    if think is not None:
        assert due == sent + took + think
    else:
        assert due == max(sent + took, sent + gap)


@settings(deadline=None, max_examples=40)
@given(traces(), st.sampled_from(["text", "tokens"]))
def test_prompts_are_equal_exactly_as_far_as_blocks_are(trace: Trace, kind: str) -> None:
    prompts = Prompts(BLOCK, 3, kind)  # type: ignore[arg-type]
    made = [prompts.of(record, f"n{i}") for i, record in enumerate(trace.records)]
    unit = 4 if kind == "text" else 1  # of a token
    size = unit * BLOCK
    for one, first in zip(trace.records, made, strict=True):
        assert len(first) == max(one.input_tokens, 1) * unit
        for two, second in zip(trace.records, made, strict=True):
            if one is two:
                continue
            full = min(one.input_tokens, two.input_tokens) // BLOCK
            pairs = list(zip(one.hash_ids[:full], two.hash_ids[:full], strict=False))
            shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            assert first[: shared * size] == second[: shared * size]
            rests = [each.input_tokens % BLOCK for each in (one, two)]
            if min(rests) >= 6:  # their unshared ends are their own
                assert (
                    first[-rests[0] * unit :][: 6 * unit] != second[-rests[1] * unit :][: 6 * unit]
                )
            if shared < len(pairs):
                at = slice(shared * size, (shared + 1) * size)
                assert first[at] != second[at]


def test_conversations_are_those_of_the_trace() -> None:
    records = [
        Record(at=float(i), input_tokens=9, output_tokens=1, session=str(i % 3)) for i in range(9)
    ]
    trace = Trace(tuple(records), BLOCK)
    talks = plan(trace, Pace())
    wanted = [[turn.record for turn in talk] for talk in conversations(trace)]
    assert [[step.record for step in talk.steps] for talk in talks] == wanted
