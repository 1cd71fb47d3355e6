"""The configuration file as types. A field that is not here is refused.

**Source:** llm-d-router's ``EndpointPickerConfig`` (``llm-d.ai/v1alpha1``): its field names and
defaults. Durations and quantities stay text here; `load` checks them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

API_VERSION = "llm-d.ai/v1alpha1"
OLD_API_VERSION = "inference.networking.x-k8s.io/v1alpha1"
KIND = "EndpointPickerConfig"

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Duration = Annotated[str, Meta(pattern=r"^(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+)$")]
Quantity = (
    Annotated[int, Meta(ge=0)]
    | Annotated[str, Meta(pattern=r"^\d+(\.\d*)?([eE][+-]?\d+)?(m|k|[KMGTPE]i?)?$")]
)
Weight = Annotated[float, Meta(ge=0)]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every section: immutable, camelCase in the file, no unknown fields."""


class PluginSpec(Strict, frozen=True, omit_defaults=True):
    """One plugin instance."""

    type: Name
    name: Name | None = None  #: defaults to ``type``
    parameters: dict[str, Any] | None = None  #: checked against the plugin's own ``Params``

    @property
    def ref(self) -> str:
        """The name that others refer to it by."""
        return self.name or self.type


class PluginRef(Strict, frozen=True, omit_defaults=True):
    """A reference to a plugin instance."""

    plugin_ref: Name


class ProfilePlugin(Strict, frozen=True, omit_defaults=True):
    """A plugin's place in a profile."""

    plugin_ref: Name
    weight: Weight | None = None  #: of a scorer; 1.0 if not given


class ProfileSpec(Strict, frozen=True):
    """One scheduling profile, in the order its plugins run."""

    name: Name
    plugins: tuple[ProfilePlugin, ...] = ()


class SourceSpec(Strict, frozen=True, omit_defaults=True):
    """A data source with what reads its answers."""

    plugin_ref: Name
    extractors: tuple[PluginRef, ...] = ()


class DataLayer(Strict, frozen=True, omit_defaults=True):
    """Where endpoints and their loads come from."""

    inject_defaults: bool | None = None
    sources: tuple[SourceSpec, ...] = ()
    discovery: PluginRef | None = None
    peer_discovery: PluginRef | None = None
    cross_replica_syncer_plugin_ref: Name | None = None
    cross_replica_sync_interval: Duration | None = None


class BandTemplate(Strict, frozen=True, omit_defaults=True):
    """Limits and policies of a priority band."""

    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    fairness_policy_ref: Name | None = None
    ordering_policy_ref: Name | None = None


class Band(Strict, frozen=True, omit_defaults=True):
    """The band of one priority."""

    priority: int
    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    fairness_policy_ref: Name | None = None
    ordering_policy_ref: Name | None = None


class FlowControl(Strict, frozen=True, omit_defaults=True):
    """Who waits while the pool is full."""

    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    default_request_ttl: Duration | None = msgspec.field(default=None, name="defaultRequestTTL")
    no_endpoint_request_ttl: Duration | None = msgspec.field(
        default=None, name="noEndpointRequestTTL"
    )
    priority_bands: tuple[Band, ...] = ()
    default_priority_band: BandTemplate | None = None
    default_negative_priority_band: BandTemplate | None = None
    usage_limit_policy_plugin_ref: Name | None = None
    saturation_detector: PluginRef | None = None
    enable_eviction: bool | None = None


class RequestHandler(Strict, frozen=True, omit_defaults=True):
    """How requests are read."""

    parsers: tuple[PluginRef, ...] = ()


class Config(Strict, frozen=True, omit_defaults=True):
    """The whole file."""

    api_version: str = API_VERSION
    kind: str = KIND
    feature_gates: tuple[str, ...] = ()
    plugins: tuple[PluginSpec, ...] = ()
    scheduling_profiles: tuple[ProfileSpec, ...] = ()
    data_layer: DataLayer | None = None
    flow_control: FlowControl | None = None
    request_handler: RequestHandler | None = None
