"""The figures of a run, of a class or a tenant; pure.

TPOT is the time after the first token by the tokens after it: ``(E2E - TTFT) / (output - 1)``.
Goodput counts what was answered within both goals against everything that was asked, refused and
failed requests included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from epp.sim.fleet.scenario import Goals
from epp.sim.fleet.story import Moment, Outcome, Story

PERCENTS = (50.0, 90.0, 95.0, 99.0)
HERD_SECONDS = 0.05


class Spread(msgspec.Struct, frozen=True):
    """Seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True):
    """Of one set of requests. None where nothing was measured."""

    requests: int
    answered: int
    shed: int
    failed: int
    goodput: float  #: share of all requests, 0.0 to 1.0
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    output_tokens_per_second: float
    hit_rate: float  #: cached of prompt tokens, as the engines found
    ideal_hit_rate: float  #: an endless cache of the whole fleet
    regret: float
    """Of the prompt tokens that were computed, the share that somebody had computed before."""
    preemptions: int


class Routing(msgspec.Struct, frozen=True):
    """How requests were spread."""

    imbalance: float  #: requests in the fullest engine over the mean, mean over time
    fairness: float  #: Jain's index of computed prompt tokens by engine; 1.0 is even
    herd: int  #: most requests that one engine got within `HERD_SECONDS`
    flaps: float  #: share of later turns that went to another engine than the turn before
    reachable_hit_rate: float  #: one LRU cache of the fleet's size
    predicted_hit_rate: float  #: what the pickers believed
    elsewhere: float  #: share of answers whose prompt another engine computed than decoded


class Summary(msgspec.Struct, frozen=True):
    """All figures of a run."""

    policy: str
    seed: int
    seconds: float
    cpu_seconds: float
    all: Figures
    routing: Routing
    classes: dict[str, Figures]
    tenants: dict[str, Figures]


def summarize(outcome: Outcome, goals: Goals, warm_up: float = 0.0) -> Summary:
    """Add up a run, without what came within ``warm_up`` seconds of its beginning."""
    stories = [story for story in outcome.stories if story.at >= warm_up]
    seconds = max(outcome.seconds - warm_up, 1e-9)
    every = figures_of(stories, goals, seconds)
    classes = {story.business for story in stories}
    return Summary(
        outcome.policy,
        outcome.seed,
        outcome.seconds,
        outcome.cpu_seconds,
        every,
        routing_of(stories, outcome),
        dict.fromkeys(classes, every)
        if len(classes) == 1
        else _by([(story.business, story) for story in stories], goals, seconds),
        _by([(story.tenant, story) for story in stories if story.tenant], goals, seconds),
    )


def figures_of(stories: Sequence[Story], goals: Goals, seconds: float) -> Figures:
    """Add up requests of ``seconds`` of time."""
    answered = [story for story in stories if story.outcome == "ok"]
    prompt = sum(story.prompt_tokens for story in answered)
    cached = sum(story.cached_tokens for story in answered)
    ideal = sum(story.ideal_tokens for story in answered)
    lost = sum(max(story.ideal_tokens - story.cached_tokens, 0) for story in answered)
    good = sum(_is_good(story, goals) for story in answered)
    shed = sum(story.outcome == "shed" for story in stories)
    return Figures(
        requests=len(stories),
        answered=len(answered),
        shed=shed,
        failed=len(stories) - len(answered) - shed,
        goodput=good / len(stories) if stories else 0.0,
        ttft=spread_of(story.ttft for story in answered),
        tpot=spread_of(story.tpot for story in answered),
        e2e=spread_of(story.duration for story in answered),
        output_tokens_per_second=sum(story.output_tokens for story in answered) / seconds,
        hit_rate=cached / prompt if prompt else 0.0,
        ideal_hit_rate=ideal / prompt if prompt else 0.0,
        regret=lost / (prompt - cached) if prompt > cached else 0.0,
        preemptions=sum(story.preemptions for story in answered),
    )


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Return mean and percentiles (nearest rank); None of nothing."""
    known = np.sort([value for value in values if value is not None])
    if not len(known):
        return None
    ranks = [max(math.ceil(percent / 100 * len(known)), 1) - 1 for percent in PERCENTS]
    return Spread(float(known.mean()), *(float(known[rank]) for rank in ranks))


def routing_of(stories: Sequence[Story], outcome: Outcome) -> Routing:
    """Say how requests were spread over the engines."""
    served = [story for story in stories if story.pod >= 0]
    prompt = sum(story.prompt_tokens for story in served)
    predicted = sum(story.predicted_tokens for story in served)
    return Routing(
        imbalance=imbalance(outcome.moments),
        fairness=fairness(served),
        herd=herd(served),
        flaps=flaps(served),
        reachable_hit_rate=outcome.reachable,
        predicted_hit_rate=predicted / prompt if prompt else 0.0,
        elsewhere=sum(story.prefill_pod >= 0 for story in served) / len(served) if served else 0.0,
    )


def imbalance(moments: Sequence[Moment]) -> float:
    """Return the mean over time of the fullest engine's requests over the mean engine's."""
    busy = [moment.requests for moment in moments if sum(moment.requests)]
    if not busy:
        return 1.0
    return sum(max(each) * len(each) / sum(each) for each in busy) / len(busy)


def fairness(stories: Sequence[Story]) -> float:
    """Return Jain's index of the prompt tokens that engines computed, 1/n to 1.0.

    **Source:** Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", 1984.
    """
    work: dict[int, int] = {}
    for story in stories:
        work[story.pod] = work.get(story.pod, 0) + story.prompt_tokens - story.cached_tokens
    squares = sum(each * each for each in work.values())
    return sum(work.values()) ** 2 / (len(work) * squares) if squares else 1.0


def herd(stories: Sequence[Story]) -> int:
    """Return the most requests that one engine got within `HERD_SECONDS`."""
    times: dict[int, list[float]] = {}
    for story in stories:
        times.setdefault(story.pod, []).append(story.at)
    most = 0
    for each in times.values():
        each.sort()
        first = 0
        for last, at in enumerate(each):
            while at - each[first] > HERD_SECONDS:
                first += 1
            most = max(most, last - first + 1)
    return most


def flaps(stories: Sequence[Story]) -> float:
    """Return the share of later turns that went elsewhere than the turn before."""
    turns: dict[int, list[tuple[int, int]]] = {}
    for story in stories:
        turns.setdefault(story.talk, []).append((story.turn, story.pod))
    moved = later = 0
    for each in turns.values():
        each.sort()
        for before, after in pairwise(each):
            later += 1
            moved += before[1] != after[1]
    return moved / later if later else 0.0


def _is_good(story: Story, goals: Goals) -> bool:
    ttft, tpot = story.ttft, story.tpot
    fast = ttft is not None and ttft <= goals.ttft_seconds
    return fast and (tpot is None or tpot <= goals.tpot_seconds)


def _by(named: Sequence[tuple[str, Story]], goals: Goals, seconds: float) -> dict[str, Figures]:
    groups: dict[str, list[Story]] = {}
    for name, story in named:
        groups.setdefault(name, []).append(story)
    return {name: figures_of(groups[name], goals, seconds) for name in sorted(groups)}
