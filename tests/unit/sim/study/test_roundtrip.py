"""A trace that is recorded, fitted and made again: what caches find, and what a fleet does with it."""

from __future__ import annotations

import msgspec
import pytest

from epp.recording.record import Record
from epp.sim.fleet.scenario import Pods, Scenario, Traffic
from epp.sim.study.roundtrip import Trip, Waits, page_of, recorded, trip
from epp.traffic.model.files import preset
from epp.traffic.model.synth import Wanted, synthesize
from epp.traffic.trace import Trace

FLEET = Scenario(
    fleet=(Pods(count=8, profile="qwen3-32b-h200-tp2"),), traffic=Traffic(files=("-",))
)


def test_a_chat_recorded_fitted_and_made_again_hits_and_waits_as_the_chat_does() -> None:
    chat = synthesize(preset("chat"), Wanted(seconds=200.0))
    found = trip(chat, "chat", FLEET, (1, 2))
    assert found.requests == len(chat.records)
    assert len(found.hits) == len(found.first) == len(found.made) == 2
    assert max(found.hits) < 0.03
    for first, made in zip(found.first, found.made, strict=True):
        assert first.p50 > 0
        assert made.p50 == pytest.approx(first.p50, rel=0.15)
        low, high = found.chance
        assert made.p99 == pytest.approx(first.p99, rel=0.15) or low <= made.p99 <= high


def test_an_answer_has_ended_before_its_conversation_goes_on() -> None:
    records = tuple(
        Record(at=0.1 * turn, input_tokens=64, output_tokens=1, session="s") for turn in range(3)
    )
    tape = recorded(Trace(records, 64))
    assert [each.think for each in tape.records] == [None, pytest.approx(0.05), pytest.approx(0.05)]


def test_the_page_says_how_far_the_p99_is_off_how_it_spreads_and_how_many_requests_it_needs() -> (
    None
):
    first, made = (Waits(0.1, 2.0), Waits(0.1, 2.0)), (Waits(0.1, 2.0), Waits(0.12, 2.4))
    found = Trip("t", 1200, (0.004, 0.0213), first, made, (1.8, 2.5), 4100)
    assert page_of([found]).splitlines()[-1] == (
        "| t | 1,200 | 2 | 2.1 points | 100 ms | 110 ms | 2,000 ms (1,800 to 2,500) "
        "| 2,200 ms (2,000 to 2,400) | 10% (20%) | 4,100 requests |"
    )
    few = msgspec.structs.replace(found, needed=None)
    assert page_of([few]).splitlines()[-1].endswith("| more than it has |")
