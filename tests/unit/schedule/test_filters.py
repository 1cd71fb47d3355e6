"""The filters one by one; that they return subsets in order is in the contract tests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epp.flow.saturation import ConcurrencyDetector, UtilizationDetector
from epp.ledger import Ledger
from epp.model import Endpoint
from epp.schedule.filters.attribute import EndpointAttributeFilter
from epp.schedule.filters.labels import ByLabelFilter, ByLabelSelectorFilter, LabelSelectorFilter
from epp.schedule.filters.prefix_affinity import PrefixCacheAffinityFilter
from epp.schedule.filters.roles import DecodeFilter, EncodeFilter, PrefillFilter
from epp.schedule.filters.testing import HeaderBasedTestingFilter
from epp.schedule.filters.topology import TopologyAffinityFilter
from epp.schedule.filters.utilization import UtilizationFilter
from epp.schedule.scorers.context_length import LABEL, ContextLengthAware
from tests.support import build


def make(cls: type[Any], ledger: Ledger | None = None, **params: Any) -> Any:
    return cls(msgspec.convert(params, cls.Params), build.tools(ledger=ledger))


def kept(chosen: Any, endpoints: list[Endpoint], **facts: Any) -> str:
    """The names of what is left, joined."""
    return "".join(e.name for e in chosen.filter(build.request(**facts), endpoints))


LABELLED = [
    build.endpoint("a", labels={"zone": "eu", "gpu": "h100"}),
    build.endpoint("b", labels={"zone": "us"}),
    build.endpoint("c"),
]


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        pytest.param({}, "abc", id="empty"),
        pytest.param({"matchLabels": {"zone": "eu"}}, "a", id="equal"),
        pytest.param({"matchLabels": {"zone": "eu", "gpu": "x"}}, "", id="all must be equal"),
        pytest.param(
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["eu", "us"]}]},
            "ab",
            id="in",
        ),
        pytest.param(
            {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["eu"]}]},
            "bc",
            id="not in, also without the label",
        ),
        pytest.param({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, "a", id="has"),
        pytest.param(
            {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}, "bc", id="has not"
        ),
        pytest.param(
            {
                "matchLabels": {"zone": "us"},
                "matchExpressions": [{"key": "gpu", "operator": "Exists"}],
            },
            "",
            id="both must hold",
        ),
    ],
)
def test_label_selector(selector: dict[str, Any], left: str) -> None:
    assert kept(make(LabelSelectorFilter, **selector), LABELLED) == left


@pytest.mark.parametrize(
    ("operator", "values", "says"),
    [("In", [], "In needs values"), ("Exists", ["x"], "Exists takes no values")],
)
def test_a_label_selector_that_kubernetes_refuses_is_refused(
    operator: str, values: list[str], says: str
) -> None:
    rule = {"key": "zone", "operator": operator, "values": values}
    with pytest.raises(ValueError, match=says):
        make(LabelSelectorFilter, matchExpressions=[rule])


def test_the_older_label_filters() -> None:
    assert kept(make(ByLabelSelectorFilter, zone="eu", gpu="h100"), LABELLED) == "a"
    assert kept(make(ByLabelSelectorFilter), LABELLED) == "abc"
    assert kept(make(ByLabelFilter, label="zone", validValues=["us"]), LABELLED) == "b"
    assert (
        kept(make(ByLabelFilter, label="gpu", validValues=["x"], allowsNoLabel=True), LABELLED)
        == "bc"
    )
    with pytest.raises(ValueError, match="'zone' can match nothing"):
        make(ByLabelFilter, label="zone")


ROLES = {
    "1": "encode",
    "2": "prefill",
    "3": "decode",
    "4": "encode-prefill",
    "5": "prefill-decode",
    "6": "both",
    "7": "encode-prefill-decode",
    "8": "something",
}


@pytest.mark.parametrize(
    ("cls", "left"), [(EncodeFilter, "147"), (PrefillFilter, "24567"), (DecodeFilter, "35679")]
)
def test_role_filters(cls: type[Any], left: str) -> None:
    endpoints = [build.endpoint(n, labels={"llm-d.ai/role": role}) for n, role in ROLES.items()]
    assert kept(make(cls), [*endpoints, build.endpoint("9")]) == left


BUSY = [
    build.endpoint("a", load=build.load(queued=2, running=10, kv_usage=0.5)),
    build.endpoint("b", load=build.load(queued=3, running=4, kv_usage=0.9)),
    build.endpoint("c", queued=None),
]


@pytest.mark.parametrize(
    ("metric", "most", "left"),
    [
        pytest.param("waiting-queue", 2, "a", id="the cap itself passes, unknown does not"),
        pytest.param("running-requests", 5, "b", id="running"),
        pytest.param("kv-cache-utilization", 0.5, "a", id="kv"),
        pytest.param("active-requests", 1, "bc", id="in flight is known of all"),
        pytest.param("waiting-queue", 0, "", id="nobody"),
    ],
)
def test_utilization_filter(metric: str, most: float, left: str) -> None:
    ledger = Ledger()
    ledger.reserve(BUSY[0], 10)
    ledger.reserve(BUSY[0], 10)
    cap = {"metric": metric, "maxValue": most}
    assert kept(make(UtilizationFilter, ledger, conditions=[cap]), BUSY) == left
    open_ended = make(UtilizationFilter, ledger, conditions=[cap], fallbackOnEmpty=True)
    assert kept(open_ended, BUSY) == (left or "abc")


def test_a_cap_on_what_nobody_tells_is_left_out() -> None:
    caps = [{"metric": "waiting-queue", "maxValue": 1}]
    assert kept(make(UtilizationFilter, conditions=caps), [BUSY[2]]) == "c"


HEAT = [
    build.endpoint(name, load=build.load(attributes={} if heat is None else {"heat": heat}))
    for name, heat in zip("abcde", (10.0, 20.0, 20.0, 40.0, None), strict=True)
]


@pytest.mark.parametrize(
    ("algorithm", "left"),
    [
        ({"type": "threshold", "threshold": {"operator": "LessThan", "value": 20}}, "ae"),
        ({"type": "threshold", "operator": "LessThanOrEqual", "value": 20}, "abce"),
        ({"type": "threshold", "operator": "GreaterThan", "value": 20}, "de"),
        ({"type": "threshold", "operator": "GreaterThanOrEqual", "value": 20}, "bcde"),
        ({"type": "threshold", "operator": "Equal", "value": 20}, "bce"),
        ({"type": "threshold", "operator": "NotEqual", "value": 20}, "ade"),
        ({"type": "range", "range": {"min": 15, "max": 20}}, "bce"),
        ({"type": "topK", "topK": {"k": 2}}, "bde"),
        ({"type": "topK", "topK": {"k": 9, "higherIsBetter": False}}, "abcde"),
        # nearest rank of 25 % of 4 values is the first, 10; of 75 % the third, 20
        ({"type": "percentile", "percentile": {"percentile": 25, "higherIsBetter": False}}, "ae"),
        ({"type": "percentile", "percentile": {"percentile": 75}}, "bcde"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_endpoint_attribute_filter(algorithm: dict[str, Any], left: str) -> None:
    assert kept(make(EndpointAttributeFilter, attribute="heat", algorithm=algorithm), HEAT) == left
    strict = make(EndpointAttributeFilter, attribute="heat", algorithm=algorithm, onMissing="Fail")
    assert kept(strict, HEAT) == left.replace("e", "")


def test_endpoint_attribute_filter_falls_back_if_asked() -> None:
    nobody = {"type": "threshold", "operator": "LessThan", "value": 0}
    for fallback, left in ((False, ""), (True, "abcde")):
        chosen = make(
            EndpointAttributeFilter,
            attribute="heat",
            algorithm=nobody,
            onMissing="Fail",
            fallbackOnEmpty=fallback,
        )
        assert kept(chosen, HEAT) == left


@pytest.mark.parametrize(
    ("params", "says"),
    [
        pytest.param(
            {"attribute": "a/b", "algorithm": {"type": "topK", "topK": {"k": 1}}},
            "set producer too",
            id="a slash",
        ),
        pytest.param(
            {"attribute": "a", "algorithm": {"type": "range", "range": {"min": 2, "max": 1}}},
            r"min 2\.0 is above max 1\.0",
            id="upside down",
        ),
        pytest.param(
            {"attribute": "a", "algorithm": {"type": "topK"}}, "topK is missing", id="no figures"
        ),
        pytest.param(
            {"attribute": "a", "algorithm": {"type": "threshold", "value": 1}},
            "needs operator and value",
            id="no operator",
        ),
    ],
)
def test_endpoint_attribute_filter_refuses(params: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(EndpointAttributeFilter, **params)


HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
PLACES = [
    build.endpoint("a", labels={HOST: "h1", ZONE: "z1"}),
    build.endpoint("b", labels={HOST: "h2", ZONE: "z1"}),
    build.endpoint("c", labels={HOST: "h3", ZONE: "z2"}),
    build.endpoint("d"),
]


@pytest.mark.parametrize(
    ("least", "labels", "left"),
    [
        pytest.param("host", {HOST: "h1", ZONE: "z1"}, "a", id="same host"),
        pytest.param("zone", {HOST: "h1", ZONE: "z1"}, "ab", id="same zone or nearer"),
        pytest.param("host", {HOST: "h9", ZONE: "z1"}, "abcd", id="nobody near enough"),
        pytest.param("region", {}, "abcd", id="the peer's place is unknown"),
        pytest.param("host", None, "abcd", id="no peer"),
    ],
)
def test_topology_affinity_filter(least: str, labels: dict[str, str] | None, left: str) -> None:
    peer = None if labels is None else build.endpoint("p", labels=labels)
    assert kept(make(TopologyAffinityFilter, minAffinity=least), PLACES, peer=peer) == left


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        (None, "abc"),
        ("10.0.0.2", "bc"),
        ("10.0.0.2:8001, 10.0.0.1", "ac"),
        ("10.0.0.9", ""),
        ("", ""),
    ],
)
def test_header_based_testing_filter(sent: str | None, left: str) -> None:
    endpoints = [
        build.endpoint("a", host="10.0.0.1"),
        build.endpoint("b", host="10.0.0.2"),
        build.endpoint("c", host="10.0.0.2", port=8001),
    ]
    asked = {} if sent is None else {"test-epp-endpoint-selection": sent}
    assert kept(make(HeaderBasedTestingFilter), endpoints, headers=asked) == left


@pytest.mark.parametrize(
    ("tokens", "left"), [(500, "ac"), (2048, "abc"), (3000, "bc"), (90000, "c")]
)
def test_context_length_filter_keeps_those_made_for_it(tokens: int, left: str) -> None:
    endpoints = [
        build.endpoint("a", labels={LABEL: "0-2048"}),
        build.endpoint("b", labels={LABEL: "2048-8192"}),
        build.endpoint("c"),
    ]
    assert kept(
        make(ContextLengthAware, enableFiltering=True), endpoints, prompt_tokens=tokens
    ) == (left)
    assert kept(make(ContextLengthAware), endpoints, prompt_tokens=tokens) == "abc"
    assert (
        kept(make(ContextLengthAware, enableFiltering=True), endpoints[:2], prompt_tokens=90000)
        == "ab"
    )


def test_detectors_as_filters_drop_the_full_and_keep_all_rather_than_none() -> None:
    endpoints = [build.endpoint("a", queued=4), build.endpoint("b", queued=5), BUSY[2]]
    assert kept(make(UtilizationDetector), endpoints) == "a"
    assert kept(make(UtilizationDetector, headroom=0.1), endpoints) == "ab"
    assert kept(make(UtilizationDetector, stalenessPolicy="ignore"), endpoints) == "ac"
    assert kept(make(UtilizationDetector), endpoints[1:]) == "bc"
    ledger = Ledger()
    ledger.reserve(endpoints[0], 0)
    assert kept(make(ConcurrencyDetector, ledger, maxConcurrency=1), endpoints) == "bc"
    assert kept(make(ConcurrencyDetector, ledger, maxConcurrency=1), endpoints[:1]) == "a"


def test_prefix_affinity_needs_no_predictor_and_says_so() -> None:
    with pytest.raises(ValueError, match="latencyPredictor needs predicted latencies"):
        make(PrefixCacheAffinityFilter, ttftSource="latencyPredictor")
