"""Where the endpoints come from and how they are scraped: flags and plugins as one choice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from epp.collect.discovery import EndpointsFile
from epp.collect.fetch import Source
from epp.collect.pace import Pace
from epp.collect.parse.engines import Engines
from epp.collect.scrape import ScrapeSettings
from epp.collect.sources import (
    CoreMetricsExtractor,
    EngineConfig,
    FileDiscovery,
    MetricsDataSource,
)
from epp.collect.static import StaticEndpoints
from epp.errors import ConfigError
from epp.options import ServeOptions
from epp.pool import Pool

LEAST_INTERVAL = 0.01  #: seconds between two scrapes of a loaded endpoint
IDLE_INTERVAL = 0.5  #: of an idle one

log = logging.getLogger(__name__)


class NoOrigin:
    """Stands in for a cluster's pool: the picker lives, but is not ready."""

    def __init__(self, options: ServeOptions) -> None:
        self._wanted = (
            f"--pool-name {options.pool_name} in namespace {options.pool_namespace}"
            if options.pool_name
            else f"--endpoint-selector {options.endpoint_selector}"
        )

    def load(self, pool: Pool) -> None:
        """Say what is missing."""
        log.error(
            "not ready, since there are no endpoints: %s needs a Kubernetes cluster to be watched, "
            "which this version does not do; say where the endpoints are with --endpoints "
            "HOST:PORT,... or --endpoints-file FILE, or with a file-discovery plugin",
            self._wanted,
        )

    async def run(self, pool: Pool) -> None:
        """Return: nothing will come."""


Origin = EndpointsFile | StaticEndpoints | NoOrigin


def origin_of(
    options: ServeOptions, plugins: Iterable[Any], report: Callable[[str], None]
) -> Origin:
    """Choose where the endpoints come from; fixed ones win over what a cluster has.

    Raises:
        ConfigError: nothing says where, or two things do.
    """
    files = [each for each in plugins if isinstance(each, FileDiscovery)]
    path = options.endpoints_file or (files[0].path if files else "")
    if options.endpoints and path:
        raise ConfigError("--endpoints and an endpoints file exclude each other")
    if options.endpoint_selector and (options.endpoints or path):
        log.warning("--endpoint-selector is ignored: the endpoints that are told win")
    if path:
        watch = bool(options.endpoints_file) or files[0].watch
        return EndpointsFile(path, watch=watch, report=report)
    if options.endpoints:
        return StaticEndpoints(options.endpoints)
    if options.pool_name or options.endpoint_selector:
        return NoOrigin(options)
    raise ConfigError(
        "say where the endpoints are: --endpoints HOST:PORT,... or --endpoints-file FILE"
    )


def scraping_of(options: ServeOptions, plugins: Iterable[Any]) -> tuple[ScrapeSettings, Engines]:
    """Return how pages are scraped and read; flags win over plugins.

    Raises:
        ConfigError: a flag names a series in a way that cannot be read.
    """
    fast = options.refresh_metrics_interval
    pace = Pace(
        fast=max(fast, LEAST_INTERVAL),
        idle=max(IDLE_INTERVAL, fast),
        stale_after=options.metrics_staleness_threshold,
    )
    source, extractor = Source(), CoreMetricsExtractor.Params()
    for each in plugins:
        if isinstance(each, MetricsDataSource):
            source, pace = each.source, each.pace(pace)
        if isinstance(each, CoreMetricsExtractor):
            extractor = each.params
    return ScrapeSettings(_source(options, source), pace), _engines(options, extractor)


def _source(options: ServeOptions, source: Source) -> Source:
    changes = {
        "scheme": options.model_server_metrics_scheme,
        "path": options.model_server_metrics_path,
        "port": options.model_server_metrics_port,
        "skip_verify": options.model_server_metrics_https_insecure_skip_verify,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return msgspec.structs.replace(source, **given)


def _engines(options: ServeOptions, params: CoreMetricsExtractor.Params) -> Engines:
    flags = EngineConfig(
        name=params.default_engine,
        queued_requests_spec=options.total_queued_requests_metric,
        running_requests_spec=options.total_running_requests_metric,
        kv_usage_spec=options.kv_cache_usage_percentage_metric,
        lora_spec=options.lora_info_metric,
        cache_info_spec=options.cache_info_metric,
    )
    if flags != EngineConfig(name=params.default_engine):
        configs = (*params.engine_configs, flags)
        params = msgspec.structs.replace(params, engine_configs=configs)
    try:
        return CoreMetricsExtractor(params).engines
    except ValueError as error:
        raise ConfigError(f"a flag that names a metric: {error}") from error
