"""Which data-parallel rank of an endpoint a request is sent to, so that it finds its prefix; pure.

An engine with several ranks behind one port chooses one by load, whatever each has cached. It obeys a
header, so the rank that told most of the prompt is named there, as long as it has not much more than
its share of what is in flight. Beyond that, and where all ranks hold as much, the engine chooses.

**Source:** ``X-data-parallel-rank`` of vLLM and SGLang; vLLM answers 400 to a rank that it has not.
The bound is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2018).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from epp.headers import RANK
from epp.model import EndpointId, Pick

SHARE = 1.25  #: of an even part of an endpoint's requests that may be sent to one rank
FREE = 4  #: requests that may be in any case


class Ranks:
    """Requests in flight that were sent to one rank, of all endpoints."""

    def __init__(self) -> None:
        self.sent = 0  #: ever
        self._in_flight: Counter[tuple[EndpointId, int]] = Counter()

    def choose(
        self, endpoint_id: EndpointId, told: Mapping[int, int], *, in_flight: int
    ) -> int | None:
        """Return the rank that is best asked; None leaves it to the engine.

        Args:
            endpoint_id: whose ranks they are.
            told: how many of the prompt's leading blocks each rank holds, of all ranks.
            in_flight: requests of the endpoint.
        """
        least = min(told.values(), default=0)
        most = max(FREE, math.ceil(SHARE * (in_flight + 1) / max(len(told), 1)))
        own = {rank: self._in_flight[endpoint_id, rank] for rank in told}
        fit = [
            (-held, own[rank], rank)
            for rank, held in told.items()
            if held > least and own[rank] < most
        ]
        return min(fit)[2] if fit else None

    def begin(self, endpoint_id: EndpointId, rank: int) -> None:
        """Note a request that was sent to a rank."""
        self.sent += 1
        self._in_flight[endpoint_id, rank] += 1

    def end(self, endpoint_id: EndpointId, rank: int) -> None:
        """Note that such a request is over."""
        self._in_flight[endpoint_id, rank] -= 1
        if not self._in_flight[endpoint_id, rank]:
            del self._in_flight[endpoint_id, rank]


def rank_of(pick: Pick) -> int | None:
    """Return the rank that a pick names; None if the engine chooses."""
    named = pick.headers.get(RANK)
    return None if named is None else int(named)
