"""Foresees at the pick what a first token waits for, and learns from what came of it.

Of the chosen endpoint only, from facts that are there: the ledger's uncached tokens, the scraped
queue, the request's uncached tokens. What is learned is the seconds per uncached token and the
rest, see `ttft.fit`; of an endpoint that has not answered yet, what all others taught. An answer
with much queued before it teaches far less, since the queue is our own estimate. Where another
endpoint computed the prompt, that one is taught by what came before the cache's way.

Tokens queued are those of our own requests that are not computed by the speed learned, no more
than the ledger has open; only those sent since, if the last scrape shows an engine without work;
and at least what the scraped queue holds, at our mean per request, less what was computed since:
others send too. An endpoint whose queue is not told has no forecast, nor has a request whose
tokens are not known.

Hot path: `expect` takes 3 to 5 us a request; `ended`, after the answer, 4 us, and twice that once
somebody chooses by `outlook`.

**Source:** uncached tokens over a throughput as the time of a prefill are llm-d's, in its
prefix-cache-affinity-filter; here the throughput is learned and a constant is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from epp.clock import Clock
from epp.ledger import Ledger
from epp.model import (
    Ending,
    Endpoint,
    EndpointId,
    Expected,
    InferenceRequest,
    Outcome,
    Pick,
    Speed,
)
from epp.ttft.backlog import FOLLOW
from epp.ttft.fit import Fit
from epp.ttft.parts import computed_tokens, foreseen
from epp.ttft.queues import Numbers, Queues, Seen
from epp.ttft.work import BEND, weight

Amount = TypeVar("Amount", float, Numbers)

UNLIKE = 8.0  #: times as fast or slow as all, that an endpoint is believed to be at most
WAY = Speed(per_token=1e-5, rest=0.03, answers=0)
"""Of a cache from one endpoint to another until a prefill that we ran says otherwise: 128 KB a token
over 12 GB/s."""
STAY = 5.0  #: seconds that an answer takes, before any was seen


class Forecaster:
    """Knows every endpoint's speed; a `plugin.Forecaster` and an observer.

    Args:
        ledger: what is in flight, by endpoint.
        clock: tells when computing ends.
    """

    def __init__(self, ledger: Ledger, clock: Clock, *, bend: float = BEND) -> None:
        self._ledger = ledger
        self._clock = clock
        self._bend = bend
        self._known: dict[EndpointId, _Known] = {}
        self._all = Fit()
        self._way = Fit(WAY)
        self._queues = Queues(ledger)
        self._looked = False  # somebody chooses by `outlook`
        self._turn: list[EndpointId] = []  # whose speed is still to be compared, in this round
        self._stay = STAY  # seconds from an answer's first byte to its end

    def speed(self, endpoint_id: EndpointId) -> Speed | None:
        """Return what is known of an endpoint's speed; None before the first answer of any."""
        known = self._known.get(endpoint_id)
        if known is not None and known.fit is not None:
            return known.fit.speed
        every = self._all.speed
        return Speed(every.per_token, every.rest, 0) if every.answers else None

    def compared(self, endpoint_id: EndpointId) -> Speed | None:
        """Return the speed by which to choose: that of all, unless its own differs for sure."""
        known = self._known.get(endpoint_id)
        if known is None or known.fit is None:
            return self.speed(endpoint_id)
        return known.fit.within(self._all.speed)

    def queued_tokens(self, endpoint: Endpoint) -> float | None:
        """Return the uncached tokens that ``endpoint`` computes before one more request's.

        None if its queue was not told.
        """
        load, counts = endpoint.load, self._ledger.get(endpoint.id)
        told = load is not None and load.queued is not None
        known = self._known.get(endpoint.id)
        if known is None:
            return float(counts.tokens) if told else None
        now, per_token = self._clock.now(), self._line(known).per_token
        backlog = self._queues.backlog(endpoint.id, now)
        if counts.told:
            return self._queues.queue(endpoint, per_token, now) if told else None
        backlog.settle(load, per_token, now, most=counts.requests)
        if load is None or not told:
            return None
        return backlog.waiting(load, per_token, now, most=counts.tokens)

    def outlook(self, endpoints: Sequence[Endpoint]) -> Outlook:
        """Return what a choice among ``endpoints`` must know. 10 us for 100, 25 us for 1,000."""
        if not self._looked:
            self._looked = True
            for each in self._known:
                self._teach(each)
        every = self._all.speed
        seen = self._queues.see(endpoints, every.per_token, self._clock.now())
        return Outlook(seen, every, self._stay, self._queues.mean, self._queues.share)

    def works(self, uncached: Amount, prompt: float) -> Amount:
        """Return the work of one or several numbers of uncached tokens of ``prompt``."""
        return uncached * ((1.0 + self._bend * prompt) - (self._bend / 2.0) * uncached)

    def dump_state(self) -> Mapping[str, Any]:
        """Return what was learned, for people."""
        every = self._all.speed
        return {
            "secondsPerToken": every.per_token,
            "restSeconds": every.rest,
            "answers": every.answers,
            "meanWork": self._queues.mean,
            "share": self._queues.share,
            "staySeconds": self._stay,
        }

    def expect(self, request: InferenceRequest, pick: Pick) -> Expected | None:
        """See `plugin.Forecaster.expect`."""
        endpoint = pick.prefill or pick.endpoints[0]
        queued = self.queued_tokens(endpoint)
        if endpoint.id not in self._known:
            self._add(endpoint.id)
        uncached = request.uncached_tokens(endpoint.id)
        each = weight(uncached, request.prompt_tokens, self._bend)
        self._queues.send(
            endpoint.id, uncached * each, prompt=request.prompt_tokens, request=request.id,
            now=self._clock.now(),
        )  # fmt: skip
        if queued is None or not _countable(request):
            return None
        way = 0.0 if pick.prefill is None else self._way.seconds(uncached)
        return Expected(queued, uncached, self.speed(endpoint.id), each, way)

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`: `expect` has seen it."""

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        expected, first = foreseen(pick, ending), ending.first_byte_at
        endpoint_id = (pick.prefill or pick.endpoints[0]).id
        known = self._known.get(endpoint_id)
        if expected is None or first is None or known is None or ending.picked_at < known.since:
            return
        if ending.outcome is Outcome.COMPLETED:
            self._stay += FOLLOW * (max(ending.at - first, 0.0) - self._stay)
        own = computed_tokens(request, pick, ending, expected) * expected.weight
        tokens, seconds = expected.queued + own, self._computing(ending, expected, first)
        counts = ((own + 1.0) / (tokens + 1.0)) ** 2
        if known.fit is None:
            known.fit = Fit(self._all.speed)
        known.fit.learn(tokens, seconds, counts)
        self._all.learn(tokens, seconds, counts)
        if self._looked:
            self._teach(endpoint_id)
            self._teach(self._next())  # what all taught has changed for those avoided, too

    def _computing(self, ending: Ending, expected: Expected, first: float) -> float:
        """Return the seconds until the prompt was computed; learn how long its cache took."""
        leg = ending.leg
        if leg is None or leg.seconds is None:
            return max(first - ending.picked_at - expected.way, 0.0)
        self._way.learn(expected.uncached, max(first - leg.at, 0.0))
        return max(leg.at - ending.picked_at, 0.0)

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop what was learned of an endpoint: it is gone, or its process is another one."""
        self._known.pop(endpoint_id, None)
        self._queues.forget(endpoint_id)

    def _teach(self, endpoint_id: EndpointId) -> None:
        """Have choices follow what was learned of an endpoint."""
        fit, every = self._known[endpoint_id].fit, self._all.speed
        if fit is not None:
            line = fit.within(every)
            ratio = min(max(line.per_token / every.per_token, 1.0 / UNLIKE), UNLIKE)
            self._queues.teach(endpoint_id, ratio, max(line.rest - every.rest, -every.rest))

    def _next(self) -> EndpointId:
        """Return each endpoint in turn."""
        if not self._turn:
            self._turn = list(self._known)
        found = self._turn.pop()
        return found if found in self._known else next(iter(self._known))

    def _add(self, endpoint_id: EndpointId) -> _Known:
        made = self._known[endpoint_id] = _Known(self._clock.now())
        return made

    def _line(self, known: _Known) -> Speed:
        return self._all.speed if known.fit is None else known.fit.speed


class Outlook(msgspec.Struct, frozen=True):
    """What is known of every endpoint at one moment."""

    seen: Seen
    every: Speed  #: of all endpoints together
    stay: float  #: seconds from an answer's first byte to its end, on average
    mean: float  #: work of a request
    share: float  #: of the requests in flight that are ours, 0.0 to 1.0


class _Known:
    """What is known of one endpoint."""

    __slots__ = ("fit", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.fit: Fit | None = None


def _countable(request: InferenceRequest) -> bool:
    """Whether a first token will come, and the tokens before it are known."""
    return (
        request.streaming
        and request.computed
        and not request.multimodal
        and request.prompt_tokens > 0
    )
