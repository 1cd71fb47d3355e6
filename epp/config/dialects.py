"""Older spellings of a configuration -> today's, one warning for each.

Sections and feature gates are told here, plugins in `old_plugins`; nothing else in the program
knows them. What is not an old spelling, right or wrong, is left as it is for `load` to judge.

**Source:** the configuration of GAIE 1.0 to 1.5 and of llm-d-inference-scheduler 0.3 to 0.10.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from epp.config import old_plugins
from epp.config.schema import API_VERSION, OLD_API_VERSION
from epp.errors import ConfigError

OLD_GATES: Mapping[str, str] = {
    "dataLayer": "the data layer is always on",
    "prepareDataPlugins": "producers always run",
    "enableLegacyMetrics": "load is always read through the data layer",
}
"""Feature gates that are gone, and why nothing is lost."""

DETECTOR = "utilization-detector"


def translate(raw: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return ``raw`` in today's spelling, and a warning per translated key. ``raw`` stays.

    Raises:
        ConfigError: a key is there in its old and in its new spelling.
    """
    today = copy.deepcopy(dict(raw))
    warnings: list[str] = []
    _api_version(today, warnings)
    _gates(today, warnings)
    _data(today, warnings)
    _parser(today, warnings)
    _detector(today, warnings)
    old_plugins.translate(today, warnings)
    return today, tuple(warnings)


def _api_version(today: dict[str, Any], warnings: list[str]) -> None:
    if today.get("apiVersion") == OLD_API_VERSION:
        today["apiVersion"] = API_VERSION
        warnings.append(f"apiVersion {OLD_API_VERSION} is deprecated: write {API_VERSION}")


def _gates(today: dict[str, Any], warnings: list[str]) -> None:
    gates = today.get("featureGates")
    if not isinstance(gates, list):
        return
    kept = []
    for gate in gates:
        why = OLD_GATES.get(gate.partition("=")[0]) if isinstance(gate, str) else None
        if why is None:
            kept.append(gate)
        else:
            warnings.append(f"featureGates {gate} is left out: {why}")
    today["featureGates"] = kept


def _data(today: dict[str, Any], warnings: list[str]) -> None:
    if "data" in today:
        _not_both(today, "data", "dataLayer")
        today["dataLayer"] = today.pop("data")
        warnings.append("data is read as dataLayer")


def _parser(today: dict[str, Any], warnings: list[str]) -> None:
    if "parser" not in today:
        return
    _not_both(today, "parser", "requestHandler")
    parser = today.pop("parser")
    today["requestHandler"] = {"parsers": [parser] if parser else []}
    warnings.append("parser is read as the only entry of requestHandler.parsers")


def _detector(today: dict[str, Any], warnings: list[str]) -> None:
    """``saturationDetector``: a reference in GAIE 1.5, the detector's own settings before."""
    if "saturationDetector" not in today:
        return
    flow = today.get("flowControl")
    flow = {} if flow is None else flow
    if not isinstance(flow, dict):
        return
    if "saturationDetector" in flow:
        raise _twice("saturationDetector", "flowControl.saturationDetector")
    old = today.pop("saturationDetector")
    if isinstance(old, dict) and "pluginRef" not in old:
        ref = old_plugins.add(today, DETECTOR, DETECTOR, old)
        old = {"pluginRef": ref}
        read_as = f"the parameters of plugin {ref!r}, named in flowControl.saturationDetector"
    else:
        read_as = "flowControl.saturationDetector"
    today["flowControl"] = {**flow, "saturationDetector": old}
    warnings.append(f"saturationDetector is read as {read_as}")


def _not_both(today: Mapping[str, Any], old: str, new: str) -> None:
    if new in today:
        raise _twice(old, new)


def _twice(old: str, new: str) -> ConfigError:
    return ConfigError(f"{old} is the old spelling of {new}, which is there too - at `$.{old}`")
