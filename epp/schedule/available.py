"""The gate of conditional decode: a request that only wants a KV cache that is there.

A coordinator sends the request with ``prefer: if-available`` first. Where it would have to be
computed from its start, the answer is 412, and the coordinator runs encode and prefill before it
asks again.

**Source:** RFC 7240 (Prefer); the gate of llm-d-router's director, which any cached block opens.
"""

from __future__ import annotations

from epp.errors import NoKvCache
from epp.headers import PREFER
from epp.model import InferenceRequest, Pick

PREFERENCE = "if-available"


def require_cached(request: InferenceRequest, pick: Pick) -> None:
    """Return if the pick's first endpoint is believed to hold some of the prompt, if it must.

    Raises:
        NoKvCache: it holds nothing, or nobody knows, and the client prefers what is available.
    """
    if not _prefers(request.headers.get(PREFER, "")) or not _computes(request):
        return
    match = request.match()
    if match is None or not match.held.get(pick.endpoints[0].id, 0):
        raise NoKvCache("no decode worker has the requested KV cache")


def _prefers(value: str) -> bool:
    preferences = (each.partition(";")[0].strip().lower() for each in value.split(","))
    return PREFERENCE in preferences


def _computes(request: InferenceRequest) -> bool:
    """Whether a prompt may be computed for it; a body that is not shown may hold one."""
    return request.computed and (bool(request.body) or request.unread == "hidden")
