"""A trace that is recorded: what a cache would find in the recording is what it finds in the trace."""

from __future__ import annotations

import pytest

from epp.recording.keys import Names
from epp.recording.notes import Fact, Notes
from epp.recording.record import record_of
from epp.traffic.model.files import preset
from epp.traffic.model.fit import fit
from epp.traffic.model.synth import Wanted, like, synthesize
from epp.traffic.study.compare import compare
from epp.traffic.trace import Trace, full_blocks, trace_of


def recorded(trace: Trace, least: int) -> Trace:
    """Record each request of ``trace`` as if it had been served; its blocks' ids are hashes."""
    notes = Notes(Names(b"k" * 32, 1e9), least)
    facts = (
        Fact(at=record.at, ended_at=record.at + 0.5, input_tokens=record.input_tokens,
             output_tokens=record.output_tokens, chain=full_blocks(record, trace.block_tokens),
             block_tokens=trace.block_tokens, session=record.session)
        for record in trace.records
    )  # fmt: skip
    return trace_of([record_of(notes.line(fact)) for fact in facts], trace.block_tokens)


@pytest.fixture(scope="module")
def chat() -> Trace:
    return synthesize(preset("chat"), Wanted(seconds=900.0))


def test_told_of_all_that_is_shared_nothing_is_lost(chat: Trace) -> None:
    found = compare(chat, recorded(chat, least=1))
    assert found.worst_hit == 0.0
    for each in found.distances:
        assert each.distance == pytest.approx(0.0, abs=0.001), each


def test_what_few_share_is_lost_and_no_more(chat: Trace) -> None:
    found = compare(chat, recorded(chat, least=5))
    assert found.worst_hit < 0.01  # four system prompts, told from their fifth conversation on
    assert found.hits[-1].second < found.hits[-1].first


def test_recorded_fitted_and_made_again_it_has_the_same_hit_rates(chat: Trace) -> None:
    tape = recorded(chat, least=1)
    assert compare(chat, like(fit(tape), tape.seconds)).worst_hit < 0.03
