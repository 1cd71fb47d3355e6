"""One model server in virtual time: queue, batch, KV blocks and step durations; pure.

Requests go in with `Engine.submit` and `Engine.abort`; `Engine.begin` plans a step and says how
long it takes, `Engine.complete` applies it and says what came out. Time is whatever the caller
says; the engine never asks. The same engine serves HTTP (`epp.sim.server`) and simulated fleets.

**Source:** the scheduler of vLLM V1 (vllm/v1/core/sched/scheduler.py): each step has a budget of
tokens. Running sequences come first, in order of admission, with one token each when they decode
and a chunk of their prompt when they do not; at most one is within its prompt and it is the last,
so decodes always go first. Then waiting requests are admitted first come, first served, while there
are places, budget, and blocks for the whole sequence. When a running sequence finds no block, the one
admitted last is preempted: its blocks are freed and it is computed again, from the front of the
queue. A cached prefix never covers the last token: at least one token is computed.

A request whose KV another engine has gets its blocks when its turn comes, waits for the transfer
outside the batch, and then goes before all others. So does one whose blocks lie in a lower tier. One whose KV another engine wants leaves its
blocks behind on a lease.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from itertools import groupby

from epp.sim.cache import BlockCache
from epp.sim.model import Config, Finished, Request, Sealed, StepResult, Totals, UnderWay
from epp.sim.offload.tiers import Tiers
from epp.sim.transfer.leases import Leases


class Engine:
    """One model server. Deterministic: same calls, same seed, same results."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        self.config = config
        self.cache = BlockCache(config.kv_blocks - 1, journal=config.journal)
        self.tiers = Tiers(config.offload, block_tokens=config.block_tokens, journal=config.journal)
        self.totals = Totals()
        self.deferred = 0  #: requests passed over in the last step: no room for their adapter
        self._random = random.Random(seed)
        self._sequences: dict[str, UnderWay] = {}
        self.leases = Leases(self.cache, config.lease_seconds)
        self._waiting: deque[UnderWay] = deque()
        self._fetching: dict[str, UnderWay] = {}
        self._fetched: deque[UnderWay] = deque()  #: hold all the blocks that they need
        self._to_fetch: list[str] = []
        self._running: list[UnderWay] = []
        self._batch: list[UnderWay] = []  #: the step under way
        self._duration = 0.0
        self._sealed: list[Sealed] = []

    # --- events in -------------------------------------------------------------------

    def submit(self, request: Request, at: float) -> None:
        """Queue a request.

        Raises:
            ValueError: it can never fit in the KV cache, or its id is in use, or it is empty.
        """
        if request.id in self._sequences:
            raise ValueError(f"request id {request.id!r} is in use")
        if request.prompt_tokens < 1 or request.output_tokens < 0:
            counts = f"{request.prompt_tokens} and {request.output_tokens}"
            raise ValueError(f"prompt tokens must be >= 1, output tokens >= 0: {counts}")
        needed = self._blocks_for(request.prompt_tokens + request.output_tokens)
        if needed > self.cache.capacity:
            raise ValueError(f"needs {needed} KV blocks of {self.cache.capacity}")
        sequence = UnderWay(request, at)
        self._sequences[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str, at: float) -> Finished | None:
        """Drop a request, wherever it is; None if it is not here."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return None
        if sequence.running:
            self._running.remove(sequence)
        elif self._fetching.pop(request_id, None) is None:
            queue = self._fetched if sequence in self._fetched else self._waiting
            queue.remove(sequence)
        self._free(sequence)
        sequence.share = 0
        return sequence.story("abort", at)

    def fetched(self, request_id: str, *, good: bool = True) -> None:
        """Say that a transfer or a load is over; without its KV the prompt is computed here."""
        sequence = self._fetching.pop(request_id, None)
        if sequence is None:
            return  # aborted meanwhile
        if sequence.load_ends is not None:
            self._loaded(sequence)
        elif good:
            prompt = sequence.request.prompt_tokens
            sequence.external, sequence.computed = prompt - sequence.computed, prompt
            self._seal(sequence)
            sequence.computed = prompt - 1
        self._fetched.append(sequence)

    # --- instructions out --------------------------------------------------------------

    def begin(self, at: float) -> float | None:
        """Plan a step that starts at ``at``; return its seconds, None if there is nothing to do.

        Requests that arrive before `complete` is called wait for the next step.
        """
        self._batch = []
        budget, preempted = self._plan_running()
        if not preempted:
            self._admit(budget, at)
        if not self._batch:
            return None
        self._duration = self._cost()
        return self._duration

    def to_fetch(self) -> list[str]:
        """Return the requests whose KV is to be fetched, since this was last asked."""
        asked, self._to_fetch = self._to_fetch, []
        return asked

    def load_ends(self, request_id: str) -> float | None:
        """Return when what a request to fetch waits for is loaded; None: another engine has it."""
        return self._fetching[request_id].load_ends

    def complete(self, at: float) -> StepResult:
        """Apply the step that ends at ``at``; an empty result if none is under way."""
        emitted: list[str] = []
        finished: list[Finished] = []
        firsts: list[float] = []
        gaps: list[float] = []
        batched = 0
        for sequence in self._batch:
            share, sequence.share = sequence.share, 0
            if not share:
                continue  # aborted meanwhile
            batched += share
            sequence.computed += share
            self._seal(sequence)
            if sequence.computed < sequence.tokens:
                continue
            if sequence.request.output_tokens:
                emitted.append(sequence.request.id)
                self._emit(sequence, at, firsts, gaps)
            if sequence.emitted >= sequence.request.output_tokens:
                finished.append(self._finish(sequence, at))
        duration, self._duration = self._duration, 0.0
        self._batch = []
        return StepResult(at, duration, batched, emitted, finished, firsts, gaps)

    def step(self, at: float) -> StepResult | None:
        """Run one whole step that starts at ``at``; None if there is nothing to do."""
        duration = self.begin(at)
        return None if duration is None else self.complete(at + duration)

    # --- what it looks like from outside -------------------------------------------------

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that are not in the batch."""
        return len(self._waiting) + len(self._fetching) + len(self._fetched)

    @property
    def kv_usage(self) -> float:
        """Fraction of KV blocks in use, 0.0 to 1.0."""
        return self.cache.used / self.cache.capacity

    def running_adapters(self) -> set[str]:
        """Names of the adapters in the batch."""
        return {s.request.adapter for s in self._running if s.request.adapter}

    def ids(self) -> tuple[str, ...]:
        """Ids of all requests here."""
        return tuple(self._sequences)

    def news(self) -> tuple[list[int], list[Sealed]]:
        """Return hashes given up and blocks stored since this was last asked, if a journal is kept.

        Within a step blocks are given up before any is stored.
        """
        removed, sealed = self.cache.removed, self._sealed
        self.cache.removed, self._sealed = [], []
        return removed, sealed

    # --- one step ------------------------------------------------------------------------

    def _plan_running(self) -> tuple[int, bool]:
        """Give running sequences their share; return the budget left, and if one was preempted."""
        budget, preempted = self.config.max_num_batched_tokens, False
        position = 0
        while position < len(self._running) and budget > 0:
            sequence = self._running[position]
            share = min(sequence.tokens - sequence.computed, budget)
            while not self._grow(sequence, sequence.computed + share):
                preempted = True
                victim = self._running[-1]
                self._preempt(victim)
                if victim is sequence:
                    return budget, preempted
            self._batch_up(sequence, share)
            budget -= share
            position += 1
        return budget, preempted

    def _admit(self, budget: int, at: float) -> None:
        """Take waiting requests into the batch, first come, first served."""
        config, passed_over = self.config, []
        while self._fetched and budget > 0 and len(self._running) < config.max_num_seqs:
            budget -= self._resume(self._fetched.popleft(), budget, at)
        adapters = self.running_adapters()
        while self._waiting and budget > 0 and len(self._running) < config.max_num_seqs:
            sequence = self._waiting[0]
            adapter = sequence.request.adapter
            if adapter and adapter not in adapters and len(adapters) >= config.max_adapters:
                passed_over.append(self._waiting.popleft())
                continue
            hits = self._hits(sequence)
            if not self.cache.fits(hits, self._blocks_for(sequence.tokens) - len(hits)):
                break
            self._waiting.popleft()
            if adapter:
                adapters.add(adapter)
            self._hold(sequence, hits)
            fetches = sequence.request.fetches and not sequence.preemptions
            if fetches or self._load(sequence, at):
                self._grow(sequence, sequence.tokens)
                self._fetching[sequence.request.id] = sequence
                self._to_fetch.append(sequence.request.id)
                continue
            budget -= self._resume(sequence, budget, at)
        self._waiting.extendleft(reversed(passed_over))
        self.deferred = len(passed_over) + len(self._fetching)

    def _hits(self, sequence: UnderWay) -> Sequence[int]:
        """Return the leading blocks of ``sequence`` that are cached, never the last token's."""
        if not self.config.prefix_caching:
            return ()
        blocks = sequence.request.blocks
        limit = (sequence.tokens - 1) // self.config.block_tokens
        return blocks[: self.cache.match(blocks, limit)]

    def _hold(self, sequence: UnderWay, hits: Sequence[int]) -> None:
        """Let a waiting sequence use its cached blocks."""
        self.cache.hold(hits)
        self.tiers.store(hits)
        sequence.held = list(hits)
        sequence.blocks = sequence.sealed = len(hits)
        sequence.computed = len(hits) * self.config.block_tokens
        if sequence.admitted_at is None:
            sequence.cached = sequence.computed

    def _load(self, sequence: UnderWay, at: float) -> bool:
        """Begin to load blocks that only lower tiers hold; False if there are none."""
        limit = (sequence.tokens - 1) // self.config.block_tokens
        found = self.tiers.match(sequence.request.blocks[sequence.sealed : limit])
        if found:
            sequence.load_ends = self.tiers.load(found, at)
            sequence.computed += len(found) * self.config.block_tokens
        return bool(found)

    def _loaded(self, sequence: UnderWay) -> None:
        sequence.load_ends = None
        if sequence.admitted_at is None:
            sequence.loaded = sequence.computed - sequence.cached
            sequence.cached = sequence.computed
        self._seal(sequence)

    def _resume(self, sequence: UnderWay, budget: int, at: float) -> int:
        """Put a sequence into the batch; return its share of the budget."""
        if sequence.admitted_at is None:
            sequence.admitted_at = at
            self.totals.queried_tokens += sequence.tokens
            self.totals.hit_tokens += sequence.cached - sequence.loaded
        share = min(sequence.tokens - sequence.computed, budget)
        self._grow(sequence, sequence.computed + share)
        sequence.running = True
        self._running.append(sequence)
        self._batch_up(sequence, share)
        return share

    def _batch_up(self, sequence: UnderWay, share: int) -> None:
        sequence.share = share
        self._batch.append(sequence)

    def _preempt(self, sequence: UnderWay) -> None:
        """Free the last of the batch and put it in front of the queue, to be computed again."""
        self._running.pop()
        self._free(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.totals.preemptions += 1
        self._waiting.appendleft(sequence)

    def _cost(self, decodes: int = 0, context: int = 0) -> float:
        """Seconds that the planned step takes, with ``decodes`` sequences beside those of the batch.

        Those have ``context`` tokens together.
        """
        prefill, attention = 0, 0.0
        for sequence in self._batch:
            if sequence.share == 1 and sequence.emitted:
                decodes += 1
                context += sequence.tokens
            else:
                prefill += sequence.share
                attention += sequence.share * (sequence.computed + sequence.share / 2)
        seconds = self.config.timing.step_seconds(
            decodes=decodes, context=context, prefill=prefill, attention=attention
        )
        return self._jittered(seconds)

    def _jittered(self, seconds: float) -> float:
        if self.config.jitter:
            seconds *= max(1.0 + self._random.gauss(0.0, self.config.jitter), 0.1)
        return seconds

    def _emit(self, sequence: UnderWay, at: float, firsts: list[float], gaps: list[float]) -> None:
        sequence.emitted += 1
        self.totals.output_tokens += 1
        if sequence.first_at is None:
            sequence.first_at = at
            firsts.append(at - sequence.arrived_at)
            self._count_prompt(sequence)
        else:
            gaps.append(at - sequence.last_at)
        sequence.last_at = at

    def _count_prompt(self, sequence: UnderWay) -> None:
        self.totals.prompt_tokens += sequence.request.prompt_tokens
        self.totals.external_tokens += sequence.external + sequence.loaded
        here = sequence.request.prompt_tokens - sequence.cached - sequence.external
        self.totals.computed_tokens += here

    def _finish(self, sequence: UnderWay, at: float) -> Finished:
        if sequence.first_at is None:
            self._count_prompt(sequence)
        self._running.remove(sequence)
        if sequence.request.keeps and sequence.request.reason == "length":
            self._keep(sequence, at)
        self._free(sequence)
        del self._sequences[sequence.request.id]
        return sequence.story(sequence.request.reason, at)

    # --- blocks ----------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_tokens)

    def _grow(self, sequence: UnderWay, tokens: int) -> bool:
        """Take blocks until ``tokens`` fit; False if there are not enough."""
        missing = self._blocks_for(tokens) - sequence.blocks
        if missing <= 0:
            return True
        if not self.cache.take(missing):
            return False
        sequence.blocks += missing
        return True

    def _seal(self, sequence: UnderWay) -> None:
        """Make the blocks that became full known by their hash."""
        if not self.config.prefix_caching:
            return
        blocks = sequence.request.blocks
        full = min(sequence.computed // self.config.block_tokens, len(blocks))
        if full <= sequence.sealed:
            return
        filled = blocks[sequence.sealed : full]
        fresh = self.cache.seal(filled)
        sequence.held += [filled[position] for position in fresh]
        if self.config.journal:
            self._note(sequence.request, [sequence.sealed + position for position in fresh])
        self.tiers.store(filled)
        sequence.sealed = full

    def _note(self, request: Request, positions: Sequence[int]) -> None:
        """Add blocks to the journal; those that follow on one another share an entry."""
        for _, run in groupby(enumerate(positions), key=lambda each: each[1] - each[0]):
            found = [position for _, position in run]
            first, last = found[0], self._sealed[-1] if self._sealed else None
            if last is not None and last.request is request and last.end == first:
                first = self._sealed.pop().first
            self._sealed.append(Sealed(request, first, found[-1] + 1))

    def _keep(self, sequence: UnderWay, at: float) -> None:
        """Leave the blocks on a lease."""
        blocks = (sequence.held, sequence.blocks - len(sequence.held))
        self.leases.add(sequence.request.id, blocks, at)
        sequence.held, sequence.blocks = [], 0

    def _free(self, sequence: UnderWay) -> None:
        self.cache.release(sequence.held, sequence.blocks - len(sequence.held))
        sequence.held = []
        sequence.blocks = sequence.sealed = 0
        sequence.running = False
