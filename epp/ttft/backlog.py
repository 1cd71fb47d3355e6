"""Requests that one endpoint was sent and has not computed yet, as far as can be told.

An engine computes prompts in the order in which they came. Three things say that one is done: the
time that it takes by the speed learned; a scrape, since of all requests sent before it only those
waiting and those of the step under way are left; and the ledger, where a first byte or an end was
seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from itertools import islice

from epp.model import Load

IN_TRANSIT = 2  #: requests of others that any queue may hold on their way into the batch
TRANSIT_SECONDS = 0.02  #: after which a scrape must include a request
STEP = 8192  #: prompt tokens that an engine computes at once, by vLLM's default
FOLLOW = 0.05  #: of the way to a request's tokens that the mean goes


class Backlog:
    """The requests of one endpoint, the oldest first. O(1) a request, amortised."""

    __slots__ = ("_began", "_scraped", "_sent", "_tokens", "mean")

    def __init__(self, now: float) -> None:
        self.mean = 0.0  #: uncached tokens of a request
        self._sent: deque[tuple[float, float, str]] = deque()  # when, its work, its id
        self._tokens = 0.0  # the sum of their work
        self._began = now  # when the first of them began to be computed
        self._scraped = -1.0  # `Load.at` of the last scrape that was heeded

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def work(self) -> float:
        """That of all requests here, the one under way as if it were not begun."""
        return self._tokens

    @property
    def began(self) -> float:
        """When the first of them began to be computed, as far as can be told."""
        return self._began

    def send(self, tokens: float, now: float, request: str = "") -> None:
        """A request of ``tokens`` uncached prompt tokens goes there."""
        self.mean += FOLLOW * (tokens - self.mean) if self.mean else tokens
        if not self._sent:
            self._began = now
        self._sent.append((now, tokens, request))
        self._tokens += tokens

    def settle(self, load: Load | None, per_token: float, now: float, *, most: int) -> None:
        """Let go of what is computed by now, at ``per_token`` seconds; ``most`` requests are open.

        What is remembered is so no more than what is in flight.
        """
        sent = self._sent
        while len(sent) > most:
            self._drop(now)
        if load is not None and load.at > self._scraped:
            self._scraped = load.at
            self._heed(load)
        while sent and (ends := self._began + per_token * sent[0][1]) <= now:
            self._drop(ends)

    def keep(self, computing: Container[str], now: float) -> None:
        """Let go of all whose ids are not in ``computing``: the end of each prefill is told."""
        kept = [each for each in self._sent if each[2] in computing]
        if len(kept) == len(self._sent):
            return
        self._sent = deque(kept)
        self._tokens = sum(tokens for _, tokens, _ in kept)
        self._began = now

    def waiting(self, load: Load, per_token: float, now: float, *, most: int) -> float:
        """Return the tokens that are not computed, by what we sent and by what the engine told.

        Of our own no more than ``most`` are. Others send too: a scraped queue holds our mean per
        request, less what was computed since. Call `settle` before.
        """
        own = 0.0
        if self._sent:
            own = self._tokens - max(now - self._began, 0.0) / per_token
            own = min(max(own, 0.0), most)
        told = ((load.queued or 0.0) - IN_TRANSIT) * self.mean
        return max(own, told - max(now - load.at, 0.0) / per_token)

    def _heed(self, load: Load) -> None:
        """Of those that ``load`` must include, keep what it shows to be left."""
        if load.queued is None:
            return
        idle = not load.queued and load.running == 0
        before = load.at - TRANSIT_SECONDS
        done = sum(1 for at, _, _ in self._sent if at <= before) - int(load.queued)
        tokens = sum(tokens for _, tokens, _ in islice(self._sent, max(done, 0)))
        # Those that do not wait are computed, or in the step under way: at least the last is.
        least, step = (0, -1) if idle else (1, STEP)
        while done > least and tokens > step:
            tokens -= self._drop(before)
            done -= 1

    def _drop(self, at: float) -> float:
        """The first was computed by ``at``, and then the next one began; return its tokens."""
        tokens = self._sent.popleft()[1]
        self._tokens -= tokens
        if self._sent:
            self._began = max(self._began, at, self._sent[0][0])
        return tokens
