"""``session-affinity-filter``: a session stays where it was served before.

Use it or the scorer, not both. The strategies are described in `schedule.sessions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Endpoint, InferenceRequest
from epp.schedule.sessions import SessionAffinity


class SessionAffinityFilter(SessionAffinity):
    """Keeps the session's endpoint alone; all, without a session or if it is not there."""

    type: ClassVar[str] = "session-affinity-filter"
    stability: ClassVar[plugin.Stability] = "alpha"

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`."""
        at = self.memory.find(request, endpoints)
        return endpoints if at is None else [endpoints[at]]
