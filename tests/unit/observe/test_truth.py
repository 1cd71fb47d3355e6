"""What is counted of predictions and of the time to the first byte."""

from __future__ import annotations

from typing import Any

import pytest

from epp.model import (
    BlockHash,
    Ending,
    Endpoint,
    Expected,
    InferenceRequest,
    Outcome,
    Pick,
    PrefixMatch,
    Speed,
    Usage,
)
from epp.observe.truth import TruthObserver
from epp.plugin import Observer
from epp.telemetry.metrics import Metrics
from epp.telemetry.truth import MOST_CLASSES
from tests.support import build

A, B = build.endpoint("a"), build.endpoint("b", host="10.0.0.2")
ON_A = {"endpoint_name": "a", "namespace": "default", "port": "8000"}
ON_B = {**ON_A, "endpoint_name": "b"}
RATIO = "epp_prefix_missed_ratio"
SPLIT = ("remote_prefill", "queue", "prefill", "rest")

#: 1,000 tokens a second and 20 ms besides; 300 tokens are before the 500 of the request.
EXPECTED = Expected(300.0, 500.0, Speed(0.001, 0.02, 9))


class World:
    def __init__(self) -> None:
        self.metrics = Metrics(process=False)
        self.observer = TruthObserver(self.metrics.truth)

    def end(self, request: InferenceRequest, *, pick: Pick | None = None, **facts: Any) -> None:
        pick = pick or Pick((A, B))
        self.observer.picked(request, pick)
        self.observer.ended(request, pick, Ending(Outcome.COMPLETED, 20.0, 200, **facts))

    def tokens(self, where: dict[str, str]) -> list[float | None]:
        """Predicted, cached and missed so far."""
        return [
            self.value(f"epp_prefix_{name}_tokens_total", **where)
            for name in ("predicted", "cached", "missed")
        ]

    def value(self, sample: str, **labels: str) -> float | None:
        return self.metrics._registry.get_sample_value(sample, labels)


def known(**held: int) -> InferenceRequest:
    """10 blocks of 64 tokens, 640 as estimated; ``held`` of them where it may go."""
    ids = {A.id: held.get("a", 0), B.id: held.get("b", 0)}
    match = PrefixMatch(tuple(map(BlockHash, range(10))), 64, ids)
    return build.request(prompt=b"x", prompt_tokens=640, prefix={"approx": match})


# --- predictions ------------------------------------------------------------------------------


def test_it_is_an_observer() -> None:
    assert isinstance(World().observer, Observer)


def test_what_was_predicted_is_counted_beside_what_the_engine_found() -> None:
    world = World()
    # Half of the prompt, of which the engine counts 700 tokens.
    world.end(known(a=5), usage=Usage(700, 9, 320))
    assert world.tokens(ON_A) == [350, 320, 30]
    world.end(known(a=5), usage=Usage(700, 9, 400))
    assert world.tokens(ON_A) == [700, 720, 30]
    assert world.value(f"{RATIO}_count") == 2
    assert world.value(f"{RATIO}_sum") == pytest.approx(30 / 350)


def test_a_request_of_which_nothing_was_believed_counts_too() -> None:
    world = World()
    world.end(known(), usage=Usage(640, 9, 64))
    assert world.tokens(ON_A) == [0, 64, 0]
    assert world.value(f"{RATIO}_count") == 0  # no share of nothing


def test_the_prediction_is_that_for_the_endpoint_that_served() -> None:
    world = World()
    world.end(known(a=9, b=5), usage=Usage(640, 9, 320), served=B.address)
    assert world.tokens(ON_B) == [320, 320, 0]
    assert world.tokens(ON_A) == [None, None, None]


@pytest.mark.parametrize(
    ("pick", "facts"),
    [
        (Pick((A,)), {}),
        (Pick((A,)), {"usage": Usage(640, 9, None)}),
        (Pick((A,)), {"usage": Usage(640, 9, 64), "served": "10.9.9.9:1"}),
        (Pick((A,), prefill=B), {"usage": Usage(640, 9, 64)}),
    ],
    ids=["no usage", "no count", "a stranger served", "prefill elsewhere"],
)
def test_without_a_truth_about_a_known_cache_nothing_is_compared(
    pick: Pick, facts: dict[str, Any]
) -> None:
    world = World()
    world.end(known(a=5), pick=pick, **facts)
    assert world.tokens(ON_A) == [None, None, None]
    assert world.value(f"{RATIO}_count") in (None, 0)


def test_a_lost_endpoint_takes_its_counts_along() -> None:
    world = World()
    world.end(known(a=5), usage=Usage(640, 9, 320))
    world.metrics.forget(A.id)
    assert world.tokens(ON_A) == [None, None, None]
    world.metrics.forget(Endpoint(B.id, "h", 1).id)  # one that nothing was counted of


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"unread": "no-parser"}, "no-parser"),
        ({"computed": False, "prompt": b"x"}, "not-computed"),
        ({}, "no-prompt"),
        ({"prompt": b"x"}, "no-blocks"),
    ],
)
def test_why_a_prompt_was_not_known_is_counted(facts: dict[str, Any], why: str) -> None:
    world = World()
    world.end(build.request(**facts))
    assert world.value("epp_prefix_unknown_requests_total", reason=why) == 1


def test_a_known_prompt_that_nobody_holds_is_not_unknown() -> None:
    world = World()
    world.end(known())
    family = world.metrics.store["epp_prefix_unknown_requests_total"]
    assert [sample for metric in family.metrics() for sample in metric.samples] == []


# --- the first byte ----------------------------------------------------------------------------


def test_the_parts_of_the_first_byte_add_up_to_the_whole() -> None:
    world = World()
    # Arrived at 10, waited 1.5 s, was picked at 11.75 and heard of at 14.
    request = build.request(arrived_at=10.0, waited=1.5)
    world.end(request, picked_at=11.75, first_byte_at=14.0, streamed=True)
    parts = [
        world.value(f"epp_ttft_{part}_seconds_sum", priority="0", streaming="true")
        for part in ("wait", "decision", "engine")
    ]
    assert parts == [1.5, 0.25, 2.25]
    # Nothing was expected: how the engine's part splits is not known, which is not 0.
    assert [world.value(f"epp_ttft_{part}_seconds_count", priority="0") for part in SPLIT] == [
        None
    ] * len(SPLIT)


def test_by_priority_the_parts_of_streams_and_what_was_expected_are_counted() -> None:
    world = World()
    request = build.request(arrived_at=10.0, waited=1.5, prompt_tokens=500, priority=3)
    pick = Pick((A,), expected=EXPECTED)
    world.end(request, pick=pick, picked_at=11.75, first_byte_at=12.75, streamed=True)
    world.end(request, pick=pick, picked_at=11.75, first_byte_at=12.75, streamed=False)
    sums = [world.value(f"epp_ttft_{part}_seconds_sum", priority="3") for part in SPLIT]
    assert sums == [None, pytest.approx(0.3), pytest.approx(0.5), pytest.approx(0.2)]
    # 1.75 s of ours and 0.82 s expected of the engine, which took 1 s.
    assert world.value("epp_ttft_expected_seconds_sum", priority="3") == pytest.approx(2.57)
    assert world.value("epp_ttft_error_ratio_sum", role="") == pytest.approx(1 / 0.82)
    assert world.value("epp_ttft_error_ratio_count", role="") == 1  # the whole answer is no error


def test_errors_are_told_apart_by_the_role_of_the_endpoint_that_computes_the_prompt() -> None:
    world = World()
    prefill = build.endpoint("p", labels={"llm-d.ai/role": "prefill"})
    pick = Pick((A,), prefill=prefill, expected=EXPECTED)
    world.end(build.request(), pick=pick, picked_at=2.0, first_byte_at=2.41, streamed=True)
    assert world.value("epp_ttft_error_ratio_sum", role="prefill") == pytest.approx(0.5)
    assert world.value("epp_ttft_remote_prefill_seconds_sum", priority="0") == pytest.approx(0.41)


def test_priorities_and_roles_without_end_make_series_that_end() -> None:
    world = World()
    for number in range(3 * MOST_CLASSES):
        endpoint = build.endpoint(labels={"llm-d.ai/role": f"role-{number}"})
        world.end(
            build.request(priority=number), pick=Pick((endpoint,), expected=EXPECTED),
            picked_at=1.0, first_byte_at=2.0, streamed=True,
        )  # fmt: skip
    for name in ("epp_ttft_wait_seconds", "epp_ttft_queue_seconds", "epp_ttft_error_ratio"):
        made = world.metrics.store[name].histograms
        assert len(made) == MOST_CLASSES + 1  # and "other"
        assert sum(sum(each.counts) for each in made.values()) == 3 * MOST_CLASSES


def test_without_a_first_byte_there_are_no_parts() -> None:
    world = World()
    world.end(build.request(arrived_at=10.0, waited=1.5), picked_at=11.75)
    labels = {"priority": "0", "streaming": "false"}
    assert world.value("epp_ttft_wait_seconds_sum", **labels) is None
