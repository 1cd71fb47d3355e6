"""Requests from which numbers can be told, and what engines of known numbers answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epp.recording.record import Record
from epp.sim.calibrate.fit import Numbers, corrected
from epp.sim.calibrate.measured import demand_measured
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Scenario
from epp.traffic.trace import Trace


def busy(count: int) -> list[Record]:
    """Half of them alone, with contexts of many lengths; then faster than can be answered at once."""
    gaps = [4.0 if i < count // 2 else 0.12 for i in range(count)]
    return [
        Record(
            at=sum(gaps[: i + 1]),
            input_tokens=300 + 4999 * i % 30_000 if i < count // 2 else 200 + 331 * i % 2000,
            output_tokens=100 if i < count // 2 else 20 + 137 * i % 600,
            business="long" if i % 3 else "short",
        )
        for i in range(count)
    ]


def answered(scenario: Scenario, records: Sequence[Record], numbers: Numbers) -> Trace:
    """What engines of these numbers answer."""
    asked = demand_measured(
        Trace(tuple(msgspec.structs.replace(each, ttft=1.0, duration=2.0) for each in records), 16)
    )
    outcome = run(corrected(scenario, numbers), demand=asked)
    stories = {story.talk: story for story in outcome.stories}
    return Trace(
        tuple(
            msgspec.structs.replace(each, ttft=stories[i].ttft, duration=stories[i].duration)
            for i, each in enumerate(records)
        ),
        16,
    )
