"""Takes in what other pickers tell: their requests are booked and learned from as our own are.

So load, queues, speeds and prefixes are those of all pickers, and not only of this one's share of
the traffic. What a peer has under way is dropped when the peer is lost: scrapes still tell of it,
and when it is there again it tells all of it again.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from epp.clock import Clock
from epp.ledger import Ledger, Reservation
from epp.model import Ending, Endpoint, InferenceRequest, Outcome, Pick, PrefixMatch, Usage
from epp.peers.news import Computed, Event, Logged, Over, Sent
from epp.peers.sharers import Sharers
from epp.pool import Pool
from epp.ttft.forecast import Forecaster

OPEN = 65_536  #: requests of one peer that are booked at a time; the oldest give way
TOKENS = 2**24  #: that are believed of a request: a body of 32 MiB holds no more
SECONDS = 3600.0  #: of an answer that may teach a speed: one number too large would for ever

log = logging.getLogger(__name__)


class Hearing:
    """Books what peers have sent.

    Args:
        pool: the endpoints.
        ledger: where it is booked.
        forecaster: learns from it.
        plugins: by name, those that share what they learn among them.
        clock: tells the time.
        books: whether what they have under way is booked.
    """

    def __init__(
        self,
        pool: Pool,
        ledger: Ledger,
        forecaster: Forecaster,
        plugins: Callable[[], Mapping[str, Any]],
        clock: Clock,
        *,
        books: Callable[[], bool] = lambda: True,
    ) -> None:
        self.unknown = 0  #: requests for endpoints that are not known here, so far
        self.refused = 0  #: facts that no plugin could read, so far
        self._faulty: set[str] = set()  # plugins whose faults were logged
        self._pool = pool
        self._ledger = ledger
        self._forecaster = forecaster
        self._plugins = plugins
        self._sharers = Sharers()
        self._clock = clock
        self._books = books
        self._open: dict[str, dict[int, _Booked]] = {}  # by peer, by number, the oldest first

    def __len__(self) -> int:
        """Requests that peers have under way."""
        return sum(map(len, self._open.values()))

    def hear(self, peer: str, events: Sequence[Event], ago: float) -> None:
        """Take in what a peer told, in its order; our clock is ``ago`` seconds before its own.

        That is, what happened there at ``t`` happened here at ``t + ago``. A request with prefixes
        of 100 blocks takes some 50 us.
        """
        booked = self._open.setdefault(peer, {})
        for event in events:
            if isinstance(event, Sent):
                self._sent(peer, booked, event, min(event.at + ago, self._clock.now()))
            elif isinstance(event, Logged) or (known := booked.get(event.number)) is None:
                continue  # an entry is of one of ours
            elif isinstance(event, Computed):
                known.computed()
            else:
                del booked[event.number]
                self._over(known, event)

    def lost(self, peer: str) -> None:
        """A peer is not heard any more."""
        for known in self._open.pop(peer, {}).values():
            known.release()

    def _sent(self, peer: str, booked: dict[int, _Booked], sent: Sent, at: float) -> None:
        endpoint, prefill = self._pool.get(sent.endpoint), self._pool.get(sent.prefill)
        if endpoint is None or (prefill is None and sent.prefill):
            self.unknown += 1
            return
        self._learn(sent, endpoint, prefill)
        if sent.over or sent.number in booked:
            return
        sent = _believed(sent)
        request, pick = _request(peer, sent), Pick((endpoint,), prefill=prefill)
        pick = msgspec.structs.replace(pick, expected=self._forecaster.expect(request, pick))
        if len(booked) >= OPEN:
            booked.pop(next(iter(booked))).release()
        booked[sent.number] = _Booked(request, pick, self._reserve(request, sent, pick), at)

    def _learn(self, sent: Sent, endpoint: Endpoint, prefill: Endpoint | None) -> None:
        sharers = self._sharers.of(self._plugins())
        for name, fact in sent.facts.items():
            made = sharers.get(name)
            if made is None:
                continue
            try:
                made.heard(fact, endpoint, prefill)
            except ValueError:
                self.refused += 1
            except Exception as error:  # noqa: BLE001 - a plugin's fault ends no line between pickers
                if name not in self._faulty:
                    self._faulty.add(name)
                    where = "".join(traceback.format_tb(error.__traceback__))
                    log.error("%s: unexpected %s\n%s", name, type(error).__name__, where)  # noqa: TRY400 - its message may quote what was told
                self.refused += 1

    def _reserve(self, request: InferenceRequest, sent: Sent, pick: Pick) -> list[Reservation]:
        if not self._books():
            return []
        reserve = self._ledger.reserve
        first = reserve(
            pick.endpoints[0], sent.uncached, output=sent.output, request=request.id, heard=True
        )
        if pick.prefill is None:
            return [first]
        leg = reserve(pick.prefill, sent.prefill_uncached, request=request.id, leg=True, heard=True)
        return [first, leg]

    def _over(self, known: _Booked, over: Over) -> None:
        known.release()
        first, seconds = over.first_seconds, over.seconds
        if first is None or not (0.0 <= first <= SECONDS and 0.0 <= seconds <= SECONDS):
            return
        at = known.at
        self._forecaster.ended(
            known.request,
            known.pick,
            Ending(
                Outcome.COMPLETED if over.completed else Outcome.ABANDONED,
                at=at + seconds,
                picked_at=at,
                first_byte_at=at + first,
                streamed=True,
                usage=Usage(over.prompt_tokens, None, over.cached_tokens),
            ),
        )


class _Booked(msgspec.Struct):
    """A peer's request under way."""

    request: InferenceRequest
    pick: Pick
    reservations: list[Reservation]
    """Of the endpoint that decodes, then that of a prefill; none if peers' are not booked."""
    at: float  #: when it was picked, on our clock

    def computed(self) -> None:
        """Its prompt is computed."""
        if not self.reservations:
            return
        first, *legs = self.reservations
        for leg in legs:
            leg.end_leg()
        if not legs:
            first.release_tokens()

    def release(self) -> None:
        """It is over."""
        for reservation in self.reservations:
            reservation.release()


def _believed(sent: Sent) -> Sent:
    """Return it with no more tokens than a request can have: one mean counts those of all."""
    if max(sent.prompt_tokens, sent.uncached, sent.prefill_uncached, sent.output) <= TOKENS:
        return sent
    return msgspec.structs.replace(
        sent,
        prompt_tokens=min(sent.prompt_tokens, TOKENS),
        uncached=min(sent.uncached, TOKENS),
        prefill_uncached=min(sent.prefill_uncached, TOKENS),
        output=min(sent.output, TOKENS),
    )


def _request(peer: str, sent: Sent) -> InferenceRequest:
    """Return as much of a peer's request as bookings and forecasts ask for."""
    computing = sent.prefill or sent.endpoint
    uncached = sent.prefill_uncached if sent.prefill else sent.uncached
    held = PrefixMatch((), 1, {computing: max(sent.prompt_tokens - uncached, 0)})
    return InferenceRequest(
        id=f"{peer}/{sent.number}",
        headers={},
        body=b"",
        prompt_tokens=sent.prompt_tokens,
        streaming=sent.streamed,
        computed=bool(uncached) or sent.streamed,
        prefix={"": held},
    )
