"""What an engine found cached, against what was believed of it.

Prompt tokens are estimated here, about four bytes each, and counted by the engine: only shares of
the prompt can be compared. An engine counts whole blocks of its own, and always computes at least
the last token of a prompt, so up to one block less than predicted is still as predicted.
"""

from __future__ import annotations

import msgspec

from epp.model import Ending, EndpointId, InferenceRequest, PrefixMatch


class Prediction(msgspec.Struct, frozen=True):
    """One prediction and its truth, in tokens as the engine counts them."""

    prompt: int
    predicted: int
    cached: int  #: what the engine reported


def prediction(
    request: InferenceRequest, match: PrefixMatch, ending: Ending, endpoint_id: EndpointId
) -> Prediction | None:
    """Return what ``match`` predicted for the endpoint that served; None if the truth was not told."""
    usage = ending.usage
    if usage is None or usage.cached_tokens is None or not usage.prompt_tokens:
        return None
    held = match.held.get(endpoint_id, 0) * match.block_tokens
    share = min(held / request.prompt_tokens, 1.0) if request.prompt_tokens else 0.0
    return Prediction(usage.prompt_tokens, int(share * usage.prompt_tokens), usage.cached_tokens)


def missed(
    request: InferenceRequest, match: PrefixMatch, ending: Ending, endpoint_id: EndpointId
) -> float | None:
    """Return the share of a prediction that did not come true; None if that is not known."""
    found = prediction(request, match, ending, endpoint_id)
    if found is None or not found.predicted:
        return None
    over = found.predicted - found.cached - match.block_tokens
    return max(over / found.predicted, 0.0)
