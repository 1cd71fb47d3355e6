"""``prefer: if-available``: only an endpoint that holds some of the prompt may get the request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from epp.errors import NoKvCache
from epp.model import InferenceRequest, Pick, PrefixMatch
from epp.plugin import ProfileResult, Profiles
from epp.schedule.scheduler import Scheduler
from tests.support import build

HOLDER, OTHER = build.endpoint("holder"), build.endpoint("other")
MATCH = PrefixMatch((), 64, {HOLDER.id: 1})


class Takes:
    """Chooses what it was told to choose."""

    def __init__(self, *names: str) -> None:
        self.pick = build.pick(*names)

    def handle(self, request: InferenceRequest, profiles: Profiles) -> Pick:
        return self.pick


class Diary:
    def __init__(self) -> None:
        self.decisions = 0

    def decided(
        self, request: InferenceRequest, pick: Pick, results: Mapping[str, ProfileResult]
    ) -> None:
        self.decisions += 1


def decide(handler: Takes, prefer: str | None = "if-available", **facts: object) -> Pick:
    headers = {} if prefer is None else {"prefer": prefer}
    asked = build.request(headers=headers, **{"prefix": {"approx": MATCH}, **facts})
    return Scheduler({}, handler).pick(asked, [HOLDER, OTHER])


@pytest.mark.parametrize(
    "prefer",
    [
        pytest.param("if-available", id="alone"),
        pytest.param("IF-Available", id="in any case"),
        pytest.param("respond-async, if-available;wait=5", id="among others, with a parameter"),
    ],
)
def test_an_endpoint_that_holds_nothing_of_the_prompt_is_not_asked(prefer: str) -> None:
    with pytest.raises(NoKvCache) as raised:
        decide(Takes("other"), prefer)
    assert raised.value.status == 412
    assert str(raised.value) == "no decode worker has the requested KV cache"
    assert raised.value.reason == ""


def test_an_endpoint_that_holds_a_block_is_asked() -> None:
    handler = Takes("holder")
    assert decide(handler) is handler.pick


def test_the_first_choice_counts_and_not_a_fallback() -> None:
    with pytest.raises(NoKvCache):
        decide(Takes("other", "holder"))


@pytest.mark.parametrize("prefer", [None, "return=minimal", "not-if-available", "x=if-available"])
def test_without_the_preference_what_is_cached_does_not_matter(prefer: str | None) -> None:
    handler = Takes("other")
    assert decide(handler, prefer) is handler.pick


def test_where_nobody_knows_what_is_cached_nothing_is() -> None:
    with pytest.raises(NoKvCache):
        decide(Takes("holder"), prefix={})


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"computed": False}, id="a count of tokens"),
        pytest.param({"body": b""}, id="no body"),
    ],
)
def test_a_request_that_computes_no_prompt_needs_no_cache(facts: dict[str, object]) -> None:
    handler = Takes("other")
    assert decide(handler, **facts) is handler.pick


def test_a_body_that_is_not_shown_cannot_be_known_to_be_cached() -> None:
    with pytest.raises(NoKvCache):
        decide(Takes("other"), body=b"", unread="hidden")


def test_a_refused_choice_is_no_decision() -> None:
    """Nobody would ever tell how it ended."""
    diary = Diary()
    scheduler = Scheduler({}, Takes("other"), witness=diary)
    with pytest.raises(NoKvCache):
        scheduler.pick(build.request(headers={"prefer": "if-available"}), [OTHER])
    assert diary.decisions == 0
