"""Virtual time along real time: late loops, and aborts."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from epp.sim import pacer
from epp.sim.engine import Engine
from epp.sim.model import Config, Request, StepResult
from epp.sim.pacer import Pacer
from epp.sim.profiles import Timing

#: A prompt of one token takes 10 ms, each further token 10 ms.
CONFIG = Config(Timing(0.010, 0.0, 0.0, 0.0, 0.0), kv_blocks=1000)
BOUND_SECONDS = 10.0


def play(tokens: int, *, speed: float, late: float) -> tuple[list[StepResult], float]:
    """Make ``tokens`` tokens while the loop is blocked for ``late`` real seconds at the third."""

    async def main() -> tuple[list[StepResult], float]:
        steps: list[StepResult] = []
        done = asyncio.Event()

        def on_step(step: StepResult) -> None:
            steps.append(step)
            if len(steps) == 3:
                time.sleep(late)
            if step.finished:
                done.set()

        it = Pacer(Engine(CONFIG), speed=speed, on_step=on_step)
        began = time.monotonic()
        it.submit(Request("a", 1, tokens))
        async with asyncio.timeout(BOUND_SECONDS):
            await done.wait()
        took = time.monotonic() - began
        it.stop()
        return steps, took

    return asyncio.run(main())


def test_a_late_loop_catches_up_without_drift() -> None:
    steps, took = play(60, speed=1.0, late=0.5)
    gaps = [b.at - a.at for a, b in itertools.pairwise(steps)]
    assert gaps == pytest.approx([0.010] * 59)
    # 60 steps of 10 ms, the 500 ms made up for; had they been added, it were 1.1 s
    assert 0.59 <= took < 1.0


def test_a_loop_that_was_stopped_too_long_starts_again_from_now() -> None:
    steps, _ = play(5, speed=1.0, late=pacer.PATIENCE + 0.05)
    gaps = [b.at - a.at for a, b in itertools.pairwise(steps)]
    assert gaps[2] > pacer.PATIENCE
    assert [gaps[0], gaps[1], gaps[3]] == pytest.approx([0.010] * 3)


def test_speed_divides_real_time() -> None:
    steps, took = play(100, speed=20.0, late=0.0)
    assert steps[-1].at - steps[0].at == pytest.approx(0.99)
    assert took < 0.5  # a second at life's speed


def test_requests_of_one_turn_of_the_loop_share_a_step() -> None:
    async def main() -> list[StepResult]:
        steps: list[StepResult] = []
        it = Pacer(Engine(CONFIG), speed=100.0, on_step=steps.append)
        it.submit(Request("a", 1, 1))
        it.submit(Request("b", 1, 1))
        async with asyncio.timeout(BOUND_SECONDS):
            while not steps:
                await asyncio.sleep(0)
        return steps

    assert [list(step.emitted) for step in asyncio.run(main())] == [["a", "b"]]
