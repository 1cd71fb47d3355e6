"""Older types and parameters of plugins -> today's.

Plain renames stand in `old_tables`; a plugin whose shape changed has a function. A plugin keeps the
name that others refer to it by, and its place in the list; new ones go to the end. Parameters
that do not have the old shape are left for the plugin itself to refuse.

**Source:** plugins of GAIE 1.0 to 1.5 and of llm-d-inference-scheduler 0.3 to 0.10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from epp.config.old_tables import (
    ALWAYS_DECIDER,
    APPROX,
    BYTES_PER_TOKEN,
    CHARACTER_KEYS,
    DISAGG,
    DROPPED,
    ENGINE_LABELS,
    EXTRACTOR,
    MOOT,
    MOVED,
    PD_DECIDER,
    PRECISE,
    PREFIX_KEYS,
    PREFIX_SCORER,
    RENAMED,
    SPEC_KEYS,
)

Section = dict[str, Any]


def translate(today: Section, warnings: list[str]) -> None:
    """Bring ``today``'s plugins up to date, in place."""
    plugins = today.get("plugins")
    if not isinstance(plugins, list):
        return
    index = 0
    while index < len(plugins):  # those added on the way have their turn too
        spec = plugins[index]
        if isinstance(spec, dict) and isinstance(spec.get("type"), str):
            _Old(today, spec, warnings).translate()
        index += 1


def add(today: Section, type_: str, name: str, parameters: Section) -> str:
    """Append a plugin; return its name, another one than ``name`` if that is taken."""
    plugins = today.setdefault("plugins", [])
    if not isinstance(plugins, list):
        return name
    taken = _names(today)
    free = name
    while free in taken:
        free += "-too"
    spec: Section = {"type": type_}
    if free != type_:
        spec["name"] = free
    if parameters:
        spec["parameters"] = parameters
    plugins.append(spec)
    return free


def _names(today: Section) -> set[str]:
    plugins = today.get("plugins")
    specs = plugins if isinstance(plugins, list) else []
    return {str(s.get("name") or s.get("type")) for s in specs if isinstance(s, dict)}


class _Old:
    """One plugin of the file, brought up to date step by step."""

    def __init__(self, today: Section, spec: Section, warnings: list[str]) -> None:
        self._today = today
        self._spec = spec
        self._name = spec.get("name") or spec["type"]
        self._warnings = warnings

    def translate(self) -> None:
        """The type first: its parameters are then looked up under today's."""
        if new := RENAMED.get(self._spec["type"]):
            self._retype(new)
        if why := MOOT.get(self._spec["type"]):
            self._warn(f"type {self._spec['type']} has no effect: {why}")
        parameters = self._spec.get("parameters")
        if parameters is None:
            parameters = {}
        if not isinstance(parameters, dict):
            return
        self._drop(parameters)
        if special := SPECIAL.get(self._spec["type"]):
            special(self, parameters)
        self._move(self._spec.get("parameters") or {})

    def _warn(self, said: str) -> None:
        self._warnings.append(f"plugin {self._name!r}: {said}")

    def _retype(self, type_: str, also: str = "") -> None:
        old = self._spec["type"]
        self._spec.setdefault("name", old)
        self._spec["type"] = type_
        self._warn(f"type {old} is read as {type_}{also}")

    def _drop(self, parameters: Section) -> None:
        for key, why in DROPPED.get(self._spec["type"], {}).items():
            if key in parameters:
                del parameters[key]
                self._warn(f"{key} is left out: {why}")

    def _move(self, parameters: Section) -> None:
        moved = MOVED.get(self._spec["type"], {})
        blocks = {new.partition(".")[0] for new in moved.values() if "." in new}
        if self._spec["type"] == DISAGG and blocks & parameters.keys():
            return  # both spellings: the handler says why not
        for old, new in moved.items():
            *path, key = old.split(".")
            inside: Any = parameters
            for step in path:
                inside = inside.get(step) if isinstance(inside, dict) else None
            if not isinstance(inside, dict) or key not in inside:
                continue
            _put(parameters, new.split("."), inside.pop(key))
            self._warn(f"{old} is read as {new}")

    def in_characters(self, parameters: Section) -> None:
        """Block sizes in characters -> tokens; a size in tokens goes first."""
        for key in CHARACTER_KEYS:
            value = parameters.get(key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                continue
            del parameters[key]
            if "blockSizeTokens" in parameters:
                self._warn(f"{key} is left out: blockSizeTokens counts")
            elif value == 0:
                self._warn(f"{key} 0 is left out: it is the default")
            else:
                tokens = max(value // BYTES_PER_TOKEN, 1)
                parameters["blockSizeTokens"] = tokens
                self._warn(f"{key} {value}, in characters, is read as blockSizeTokens {tokens}")

    def prefix_scorer(self, parameters: Section) -> None:
        """The prefix scorer kept the index itself until GAIE 1.4."""
        if "prefixMatchInfoProducerName" in parameters:
            return
        old = {*PREFIX_KEYS, *CHARACTER_KEYS} & parameters.keys()
        if not old:
            return
        self.in_characters(parameters)
        moved = {key: parameters.pop(key) for key in PREFIX_KEYS if key in parameters}
        name = self._spec.get("name")
        producer = add(self._today, APPROX, f"{name}-producer" if name else APPROX, moved)
        parameters["prefixMatchInfoProducerName"] = producer
        told = [key for key in PREFIX_KEYS if key in moved and key in old]
        for key in told:
            self._warn(f"{key} is read as that of plugin {producer!r}")
        if "maxPrefixBlocksToMatch" in moved:
            moved.setdefault("maxPrefixTokensToMatch", 0)  # or its default would count

    def precise_scorer(self, parameters: Section) -> None:
        """Index and scorer in one, until llm-d-inference-scheduler 0.7."""
        producer = add(self._today, PRECISE, PRECISE, parameters)
        self._retype(PREFIX_SCORER, f" that reads plugin {producer!r}")
        self._spec["parameters"] = {"prefixMatchInfoProducerName": producer}

    def label_map(self, parameters: Section) -> None:
        """``by-label-selector``: its parameters are the labels."""
        self._retype("label-selector-filter", " with matchLabels")
        self._spec["parameters"] = {"matchLabels": parameters} if parameters else {}

    def one_label(self, parameters: Section) -> None:
        """``by-label``, unless it allows both some values and no label: no selector says that."""
        if not parameters.keys() <= {"label", "validValues", "allowsNoLabel"}:
            return
        values, none = parameters.get("validValues") or [], parameters.get("allowsNoLabel", False)
        if not isinstance(none, bool) or bool(values) == none or "label" not in parameters:
            return
        rule = {"key": parameters["label"], "operator": "DoesNotExist" if none else "In"}
        if values:
            rule["values"] = values
        self._retype("label-selector-filter", " with matchExpressions")
        self._spec["parameters"] = {"matchExpressions": [rule]}

    def pd_handler(self, parameters: Section) -> None:
        """``pd-profile-handler``, unless it uses what its successor has not.

        That is ``threshold`` above 0, in bytes, and ``primaryPort``. Without a decider, and none
        of the default's name, ``threshold`` is 0: always.
        """
        threshold = parameters.get("threshold")
        if threshold or parameters.get("primaryPort"):
            return
        if "prefixMatchInfoProducerName" in parameters:
            return
        given = parameters.get("deciderPluginName")
        decider = given or (PD_DECIDER if threshold is None else "")
        if not given and decider not in _names(self._today):
            decider = add(self._today, ALWAYS_DECIDER, ALWAYS_DECIDER, {})
        self._spec["parameters"] = parameters
        self._retype(DISAGG, "" if given else f" with decider {decider!r}")
        for key in ("threshold", "primaryPort"):
            if parameters.pop(key, None) is not None:
                self._warn(f"{key} 0 is left out: that is what it means")
        self._move(parameters)
        parameters.setdefault("deciders", {})["prefill"] = decider

    def one_engine(self, parameters: Section) -> None:
        """The extractor's specifications of one engine, which was vLLM, in GAIE 1.3."""
        if parameters.get("engineLabelKey") in ENGINE_LABELS:
            del parameters["engineLabelKey"]
            self._warn("engineLabelKey is left out: this label is looked at anyway")
        told = [key for key in SPEC_KEYS if key in parameters]
        if not told or "engineConfigs" in parameters:
            return
        engine = parameters.get("defaultEngine", "vllm")
        config = {key: parameters.pop(key) for key in told}
        parameters["engineConfigs"] = [{"name": engine, **config}]
        for key in told:
            self._warn(f"{key} is read as that of engineConfigs {engine!r}")


def _put(parameters: Section, path: list[str], value: Any) -> None:
    """Set a nested value, unless it is there already: the first spelling counts."""
    for step in path[:-1]:
        parameters = parameters.setdefault(step, {})
    parameters.setdefault(path[-1], value)


SPECIAL: Mapping[str, Callable[[_Old, Section], None]] = {
    PREFIX_SCORER: _Old.prefix_scorer,
    APPROX: _Old.in_characters,
    "precise-prefix-cache-scorer": _Old.precise_scorer,
    "by-label-selector": _Old.label_map,
    "by-label": _Old.one_label,
    "pd-profile-handler": _Old.pd_handler,
    EXTRACTOR: _Old.one_engine,
}
