"""Builds a `Pipeline` from a configuration: instances, their order, what is carried over."""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epp import plugin
from epp.catalog import NOT_YET, Catalog, stability
from epp.clock import Clock
from epp.config.defaults import PRODUCER_NAME
from epp.config.hints import with_hint
from epp.config.load import Loaded, explained, load
from epp.config.schema import Config, PluginSpec, ProfileSpec
from epp.disagg.remote import only_prefiller
from epp.errors import ConfigError
from epp.flow.gate import Gate
from epp.flow.saturation import UtilizationDetector
from epp.formats import FormatSet
from epp.formats.splice import rewrite_model
from epp.ledger import Ledger
from epp.observe.producers import output_tokens
from epp.pipeline import Formats, Pipeline
from epp.pool import Pool
from epp.rules import RuleBook, Rules
from epp.schedule import DEFAULT_WEIGHTS
from epp.schedule.profile import Profile
from epp.schedule.scheduler import Scheduler
from epp.serve.data_layer import check_data_layer
from epp.wrap.guard import OnFault, guard
from epp.wrap.timed import Stopwatch, TimedEnricher, Timings, time_scheduler
from epp.wrap.traced import (
    TracedEnricher,
    TracedFormats,
    Tracer,
    trace_profiles,
    trace_scheduler,
)


def _no_fault(name: str, kind: str) -> None:
    """Tell nobody."""


class Parts(msgspec.Struct, frozen=True):
    """What a pipeline is built with, besides its configuration."""

    clock: Clock
    random: random.Random
    ledger: Ledger
    pool: Pool
    catalog: Catalog = msgspec.field(default_factory=Catalog)
    book: RuleBook = msgspec.field(default_factory=RuleBook)  #: what the rules read
    allow_experimental: bool = False
    extra_observers: tuple[plugin.Observer, ...] = ()
    emit_scores: bool = False
    on_fault: OnFault = _no_fault  #: told of a foreign plugin's fault: its name, a fixed word
    timings: Timings | None = None  #: told what decisions and plugins cost
    tracer: Tracer | None = None  #: makes spans of what the pipeline does; None makes none
    witness: plugin.Witness | None = None  #: told of every decision
    forecaster: plugin.Forecaster | None = None  #: foresees the time to first token of picks


def configure(
    text: str | None, parts: Parts, *, previous: Pipeline | None = None, source: str = ""
) -> tuple[Loaded, Pipeline]:
    """Load a configuration text (None or blank: the default) and build its pipeline.

    Raises:
        ConfigError: and where, and why.
    """
    loaded = load(text, kinds=parts.catalog.kinds, default_profile=DEFAULT_WEIGHTS, source=source)
    try:
        return loaded, build_pipeline(loaded.config, parts, previous, older=loaded.older)
    except ConfigError as error:
        raise explained(error, loaded.warnings) from error


def build_pipeline(
    config: Config, parts: Parts, previous: Pipeline | None = None, *, older: bool = False
) -> Pipeline:
    """Build what ``config`` (normalised) says.

    A plugin of ``previous`` with equal type, name and parameters is carried over with what it
    learned. Nothing of ``previous`` is changed. An ``older`` file may name experimental plugins:
    in its time there was no flag to allow them.

    Raises:
        ConfigError: and where, and why.
    """
    builder = _Builder(config, parts, previous, older=older)
    builder.instantiate()
    return builder.assemble()


class _Builder:
    """One build, step by step."""

    def __init__(
        self, config: Config, parts: Parts, previous: Pipeline | None, *, older: bool
    ) -> None:
        self._older = older
        self._config = config
        self._parts = parts
        self._previous = previous
        self._specs: dict[str, PluginSpec] = {}
        self._params: dict[str, Any] = {}
        self._plugins: dict[str, Any] = {}
        self._ignored: set[str] = set()
        self._warnings: list[str] = []

    def instantiate(self) -> None:
        """Decode all parameters, then build the instances in the order of their references."""
        for i, spec in enumerate(self._config.plugins):
            self._decode(spec, f"$.plugins[{i}]")
        building: list[str] = []
        for name, spec in self._specs.items():
            self._build(name, building)
            producer = str((spec.parameters or {}).get(PRODUCER_NAME))
            if producer in self._ignored:
                self._warnings.append(
                    f"plugin {name!r} reads prefix matches of {producer!r}, which is ignored: it "
                    f"knows of none"
                )

    def _decode(self, spec: PluginSpec, where: str) -> None:
        if (not_yet := NOT_YET.get(spec.type)) is not None:
            if not_yet.policy == "refused":
                raise ConfigError(f"plugin type {spec.type!r}: {not_yet.why} - at `{where}.type`")
            self._warnings.append(f"plugin {spec.ref!r} is ignored: {not_yet.why}")
            self._ignored.add(spec.ref)
            return
        class_: Any = self._parts.catalog.get(spec.type)
        if class_ is None:
            near = difflib.get_close_matches(spec.type, self._parts.catalog.types(), 1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"unknown plugin type {spec.type!r}{hint} - at `{where}.type`")
        if stability(class_) == "alpha" and not self._parts.allow_experimental:
            said = f"plugin type {spec.type!r} is experimental: start with "
            said += f"--allow-experimental-plugins - at `{where}.type`"
            if not self._older:
                raise ConfigError(said)
            self._warnings.append(said)
        self._specs[spec.ref] = spec
        self._params[spec.ref] = _convert(spec, class_.Params, where)

    def _build(self, name: str, building: list[str]) -> None:
        if name in self._plugins:
            return
        if name in building:
            circle = " -> ".join([*building[building.index(name) :], name])
            raise ConfigError(
                f"plugins refer to each other in a circle: {circle} - at `{self._at(name)}`"
            )
        spec, params = self._specs[name], self._params[name]
        class_: Any = self._parts.catalog.get(spec.type)
        for wanted in self._refs(name):
            if wanted not in self._specs:
                near = difflib.get_close_matches(wanted, self._specs, 1)
                hint = f", did you mean {near[0]!r}?" if near else ""
                raise ConfigError(
                    f"plugin {name!r} refers to {wanted!r}, which is not configured{hint} "
                    f"- at `{self._at(name)}`"
                )
            self._build(wanted, [*building, name])
        carried = self._carried(spec)
        self._plugins[name] = self._new(class_, params, name) if carried is None else carried

    def _refs(self, name: str) -> Sequence[str]:
        """Names of the instances that ``name`` refers to."""
        class_: Any = self._parts.catalog.get(self._specs[name].type)
        if not hasattr(class_, "refs"):
            return ()
        try:
            return tuple(class_.refs(self._params[name]))
        except Exception as error:
            if class_.type not in self._parts.catalog.foreign:
                raise
            raise ConfigError(
                f"plugin {name!r}: {type(error).__name__}: {error} - at `{self._at(name)}`"
            ) from error

    def _carried(self, spec: PluginSpec) -> Any:
        """The instance of the previous pipeline, if it and all it refers to are the same."""
        before = self._previous
        if before is None or before.specs.get(spec.ref) != spec:
            return None
        if any(self._plugins[ref] is not before.plugins.get(ref) for ref in self._refs(spec.ref)):
            return None
        return before.plugins.get(spec.ref)

    def _new(self, class_: Any, params: Any, name: str) -> Any:
        parts = self._parts
        tools = plugin.Tools(
            clock=parts.clock,
            random=parts.random,
            ledger=parts.ledger,
            name=name,
            forecaster=parts.forecaster,
            plugins=dict(self._plugins),
        )
        foreign = class_.type in parts.catalog.foreign
        try:
            made = class_(params, tools)
        except ValueError as error:
            raise ConfigError(f"plugin {name!r}: {error} - at `{self._at(name)}`") from error
        except Exception as error:
            if not foreign:
                raise
            raise ConfigError(
                f"plugin {name!r}: {type(error).__name__}: {error} - at `{self._at(name)}`"
            ) from error
        return guard(made, name, parts.clock, parts.on_fault) if foreign else made

    def assemble(self) -> Pipeline:
        """Put the instances in their places."""
        config, every = self._config, list(self._plugins.values())
        handlers = [n for n in self._plugins if "handler" in self._kinds(n)]
        if len(handlers) != 1:
            raise ConfigError(
                f"one profile handler is needed, found {handlers or 'none'} - at `$.plugins`"
            )
        handler = self._plugins[handlers[0]]
        if (
            self._specs[handlers[0]].type == "single-profile-handler"
            and len(config.scheduling_profiles) > 1
        ):
            raise ConfigError(
                "single-profile-handler runs one profile, but several are configured "
                "- at `$.schedulingProfiles`"
            )
        profiles = {p.name: self._profile(p, i) for i, p in enumerate(config.scheduling_profiles)}
        self._check_profiles(handlers[0], profiles)
        if config.data_layer is not None:
            types = {name: spec.type for name, spec in self._specs.items()}
            check_data_layer(config.data_layer, types, self._parts.catalog.kinds)
        observers = [each for each in every if isinstance(each, plugin.Observer)]
        return Pipeline(
            formats=self._formats(),
            rules=Rules(rewrite_model, self._parts.book, self._parts.random),
            gate=Gate(self._detector()),
            screeners=_having(every, plugin.Screener),
            enrichers=self._enrichers(every),
            admitters=_having(every, plugin.Admitter),
            scheduler=self._scheduler(profiles, handler),
            observers=(*observers, *self._parts.extra_observers),
            plugins=self._plugins,
            output=next(filter(None, (output_tokens(each) for each in every)), None),
            preparers=_having(every, plugin.Preparer),
            prefiller=only_prefiller(every),
            request_headers=_having(every, plugin.RequestHeaderAdder),
            answer_headers=_having(every, plugin.AnswerHeaderAdder),
            reporters=_having(every, plugin.AnswerReporter),
            specs=self._specs,
            warnings=tuple(self._warnings),
        )

    def _formats(self) -> Formats:
        formats, tracer = FormatSet(self._parsers()), self._parts.tracer
        return formats if tracer is None else TracedFormats(formats, tracer)

    def _scheduler(self, profiles: Mapping[str, Profile], handler: Any) -> Scheduler:
        parts = self._parts
        scheduler = Scheduler(profiles, handler, parts.emit_scores, parts.witness, parts.forecaster)
        stopwatch, tracer = self._stopwatch(), parts.tracer
        if tracer is not None:
            scheduler = trace_profiles(scheduler, tracer)
        if stopwatch is not None:
            scheduler = time_scheduler(scheduler, stopwatch)
        return scheduler if tracer is None else trace_scheduler(scheduler, tracer)

    def _enrichers(self, every: Sequence[Any]) -> tuple[plugin.Enricher, ...]:
        plain = sorted(_having(every, plugin.Enricher), key=_needs_tokens)
        stopwatch, tracer = self._stopwatch(), self._parts.tracer
        found = tuple(plain)
        if stopwatch is not None:
            found = tuple(TimedEnricher(each, stopwatch) for each in plain)
        if tracer is None:
            return found
        pairs = zip(found, plain, strict=True)
        return tuple(TracedEnricher(each, plugin.type_of(inner), tracer) for each, inner in pairs)

    def _stopwatch(self) -> Stopwatch | None:
        parts = self._parts
        if parts.timings is None:
            return None
        return Stopwatch(parts.clock, parts.timings, self._plugins)

    def _check_profiles(self, handler: str, profiles: Mapping[str, Profile]) -> None:
        class_: Any = self._parts.catalog.get(self._specs[handler].type)
        needed = getattr(class_, "needed_profiles", lambda _: ())(self._params[handler])
        for name in needed:
            if name not in profiles:
                raise ConfigError(
                    f"plugin {handler!r} runs profile {name!r}, which is not configured: there is "
                    f"{', '.join(profiles)} - at `{self._at(handler)}`"
                )

    def _profile(self, spec: ProfileSpec, index: int) -> Profile:
        filters: list[Any] = []
        scorers: list[tuple[Any, float]] = []
        pickers: list[str] = []
        for j, place in enumerate(spec.plugins):
            name, where = place.plugin_ref, f"$.schedulingProfiles[{index}].plugins[{j}]"
            if name in self._ignored:
                continue
            if name not in self._plugins:
                raise ConfigError(f"no plugin is named {name!r} - at `{where}.pluginRef`")
            kinds, made = self._kinds(name), self._plugins[name]
            if "filter" in kinds:
                filters.append(made)
            if "scorer" in kinds:
                weight = 1.0 if place.weight is None else place.weight
                if weight:
                    scorers.append((made, weight))
            if "picker" in kinds:
                pickers.append(name)
            if not kinds & {"filter", "scorer", "picker"}:
                self._warnings.append(
                    f"plugin {name!r} in profile {spec.name!r} is no filter, scorer or picker and "
                    f"does nothing there - at `{where}`"
                )
        if len(pickers) != 1:
            raise ConfigError(
                f"profile {spec.name!r} needs one picker, found {pickers or 'none'} "
                f"- at `$.schedulingProfiles[{index}].plugins`"
            )
        return Profile(spec.name, tuple(filters), tuple(scorers), self._plugins[pickers[0]])

    def _kinds(self, name: str) -> frozenset[str]:
        return self._parts.catalog.kinds(self._specs[name].type)

    def _parsers(self) -> Sequence[Any]:
        handler = self._config.request_handler
        names = [ref.plugin_ref for ref in handler.parsers] if handler else []
        return [
            self._named(name, "parser", f"$.requestHandler.parsers[{i}].pluginRef")
            for i, name in enumerate(names)
            if name not in self._ignored
        ]

    def _detector(self) -> plugin.SaturationDetector:
        flow = self._config.flow_control
        if flow is not None and flow.saturation_detector is not None:
            found: plugin.SaturationDetector = self._named(
                flow.saturation_detector.plugin_ref,
                "detector",
                "$.flowControl.saturationDetector.pluginRef",
            )
            return found
        tools = plugin.Tools(self._parts.clock, self._parts.random, self._parts.ledger)
        return UtilizationDetector(UtilizationDetector.Params(), tools)

    def _named(self, name: str, kind: str, where: str) -> Any:
        if name not in self._plugins:
            raise ConfigError(f"no plugin is named {name!r}, wanted as a {kind} - at `{where}`")
        if kind not in self._kinds(name):
            raise ConfigError(f"plugin {name!r} is no {kind} - at `{where}`")
        return self._plugins[name]

    def _at(self, name: str) -> str:
        """The place of a plugin's parameters."""
        index = next(i for i, spec in enumerate(self._config.plugins) if spec.ref == name)
        return f"$.plugins[{index}].parameters"


def _having(every: Sequence[Any], protocol: Any) -> tuple[Any, ...]:
    return tuple(each for each in every if isinstance(each, protocol))


def _needs_tokens(enricher: Any) -> bool:
    """Whether it may need token ids, so goes after who tells them."""
    return not getattr(enricher, "tells_tokens", False)


def _convert(spec: PluginSpec, params: Any, where: str) -> Any:
    """Decode a plugin's parameters strictly; errors carry its name and the whole path."""
    try:
        return msgspec.convert(spec.parameters or {}, params, strict=True)
    except msgspec.ValidationError as error:
        said = with_hint(str(error), params, where=f"{where}.parameters")
        raise ConfigError(f"plugin {spec.ref!r}: {said}") from error
