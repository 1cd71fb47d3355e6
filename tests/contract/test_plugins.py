"""Every scheduling plugin against its protocol: length, order, range, no mutation, no data.

The formulas themselves are in `test_formulas`.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from epp import headers, plugin
from epp.flow.admit import ADMITTERS
from epp.flow.identity import IDENTITIES
from epp.flow.saturation import DETECTORS
from epp.ledger import Ledger
from epp.model import CacheInfo, Endpoint, InferenceRequest, LoraInfo, MediaMatch, PrefixMatch
from epp.observe.conformance import REPORTERS
from epp.observe.producers import PRODUCERS
from epp.prefix.media import MmEmbeddingsCacheProducer
from epp.schedule.deciders import DECIDERS
from epp.schedule.filters import FILTERS
from epp.schedule.handlers import HANDLERS
from epp.schedule.pickers import PICKERS
from epp.schedule.scorers import SCORERS
from tests.support import build

#: Parameters for the plugins that need some.
GIVEN: dict[str, dict[str, Any]] = {
    "by-label": {"label": "zone", "validValues": ["a"]},
    "by-label-selector": {"zone": "a"},
    "label-selector-filter": {"matchLabels": {"zone": "a"}},
    "utilization-filter": {
        "conditions": [
            {"metric": "waiting-queue", "maxValue": 3},
            {"metric": "kv-cache-utilization", "maxValue": 0.5},
            {"metric": "running-requests", "maxValue": 9},
            {"metric": "active-requests", "maxValue": 9},
        ]
    },
    "endpoint-attribute-filter": {
        "attribute": "heat",
        "algorithm": {"type": "threshold", "operator": "LessThan", "value": 50},
        "onMissing": "Fail",
    },
    "context-length-aware": {"enableFiltering": True},
    "header-label-affinity-scorer": {"headerName": "X-Zone", "labelKey": "zone"},
    "endpoint-attribute-scorer": {
        "attributeKey": "heat",
        "algorithm": {"type": "linear_lower_is_better"},
    },
    "pd-profile-handler": {"threshold": 0},
    "request-attribute-reporter": {
        "attributes": [{"key": {"name": "cost"}, "expression": "usage.prompt_tokens"}]
    },
}
EVERY = (
    *FILTERS,
    *SCORERS,
    *PICKERS,
    *HANDLERS,
    *DECIDERS,
    *DETECTORS,
    *ADMITTERS,
    *IDENTITIES,
    MmEmbeddingsCacheProducer,
    *PRODUCERS,
    *REPORTERS,
)
WITH_FILTER = tuple(cls for cls in EVERY if hasattr(cls, "filter"))


def make(cls: type[Any], ledger: Ledger | None = None) -> Any:
    params = msgspec.convert(GIVEN.get(cls.type, {}), cls.Params)
    return cls(params, build.tools(ledger=ledger))


def named(cls: type[Any]) -> str:
    return str(cls.type)


def pool(count: int) -> list[Endpoint]:
    """Endpoints of every kind: idle, busy, unscraped, labelled or not."""
    dice = random.Random(7)
    found = []
    for i in range(count):
        load = build.load(
            queued=dice.choice([0, 1, 7, None]),
            running=dice.choice([0, 3, None]),
            kv_usage=dice.choice([0.0, 0.4, 1.0, None]),
            cache=CacheInfo(16, 1000),
            lora=dice.choice([None, LoraInfo(frozenset({"llama"}), frozenset(), 1)]),
            attributes=dice.choice([{}, {"heat": 20.0}, {"heat": float("nan")}]),
        )
        labels = dice.choice(
            [
                {},
                {"zone": "a", "llm-d.ai/role": "prefill", "kubernetes.io/hostname": "h1"},
                {"llm-d.ai/role": "both", "llm-d.ai/context-length-range": "0-2048"},
                {"llm-d.ai/role": "encode", "llm-d.ai/context-length-range": "nonsense"},
            ]
        )
        endpoint = build.endpoint(f"e{i}", host=f"10.0.0.{i}", labels=labels, load=load)
        if i % 4 == 3:
            endpoint = msgspec.structs.replace(endpoint, load=None)
        found.append(endpoint)
    return found


def request(endpoints: list[Endpoint]) -> InferenceRequest:
    held = {endpoint.id: 2 for endpoint in endpoints[::3]}
    peer = build.endpoint("peer", labels={"kubernetes.io/hostname": "h1"})
    return build.request(
        headers={"x-zone": "a", "x-session-token": "ZGVmYXVsdC9lMQ==", "x-session-id": "s"},
        prompt=b"x" * 400,
        prompt_tokens=100,
        prefix={"approx": PrefixMatch(tuple(range(4)), 16, held)},
        media_match=MediaMatch((1, 2), held),
        peer=peer,
    )


def test_no_two_plugins_share_a_type() -> None:
    types = [cls.type for cls in EVERY]
    assert len(types) == len(set(types))


@pytest.mark.parametrize("cls", EVERY, ids=named)
def test_every_plugin_says_its_type_its_stability_and_what_it_is(cls: type[Any]) -> None:
    assert cls.type
    assert cls.stability in {"alpha", "beta", "stable"}
    assert cls.__doc__


@pytest.mark.parametrize(
    "cls", [cls for cls in EVERY if cls.type != "by-label-selector"], ids=named
)
def test_every_plugin_refuses_a_parameter_it_does_not_know(cls: type[Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="noSuchThing"):
        msgspec.convert({**GIVEN.get(cls.type, {}), "noSuchThing": 1}, cls.Params)


@pytest.mark.parametrize("cls", SCORERS, ids=named)
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_a_scorer_gives_one_score_in_range_per_endpoint(cls: type[Any], count: int) -> None:
    endpoints = pool(count)
    before = list(endpoints)
    ledger = Ledger()
    for endpoint in endpoints[::2]:
        ledger.reserve(endpoint, 500)
    scorer = make(cls, ledger)
    assert isinstance(scorer, plugin.Scorer)
    for asked in (request(endpoints), build.request()):
        scores = scorer.score(asked, endpoints)
        assert len(scores) == count
        assert all(0.0 <= score <= 1.0 for score in scores)
        assert endpoints == before


# The order of the list is the tie-break of the one left out.
@pytest.mark.parametrize(
    "cls", [cls for cls in SCORERS if cls.type != "no-hit-lru-scorer"], ids=named
)
def test_a_scorer_says_the_same_whatever_the_order(cls: type[Any]) -> None:
    endpoints = pool(12)
    asked = request(endpoints)
    forward = make(cls).score(asked, endpoints)
    backward = make(cls).score(asked, endpoints[::-1])
    assert forward == pytest.approx(list(backward)[::-1])


@pytest.mark.parametrize("cls", SCORERS, ids=named)
def test_an_endpoint_without_load_data_never_beats_its_twin_with_it(cls: type[Any]) -> None:
    told = build.endpoint("told", load=build.load(queued=3, running=4, kv_usage=0.9))
    silent = msgspec.structs.replace(build.endpoint("silent"), load=None)
    asked = build.request(
        prompt_tokens=64, prefix={"p": PrefixMatch((1,), 16, {told.id: 1, silent.id: 1})}
    )
    known, unknown = make(cls).score(asked, [told, silent])
    assert unknown <= known


@pytest.mark.parametrize("cls", WITH_FILTER, ids=named)
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_a_filter_returns_a_subset_in_order(cls: type[Any], count: int) -> None:
    endpoints = pool(count)
    before = list(endpoints)
    chosen = make(cls)
    assert isinstance(chosen, plugin.Filter)
    for asked in (request(endpoints), build.request()):
        kept = list(chosen.filter(asked, endpoints))
        assert kept == [endpoint for endpoint in endpoints if endpoint in kept]
        assert endpoints == before


@pytest.mark.parametrize("cls", PICKERS, ids=named)
def test_a_picker_returns_distinct_endpoints_as_many_as_wanted(cls: type[Any]) -> None:
    endpoints = pool(5)
    scores = [0.0, 0.5, 0.5, 1.0, 3.0]
    for wanted, got in ((1, 1), (3, 3), (9, 5)):
        picker = cls(cls.Params(max_num_of_endpoints=wanted), build.tools())
        assert isinstance(picker, plugin.Picker)
        chosen = [endpoint.id for endpoint in picker.pick(endpoints, scores)]
        assert len(chosen) == len(set(chosen)) == got
        assert set(chosen) <= {endpoint.id for endpoint in endpoints}
    assert scores == [0.0, 0.5, 0.5, 1.0, 3.0]


@pytest.mark.parametrize("cls", DETECTORS, ids=named)
def test_a_detector_calls_an_empty_pool_full_and_an_idle_one_empty(cls: type[Any]) -> None:
    detector = make(cls)
    assert isinstance(detector, plugin.SaturationDetector)
    assert detector.saturation([]) == 1.0
    assert detector.saturation([build.endpoint()]) == 0.0


@pytest.mark.parametrize("cls", DECIDERS, ids=named)
def test_a_decider_answers_yes_or_no(cls: type[Any]) -> None:
    decider = make(cls)
    assert isinstance(decider, plugin.Decider)
    assert decider.disaggregate(build.request(), build.endpoint()) in {True, False}


@pytest.mark.parametrize("cls", ADMITTERS, ids=named)
def test_an_admitter_never_refuses_a_request_of_priority_0(cls: type[Any]) -> None:
    admitter = make(cls)
    assert isinstance(admitter, plugin.Admitter)
    full = build.endpoint(load=build.load(queued=1000, kv_usage=1.0))
    admitter.admit(build.request(priority=0), [full])


@pytest.mark.parametrize("cls", IDENTITIES, ids=named)
def test_an_identity_leaves_a_request_without_headers_alone(cls: type[Any]) -> None:
    preparer = make(cls)
    assert isinstance(preparer, plugin.Preparer)
    asked = build.request(flow=headers.DEFAULT_FLOW)
    assert preparer.prepare(asked) == asked


@pytest.mark.parametrize("cls", [cls for cls in HANDLERS if hasattr(cls, "handle")], ids=named)
def test_a_handler_sends_the_request_to_what_its_first_profile_chose(cls: type[Any]) -> None:
    chosen = build.endpoint("chosen")

    class OneProfile:
        names = ("decode",)

        def run(self, name: str, request: InferenceRequest) -> plugin.ProfileResult:
            assert name == "decode"
            return plugin.ProfileResult((chosen,), (chosen,), [1.0])

    handler = make(cls)
    assert isinstance(handler, plugin.ProfileHandler)
    pick = handler.handle(build.request(), OneProfile())
    assert pick.endpoints == (chosen,)
    assert pick.profile == "decode"
    assert pick.prefill is None
