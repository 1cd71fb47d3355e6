"""Models: laws, traces made of them, and that fitting a trace and making one leads back to it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from epp.cli import main
from epp.recording.record import Record
from epp.traffic.files import read_trace
from epp.traffic.model.files import parsed, preset, presets, read_model, write_model
from epp.traffic.model.fit import fit, history
from epp.traffic.model.laws import Law, Part, Tail, fixed, mixed, tabled
from epp.traffic.model.model import Model
from epp.traffic.model.prompts import Prompt, Prompts, first_blocks
from epp.traffic.model.synth import Wanted, like, synthesize
from epp.traffic.sessions import conversations
from epp.traffic.study.compare import compare
from epp.traffic.study.reuse import reuse
from epp.traffic.trace import Trace, TraceError

BY_HAND = """
block_tokens: 64
classes:
- name: desk
  arrivals: {rate: 0.5}
  families: {count: 3, zipf: 1.0, tokens: {fixed: 640}}
  first: {fixed: 100}
  output: {fixed: 50}
  later: {continues: [1.0, 0.0], think: {fixed: 10}, fresh: {fixed: 14}}
  service: {first_seconds: 1.0, token_seconds: 0.02}
  tenants: 4
"""


def hand() -> Model:
    return parsed(BY_HAND, "here")


# --- laws --------------------------------------------------------------------------


def test_a_law_is_one_thing() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Law(fixed=1.0, mixture=(Part(1.0, 1.0),))


def test_a_mixture_is_found_again() -> None:
    law = Law(mixture=(Part(7, 0.5, 0.7), Part(200, 0.4, 0.3)))
    found = mixed(law.draw(np.random.default_rng(1), 20_000))
    tool, human = found.mixture
    assert (tool.median, human.median) == (pytest.approx(7, rel=0.05), pytest.approx(200, rel=0.05))
    assert (tool.sigma, human.weight) == (
        pytest.approx(0.5, abs=0.05),
        pytest.approx(0.3, abs=0.02),
    )


def test_a_table_keeps_the_percentiles_and_the_mean() -> None:
    values = np.random.default_rng(2).lognormal(5, 1, 50_000)
    drawn = tabled(values).draw(np.random.default_rng(3), 50_000)
    for percent in (5, 50, 95, 99):
        assert np.percentile(drawn, percent) == pytest.approx(
            np.percentile(values, percent), rel=0.03
        )
    assert drawn.mean() == pytest.approx(values.mean(), rel=0.05)


def test_a_tail_is_heavy_and_limits_hold() -> None:
    law = Law(fixed=10.0, tail=Tail(start=1000, alpha=1.1, share=0.25), high=5000)
    drawn = law.draw(np.random.default_rng(1), 1000)
    assert (drawn >= 1000).mean() == pytest.approx(0.25, abs=0.01)
    assert drawn.max() == 5000


# --- prompts -----------------------------------------------------------------------


def test_a_prompt_keeps_full_blocks_only() -> None:
    prompts = Prompts(10)
    first = prompts.following(None, 0, 25)
    second = prompts.following(first, 25, 10)
    assert (first.tokens, first.runs) == (25, ((0, 3),))
    assert (second.tokens, second.runs) == (35, ((0, 2), (3, 2)))
    assert first_blocks(second.runs, 3) == ((0, 2), (3, 1))


def test_the_earlier_prompt_is_the_one_last_used_then() -> None:
    prompts = Prompts(10)
    made = [prompts.following(None, 0, 100) for _ in range(4)]
    for each in made:
        prompts.add(0, each)
    prompts.add(0, Prompt(made[1].runs, 100))  # used again, one request ago
    assert prompts.earlier(0, 1, 50) == made[1]
    assert prompts.earlier(0, 2, 50) == made[3]
    assert prompts.earlier(1, 2, 50) is None  # another class has none


# --- made by hand ------------------------------------------------------------------


def test_a_model_written_by_hand_is_what_comes_out() -> None:
    trace = synthesize(hand(), Wanted(seconds=1000.0, finish=True))
    talks = conversations(trace)
    assert len(talks) == 500
    assert {len(talk) for talk in talks} == {2}
    assert {turn.record.input_tokens for talk in talks for turn in talk[:1]} == {740}
    assert {talk[1].record.input_tokens for talk in talks} == {740 + 50 + 14}
    assert {talk[1].record.think for talk in talks} == {10.0}
    gaps = {round(talk[1].record.at - talk[0].record.at, 6) for talk in talks}
    assert gaps == {10.0 + 1.0 + 50 * 0.02}
    assert {talk[0].record.hash_ids[:10] for talk in talks}.__len__() == 3
    assert {record.business for record in trace.records} == {"desk"}
    assert len({record.tenant for record in trace.records}) == 4


def test_the_same_seed_gives_the_same_trace_and_another_another() -> None:
    one, two, other = (
        synthesize(hand(), Wanted(seconds=100.0, seed=seed)).records for seed in (1, 1, 2)
    )
    assert one == two != other


def test_an_envelope_shapes_the_rate() -> None:
    text = BY_HAND.replace("rate: 0.5", "rate: 5, envelope: [0, 2, 1], step_seconds: 100")
    trace = synthesize(parsed(text, "here"), Wanted(seconds=300.0))
    starts = [talk[0].record.at for talk in conversations(trace)]
    # The trace is moved to begin with its first request, in the second step.
    assert np.histogram(starts, [0, 100, 200])[0].tolist() == pytest.approx([1000, 500], rel=0.08)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(("rate: 0.5", "rate: -1"), "rate", id="a negative rate"),
        pytest.param(("name: desk", "nom: desk"), "nom", id="an unknown field"),
        pytest.param(("{fixed: 100}", "{}"), "exactly one", id="a law of nothing"),
        pytest.param(("classes:", "classes: ["), "here", id="no YAML"),
    ],
)
def test_a_wrong_model_is_refused_with_its_place(change: tuple[str, str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        parsed(BY_HAND.replace(*change), "here")


@pytest.mark.parametrize("name", presets())
def test_every_preset_makes_traffic(name: str) -> None:
    trace = synthesize(preset(name), Wanted(seconds=120.0, rate=0.5))
    assert trace.records
    assert preset(name).source


# --- fitted ------------------------------------------------------------------------


def test_history_tells_depth_and_age() -> None:
    def of(*ids: int) -> Record:
        runs = tuple((each, 1) for each in ids)
        return Record(at=0.0, input_tokens=10 * len(ids), output_tokens=1, runs=runs)

    found = history(Trace((of(1, 2), of(5), of(1, 3), of(1, 2)), 10))
    assert [(each.depth, each.age) for each in found] == [(0, 0), (0, 0), (10, 2), (20, 3)]


@pytest.mark.parametrize("keep", ["shapes", "tables"])
@pytest.mark.parametrize("name", ["chat", "code-completion"])
def test_a_trace_fitted_and_made_again_has_its_hit_rates(
    name: str, keep: str, tmp_path: Path
) -> None:
    trace = synthesize(preset(name), Wanted(seconds=900.0, seed=3))
    path = str(tmp_path / "m.yaml")
    write_model(fit(trace, keep=keep), path)  # type: ignore[arg-type]
    found = compare(trace, like(read_model(path), trace.seconds))
    assert found.worst_hit < 0.03, [(hit.first, hit.second) for hit in found.hits]
    for each in found.distances[:2]:  # lengths
        assert each.share is not None
        assert each.share < 0.1, each


def test_a_model_of_mixtures_is_short(tmp_path: Path) -> None:
    trace = synthesize(preset("chat"), Wanted(seconds=900.0))
    path = tmp_path / "m.yaml"
    write_model(fit(trace, keep="mixtures"), str(path))
    assert path.stat().st_size < 12_000
    assert read_model(str(path)).classes


def test_conversations_that_all_begin_at_once_are_made_so() -> None:
    records = [
        Record(at=turn * (3.0 + talk), input_tokens=200 + 100 * turn, output_tokens=20,
               runs=((1000 * talk, 2 + turn),), session=str(talk))
        for talk in range(8) for turn in range(5)
    ]  # fmt: skip
    records.sort(key=lambda record: record.at)
    trace = Trace(tuple(records), 100)
    made = like(fit(trace), trace.seconds)
    assert len(made.records) == 40
    assert reuse(made).ideal == pytest.approx(reuse(trace).ideal, abs=0.01)


def test_the_time_of_answers_is_what_gaps_have_beside_think_times() -> None:
    fitted = fit(synthesize(hand(), Wanted(seconds=400.0))).classes[0].service
    assert fitted.first_seconds + 50 * fitted.token_seconds == pytest.approx(2.0, abs=0.001)


def test_a_trace_of_one_moment_is_refused() -> None:
    record = Record(at=0.0, input_tokens=1, output_tokens=1)
    with pytest.raises(TraceError, match="one moment"):
        fit(Trace((record, record), 64))


def test_facts_are_told_by_class() -> None:
    trace = synthesize(hand(), Wanted(seconds=1000.0))
    facts = fit(trace).facts["desk"]
    assert facts["conversations"] == 500
    assert facts["input_tokens_p50"] == pytest.approx(772, abs=40)
    assert (facts["families"], facts["family_tokens_p50"]) == (3, 640)


# --- the command line --------------------------------------------------------------


def test_fit_synth_and_compare_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, model, made = (str(tmp_path / name) for name in ("t.jsonl", "m.yaml", "s.jsonl.gz"))
    synth = ["traffic", "synth", "--seconds", "200", "--output"]
    assert main([*synth, trace, "--preset", "chat"]) == 0
    assert main(["traffic", "fit", trace, "--output", model, "--check"]) == 0
    assert main([*synth, made, "--model", model]) == 0
    assert main(["traffic", "compare", trace, "--with", made, "--output", "json"]) == 0
    said = capsys.readouterr().out
    assert "an LRU cache of so many tokens finds" in said
    compared = msgspec.json.decode(said[said.index("{") :])
    assert compared["requests"][0] == len(read_trace([trace]).records)
    assert main([*synth, made, "--model", trace]) == 2


def test_fixed_values_need_no_table() -> None:
    assert tabled([5, 5, 5]) == fixed(5.0)
    assert tabled([]) == fixed(0.0)


def bursts(count: int) -> Trace:
    """Twenty conversations within two seconds, and 48 seconds of quiet; so often."""
    records = [
        Record(at=50.0 * burst + 0.1 * i, input_tokens=300, output_tokens=20,
               runs=((100 * (20 * burst + i), 3),))
        for burst in range(count) for i in range(20)
    ]  # fmt: skip
    return Trace(tuple(records), 100)


@pytest.mark.parametrize("times", [1, 2])
def test_bursts_of_a_fitted_trace_are_made_again_and_once_more_in_a_longer_one(times: int) -> None:
    trace = bursts(10)
    made = like(fit(trace), times * trace.seconds)
    starts = np.array([record.at for record in made.records])
    assert len(starts) == pytest.approx(200 * times, abs=times)
    inside = np.sum(np.mod(starts, trace.seconds) % 50.0 <= 2.0)
    assert inside >= 0.93 * len(starts)  # but for the first of each, which may come in the quiet


def test_a_conversation_made_again_waits_for_each_answer_as_long_as_it_did() -> None:
    served = (1.0, 7.0, 0.25)
    records, at = [], 0.0
    for turn, seconds in enumerate((*served, 2.0)):
        runs = ((1, 2 + turn),)
        records.append(
            Record(at=at, input_tokens=200 + 100 * turn, output_tokens=20, runs=runs,
                   session="one", duration=seconds)
        )  # fmt: skip
        at += seconds + 3.0
    trace = Trace(tuple(records), 100)
    made = synthesize(fit(trace), Wanted(seconds=trace.seconds, finish=True))
    assert [record.at for record in made.records] == pytest.approx([0.0, 4.0, 14.0, 17.25])
    assert [record.think for record in made.records] == [None, 3.0, 3.0, 3.0]
