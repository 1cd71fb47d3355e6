"""One engine's feed, as deciding code sees it: what was told, how whole it is, how true it proved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epp.model import EndpointId
from epp.prefix.feed import sequence
from epp.prefix.feed.audit import Audit
from epp.prefix.feed.trust import Confidence


class Engine:
    """Of one rank of an endpoint.

    Args:
        can_ask: whether it can be asked for old messages.
        adapters: to be added to.
    """

    def __init__(
        self, endpoint_id: EndpointId, rank: int, *, can_ask: bool, adapters: set[str]
    ) -> None:
        self.adapters = adapters  #: that engines told of, shared with the others
        self.endpoint_id = endpoint_id
        self.rank = rank
        self.sequence = sequence.Sequence(can_ask=can_ask)
        self.audit = Audit()
        self.confidence = Confidence(self.sequence, self.audit)
        self.messages = 0  #: taken in, ever
        self.bytes = 0  #: of their payloads
        self.replays = 0  #: times that old messages were asked for
        self.unread = 0  #: messages and events that could not be used
        self.unopened = 0  #: times that a socket of its could not be opened
        self.lag: float | None = None  #: seconds from an event to here, by both clocks

    def succeed(self, former: Engine) -> None:
        """Go on counting where ``former`` ended, whose process this one's took the place of.

        One that told nothing was none: it was looked for at another place.
        """
        if not former.messages:
            return
        self.messages, self.bytes = former.messages, former.bytes
        self.replays, self.unread = former.replays, former.unread
        self.unopened = former.unopened
        self.sequence.succeed(former.sequence)


class Engines:
    """Those whose events come in, by endpoint and rank."""

    def __init__(self) -> None:
        self.adapters: set[str] = set()  #: LoRA adapters that events named, ever
        self._engines: dict[EndpointId, dict[int, Engine]] = {}

    def __iter__(self) -> Iterator[Engine]:
        return (each for ranks in self._engines.values() for each in ranks.values())

    def get(self, endpoint_id: EndpointId, rank: int = 0) -> Engine | None:
        """Return an endpoint's engine of that rank; of an unknown rank the only one it has."""
        ranks = self._engines.get(endpoint_id)
        if not ranks:
            return None
        return ranks.get(rank) or next(iter(ranks.values()))

    def of(self, endpoint_id: EndpointId) -> Sequence[Engine]:
        """Return an endpoint's engines, one for each of its ranks."""
        return tuple(self._engines.get(endpoint_id, {}).values())

    def ranks_heard(self, endpoint_id: EndpointId) -> int:
        """Return how many ranks an endpoint has; 0 if some are not heard, or it has some only."""
        ranks = self._engines.get(endpoint_id, {})
        whole = all(
            (each := ranks.get(rank)) is not None and each.confidence.connected
            for rank in range(len(ranks))
        )
        return len(ranks) if whole else 0

    def add(self, endpoint_id: EndpointId, rank: int, *, can_ask: bool) -> Engine:
        """Return a new engine, in place of the one of its endpoint and rank."""
        made = Engine(endpoint_id, rank, can_ask=can_ask, adapters=self.adapters)
        self._engines.setdefault(endpoint_id, {})[rank] = made
        return made

    def remove(self, engine: Engine) -> None:
        """Remove an engine, if it is still there."""
        ranks = self._engines.get(engine.endpoint_id, {})
        if ranks.get(engine.rank) is engine:
            del ranks[engine.rank]
            if not ranks:
                del self._engines[engine.endpoint_id]
