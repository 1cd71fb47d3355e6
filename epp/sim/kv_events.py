"""An engine's journal as KV events: what vLLM publishes, in both layouts; pure.

Fields are those of vLLM 0.32, in its order; before 0.24 an event was an array of them.

**Source:** ``vllm/distributed/kv_events.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from epp.sim.model import Sealed
from epp.sim.offload.tiers import Change

LAYOUTS = ("map", "array")
_encode = msgspec.msgpack.Encoder().encode


class Encoder:
    """Makes one engine's payloads.

    Args:
        layout: one of `LAYOUTS`.
        block_tokens: tokens of a block.
        rank: data-parallel rank.
    """

    def __init__(self, layout: str, *, block_tokens: int, rank: int = 0) -> None:
        self._as_map = layout == "map"
        self._block_tokens = block_tokens
        self._rank = rank

    def payload(self, at: float, events: Sequence[Any]) -> bytes:
        """Return a message's payload; ``at`` is seconds since 1970."""
        return _encode([at, events, self._rank])

    def news(self, removed: Sequence[int], sealed: Sequence[Sealed]) -> list[Any]:
        """Return the events of what `Engine.news` told."""
        return [*map(self._removed, removed), *map(self._stored, sealed)]

    def moved(self, changes: Sequence[Change]) -> list[Any]:
        """Return the events of what `Tiers.news` told: placeholders, whose tokens were told before."""
        return [
            self._placeholder(each) if each.stored else self._removed(each.block, each.medium)
            for each in changes
        ]

    def cleared(self) -> Any:
        """Return the event of a cache that was emptied."""
        return self._event("AllBlocksCleared", {})

    def _removed(self, block: int, medium: str = "GPU") -> Any:
        fields = {"block_hashes": [block], "medium": medium, "group_idx": 0}
        return self._event("BlockRemoved", fields)

    def _placeholder(self, change: Change) -> Any:
        fields = {
            "block_hashes": [change.block],
            "parent_block_hash": None,
            "token_ids": [],
            "block_size": 0,
            "lora_id": None,
            "medium": change.medium,
            "lora_name": None,
        }
        if not self._as_map:
            fields["extra_keys"] = None  # by its name it is left out
        return self._event("BlockStored", {**fields, "group_idx": 0})

    def _stored(self, sealed: Sealed) -> Any:
        request, size = sealed.request, self._block_tokens
        ids = np.frombuffer(request.tokens, "<u4")[sealed.first * size : sealed.end * size]
        count = sealed.end - sealed.first
        extra: list[list[str] | None] = [[request.adapter] if request.adapter else None] * count
        if request.salt and not sealed.first:
            extra[0] = [*(extra[0] or ()), request.salt]
        return self._event(
            "BlockStored",
            {
                "block_hashes": list(request.blocks[sealed.first : sealed.end]),
                "parent_block_hash": request.blocks[sealed.first - 1] if sealed.first else None,
                "token_ids": ids.tolist(),
                "block_size": size,
                "lora_id": 1 if request.adapter else None,
                "medium": "GPU",
                "lora_name": request.adapter or None,
                "extra_keys": extra,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            },
        )

    def _event(self, name: str, fields: Mapping[str, Any]) -> Any:
        return {"type": name, **fields} if self._as_map else [name, *fields.values()]
