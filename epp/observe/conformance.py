"""``destination-endpoint-served-verifier``: tell the client which endpoint served it.

Only for the Gateway API Inference Extension's conformance tests.

**Source:** GAIE conformance v1.6, case GatewayDestinationEndpointServed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from epp import headers, plugin
from epp.model import InferenceRequest, Pick
from epp.observe.reporter import RequestAttributeReporter

MISSING = "fail: missing destination endpoint served metadata"


class DestinationEndpointServedVerifier:
    """Copies the gateway's word on who served into an answer header; says so if there is none."""

    type: ClassVar[str] = "destination-endpoint-served-verifier"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def answer_headers(
        self, request: InferenceRequest, pick: Pick, served: str
    ) -> Mapping[str, str]:
        """See `plugin.AnswerHeaderAdder.answer_headers`."""
        return {headers.TEST_SERVED: served or MISSING}


REPORTERS: tuple[type[Any], ...] = (DestinationEndpointServedVerifier, RequestAttributeReporter)
