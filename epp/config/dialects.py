"""Older spellings of a configuration -> today's, one warning for each.

Nothing else in the program knows them.

**Source:** the configuration of GAIE 1.0 to 1.5 and of llm-d-inference-scheduler 0.3 to 0.10.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from epp.config.schema import API_VERSION, OLD_API_VERSION


def translate(raw: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return ``raw`` in today's spelling, and a warning per translated key. ``raw`` stays."""
    today = copy.deepcopy(dict(raw))
    warnings: list[str] = []
    if today.get("apiVersion") == OLD_API_VERSION:
        today["apiVersion"] = API_VERSION
        warnings.append(f"apiVersion {OLD_API_VERSION} is deprecated: write {API_VERSION}")
    return today, tuple(warnings)
