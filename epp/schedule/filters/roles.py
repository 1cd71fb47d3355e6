"""Filters by role: ``encode-filter``, ``prefill-filter``, ``decode-filter``.

A pod says by label which stages of a disaggregated request it serves. Only decode takes pods
without the label: those are ordinary servers that do everything.

**Source:** the label ``llm-d.ai/role`` and its values as llm-d's role filters read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import ROLE, Endpoint, InferenceRequest

ENCODE: frozenset[str | None] = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})
PREFILL: frozenset[str | None] = frozenset(
    {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}
)
DECODE: frozenset[str | None] = frozenset(
    {"decode", "prefill-decode", "both", "encode-prefill-decode", None}
)


class _RoleFilter:
    stability: ClassVar[plugin.Stability] = "beta"
    roles: ClassVar[frozenset[str | None]]  #: what to keep; None is a pod without the label

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def filter(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """See `plugin.Filter.filter`."""
        roles = self.roles
        return [endpoint for endpoint in endpoints if endpoint.labels.get(ROLE) in roles]


class EncodeFilter(_RoleFilter):
    """Keeps endpoints that encode images, audio and video."""

    type: ClassVar[str] = "encode-filter"
    roles: ClassVar[frozenset[str | None]] = ENCODE


class PrefillFilter(_RoleFilter):
    """Keeps endpoints that run prefills for others."""

    type: ClassVar[str] = "prefill-filter"
    roles: ClassVar[frozenset[str | None]] = PREFILL


class DecodeFilter(_RoleFilter):
    """Keeps endpoints that decode, those without a role included."""

    type: ClassVar[str] = "decode-filter"
    roles: ClassVar[frozenset[str | None]] = DECODE
