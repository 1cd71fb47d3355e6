"""Plugins of others never break traffic. The budgets: 5 ms a call, 10 faults in a row, 60 s rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from epp import plugin
from epp.clock import ManualClock
from epp.errors import Saturated
from epp.model import Endpoint, InferenceRequest, Pick, Usage
from epp.plugin import ProfileResult
from epp.wrap import guard
from tests.support import build

A, B, STRANGER = build.endpoint("a"), build.endpoint("b"), build.endpoint("stranger")
REQUEST = build.request()


class Odd:
    """Has one method, which does what it is told."""

    type = "odd"

    def __init__(self, method: str, act: Callable[..., Any]) -> None:
        setattr(self, method, act)


class World:
    def __init__(self, method: str, act: Callable[..., Any]) -> None:
        self.clock = ManualClock()
        self.told: list[str] = []
        self.plugin = guard.guard(
            Odd(method, act), "mine", self.clock, lambda name, kind: self.told.append(kind)
        )


def raises(*_: Any) -> Any:
    raise KeyError("secret")


class OneProfile:
    names = ("default",)

    def run(self, name: str, request: InferenceRequest) -> ProfileResult:
        return ProfileResult((B,), (A, B), (0.0, 1.0))


#: method, arguments, what is done if the plugin has no say, answers of the wrong shape
METHODS: list[tuple[str, tuple[Any, ...], Any, list[Any]]] = [
    ("filter", (REQUEST, (A, B)), (A, B), [None, 5, (STRANGER,), ("a",), "a"]),
    ("screen", (REQUEST, (A, B)), (A, B), [None, (STRANGER,)]),
    ("score", (REQUEST, (A, B)), [0.0, 0.0], [None, [1.0], [1.0, float("nan")], ["1", "2"]]),
    ("pick", ((A, B), [0.1, 0.9]), [B], [None, (), ("b",), (STRANGER,)]),
    ("handle", (REQUEST, OneProfile()), Pick((B,)), [None, Pick(()), (B,)]),
    ("enrich", (REQUEST, (A, B)), REQUEST, [None, {}]),
    ("prepare", (REQUEST,), REQUEST, [None]),
    ("share", (REQUEST, Pick((A,))), b"", [None, "text", 5]),
    ("heard", (b"fact", A, None), None, []),
    ("admit", (REQUEST, (A, B)), None, []),
    ("picked", (REQUEST, Pick((A,))), None, []),
    ("ended", (REQUEST, Pick((A,)), None), None, []),
    ("forget", (A.id,), None, []),
    ("disaggregate", (REQUEST, A), False, []),
    ("saturation", ((A, B),), 0.0, []),
    ("request_headers", (REQUEST, Pick((A,))), {}, [None, {"x": 5}, ["x"]]),
    ("answer_headers", (REQUEST, Pick((A,)), ""), {}, [None, {"x": 5}, ["x"]]),
    (
        "report",
        (REQUEST, Pick((A,)), Usage()),
        {},
        [
            None,
            {"space": None},
            {"space": {"x": float("nan")}},
            {"space": {"x": "1"}},
            {"space": {5: 1.0}},
            {5: {"x": 1.0}},
        ],
    ),
]
BY_METHOD = [pytest.param(*row[:3], id=row[0]) for row in METHODS]


@pytest.mark.parametrize(("method", "arguments", "instead"), BY_METHOD)
def test_a_call_that_raises_has_no_say_and_is_counted(
    method: str, arguments: tuple[Any, ...], instead: Any
) -> None:
    world = World(method, raises)
    assert getattr(world.plugin, method)(*arguments) == instead
    assert world.told == ["raised"]


def test_a_fact_that_cannot_be_read_is_no_fault_of_the_plugin() -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("what is this?")

    world = World("heard", refuse)
    with pytest.raises(ValueError, match="what is this"):
        world.plugin.heard(b"fact", A, None)
    assert world.told == []


def test_a_call_that_exits_the_process_has_no_say() -> None:
    def leave(*_: Any) -> Any:
        raise SystemExit(1)

    world = World("score", leave)
    assert world.plugin.score(REQUEST, (A, B)) == [0.0, 0.0]
    assert world.told == ["raised"]


@pytest.mark.parametrize(
    ("method", "arguments", "instead", "wrong"),
    [
        pytest.param(method, arguments, instead, wrong, id=f"{method} {wrong!r:.20}")
        for method, arguments, instead, answers in METHODS
        for wrong in answers
    ],
)
def test_an_answer_of_the_wrong_shape_has_no_say(
    method: str, arguments: tuple[Any, ...], instead: Any, wrong: Any
) -> None:
    world = World(method, lambda *_: wrong)
    assert getattr(world.plugin, method)(*arguments) == instead
    assert world.told == ["bad-result"]


def test_a_good_answer_is_handed_on_untouched() -> None:
    scores = [0.25, 1]
    world = World("score", lambda *_: scores)
    assert world.plugin.score(REQUEST, (A, B)) is scores
    assert world.told == []


def test_more_than_five_milliseconds_are_too_slow() -> None:
    for seconds, scores, told in (
        (0.005, [1.0, 1.0], []),
        (0.0051, [0.0, 0.0], ["too-slow"]),
    ):
        world = World("score", lambda *_: [1.0, 1.0])
        world.plugin = guard.guard(
            Odd("score", lambda *_: world.clock.advance(seconds) or [1.0, 1.0]),  # noqa: B023
            "mine",
            world.clock,
            lambda _, kind: world.told.append(kind),  # noqa: B023
        )
        assert world.plugin.score(REQUEST, (A, B)) == scores
        assert world.told == told


def test_an_error_with_an_http_answer_is_the_plugins_say() -> None:
    def refuse(*_: Any) -> None:
        raise Saturated("full")

    world = World("admit", refuse)
    for _ in range(20):
        with pytest.raises(Saturated):
            world.plugin.admit(REQUEST, (A,))
    assert world.told == []


def test_the_tenth_fault_in_a_row_leaves_the_plugin_out_for_a_minute() -> None:
    calls = 0

    def act(*_: Any) -> Any:
        nonlocal calls
        calls += 1
        raise KeyError

    world = World("score", act)
    for _ in range(50):
        world.plugin.score(REQUEST, (A, B))
    assert calls == 10
    assert world.told == ["raised"] * 10 + ["disabled"]
    world.clock.advance(59.9)
    world.plugin.score(REQUEST, (A, B))
    assert calls == 10
    world.clock.advance(0.2)
    world.plugin.score(REQUEST, (A, B))
    assert calls == 11
    assert world.told[11:] == ["enabled", "raised"]


def test_a_good_call_ends_the_row() -> None:
    answers = iter(([None] * 9 + [[1.0, 1.0]]) * 3)
    world = World("score", lambda *_: next(answers))
    for _ in range(30):
        world.plugin.score(REQUEST, (A, B))
    assert world.told == ["bad-result"] * 27


def test_a_good_call_of_another_method_does_not_end_the_row() -> None:
    world = World("score", raises)
    inner = Odd("score", raises)
    inner.picked = lambda *_: None  # type: ignore[attr-defined]
    mine = guard.guard(inner, "mine", world.clock, lambda _, kind: world.told.append(kind))
    for _ in range(10):
        mine.score(REQUEST, (A, B))
        mine.picked(REQUEST, Pick((A,)))
    assert world.told[-1] == "disabled"


def test_a_plugin_that_rests_still_hears_of_lost_endpoints() -> None:
    heard: list[Any] = []
    inner = Odd("score", raises)
    inner.forget = heard.append  # type: ignore[attr-defined]
    mine = guard.guard(inner, "mine", ManualClock(), lambda *_: None)
    for _ in range(10):
        mine.score(REQUEST, (A, B))
    mine.forget(A.id)
    assert heard == [A.id]


def enriched(act: Callable[..., Any]) -> tuple[Any, list[str]]:
    world = World("enrich", act)

    async def main() -> Any:
        return await world.plugin.enrich(REQUEST, (A, B))

    return asyncio.run(main()), world.told


def test_an_enricher_may_wait() -> None:
    better = build.request(id="r-2")

    async def wait(*_: Any) -> InferenceRequest:
        await asyncio.sleep(0)
        return better

    assert enriched(wait) == (better, [])


def test_an_enricher_that_waits_too_long_is_cancelled_and_has_no_say() -> None:
    cancelled = False

    async def wait(*_: Any) -> InferenceRequest:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise
        return REQUEST

    assert enriched(wait) == (REQUEST, ["too-slow"])
    assert cancelled


@pytest.mark.parametrize(("result", "told"), [(KeyError("secret"), "raised"), (None, "bad-result")])
def test_an_enricher_that_fails_after_waiting_has_no_say(result: Any, told: str) -> None:
    async def wait(*_: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(result, Exception):
            raise result
        return result

    assert enriched(wait) == (REQUEST, [told])


def test_a_guarded_plugin_satisfies_the_protocols_of_the_plugin_and_no_other() -> None:
    made: Any = World("score", raises).plugin
    assert isinstance(made, plugin.Scorer)
    for other in (plugin.Filter, plugin.Picker, plugin.Observer, plugin.PoolWatcher):
        assert not isinstance(made, other)
    assert made.type == "odd"


def test_every_method_of_a_plugin_protocol_is_guarded() -> None:
    protocols = [
        each
        for each in vars(plugin).values()
        if getattr(each, "_is_protocol", False) and getattr(each, "_is_runtime_protocol", False)
    ]
    methods = {
        name
        for protocol in protocols
        for name in vars(protocol)
        if not name.startswith("_") and callable(getattr(protocol, name))
    }
    assert methods - {"refs", "needed_profiles", "dump_state"} == set(guard._WRAPPERS)


def test_faults_name_the_plugin() -> None:
    names: list[str] = []
    mine = guard.guard(
        Odd("score", raises), "mine", ManualClock(), lambda name, _kind: names.append(name)
    )
    mine.score(REQUEST, (A,))
    assert names == ["mine"]


def test_the_best_scored_endpoint_stands_in_for_a_faulty_picker() -> None:
    endpoints: tuple[Endpoint, ...] = (A, B)
    world = World("pick", raises)
    assert world.plugin.pick(endpoints, [0.5, 0.2]) == [A]


def test_a_prefill_that_fails_has_the_prompt_computed_where_it_is_decoded() -> None:
    world = World("prefill", raises)
    done = asyncio.run(world.plugin.prefill(REQUEST, Pick((A,), prefill=A), None))
    assert (done.body, done.leg.endpoint, done.leg.reason) == (REQUEST.body, None, "plugin")
    assert world.told == ["raised"]
