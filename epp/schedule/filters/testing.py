"""``header-based-testing-filter``: the test says where the request goes.

Only for the Gateway API Inference Extension's conformance tests: with it, any client chooses its
endpoint.

**Source:** GAIE conformance v1.6, header ``test-epp-endpoint-selection``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import headers, plugin
from epp.model import Endpoint, InferenceRequest


class HeaderBasedTestingFilter:
    """Keeps endpoints that the header lists as ``ip`` or ``ip:port``; all without the header.

    Differs from llm-d: endpoints stay in the pool's order, as filters do; the order of the list
    is the picker's business.
    """

    type: ClassVar[str] = "header-based-testing-filter"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`."""
        asked = request.headers.get(headers.TEST_SELECTION)
        if asked is None:
            return endpoints
        wanted = {part.strip() for part in asked.split(",")}
        return [e for e in endpoints if e.host in wanted or e.address in wanted]
