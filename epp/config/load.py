"""Read and check a configuration.

YAML or JSON (`decode`) -> today's spelling (`dialects`) -> types (`schema`) -> checks that need two fields
-> everything spelled out (`defaults`). Every error names the place.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epp.config import dialects
from epp.config.decode import decode
from epp.config.defaults import POLICIES, Kinds, normalise
from epp.config.hints import with_hint
from epp.config.schema import (
    API_VERSION,
    KIND,
    OLD_API_VERSION,
    Band,
    BandTemplate,
    Config,
    FlowControl,
)
from epp.errors import ConfigError


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, read."""

    config: Config  #: normalised: all that will run is named
    warnings: tuple[str, ...]
    source: str  #: the file, or ""
    older: bool = False  #: of releases that knew no experimental plugins


def load(
    text: str | bytes | None,
    *,
    kinds: Kinds | None = None,
    default_profile: Sequence[tuple[str, float]] = (),
    source: str = "",
) -> Loaded:
    """Read a configuration; None or blank text is none at all.

    Args:
        text: YAML or JSON.
        kinds: tells what a plugin of a type does; without it nothing is filled in.
        default_profile: scorers and weights of a configuration that names no plugins.
        source: where the text comes from, for `Loaded`.

    Raises:
        ConfigError: and where, and why.
    """
    written = decode(text)
    older = written.get("apiVersion") == OLD_API_VERSION
    raw, warnings = dialects.translate(written)
    try:
        config = _typed(raw)
        _check_names(config)
        more: tuple[str, ...] = ()
        if kinds is not None:
            config, more = normalise(config, kinds, default_profile)
        _check_references(config)
    except ConfigError as error:
        raise explained(error, warnings) from error
    return Loaded(config, (*warnings, *more), source, older)


def explained(error: ConfigError, warnings: Sequence[str]) -> ConfigError:
    """Return the error with what was read as what: its place is in the translated file."""
    if not warnings:
        return error
    return ConfigError("\n  ".join([f"{error}", "after this was read:", *warnings]))


def _typed(raw: Mapping[str, Any]) -> Config:
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if raw.get(key, wanted) != wanted:
            raise ConfigError(f"{key} is {raw[key]!r}, not {wanted!r} - at `$.{key}`")
    try:
        return msgspec.convert(raw, Config)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(with_hint(str(error), Config)) from error


def _check_names(config: Config) -> None:
    seen: set[str] = set()
    for i, spec in enumerate(config.plugins):
        if spec.ref in seen:
            raise ConfigError(f"duplicate plugin name {spec.ref!r} - at `$.plugins[{i}]`")
        seen.add(spec.ref)
    profiles: set[str] = set()
    for i, profile in enumerate(config.scheduling_profiles):
        if profile.name in profiles:
            where = f"$.schedulingProfiles[{i}].name"
            raise ConfigError(f"duplicate profile name {profile.name!r} - at `{where}`")
        profiles.add(profile.name)


def _check_references(config: Config) -> None:
    known = {spec.ref for spec in config.plugins} | POLICIES
    for name, where in _references(config):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"no plugin is named {name!r}{hint} - at `{where}`")


def _references(config: Config) -> list[tuple[str, str]]:
    """Every reference to a plugin, with its place."""
    found = [
        (place.plugin_ref, f"$.schedulingProfiles[{i}].plugins[{j}].pluginRef")
        for i, profile in enumerate(config.scheduling_profiles)
        for j, place in enumerate(profile.plugins)
    ]
    layer = config.data_layer
    if layer is not None:
        for i, source in enumerate(layer.sources):
            where = f"$.dataLayer.sources[{i}]"
            found.append((source.plugin_ref, f"{where}.pluginRef"))
            found += [
                (each.plugin_ref, f"{where}.extractors[{j}].pluginRef")
                for j, each in enumerate(source.extractors)
            ]
        if layer.discovery is not None:
            found.append((layer.discovery.plugin_ref, "$.dataLayer.discovery.pluginRef"))
        if layer.peer_discovery is not None:
            found.append((layer.peer_discovery.plugin_ref, "$.dataLayer.peerDiscovery.pluginRef"))
        if (syncer := layer.cross_replica_syncer_plugin_ref) is not None:
            found.append((syncer, "$.dataLayer.crossReplicaSyncerPluginRef"))
    if config.request_handler is not None:
        found += [
            (each.plugin_ref, f"$.requestHandler.parsers[{i}].pluginRef")
            for i, each in enumerate(config.request_handler.parsers)
        ]
    return found + _flow_references(config.flow_control)


def _flow_references(flow: FlowControl | None) -> list[tuple[str, str]]:
    if flow is None:
        return []
    found = [(flow.usage_limit_policy_plugin_ref, "usageLimitPolicyPluginRef")]
    if flow.saturation_detector is not None:
        found.append((flow.saturation_detector.plugin_ref, "saturationDetector.pluginRef"))
    bands: list[tuple[str, Band | BandTemplate | None]] = [
        ("defaultPriorityBand", flow.default_priority_band),
        ("defaultNegativePriorityBand", flow.default_negative_priority_band),
        *((f"priorityBands[{i}]", band) for i, band in enumerate(flow.priority_bands)),
    ]
    for where, band in bands:
        if band is not None:
            found.append((band.fairness_policy_ref, f"{where}.fairnessPolicyRef"))
            found.append((band.ordering_policy_ref, f"{where}.orderingPolicyRef"))
    return [(name, f"$.flowControl.{where}") for name, where in found if name is not None]
