"""Who should have a prompt that nobody is known to have: weighted rendezvous hashing.

Every replica of the picker finds the same owner without asking the others, so what one of them has
sent there the others may hope to find there. Endpoints go by their pods' names, which a
StatefulSet's next pod takes over; one that comes or goes moves its own prompts only.

**Source:** weighted rendezvous hashing, ``-w / ln(h)`` with ``h`` in (0, 1); the limit on an
owner's load is that of consistent hashing with bounded loads, in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from epp.model import Endpoint, EndpointId, InferenceRequest, PrefixMatch
from epp.ttft.queues import Numbers

LIKE = 2.0**0.25  #: times as slow as the fastest: as good as the same
BOUND = 1.25  #: times the mean queue, which an owner may have
_MIX = np.uint64(0x9E3779B97F4A7C15)
_ALL = 0xFFFFFFFFFFFFFFFF
_HALF = np.uint64(32)
_UNIT = 2.0**-64


class Slots:
    """The endpoints' own hashes, kept while the same are asked for."""

    def __init__(self) -> None:
        self.places: dict[EndpointId, int] = {}  #: positions, by id
        self._ids: list[EndpointId] = []
        self._hashes: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def of(self, endpoints: Sequence[Endpoint], ids: list[EndpointId]) -> NDArray[np.uint64]:
        """Return 64 bits of each endpoint's stable name; ``ids`` is the same list for the same."""
        if ids is not self._ids:
            names = [f"{e.namespace}/{e.name or e.id}/{e.rank}" for e in endpoints]
            self._hashes = np.array(
                [xxhash.xxh3_64_intdigest(n.encode()) for n in names], np.uint64
            )
            self.places = {each: place for place, each in enumerate(ids)}
            self._ids = ids
        return self._hashes


def fingerprint(
    request: InferenceRequest, match: PrefixMatch | None, held: Sequence[int], endpoints: int
) -> int:
    """Return 64 bits by which a conversation is known: equal at each of its turns.

    The client's session, or the first block of the prompt that is not at home everywhere: what half
    of the endpoints hold, say a system prompt, tells nothing about the conversation.

    Args:
        request: to be known.
        match: what is known of its prompt.
        held: blocks that endpoints hold; those left out hold none.
        endpoints: how many there are.
    """
    if request.session:
        return xxhash.xxh3_64_intdigest(request.session.encode())
    if match is None or not match.blocks:
        return xxhash.xxh3_64_intdigest(request.id.encode())
    place = len(held) - (endpoints + 1) // 2  # in the middle of all
    common = sorted(held)[place] if place >= 0 and held else 0
    return int(match.blocks[min(common, len(match.blocks) - 1)])


def ranks(key: int, slots: NDArray[np.uint64], per_token: Numbers) -> Numbers:
    """Return how near each endpoint is to ``key``, in [0, 1]: 1.0 is the first to ask.

    The faster own more. Speeds count in steps of a half power of two, since replicas learn them a
    little differently and must agree.
    """
    mixed = slots ^ np.uint64(key & _ALL)
    mixed *= _MIX
    mixed ^= mixed >> _HALF
    mixed *= _MIX
    unit: Numbers = np.multiply(mixed, _UNIT, dtype=np.float64)
    fastest = np.minimum.reduce(per_token)
    if np.maximum.reduce(per_token) <= fastest * LIKE:
        return unit
    slower = np.exp2(np.round(2.0 * np.log2(per_token / fastest)) / 2.0)
    # The order of -w / ln(h) is that of h to the power of 1 / w.
    near: Numbers = unit**slower
    return near


def owner(near: Numbers, queue: Numbers, load: float) -> int:
    """Return the position of the nearest endpoint whose queue is within bounds of ``load``.

    That is the queue which all would have if work were spread evenly, the request's own on top.
    """
    bound = BOUND * load
    nearest = int(near.argmax())
    if queue[nearest] <= bound:
        return nearest
    return int(np.where(queue <= bound, near, -1.0).argmax())
