"""What holds for every model and every trace: counts, seeds, popularity, and what repeats."""

from __future__ import annotations

import dataclasses
from collections import Counter

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.recording.record import Record, shortened
from epp.traffic.model.files import parsed
from epp.traffic.model.fit import fit
from epp.traffic.model.laws import Law, Part, fixed
from epp.traffic.model.model import Arrivals, Business, Families, Later, Model
from epp.traffic.model.synth import Wanted, like, synthesize
from epp.traffic.sessions import conversations
from epp.traffic.study.arrivals import local_variation
from epp.traffic.study.reuse import reuse
from epp.traffic.trace import Trace, trace_of

BLOCK = 16


@dataclasses.dataclass(frozen=True)
class Given:
    """A model of two classes, and how much of it is wanted."""

    model: Model
    wanted: Wanted


@st.composite
def givens(draw: st.DrawFn) -> Given:
    def business(name: str) -> Business:
        arrivals = Arrivals(
            rate=draw(st.integers(1, 30)) / 10,
            at_once=draw(st.integers(0, 5)),
            process=draw(st.sampled_from(["poisson", "gamma", "weibull", "even"])),
            cv=draw(st.sampled_from([0.5, 1.0, 3.0])),
            envelope=draw(st.sampled_from([(), (0.5, 1.5), (2.0, 0.0)])),
            step_seconds=5.0,
        )
        turns = draw(st.integers(1, 3))
        return Business(
            name=name, arrivals=arrivals, output=fixed(draw(st.integers(1, 40))),
            first=fixed(draw(st.integers(1, 100))),
            families=Families(count=draw(st.integers(1, 4)), tokens=fixed(32)),
            later=Later(continues=(*[1.0] * (turns - 1), 0.0), think=fixed(1.0), fresh=fixed(10)),
        )  # fmt: skip

    model = Model(classes=(business("a"), business("b")), block_tokens=BLOCK)
    wanted = Wanted(
        seconds=20.0, rate=draw(st.sampled_from([0.5, 1.0, 3.0])), seed=draw(st.integers(0, 99)),
        finish=True,
    )  # fmt: skip
    return Given(model, wanted)


@settings(deadline=None, max_examples=40)
@given(givens())
def test_as_many_conversations_are_made_as_the_rates_say_and_each_to_its_end(given: Given) -> None:
    made = synthesize(given.model, given.wanted)
    for business in given.model.classes:
        arrivals, times = business.arrivals, given.wanted.rate
        expected = round(times * arrivals.at_once) + times * arrivals.rate * 20.0
        talks = [t for t in conversations(made) if t[0].record.business == business.name]
        assert abs(len(talks) - expected) <= 1
        assert {len(talk) for talk in talks} <= {len(business.later.continues)}


@settings(deadline=None, max_examples=40)
@given(givens())
def test_the_same_seed_makes_the_same_trace_which_is_sound(given: Given) -> None:
    made = synthesize(given.model, given.wanted)
    assert made == synthesize(given.model, given.wanted)
    times = [record.at for record in made.records]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert len({record.id for record in made.records}) == len(made.records)
    for record in made.records:
        assert len(record.hash_ids) == -(-record.input_tokens // BLOCK)
    for talk in conversations(made):
        for turn in talk[1:]:
            assert turn.parent is not None
            before = turn.parent.record
            full = before.input_tokens // BLOCK
            assert turn.record.hash_ids[:full] == before.hash_ids[:full]
            assert turn.record.parent == before.id
            assert turn.record.at >= before.at + (turn.record.think or 0.0) - 1e-9


@settings(deadline=None, max_examples=30)
@given(givens())
def test_classes_share_no_block(given: Given) -> None:
    made = synthesize(given.model, given.wanted)
    ids: dict[str, set[int]] = {"a": set(), "b": set()}
    for record in made.records:
        ids[record.business].update(record.hash_ids)
    assert ids["a"].isdisjoint(ids["b"])


@pytest.mark.parametrize("zipf", [0.0, 1.0, 2.0])
def test_families_are_as_popular_as_zipf_s_law_says(zipf: float) -> None:
    families = Families(count=5, zipf=zipf, tokens=fixed(BLOCK))
    business = Business(
        name="a", arrivals=Arrivals(rate=20.0), output=fixed(1), first=fixed(BLOCK),
        families=families,
    )  # fmt: skip
    made = synthesize(Model(classes=(business,), block_tokens=BLOCK), Wanted(seconds=500.0))
    seen = sorted(Counter(r.hash_ids[0] for r in made.records).values(), reverse=True)
    weights = np.arange(1.0, 6.0) ** -zipf
    shares = np.array(seen) / len(made.records)
    assert shares == pytest.approx(weights / weights.sum(), abs=0.02)  # 4 standard deviations


@pytest.mark.parametrize("process", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.5, 1.0, 2.5])
def test_gaps_vary_as_much_as_the_model_says(process: str, cv: float) -> None:
    business = Business(
        name="a", output=fixed(1),
        arrivals=Arrivals(rate=10.0, process=process, cv=cv),  # type: ignore[arg-type]
    )  # fmt: skip
    made = synthesize(Model(classes=(business,)), Wanted(seconds=2000.0))
    gaps = np.diff([record.at for record in made.records])
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    if process == "gamma":
        fitted = fit(made, keep="tables").classes[0].arrivals
        assert fitted.cv == pytest.approx(cv, rel=0.1)
        assert fitted.rate == pytest.approx(10.0, rel=0.01)
        assert local_variation(np.array([r.at for r in made.records])) == pytest.approx(cv, rel=0.1)


# --- fitted to any trace ---------------------------------------------------------------------------


@st.composite
def odd_traces(draw: st.DrawFn) -> Trace:
    """Short traces of whatever a file may hold."""

    def record() -> Record:
        tokens = draw(st.sampled_from([0, 1, 15, 16, 80, 2000]))
        ids = draw(st.lists(st.integers(0, 20), max_size=min(-(-tokens // BLOCK), 5), unique=True))
        seconds = st.none() | st.sampled_from([0.0, 0.5, 7.0])
        return Record(
            at=draw(st.sampled_from([0.0, 3.0, 6.0]) | st.floats(0, 50)), input_tokens=tokens,
            output_tokens=draw(st.sampled_from([0, 1, 99])), runs=shortened(sorted(ids)),
            session=draw(st.sampled_from(["", "s", "t"])),
            business=draw(st.sampled_from(["", "x", "team:chat"])), think=draw(seconds),
            duration=draw(seconds), ttft=draw(seconds),
        )  # fmt: skip

    last = Record(at=60.0, input_tokens=40, output_tokens=3)
    return trace_of([*(record() for _ in range(draw(st.integers(1, 12)))), last], BLOCK)


@settings(deadline=None, max_examples=60)
@given(odd_traces(), st.sampled_from(["shapes", "tables", "mixtures"]))
def test_any_trace_has_a_model_that_is_read_again_and_makes_traces(trace: Trace, keep: str) -> None:
    model = fit(trace, keep=keep)  # type: ignore[arg-type]
    assert parsed(yaml.safe_dump(msgspec.to_builtins(model)), "here") == model
    made = like(model, trace.seconds)
    assert made == like(model, trace.seconds)
    names = {record.business or "all" for record in trace.records}
    assert {record.business for record in made.records} <= names


def test_conversations_of_empty_prompts_have_a_model_that_is_read_again() -> None:
    records = [Record(at=5.0 * i, input_tokens=0, output_tokens=1, session="s") for i in range(3)]
    model = fit(Trace(tuple(records), BLOCK), keep="tables")
    assert parsed(yaml.safe_dump(msgspec.to_builtins(model)), "here") == model


@settings(deadline=None, max_examples=40)
@given(odd_traces())
def test_with_shapes_each_class_has_as_many_conversations_as_it_had(trace: Trace) -> None:
    made = synthesize(fit(trace), Wanted(seconds=trace.seconds, finish=True))
    were = Counter(talk[0].record.business or "all" for talk in conversations(trace))
    are = Counter(talk[0].record.business for talk in conversations(made))
    for name, count in were.items():
        assert abs(are[name] - count) <= 1


@pytest.mark.parametrize("keep", ["shapes", "tables"])
def test_each_class_keeps_its_own_rate_of_repetition(keep: str) -> None:
    def business(name: str, families: int, shared: int) -> Business:
        law = Law(mixture=(Part(300, 0.5),))
        return Business(
            name=name, arrivals=Arrivals(rate=1.0), output=fixed(20), first=law,
            families=Families(count=families, zipf=0.5, tokens=fixed(shared)),
        )  # fmt: skip

    model = Model(
        classes=(business("much", 3, 1600), business("little", 200, 160)), block_tokens=BLOCK
    )
    trace = synthesize(model, Wanted(seconds=900.0))
    made = like(fit(trace, keep=keep), trace.seconds)  # type: ignore[arg-type]
    ids = [
        {i for r in made.records if r.business == n for i in r.hash_ids} for n in ("much", "little")
    ]
    assert ids[0].isdisjoint(ids[1])
    for name in ("much", "little"):
        one, two = (
            reuse(Trace(tuple(r for r in each.records if r.business == name), BLOCK)).ideal
            for each in (trace, made)
        )
        assert two == pytest.approx(one, abs=0.03), name
