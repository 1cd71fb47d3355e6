"""Notes what this picker does, for its peers.

The end of a prefill is seen in the ledger, whoever told of it. The latest requests are kept for
peers that come later, so that a new picker begins with what the others know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from epp.clock import Clock
from epp.ledger import Ledger
from epp.model import Ending, EndpointId, InferenceRequest, Outcome, Pick
from epp.peers.news import Batch, Computed, Event, Over, Sent
from epp.peers.sharers import Sharers
from epp.pipeline import Pipeline
from epp.ttft.parts import foreseen

PAST_BYTES = 16 * 2**20  #: of facts about requests that are over, kept for peers to come
PAST = 65_536  #: and so many requests at most
OPEN = 65_536  #: requests under way that are told of; those beyond are not
FACTS_BYTES = 3 * 2**20  #: of one request that are told: no follower takes a message of over 4 MiB


class Telling:
    """An observer; `take` what has happened since.

    Args:
        ledger: what is in flight here.
        pipeline: tells which plugins share what they learn.
        clock: of all times.
    """

    def __init__(self, ledger: Ledger, pipeline: Callable[[], Pipeline], clock: Clock) -> None:
        self._ledger = ledger
        self._pipeline = pipeline
        self._sharers = Sharers()
        self._clock = clock
        self._numbers = 0
        self._events: list[Event] = []
        self._open: dict[int, Sent] = {}  # by the pick's identity
        self._computing: dict[int, tuple[EndpointId, str]] = {}  # by number: where, which request
        self._past: deque[Sent] = deque()
        self._past_bytes = 0

    @property
    def waiting(self) -> bool:
        """Whether something may have happened that `take` would return."""
        return bool(self._events or self._computing)  # only the ledger knows what is computed

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        if len(self._open) >= OPEN:
            return
        pipeline, prefill = self._pipeline(), pick.prefill
        target = (prefill or pick.endpoints[0]).id
        uncached = request.uncached_tokens(target)
        self._numbers += 1
        sent = Sent(
            number=self._numbers,
            at=self._clock.now(),
            endpoint=pick.endpoints[0].id,
            prompt_tokens=request.prompt_tokens,
            uncached=0 if prefill is not None else uncached,
            prefill=EndpointId("") if prefill is None else prefill.id,
            prefill_uncached=0 if prefill is None else uncached,
            output=0 if pipeline.output is None else pipeline.output(request),
            streamed=request.streaming and request.computed and not request.multimodal,
            facts=self._facts(pipeline, request, pick),
        )
        self._events.append(sent)
        self._open[id(pick)] = sent
        if uncached and not sent.output:
            self._computing[sent.number] = (target, request.id)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        sent = self._open.pop(id(pick), None)
        if sent is None:
            return
        self._computing.pop(sent.number, None)
        first, usage = None, ending.usage
        if ending.leg is None and foreseen(pick, ending) is not None:
            first = ending.first_byte_at
        self._events.append(
            Over(
                sent.number,
                None if first is None else first - ending.picked_at,
                ending.at - ending.picked_at,
                ending.outcome is Outcome.COMPLETED,
                None if usage is None else usage.prompt_tokens,
                None if usage is None else usage.cached_tokens,
            )
        )
        if sent.facts:
            self._keep(msgspec.structs.replace(sent, over=True))

    def take(self) -> Batch:
        """Return what has happened since the last call. O(open requests being computed)."""
        for number, (endpoint_id, request_id) in list(self._computing.items()):
            if request_id not in self._ledger.get(endpoint_id).computing:
                del self._computing[number]
                self._events.append(Computed(number))
        events, self._events = tuple(self._events), []
        return Batch(self._clock.now(), events)

    @property
    def past(self) -> tuple[Sent, ...]:
        """The latest requests that are over, the oldest first."""
        return tuple(self._past)

    def under_way(self) -> Batch:
        """Return all that is under way; `take` comes before. O(requests under way)."""
        computing = self._computing
        under_way: list[Event] = []
        for sent in self._open.values():
            under_way.append(sent)
            if sent.number not in computing and not sent.output:
                under_way.append(Computed(sent.number))
        return Batch(self._clock.now(), tuple(under_way))

    def _facts(self, pipeline: Pipeline, request: InferenceRequest, pick: Pick) -> dict[str, bytes]:
        sharers = self._sharers.of(pipeline.plugins).items()
        facts, left = {}, FACTS_BYTES
        for name, made in sharers:
            fact = made.share(request, pick)
            if 0 < len(fact) <= left:
                facts[name] = fact
                left -= len(fact)
        return facts

    def _keep(self, sent: Sent) -> None:
        self._past.append(sent)
        self._past_bytes += _size(sent)
        while self._past_bytes > PAST_BYTES or len(self._past) > PAST:
            self._past_bytes -= _size(self._past.popleft())


def _size(sent: Sent) -> int:
    return sum(map(len, sent.facts.values()))
