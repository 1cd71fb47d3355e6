"""Counts on which endpoints' stages disaggregated requests run.

**Source:** names and values of llm-d's ``disagg_decision_total`` and ``pd_decision_total``.
"""

from __future__ import annotations

from collections.abc import Mapping

from epp import headers
from epp.model import Ending, InferenceRequest, Pick
from epp.telemetry.metrics import Metrics

COUNTED = {
    "disagg-profile-handler": "disagg_decision_total",
    "pd-profile-handler": "pd_decision_total",
}
"""Metric of each handler's type."""


class StagesObserver:
    """Tells `Metrics` of every pick that one of these handlers made. Not a plugin."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._types: Mapping[str, str] = {}  #: as `_handlers` was made from
        self._handlers: tuple[tuple[str, str], ...] = ()  #: name and type; at most one runs

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        types = self._metrics.plugin_types
        if types is not self._types:
            self._types = types
            self._handlers = tuple(each for each in types.items() if each[1] in COUNTED)
        for handler in self._handlers:
            name = COUNTED[handler[1]]
            self._metrics.staged(name, handler, request.target_model, stages_of(pick))

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`: the decision was counted."""


def stages_of(pick: Pick) -> str:
    """Name the stages that run on endpoints of their own."""
    if headers.ENCODERS in pick.headers:
        return "encode-decode" if pick.prefill is None else "encode-prefill-decode"
    return "decode-only" if pick.prefill is None else "prefill-decode"
