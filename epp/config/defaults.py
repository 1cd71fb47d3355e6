"""What a configuration leaves out, spelled out.

**Source:** the defaulting rules of llm-d-router's configuration loader, by their numbers here:

1. nothing at all: the default scorers in one profile ``default``;
2. no profiles: one, ``default``, of every configured filter, scorer and picker;
3. one profile and no profile handler: ``single-profile-handler``;
4. a profile without a picker: a configured one, or ``max-score-picker``;
5. no parsers: OpenAI, Anthropic, vLLM's own, and pass-through for all else;
6. a producer for each fact that a plugin reads and nobody produces;
7. the metrics source and its reader, unless ``dataLayer.injectDefaults`` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from epp.config.schema import (
    Config,
    DataLayer,
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
        "in-flight-load-scorer",
    }
)
SOURCE, EXTRACTOR = "metrics-data-source", "core-metrics-extractor"
_IN_PROFILE = frozenset({"filter", "scorer", "picker"})


def normalise(
    config: Config, kinds: Kinds, default_profile: Sequence[tuple[str, float]]
) -> tuple[Config, tuple[str, ...]]:
    """Return ``config`` with everything that will run named, and warnings.

    Raises:
        ConfigError: the rules leave a choice open.
    """
    warnings = _gates(config)
    if not config.plugins and not config.scheduling_profiles:
        config = _default(config, default_profile)
    if not config.scheduling_profiles:
        config = _one_profile(config, kinds)
    config = _handler(config, kinds)
    config = _pickers(config, kinds)
    config = _parsers(config)
    config = _producers(config, kinds)
    return _sources(config), warnings


def _gates(config: Config) -> tuple[str, ...]:
    warnings: list[str] = []
    for i, gate in enumerate(config.feature_gates):
        name, _, value = gate.partition("=")
        if name not in ("flowControl", "haPopulateNonLeaderDatastore") or value not in (
            "",
            "true",
            "false",
        ):
            raise ConfigError(f"unknown feature gate {gate!r} - at `$.featureGates[{i}]`")
        if name == "flowControl" and value != "false":
            warnings.append(
                "featureGates flowControl: flow control is not supported yet, requests are "
                "admitted as with the gate off"
            )
    return tuple(warnings)


def _default(config: Config, default_profile: Sequence[tuple[str, float]]) -> Config:
    """Rule 1."""
    names = [name for name, _ in default_profile]
    profile = ProfileSpec(
        "default", tuple(ProfilePlugin(name, weight) for name, weight in default_profile)
    )
    return msgspec.structs.replace(
        config,
        plugins=tuple(PluginSpec(name) for name in names),
        scheduling_profiles=(profile,),
    )


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
        raise ConfigError(f"more than one profile handler is configured: {', '.join(handlers)}")
    if handlers:
        return config
    if len(config.scheduling_profiles) > 1:
        names = ", ".join(profile.name for profile in config.scheduling_profiles)
        raise ConfigError(f"profiles {names} need a profile handler that chooses among them")
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
    """Rule 5."""
    if config.request_handler is not None and config.request_handler.parsers:
        return config
    for name in PARSERS:
        config = _with(config, PluginSpec(name))
    parsers = tuple(PluginRef(name) for name in PARSERS)
    return msgspec.structs.replace(config, request_handler=RequestHandler(parsers))


def _producers(config: Config, kinds: Kinds) -> Config:
    """Rule 6. What is in flight and how long a prompt is, the core knows by itself."""
    types = {spec.type for spec in config.plugins}
    produced = any("producer" in kinds(type_) for type_ in types)
    if produced or not types & PREFIX_READERS:
        return config
    return _with(config, PluginSpec(PREFIX_PRODUCER))


def _sources(config: Config) -> Config:
    """Rule 7."""
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
