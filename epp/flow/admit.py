"""``probabilistic-admitter``: drop more of the sheddable requests the fuller the pool is.

**Source:** the published formula of llm-d's admitter of the same name: with ``s`` the mean over
endpoints of ``max(queued / 5, KV usage / 0.8)``, a request of negative priority is dropped with
probability ``min(k * s ** power, 1)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from epp import plugin
from epp.errors import Saturated
from epp.flow.saturation import UtilizationDetector
from epp.model import Endpoint, InferenceRequest


class ProbabilisticAdmitter:
    """Drops requests of negative priority by chance; an endpoint of unknown load counts as full.

    With no endpoints at all it admits: there is a better error for that.
    Differs from llm-d: the answer is 429; there it surfaces as 500.
    """

    type: ClassVar[str] = "probabilistic-admitter"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        queue_depth_threshold: Annotated[float, Meta(gt=0)] = 5.0  #: waiting requests
        kv_cache_util_threshold: Annotated[float, Meta(gt=0, le=1)] = 0.8  #: fraction
        power: Annotated[float, Meta(gt=0)] = 5.0  #: the chance is min(k * saturation ** power, 1)
        k: Annotated[float, Meta(gt=0)] = 300.0  #: see ``power``

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._power = params.power
        self._k = params.k
        self._random = tools.random
        self._detector = UtilizationDetector(
            UtilizationDetector.Params(
                queue_depth_threshold=params.queue_depth_threshold,
                kv_cache_util_threshold=params.kv_cache_util_threshold,
            ),
            tools,
        )

    def admit(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """See `plugin.Admitter.admit`.

        Raises:
            errors.Saturated: the dice fell so.
        """
        if request.priority >= 0 or not endpoints:
            return
        full = self._detector.saturation(endpoints)
        if self._random.random() < min(full**self._power * self._k, 1.0):
            raise Saturated(f"the pool is loaded ({full:.2f}) and the request is sheddable")


ADMITTERS: tuple[type[Any], ...] = (ProbabilisticAdmitter,)
