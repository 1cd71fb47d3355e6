"""The last decisions and what became of them: why a request went where it went.

A receipt is made inside the decision, before it is booked, so its numbers of what was in flight
are those that the scorers saw. It keeps references and a few numbers of the best `TOP`
candidates, and is put into words only when somebody asks. No prompt and no header is kept, except
the request id.

Every decision gets one: the request that somebody asks about is always there. Measured on the
router's whole line, from parsing to booking, with a chat of 1,000 tokens and four scorers: 5 us a
request with 3 endpoints, half of them for letting go of the receipt that is pushed out; 40 us of
1,200 with 1,000 endpoints, most of them for finding the best. Kept memory is
cold memory: a ring of 1,000, about 3 MB, costs twice as much a request as one of 200.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import nlargest
from itertools import pairwise
from typing import Any

import msgspec

from epp.clock import Clock
from epp.ledger import Ledger
from epp.model import (
    Ending,
    Endpoint,
    EndpointId,
    Expected,
    InferenceRequest,
    Pick,
    PrefillLeg,
    PrefixMatch,
)
from epp.plugin import ProfileResult, type_of
from epp.telemetry.text import printable
from epp.ttft.parts import Parts, expected_parts, measured_parts

TOP = 8  #: candidates kept, the best by score
SPAN = 32  #: scores looked at together, see `_best`
PREFIXES = ("chatcmpl-", "cmpl-", "embd-")  #: that vLLM puts before a request's id in its answers
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
            match = request.match()
            runs = [_run(name, each, match, self._ledger) for name, each in results.items()]
        except Exception:  # noqa: BLE001 - scores of a foreign plugin may be of any shape
            self.failed += 1
            return
        receipt = _Receipt(
            printable(request.id[:LONGEST]), request.model[:LONGEST], request.target_model[:LONGEST],
            request.format, request.prompt_tokens, request.priority, request.streaming,
            request.arrived_at, request.waited, self._clock.now(), pick.endpoints, pick.prefill,
            pick.profile, pick.stages,
            tuple(runs), pick.expected, _knowledge(request, match),
        )  # fmt: skip
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
        """Return the newest decision about ``request_id``, if it is still kept. O(ring).

        Args:
            request_id: as the client wrote it, or as it is shown; or the answer's ``id``, which vLLM
                makes of it by a prefix.
        """
        wanted = [request_id, printable(request_id[:LONGEST])]
        wanted += [
            request_id.removeprefix(each) for each in PREFIXES if request_id.startswith(each)
        ]
        for receipt in reversed(self._ring):
            if receipt.id in wanted:
                return receipt.shown(self._clock.now())
        return None

    def summary(self, pick: Pick) -> str:
        """Say in one line what was decided; "" once it has ended."""
        receipt = self._open.get(id(pick))
        return "" if receipt is None else receipt.summary()


class _Receipt(msgspec.Struct, gc=False):
    """One decision."""

    id: str
    model: str
    target_model: str
    format: str
    prompt_tokens: int
    priority: int
    streaming: bool
    arrived_at: float
    waited: float
    at: float  #: when it was decided
    chosen: tuple[Endpoint, ...]
    prefill: Endpoint | None
    profile: str
    stages: str
    runs: tuple[_Run, ...]
    expected: Expected | None
    knowledge: tuple[str, str, str]  #: see `_knowledge`
    ending: Ending | None = None

    def predicted(self) -> int | None:
        """Prompt tokens believed to be cached where it went; None if nothing was known."""
        for run in self.runs:
            if run.profile == self.profile or len(self.runs) == 1:
                return run.predicted(self.chosen[0], self.prompt_tokens)
        return None

    def expected_ttft(self) -> Parts | None:
        """What was expected of its first token."""
        return expected_parts(
            self.expected, wait=self.waited, decision=self._decision(), elsewhere=bool(self.prefill)
        )

    def measured_ttft(self, ending: Ending) -> Parts | None:
        """What its first byte waited for: put together again here, since few are ever shown."""
        request = InferenceRequest(
            self.id, {}, b"", prompt_tokens=self.prompt_tokens, arrived_at=self.arrived_at,
            waited=self.waited,
        )  # fmt: skip
        pick = Pick(self.chosen, prefill=self.prefill, expected=self.expected)
        return measured_parts(request, pick, ending)

    def summary(self) -> str:
        """One line, fit for a header."""
        first = self.expected_ttft()
        words = [
            f"picked={self.chosen[0].address}",
            f"prefill={self.prefill.address}" if self.prefill else "",
            f"candidates={self.runs[-1].considered}" if self.runs else "",
            *(f"score={total:.3f}" for total in self._total()),
            f"predicted-cached={self.predicted() or 0}",
            f"wait={self.waited * 1000:.1f}ms",
            f"decision={self._decision() * 1000:.2f}ms",
            f"expected-ttft={first.total * 1000:.1f}ms" if first else "",
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
            "prefill_reason": self.stages or None,
            "profile": self.profile,
            "predicted_cached_tokens": self.predicted(),
            "prefix_known_from": self.knowledge[0] or None,
            "tokens_from": self.knowledge[1] or None,
            "no_tokens": self.knowledge[2] or None,
            "wait_seconds": round(self.waited, 6),
            "decision_seconds": round(self._decision(), 6),
            "expected_ttft": _parts(self.expected_ttft()),
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
            for endpoint, total in zip(run.result.candidates, run.result.scores, strict=True)
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
            "ttft": _parts(self.measured_ttft(ending)),
            "duration_seconds": round(ending.at - self.arrived_at, 6),
            "streamed": ending.streamed,
            "prefill_leg": _leg(ending.leg),
            "response_bytes": ending.response_bytes,
            "prompt_tokens": usage and usage.prompt_tokens,
            "completion_tokens": usage and usage.completion_tokens,
            "cached_tokens": usage and usage.cached_tokens,
        }


class _Run(msgspec.Struct, gc=False):
    """What one profile made of the candidates: its best `TOP`, and whom its filters removed."""

    profile: str
    considered: int  #: candidates that were scored
    result: ProfileResult  #: of those kept; a small one is kept as it is, which costs nothing
    removed: Sequence[tuple[int, Sequence[Endpoint]]]  #: how many each filter did, and some of them
    in_flight: Sequence[tuple[int, int]]  #: requests and tokens, of those kept
    held: Mapping[EndpointId, int]  #: blocks, by endpoint
    block_tokens: int  #: 0 without any prefix knowledge

    def predicted(self, endpoint: Endpoint, prompt_tokens: int) -> int | None:
        """Tokens believed cached on ``endpoint``; None without any prefix knowledge."""
        if not self.block_tokens:
            return None
        return min(self.held.get(endpoint.id, 0) * self.block_tokens, prompt_tokens)

    def shown(self, prompt_tokens: int) -> Shown:
        """All of it, for JSON; the best endpoint first."""
        result, totals = self.result, self.result.scores
        order = sorted(range(len(totals)), key=lambda i: -totals[i])
        return {
            "profile": self.profile,
            "candidates": self.considered,
            "filters": [
                {"filter": type_of(each), "removed": count, "some": [e.address for e in some]}
                for each, (count, some) in zip(result.filters, self.removed, strict=False)
            ],
            "scorers": [
                {"scorer": type_of(scorer), "weight": weight} for scorer, weight in result.scorers
            ],
            "endpoints": [self._endpoint(i, prompt_tokens) for i in order],
        }

    def _endpoint(self, i: int, prompt_tokens: int) -> Shown:
        result, (requests, tokens) = self.result, self.in_flight[i]
        endpoint, load = result.candidates[i], result.candidates[i].load
        return {
            "endpoint": endpoint.address,
            "name": endpoint.name,
            "total": round(float(result.scores[i]), 6),
            "scores": [round(float(part[i]), 6) if part else None for part in result.parts],
            "predicted_cached_tokens": self.predicted(endpoint, prompt_tokens),
            "in_flight_requests": requests,
            "in_flight_tokens": tokens,
            "queued": None if load is None else load.queued,
            "running": None if load is None else load.running,
            "kv_usage": None if load is None else load.kv_usage,
        }


def _leg(leg: PrefillLeg | None) -> Shown | None:
    """What became of a prefill that the picker ran."""
    if leg is None:
        return None
    return {
        "endpoint": leg.endpoint and leg.endpoint.address,
        "reason": leg.reason or None,
        "seconds": None if leg.seconds is None else round(leg.seconds, 6),
        "attempts": leg.attempts,
        "lost_seconds": round(leg.lost, 6),
    }


def _parts(parts: Parts | None) -> Shown | None:
    """Seconds, by part; the parts of ``engine_seconds`` are None where they are not known."""
    if parts is None:
        return None
    shown: Shown = {"total_seconds": round(parts.total, 6)}
    for name, seconds in msgspec.structs.asdict(parts).items():
        shown[f"{name}_seconds"] = None if seconds is None else round(seconds, 6)
    return shown


def _knowledge(request: InferenceRequest, match: PrefixMatch | None) -> tuple[str, str, str]:
    """Say what told of the prefix, who told the token ids, and why nobody did, if asked."""
    tokens = "" if request.tokens is None else request.tokens.source
    return "" if match is None else match.source, tokens, request.no_tokens


def _run(profile: str, result: ProfileResult, match: PrefixMatch | None, ledger: Ledger) -> _Run:
    """Note what is to be kept of a result: its lists may be as long as the pool."""
    considered = len(result.candidates)
    removed: Sequence[tuple[int, Sequence[Endpoint]]] = ()
    if considered > TOP or result.filters:
        removed = _removed(result.kept)
        result = _smaller(result, _best(result))
    in_flight = []
    for each in result.candidates:
        counts = ledger.get(each.id)
        in_flight.append((counts.requests, counts.tokens))
    if match is None:
        return _Run(profile, considered, result, removed, in_flight, {}, 0)
    held = match.held
    if len(held) > TOP:
        held = {each.id: held.get(each.id, 0) for each in result.candidates}
    return _Run(profile, considered, result, removed, in_flight, held, match.block_tokens)


def _smaller(result: ProfileResult, best: Sequence[int]) -> ProfileResult:
    """Keep the candidates at ``best`` only, and nothing of what the filters were given."""
    return ProfileResult(
        result.chosen,
        tuple([result.candidates[i] for i in best]),
        [result.scores[i] for i in best],
        result.filters,
        (),
        result.scorers,
        [[part[i] for i in best] if part else part for part in result.parts],
    )


def _best(result: ProfileResult) -> Sequence[int]:
    """Positions of the best `TOP` candidates, and of the chosen one if it is not among them.

    The least of the best is no less than the best of the `TOP`-th span, so most scores are only
    seen by `max`: 25 us for 1,000 of them, half of what a heap alone takes.
    """
    scores = result.scores
    if len(scores) <= TOP:
        return range(len(scores))
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
