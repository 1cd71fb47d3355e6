"""How engines are told to hand a KV cache over: one `Connector` for each way, by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from epp.disagg.connectors.base import BadAnswer, Connector, Mode, Transfer, Unsplittable
from epp.disagg.connectors.mooncake import Mooncake
from epp.disagg.connectors.nixl import Nixl
from epp.disagg.connectors.sglang import Sglang
from epp.disagg.connectors.shared import SharedStorage

_EVERY: tuple[Connector, ...] = (Nixl(), SharedStorage(), Sglang(), Mooncake())
CONNECTORS: Mapping[str, Connector] = MappingProxyType({each.name: each for each in _EVERY})
"""Every connector by the name that llm-d's sidecar has for it."""

__all__ = ["CONNECTORS", "BadAnswer", "Connector", "Mode", "Transfer", "Unsplittable"]
