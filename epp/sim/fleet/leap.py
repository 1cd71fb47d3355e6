"""An engine that does in one go all steps between which nothing changes but the token counts.

While a batch only decodes, each step is longer than the one before by what its sequences' context
grew, so the end of any number of steps is known in closed form. A step is done alone where a prompt
is computed, where a sequence ends, or where blocks may run out. Requests, blocks, evictions and
durations are those of `Engine`, up to rounding; with one exception: full blocks of an output can be
found by others from the end of their request on, not before.

What a batch of decoding sequences adds up to is kept as sums, so a step costs the same whatever the
size of the batch. Where blocks are short, every sequence is looked at, as `Engine` does.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import msgspec

from epp.sim.engine import Engine
from epp.sim.model import Config, Finished, Request, UnderWay


class News(NamedTuple):
    """What came of the steps that ended."""

    first: list[str]  #: requests that got their first token
    finished: list[Finished]


class _Plan(msgspec.Struct):
    """The steps under way."""

    began: float
    steps: int
    first: float  #: seconds of the first step
    growth: float  #: seconds that each step takes more than the one before

    def end(self, steps: int) -> float:
        """When so many steps are over."""
        return self.began + steps * self.first + self.growth * steps * (steps - 1) / 2


class LeapingEngine(Engine):
    """See `Engine`; `plan`, `cut` and `finish` stand for `begin` and `complete`."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        super().__init__(config, seed)
        if config.max_num_seqs > config.max_num_batched_tokens:
            raise ValueError("a step must have a token for every sequence of a full batch")
        self._step = 0  # decoding steps done
        self._since: dict[UnderWay, int] = {}  # decoding sequences: `_step` their counts are of
        self._context = 0  # tokens of all decoding sequences
        self._ends: list[tuple[int, int, UnderWay]] = []  # at which `_step` they end
        self._order = 0
        self._filling: list[UnderWay] = []  # in the batch and within their prompt
        self._phases = [0] * config.block_tokens
        """Decoding sequences by (computed tokens - `_step`), modulo a block."""
        self._plan: _Plan | None = None
        self._alone = False  # the plan is one step of `Engine`
        self._first: list[str] = []
        self._adapted = False  # some request asked for an adapter

    def submit(self, request: Request, at: float) -> None:
        """See `Engine.submit`."""
        self._adapted = self._adapted or bool(request.adapter)
        super().submit(request, at)

    def running_adapters(self) -> set[str]:
        """See `Engine.running_adapters`."""
        return super().running_adapters() if self._adapted else set()

    def plan(self, at: float) -> float | None:
        """Begin as many steps as can be foreseen; return when they end, None if there is nothing."""
        self._alone = not self._roomy()
        if self._alone:
            return self._plan_alone(at)
        self._batch = []
        size = len(self._since)
        self._take(0, 1)
        budget = self._fill(self.config.max_num_batched_tokens - size)
        self._admit(budget, at)
        if not size and not self._batch:
            return None
        seconds = self._cost(size, self._context)
        steps = 1 if self._batch or self.config.jitter else self._foreseeable(size)
        growth = size * self.config.timing.per_context
        self._plan = _Plan(at, steps, seconds, growth)
        return self._plan.end(steps)

    @property
    def leaps(self) -> bool:
        """Whether several steps are under way, between which nothing changes."""
        return self._plan is not None and self._plan.steps > 1

    def cut(self, at: float) -> float:
        """End after the step under way at ``at``, since something changes; return when that is."""
        plan = self._plan
        if plan is None:
            raise ValueError("no step is under way")
        low, high = 1, plan.steps
        while low < high:
            middle = (low + high) // 2
            if plan.end(middle) > at:
                high = middle
            else:
                low = middle + 1
        plan.steps = low
        return plan.end(low)

    def finish(self, at: float) -> News:
        """Apply what was planned; it ends at ``at``."""
        plan, self._plan = self._plan, None
        self._first = []
        if plan is None:
            return News([], [])
        if self._alone:
            finished = list(self.complete(at).finished)
            self._gather()
            return News(self._first, finished)
        self._take(1, plan.steps)
        size = len(self._since)
        self._step += plan.steps
        self._context += size * plan.steps
        self.totals.output_tokens += size * plan.steps
        finished = self._finish_due(at)
        self._computed(at, finished)
        return News(self._first, finished)

    def abort(self, request_id: str, at: float) -> Finished | None:
        """See `Engine.abort`; between `finish` and `plan` only.

        Raises:
            ValueError: steps are under way.
        """
        if self._plan is not None:
            raise ValueError("a request is dropped between two steps")
        self._spread()
        story = super().abort(request_id, at)
        self._gather()
        return story

    def used_at(self, at: float) -> float:
        """Fraction of blocks in use at ``at``, while steps are under way."""
        plan = self._plan
        if plan is None or plan.steps == 1 or at <= plan.began:
            return self.kv_usage
        done = plan.steps * min((at - plan.began) / (plan.end(plan.steps) - plan.began), 1.0)
        return min(self.kv_usage + done * len(self._since) / self._room, 1.0)

    @property
    def _room(self) -> int:
        """Tokens that fit."""
        return self.cache.capacity * self.config.block_tokens

    # --- one step ------------------------------------------------------------------------

    def _roomy(self) -> bool:
        """Whether there are blocks enough for the next step, so that nobody is preempted."""
        needed = self._phases[-self._step % len(self._phases)]
        for sequence in self._filling:
            share = min(sequence.tokens - sequence.computed, self.config.max_num_batched_tokens)
            needed += max(self._blocks_for(sequence.computed + share) - sequence.blocks, 0)
        return needed <= self.cache.available

    def _take(self, first: int, end: int) -> None:
        """Take the blocks that steps ``first`` to ``end`` of the plan need; there are enough."""
        needed = self._growth(self._step + first, end - first)
        if needed and not self.cache.take(needed):
            raise RuntimeError(f"{needed} blocks are not there, which were foreseen")

    def _growth(self, step: int, steps: int) -> int:
        """Blocks that decoding takes in so many steps."""
        phases = self._phases
        whole, rest = divmod(steps, len(phases))
        needed = whole * len(self._since)
        if rest:
            last = -(step + rest - 1) % len(phases)  # of the phases: they come in falling order
            needed += sum(phases[last : last + rest])
            needed += sum(phases[: max(last + rest - len(phases), 0)])
        return needed

    def _fill(self, budget: int) -> int:
        """Give sequences within their prompt a chunk; return the budget left."""
        for sequence in self._filling:
            share = min(sequence.tokens - sequence.computed, budget)
            if share <= 0:
                break
            self._grow(sequence, sequence.computed + share)
            self._batch_up(sequence, share)
            budget -= share
        return budget

    def _foreseeable(self, size: int) -> int:
        """Steps until a sequence ends, or until blocks may run out."""
        steps = self._ends[0][0] - self._step
        spare = self.cache.available // size
        most = (spare - 1) * self.config.block_tokens
        return max(min(steps, most), 1)

    def _finish_due(self, at: float) -> list[Finished]:
        """Finish the sequences that have all their tokens."""
        finished = []
        ends = self._ends
        while ends and ends[0][0] <= self._step:
            sequence = heapq.heappop(ends)[2]
            self._leave(sequence)
            finished.append(self._finish(sequence, at))
        return finished

    def _computed(self, at: float, finished: list[Finished]) -> None:
        """Apply the chunks of prompts; whoever is through gets a token and decodes from now on."""
        gaps: list[float] = []
        for sequence in self._batch:
            share, sequence.share = sequence.share, 0
            if not share:
                continue  # aborted meanwhile
            sequence.computed += share
            self._seal(sequence)
            if sequence.computed < sequence.tokens:
                if sequence not in self._filling:
                    self._filling.append(sequence)
                continue
            if sequence in self._filling:
                self._filling.remove(sequence)
            if sequence.request.output_tokens:
                self._emit(sequence, at, gaps, gaps)
            if sequence.emitted >= sequence.request.output_tokens:
                finished.append(self._finish(sequence, at))
            else:
                self._join(sequence)
        self._batch = []

    def _emit(self, sequence: UnderWay, at: float, firsts: list[float], gaps: list[float]) -> None:
        if sequence.first_at is None:
            self._first.append(sequence.request.id)
        super()._emit(sequence, at, firsts, gaps)

    # --- sums ------------------------------------------------------------------------------

    def _join(self, sequence: UnderWay) -> None:
        """Count a sequence among those that decode."""
        left = sequence.request.output_tokens - sequence.emitted
        self._order += 1
        heapq.heappush(self._ends, (self._step + left, self._order, sequence))
        self._since[sequence] = self._step
        self._context += sequence.tokens
        self._phases[(sequence.computed - self._step) % len(self._phases)] += 1

    def _leave(self, sequence: UnderWay) -> None:
        """Take a sequence out of the sums, with its own counts as they are now."""
        self._context -= sequence.tokens + self._step - self._since[sequence]
        self._settle(sequence)
        del self._since[sequence]
        self._phases[(sequence.computed - self._step) % len(self._phases)] -= 1

    def _settle(self, sequence: UnderWay) -> None:
        """Bring the counts of a decoding sequence up to date."""
        steps = self._step - self._since[sequence]
        self._since[sequence] = self._step
        sequence.emitted += steps
        sequence.computed += steps
        sequence.blocks = self._blocks_for(sequence.computed)
        self._seal(sequence)

    # --- where blocks are short --------------------------------------------------------------

    def _plan_alone(self, at: float) -> float | None:
        self._spread()
        seconds = self.begin(at)
        if seconds is None:
            self._gather()
            return None
        self._plan = _Plan(at, 1, seconds, 0.0)
        return at + seconds

    def _spread(self) -> None:
        """Bring every sequence up to date."""
        for sequence in self._since:
            self._settle(sequence)

    def _gather(self) -> None:
        """Form the sums anew."""
        self._since, self._ends, self._context, self._filling = {}, [], 0, []
        self._phases = [0] * self.config.block_tokens
        for sequence in self._running:
            if sequence.emitted and sequence.computed == sequence.tokens - 1:
                self._join(sequence)
            else:
                self._filling.append(sequence)
