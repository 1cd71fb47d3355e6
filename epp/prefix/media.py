"""``mm-embeddings-cache-producer``: which endpoint has encoded which image lately.

Engines keep what their encoders made of an image, a sound or a video, apart from the KV cache: the
same image is not encoded again, wherever it stands in a prompt. An endpoint picked for a request is
believed to hold its media from then on, as many as its cache has room for, the least recently
used gone first. Nothing is learned of a request that is only counted or rendered.

Two media are the same if the client wrote them alike. One that was written otherwise misses a match
and never claims one that is not there.

**Source:** name and parameter of llm-d's producer of this name; 4096 MiB by default and 2 MiB per
medium are its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from epp import plugin
from epp.model import (
    BlockHash,
    Ending,
    Endpoint,
    EndpointId,
    InferenceRequest,
    MediaMatch,
    Pick,
)
from epp.prefix.blocks import packed, unpacked
from epp.prefix.index import PrefixIndex
from epp.telemetry.encoder import EncoderCounts

DEFAULT_MEBIBYTES = 4096
MEBIBYTES_EACH = 2  #: that one image, sound or video takes of an encoder's cache
MOST = 128  #: media of one request that count; 3 ms if 100 endpoints hold all of them


class MmEmbeddingsCacheProducer:
    """Knows, from our own picks, which endpoint has encoded which image, sound or video lately.

    Where a request is encoded elsewhere, its encode endpoints are believed to hold its media;
    otherwise the endpoints of its decode and its prefill are.
    """

    type: ClassVar[str] = "mm-embeddings-cache-producer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        # Given here to have its name: camelCase would make it `cacheSizeInMbPerServer`.
        cache_size_in_mb_per_server: Annotated[int, Meta(ge=0)] = msgspec.field(
            default=DEFAULT_MEBIBYTES, name="cacheSizeInMBPerServer"
        )
        """MiB of an endpoint's encoder cache, 2 for each medium; 0 is the default."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        mebibytes = params.cache_size_in_mb_per_server or DEFAULT_MEBIBYTES
        self._capacity = max(mebibytes // MEBIBYTES_EACH, 1)
        self._seen = PrefixIndex(self._capacity)  # a medium is a chain of one block
        self.counts = EncoderCounts()  #: of what was asked and held; for metrics

    def enrich(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> InferenceRequest:
        """Add who holds the request's media. See `plugin.Enricher.enrich`."""
        if not request.media or not request.computed:
            return request
        modalities = {hashed: modality for modality, hashed in reversed(request.media)}
        items = tuple(islice(dict.fromkeys(item.hash for item in request.media), MOST))
        held: Counter[EndpointId] = Counter()
        for item in items:
            holders = self._seen.look_up((BlockHash(item),)).keys()
            held.update(holders)
            self.counts.asked(modalities[item], holders)
        self.counts.matched([held[endpoint.id] for endpoint in endpoints], len(items))
        return msgspec.structs.replace(request, media_match=MediaMatch(items, held))

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`: they will hold the request's media."""
        match = request.media_match
        if match is None:
            return
        first, prefill = pick.endpoints[0], pick.prefill
        for endpoint in pick.encode or ((first,) if prefill is None else (first, prefill)):
            self._learn(endpoint, match)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`: a fallback that served holds the media too."""
        match = request.media_match
        if match is None or pick.encode or not ending.served:
            return
        for endpoint in pick.endpoints[1:]:
            # One that holds nothing may be gone by now, and nobody would forget it again.
            if endpoint.address == ending.served and self._seen.held(endpoint.id):
                self._learn(endpoint, match)

    def share(self, request: InferenceRequest, pick: Pick) -> bytes:
        """See `plugin.Sharer.share`: the media, unless they are encoded elsewhere."""
        match = request.media_match
        if match is None or pick.encode:
            return b""
        return packed([BlockHash(item) for item in match.items], 1)

    def heard(self, fact: bytes, endpoint: Endpoint, prefill: Endpoint | None) -> None:
        """See `plugin.Sharer.heard`."""
        items, _ = unpacked(fact)
        match = MediaMatch(items[:MOST], {})
        for each in filter(None, (endpoint, prefill)):
            self._learn(each, match)

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`."""
        self._seen.forget(endpoint_id)
        self.counts.forget(endpoint_id)

    def dump_state(self) -> Mapping[str, Any]:
        """See `plugin.StateDumper.dump_state`."""
        seen = self._seen
        return {
            "capacityPerServer": self._capacity,
            "endpoints": seen.endpoints,
            "entries": seen.entries,
            "media": seen.blocks,
        }

    def _learn(self, endpoint: Endpoint, match: MediaMatch) -> None:
        for item in match.items:
            self._seen.learn(endpoint.id, (BlockHash(item),))
