"""What a time to first token is made of.

From arrival to the first byte of a streamed answer::

    wait + decision + [remote prefill | queue + prefill] + rest

``wait`` (for leave to go on) and ``decision`` (our own work) are measured, and so is the sum of
what comes after, ``engine``. No engine tells by request how long it queued and computed, so that
sum is split by what was learned of the endpoint until the pick: so many seconds for each token
queued before and for each token computed, and what is left is ``rest``: the gateway, the network,
the first decoding steps, and whatever the model does not know of. Where another endpoint computes
the prompt, its queue and its prefill are one part, the remote prefill.

A part that is not known is None, never 0: without anything learned, and for an answer that says
nothing about the endpoint (an error, one served elsewhere or at a second attempt, no stream).
"""

from __future__ import annotations

import msgspec

from epp.model import Ending, Expected, InferenceRequest, Pick, Speed


class Parts(msgspec.Struct, frozen=True, gc=False):
    """Seconds, none below 0. The known parts of `engine` add up to it: all of them or none."""

    wait: float
    decision: float
    engine: float  #: all that comes after the pick
    remote_prefill: float | None = None  #: None too where the prompt is not computed elsewhere
    queue: float | None = None  #: None too where it is
    prefill: float | None = None  #: None too where it is
    rest: float | None = None

    @property
    def total(self) -> float:
        """The time to first token."""
        return self.wait + self.decision + self.engine


def expected_parts(
    expected: Expected | None, *, wait: float, decision: float, elsewhere: bool
) -> Parts | None:
    """Return what is expected of a first token; None if nothing is.

    Args:
        expected: as known at the pick.
        wait: seconds until it might go on.
        decision: seconds that our own work took.
        elsewhere: another endpoint computes the prompt.
    """
    if expected is None or expected.speed is None:
        return None
    own = expected.speed.per_token * expected.uncached * expected.weight
    ahead = expected.speed.per_token * expected.queued
    return _parts(
        wait, decision, expected_seconds(expected, expected.speed), (own, ahead, elsewhere)
    )


def expected_seconds(expected: Expected, speed: Speed) -> float:
    """Return what is expected of `Parts.engine`."""
    work = expected.queued + expected.uncached * expected.weight
    return speed.per_token * work + speed.rest + expected.way


def measured_parts(request: InferenceRequest, pick: Pick, ending: Ending) -> Parts | None:
    """Return what the first byte really waited for; None if it was not seen.

    Parts of `Parts.engine` are known as far as ``ending`` is about what was expected.
    """
    first = ending.first_byte_at
    if first is None:
        return None
    total = max(first - request.arrived_at, 0.0)
    wait = min(max(request.waited, 0.0), total)
    engine = min(max(first - ending.picked_at, 0.0), total - wait)
    decision = max(total - wait - engine, 0.0)
    expected = foreseen(pick, ending)
    if expected is None or expected.speed is None:
        return Parts(wait, decision, engine)
    per_token = expected.speed.per_token
    own = per_token * computed_tokens(request, pick, ending, expected) * expected.weight
    ahead = per_token * expected.queued
    return _parts(wait, decision, engine, (own, ahead, pick.prefill is not None))


def foreseen(pick: Pick, ending: Ending) -> Expected | None:
    """Return what was expected of this answer; None if the answer is not what it was about."""
    if ending.first_byte_at is None or not ending.streamed or (ending.status or 200) >= 400:
        return None
    if ending.served not in ("", pick.endpoints[0].address) or (ending.attempts or 1) > 1:
        return None
    if ending.leg is not None and ending.leg.endpoint != pick.prefill:
        return None
    return pick.expected


def computed_tokens(
    request: InferenceRequest, pick: Pick, ending: Ending, expected: Expected
) -> float:
    """Return the request's tokens that were computed: by the engine's word, if it gave it.

    Engines count tokens in their own way, so only the share that was cached is theirs. Where the
    prompt was computed elsewhere, the word is the decoding engine's and about its own cache.
    """
    usage = ending.usage
    if pick.prefill is not None or usage is None:
        return expected.uncached
    if usage.cached_tokens is None or not usage.prompt_tokens:
        return expected.uncached
    return request.prompt_tokens * max(1.0 - usage.cached_tokens / usage.prompt_tokens, 0.0)


def _parts(wait: float, decision: float, engine: float, model: tuple[float, float, bool]) -> Parts:
    """Split ``engine`` by ``model``: seconds of the own prefill and of the queue, if elsewhere."""
    own, ahead, elsewhere = model
    prefill = min(own, engine)
    queue = min(ahead, engine - prefill)
    rest = max(engine - prefill - queue, 0.0)
    if elsewhere:
        return Parts(wait, decision, engine, queue + prefill, None, None, rest)
    return Parts(wait, decision, engine, None, queue, prefill, rest)
