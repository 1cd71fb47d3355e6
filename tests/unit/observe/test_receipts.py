"""What is remembered of decisions: everything that led to them, and nothing a client wrote."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from epp.build import Parts, configure
from epp.clock import ManualClock
from epp.ledger import Ledger
from epp.model import (
    BlockHash,
    Ending,
    Endpoint,
    EndpointId,
    Expected,
    InferenceRequest,
    Load,
    Outcome,
    Pick,
    PrefixMatch,
    Speed,
    Usage,
)
from epp.observe.receipts import TOP, Receipts
from epp.plugin import Profiles
from epp.pool import Pool
from epp.schedule import DEFAULT_WEIGHTS
from epp.schedule.profile import Profile
from epp.schedule.scheduler import Scheduler


def pod(number: int, **load: float) -> Endpoint:
    host = f"10.0.{number // 250}.{number % 250}"
    told = Load(at=0.0, **load) if load else None
    return Endpoint(EndpointId(f"pod-{number}"), host, 8000, f"pod-{number}", load=told)


class Without:
    type = "without-filter"

    def __init__(self, *numbers: int) -> None:
        self._ids = {f"pod-{number}" for number in numbers}

    def filter(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        return [each for each in endpoints if each.id not in self._ids]


class Fixed:
    def __init__(self, type_: str, scores: Sequence[float]) -> None:
        self.type = type_
        self._scores = scores

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        return [self._scores[int(each.id[4:])] for each in endpoints]


class Best:
    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> list[Endpoint]:
        order = sorted(range(len(endpoints)), key=lambda i: -scores[i])
        return [endpoints[i] for i in order[:2]]


class Worst:
    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> list[Endpoint]:
        return [endpoints[min(range(len(endpoints)), key=scores.__getitem__)]]


class One:
    def handle(self, request: InferenceRequest, profiles: Profiles) -> Pick:
        return Pick(profiles.run("default", request).chosen, profile="default")


class World:
    def __init__(self, most: int = 10) -> None:
        self.clock = ManualClock(100.0)
        self.ledger = Ledger()
        self.receipts = Receipts(most, self.ledger, self.clock)

    def decide(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint], *scorers: Any,
        filters: tuple[Any, ...] = (), picker: Any = None,
    ) -> Pick:  # fmt: skip
        profile = Profile("default", filters, scorers, picker or Best())
        return Scheduler({"default": profile}, One(), witness=self.receipts).pick(
            request, endpoints
        )


def test_a_receipt_says_what_each_scorer_gave_and_who_would_have_been_second() -> None:
    world = World()
    pods = [pod(0, queued=2.0, running=5.0, kv_usage=0.25), pod(1), pod(2)]
    booked = world.ledger.reserve(pods[1], 70)
    match = PrefixMatch((BlockHash(1), BlockHash(2)), 64, {pods[1].id: 2, pods[0].id: 1})
    request = InferenceRequest(
        "r-1", {}, b"", format="chat", model="m", target_model="t", prompt_tokens=100,
        arrived_at=98.0, waited=1.5, prefix={"approx": match},
    )  # fmt: skip
    world.decide(
        request, pods,
        (Fixed("queue-scorer", [0.5, 1.0, 0.0]), 2.0), (Fixed("prefix-scorer", [0.5, 1.0, 0.0]), 3.0),
        filters=(Without(2),),
    )  # fmt: skip
    booked.release()  # later than the decision: what was in flight then is what counts
    shown = world.receipts.find("r-1")
    assert shown is not None
    assert (shown["picked"], shown["fallbacks"]) == ("10.0.0.1:8000", ["10.0.0.0:8000"])
    assert (shown["model"], shown["target_model"], shown["format"]) == ("m", "t", "chat")
    # Two blocks of 64 are 128 tokens, but the prompt has only 100.
    assert (shown["prompt_tokens"], shown["predicted_cached_tokens"]) == (100, 100)
    # Arrived at 98, waited until 99.5, decided at 100.
    assert (shown["wait_seconds"], shown["decision_seconds"]) == (1.5, 0.5)
    (profile,) = shown["profiles"]
    assert profile["candidates"] == 2
    assert profile["filters"] == [
        {"filter": "without-filter", "removed": 1, "some": ["10.0.0.2:8000"]}
    ]
    assert profile["scorers"] == [
        {"scorer": "queue-scorer", "weight": 2.0}, {"scorer": "prefix-scorer", "weight": 3.0},
    ]  # fmt: skip
    first, second = profile["endpoints"]
    assert (first["endpoint"], first["total"], first["scores"]) == (
        "10.0.0.1:8000", 5.0, [1.0, 1.0],
    )  # fmt: skip
    assert (first["in_flight_requests"], first["in_flight_tokens"], first["queued"]) == (
        1,
        70,
        None,
    )
    assert (second["endpoint"], second["total"], second["predicted_cached_tokens"]) == (
        "10.0.0.0:8000", 2.5, 64,
    )  # fmt: skip
    assert (second["queued"], second["running"], second["kv_usage"]) == (2.0, 5.0, 0.25)
    assert (shown["ended"], shown["expected_ttft"]) == (None, None)


def test_a_receipt_says_how_it_ended() -> None:
    world = World()
    request = InferenceRequest("r-1", {}, b"", arrived_at=99.0)
    pick = world.decide(request, [pod(0), pod(1)])
    ending = Ending(
        Outcome.COMPLETED, 103.0, 200, "10.0.0.1:8000", 99.25, 12, streamed=True,
        usage=Usage(100, 7, 64), attempts=2, flags="response_timeout",
    )  # fmt: skip
    world.receipts.ended(request, pick, ending)
    (shown,) = world.receipts.last(5)
    assert shown["ended"] == {
        "outcome": "completed", "status": 200, "served": "10.0.0.1:8000", "served_as_picked": False,
        "attempts": 2, "flags": "response_timeout", "ttft_seconds": 0.25, "duration_seconds": 4.0,
        "streamed": True,
        "prefill_leg": None, "response_bytes": 12, "prompt_tokens": 100, "completion_tokens": 7,
        "cached_tokens": 64,
        "ttft": {
            "total_seconds": 0.25, "wait_seconds": 0.0, "decision_seconds": 0.0,
            "engine_seconds": 0.25, "remote_prefill_seconds": None, "queue_seconds": None,
            "prefill_seconds": None, "rest_seconds": None,
        },
    }  # fmt: skip


class Foresees:
    """1,000 tokens a second and 20 ms besides; 300 tokens are before the 500 of the request."""

    def expect(self, request: InferenceRequest, pick: Pick) -> Expected | None:
        return Expected(300.0, 500.0, Speed(0.001, 0.02, 9))


def test_a_receipt_says_what_the_first_token_was_expected_to_wait_for_and_what_it_did() -> None:
    world = World()
    request = InferenceRequest(
        "r-1", {}, b"", arrived_at=98.0, waited=1.5, prompt_tokens=500, streaming=True
    )
    scheduler = Scheduler(
        {"default": Profile("default", (), (), Best())}, One(),
        witness=world.receipts, forecaster=Foresees(),
    )  # fmt: skip
    pick = scheduler.pick(request, [pod(0)])
    (shown,) = world.receipts.last(1)
    # Arrived at 98, waited until 99.5, decided at 100; then 0.3 s, 0.5 s and 20 ms.
    assert shown["expected_ttft"] == {
        "total_seconds": 2.82, "wait_seconds": 1.5, "decision_seconds": 0.5,
        "engine_seconds": 0.82, "remote_prefill_seconds": None, "queue_seconds": 0.3,
        "prefill_seconds": 0.5, "rest_seconds": 0.02,
    }  # fmt: skip
    assert world.receipts.summary(pick).endswith("; expected-ttft=2820.0ms")
    ending = Ending(
        Outcome.COMPLETED, 103.0, 200, first_byte_at=101.0, streamed=True, picked_at=100.125
    )
    world.receipts.ended(request, pick, ending)
    (shown,) = world.receipts.last(1)
    assert shown["ended"]["ttft"] == {
        "total_seconds": 3.0, "wait_seconds": 1.5, "decision_seconds": 0.625,
        "engine_seconds": 0.875, "remote_prefill_seconds": None, "queue_seconds": 0.3,
        "prefill_seconds": 0.5, "rest_seconds": 0.075,
    }  # fmt: skip
    assert shown["ended"]["ttft_seconds"] == shown["ended"]["ttft"]["total_seconds"]


def test_of_many_candidates_the_best_are_kept_and_the_chosen_one_always() -> None:
    draw = random.Random(5)
    for count in (TOP, TOP + 1, 33, 300, 1000):
        world = World()
        scores = [draw.choice((0.1, 0.2, draw.random())) for _ in range(count)]
        pods = [pod(i) for i in range(count)]
        request = InferenceRequest("r", {}, b"")
        pick = world.decide(request, pods, (Fixed("s", scores), 1.0), picker=Worst())
        shown = world.receipts.last(1)[0]["profiles"][0]
        totals = [each["total"] for each in shown["endpoints"]]
        assert totals[:TOP] == [round(score, 6) for score in sorted(scores)[::-1][:TOP]]
        assert pick.endpoints[0].address in {each["endpoint"] for each in shown["endpoints"]}
        assert shown["candidates"] == count


def test_equal_scores_of_a_large_pool_keep_no_more_than_the_top() -> None:
    world = World()
    pods = [pod(i) for i in range(1000)]
    world.decide(InferenceRequest("r", {}, b""), pods, (Fixed("s", [0.5] * 1000), 1.0))
    shown = world.receipts.last(1)[0]["profiles"][0]
    assert len(shown["endpoints"]) == TOP


def test_the_oldest_decisions_give_way_and_the_newest_comes_first() -> None:
    world = World(most=2)
    picks = {}
    for name in ("a", "b", "c"):
        picks[name] = world.decide(InferenceRequest(name, {}, b""), [pod(0)])
        world.clock.advance(1.0)
    assert [each["request_id"] for each in world.receipts.last(9)] == ["c", "b"]
    assert [each["seconds_ago"] for each in world.receipts.last(9)] == [1.0, 2.0]
    assert world.receipts.last(1)[0]["request_id"] == "c"
    assert world.receipts.find("a") is None
    ending = Ending(Outcome.UNKNOWN, 101.0)
    world.receipts.ended(InferenceRequest("a", {}, b""), picks["a"], ending)  # of one that is gone


@pytest.mark.parametrize("prefix", ["cmpl-", "chatcmpl-"])
def test_a_decision_is_found_by_the_id_of_vllms_answer(prefix: str) -> None:
    world = World()
    world.decide(InferenceRequest("9f1c", {}, b""), [pod(0)])
    found = world.receipts.find(f"{prefix}9f1c")
    assert found is not None
    assert found["request_id"] == "9f1c"
    assert world.receipts.find(f"x{prefix}9f1c") is None


def test_of_two_decisions_about_one_id_the_newer_is_found_and_each_gets_its_own_ending() -> None:
    world = World()
    request = InferenceRequest("same", {}, b"")
    first = world.decide(request, [pod(0)])
    world.decide(request, [pod(1)])
    world.receipts.ended(request, first, Ending(Outcome.FAILED, 101.0, 503))
    newest, older = world.receipts.last(2)
    assert world.receipts.find("same") == newest
    assert (newest["picked"], newest["ended"]) == ("10.0.0.1:8000", None)
    assert (older["picked"], older["ended"]["status"]) == ("10.0.0.0:8000", 503)


def test_a_built_pipeline_tells_of_each_decision_by_the_plugins_own_names() -> None:
    class Timings:
        def scheduled(self, seconds: float) -> None:
            pass

        def plugin_ran(self, point: str, kind: str, name: str, seconds: float) -> None:
            pass

    world = World(most=40)
    parts = Parts(
        clock=world.clock, random=random.Random(1), ledger=world.ledger, pool=Pool("p"),
        timings=Timings(), witness=world.receipts, forecaster=Foresees(),
    )  # fmt: skip
    scheduler = configure(None, parts)[1].scheduler
    for i in range(20):  # one of 16 decisions runs plugins that are timed
        scheduler.pick(InferenceRequest(f"r-{i}", {}, b""), [pod(0), pod(1)])
    told = world.receipts.last(40)
    assert len(told) == 20
    for each in told:
        scorers = each["profiles"][0]["scorers"]
        found = [(scorer["scorer"], scorer["weight"]) for scorer in scorers]
        assert found == list(DEFAULT_WEIGHTS)
        assert each["expected_ttft"]["queue_seconds"] == 0.3


def test_an_id_that_is_no_utf8_is_found_as_it_came_and_as_it_is_shown() -> None:
    world = World()
    world.decide(InferenceRequest("r\udcff" * 300, {}, b""), [pod(0)])
    (kept,) = world.receipts.last(1)
    assert kept["request_id"] == r"r\udcff" * 128
    assert world.receipts.find("r\udcff" * 300) == world.receipts.find(kept["request_id"]) == kept


def test_nothing_a_client_wrote_is_kept_but_ids_and_names_and_those_are_cut() -> None:
    world = World()
    request = InferenceRequest(
        "i" * 5000, {"authorization": "Bearer KEY"}, b"BODY", model="m" * 5000,
        target_model="m" * 5000, prompt=b"PROMPT", salt="SALT", session="SESSION", flow="FLOW",
    )  # fmt: skip
    world.decide(request, [pod(0)])
    shown = world.receipts.find("i" * 5000)
    assert shown is not None
    text = msgspec.json.encode(shown).decode()
    assert "i" * 256 in text
    assert "i" * 257 not in text
    assert "m" * 257 not in text
    assert not [
        word for word in ("KEY", "BODY", "PROMPT", "SALT", "SESSION", "FLOW") if word in text
    ]


def test_scores_of_an_odd_shape_lose_the_receipt_and_not_the_request() -> None:
    class Odd:
        type = "odd"

        def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Any:
            return dict.fromkeys(float(i) / 2000 for i in range(len(endpoints)))

    world = World()
    pods = [pod(i) for i in range(TOP + 1)]
    pick = world.decide(InferenceRequest("r", {}, b""), pods, (Odd(), 1.0))
    assert pick.endpoints
    assert (world.receipts.failed, world.receipts.last(1)) == (1, [])


def test_the_summary_is_one_line_while_the_request_is_open() -> None:
    world = World()
    request = InferenceRequest("r", {}, b"", arrived_at=99.998)
    pick = world.decide(request, [pod(0), pod(1)], (Fixed("s", [0.25, 0.75]), 2.0))
    assert world.receipts.summary(pick) == (
        "picked=10.0.0.1:8000; candidates=2; score=1.500; predicted-cached=0; wait=0.0ms; "
        "decision=2.00ms"
    )
    world.receipts.ended(request, pick, Ending(Outcome.COMPLETED, 101.0))
    assert world.receipts.summary(pick) == ""
