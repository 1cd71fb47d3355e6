"""Whether the plugins that ``dataLayer`` names can do what they are named for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from epp.collect.sources import DISCOVERY_TYPES, EXTRACTOR_TYPES, SOURCE_TYPES
from epp.config.schema import DataLayer
from epp.errors import ConfigError

READERS = frozenset({"producer", "scorer", "detector"})
"""Kinds that read a source themselves in the Go router."""


def check_data_layer(
    layer: DataLayer, types: Mapping[str, str], kinds: Callable[[str], frozenset[str]]
) -> None:
    """Refuse plugins that are not what they are named for.

    Args:
        layer: the section.
        types: of the plugins that are not ignored, by name; others are not looked at.
        kinds: what a plugin of a type does.

    Raises:
        ConfigError: and where.
    """
    for name, role, where in _roles(layer):
        type_ = types.get(name)
        fits = {
            "data source": type_ in SOURCE_TYPES,
            "extractor": type_ in EXTRACTOR_TYPES or bool(kinds(type_ or "") & READERS),
            "discovery": type_ in DISCOVERY_TYPES,
        }
        if type_ is not None and not fits[role]:
            raise ConfigError(f"plugin {name!r} is no {role} - at `{where}.pluginRef`")


def _roles(layer: DataLayer) -> Iterator[tuple[str, str, str]]:
    """Every reference: the name, what it is to be, and the place."""
    for i, source in enumerate(layer.sources):
        where = f"$.dataLayer.sources[{i}]"
        yield source.plugin_ref, "data source", where
        for j, extractor in enumerate(source.extractors):
            yield extractor.plugin_ref, "extractor", f"{where}.extractors[{j}]"
    if layer.discovery is not None:
        yield layer.discovery.plugin_ref, "discovery", "$.dataLayer.discovery"
