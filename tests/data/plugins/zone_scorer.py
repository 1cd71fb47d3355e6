"""Prefers the endpoints of one zone."""

from epp import plugin


class ZoneScorer:
    type = "zone-scorer"

    class Params(plugin.Params, frozen=True):
        zone: str
        label: str = "topology.kubernetes.io/zone"

    def __init__(self, params, tools):
        self._params = params

    def score(self, request, endpoints):
        wanted, label = self._params.zone, self._params.label
        return [1.0 if each.labels.get(label) == wanted else 0.0 for each in endpoints]
