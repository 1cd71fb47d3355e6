"""Where the endpoints come from and how they are scraped: flags and plugins as one choice."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from epp.collect.discovery import EndpointsFile
from epp.collect.fetch import Source
from epp.collect.kube.cluster import Cluster
from epp.collect.kube.leader import Leadership, lease_name, owner_of
from epp.collect.kube.pools import Homes, Pools
from epp.collect.kube.wanted import Wanted
from epp.collect.pace import Pace
from epp.collect.parse.engines import Engines
from epp.collect.parse.inference_pools import PoolSpec, parse_ports
from epp.collect.scrape import ScrapeSettings
from epp.collect.sources import (
    LEAST_INTERVAL,
    SOURCES,
    CoreMetricsExtractor,
    EngineConfig,
    FileDiscovery,
    MetricsDataSource,
)
from epp.collect.static import StaticEndpoints
from epp.config.load import Loaded
from epp.errors import ConfigError
from epp.kube.access import Access, find_access
from epp.kube.lease import Candidate, own_identity
from epp.pipeline import Pipeline
from epp.pool import Pool
from epp.rules import RuleBook
from epp.serve.options import ServeOptions

IDLE_INTERVAL = 0.5  #: seconds between two scrapes of an idle endpoint

log = logging.getLogger(__name__)


class NoOrigin:
    """Stands in for a cluster that there is not: the picker lives, but is not ready."""

    synced = False

    def __init__(self, options: ServeOptions, why: str) -> None:
        if options.all_pools:
            self._wanted = "--all-pools"
        elif options.pool_name:
            self._wanted = f"--pool-name {options.pool_name}"
        else:
            self._wanted = f"--endpoint-selector {options.endpoint_selector}"
        self._why = why

    def load(self, pool: Pool | None = None) -> None:
        """Say what is missing."""
        del pool
        log.error(
            "not ready, since there are no endpoints: %s needs a Kubernetes cluster (%s); or say "
            "where the endpoints are with --endpoints HOST:PORT,... or --endpoints-file FILE, or "
            "with a file-discovery plugin",
            self._wanted,
            self._why,
        )

    async def run(self, pool: Pool | None = None) -> None:
        """Return: nothing will come."""


Origin = EndpointsFile | StaticEndpoints | Cluster | NoOrigin


class Told(msgspec.Struct, frozen=True):
    """Whom a cluster tells more than its endpoints."""

    report: Callable[[str], None]  #: what is wrong with single objects, or with a file
    book: RuleBook | None  #: of objectives and rewrites; None: they are not asked for
    leader: Leadership | None = None  #: only the leader writes into the cluster


def origin_of(options: ServeOptions, plugins: Iterable[Any], told: Told) -> Origin:
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
        return EndpointsFile(path, watch=watch, report=told.report)
    if options.endpoints:
        return StaticEndpoints(options.endpoints)
    if options.pool_name or options.endpoint_selector:
        return _cluster(options, told)
    raise ConfigError(
        "say where the endpoints are: --pool-name POOL in a cluster, --endpoints HOST:PORT,... or "
        "--endpoints-file FILE"
    )


def pools_of(
    options: ServeOptions,
    homes: Homes,
    report: Callable[[str], None],
    leader: Leadership | None,
) -> Pools | NoOrigin:
    """Return what follows the pools that ``options`` name, or all.

    Raises:
        ConfigError: the options exclude each other, or ``--kubeconfig`` cannot be used.
    """
    for flag in ("endpoints", "endpoints_file", "endpoint_selector"):
        if getattr(options, flag):
            said = "--all-pools" if options.all_pools else "--pool-name with several pools"
            raise ConfigError(f"{said} and --{flag.replace('_', '-')} exclude each other")
    if options.all_pools and options.pool_name:
        raise ConfigError("--all-pools and --pool-name exclude each other")
    access = access_of(options)
    if isinstance(access, str):
        missing = NoOrigin(options, access)
        missing.load()
        return missing
    wanted = Wanted(
        options.pool_namespace or access.namespace,
        group=options.pool_group,
        family=options.pod_ip_family,
    )
    return Pools(
        access,
        wanted,
        names=frozenset(options.pool_names),
        homes=homes,
        report=report,
        leads=_leads(leader),
    )


def namespace_of(options: ServeOptions) -> str:
    """Return the namespace of the pools; "" if no cluster tells it."""
    if options.pool_namespace:
        return options.pool_namespace
    access = access_of(options)
    return "" if isinstance(access, str) else access.namespace


def _leads(leader: Leadership | None) -> Callable[[], bool]:
    return (lambda: True) if leader is None else (lambda: leader.leads)


def pool_label_of(options: ServeOptions) -> str:
    """The pool's name in metrics; without a pool that of the Deployment, as Go's picker has it."""
    return owner_of(options.pool_name, os.environ.get("POD_NAME", ""))


def leadership_of(options: ServeOptions) -> Leadership | None:
    """Return this picker's part in an election, if it is to have one.

    Raises:
        ConfigError: the cluster that ``--kubeconfig`` names cannot be used.
    """
    if not options.ha_enable_leader_election:
        return None
    access = access_of(options)
    if isinstance(access, str):
        log.warning("no leader is elected, every replica that is ready picks: %s", access)
        return None
    namespace = options.pool_namespace or access.namespace
    pool = "" if options.many_pools else options.pool_name
    name = lease_name(namespace, pool, os.environ.get("POD_NAME", ""))
    return Leadership(access, Candidate(namespace, name, own_identity()))


def collecting_of(loaded: Loaded, pipeline: Pipeline) -> Any:
    """What the configuration says to the collectors, which a reload does not reach."""
    specs = [
        pipeline.specs[name] for name, made in pipeline.plugins.items() if isinstance(made, SOURCES)
    ]
    return loaded.config.data_layer, specs


def _cluster(options: ServeOptions, told: Told) -> Cluster | NoOrigin:
    fixed = _fixed(options)
    access = access_of(options)
    if isinstance(access, str):
        return NoOrigin(options, access)
    wanted = Wanted(
        options.pool_namespace or access.namespace,
        options.pool_name,
        options.pool_group,
        options.endpoint_selector,
        fixed,
        options.pod_ip_family,
    )
    leads = _leads(told.leader)
    return Cluster(access, wanted, book=told.book, report=told.report, leads=leads)


def _fixed(options: ServeOptions) -> PoolSpec | None:
    """The ports of pods that are chosen without a pool."""
    if not options.endpoint_selector:
        return None
    if options.pool_name:
        raise ConfigError("--pool-name and --endpoint-selector exclude each other")
    try:
        return PoolSpec(parse_ports(options.endpoint_target_ports))
    except ValueError as error:
        raise ConfigError(f"--endpoint-target-ports: {error}") from error


def access_of(options: ServeOptions) -> Access | str:
    """How to reach the cluster, or why there is none.

    Raises:
        ConfigError: ``--kubeconfig`` cannot be used.
    """
    try:
        return find_access(options.kubeconfig)
    except ConfigError as error:
        if options.kubeconfig:
            raise
        return str(error)


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
