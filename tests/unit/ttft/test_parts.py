"""A time to first token and its parts, worked out by hand; sums for anything that may happen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model import Ending, Expected, Outcome, Pick, Speed, Usage
from epp.ttft.parts import Parts, computed_tokens, expected_parts, foreseen, measured_parts
from tests.support import build

A, B = build.endpoint("a"), build.endpoint("b", host="10.0.0.2")

#: 1,000 tokens a second and 20 ms besides; 300 tokens are before this request's 500.
EXPECTED = Expected(queued=300.0, uncached=500.0, speed=Speed(0.001, 0.02, 9))
REQUEST = build.request(arrived_at=10.0, waited=1.5, prompt_tokens=800, streaming=True)


def ending(**facts: Any) -> Ending:
    """Picked at 11.75, after 1.5 s of waiting; first byte at 12.75."""
    known: dict[str, Any] = {"picked_at": 11.75, "first_byte_at": 12.75, "streamed": True}
    return Ending(Outcome.COMPLETED, 20.0, 200, **{**known, **facts})


def split(parts: Parts | None) -> list[float | None]:
    assert parts is not None
    found = (parts.remote_prefill, parts.queue, parts.prefill, parts.rest)
    return [None if each is None else round(each, 9) for each in found]


# --- expected --------------------------------------------------------------------------------


def test_the_tokens_before_and_its_own_take_their_time_and_then_comes_the_rest() -> None:
    parts = expected_parts(EXPECTED, wait=1.5, decision=0.25, elsewhere=False)
    assert parts is not None
    assert (parts.wait, parts.decision) == (1.5, 0.25)
    assert parts.engine == pytest.approx(0.82)
    assert split(parts) == [None, 0.3, 0.5, 0.02]
    assert parts.total == pytest.approx(1.5 + 0.25 + 0.82)


def test_a_prompt_computed_elsewhere_is_one_part() -> None:
    parts = expected_parts(EXPECTED, wait=0.0, decision=0.0, elsewhere=True)
    assert split(parts) == [0.8, None, None, 0.02]


@pytest.mark.parametrize("expected", [None, Expected(1.0, 1.0, None)], ids=["", "no speed"])
def test_where_nothing_was_learned_nothing_is_expected(expected: Expected | None) -> None:
    assert expected_parts(expected, wait=0.0, decision=0.0, elsewhere=False) is None


# --- measured --------------------------------------------------------------------------------


def test_what_the_speed_does_not_explain_is_the_rest() -> None:
    parts = measured_parts(REQUEST, Pick((A,), expected=EXPECTED), ending())
    assert parts is not None
    assert (parts.wait, parts.decision, parts.engine) == (1.5, 0.25, 1.0)
    assert split(parts) == [None, 0.3, 0.5, 0.2]


def test_what_the_engine_found_cached_it_did_not_compute() -> None:
    # Three quarters of 400 as the engine counts: 200 of 800 as estimated here were computed.
    parts = measured_parts(REQUEST, Pick((A,), expected=EXPECTED), ending(usage=Usage(400, 7, 300)))
    assert split(parts) == [None, 0.3, 0.2, 0.5]


def test_a_first_byte_sooner_than_expected_takes_from_the_queue_first() -> None:
    # 0.6 s: its own prefill is certain to have happened, the queue is an estimate.
    parts = measured_parts(REQUEST, Pick((A,), expected=EXPECTED), ending(first_byte_at=12.35))
    assert split(parts) == [None, 0.1, 0.5, 0.0]
    parts = measured_parts(REQUEST, Pick((A,), expected=EXPECTED), ending(first_byte_at=11.95))
    assert split(parts) == [None, 0.0, 0.2, 0.0]


def test_a_prompt_computed_elsewhere_was_one_part() -> None:
    # The decoding engine's cached tokens say nothing about the other's cache.
    pick = Pick((A,), prefill=B, expected=EXPECTED)
    parts = measured_parts(REQUEST, pick, ending(usage=Usage(400, 7, 300)))
    assert split(parts) == [0.8, None, None, 0.2]


@pytest.mark.parametrize(
    "facts",
    [
        {"streamed": False},
        {"served": B.address},
        {"served": A.address, "attempts": 2},
    ],
    ids=["no stream", "another served", "at the second attempt"],
)
def test_an_answer_that_says_nothing_of_the_endpoint_is_not_split(facts: dict[str, Any]) -> None:
    pick = Pick((A, B), expected=EXPECTED)
    parts = measured_parts(REQUEST, pick, ending(**facts))
    assert parts is not None
    assert (parts.wait, parts.decision, parts.engine) == (1.5, 0.25, 1.0)
    assert split(parts) == [None, None, None, None]
    assert foreseen(pick, ending(**facts)) is None


def test_an_error_is_not_split() -> None:
    failed = msgspec.structs.replace(ending(), status=503)
    assert foreseen(Pick((A,), expected=EXPECTED), failed) is None
    assert split(measured_parts(REQUEST, Pick((A,), expected=EXPECTED), failed))[3] is None


def test_without_a_speed_the_engines_part_stays_whole() -> None:
    pick = Pick((A,), expected=Expected(300.0, 500.0, None))
    assert split(measured_parts(REQUEST, pick, ending())) == [None] * 4


def test_without_a_first_byte_there_are_no_parts() -> None:
    pick = Pick((A,), expected=EXPECTED)
    assert measured_parts(REQUEST, pick, ending(first_byte_at=None)) is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, 500.0), (Usage(400, 7, None), 500.0), (Usage(None, 7, 300), 500.0),
        (Usage(400, 7, 0), 800.0), (Usage(400, 7, 400), 0.0), (Usage(400, 7, 500), 0.0),
    ],
)  # fmt: skip
def test_the_engines_word_counts_where_it_is_whole(usage: Usage | None, tokens: float) -> None:
    told = ending(usage=usage)
    assert computed_tokens(REQUEST, Pick((A,)), told, EXPECTED) == tokens


# --- anything ----------------------------------------------------------------------------------

seconds = st.floats(min_value=-5.0, max_value=5e3)
tokens = st.floats(min_value=0.0, max_value=1e7)


@given(
    at=st.tuples(seconds, seconds, seconds, seconds),
    queued=tokens,
    uncached=tokens,
    per_token=st.floats(min_value=1e-6, max_value=1e-2),
    elsewhere=st.booleans(),
    usage=st.none() | st.builds(Usage, st.integers(0, 9999), st.none(), st.integers(0, 9999)),
)
def test_measured_parts_are_never_negative_and_add_up_to_the_whole(
    at: tuple[float, ...],
    queued: float,
    uncached: float,
    per_token: float,
    elsewhere: bool,
    usage: Usage | None,
) -> None:
    arrived, waited, picked, first = at
    request = msgspec.structs.replace(REQUEST, arrived_at=arrived, waited=waited)
    speed = Speed(per_token, 0.02, 9)
    pick = Pick((A,), prefill=B if elsewhere else None, expected=Expected(queued, uncached, speed))
    parts = measured_parts(
        request, pick, ending(picked_at=picked, first_byte_at=first, usage=usage)
    )
    assert parts is not None
    known = [each for each in msgspec.structs.astuple(parts) if each is not None]
    assert min(known) >= 0.0
    assert parts.total == pytest.approx(max(first - arrived, 0.0))
    assert sum(each or 0.0 for each in split(parts)) == pytest.approx(parts.engine, abs=1e-7)
