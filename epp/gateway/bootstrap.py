"""The whole Envoy bootstrap as typed messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import Http1ProtocolOptions, TypedExtensionConfig
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import (
    RetryPolicy,
    RetryPolicyRetryBackOff,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteActionRequestMirrorPolicy,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerUpgradeConfig,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.google.protobuf import Any as Packed

from epp.gateway.clusters import BUFFER_BYTES, ENGINES, MIRROR, address, engines, mirror, picker
from epp.gateway.filters import access_logs, filters
from epp.gateway.options import GatewayOptions
from epp.headers import CONTROL

STREAM_IDLE_SECONDS = 3600
HOST_ATTEMPTS = 5  #: to find an endpoint that was not tried yet
RETRY_SECONDS = 0.004  #: at most, before the first retry: another endpoint is not to be spared
RETRY_MOST_SECONDS = 0.25  #: before a later one, as Envoy's own default
RETRY_ON = "connect-failure,refused-stream,reset-before-request"


def bootstrap(options: GatewayOptions) -> dict[str, Any]:
    """Return the bootstrap as Envoy's JSON has it."""
    clusters = [engines(options, name) for name in options.pools or (ENGINES,)]
    if options.mode != "direct":
        clusters.append(picker(options))
    if options.mirror:
        clusters.append(mirror(options))
    whole = Bootstrap(
        admin=Admin(address=address(options.admin_host, options.admin_port)),
        static_resources=BootstrapStaticResources(
            listeners=[_listener(options)], clusters=clusters
        ),
    )
    return dict(whole.to_dict())


def _listener(options: GatewayOptions) -> Listener:
    return Listener(
        name="http",
        address=address(options.listen_host, options.listen_port),
        per_connection_buffer_limit_bytes=BUFFER_BYTES,
        filter_chains=[
            FilterChain(
                filters=[
                    Filter(
                        name="envoy.filters.network.http_connection_manager",
                        typed_config=Packed.pack(_manager(options)),
                    )
                ]
            )
        ],
    )


def _manager(options: GatewayOptions) -> HttpConnectionManager:
    return HttpConnectionManager(
        stat_prefix="epp",
        generate_request_id=True,
        # The picker and the access log must speak of one id, and clients may choose it.
        preserve_external_request_id=True,
        stream_idle_timeout=timedelta(seconds=STREAM_IDLE_SECONDS),
        http_protocol_options=Http1ProtocolOptions(enable_trailers=True),
        upgrade_configs=[HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        early_header_mutation_extensions=[_remove_controls()],
        route_config=RouteConfiguration(
            name="all",
            virtual_hosts=[VirtualHost(name="all", domains=["*"], routes=_routes(options))],
        ),
        http_filters=filters(options),
        access_log=access_logs(options),
    )


def _remove_controls() -> TypedExtensionConfig:
    """Remove what only the picker may set, before anything else sees it, picker or no picker."""
    removals = EarlyHeaderMutation(
        mutations=[HeaderMutation(remove=name) for name in sorted(CONTROL)]
    )
    return TypedExtensionConfig(
        name="envoy.http.early_header_mutation.header_mutation", typed_config=Packed.pack(removals)
    )


def _routes(options: GatewayOptions) -> list[Route]:
    if not options.pools:
        return [_route(options)]
    return [
        Route(
            name=pool,
            match=RouteMatch(prefix=f"/{pool}/"),
            route=RouteAction(
                cluster=pool,
                timeout=timedelta(0),
                prefix_rewrite="/",
                request_mirror_policies=_copies(options),
            ),
        )
        for pool in options.pools
    ]


def _route(options: GatewayOptions) -> Route:
    action = RouteAction(
        cluster=ENGINES, timeout=timedelta(0), request_mirror_policies=_copies(options)
    )
    if options.mode != "direct" and options.routing == "override-host":
        action.retry_policy = _retries(options)
    return Route(match=RouteMatch(prefix="/"), route=action)


def _copies(options: GatewayOptions) -> list[RouteActionRequestMirrorPolicy]:
    return [RouteActionRequestMirrorPolicy(cluster=MIRROR)] if options.mirror else []


def _retries(options: GatewayOptions) -> RetryPolicy:
    """Retry on another endpoint; least request alone would often choose the idle dead one again."""
    elsewhere = RetryPolicyRetryHostPredicate(
        name="envoy.retry_host_predicates.previous_hosts",
        typed_config=Packed.pack(PreviousHostsPredicate()),
    )
    return RetryPolicy(
        retry_on=RETRY_ON,
        num_retries=options.num_retries,
        retry_back_off=RetryPolicyRetryBackOff(
            base_interval=timedelta(seconds=RETRY_SECONDS),
            max_interval=timedelta(seconds=RETRY_MOST_SECONDS),
        ),
        retry_host_predicate=[elsewhere],
        host_selection_retry_max_attempts=HOST_ATTEMPTS,
    )
