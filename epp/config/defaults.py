"""What a configuration leaves out, spelled out.

**Source:** the defaulting rules of llm-d-router's configuration loader, by their numbers here:

1. nothing to schedule by: the default scorers in one profile ``default``;
2. no profiles: one, ``default``, of every configured filter, scorer and picker;
3. one profile and no profile handler: ``single-profile-handler``;
4. a profile without a picker: a configured one, or ``max-score-picker``;
5. no parsers: OpenAI, Anthropic, vLLM's own, and pass-through for all else;
6. a producer for each fact that a plugin reads and nobody produces;
7. ``utilization-detector``, unless flow control names another, and the policies it names.

With the first comes the metrics source and its reader, unless ``dataLayer.injectDefaults`` is
false. Differs from llm-d: it takes the first only if the file is empty, and schedules by chance
if the file configures plugins, say for discovery, but none that chooses.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from epp.config.schema import (
    Config,
    DataLayer,
    FlowControl,
    PluginRef,
    PluginSpec,
    ProfilePlugin,
    ProfileSpec,
    RequestHandler,
    SourceSpec,
)
from epp.errors import ConfigError

Kinds = Callable[[str], frozenset[str]]
"""What a plugin of a type does: "filter", "scorer", "picker", "handler", ..."""

PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
PREFIX_PRODUCER = "approx-prefix-cache-producer"
PREFIX_READERS = frozenset(
    {
        "prefix-cache-scorer",
        "prefix-cache-affinity-filter",
        "no-hit-lru-scorer",
        "token-load-scorer",
        "prefix-based-pd-decider",
        "pd-profile-handler",
        "in-flight-load-scorer",
        "expected-ttft-scorer",
    }
)
PRODUCER_NAME = "prefixMatchInfoProducerName"  #: the parameter of readers that names a producer
MEDIA_PRODUCER, MEDIA_READER = "mm-embeddings-cache-producer", "mm-embeddings-cache-scorer"
DETECTOR = "utilization-detector"
POLICIES = frozenset(
    {"fcfs-ordering-policy", "global-strict-fairness-policy", "static-usage-limit-policy"}
)
"""Policies that flow control may name without configuring them."""
SOURCE, EXTRACTOR = "metrics-data-source", "core-metrics-extractor"
WARM_GATE = "haPopulateNonLeaderDatastore"
GATES = frozenset({"flowControl", WARM_GATE})
NO_FLOW_CONTROL = (
    "featureGates flowControl: flow control is not supported yet, requests are admitted as with "
    "the gate off"
)
ALWAYS_WARM = (
    f"featureGates {WARM_GATE}=false is ignored: every replica knows its endpoints, so that a new "
    "leader can begin at once"
)
IGNORED: Mapping[str, str] = {
    "dataLayer.peerDiscovery": "--peers says where other pickers are",
    "dataLayer.crossReplicaSyncerPluginRef": "--peers makes pickers tell each other",
    "dataLayer.crossReplicaSyncInterval": "pickers tell each other every 25 ms",
}
"""Fields that are checked and change nothing, and why; each is told once where it is given."""
_IN_PROFILE = frozenset({"filter", "scorer", "picker"})


def normalise(
    config: Config, kinds: Kinds, default_profile: Sequence[tuple[str, float]]
) -> tuple[Config, tuple[str, ...]]:
    """Return ``config`` with everything that will run named, and warnings.

    Raises:
        ConfigError: the rules leave a choice open.
    """
    warnings = (*_gates(config), *_ignored(config))
    if not config.scheduling_profiles:
        chooses = any(
            kinds(spec.type) & _IN_PROFILE and "detector" not in kinds(spec.type)
            for spec in config.plugins
        )
        unknown = any(not kinds(spec.type) for spec in config.plugins)
        if chooses or unknown:
            config = _one_profile(config, kinds)
        else:
            config = _default(config, default_profile)
    config = _handler(config, kinds)
    config = _pickers(config, kinds)
    config = _parsers(config)
    config = _producers(config, kinds)
    config = _detector(config)
    return _sources(config), warnings


def _gates(config: Config) -> tuple[str, ...]:
    """``name``, ``name=true`` or ``name=false``; the last word on a gate counts."""
    on = {}
    for i, gate in enumerate(config.feature_gates):
        name, equals, value = gate.partition("=")
        if name not in GATES:
            near = difflib.get_close_matches(name, GATES, 1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"unknown feature gate {gate!r}{hint} - at `$.featureGates[{i}]`")
        if equals and value not in ("true", "false"):
            raise ConfigError(
                f"feature gate {name!r} is true or false, not {value!r} - at `$.featureGates[{i}]`"
            )
        on[name] = value != "false"
    told = (
        (on.get("flowControl"), NO_FLOW_CONTROL),
        (on.get(WARM_GATE) is False, ALWAYS_WARM),
    )
    return tuple(warning for given, warning in told if given)


def _ignored(config: Config) -> tuple[str, ...]:
    """A warning for each field of `IGNORED` that is given."""
    told = msgspec.to_builtins(config)
    found = []
    for path, why in IGNORED.items():
        section, _, field = path.partition(".")
        if field in told.get(section, {}):
            found.append(f"{path} is ignored: {why}")
    return tuple(found)


def _default(config: Config, default_profile: Sequence[tuple[str, float]]) -> Config:
    """Rule 1."""
    profile = ProfileSpec(
        "default", tuple(ProfilePlugin(name, weight) for name, weight in default_profile)
    )
    for name, _ in default_profile:
        config = _with(config, PluginSpec(name))
    return msgspec.structs.replace(config, scheduling_profiles=(profile,))


def _one_profile(config: Config, kinds: Kinds) -> Config:
    """Rule 2."""
    places = [ProfilePlugin(p.ref) for p in config.plugins if kinds(p.type) & _IN_PROFILE]
    return msgspec.structs.replace(
        config, scheduling_profiles=(ProfileSpec("default", tuple(places)),)
    )


def _handler(config: Config, kinds: Kinds) -> Config:
    """Rule 3."""
    handlers = [spec.ref for spec in config.plugins if "handler" in kinds(spec.type)]
    if len(handlers) > 1:
        raise ConfigError(
            f"more than one profile handler is configured: {', '.join(handlers)} - at `$.plugins`"
        )
    if handlers:
        return config
    if len(config.scheduling_profiles) > 1:
        names = ", ".join(profile.name for profile in config.scheduling_profiles)
        raise ConfigError(
            f"profiles {names} need a profile handler that chooses among them - at `$.plugins`"
        )
    return _with(config, PluginSpec("single-profile-handler"))


def _pickers(config: Config, kinds: Kinds) -> Config:
    """Rule 4."""
    types = {spec.ref: spec.type for spec in config.plugins}
    profiles: list[ProfileSpec] = []
    for profile in config.scheduling_profiles:
        refs = [place.plugin_ref for place in profile.plugins]
        if not any("picker" in kinds(types.get(ref, "")) for ref in refs):
            known = [ref for ref, type_ in types.items() if "picker" in kinds(type_)]
            if not known:
                known = ["max-score-picker"]
                config = _with(config, PluginSpec(known[0]))
                types[known[0]] = known[0]
            places = (*profile.plugins, ProfilePlugin(known[0]))
            profile = msgspec.structs.replace(profile, plugins=places)  # noqa: PLW2901
        profiles.append(profile)
    return msgspec.structs.replace(config, scheduling_profiles=tuple(profiles))


def _parsers(config: Config) -> Config:
    """Rule 5. The default parsers may be named without configuring them."""
    if config.request_handler is not None and config.request_handler.parsers:
        for ref in config.request_handler.parsers:
            if ref.plugin_ref in PARSERS:
                config = _with(config, PluginSpec(ref.plugin_ref))
        return config
    for name in PARSERS:
        config = _with(config, PluginSpec(name))
    parsers = tuple(PluginRef(name) for name in PARSERS)
    return msgspec.structs.replace(config, request_handler=RequestHandler(parsers))


def _producers(config: Config, kinds: Kinds) -> Config:
    """Rule 6. What is in flight and how long a prompt is, the core knows by itself."""
    types = {spec.ref: spec.type for spec in config.plugins}
    wanted = False
    for i, spec in enumerate(config.plugins):
        named = str((spec.parameters or {}).get(PRODUCER_NAME, ""))
        if named and named != PREFIX_PRODUCER:
            _check_producer(named, types, kinds, f"$.plugins[{i}].parameters.{PRODUCER_NAME}")
        elif named or (spec.type in PREFIX_READERS and PREFIX_PRODUCER not in types.values()):
            wanted = True
    config = _with(config, PluginSpec(PREFIX_PRODUCER)) if wanted else config
    if MEDIA_READER in types.values() and MEDIA_PRODUCER not in types.values():
        config = _with(config, PluginSpec(MEDIA_PRODUCER))
    return config


def _check_producer(name: str, types: Mapping[str, str], kinds: Kinds, where: str) -> None:
    """Refuse the name of a producer that is none: its reader would know of no prefix.

    Raises:
        ConfigError: there is no plugin of that name, or it is no producer.
    """
    if name not in types:
        near = difflib.get_close_matches(name, types, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"no plugin is named {name!r}{hint} - at `{where}`")
    known = kinds(types[name])
    if known and "producer" not in known:
        raise ConfigError(f"plugin {name!r} is no producer of prefix matches - at `{where}`")


def _detector(config: Config) -> Config:
    """Rule 7."""
    flow = config.flow_control or FlowControl()
    named = flow.saturation_detector or PluginRef(DETECTOR)
    if named.plugin_ref == DETECTOR:
        config = _with(config, PluginSpec(DETECTOR))
    flow = msgspec.structs.replace(flow, saturation_detector=named)
    return msgspec.structs.replace(config, flow_control=flow)


def _sources(config: Config) -> Config:
    """The part of rule 1 that other configurations have too."""
    layer = config.data_layer or DataLayer()
    if layer.inject_defaults is False:
        return config
    types = {spec.type: spec.ref for spec in reversed(config.plugins)}
    config = config if SOURCE in types else _with(config, PluginSpec(SOURCE))
    config = config if EXTRACTOR in types else _with(config, PluginSpec(EXTRACTOR))
    source, extractor = types.get(SOURCE, SOURCE), types.get(EXTRACTOR, EXTRACTOR)
    if not any(each.plugin_ref == source for each in layer.sources):
        named = SourceSpec(source, (PluginRef(extractor),))
        layer = msgspec.structs.replace(layer, sources=(*layer.sources, named))
    return msgspec.structs.replace(config, data_layer=layer)


def _with(config: Config, spec: PluginSpec) -> Config:
    """Add a plugin unless one of its name is there."""
    if any(each.ref == spec.ref for each in config.plugins):
        return config
    return msgspec.structs.replace(config, plugins=(*config.plugins, spec))
