"""AIBrix's ``prefix-cache``: the longest match that is not overloaded.

**Source:** AIBrix gateway plugins, ``prefix-cache``: if the most loaded endpoint has more than 8
requests more than the least loaded, the least loaded; else by match, longest first, then by load,
the first with at most one standard deviation more requests than the mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar

from epp.model import Endpoint, InferenceRequest
from epp.sim.baselines.choosing import Choosing, matched

IMBALANCE = 8  #: requests


class AibrixPrefix(Choosing):
    """Matches first, among those that are not overloaded."""

    type: ClassVar[str] = "sim-aibrix-prefix"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        loads = [self.requests(each) for each in endpoints]
        if max(loads) - min(loads) > IMBALANCE:
            return self.least(loads)
        most = statistics.fmean(loads) + statistics.pstdev(loads)
        ties = [self._random.random() for _ in loads]
        order = sorted(
            range(len(loads)),
            key=lambda i: (-matched(request, endpoints[i]), loads[i], ties[i]),
        )
        return next((i for i in order if loads[i] <= most), order[0])
