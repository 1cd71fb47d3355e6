"""What is counted of predictions and of the time to the first byte."""

from __future__ import annotations

from typing import Any

import pytest

from epp.model import (
    BlockHash,
    Ending,
    Endpoint,
    InferenceRequest,
    Outcome,
    Pick,
    PrefixMatch,
    Usage,
)
from epp.observe.truth import TruthObserver
from epp.plugin import Observer
from epp.telemetry.metrics import Metrics
from tests.support import build

A, B = build.endpoint("a"), build.endpoint("b", host="10.0.0.2")
ON_A = {"endpoint_name": "a", "namespace": "default", "port": "8000"}
ON_B = {**ON_A, "endpoint_name": "b"}
RATIO = "epp_prefix_missed_ratio"


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
        world.value(f"epp_ttft_{part}_seconds_sum", streaming="true")
        for part in ("wait", "decision", "engine")
    ]
    assert parts == [1.5, 0.25, 2.25]


def test_without_a_first_byte_there_are_no_parts() -> None:
    world = World()
    world.end(build.request(arrived_at=10.0, waited=1.5), picked_at=11.75)
    assert world.value("epp_ttft_wait_seconds_sum", streaming="false") is None
