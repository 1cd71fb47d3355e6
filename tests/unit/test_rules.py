"""Objectives and model rewrites, applied to requests."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from epp.errors import BadRequest
from epp.model import InferenceRequest
from epp.rules import RuleBook, Rules, Split, Table
from tests.support import build

HALVES = Split(("a", "b"), (0.5, 1.0), "halves")


def rewritten(request: InferenceRequest, target_model: str) -> InferenceRequest:
    return msgspec.structs.replace(request, target_model=target_model)


def rules(table: Table) -> Rules:
    return Rules(rewritten, RuleBook(table), random.Random(1))


def targets(table: Table, count: int = 1, **facts: object) -> list[str]:
    request = build.request(**({"model": "m", "headers": {}} | facts))
    applied = rules(table)
    return [applied.apply(request).target_model for _ in range(count)]


@pytest.mark.parametrize(
    ("header", "priority"),
    [
        ({}, 0),
        ({"x-llm-d-inference-objective": "batch"}, -1),
        ({"x-gateway-inference-objective": "batch"}, -1),
        ({"x-llm-d-inference-objective": "unknown"}, 0),
    ],
)
def test_an_objective_gives_the_priority(header: dict[str, str], priority: int) -> None:
    request = rules(Table({"batch": -1})).apply(build.request(headers=header))
    assert request.priority == priority
    assert request.objective == next(iter(header.values()), "")


def test_an_exact_rule_wins_over_a_generic_one() -> None:
    only = {name: Split((name,), (1.0,)) for name in ("exact", "generic")}
    table = Table(exact={"m": only["exact"]}, generic=only["generic"])
    assert targets(table) == ["exact"]
    assert targets(table, model="other") == ["generic"]


def test_an_operators_rewrite_wins_over_the_clients_header() -> None:
    table = Table(exact={"m": Split(("ours",), (1.0,))})
    header = {"x-llm-d-model-name-rewrite": "theirs"}
    assert targets(table, headers=header) == ["ours"]
    assert targets(table, headers=header, model="other") == ["theirs"]


def test_requests_are_spread_by_weight() -> None:
    table = Table(generic=Split(("a", "b"), (0.9, 1.0)))
    found = Counter(targets(table, 2000))
    assert 150 < found["b"] < 250
    assert found["a"] + found["b"] == 2000


@pytest.mark.parametrize("where", ["header", "session"])
def test_a_session_keeps_its_model(where: str) -> None:
    found = set()
    for number in range(40):
        name = f"s-{number}"
        facts = {"headers": {"x-session-id": name}} if where == "header" else {"session": name}
        (only,) = set(targets(Table(generic=HALVES), 20, **facts))
        found.add(only)
    assert found == {"a", "b"}


def test_a_session_that_is_not_utf_8_keeps_its_model_too() -> None:
    assert len(set(targets(Table(generic=HALVES), 20, session="s\udcff"))) == 1


def test_a_model_that_no_body_can_hold_is_the_clients_mistake() -> None:
    asked = {"x-gateway-model-name-rewrite": "m\udcff"}
    with pytest.raises(BadRequest, match="not UTF-8"):
        targets(Table(), headers=asked)
    assert targets(Table(exact={"m": Split(("n",), (1.0,))}), headers=asked) == ["n"]
    assert targets(Table(), headers={"x-gateway-model-name-rewrite": "é"}) == ["é"]


def test_a_rewrite_to_the_same_name_changes_nothing() -> None:
    request = build.request(model="m", target_model="", headers={})
    table = Table(exact={"m": Split(("m",), (1.0,))})
    assert rules(table).apply(request).target_model == ""


def test_a_replaced_table_counts_for_the_next_request() -> None:
    book = RuleBook()
    applied = Rules(rewritten, book)
    request = build.request(model="m", headers={"x-llm-d-inference-objective": "o"})
    assert applied.apply(request).priority == 0
    book.table = Table({"o": 5})
    assert applied.apply(request).priority == 5


def test_each_choice_by_a_rule_is_told() -> None:
    told: list[tuple[str, str, str]] = []
    table = Table(exact={"m": Split(("n",), (1.0,), "rule")})
    applied = Rules(rewritten, RuleBook(table, lambda *choice: told.append(choice)))
    for model in ("m", "other", ""):
        applied.apply(build.request(model=model, headers={}))
    assert told == [("rule", "m", "n")]


@pytest.mark.parametrize(
    ("chance", "model"), [(0.0, "a"), (0.49, "a"), (0.5, "b"), (0.999_999, "b")]
)
def test_a_split_chooses_by_shares(chance: float, model: str) -> None:
    assert HALVES.choose(chance) == model
