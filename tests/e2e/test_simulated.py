"""One trace, played in real time through a real Envoy and picker, and simulated: the same waits."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

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


def trace() -> Trace:
    """Twelve conversations of four turns: a first prompt of 2,048 tokens, and 512 more a turn."""
    records = [
        Record(
            at=0.5 * talk + 3.0 * turn, input_tokens=BLOCK * (32 + 8 * turn), output_tokens=4,
            runs=((1000 * (talk + 1), 32 + 8 * turn),), session=str(talk),
            think=1.5 if turn else None,
        )
        for talk in range(12) for turn in range(4)
    ]  # fmt: skip
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


def simulated(played: Trace) -> list[float]:
    pods = Pods(count=ENGINES, profile=PROFILE, speed=SPEED)
    scenario = Scenario(fleet=(pods,), traffic=Traffic(files=("-",)))
    stories = run(scenario, demand=demand_from(played, scenario.traffic, 1), seed=1).stories
    return [story.ttft for story in stories if story.ttft is not None]


def test_a_trace_waits_in_the_simulator_as_long_as_behind_a_real_envoy(tmp_path: Path) -> None:
    played = trace()
    sent = asyncio.run(asyncio.wait_for(lived(played, tmp_path), 180.0))
    assert [each.answer.error for each in sent] == [""] * 48
    real = [each.answer.ttft for each in sent if each.answer.ttft is not None]
    made = simulated(played)
    assert len(made) == len(real) == 48
    for percent in (50, 90):
        assert percentile(made, percent) == pytest.approx(percentile(real, percent), rel=0.4)
