"""Makes traces of a model: in order of time, the same for the same seed.

A conversation begins when its class's arrivals say so; each turn is followed by the next after
answer and think time. What prompts share is drawn when they are made: first prompts take a family's
prefix or repeat an earlier request, later turns go on with what was said.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from epp.recording.record import Record, Runs
from epp.traffic.model.laws import Floats, Law, evenly
from epp.traffic.model.model import Arrivals, Business, Families, Model, Shape
from epp.traffic.model.prompts import Prompt, Prompts
from epp.traffic.study.arrivals import detick
from epp.traffic.trace import Trace, TraceError, trace_of

DRAWN = 64  #: values of a law drawn at a time
LONGER = 1.01  #: times a shape's trace, from which on another one is longer
NEAR = 100  #: one in so many shapes may be dealt next: about in the order in which they began
MOST_TURNS = 2000  #: of a conversation
SMALLEST_SHAPE = 0.05  #: of gaps: below it, nearly all arrive at once


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a model's traffic to make."""

    seconds: float = 600.0
    seed: int = 1
    rate: float = 1.0  #: times as many conversations
    finish: bool = False  #: let conversations end that have begun
    most: int = 1_000_000  #: requests, after which the trace ends


def synthesize(model: Model, wanted: Wanted) -> Trace:
    """Return a trace of ``model``.

    Raises:
        TraceError: no request falls into the time.
    """
    maker = _Maker(model, wanted)
    records = list(maker.records())
    if not records:
        raise TraceError(
            f"no request in {wanted.seconds:g} s: ask for more seconds or a higher rate"
        )
    return trace_of(records, model.block_tokens)


def like(model: Model, seconds: float, seed: int = 1) -> Trace:
    """Return a trace as long as the one that ``model`` was fitted to.

    Where conversations all began at once, each was seen to its end, and is made to its end.
    """
    closed = any(each.arrivals.at_once for each in model.classes)
    return synthesize(model, Wanted(seconds=seconds, seed=seed, finish=closed))


class _Talk(msgspec.Struct):
    """A conversation under way."""

    of: int  #: number of its class
    name: str
    tenant: str
    turns: int  #: to be made
    pace: float  #: factor of its think times
    shape: Shape | None = None  #: which conversation it is like
    made: list[Prompt] = []  #: all its prompts, where it has a shape
    turn: int = 0
    prompt: Prompt | None = None  #: its last one
    output: int = 0  #: tokens of its last answer
    last: str = ""  #: id of its last request
    think: float | None = None


class _Maker:
    """Makes one trace."""

    def __init__(self, model: Model, wanted: Wanted) -> None:
        seeds = np.random.SeedSequence(wanted.seed).spawn(len(model.classes))
        self._wanted = wanted
        self._prompts = Prompts(model.block_tokens)
        labels = sorted({each.label for each in model.classes})
        self._classes = [
            _Class(each, np.random.default_rng(seed), self._prompts, labels.index(each.label))
            for each, seed in zip(model.classes, seeds, strict=True)
        ]
        self._due: list[tuple[float, int, _Talk]] = []
        self._count = 0

    def records(self) -> Iterator[Record]:
        """Make the requests, in order of time."""
        for of, each in enumerate(self._classes):
            for number, at in enumerate(each.starts(self._wanted).tolist()):
                self._later(at, each.talk(of, number + 1, self._wanted.seconds - at))
        made = 0
        while self._due and made < self._wanted.most:
            at, _, talk = heapq.heappop(self._due)
            if at > self._wanted.seconds and not self._wanted.finish:
                return
            made += 1
            yield self._classes[talk.of].request(at, talk, str(made))
            gap = self._classes[talk.of].goes_on(talk)
            if gap is not None:
                self._later(at + gap, talk)

    def _later(self, at: float, talk: _Talk) -> None:
        self._count += 1
        heapq.heappush(self._due, (at, self._count, talk))


class _Class:
    """Draws the requests of one class."""

    def __init__(
        self, business: Business, random: np.random.Generator, prompts: Prompts, number: int
    ) -> None:
        self.business = business
        self._random = random
        self._prompts = prompts
        self._number = number
        self._drawn: dict[int, Iterator[float]] = {}  # by `id` of a law of the business
        self._drawn_at_a_time = DRAWN
        self._shapes = _Shapes(business.shapes, random)
        self._prefixes: dict[int, tuple[Runs, int]] = {}
        self._tenants = _ranks(business.tenants, business.tenant_zipf)
        self._turns = _ends(business.later.continues)
        self._chances: Iterator[float] = iter(())

    def starts(self, wanted: Wanted) -> Floats:
        """When conversations begin."""
        arrivals = self.business.arrivals
        expected = wanted.rate * (arrivals.at_once + arrivals.rate * wanted.seconds)
        self._drawn_at_a_time = min(max(round(expected), 1), DRAWN)
        self._chances = _evenly(self._random, self._drawn_at_a_time)
        first = np.zeros(round(wanted.rate * arrivals.at_once))
        if not arrivals.rate:
            return first
        rate = wanted.rate * arrivals.rate
        if arrivals.process == "seen" and self.business.shapes:
            later = _between(self.business, rate, wanted.seconds, self._random)
        else:
            later = _starts(arrivals, rate, wanted.seconds, self._random)
        return np.concatenate((first, later))

    def talk(self, of: int, number: int, left: float) -> _Talk:
        """Begin conversation ``number`` of class ``of``, with ``left`` seconds to go."""
        name = f"{self.business.name}-{number}"
        if self.business.shapes:
            shape = self._shapes.take(left)
            return _Talk(of, name, self._tenant(), len(shape.steps) + 1, 1.0, shape)
        turns = int(np.searchsorted(self._turns, next(self._chances), side="right")) + 1
        pace = math.exp(self.business.later.pace * self._random.standard_normal())
        return _Talk(of, name, self._tenant(), turns, pace)

    def _tenant(self) -> str:
        """Who asks next."""
        if len(self._tenants) < 2:
            return ""
        rank = int(np.searchsorted(self._tenants, self._random.random()))
        return f"{self.business.label}-{rank + 1}"

    def request(self, at: float, talk: _Talk, name: str) -> Record:
        """Make the next request of ``talk``."""
        prompt = self._first(talk) if talk.prompt is None else self._next(talk, talk.prompt)
        self._prompts.add(self._number, prompt)
        output = self._output(talk)
        record = Record(
            at=at,
            input_tokens=prompt.tokens,
            output_tokens=output,
            runs=prompt.runs,
            id=name,
            parent=talk.last,
            session=talk.name,
            business=self.business.label,
            tenant=talk.tenant,
            think=talk.think,
        )
        talk.prompt, talk.output, talk.last = prompt, output, name
        if talk.shape is not None:
            talk.made.append(prompt)
        talk.turn += 1
        return record

    def goes_on(self, talk: _Talk) -> float | None:
        """Seconds until the next turn begins; None if there is none. Sets the think time."""
        later, service = self.business.later, self.business.service
        if talk.turn >= talk.turns or talk.prompt is None:
            return None
        if talk.shape is not None:
            step = talk.shape.steps[talk.turn - 1]
            talk.think = step.think
            if step.served is not None:
                return step.think + step.served
        elif talk.prompt.tokens >= later.most_tokens:
            return None
        else:
            talk.think = max(self._draw(later.think), 0.0) * talk.pace
        return talk.think + service.first_seconds + talk.output * service.token_seconds

    def _output(self, talk: _Talk) -> int:
        if talk.shape is None:
            return max(round(self._draw(self.business.output)), 1)
        return (talk.shape.steps[talk.turn - 1] if talk.turn else talk.shape.opening).output

    def _first(self, talk: _Talk) -> Prompt:
        business = self.business
        if talk.shape is not None:
            opening = talk.shape.opening
            return self._repeated(opening.depth, opening.age, opening.fresh)
        if business.families is not None:
            return self._of_family(business.families)
        left = self._random.random()
        for repeat in business.repeats:
            left -= repeat.share
            if left < 0:
                depth, fresh = round(self._draw(repeat.depth)), round(self._draw(repeat.fresh))
                return self._repeated(depth, self._draw(repeat.age), fresh)
        return self._prompts.following(None, 0, max(round(self._draw(business.first)), 1))

    def _repeated(self, depth: int, age: float, fresh: int) -> Prompt:
        begin = self._prompts.earlier(self._number, age, depth) if depth else None
        kept = min(depth, begin.tokens) if begin else 0
        return self._prompts.following(begin, kept, depth - kept + fresh)

    def _of_family(self, families: Families) -> Prompt:
        ranks = _ranks(families.count, families.zipf)
        which = int(np.searchsorted(ranks, self._random.random()))
        if which not in self._prefixes:
            size = max(round(self._draw(families.tokens)), 0)
            self._prefixes[which] = (self._prompts.new(size), size)
        runs, size = self._prefixes[which]
        fresh = max(round(self._draw(self.business.first)), 1)
        return self._prompts.following(Prompt(runs, size), size, fresh)

    def _next(self, talk: _Talk, before: Prompt) -> Prompt:
        later = self.business.later
        if talk.shape is not None:
            step = talk.shape.steps[talk.turn - 1]
            if not step.back:
                return self._repeated(int(step.kept), step.age, step.fresh)
            begin = talk.made[-step.back]
            return self._prompts.following(begin, round(step.kept * begin.tokens), step.fresh)
        if later.cut and self._random.random() < later.cut:
            kept = int(min(self._draw(later.kept), 1.0) * before.tokens)
            return self._prompts.following(before, kept, max(round(self._draw(later.after)), 1))
        law = later.early[talk.turn - 1] if talk.turn <= len(later.early) else later.fresh
        more = max(round(later.answers * talk.output + self._draw(law)), 1)
        more = min(more, max(later.most_tokens - before.tokens, 1))
        return self._prompts.following(before, before.tokens, more)

    def _draw(self, law: Law) -> float:
        drawn = self._drawn.get(id(law))
        if drawn is None:
            drawn = self._drawn[id(law)] = self._values(law)
        return next(drawn)

    def _values(self, law: Law) -> Iterator[float]:
        while True:
            yield from law.draw(self._random, self._drawn_at_a_time).tolist()


class _Shapes:
    """Deals shapes: each as often as the others, and none that was not seen long enough.

    A conversation that was cut off by the end of its trace is only cut off there again: in a trace
    no longer than that one, the first to begin are like those that were seen longest. In a longer
    one, shapes are dealt as long as there is one that was seen for the time that is left.
    """

    def __init__(self, shapes: Sequence[Shape], random: np.random.Generator) -> None:
        self._all = sorted(shapes, key=lambda shape: -shape.seen)
        self._left: list[Shape] = []
        self._near = max(len(shapes) // NEAR, 1)
        self._random = random

    def take(self, left: float) -> Shape:
        """Return a shape for a conversation with ``left`` seconds to go."""
        if (
            left > LONGER * self._all[0].seen
        ):  # in a longer trace: one that was seen for half of its own
            return self._all[int(self._random.integers(max(len(self._all) // 2, 1)))]
        if not self._left:
            self._left = list(self._all)
        return self._left.pop(int(self._random.integers(min(self._near, len(self._left)))))


def _evenly(random: np.random.Generator, count: int) -> Iterator[float]:
    while True:
        yield from evenly(random, count).tolist()


def _ends(continues: Sequence[float]) -> Floats:
    """Shares of conversations that have no more than 1, 2, ... turns; at most `MOST_TURNS`."""
    if not continues:
        return np.ones(1)
    rest = (continues[-1],) * (MOST_TURNS - len(continues))
    return np.asarray(1 - np.cumprod((*continues, *rest)), dtype=np.float64)


def _ranks(count: int, zipf: float) -> Floats:
    """Where each rank's part of 1 ends, for Zipf's law."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -zipf
    ends: Floats = np.cumsum(weights) / weights.sum()
    return ends


def _starts(arrivals: Arrivals, rate: float, seconds: float, random: np.random.Generator) -> Floats:
    """Draw arrivals: a renewal process in a time that runs as fast as the envelope says."""
    envelope = np.array(arrivals.envelope or (1.0,))
    steps = int(np.ceil(seconds / arrivals.step_seconds)) if arrivals.envelope else 1
    width = arrivals.step_seconds if arrivals.envelope else seconds
    edges = np.concatenate(([0.0], np.cumsum(np.resize(envelope, steps) * width)))
    whole = float(np.interp(seconds, np.arange(steps + 1) * width, edges))
    # As many as the rate says, not by chance more: the gaps, and what is left, fill the time.
    count = round(rate * whole)
    if arrivals.process in ("even", "seen"):
        inner = np.sort(evenly(random, count)) * whole
    else:
        ends = np.cumsum(_gaps(arrivals, rate, count + 1, random))
        inner = ends[:-1] * (whole / ends[-1])
    times: Floats = np.interp(inner, edges, np.arange(steps + 1) * width)
    return times


def _between(
    business: Business, rate: float, seconds: float, random: np.random.Generator
) -> Floats:
    """Draw arrivals: one between each two of those that the shapes were made of.

    In a time that is longer than theirs these are gone through again.
    """
    seen = np.sort([shape.seen for shape in business.shapes])[::-1]
    later = seen[business.arrivals.at_once :]
    if not len(later):
        return later
    length = max(len(later) / business.arrivals.rate, float(seen[0]))
    begins = detick(length - later)
    rounds = math.ceil(seconds / length)
    knots = np.concatenate(([0.0], *(begins + i * length for i in range(rounds))))
    whole = float(np.interp(seconds, knots, np.arange(len(knots))))
    count = round(rate * length * whole / len(begins))
    inner = np.sort(evenly(random, count)) * whole
    times: Floats = np.interp(inner, np.arange(len(knots)), knots)
    return times


def _gaps(arrivals: Arrivals, rate: float, count: int, random: np.random.Generator) -> Floats:
    if arrivals.process == "poisson":
        return random.exponential(1 / rate, count)
    if arrivals.process == "gamma":
        shape = max(arrivals.cv**-2, SMALLEST_SHAPE)
        return random.gamma(shape, 1 / (rate * shape), count)
    shape = _weibull_shape(arrivals.cv)
    gaps = random.weibull(shape, count)
    return np.asarray(gaps / (gaps.mean() * rate), dtype=np.float64)


def _weibull_shape(cv: float) -> float:
    """Return the shape whose coefficient of variation is ``cv``, by halving.

    **Source:** a Weibull law of shape k has mean gamma(1 + 1/k) and second moment gamma(1 + 2/k).
    """
    low, high = 0.1, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        first, second = math.gamma(1 + 1 / middle), math.gamma(1 + 2 / middle)
        if second / first**2 - 1 > cv**2:
            low = middle
        else:
            high = middle
    return (low + high) / 2
