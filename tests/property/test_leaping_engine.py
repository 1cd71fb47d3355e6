"""An engine that leaps over steps does what one that takes them one by one does."""

from __future__ import annotations

from collections import deque

from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.sim.engine import Engine
from epp.sim.fleet.leap import LeapingEngine
from epp.sim.model import Config, Finished, Request
from epp.sim.profiles import Timing

TIMING = Timing(base=0.01, per_decode=1e-4, per_context=1e-6, per_prefill=5e-5, per_attention=1e-9)
BLOCK = 4

requests = st.lists(
    st.tuples(
        st.floats(0.0, 2.0),  # seconds after the one before
        st.integers(1, 60),  # prompt
        st.integers(0, 50),  # output
        st.integers(0, 3),  # which prefix
    ),
    min_size=1,
    max_size=25,
)


def traffic(drawn: list[tuple[float, int, int, int]]) -> list[tuple[float, Request]]:
    at, found = 0.0, []
    for number, (gap, prompt, output, family) in enumerate(drawn):
        at += gap
        shared = min(prompt // BLOCK, 3 + family)
        whole = (prompt + output) // BLOCK
        blocks = [family * 100 + i for i in range(shared)]
        blocks += [10_000 * (number + 1) + i for i in range(shared, whole)]
        found.append((at, Request(str(number), prompt, output, tuple(blocks))))
    return found


def config(room: int, seqs: int, budget: int) -> Config:
    return Config(
        timing=TIMING, kv_blocks=room, block_tokens=BLOCK, max_num_seqs=seqs,
        max_num_batched_tokens=budget,
    )  # fmt: skip


def stepped(settings_: Config, arrivals: list[tuple[float, Request]]) -> list[Finished]:
    engine, left, now, found = Engine(settings_), deque(arrivals), 0.0, []
    while left or engine.ids():
        while left and left[0][0] <= now:
            engine.submit(left[0][1], left.popleft()[0])
        result = engine.step(now)
        if result is None:
            now = left[0][0]
            continue
        found += result.finished
        now = result.at
    return found


def leapt(settings_: Config, arrivals: list[tuple[float, Request]]) -> list[Finished]:
    engine, left, now, found = LeapingEngine(settings_), deque(arrivals), 0.0, []
    while left or engine.ids():
        while left and left[0][0] <= now:
            engine.submit(left[0][1], left.popleft()[0])
        end = engine.plan(now)
        if end is None:
            now = left[0][0]
            continue
        while left and left[0][0] < end:
            at, request = left.popleft()
            end = engine.cut(at)
            engine.submit(request, at)
        found += engine.finish(end).finished
        now = end
    return found


def story(each: Finished) -> tuple[str, int, int, int]:
    return each.id, each.output_tokens, each.cached_tokens, each.preemptions


@settings(max_examples=60, deadline=None)
@given(requests, st.integers(30, 90), st.integers(1, 8), st.integers(8, 64))
@example(
    # One that was preempted has a single token left to compute again: that costs as decoding does.
    drawn=[*[(0.0, 1, 0, 0)] * 9, (0.0, 1, 29, 0), (0.0, 33, 25, 0), (0.0, 1, 25, 0)],
    room=30,
    seqs=3,
    budget=8,
)
def test_leaping_changes_no_request_and_no_moment(
    drawn: list[tuple[float, int, int, int]], room: int, seqs: int, budget: int
):
    arrivals = traffic(drawn)
    one_by_one = stepped(config(room, seqs, budget), arrivals)
    at_once = leapt(config(room, seqs, budget), arrivals)
    assert [story(each) for each in at_once] == [story(each) for each in one_by_one]
    for ours, theirs in zip(at_once, one_by_one, strict=True):
        assert abs(ours.ended_at - theirs.ended_at) < 1e-6
        assert abs((ours.first_token_at or 0) - (theirs.first_token_at or 0)) < 1e-6


def test_a_step_under_way_is_not_cut_short():
    engine = LeapingEngine(config(90, 8, 64))
    engine.submit(Request("a", 8, 20), 0.0)
    end = engine.plan(0.0)
    assert end is not None
    engine.finish(end)
    last = engine.plan(end)
    assert last is not None
    assert last > end + 10 * TIMING.base  # 19 steps at once
    cut = engine.cut(end + 2.5 * TIMING.base)
    assert end + 2.5 * TIMING.base < cut < end + 4 * TIMING.base
