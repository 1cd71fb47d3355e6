"""What one picker did is booked and learned by another as if it had done it. Out: the wire."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.build import Parts, configure
from epp.clock import ManualClock
from epp.exchange import Exchange
from epp.ledger import Ledger
from epp.model import Arrival, EndpointId, Outcome, Usage
from epp.peers.hearing import Hearing
from epp.peers.news import Batch, Computed, Over, Sent
from epp.peers.telling import Telling
from epp.pipeline import retire
from epp.pool import Pool
from epp.router import Router
from epp.ttft.forecast import Forecaster
from tests.support import build

PLAIN = """
plugins:
- type: approx-prefix-cache-producer
- type: prefix-cache-scorer
"""
SPLIT = """
plugins:
- type: approx-prefix-cache-producer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters: {deciders: {prefill: always-disagg-pd-decider}}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}]
"""
A, B = EndpointId("a"), EndpointId("b")
TOKENS = 640  #: of `PROMPT`, at four bytes a token
PROMPT = "blue" * (TOKENS - 1)  # of four bytes each; with its frame it is a token more


def _raise(observer: object, error: Exception) -> None:
    raise error


class Picker:
    """A router with all that learns, told of by hand."""

    def __init__(self, clock: ManualClock, config: str = PLAIN, **labels: str) -> None:
        self.clock, self.pool, self.ledger = clock, Pool("p"), Ledger()
        self.forecaster = Forecaster(self.ledger, clock)
        self.telling = Telling(self.ledger, lambda: self.pipeline, clock)
        self.hearing = Hearing(
            self.pool, self.ledger, self.forecaster, lambda: self.pipeline.plugins, clock
        )
        parts = Parts(
            clock=clock, random=random.Random(1), ledger=self.ledger, pool=self.pool,
            extra_observers=(self.forecaster, self.telling), forecaster=self.forecaster, allow_experimental=True,
        )  # fmt: skip
        _, self.pipeline = configure(config, parts)
        self.router = Router(
            self.pool, self.pipeline, self.ledger, clock=clock, on_observer_error=_raise
        )
        retire(None, self.pipeline, self.pool)
        self.pool.on_forget(self.ledger.forget)
        self.pool.on_forget(self.forecaster.forget)
        for name in ("a", "b"):
            role = {"llm-d.ai/role": labels[name]} if name in labels else {}
            self.pool.put(build.endpoint(name, host=f"10.0.0.{ord(name)}", labels=role))

    def send(self, prompt: str = PROMPT, id: str = "r", **headers: str) -> Exchange:
        body = json.dumps({"model": "m", "prompt": prompt, "stream": True}).encode()
        head = {":path": "/v1/completions", ":method": "POST", **headers}
        return asyncio.run(self.router.route(Arrival(id, head, body)))

    def everything(self) -> Batch:
        """What one is told that has heard nothing."""
        under_way = self.telling.under_way()
        return Batch(under_way.now, (*self.telling.past, *under_way.events))

    def hear(self, batch: Batch, peer: str = "other") -> None:
        self.hearing.hear(peer, batch.events, self.clock.now() - batch.now)

    def state(self) -> dict[str, tuple[int, int, int, int]]:
        counts = ((each, self.ledger.get(each)) for each in (A, B))
        return {
            each: (c.requests, c.tokens, c.heard, c.heard_tokens)
            for each, c in counts
            if c.requests or c.tokens or c.heard or c.heard_tokens
        }


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def two(clock: ManualClock) -> tuple[Picker, Picker]:
    return Picker(clock), Picker(clock)


def test_what_a_peer_sent_is_booked_until_it_is_over(two: tuple[Picker, Picker]) -> None:
    one, other = two
    exchange = one.send()
    target = exchange.pick.endpoints[0].id
    other.hear(one.telling.take())
    assert other.state() == {target: (1, TOKENS, 1, TOKENS)}
    counts = other.ledger.get(target)
    assert (counts.own, counts.own_tokens) == (0, 0)  # so those of all pickers add up
    exchange.response_head(200, streamed=True)
    exchange.response_piece(1)
    other.hear(one.telling.take())
    assert other.state() == {target: (1, 0, 1, 0)}
    exchange.complete()
    other.hear(one.telling.take())
    assert other.state() == one.state() == {}
    assert len(other.hearing) == 0
    assert not one.telling.waiting
    assert one.telling.take().events == ()


def test_the_next_request_of_another_picker_goes_elsewhere(two: tuple[Picker, Picker]) -> None:
    config = "plugins: [{type: in-flight-load-scorer}]"
    one, other = Picker(two[0].clock, config), Picker(two[0].clock, config)
    first = one.send().pick.endpoints[0].id
    other.hear(one.telling.take())
    assert other.send("another").pick.endpoints[0].id != first


def test_a_prompt_is_held_where_a_peer_sent_it(two: tuple[Picker, Picker]) -> None:
    one, other = two
    exchange = one.send()
    other.hear(one.telling.take())
    found = other.send(PROMPT + "green" * 100)
    match = found.request.match()
    assert match is not None
    assert match.held == {exchange.pick.endpoints[0].id: TOKENS // 64}  # full blocks of 64
    assert found.pick.endpoints[0].id == exchange.pick.endpoints[0].id


def test_only_what_a_peers_request_has_to_compute_is_booked(two: tuple[Picker, Picker]) -> None:
    one, other = two
    one.send().complete()
    again = one.send(PROMPT + "g" * 400)  # 100 tokens more, and 10 blocks of 64 are held
    other.hear(one.telling.take())
    assert other.state() == {again.pick.endpoints[0].id: (1, 100, 1, 100)}


def test_a_newcomer_hears_what_is_under_way_and_what_was(two: tuple[Picker, Picker]) -> None:
    one, _ = two
    one.send("past" * TOKENS).complete()
    begun = one.send("begun" * TOKENS, id="begun")
    begun.response_head(200, streamed=True)
    begun.response_piece(1)
    one.send("news" * (TOKENS - 1), id="news")
    one.telling.take()
    newcomer = Picker(one.clock)
    newcomer.hear(one.everything())
    requests = sum(state[2] for state in newcomer.state().values())
    tokens = sum(state[3] for state in newcomer.state().values())
    assert (requests, tokens) == (2, TOKENS)  # the prompt of one is computed
    for word in ("past", "begun", "news"):
        match = newcomer.send(word * TOKENS).request.match()
        assert match is not None
        assert match.held, word


def test_a_lost_peer_leaves_nothing_and_may_come_back(two: tuple[Picker, Picker]) -> None:
    one, other = two
    exchange = one.send()
    other.hear(one.telling.take())
    other.hearing.lost("other")
    assert other.state() == {}
    for _ in range(2):  # told twice, booked once
        other.hear(one.everything())
    assert other.state() == {exchange.pick.endpoints[0].id: (1, TOKENS, 1, TOKENS)}
    other.hearing.lost("other")
    exchange.complete()
    other.hear(one.telling.take())  # the end of what is not known here any more
    assert other.state() == {}
    assert len(other.hearing) == 0


def test_peers_are_told_apart(two: tuple[Picker, Picker]) -> None:
    one, other = two
    one.send()
    batch = one.telling.take()
    other.hear(batch, "first")
    other.hear(batch, "second")
    assert len(other.hearing) == 2
    other.hearing.lost("first")
    assert len(other.hearing) == 1


def test_an_endpoint_that_is_not_here_is_not_booked(two: tuple[Picker, Picker]) -> None:
    one, other = two
    exchange = one.send()
    target = exchange.pick.endpoints[0].id
    other.pool.remove(target)
    other.hear(one.telling.take())
    assert len(other.hearing) == 0
    assert other.hearing.unknown == 1
    assert other.state() == {}
    # One that goes meanwhile takes its bookings along, and their end changes nothing.
    second = one.send("another" * 100, id="s")
    other.pool.put(build.endpoint(target, host="10.0.0.9"))
    other.hear(one.telling.take())
    other.pool.remove(second.pick.endpoints[0].id)
    second.complete()
    other.hear(one.telling.take())
    assert other.state() == {}
    assert len(other.hearing) == 0


def test_both_legs_of_a_split_request_are_booked(clock: ManualClock) -> None:
    roles = {"a": "prefill", "b": "decode"}
    one, other = Picker(clock, SPLIT, **roles), Picker(clock, SPLIT, **roles)
    exchange = one.send()
    assert exchange.pick.prefill is not None
    other.hear(one.telling.take())
    assert other.state() == {A: (1, TOKENS, 1, TOKENS), B: (1, 0, 1, 0)}
    match = other.send().request.match()
    assert match is not None
    assert set(match.held) == {A, B}
    exchange.complete()
    other.hear(one.telling.take())
    assert all(state[2:] == (0, 0) for state in other.state().values())


def test_speeds_are_learned_from_peers_answers(two: tuple[Picker, Picker]) -> None:
    one, other = two
    for number in range(30):
        exchange = one.send(f"{number} " + "word" * 4000, id=f"r{number}")
        other.hear(one.telling.take())
        one.clock.advance(2.0)  # the answer begins: some 4000 tokens in two seconds
        exchange.response_head(200, streamed=True)
        exchange.response_piece(1)
        exchange.usage = Usage(4000, 1, 0)
        exchange.complete()
        other.hear(one.telling.take())
    own = one.forecaster.speed(exchange.pick.endpoints[0].id)
    heard = other.forecaster.speed(exchange.pick.endpoints[0].id)
    assert own is not None
    assert heard == own
    assert heard.answers > 0


def test_what_cannot_be_read_is_counted_and_booked_all_the_same(
    two: tuple[Picker, Picker],
) -> None:
    _, other = two
    facts = {"approx-prefix-cache-producer": b"\x01", "nobody": b"x", "prefix-cache-scorer": b"y"}
    sent = Sent(1, 100.0, A, 10, 10, facts=facts)
    other.hear(Batch(100.0, (sent,)))
    assert other.hearing.refused == 1  # the others have nothing to learn
    assert other.state() == {A: (1, 10, 1, 10)}


def test_a_session_stays_where_a_peer_sent_it(clock: ManualClock) -> None:
    config = """
plugins:
- type: session-affinity-scorer
  parameters: {strategy: session_id, sessionIdConfig: {sources: [{header: x-session}]}}
"""
    one, other = Picker(clock, config), Picker(clock, config)
    for number in range(8):
        home = one.send(**{"x-session": f"s{number}"}).pick.endpoints[0].id
        batch = one.telling.take()
        assert f"s{number}".encode() not in repr(batch).encode()  # a digest
        other.hear(batch)
        assert other.send(**{"x-session": f"s{number}"}).pick.endpoints[0].id == home


def test_cold_prompts_of_peers_take_their_turn(clock: ManualClock) -> None:
    config = "plugins: [{type: approx-prefix-cache-producer}, {type: no-hit-lru-scorer}]"
    one, other = Picker(clock, config), Picker(clock, config)
    first = one.send("one" * 500).pick.endpoints[0].id
    other.hear(one.telling.take())
    assert other.send("two" * 500).pick.endpoints[0].id != first


def test_media_are_held_where_a_peer_sent_them(clock: ManualClock) -> None:
    config = """
plugins:
- type: mm-embeddings-cache-producer
"""
    one, other = Picker(clock, config), Picker(clock, config)
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    content: list[Any] = [{"type": "text", "text": "what is it?"}, image]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    head = {":path": "/v1/chat/completions", ":method": "POST"}
    sent = asyncio.run(one.router.route(Arrival("r", head, body)))
    other.hear(one.telling.take())
    found = asyncio.run(other.router.route(Arrival("s", head, body)))
    assert found.request.media_match is not None
    assert dict(found.request.media_match.held) == {sent.pick.endpoints[0].id: 1}


def test_the_past_is_kept_within_bounds(
    two: tuple[Picker, Picker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two
    monkeypatch.setattr("epp.peers.telling.PAST_BYTES", 300)  # each fact: 8 bytes and 10 times 8
    for number in range(9):
        one.send(f"{number}" * 4 * TOKENS, id=f"r{number}").complete()
    assert [each.number for each in one.everything().events] == [7, 8, 9]


NUMBERS = st.integers(1, 4)
EVENTS = st.one_of(
    st.builds(
        Sent, NUMBERS, st.just(0.0), st.sampled_from([A, B, EndpointId("gone")]),
        st.integers(0, 500), st.integers(0, 500), st.sampled_from([EndpointId(""), B]),
        st.integers(0, 500), st.sampled_from([0, 30]), st.booleans(), st.booleans(),
    ),
    st.builds(Computed, NUMBERS),
    st.builds(
        Over, NUMBERS, st.one_of(st.none(), st.floats(0, 9)), st.floats(0, 9), st.booleans(),
        st.one_of(st.none(), st.integers(0, 99)), st.one_of(st.none(), st.integers(0, 99)),
    ),
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["p", "q"]), EVENTS),
        st.tuples(st.sampled_from(["p", "q"]), st.just("lost")),
        st.tuples(st.sampled_from([A, B]), st.just("removed")),
    )
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_whatever_peers_say_nothing_is_below_zero_nor_left(steps: list[tuple[str, Any]]) -> None:
    picker = Picker(ManualClock(100.0))
    for who, what in steps:
        if what == "lost":
            picker.hearing.lost(who)
        elif what == "removed":
            picker.pool.remove(EndpointId(who))
            picker.pool.put(build.endpoint(who, host="10.0.0.1"))
        else:
            picker.hearing.hear(who, [what], 0.0)
        assert all(min(state) >= 0 for state in picker.state().values())
    for peer in ("p", "q"):
        picker.hearing.lost(peer)
    assert picker.state() == {}
    assert len(picker.hearing) == 0


def test_an_end_that_is_unknown_ends_a_booking(two: tuple[Picker, Picker]) -> None:
    one, other = two
    exchange = one.send()
    other.hear(one.telling.take())
    exchange.end(Outcome.UNKNOWN)
    other.hear(one.telling.take())
    assert other.state() == {}
