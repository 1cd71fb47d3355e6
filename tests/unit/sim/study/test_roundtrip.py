"""A trace that is recorded, fitted and made again: what caches find, and what a fleet does with it."""

from __future__ import annotations

import pytest

from epp.recording.record import Record
from epp.sim.fleet.scenario import Pods, Scenario, Traffic
from epp.sim.study.roundtrip import Trip, page_of, recorded, trip
from epp.traffic.model.files import preset
from epp.traffic.model.synth import Wanted, synthesize
from epp.traffic.trace import Trace

FLEET = Scenario(
    fleet=(Pods(count=8, profile="qwen3-32b-h200-tp2"),), traffic=Traffic(files=("-",))
)


def test_a_chat_recorded_fitted_and_made_again_hits_and_waits_as_the_chat_does() -> None:
    chat = synthesize(preset("chat"), Wanted(seconds=200.0))
    found = trip(chat, "chat", FLEET, (1,))
    assert found.requests == len(chat.records)
    assert found.worst_hit < 0.03
    assert found.first[0] > 0
    assert found.made[0] == pytest.approx(found.first[0], rel=0.15)
    assert found.p99_error < 0.15 or found.chance[0] <= found.made[1] <= found.chance[1]


def test_an_answer_has_ended_before_its_conversation_goes_on() -> None:
    records = tuple(
        Record(at=0.1 * turn, input_tokens=64, output_tokens=1, session="s") for turn in range(3)
    )
    tape = recorded(Trace(records, 64))
    assert [each.think for each in tape.records] == [None, pytest.approx(0.05), pytest.approx(0.05)]


def test_the_page_says_how_far_the_p99_is_off() -> None:
    line = page_of([Trip("t", 1200, 0.0213, (0.1, 2.0), (0.11, 2.2), (1.8, 2.5))]).splitlines()[-1]
    assert (
        line
        == "| t | 1,200 | 2.1 points | 100 ms | 2,000 ms (1,800 ms to 2,500 ms) | 110 ms | 2,200 ms | 10% |"
    )
