"""Fits a model to a trace: one class for each class of business that it names.

What repeats is measured at the first prompts of conversations: how many tokens they share with
anything before, and how many requests ago that was last used. Later turns are measured against
the conversation they continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, takewhile
from typing import Literal

import msgspec
import numpy as np

from epp.recording.record import Record
from epp.traffic.model.laws import Floats, Law, fixed, mixed, tabled
from epp.traffic.model.model import (
    Arrivals,
    Business,
    Later,
    Model,
    Opening,
    Repeat,
    Service,
    Shape,
    Step,
)
from epp.traffic.sessions import Turn, common, conversations, threads
from epp.traffic.study.arrivals import counts, detick, dispersion, local_variation
from epp.traffic.study.facts import facts
from epp.traffic.trace import Trace, TraceError, full_blocks

UNNAMED = "all"  #: class of requests that name none
BACK = 64  #: turns, among which the one that a turn goes on from is looked for
MOST_SHAPES = 20_000  #: of a class, evenly over the trace
CELLS = 8  #: kinds of repeats told apart, by their depth
SHORTEST = 1e-3  #: seconds of think time, below which it is none
EARLY = 6  #: further turns that are told apart: conversations grow fast at first
LEAST = 30  #: single requests and conversations, to be told apart; durations, to be fitted
REACHED = 3  #: conversations that tell of a further turn
AT_ONCE = 0.2  #: of all conversations, that begin in the first moment, and are told as such
STEP_SECONDS = 60.0  #: of the envelope
LEAST_STEPS = 5  #: a shorter trace has no envelope

Keep = Literal["shapes", "tables", "mixtures"]
LawOf = Callable[[Sequence[float] | Floats], Law]


class Seen(msgspec.Struct, frozen=True):
    """What a request shares with all requests before it."""

    depth: int  #: tokens
    age: int  #: requests since that was last used; 0 without any


def fit(trace: Trace, *, keep: Keep = "shapes", source: str = "") -> Model:
    """Return the model of ``trace``.

    Args:
        trace: of some hundred conversations, for laws to mean much.
        keep: "shapes" of conversations as they were, `MOST_SHAPES` of each class; "tables" of
            quantiles; "mixtures" of lognormals, which are short.
        source: what to say of where it is from.

    Raises:
        TraceError: it is too short to say anything.
    """
    if len(trace.records) < 2 or not trace.seconds:
        raise TraceError("a trace of one moment tells nothing of arrivals")
    seen = dict(zip(map(id, trace.records), history(trace), strict=True))
    talks, parts = _by_class(conversations(trace)), _by_class(threads(trace))
    law: LawOf = mixed if keep == "mixtures" else tabled
    classes: list[Business] = []
    for name, some in talks.items():
        if keep == "shapes":
            classes.append(_labelled(_Class(name, some, trace, seen, tabled).shaped(), name))
        else:
            for each, part in _kinds(name, parts[name]):
                classes.append(_labelled(_Class(each, part, trace, seen, law).fit(), name))
    return Model(
        classes=tuple(classes),
        block_tokens=trace.block_tokens,
        source=source,
        facts={name: facts(some, trace) for name, some in talks.items()},
    )


def _labelled(business: Business, name: str) -> Business:
    """Say which class it is of, where its name alone would tell another one."""
    return business if business.label == name else msgspec.structs.replace(business, of=name)


def history(trace: Trace) -> list[Seen]:
    """Return what each request shares with those before it, and when that was last used."""
    last: dict[int, int] = {}
    found: list[Seen] = []
    for i, record in enumerate(trace.records):
        ids = full_blocks(record, trace.block_tokens)
        shared = sum(1 for _ in takewhile(last.__contains__, ids))
        age = i - last[ids[shared - 1]] if shared else 0
        found.append(Seen(shared * trace.block_tokens, age))
        for each in ids:
            last[each] = i
    return found


def _by_class(talks: Iterable[list[Turn]]) -> dict[str, list[list[Turn]]]:
    found: dict[str, list[list[Turn]]] = {}
    for talk in talks:
        found.setdefault(talk[0].record.business or UNNAMED, []).append(talk)
    return dict(sorted(found.items()))


def _kinds(name: str, talks: list[list[Turn]]) -> list[tuple[str, list[list[Turn]]]]:
    """Tell single requests from conversations: their prompts are of different lengths."""
    single = [talk for talk in talks if len(talk) == 1]
    several = [talk for talk in talks if len(talk) > 1]
    if min(len(single), len(several)) < LEAST:
        return [(name, talks)]
    return [(f"{name}:single", single), (f"{name}:several", several)]


class _Class:
    """One class of business, fitted."""

    def __init__(
        self, name: str, talks: list[list[Turn]], trace: Trace, seen: dict[int, Seen], law: LawOf
    ) -> None:
        self._name = name
        self._talks = talks
        self._trace = trace
        self._seen = seen
        self._law = law
        self._turns = [turn for talk in talks for turn in talk]
        self._later = [turn for turn in self._turns if turn.index]

    def fit(self) -> Business:
        """Return the class."""
        firsts = [talk[0].record for talk in self._talks]
        lone = [record.input_tokens for record in firsts if not self._seen[id(record)].depth]
        tenants = len({turn.record.tenant for turn in self._turns} - {""})
        return Business(
            name=self._name,
            arrivals=self._arrivals([record.at for record in firsts]),
            output=self._law([turn.record.output_tokens for turn in self._turns]),
            first=self._law(lone or [record.input_tokens for record in firsts]),
            repeats=self._repeats(firsts),
            later=self._turns_after(),
            service=self._service(),
            tenants=max(tenants, 1),
        )

    def shaped(self) -> Business:
        """Return the class as the conversations that it had."""
        arrivals = self._arrivals([talk[0].record.at for talk in self._talks])
        arrivals = msgspec.structs.replace(arrivals, process="seen", cv=1.0, envelope=())
        return Business(
            name=self._name,
            arrivals=arrivals,
            output=self._law([turn.record.output_tokens for turn in self._turns]),
            shapes=tuple(self._shape(talk) for talk in self._some()),
            service=self._service(),
        )

    def _some(self) -> list[list[Turn]]:
        count = min(len(self._talks), MOST_SHAPES)
        return [self._talks[len(self._talks) * i // count] for i in range(count)]

    def _shape(self, talk: list[Turn]) -> Shape:
        first = talk[0].record
        seen = self._seen[id(first)]
        fresh = first.input_tokens - seen.depth
        return Shape(
            round(self._trace.seconds - first.at, 3),
            Opening(seen.depth, seen.age, fresh, first.output_tokens),
            tuple(self._step(turn) for turn in talk[1:]),
        )

    def _step(self, turn: Turn) -> Step:
        record, tokens = turn.record, self._trace.block_tokens
        back, best, most = 1, _before(turn), -1
        at = turn.parent
        for i in range(1, BACK + 1):
            if at is None:
                break
            shared = common(record.hash_ids, at.record.hash_ids) if record.runs else i == 1
            if shared > most:
                back, best, most = i, at.record, shared
            at = at.parent
        full = best.input_tokens // tokens
        kept = best.input_tokens if most >= full or not record.runs else most * tokens
        kept = min(kept, record.input_tokens)
        think, seen = round(_think(turn), 3), self._seen[id(record)]
        served = round(max(record.at - _before(turn).at - think, 0.0), 3)
        if seen.depth > kept:
            fresh = record.input_tokens - seen.depth
            return Step(think, 0, seen.depth, fresh, record.output_tokens, seen.age, served)
        share = round(kept / best.input_tokens, 5) if best.input_tokens else 0.0
        fresh = record.input_tokens - kept
        return Step(think, back, share, fresh, record.output_tokens, served=served)

    def _arrivals(self, times: list[float]) -> Arrivals:
        known = sorted(times)
        first = sum(1 for at in known if at == known[0])
        if first < 2 or known[0] > 0 or first < AT_ONCE * len(known):
            first = 0
        spread = detick(known[first:])
        if not len(spread):
            return Arrivals(at_once=first)
        return Arrivals(
            rate=_short(len(spread) / self._trace.seconds),
            at_once=first,
            process="gamma",
            cv=_short(min(local_variation(spread), 10.0)),
            envelope=self._envelope(spread),
            step_seconds=STEP_SECONDS,
        )

    def _envelope(self, times: Floats) -> tuple[float, ...]:
        steps = counts(np.array([0.0, *times, self._trace.seconds]), STEP_SECONDS)
        if len(steps) < LEAST_STEPS or not steps.mean():
            return ()
        # A Poisson process of an even rate varies, too: only what is beyond that is drift.
        drift = max(1 - 1 / max(dispersion(times, STEP_SECONDS), 1e-9), 0.0)
        if not drift:
            return ()
        return tuple(_short(each) for each in 1 + drift * (steps / steps.mean() - 1))

    def _repeats(self, firsts: Sequence[Record]) -> tuple[Repeat, ...]:
        known = [(self._seen[id(record)], record.input_tokens) for record in firsts]
        shared = sorted(
            (seen.depth, seen.age, size - seen.depth) for seen, size in known if seen.depth
        )
        cells = _cells([depth for depth, _, _ in shared])
        return tuple(
            Repeat(
                share=_short(len(cell) / len(known)),
                depth=self._law([depth for depth, _, _ in cell]),
                age=self._law([age for _, age, _ in cell]),
                fresh=self._law([fresh for _, _, fresh in cell]),
            )
            for cell in (shared[begin:end] for begin, end in cells)
        )

    def _turns_after(self) -> Later:
        if not self._later:
            return Later(continues=(0.0,))
        kept = [self._kept(turn) for turn in self._later]
        pairs = list(zip(self._later, kept, strict=True))
        whole = [turn for turn, share in pairs if share is None]
        early = [[t for t in whole if t.index == i] for i in range(1, EARLY + 1)]
        early = list(takewhile(lambda some: len(some) >= LEAST, early))
        late = [turn for turn in whole if turn.index > len(early)] or whole
        cut = [(turn, share) for turn, share in pairs if share is not None]
        after = [
            turn.record.input_tokens - share * _before(turn).input_tokens for turn, share in cut
        ]
        thinks, pace = self._thinks()
        answers = float(_spread(whole, 1.0) < _spread(whole, 0.0))
        return Later(
            continues=self._continues(),
            think=self._law(thinks),
            pace=pace,
            answers=answers,
            fresh=tabled([_grown(turn, answers) for turn in late]),
            early=tuple(tabled([_grown(turn, answers) for turn in some]) for some in early),
            cut=_short(len(cut) / len(self._later)),
            kept=self._law([share for _, share in cut]) if cut else fixed(1.0),
            after=self._law(after) if cut else fixed(0.0),
            most_tokens=max(1, *(turn.record.input_tokens for turn in self._turns)),
        )

    def _thinks(self) -> tuple[Floats, float]:
        """Think times, less what whole conversations differ in, and how much that is.

        **Source:** one-way analysis of variance of the logarithms, groups of different sizes; each
        conversation's part is drawn towards 0 as far as few turns leave it uncertain.
        """
        known = [
            np.log(np.maximum([_think(turn) for turn in talk[1:]], SHORTEST))
            for talk in self._talks
            if len(talk) > 1
        ]
        sizes = np.array([len(each) for each in known])
        means = np.array([each.mean() for each in known])
        total = int(sizes.sum())
        if len(known) < 2 or total <= len(known):
            return np.exp(np.concatenate(known)), 0.0
        within = sum(float(((each - each.mean()) ** 2).sum()) for each in known)
        within /= total - len(known)
        middle = float((sizes * means).sum() / total)
        between = float((sizes * (means - middle) ** 2).sum()) / (len(known) - 1)
        typical = (total - float((sizes**2).sum()) / total) / (len(known) - 1)
        variance = max((between - within) / typical, 0.0)
        trust = variance / (variance + within / sizes) if variance else np.zeros(len(known))
        middle = float((trust * means).sum() / trust.sum()) if variance else middle
        own = trust * (means - middle)
        rest = [np.exp(each - part) for each, part in zip(known, own, strict=True)]
        return np.concatenate(rest), _short(float(np.sqrt(variance)))

    def _kept(self, turn: Turn) -> float | None:
        """Share of the prompt before that a turn keeps; None for all of it."""
        before = _before(turn)
        full = before.input_tokens // self._trace.block_tokens
        shared = common(turn.record.hash_ids, before.hash_ids)
        if shared >= full or not turn.record.runs:
            return None
        return shared * self._trace.block_tokens / before.input_tokens

    def _continues(self) -> tuple[float, ...]:
        """Probability of a further turn, of turns long enough before the trace's end to tell."""
        gaps = sorted(turn.record.at - _before(turn).at for turn in self._later)
        until = self._trace.seconds - gaps[int(0.95 * (len(gaps) - 1))]
        if until < self._trace.seconds / 2:
            until = self._trace.seconds
        found: list[float] = []
        turn = 0
        while True:
            reached = [t for t in self._talks if len(t) > turn and t[turn].record.at <= until]
            if len(reached) < REACHED and found:
                break
            if not reached:
                break
            more = sum(1 for talk in reached if len(talk) > turn + 1)
            found.append(_short(more / len(reached)))
            turn += 1
        rest = [t for talk in self._talks for t in talk[turn:] if t.record.at <= until]
        if rest:
            more = sum(1 for talk in self._talks for t in talk[turn + 1 :])
            found.append(_short(min(more / len(rest), 0.999)))
        return tuple(found)

    def _service(self) -> Service:
        """How long answers take: as told, or what is left of gaps beside think times; least squares."""
        told = [
            (turn.record.output_tokens, turn.record.duration)
            for turn in self._turns
            if turn.record.duration is not None
        ] or [
            (before.output_tokens, turn.record.at - before.at - turn.record.think)
            for turn, before in ((turn, _before(turn)) for turn in self._later)
            if turn.record.think is not None
        ]
        if len(told) < 2:
            return Service()
        tokens, seconds = np.array(told, dtype=np.float64).T
        spread = float(tokens.var())
        slope = float(((tokens - tokens.mean()) * seconds).mean() / spread) if spread else 0.0
        slope = max(slope, 0.0)
        first = max(float(seconds.mean() - slope * tokens.mean()), 0.0)
        return Service(_short(first), _short(slope))


def _cells(depths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut sorted depths into `CELLS` parts of about the same size, equal ones together."""
    edges = [0]
    for i in range(1, CELLS + 1):
        at = len(depths) * i // CELLS
        while 0 < at < len(depths) and depths[at] == depths[at - 1]:
            at += 1
        if at > edges[-1]:
            edges.append(at)
    return list(pairwise(edges))


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _before(turn: Turn) -> Record:
    return turn.parent.record if turn.parent else turn.record


def _grown(turn: Turn, answers: float) -> float:
    """Tokens that a turn's prompt has beyond the one before it, and that share of the answer."""
    before = _before(turn)
    return turn.record.input_tokens - before.input_tokens - answers * before.output_tokens


def _spread(turns: Sequence[Turn], answers: float) -> float:
    """How much the growth varies, if that share of an answer comes back."""
    return float(np.std([_grown(turn, answers) for turn in turns])) if turns else 0.0


def _think(turn: Turn) -> float:
    """Seconds from the answer before, or from that request if nobody told when it was answered."""
    if turn.record.think is not None:
        return turn.record.think
    before = _before(turn)
    return max(turn.record.at - before.at - (before.duration or 0.0), 0.0)
