"""The table of plugin types: built in, brought by users, and those we do not support yet."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import msgspec

from epp import plugin
from epp.collect.sources import SOURCES
from epp.disagg.pairs.handler import PairProfileHandler
from epp.disagg.remote.client import PrefillClient
from epp.errors import ConfigError
from epp.flow.admit import ADMITTERS
from epp.flow.identity import IDENTITIES
from epp.flow.saturation import DETECTORS
from epp.formats import PARSERS
from epp.observe.conformance import REPORTERS
from epp.observe.producers import PRODUCERS
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.prefix.media import MmEmbeddingsCacheProducer
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.prefix.tokens.producer import Tokenizer, TokenProducer
from epp.schedule.deciders import DECIDERS
from epp.schedule.filters import FILTERS
from epp.schedule.handlers import HANDLERS
from epp.schedule.pickers import PICKERS
from epp.schedule.scorers import SCORERS

ENTRY_POINTS = "epp.plugins"

BUILT_IN: tuple[type, ...] = (
    *FILTERS,
    *SCORERS,
    *PICKERS,
    *HANDLERS,
    *DECIDERS,
    *DETECTORS,
    *ADMITTERS,
    *IDENTITIES,
    ApproxPrefixCacheProducer,
    PrecisePrefixCacheProducer,
    MmEmbeddingsCacheProducer,
    TokenProducer,
    Tokenizer,
    PairProfileHandler,
    PrefillClient,
    *PRODUCERS,
    *REPORTERS,
    *PARSERS,
    *SOURCES,
)


class NotYet(msgspec.Struct, frozen=True):
    """A type of the Go router that is not supported."""

    policy: Literal["ignored", "refused"]
    why: str  #: and what to use instead; a whole sentence without its full stop


_FLOW = NotYet("ignored", "flow control is not supported yet: nothing waits in the picker")
_PREDICTS = NotYet("refused", "latency prediction is not supported yet; use in-flight-load-scorer")
_CLUSTERS = NotYet("refused", "choosing among clusters is not supported")

NOT_YET: Mapping[str, NotYet] = {
    "predicted-latency-producer": _PREDICTS,
    "latency-scorer": _PREDICTS,
    "latency-slo-admitter": _PREDICTS,
    "slo-headroom-tier-filter": _PREDICTS,
    "burst-prefix-cache-producer": NotYet(
        "ignored", "bookings spread bursts already, and equal prompts meet on their endpoint"
    ),
    "p2p-source-producer": NotYet("ignored", "naming a peer to pull KV from is not supported yet"),
    "disaggregatedset-rollout-screener": NotYet(
        "refused", "rollout revisions are not supported yet"
    ),
    "topology-extractor": NotYet("ignored", "topology is read from the endpoints' labels"),
    "multicluster-queue-scorer": _CLUSTERS,
    "multicluster-kv-cache-utilization-scorer": _CLUSTERS,
    "multicluster-prefix-cache-scorer": _CLUSTERS,
    "multicluster-session-affinity-filter": _CLUSTERS,
    "multicluster-data-source": _CLUSTERS,
    "local-syncer": NotYet("ignored", "--peers makes pickers tell each other"),
    "static-usage-limit-policy": _FLOW,
    "priority-holdback-policy": _FLOW,
    "soft-reflective-ceiling-policy": _FLOW,
    "global-strict-fairness-policy": _FLOW,
    "round-robin-fairness-policy": _FLOW,
    "program-aware-fairness": _FLOW,
    "fcfs-ordering-policy": _FLOW,
    "edf-ordering-policy": _FLOW,
    "slo-deadline-ordering-policy": _FLOW,
    "sheddable-eviction-filter": _FLOW,
    "priority-then-time-eviction-order-policy": _FLOW,
}

_KINDS: Mapping[str, str] = {
    "filter": "filter",
    "scorer": "score",
    "picker": "pick",
    "handler": "handle",
    "parser": "parse",
    "producer": "enrich",
    "decider": "disaggregate",
    "detector": "saturation",
    "admitter": "admit",
    "screener": "screen",
    "observer": "ended",
    "preparer": "prepare",
    "request-header-adder": "request_headers",
    "answer-header-adder": "answer_headers",
    "answer-reporter": "report",
    "prefiller": "prefill",
}
"""Kind of plugin by the method that makes it one."""


class Catalog:
    """Every plugin type that a configuration may name.

    Args:
        paths: Python files with plugin classes of the user's own.

    Raises:
        ConfigError: a file cannot be loaded, holds no plugin, or takes a type that is taken.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self._classes: dict[str, type] = {each.type: each for each in BUILT_IN}  # type: ignore[attr-defined]
        self.foreign: set[str] = set()  #: types that are not built in
        for point in entry_points(group=ENTRY_POINTS):
            try:
                found = point.load()
            except (Exception, SystemExit) as error:
                raise ConfigError(f"plugin entry point {point.name!r}: {_said(error)}") from error
            self._add([found], f"entry point {point.name!r}")
        for path in paths:
            self._add(_classes_in(path), path)

    def get(self, type_: str) -> type | None:
        """Return the class of that type, if there is one."""
        return self._classes.get(type_)

    def types(self) -> list[str]:
        """Return every type, those not supported included."""
        return sorted({*self._classes, *NOT_YET})

    def kinds(self, type_: str) -> frozenset[str]:
        """Return what a plugin of that type does: "filter", "scorer", ...; unknown types nothing."""
        return kinds_of(self._classes.get(type_))

    def _add(self, classes: Iterable[Any], where: str) -> None:
        for each in classes:
            type_, params = getattr(each, "type", None), getattr(each, "Params", None)
            if not isinstance(type_, str) or not _is_type(params):
                raise ConfigError(
                    f"{where}: {each!r} needs a text `type` and a class `Params` of plugin.Params"
                )
            if not kinds_of(each):
                raise ConfigError(f"{where}: plugin {type_!r} has no method of any plugin protocol")
            if type_ in self._classes or type_ in NOT_YET:
                raise ConfigError(f"{where}: plugin type {type_!r} is taken")
            self._classes[type_] = each
            self.foreign.add(type_)


def kinds_of(class_: type | None) -> frozenset[str]:
    """Return the kinds of a plugin class, by the methods it has."""
    if class_ is None:
        return frozenset()
    found = {kind for kind, method in _KINDS.items() if callable(getattr(class_, method, None))}
    if class_ in SOURCES:
        found.add("source")
    return frozenset(found)


def stability(class_: type) -> plugin.Stability:
    """Return how settled a plugin is; "stable" for those that do not say."""
    return getattr(class_, "stability", "stable")


def _classes_in(path: str) -> list[type]:
    """Load a Python file; return its plugin classes."""
    name = f"epp_plugin_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"plugin file {path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"plugin file {path!r} cannot be loaded: {_said(error)}") from error
    found = [
        each
        for each in vars(module).values()
        if inspect.isclass(each)
        and each.__module__ == name
        and isinstance(getattr(each, "type", None), str)
    ]
    if not found:
        raise ConfigError(f"plugin file {path!r} holds no class with a `type`")
    return found


def _is_type(params: Any) -> bool:
    """Whether parameters can be decoded as this."""
    try:
        return params is not None and msgspec.inspect.type_info(params) is not None
    except TypeError:
        return False


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
