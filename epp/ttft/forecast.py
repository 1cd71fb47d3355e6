"""Foresees at the pick what a first token waits for, and learns from what came of it.

Of the chosen endpoint only, from facts that are there: the ledger's uncached tokens, the scraped
queue, the request's uncached tokens. What is learned is the seconds per uncached token and the
rest, see `ttft.fit`; of an endpoint that has not answered yet, what all others taught. An answer
with much queued before it teaches less, since the queue is our own estimate.

Tokens queued are those of our own requests that are not computed by the speed learned, no more
than the ledger has open; only those sent since, if the last scrape shows an engine without work;
and at least what the scraped queue holds, at our mean per request, less what was computed since:
others send too. An endpoint whose queue is not told has no forecast, nor has a request whose
tokens are not known.

Hot path: `expect` takes 3 us a request; `ended`, after the answer, 4 us.

**Source:** uncached tokens over a throughput as the time of a prefill are llm-d's, in its
prefix-cache-affinity-filter; here the throughput is learned and a constant is added.
"""

from __future__ import annotations

from epp.clock import Clock
from epp.ledger import Ledger
from epp.model import Ending, Endpoint, EndpointId, Expected, InferenceRequest, Pick, Speed
from epp.ttft.backlog import Backlog
from epp.ttft.fit import Fit
from epp.ttft.parts import computed_tokens, foreseen


class Forecaster:
    """Knows every endpoint's speed; a `plugin.Forecaster` and an observer.

    Args:
        ledger: what is in flight, by endpoint.
        clock: tells when computing ends.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._known: dict[EndpointId, _Known] = {}
        self._all = Fit()

    def speed(self, endpoint_id: EndpointId) -> Speed | None:
        """Return what is known of an endpoint's speed; None before the first answer of any."""
        known = self._known.get(endpoint_id)
        if known is not None and known.fit is not None:
            return known.fit.speed
        every = self._all.speed
        return Speed(every.per_token, every.rest, 0) if every.answers else None

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
        known.backlog.settle(load, per_token, now, most=counts.requests)
        if load is None or not told:
            return None
        return known.backlog.waiting(load, per_token, now, most=counts.tokens)

    def expect(self, request: InferenceRequest, pick: Pick) -> Expected | None:
        """See `plugin.Forecaster.expect`."""
        endpoint = pick.prefill or pick.endpoints[0]
        queued = self.queued_tokens(endpoint)
        known = self._known.get(endpoint.id) or self._add(endpoint.id)
        uncached = request.uncached_tokens(endpoint.id)
        known.backlog.send(uncached, self._clock.now())
        if queued is None or not _countable(request):
            return None
        return Expected(queued, uncached, self.speed(endpoint.id))

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`: `expect` has seen it."""

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        expected, first = foreseen(pick, ending), ending.first_byte_at
        known = self._known.get((pick.prefill or pick.endpoints[0]).id)
        if expected is None or first is None or known is None or ending.picked_at < known.since:
            return
        own = computed_tokens(request, pick, ending, expected)
        tokens, seconds = expected.queued + own, max(first - ending.picked_at, 0.0)
        weight = (own + 1.0) / (tokens + 1.0)
        if known.fit is None:
            known.fit = Fit(self._all.speed)
        known.fit.learn(tokens, seconds, weight)
        self._all.learn(tokens, seconds, weight)

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop what was learned of an endpoint: it is gone, or its process is another one."""
        self._known.pop(endpoint_id, None)

    def _add(self, endpoint_id: EndpointId) -> _Known:
        made = self._known[endpoint_id] = _Known(self._clock.now())
        return made

    def _line(self, known: _Known) -> Speed:
        return self._all.speed if known.fit is None else known.fit.speed


class _Known:
    """What is known of one endpoint."""

    __slots__ = ("backlog", "fit", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.backlog = Backlog(now)
        self.fit: Fit | None = None


def _countable(request: InferenceRequest) -> bool:
    """Whether a first token will come, and the tokens before it are known."""
    return (
        request.streaming
        and request.computed
        and not request.multimodal
        and request.prompt_tokens > 0
    )
