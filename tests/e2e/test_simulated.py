"""One trace, played in real time through a real Envoy and picker, and simulated: the same waits."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from statistics import fmean

import pytest

from epp.gateway.options import GatewayOptions
from epp.local import fleet
from epp.recording.record import Record
from epp.sim.demand.traffic import demand_from
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Pods, Scenario, Traffic
from epp.traffic.figures import percentile
from epp.traffic.replay.ask import Target
from epp.traffic.replay.plan import Pace, plan
from epp.traffic.replay.player import Player, Sent
from epp.traffic.replay.prompts import Prompts
from epp.traffic.trace import Trace

pytestmark = pytest.mark.e2e

MODEL = "m"
BLOCK = 64
ENGINES = 3
PROFILE, SPEED = "qwen3-32b-h200-tp2", 0.25  #: so slow that a busy machine is not what is measured
SEEDS = (1, 2, 3)
NEAR = 0.15
TRIES = 2  #: of the real side: once more if something else held up the machine


def trace() -> Trace:
    """Twenty-four conversations of three turns: first prompts of 1,024 to 2,496 tokens, then more.

    Engines are idle for half of the time: where they queue for long, which conversation met which
    decides, and percentiles of so few requests differ by a quarter between seeds.
    """
    records = []
    for talk in range(24):
        blocks = 16 + talk * 11 % 24
        for turn in range(3):
            blocks += 4 + (5 * talk + 3 * turn) % 9 if turn else 0
            records.append(
                Record(
                    at=0.6 * talk + 3.0 * turn, input_tokens=BLOCK * blocks, output_tokens=4,
                    runs=((1000 * (talk + 1), blocks),), session=str(talk),
                    think=1.5 if turn else None,
                )
            )  # fmt: skip
    return Trace(tuple(sorted(records, key=lambda record: record.at)), BLOCK)


async def lived(played: Trace, folder: Path) -> list[Sent]:
    sent: list[Sent] = []
    async with contextlib.AsyncExitStack() as stack:
        engines = await stack.enter_async_context(
            fleet.engines(
                ENGINES, folder, f"--models={MODEL}", f"--profile={PROFILE}", f"--speed={SPEED}"
            )
        )
        picker = await stack.enter_async_context(fleet.picker(engines, folder))
        options = GatewayOptions(
            picker_host="127.0.0.1", picker_port=picker.ports.grpc, picker_tls=False
        )
        gateway = await stack.enter_async_context(fleet.gateway(options, folder))
        target = Target(url=gateway.url, model=MODEL, timeout=60.0)
        await Player(target, Prompts(BLOCK, 1, "text"), sent.append).open_loop(plan(played, Pace()))
    return sent


def real(played: Trace, folder: Path) -> tuple[float, float]:
    sent = asyncio.run(asyncio.wait_for(lived(played, folder), 180.0))
    assert [each.answer.error for each in sent] == [""] * len(played.records)
    waits = [each.answer.ttft for each in sent if each.answer.ttft is not None]
    assert len(waits) == len(played.records)
    return percentile(waits, 50), percentile(waits, 90)


def simulated(played: Trace) -> tuple[float, float]:
    """Return p50 and p90, means over the seeds."""
    pods = Pods(count=ENGINES, profile=PROFILE, speed=SPEED)
    scenario = Scenario(fleet=(pods,), traffic=Traffic(files=("-",)))
    found = []
    for seed in SEEDS:
        stories = run(
            scenario, demand=demand_from(played, scenario.traffic, seed), seed=seed
        ).stories
        waits = [story.ttft for story in stories if story.ttft is not None]
        assert len(waits) == len(played.records)
        found.append((percentile(waits, 50), percentile(waits, 90)))
    return fmean(p50 for p50, _ in found), fmean(p90 for _, p90 in found)


def test_a_trace_waits_in_the_simulator_as_long_as_behind_a_real_envoy(tmp_path: Path) -> None:
    played = trace()
    made = pytest.approx(simulated(played), rel=NEAR)
    measured = []
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        measured.append(real(played, folder))
        if measured[-1] == made:
            return
    pytest.fail(f"p50 and p90 of TTFT: simulated {made}, measured {measured}")
