"""Data sources as the configuration names them: parameters for the collectors, nothing more.

The Go router runs each source and extractor as a plugin. Here one scraper reads all pages and one
collector lists the endpoints; their settings are these plugins' parameters. Sources that would
bring something nobody reads here are accepted (`Ignored`) or refused with a sentence.

**Source:** parameters of llm-d's ``metrics-data-source``, ``core-metrics-extractor``,
``models-data-source``, ``dcgm-data-source``, notification sources and ``file-discovery``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from epp import plugin
from epp.collect.fetch import Source
from epp.collect.pace import Pace
from epp.collect.parse.engines import BUILT_IN, DEFAULT_ENGINE, Engine, Engines
from epp.collect.parse.prometheus import Selector, parse_selector
from epp.config.units import parse_duration

LEAST_INTERVAL = 0.05  #: seconds; what `--refresh-metrics-interval` is raised to, as in Go


class MetricsDataSource:
    """Says where and how often metrics pages are scraped.

    A certificate of an authority is there to be checked.
    Differs from llm-d: with ``caCertPath``, certificates are verified unless
    ``insecureSkipVerify: true`` is written too.
    """

    type: ClassVar[str] = "metrics-data-source"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        scheme: Literal["http", "https"] = "http"
        path: Annotated[str, Meta(pattern="^/")] = "/metrics"
        port: Annotated[int, Meta(ge=0, le=65_535)] = 0  #: 0: the endpoint's own
        insecure_skip_verify: bool | None = None  #: None: true, unless there is a caCertPath
        ca_cert_path: str = ""  #: authorities to trust, a PEM file
        client_cert_path: str = ""  #: ours, for mutual TLS
        client_key_path: str = ""  #: its key
        interval: str | float | None = None  #: Go duration or seconds; of a loaded endpoint
        idle_interval: str | float | None = None  #: of an idle endpoint
        sleeping_interval: str | float | None = None  #: of a sleeping one

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        """Take where the page is.

        Raises:
            ValueError: one of the client's certificate and key is missing, or a duration is bad.
        """
        del tools
        if bool(params.client_cert_path) != bool(params.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath are needed together")
        skip = params.insecure_skip_verify
        self.source = Source(
            scheme=params.scheme,
            path=params.path,
            port=params.port or None,
            skip_verify=not params.ca_cert_path if skip is None else skip,
            ca_cert_path=params.ca_cert_path,
            client_cert_path=params.client_cert_path,
            client_key_path=params.client_key_path,
        )
        self.interval = _seconds("interval", params.interval)
        self.idle_interval = _seconds("idleInterval", params.idle_interval)
        self.sleeping_interval = _seconds("sleepingInterval", params.sleeping_interval)

    def pace(self, pace: Pace) -> Pace:
        """Return ``pace`` with this source's intervals."""
        fast = self.interval or pace.fast
        return msgspec.structs.replace(
            pace,
            fast=fast,
            idle=self.idle_interval or max(pace.idle, fast),
            asleep=self.sleeping_interval or max(pace.asleep, fast),
        )


class CustomMetric(plugin.Params, frozen=True):
    """One series that becomes an attribute of the endpoint's load."""

    attribute_key: Annotated[str, Meta(min_length=1)]  #: what attribute plugins call it
    metric_spec: Annotated[str, Meta(min_length=1)]  #: ``name{label=value}``


class EngineConfig(plugin.Params, frozen=True):
    """Where one kind of engine tells what; what is left out is as built in, if it is."""

    name: Annotated[str, Meta(min_length=1)]
    queued_requests_spec: str = ""  #: requests waiting
    running_requests_spec: str = ""  #: requests in the batch
    kv_usage_spec: str = ""  #: fraction of the KV cache in use
    lora_spec: str = ""  #: adapters, in its labels
    cache_info_spec: str = ""  #: block size and count, in its labels
    cache_block_size_label_name: str = ""
    cache_num_blocks_label_name: str = ""
    cache_block_size_spec: str = ""
    cache_num_blocks_spec: str = ""
    custom_metrics: tuple[CustomMetric, ...] = ()


class CoreMetricsExtractor:
    """Says which series of an engine's metrics page tell its load."""

    type: ClassVar[str] = "core-metrics-extractor"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        default_engine: str = DEFAULT_ENGINE  #: for endpoints that say nothing else
        engine_configs: tuple[EngineConfig, ...] = ()

    def __init__(self, params: Params, tools: plugin.Tools | None = None) -> None:
        """Build the engines.

        Raises:
            ValueError: a specification is malformed, or the default engine is unknown.
        """
        del tools
        self.params = params
        configured = [
            _engine(config, f"engineConfigs[{index}]")
            for index, config in enumerate(params.engine_configs)
        ]
        self.engines = Engines(configured, default=params.default_engine)


class FileDiscovery:
    """Reads the endpoints from a YAML file."""

    type: ClassVar[str] = "file-discovery"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        path: Annotated[str, Meta(min_length=1)]
        watch_file: bool = False  #: read it again when it changes

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del tools
        self.path = params.path
        self.watch = params.watch_file


class Ignored:
    """Accepted, since what it would do is done anyway or not needed here."""

    stability: ClassVar[plugin.Stability] = "beta"
    note: ClassVar[str] = ""  #: why nothing is lost

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Any, tools: plugin.Tools) -> None:
        del params, tools


class ModelsDataSource(Ignored):
    """Accepted and does nothing: who needs the models that an endpoint lists asks for them."""

    type: ClassVar[str] = "models-data-source"
    note: ClassVar[str] = "precise-prefix-cache-producer asks for the models an endpoint lists"

    class Params(plugin.Params, frozen=True):
        scheme: Literal["http", "https"] = "http"
        path: str = "/v1/models"
        insecure_skip_verify: bool = True


class ModelsDataExtractor(Ignored):
    """Accepted and does nothing: who needs the models that an endpoint lists asks for them."""

    type: ClassVar[str] = "models-data-extractor"
    note: ClassVar[str] = ModelsDataSource.note


class EndpointNotificationSource(Ignored):
    """Accepted and does nothing: every plugin hears of endpoints that are gone."""

    type: ClassVar[str] = "endpoint-notification-source"
    note: ClassVar[str] = "every plugin hears of endpoints that are gone"


class K8sNotificationSource(Ignored):
    """Accepted and does nothing: every plugin hears of endpoints that are gone."""

    type: ClassVar[str] = "k8s-notification-source"
    note: ClassVar[str] = EndpointNotificationSource.note

    class Params(plugin.Params, frozen=True):
        group: str = ""
        version: str = ""
        kind: str = ""


class Dcgm:
    """Refused: GPU metrics of NVIDIA's exporter are not scraped yet."""

    type: ClassVar[str] = "dcgm-data-source"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(msgspec.Struct, frozen=True):
        """Anything: the constructor says no."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        raise ValueError(f"{self.type} is not supported yet: GPU metrics are not scraped")


class DcgmExtractor(Dcgm):
    """Refused: GPU metrics of NVIDIA's exporter are not scraped yet."""

    type: ClassVar[str] = "dcgm-extractor"


SOURCE_TYPES = frozenset(
    {
        MetricsDataSource.type,
        ModelsDataSource.type,
        EndpointNotificationSource.type,
        K8sNotificationSource.type,
        Dcgm.type,
    }
)
"""What ``dataLayer.sources`` may name."""
EXTRACTOR_TYPES = frozenset(
    {CoreMetricsExtractor.type, ModelsDataExtractor.type, DcgmExtractor.type}
)
"""What reads a source and does nothing else."""
DISCOVERY_TYPES = frozenset({FileDiscovery.type})  #: what ``dataLayer.discovery`` may name

SOURCES: tuple[type[Any], ...] = (
    MetricsDataSource,
    CoreMetricsExtractor,
    FileDiscovery,
    ModelsDataSource,
    ModelsDataExtractor,
    EndpointNotificationSource,
    K8sNotificationSource,
    Dcgm,
    DcgmExtractor,
)


def _seconds(name: str, value: str | float | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if seconds <= 0:
        raise ValueError(f"{name}: expected more than 0 s, got {value!r}")
    return max(seconds, LEAST_INTERVAL)


def _engine(config: EngineConfig, where: str) -> Engine:
    base = next((e for e in BUILT_IN if e.name == config.name), Engine(config.name))

    def read(field: str, text: str) -> Selector:
        try:
            return parse_selector(text)
        except ValueError as error:
            raise ValueError(f"{where}.{field}: {error}") from error

    def or_built_in(field: str, text: str, built_in: Selector | None) -> Selector | None:
        return read(field, text) if text else built_in

    usage = config.kv_usage_spec
    return Engine(
        config.name,
        queued=or_built_in("queuedRequestsSpec", config.queued_requests_spec, base.queued),
        running=or_built_in("runningRequestsSpec", config.running_requests_spec, base.running),
        kv_usage=(read("kvUsageSpec", usage),) if usage else base.kv_usage,
        lora=or_built_in("loraSpec", config.lora_spec, base.lora),
        cache_info=or_built_in("cacheInfoSpec", config.cache_info_spec, base.cache_info),
        block_size_label=config.cache_block_size_label_name or base.block_size_label,
        num_blocks_label=config.cache_num_blocks_label_name or base.num_blocks_label,
        block_size=or_built_in("cacheBlockSizeSpec", config.cache_block_size_spec, base.block_size),
        num_blocks=or_built_in("cacheNumBlocksSpec", config.cache_num_blocks_spec, base.num_blocks),
        custom=tuple(
            (metric.attribute_key, read(f"customMetrics[{index}].metricSpec", metric.metric_spec))
            for index, metric in enumerate(config.custom_metrics)
        ),
    )
