"""``topology-affinity-filter``: keep endpoints near the other half of a disaggregated request.

**Source:** parameters and rules of llm-d's ``topology-affinity-filter``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Endpoint, InferenceRequest
from epp.schedule import topology


class TopologyAffinityFilter:
    """Keeps endpoints as near to the peer as ``minAffinity``, or nearer.

    The peer is the endpoint that the profile handler chose for the other stage. With no peer,
    or nobody near enough, all are kept: distance never makes a request unroutable.
    """

    type: ClassVar[str] = "topology-affinity-filter"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        min_affinity: topology.Level = "host"
        topology_producer_name: str = ""  #: accepted; the levels are read from the pod's labels

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        levels = list(topology.LABELS)
        self._near = frozenset(levels[: levels.index(params.min_affinity) + 1])

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`."""
        if request.peer is None:
            return endpoints
        levels = topology.nearness(request.peer, endpoints)
        kept = [e for e, level in zip(endpoints, levels, strict=True) if level in self._near]
        return kept or endpoints
