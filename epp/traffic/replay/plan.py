"""What is sent when: conversations of a trace, in order, faster or slower. Pure.

A later turn is never sent before the answer it follows. Where the trace tells think times, it
waits for that long after the answer; where it does not, until as long after the request before as
in the trace, or until the answer, if that is later.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from epp.recording.record import Record
from epp.traffic.sessions import Turn, conversations
from epp.traffic.study.arrivals import detick
from epp.traffic.trace import Trace


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How a trace is played."""

    speed: float = 1.0  #: times as many conversations a second
    think_speed: float = 1.0  #: think times are so many times shorter
    smooth: bool = True  #: spread requests of a clock that ticks
    most: int = 0  #: requests, from the trace's beginning; 0: all


class Step(msgspec.Struct, frozen=True):
    """One request."""

    record: Record
    name: str  #: unique in the replay
    think: float | None = None  #: seconds after the answer before; None: see `gap`
    gap: float = 0.0  #: seconds after the request before, where think is not told


class Talk(msgspec.Struct, frozen=True):
    """One conversation."""

    begins_at: float  #: seconds after the replay began
    steps: tuple[Step, ...]


def plan(trace: Trace, pace: Pace) -> list[Talk]:
    """Return the conversations in the order of their beginning."""
    records = trace.records[: pace.most or None]
    if pace.smooth:
        times = _smooth([record.at for record in records])
        records = tuple(
            msgspec.structs.replace(record, at=at)
            for record, at in zip(records, times, strict=True)
        )
    cut = Trace(records, trace.block_tokens)
    return [
        Talk(talk[0].record.at / pace.speed, tuple(_step(i, turn, pace) for turn in talk))
        for i, talk in enumerate(conversations(cut))
    ]


def _smooth(times: Sequence[float]) -> Sequence[float]:
    """Spread ticks, but leave the order, and a clock that does not tick, as they are."""
    spread: list[float] = np.asarray(detick(times)).tolist()
    return spread


def _step(talk: int, turn: Turn, pace: Pace) -> Step:
    name = f"{talk}-{turn.index}"
    if turn.parent is None:
        return Step(turn.record, name)
    before, record = turn.parent.record, turn.record
    think = record.think
    if think is None and before.duration is not None:
        think = max(record.at - before.at - before.duration, 0.0)
    gap = max(record.at - before.at, 0.0) / pace.think_speed
    return Step(record, name, None if think is None else think / pace.think_speed, gap)
