"""Eight small engines, sessions, and a picker that goes by their events while events get lost.

In: reading order, index, expectations, trust. Out: sockets and msgpack. Time moves by a second per
request, so a session pauses for a minute. The hit rate is what the engines themselves found cached.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest

from epp.model import EndpointId
from epp.prefix.blocks import block_hashes
from epp.prefix.exact.events import Event, Removed, Stored, Tier
from epp.prefix.exact.index import ExactIndex
from epp.prefix.exact.keys import Keys, Prompt
from epp.prefix.feed.audit import Audit, claim
from epp.prefix.feed.sequence import Apply, Ask, Reset, Sequence, Step
from epp.prefix.feed.trust import EXPECTED_SECONDS, Confidence, Level, Trust
from tests.support.kv import packed

BLOCK, ENGINES, ROOM, SESSIONS = 16, 8, 600, 60
REQUESTS, SECONDS = 2400, 1.0
BUSY = 0.5  #: blocks that a request served before weighs
FAULTS_END = REQUESTS // 2


class Engine:
    """A cache that evicts what was used least recently, leaves first, and tells of all it does."""

    def __init__(self, memory: int) -> None:
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.told: deque[tuple[int, tuple[Event, ...]]] = deque(maxlen=memory)
        self.number = 0

    def serve(self, tokens: bytes) -> int:
        """Compute a prompt; return how many of its blocks were cached."""
        chain = block_hashes(tokens, root=1, block_tokens=BLOCK)
        cached = next((at for at, block in enumerate(chain) if block not in self.cache), len(chain))
        fresh = chain[cached:]
        parent = chain[cached - 1] if cached else None
        events: list[Event] = []
        if fresh:
            new = tokens[cached * BLOCK * 4 : len(chain) * BLOCK * 4]
            events.append(Stored(fresh, parent, new, BLOCK))
        self.cache.update(dict.fromkeys(fresh))
        for block in reversed(chain):
            self.cache.move_to_end(block)
        while len(self.cache) > ROOM:
            events.append(Removed((self.cache.popitem(last=False)[0],)))
        if events:
            self.told.append((self.number, tuple(events)))
            self.number += 1
        return cached


class Follower:
    """One engine as the picker sees it."""

    is_mute = False
    cut_until = 0.0  #: a time until which replays end in their midst, without a word

    def __init__(self, name: str, index: ExactIndex, engine: Engine, *, can_ask: bool) -> None:
        self.id = EndpointId(name)
        self.engine = engine
        self.index = index
        self.sequence = Sequence(can_ask=can_ask)
        self.audit = Audit()
        self.confidence = Confidence(self.sequence, self.audit)
        self.confidence.connected = True
        self.payloads: dict[bytes, tuple[Event, ...]] = {}
        index.join(self.id)

    def hear(self, number: int, events: tuple[Event, ...], now: float) -> None:
        self.confidence.told(now)
        self.take(self.sequence.live(number, self.payload(number, events), at=now, now=now), now)

    def payload(self, number: int, events: tuple[Event, ...]) -> bytes:
        self.payloads[name := str(number).encode()] = events
        return name

    def take(self, steps: list[Step], now: float, *, answers: bool = True) -> None:
        for step in steps:
            if isinstance(step, Reset):
                self.index.join(self.id)
            elif isinstance(step, Apply):
                self.index.apply(self.id, self.payloads[step.payload])
            elif isinstance(step, Ask) and answers:
                self.answer(step.start, now)

    def answer(self, start: int, now: float) -> None:
        if self.is_mute:
            return
        wanted = [each for each in self.engine.told if each[0] >= start]
        cut = now < self.cut_until
        for number, events in wanted[: len(wanted) // 2] if cut else wanted:
            payload = self.payload(number, events)
            self.take(self.sequence.replayed(number, payload, at=now, now=now), now)
        if cut:
            return
        self.take(self.sequence.replay_ended(now), now)


def run(
    loses: Callable[[random.Random, int, int], bool], *, can_ask: bool = True,
    memory: int = 10_000, cut_until: float = 0.0,
    mute: Mapping[int, tuple[int, int]] = {}, restarts: Mapping[int, int] = {},
) -> tuple[list[float], list[Follower]]:  # fmt: skip
    """Return the hit rate of each quarter of the run, and the followers as they are at its end.

    Engines in ``mute`` neither tell nor answer between two requests; those in ``restarts`` begin
    again at one, with an empty cache.
    """
    draw, fate = random.Random(11), random.Random(12)
    index = ExactIndex(Keys((b"s",)), most_bytes=20_000_000)
    followers = [
        Follower(f"pod-{each}", index, Engine(memory), can_ask=can_ask) for each in range(ENGINES)
    ]
    for each in followers:
        each.cut_until = cut_until
    systems = [[draw.randrange(9999) for _ in range(320)] for _ in range(4)]
    sessions = [list(draw.choice(systems)) for _ in range(SESSIONS)]
    served = dict.fromkeys(range(ENGINES), 0)
    hits, asked = [0] * 4, [0] * 4
    for request in range(REQUESTS):
        now = request * SECONDS
        for each, (first, last) in mute.items():
            followers[each].is_mute = first <= request < last
        for each in [each for each, at in restarts.items() if at == request]:
            followers[each].engine = Engine(memory)
        session = draw.randrange(SESSIONS)
        if len(sessions[session]) > 1200:
            sessions[session] = list(draw.choice(systems))
        sessions[session] += [draw.randrange(9999) for _ in range(64)]
        tokens = packed(sessions[session])
        known = index.look_up(Prompt(tokens, ""))
        best = min(
            range(ENGINES),
            key=lambda each: served[each] * BUSY - known.blocks.get(followers[each].id, 0),
        )
        served[best] += 1
        chosen = followers[best]
        level = chosen.confidence.trust(now).level
        index.expect(chosen.id, known.chains[0], until=now + EXPECTED_SECONDS[level],
                     held=known.blocks.get(chosen.id, 0))  # fmt: skip
        lower = known.lower.get(chosen.id, (0, 0))
        sure = known.blocks.get(chosen.id, 0) - lower[Tier.EXPECTED]
        made = claim(len(tokens) // 4, sure * BLOCK, lower[Tier.EXPECTED] * BLOCK, block=BLOCK)
        before = chosen.engine.number
        cached = chosen.engine.serve(tokens)
        hits[request * 4 // REQUESTS] += cached
        asked[request * 4 // REQUESTS] += len(known.chains[0])
        lost = chosen.is_mute or loses(fate, request, best)
        told = chosen.engine.number > before and not lost
        if told:
            chosen.hear(*chosen.engine.told[-1], now)
        chosen.confidence.computed(now, told=told)
        chosen.audit.answered(made, cached * BLOCK, block=BLOCK)
        if request % 2 == 0:
            index.expire(now)
            for each in followers:
                each.take(each.sequence.tick(now), now)
                if each.confidence.wants_missed(now):
                    each.take(each.sequence.overdue(now), now)
                if each.confidence.wants_anew(now):
                    each.take(each.sequence.doubt(now), now)
    return [hit / of for hit, of in zip(hits, asked, strict=True)], followers


def nothing(_draw: random.Random, _request: int, _engine: int) -> bool:
    return False


@pytest.fixture(scope="module", name="without_faults")
def _without_faults() -> tuple[list[float], list[Follower]]:
    return run(nothing)


@pytest.fixture(name="faultless")
def _faultless(without_faults: tuple[list[float], list[Follower]]) -> list[float]:
    return without_faults[0]


def differs(followers: list[Follower]) -> int:
    """Count blocks that the index believes held and are not, or the other way round."""
    held = {block for each in followers for block in each.engine.cache}
    return abs(followers[0].index.figures()["blocks"] - len(held))


def test_without_faults_the_index_holds_exactly_what_the_engines_hold(
    without_faults: tuple[list[float], list[Follower]],
):
    rates, followers = without_faults
    for each in followers:
        each.index.expire(1e9)
        assert each.confidence.trust(REQUESTS * SECONDS).level is Level.EXACT
    assert differs(followers) == 0
    assert min(rates) > 0.5


def test_with_30_percent_of_events_lost_and_replay_nothing_is_lost(faultless: list[float]):
    rates, followers = run(lambda draw, request, _: request < FAULTS_END and draw.random() < 0.3)
    assert sum(each.sequence.gaps for each in followers) > 50
    assert sum(each.sequence.lost for each in followers) == 0
    followers[0].index.expire(1e9)
    assert differs(followers) == 0
    assert faultless[3] - rates[3] < 0.02


def test_replays_that_are_cut_in_their_midst_are_asked_for_again(faultless: list[float]):
    rates, followers = run(
        lambda draw, request, _: request < FAULTS_END and draw.random() < 0.3,
        cut_until=FAULTS_END * SECONDS,
    )
    assert faultless[3] - rates[3] < 0.02
    assert faultless[1] - rates[1] < 0.1
    levels = [each.confidence.trust(REQUESTS * SECONDS).level for each in followers]
    assert levels.count(Level.EXACT) == ENGINES
    followers[0].index.expire(1e9)
    assert differs(followers) == 0


def test_the_hit_rate_tells_whether_anything_is_known(faultless: list[float]):
    rates, followers = run(lambda *_: True, can_ask=False)
    assert faultless[3] - rates[3] > 0.15
    assert {each.confidence.trust(1e6).level for each in followers} == {Level.PREDICTED}


@pytest.mark.parametrize(
    ("can_ask", "memory"), [(False, 10_000), (True, 2)], ids=["no replay", "short memory"]
)
def test_what_is_lost_for_good_heals_by_itself(can_ask: bool, memory: int, faultless: list[float]):
    rates, followers = run(
        lambda draw, request, _: request < FAULTS_END and draw.random() < 0.3,
        can_ask=can_ask, memory=memory,
    )  # fmt: skip
    assert sum(each.sequence.lost for each in followers) > 20
    assert faultless[3] - rates[3] < 0.02


def test_an_engine_that_goes_mute_is_noticed_and_costs_little(faultless: list[float]):
    def mute(_draw: random.Random, request: int, engine: int) -> bool:
        return engine == 3 and REQUESTS // 4 < request < FAULTS_END

    rates, followers = run(mute)
    assert faultless[3] - rates[3] < 0.02
    assert faultless[1] - rates[1] < 0.1
    assert followers[3].sequence.whole


@pytest.mark.parametrize("can_ask", [True, False], ids=["replay", "no replay"])
@pytest.mark.parametrize("first", [0, REQUESTS // 4], ids=["from the start", "midway"])
def test_one_engine_of_eight_that_is_mute_for_good_costs_little(
    first: int, can_ask: bool, faultless: list[float]
):
    rates, followers = run(nothing, can_ask=can_ask, mute={3: (first, REQUESTS)})
    assert faultless[3] - rates[3] < 0.02
    assert max(early - late for early, late in zip(faultless, rates, strict=True)) < 0.1
    trusts = [each.confidence.trust(REQUESTS * SECONDS) for each in followers]
    assert trusts.pop(3) == Trust(Level.PREDICTED, "no_events")
    assert {each.level for each in trusts} == {Level.EXACT}


def test_an_engine_that_was_mute_and_comes_back_is_known_wholly_again(faultless: list[float]):
    rates, followers = run(nothing, mute={3: (0, FAULTS_END)})
    assert faultless[3] - rates[3] < 0.02
    assert {each.confidence.trust(REQUESTS * SECONDS).level for each in followers} == {Level.EXACT}
    followers[0].index.expire(1e9)
    assert differs(followers) == 0


def test_an_engine_that_comes_back_as_another_process_is_known_wholly_again(
    faultless: list[float],
):
    rates, followers = run(nothing, mute={3: (REQUESTS // 4, FAULTS_END)}, restarts={3: FAULTS_END})
    assert faultless[3] - rates[3] < 0.02
    assert followers[3].sequence.restarts == 1
    assert {each.confidence.trust(REQUESTS * SECONDS).level for each in followers} == {Level.EXACT}
    followers[0].index.expire(1e9)
    assert differs(followers) == 0


def test_rates_of_later_quarters_are_steady(faultless: list[float]):
    assert all(abs(later - earlier) < 0.1 for earlier, later in pairwise(faultless[1:]))
