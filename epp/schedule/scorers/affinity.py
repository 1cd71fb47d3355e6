"""Scorers of belonging: by session, by label, by topology and by what was encoded before.

**Source:** the published rules and the proximity curve of llm-d's scorers of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest
from epp.schedule import topology
from epp.schedule.sessions import SessionAffinity


class SessionAffinityScorer(SessionAffinity):
    """Scores 1.0 for the session's endpoint, 0.0 for the rest."""

    type: ClassVar[str] = "session-affinity-scorer"
    stability: ClassVar[plugin.Stability] = "alpha"

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        scores = [0.0] * len(endpoints)
        at = self.memory.find(request, endpoints)
        if at is not None:
            scores[at] = 1.0
        return scores


class HeaderLabelAffinityScorer:
    """Scores 1.0 for endpoints whose label has the value of a request header, else 0.0."""

    type: ClassVar[str] = "header-label-affinity-scorer"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        header_name: Annotated[str, Meta(min_length=1)]
        label_key: Annotated[str, Meta(min_length=1)]

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._header = params.header_name.lower()
        self._label = params.label_key

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        wanted, label = request.headers.get(self._header), self._label
        if not wanted:
            return [0.0] * len(endpoints)
        return [1.0 if e.labels.get(label) == wanted else 0.0 for e in endpoints]


#: Shaped by the bandwidth of a KV transfer at that distance.
NEARNESS: dict[topology.Level | None, float] = {
    "host": 1.0,
    "rack": 0.2,
    "zone": 0.05,
    "region": 0.02,
    None: 0.0,
}


class TopologyAffinityScorer:
    """Scores nearness to the endpoint chosen for the other stage; 0.0 if there is none."""

    type: ClassVar[str] = "topology-affinity-scorer"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        topology_producer_name: str = ""  #: accepted; the levels are read from the pod's labels

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        if request.peer is None:
            return [0.0] * len(endpoints)
        return [NEARNESS[level] for level in topology.nearness(request.peer, endpoints)]


class MmEmbeddingsCacheScorer:
    """Scores the share of the request's images, audio and video that an endpoint encoded lately.

    Each counts once and all count alike. A request without any scores 0.0 everywhere.
    """

    type: ClassVar[str] = "mm-embeddings-cache-scorer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`. O(len(endpoints))."""
        match = request.media_match
        if match is None:
            return [0.0] * len(endpoints)
        held, total = match.held, len(match.items)
        return [held.get(endpoint.id, 0) / total for endpoint in endpoints]
