"""The last decisions and what became of them: why a request went where it went.

A receipt is made inside the decision, before it is booked, so its numbers of what was in flight
are those that the scorers saw. It keeps references and a few numbers of the best `TOP`
candidates, and is put into words only when somebody asks. No prompt and no header is kept, except
the request id.

Every decision gets one. Measured on the whole line of the router (parse to booking, chat of
1,000 tokens, four scorers): 4 us more with 3 endpoints, 2 % more with 1,000; so there is nothing
to gain from sampling, and the one request somebody asks about is always there. 1,000 receipts
take about 3 MB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import nlargest
from itertools import pairwise
from typing import Any

from epp.clock import Clock
from epp.ledger import Ledger
from epp.model import Ending, Endpoint, InferenceRequest, Pick, PrefixMatch
from epp.plugin import ProfileResult, type_of

TOP = 8  #: candidates kept, the best by score
SPAN = 32  #: scores looked at together, see `_best`
LONGEST = 256  #: characters kept of what a client may make long: ids and model names

Shown = dict[str, Any]


class Receipts:
    """A ring of decisions; a `plugin.Witness` and an observer.

    Args:
        most: decisions kept.
        ledger: what is in flight, by endpoint.
        clock: tells how long a decision took.
    """

    def __init__(self, most: int, ledger: Ledger, clock: Clock) -> None:
        self.failed = 0  #: decisions whose receipt could not be made, by a fault of a plugin
        self._ring: deque[_Receipt] = deque(maxlen=most)
        self._open: dict[int, _Receipt] = {}  # by `id` of the pick, which lives until the end
        self._ledger = ledger
        self._clock = clock

    def decided(
        self, request: InferenceRequest, pick: Pick, results: Mapping[str, ProfileResult]
    ) -> None:
        """See `plugin.Witness.decided`."""
        try:
            runs, match = [], request.match()
            for name, result in results.items():
                runs.append(_Run(name, result, match, self._ledger))
        except Exception:  # noqa: BLE001 - scores of a foreign plugin may be of any shape
            self.failed += 1
            return
        receipt = _Receipt(request, pick, runs, self._clock.now())
        self._ring.append(receipt)
        self._open[id(pick)] = receipt

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        receipt = self._open.pop(id(pick), None)
        if receipt is not None:
            receipt.ending = ending

    def last(self, limit: int) -> list[Shown]:
        """Return the last ``limit`` decisions, the newest first."""
        now = self._clock.now()
        newest = reversed(self._ring)
        return [receipt.shown(now) for receipt, _ in zip(newest, range(limit), strict=False)]

    def find(self, request_id: str) -> Shown | None:
        """Return the newest decision about ``request_id``, if it is still kept. O(ring)."""
        wanted = request_id[:LONGEST]
        for receipt in reversed(self._ring):
            if receipt.id == wanted:
                return receipt.shown(self._clock.now())
        return None

    def summary(self, pick: Pick) -> str:
        """Say in one line what was decided; "" once it has ended."""
        receipt = self._open.get(id(pick))
        return "" if receipt is None else receipt.summary()


class _Receipt:
    """One decision."""

    __slots__ = (
        "arrived_at", "at", "chosen", "ending", "format", "id", "model", "prefill", "priority",
        "profile", "prompt_tokens", "runs", "streaming", "target_model", "waited",
    )  # fmt: skip

    def __init__(
        self, request: InferenceRequest, pick: Pick, runs: Sequence[_Run], now: float
    ) -> None:
        self.id = request.id[:LONGEST]
        self.model = request.model[:LONGEST]
        self.target_model = request.target_model[:LONGEST]
        self.format = request.format
        self.prompt_tokens = request.prompt_tokens
        self.priority = request.priority
        self.streaming = request.streaming
        self.arrived_at = request.arrived_at
        self.waited = request.waited
        self.at = now
        self.chosen = pick.endpoints
        self.prefill = pick.prefill
        self.profile = pick.profile
        self.runs = runs
        self.ending: Ending | None = None

    def predicted(self) -> int | None:
        """Prompt tokens believed to be cached where it went; None if nothing was known."""
        for run in self.runs:
            if run.profile == self.profile or len(self.runs) == 1:
                return run.predicted(self.chosen[0], self.prompt_tokens)
        return None

    def summary(self) -> str:
        """One line, fit for a header."""
        words = [
            f"picked={self.chosen[0].address}",
            f"prefill={self.prefill.address}" if self.prefill else "",
            f"candidates={self.runs[-1].considered}" if self.runs else "",
            *(f"score={total:.3f}" for total in self._total()),
            f"predicted-cached={self.predicted() or 0}",
            f"wait={self.waited * 1000:.1f}ms",
            f"decision={self._decision() * 1000:.2f}ms",
        ]
        return "; ".join(word for word in words if word)

    def shown(self, now: float) -> Shown:
        """All of it, for JSON."""
        return {
            "request_id": self.id,
            "seconds_ago": round(now - self.at, 3),
            "model": self.model,
            "target_model": self.target_model,
            "format": self.format,
            "priority": self.priority,
            "streaming": self.streaming,
            "prompt_tokens": self.prompt_tokens,
            "picked": self.chosen[0].address,
            "fallbacks": [endpoint.address for endpoint in self.chosen[1:]],
            "prefill": self.prefill.address if self.prefill else None,
            "profile": self.profile,
            "predicted_cached_tokens": self.predicted(),
            "wait_seconds": round(self.waited, 6),
            "decision_seconds": round(self._decision(), 6),
            "profiles": [run.shown(self.prompt_tokens) for run in self.runs],
            "ended": None if self.ending is None else self._ended(self.ending),
        }

    def _decision(self) -> float:
        return max(self.at - self.arrived_at - self.waited, 0.0)

    def _total(self) -> Sequence[float]:
        return [
            total
            for run in self.runs
            if run.profile == self.profile
            for endpoint, total in zip(run.candidates, run.totals, strict=True)
            if endpoint is self.chosen[0]
        ][:1]

    def _ended(self, ending: Ending) -> Shown:
        first, usage = ending.first_byte_at, ending.usage
        return {
            "outcome": ending.outcome.value,
            "status": ending.status,
            "served": ending.served or None,
            "served_as_picked": ending.served in ("", self.chosen[0].address),
            "attempts": ending.attempts,
            "flags": ending.flags,
            "ttft_seconds": None if first is None else round(first - self.arrived_at, 6),
            "duration_seconds": round(ending.at - self.arrived_at, 6),
            "streamed": ending.streamed,
            "response_bytes": ending.response_bytes,
            "prompt_tokens": usage and usage.prompt_tokens,
            "completion_tokens": usage and usage.completion_tokens,
            "cached_tokens": usage and usage.cached_tokens,
        }


class _Run:
    """What one profile made of the candidates: its best `TOP`, and whom its filters removed."""

    __slots__ = (
        "_block_tokens", "_filters", "_held", "_in_flight", "_parts", "_removed", "_scorers",
        "candidates", "considered", "profile", "totals",
    )  # fmt: skip

    def __init__(
        self, profile: str, result: ProfileResult, match: PrefixMatch | None, ledger: Ledger
    ) -> None:
        candidates, totals, parts = result.candidates, result.scores, result.parts
        self.profile = profile
        self.considered = len(candidates)
        if len(candidates) > TOP:
            best = _best(result)
            candidates = tuple([candidates[i] for i in best])
            totals = [totals[i] for i in best]
            parts = [[part[i] for i in best] if part else part for part in parts]
        self.candidates = candidates
        self.totals = totals
        self._parts = parts
        self._scorers = result.scorers
        self._filters = result.filters
        self._removed = [] if len(result.kept) < 2 else _removed(result.kept)
        self._block_tokens, held = (0, {}) if match is None else (match.block_tokens, match.held)
        self._held: list[int] = []
        self._in_flight: list[tuple[int, int]] = []
        for each in candidates:
            self._held.append(held.get(each.id, 0))
            counts = ledger.get(each.id)
            self._in_flight.append((counts.requests, counts.tokens))

    def predicted(self, endpoint: Endpoint, prompt_tokens: int) -> int | None:
        """Tokens believed cached on ``endpoint``; None without any prefix knowledge."""
        if not self._block_tokens:
            return None
        for each, blocks in zip(self.candidates, self._held, strict=False):
            if each.id == endpoint.id:
                return min(blocks * self._block_tokens, prompt_tokens)
        return 0

    def shown(self, prompt_tokens: int) -> Shown:
        """All of it, for JSON; the best endpoint first."""
        order = sorted(range(len(self.candidates)), key=lambda i: -self.totals[i])
        return {
            "profile": self.profile,
            "candidates": self.considered,
            "filters": [
                {"filter": type_of(each), "removed": count, "some": [e.address for e in some]}
                for each, (count, some) in zip(self._filters, self._removed, strict=False)
            ],
            "scorers": [
                {"scorer": type_of(scorer), "weight": weight} for scorer, weight in self._scorers
            ],
            "endpoints": [self._endpoint(i, prompt_tokens) for i in order],
        }

    def _endpoint(self, i: int, prompt_tokens: int) -> Shown:
        endpoint, load = self.candidates[i], self.candidates[i].load
        requests, tokens = self._in_flight[i]
        return {
            "endpoint": endpoint.address,
            "name": endpoint.name,
            "total": round(float(self.totals[i]), 6),
            "scores": [round(float(part[i]), 6) if part else None for part in self._parts],
            "predicted_cached_tokens": self.predicted(endpoint, prompt_tokens),
            "in_flight_requests": requests,
            "in_flight_tokens": tokens,
            "queued": None if load is None else load.queued,
            "running": None if load is None else load.running,
            "kv_usage": None if load is None else load.kv_usage,
        }


def _best(result: ProfileResult) -> list[int]:
    """Positions of the best `TOP` candidates, and of the chosen one if it is not among them.

    The least of the best is no less than the best of the `TOP`-th span, so most scores are only
    seen by `max`: 25 us for 1,000 of them, half of what a heap alone takes.
    """
    scores = result.scores
    starts = range(0, len(scores), SPAN)
    most = [max(scores[at : at + SPAN]) for at in starts]
    least = nlargest(TOP, scores if len(most) < 2 * TOP else most)[-1]
    near = [
        (-score, i)
        for at, score in zip(starts, most, strict=True)
        if score >= least
        for i, score in enumerate(scores[at : at + SPAN], at)
        if score >= least
    ]
    best = [i for _, i in sorted(near)[:TOP]]
    chosen = result.chosen[0]
    if not any(result.candidates[i] is chosen for i in best):
        best += [i for i, each in enumerate(result.candidates) if each is chosen][:1]
    return best


def _removed(kept: Sequence[Sequence[Endpoint]]) -> list[tuple[int, Sequence[Endpoint]]]:
    """How many each filter removed, and the first `TOP` of them."""
    found: list[tuple[int, Sequence[Endpoint]]] = []
    for before, after in pairwise(kept):
        count = len(before) - len(after)
        found.append((count, _first_gone(before, after) if count else ()))
    return found


def _first_gone(before: Sequence[Endpoint], after: Sequence[Endpoint]) -> Sequence[Endpoint]:
    """Name some that are in ``before`` only; both are in the same order."""
    gone: list[Endpoint] = []
    left = iter(after)
    still = next(left, None)
    for endpoint in before:
        if endpoint is still:
            still = next(left, None)
        else:
            gone.append(endpoint)
            if len(gone) == TOP:
                break
    return gone
