"""One test per published formula, against values worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from epp.errors import Saturated
from epp.flow.admit import ProbabilisticAdmitter
from epp.flow.saturation import ConcurrencyDetector, UtilizationDetector
from epp.ledger import Ledger
from epp.model import Endpoint, InferenceRequest, LoraInfo, MediaMatch, Pick, PrefixMatch
from epp.schedule.deciders import (
    AlwaysDisaggMultimodalDecider,
    AlwaysDisaggPdDecider,
    PrefixBasedPdDecider,
)
from epp.schedule.filters.prefix_affinity import PrefixCacheAffinityFilter
from epp.schedule.pickers.best import MaxScorePicker
from epp.schedule.pickers.random import RandomPicker, WeightedRandomPicker
from epp.schedule.scorers.affinity import (
    HeaderLabelAffinityScorer,
    MmEmbeddingsCacheScorer,
    TopologyAffinityScorer,
)
from epp.schedule.scorers.attribute import EndpointAttributeScorer
from epp.schedule.scorers.context_length import LABEL, ContextLengthAware
from epp.schedule.scorers.kv_usage import KvCacheUtilizationScorer
from epp.schedule.scorers.load import ActiveRequestScorer, LoadAwareScorer, TokenLoadScorer
from epp.schedule.scorers.lora import LoraAffinityScorer
from epp.schedule.scorers.no_hit_lru import NoHitLruScorer
from epp.schedule.scorers.prefix import PrefixCacheScorer
from epp.schedule.scorers.queue import QueueScorer
from epp.schedule.scorers.running import RunningRequestsScorer
from tests.support import build


def make(cls: type[Any], ledger: Ledger | None = None, **params: Any) -> Any:
    """Build a plugin from parameters as they stand in YAML."""
    return cls(msgspec.convert(params, cls.Params), build.tools(ledger=ledger))


def named(*names: str) -> list[Endpoint]:
    return [build.endpoint(name) for name in names]


def asking(
    held: dict[str, int] | None = None, *, blocks: int = 10, tokens: int = 1000, size: int = 64
) -> InferenceRequest:
    """A request of ``blocks`` blocks of ``size`` tokens, of which endpoints hold some."""
    match = PrefixMatch(tuple(range(blocks)), size, dict(held or {}))
    return build.request(prompt_tokens=tokens, prefix={"approx": match})


def booked(**counts: tuple[int, int]) -> Ledger:
    """A ledger with (requests, tokens each) in flight, by endpoint."""
    ledger = Ledger()
    for name, (requests, tokens) in counts.items():
        for _ in range(requests):
            ledger.reserve(build.endpoint(name), tokens)
    return ledger


def test_queue_scorer_is_linear_from_the_longest_to_the_shortest() -> None:
    endpoints = [build.endpoint(queued=q) for q in (0, 1, 4)]
    assert make(QueueScorer).score(build.request(), endpoints) == [1.0, 0.75, 0.0]


def test_running_requests_scorer_is_linear_too() -> None:
    endpoints = [build.endpoint(load=build.load(running=r)) for r in (2, 3, 6)]
    assert make(RunningRequestsScorer).score(build.request(), endpoints) == [1.0, 0.75, 0.0]


def test_kv_cache_scorer_is_what_is_free() -> None:
    endpoints = [build.endpoint(load=build.load(kv_usage=u)) for u in (0.25, 1.0, None)]
    assert make(KvCacheUtilizationScorer).score(build.request(), endpoints) == [0.75, 0.0, 0.0]


def test_prefix_scorer_is_the_matched_share() -> None:
    scores = make(PrefixCacheScorer).score(asking({"a": 10, "b": 3}), named("a", "b", "c"))
    assert scores == pytest.approx([1.0, 0.3, 0.0])


def test_prefix_scorer_weighs_in_the_match_length_squared() -> None:
    # 5 of 10 blocks of 64: 320 of 640 tokens, (320 / 640)^2 = 0.25; 0.5 * 0.25 + 0.5 * 0.5
    scorer = make(PrefixCacheScorer, matchLengthWeight=0.5, matchLengthScaleTokens=640)
    assert scorer.score(asking({"a": 5}), named("a")) == pytest.approx([0.375])


@pytest.mark.parametrize(
    ("lora", "score"),
    [
        pytest.param(LoraInfo(frozenset({"llama"}), frozenset(), 1), 1.0, id="active"),
        pytest.param(LoraInfo(frozenset({"x"}), frozenset(), 2), 0.8, id="a free slot"),
        pytest.param(
            LoraInfo(frozenset(), frozenset({"llama"}), 2), 0.8, id="waiting, with a free slot"
        ),
        pytest.param(LoraInfo(frozenset({"x"}), frozenset({"llama"}), 2), 0.6, id="waiting"),
        pytest.param(LoraInfo(frozenset({"x"}), frozenset({"y"}), 2), 0.0, id="full of others"),
        pytest.param(None, 0.0, id="unknown"),
    ],
)
def test_lora_scorer(lora: LoraInfo | None, score: float) -> None:
    endpoint = build.endpoint(load=build.load(lora=lora))
    assert make(LoraAffinityScorer).score(build.request(), [endpoint]) == [score]


@pytest.mark.parametrize(
    ("queued", "score"), [(0, 0.5), (32, 0.375), (128, 0.0), (1000, 0.0), (None, 0.0)]
)
def test_load_aware_scorer(queued: int | None, score: float) -> None:
    endpoint = build.endpoint(load=build.load(queued=queued))
    assert make(LoadAwareScorer).score(build.request(), [endpoint]) == [score]


def test_active_request_scorer() -> None:
    ledger = booked(b=(1, 0), c=(4, 0))
    endpoints = named("a", "b", "c")
    assert make(ActiveRequestScorer, ledger).score(build.request(), endpoints) == [1.0, 0.75, 0.0]
    # With one request still idle and busy ones at most half: (4 - 4) / 4 * 0.5
    scorer = make(ActiveRequestScorer, ledger, idleThreshold=1, maxBusyScore=0.5)
    assert scorer.score(build.request(), endpoints) == [1.0, 1.0, 0.0]
    scorer = make(ActiveRequestScorer, ledger, maxBusyScore=0.5)
    assert scorer.score(build.request(), endpoints) == [1.0, 0.375, 0.0]


def test_token_load_scorer_adds_this_requests_uncached_tokens() -> None:
    # a holds 10 blocks of 64 of 1000 tokens: 360 + 0; b: 1000 + 500; c: above the threshold
    ledger = booked(b=(1, 500), c=(1, 9000))
    scorer = make(TokenLoadScorer, ledger, queueThresholdTokens=2000)
    scores = scorer.score(asking({"a": 10}), named("a", "b", "c"))
    assert scores == pytest.approx([1 - 360 / 2000, 1 - 1500 / 2000, 0.0])


def test_token_load_scorer_gives_1_where_nothing_is_to_be_done() -> None:
    assert make(TokenLoadScorer).score(asking({"a": 10}, tokens=640), named("a")) == [1.0]


def test_no_hit_lru_ranks_the_never_used_first_then_the_longest_unused() -> None:
    scorer, endpoints = make(NoHitLruScorer), named("a", "b", "c", "d", "e")
    assert scorer.score(asking(), endpoints) == [1.0, 0.75, 0.5, 0.25, 0.0]
    for name in ("d", "a"):
        scorer.picked(asking(), build.pick(name))
    # never used: b, c, e; then d, used before a
    assert scorer.score(asking(), endpoints) == [0.0, 1.0, 0.75, 0.25, 0.5]


def test_no_hit_lru_has_no_say_once_somebody_holds_a_block() -> None:
    scorer = make(NoHitLruScorer)
    assert scorer.score(asking({"b": 1}), named("a", "b")) == [0.5, 0.5]
    scorer.picked(asking({"b": 1}), build.pick("a"))  # a warm request is no turn
    assert scorer.score(asking(), named("a", "b")) == [1.0, 0.0]
    assert scorer.score(asking(), named("a")) == [1.0]


def test_no_hit_lru_counts_the_prefill_endpoint_and_forgets_the_gone() -> None:
    scorer, endpoints = make(NoHitLruScorer), named("a", "b", "c")
    decode, prefill = build.endpoint("a"), build.endpoint("b")
    scorer.picked(asking(), Pick((decode,), prefill=prefill))
    assert scorer.score(asking(), endpoints) == [0.5, 0.0, 1.0]
    scorer.forget(prefill.id)
    assert scorer.score(asking(), endpoints) == [0.0, 1.0, 0.5]


def test_no_hit_lru_remembers_as_many_endpoints_as_it_may() -> None:
    scorer, endpoints = make(NoHitLruScorer, lruSize=1), named("a", "b")
    scorer.picked(asking(), build.pick("a"))
    scorer.picked(asking(), build.pick("b"))  # now a is as good as never used
    assert scorer.score(asking(), endpoints) == [1.0, 0.0]


def test_no_hit_lru_spreads_cold_prompts_evenly() -> None:
    """Field problem B088: cold prompt groups cluster on a few pods, llm-d/llm-d-router#346."""
    scorer, endpoints = make(NoHitLruScorer), named("a", "b", "c", "d")
    sent: Counter[str] = Counter()
    for _ in range(40):
        scores = scorer.score(asking(), endpoints)
        best = endpoints[scores.index(max(scores))]
        sent[best.name] += 1
        scorer.picked(asking(), Pick((best,)))
    assert set(sent.values()) == {10}


@pytest.mark.parametrize(
    ("label", "score"),
    [
        # w = 2000: 0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 1000 / 2000)
        pytest.param("0-2000", 0.3 + 0.7 * (0.7 / 1.2 + 0.15), id="inside"),
        pytest.param("1000-1000", 0.79, id="a range of one"),
        pytest.param("0-500", 0.2, id="above by 500"),
        pytest.param("4000-8000", 0.075, id="below by 3000"),
        pytest.param("many", 0.5, id="not a range"),
        pytest.param("9-1", 0.5, id="upside down"),
    ],
)
def test_context_length_aware(label: str, score: float) -> None:
    asked = build.request(prompt_tokens=1000)
    endpoints = [build.endpoint(labels={LABEL: label}), build.endpoint()]
    assert make(ContextLengthAware).score(asked, endpoints) == pytest.approx([score, 0.5])


def test_header_label_affinity_scorer() -> None:
    scorer = make(HeaderLabelAffinityScorer, headerName="X-Team", labelKey="team")
    endpoints = [build.endpoint(labels={"team": "red"}), build.endpoint()]
    assert scorer.score(build.request(headers={"x-team": "red"}), endpoints) == [1.0, 0.0]
    assert scorer.score(build.request(), endpoints) == [0.0, 0.0]


HOST, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/rack"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def test_topology_scorer_grades_by_the_nearest_shared_level() -> None:
    peer = build.endpoint("p", labels={HOST: "h", RACK: "r", ZONE: "z", REGION: "g"})
    labels = [{HOST: "h"}, {HOST: "i", RACK: "r"}, {ZONE: "z"}, {REGION: "g"}, {HOST: "j"}, {}]
    endpoints = [build.endpoint(labels=these) for these in labels]
    scorer = make(TopologyAffinityScorer)
    assert scorer.score(build.request(peer=peer), endpoints) == [1.0, 0.2, 0.05, 0.02, 0.0, 0.0]
    assert scorer.score(build.request(), endpoints) == [0.0] * 6
    assert scorer.score(build.request(peer=build.endpoint("q")), endpoints) == [0.0] * 6


def hot(*values: float | None) -> list[Endpoint]:
    told = [{} if value is None else {"heat": value} for value in values]
    return [build.endpoint(load=build.load(attributes=these)) for these in told]


@pytest.mark.parametrize(
    ("algorithm", "scores"),
    [
        pytest.param({"type": "linear_lower_is_better"}, [1.0, 0.75, 0.0, 0.0], id="lower"),
        pytest.param({"type": "linear_higher_is_better"}, [0.0, 0.25, 1.0, 0.0], id="higher"),
        pytest.param(
            {
                "type": "linear_lower_is_better",
                "normalization": {"fixedRange": {"min": 20, "max": 40}},
            },
            [1.0, 1.0, 0.0, 0.0],
            id="fixed range, clamped",
        ),
        pytest.param(
            {"type": "linear_higher_is_better", "fixedRange": {"min": 0, "max": 100}},
            [0.1, 0.2, 0.5, 0.0],
            id="fixed range, flat spelling",
        ),
    ],
)
def test_endpoint_attribute_scorer(algorithm: dict[str, Any], scores: list[float]) -> None:
    scorer = make(EndpointAttributeScorer, attributeKey="heat", algorithm=algorithm)
    assert scorer.score(build.request(), hot(10, 20, 50, None)) == pytest.approx(scores)


def test_endpoint_attribute_scorer_has_no_say_among_equals() -> None:
    scorer = make(
        EndpointAttributeScorer, attributeKey="heat", algorithm={"type": "linear_lower_is_better"}
    )
    assert scorer.score(build.request(), hot(7, None, 7)) == [1.0, 0.0, 1.0]
    assert scorer.score(build.request(), hot(None)) == [0.0]


def share(picker: Any, scores: list[float], draws: int = 4000) -> list[float]:
    endpoints = [build.endpoint(str(i)) for i in range(len(scores))]
    won = Counter(picker.pick(endpoints, scores)[0].name for _ in range(draws))
    return [won[str(i)] / draws for i in range(len(scores))]


def test_max_score_picker_breaks_ties_at_random() -> None:
    assert share(make(MaxScorePicker), [1.0, 2.0, 2.0]) == pytest.approx([0, 0.5, 0.5], abs=0.03)


def test_random_picker_does_not_look_at_scores() -> None:
    assert share(make(RandomPicker), [0.0, 9.0]) == pytest.approx([0.5, 0.5], abs=0.03)


def test_weighted_random_picker_goes_by_the_scores() -> None:
    shares = share(make(WeightedRandomPicker), [3.0, 1.0, 0.0])
    assert shares == pytest.approx([0.75, 0.25, 0.0], abs=0.03)


def test_weighted_random_picker_is_uniform_when_all_score_0() -> None:
    shares = share(make(WeightedRandomPicker), [0.0, 0.0])
    assert shares == pytest.approx([0.5, 0.5], abs=0.03)


def test_weighted_random_picker_stands_tiny_scores() -> None:
    shares = share(make(WeightedRandomPicker), [3e-9, 1e-9])
    assert shares == pytest.approx([0.75, 0.25], abs=0.03)


def test_weighted_random_picker_puts_endpoints_of_score_0_last() -> None:
    picker = make(WeightedRandomPicker, maxNumOfEndpoints=3)
    for _ in range(20):
        chosen = picker.pick(named("a", "b", "c"), [0.0, 0.2, 5.0])
        assert chosen[2].name == "a"


def test_prefix_affinity_keeps_those_that_hold_enough() -> None:
    keep = make(PrefixCacheAffinityFilter)
    endpoints = named("a", "b", "c")
    assert names(keep.filter(asking({"a": 8, "b": 10, "c": 7}), endpoints)) == ["a", "b"]
    assert names(keep.filter(asking({"a": 7}), endpoints)) == ["a", "b", "c"]


def test_prefix_affinity_breaks_when_the_wait_is_too_long() -> None:
    # at 1000 tokens/s: sticky a waits 5 s, b 1 s, so the penalty is 4000 ms
    ledger = booked(a=(1, 5000), b=(1, 1000), c=(1, 3000))
    endpoints, asked = named("a", "b", "c"), asking({"a": 10})
    for limit, kept in ((4000, ["a"]), (3999, ["a", "b", "c"]), (0, ["a"])):
        keep = make(
            PrefixCacheAffinityFilter,
            ledger,
            peakPrefillThroughput=1000,
            maxTTFTPenaltyMs=limit,
        )
        assert names(keep.filter(asked, endpoints)) == kept


def test_prefix_affinity_explores_and_switches_off() -> None:
    endpoints, asked = named("a", "b"), asking({"a": 10})
    assert len(make(PrefixCacheAffinityFilter, affinityThreshold=0).filter(asked, endpoints)) == 2
    always = make(PrefixCacheAffinityFilter, explorationProbability=1)
    assert len(always.filter(asked, endpoints)) == 2


def names(endpoints: Any) -> list[str]:
    return [endpoint.name for endpoint in endpoints]


def test_utilization_detector_is_the_mean_of_the_larger_ratios() -> None:
    endpoints = [
        build.endpoint(load=build.load(queued=10, kv_usage=0.4)),  # max(2.0, 0.5)
        build.endpoint(load=build.load(queued=1, kv_usage=0.8)),  # max(0.2, 1.0)
        build.endpoint(queued=None),  # unknown: 1.0
    ]
    assert make(UtilizationDetector).saturation(endpoints) == pytest.approx(4.0 / 3)
    ignoring = make(UtilizationDetector, stalenessPolicy="ignore")
    assert ignoring.saturation(endpoints) == pytest.approx(1.5)


@pytest.mark.parametrize(("mode", "full"), [("requests", 0.25), ("tokens", 0.35), ("hybrid", 0.45)])
def test_concurrency_detector(mode: str, full: float) -> None:
    # a: 4 of 10 requests, 200 of 1000 tokens; b: 1 of 10 and 500 of 1000
    ledger = booked(a=(4, 50), b=(1, 500))
    detector = make(
        ConcurrencyDetector,
        ledger,
        concurrencyMode=mode,
        maxConcurrency=10,
        maxTokenConcurrency=1000,
    )
    assert detector.saturation(named("a", "b")) == pytest.approx(full)


def test_probabilistic_admitter_drops_by_the_fifth_power() -> None:
    # q = 1 of 5: 0.2^5 * 300 = 0.096
    admitter, endpoint = make(ProbabilisticAdmitter), build.endpoint(queued=1)
    dropped = 0
    for _ in range(4000):
        try:
            admitter.admit(build.request(priority=-1), [endpoint])
        except Saturated:
            dropped += 1
    assert dropped / 4000 == pytest.approx(0.096, abs=0.015)


def test_probabilistic_admitter_always_drops_from_saturation_0_34_on() -> None:
    admitter = make(ProbabilisticAdmitter)
    with pytest.raises(Saturated, match=r"loaded \(1\.00\)"):
        admitter.admit(build.request(priority=-1), [build.endpoint(queued=None)])
    admitter.admit(build.request(priority=-1), [build.endpoint(queued=0)])
    admitter.admit(build.request(priority=-1), [])


@pytest.mark.parametrize(
    ("params", "says"),
    [
        pytest.param({}, False, id="0 is never"),
        pytest.param({"nonCachedTokens": 360}, True, id="exactly enough uncached"),
        pytest.param({"nonCachedTokens": 361}, False, id="one too few"),
        pytest.param({"nonCachedTokens": 1, "promptTokens": 1000}, True, id="prompt long enough"),
        pytest.param({"nonCachedTokens": 1, "promptTokens": 1001}, False, id="prompt too short"),
    ],
)
def test_prefix_based_decider(params: dict[str, int], says: bool) -> None:
    # 1000 tokens, 10 blocks of 64 cached: 360 are not
    decider = make(PrefixBasedPdDecider, **params)
    assert decider.disaggregate(asking({"a": 10}), build.endpoint("a")) is says


def test_the_other_deciders() -> None:
    always, multimodal = make(AlwaysDisaggPdDecider), make(AlwaysDisaggMultimodalDecider)
    text, image = build.request(), build.request(multimodal=True)
    assert always.disaggregate(text, build.endpoint())
    assert not multimodal.disaggregate(text, build.endpoint())
    assert multimodal.disaggregate(image, build.endpoint())


def test_mm_embeddings_scorer_is_the_share_of_media_held() -> None:
    # 4 images: 3 / 4, 1 / 4, none
    match = MediaMatch((1, 2, 3, 4), {"a": 3, "b": 1})  # type: ignore[dict-item]
    scorer, endpoints = make(MmEmbeddingsCacheScorer), named("a", "b", "c")
    assert scorer.score(build.request(media_match=match), endpoints) == [0.75, 0.25, 0.0]
    assert scorer.score(build.request(), endpoints) == [0.0, 0.0, 0.0]
