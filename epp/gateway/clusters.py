"""Envoy's clusters: the picker, and the model servers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterLbPolicy,
    ClusterOriginalDstLbConfig,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    KeepaliveSettings,
    SocketAddress,
    TransportSocket,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CommonTlsContext,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any as Packed

from epp.collect.parse.endpoints import parse_addresses
from epp.errors import ConfigError
from epp.gateway.options import GatewayOptions
from epp.headers import DESTINATION, DESTINATION_NAMESPACE, SERVED

PICKER = "picker"
ENGINES = "engines"
MIRROR = "mirror"

_PROTOCOLS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
CONNECT_SECONDS = 2
ENGINE_IDLE_SECONDS = 4  #: vLLM closes connections after 5 s of idleness
PING_SECONDS = 10
CHECK_SECONDS = 0.25  #: between looks at the picker's health, each by every Envoy
CHECK_TIMEOUT_SECONDS = 1
BUFFER_BYTES = 32 * 2**20
MIRRORED = 128  #: copies of requests on their way to a mirror; one that hangs gets no more
UNLIMITED = 1_000_000  #: connections and requests: the picker limits, not the gateway


def picker(options: GatewayOptions) -> Cluster:
    """The picker, over HTTP/2.

    To fail open Envoy must know beforehand that the picker is down: once the first piece of a
    body was written to a stream, even one that cannot open, the request fails (envoy#41276).
    """
    http2 = HttpProtocolOptionsExplicitHttpConfig(
        http2_protocol_options=Http2ProtocolOptions(
            connection_keepalive=KeepaliveSettings(
                interval=timedelta(seconds=PING_SECONDS), timeout=timedelta(seconds=PING_SECONDS)
            )
        )
    )
    cluster = Cluster(
        name=PICKER,
        type=_discovery(options.picker_host),
        connect_timeout=timedelta(seconds=CONNECT_SECONDS),
        load_assignment=_assignment(PICKER, [(options.picker_host, options.picker_port)]),
        typed_extension_protocol_options={
            _PROTOCOLS: Packed.pack(UpstreamOptions(explicit_http_config=http2))
        },
        transport_socket=_tls() if options.picker_tls else None,
        circuit_breakers=_breakers(UNLIMITED),
    )
    if options.fail_open:
        cluster.health_checks = [_health_check()]
        cluster.common_lb_config = ClusterCommonLbConfig(
            healthy_panic_threshold=Percent(value=0),
            update_merge_window=timedelta(0),  # else a change may reach the workers a second late
        )
    return cluster


def _health_check() -> HealthCheck:
    interval = timedelta(seconds=CHECK_SECONDS)
    return HealthCheck(
        timeout=timedelta(seconds=CHECK_TIMEOUT_SECONDS),
        interval=interval,
        no_traffic_interval=interval,
        unhealthy_threshold=1,
        healthy_threshold=1,
        grpc_health_check=HealthCheckGrpcHealthCheck(),
    )


def engines(options: GatewayOptions, name: str = ENGINES) -> Cluster:
    """The model servers, of all pools or of the one called ``name``, over HTTP/1.1.

    Raises:
        ConfigError: endpoints are needed and missing, or one is not ``host:port``.
    """
    cluster = Cluster(
        name=name,
        connect_timeout=timedelta(seconds=CONNECT_SECONDS),
        per_connection_buffer_limit_bytes=BUFFER_BYTES,
        typed_extension_protocol_options={
            _PROTOCOLS: Packed.pack(
                UpstreamOptions(
                    common_http_protocol_options=HttpProtocolOptions(
                        idle_timeout=timedelta(seconds=ENGINE_IDLE_SECONDS)
                    ),
                    explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
                        http_protocol_options=Http1ProtocolOptions(enable_trailers=True)
                    ),
                )
            )
        },
        circuit_breakers=_breakers(UNLIMITED),
    )
    if options.mode != "direct" and options.routing == "original-dst":
        cluster.type = ClusterDiscoveryType.ORIGINAL_DST
        cluster.lb_policy = ClusterLbPolicy.CLUSTER_PROVIDED
        cluster.original_dst_lb_config = ClusterOriginalDstLbConfig(
            use_http_header=True, http_header_name=DESTINATION
        )
        return cluster
    if not options.endpoints:
        raise ConfigError("--endpoints HOST:PORT,... is needed with direct and override-host")
    places = places_of(options.endpoints)
    cluster.type = _discovery(*(host for host, _ in places))
    cluster.load_assignment = _assignment(ENGINES, places)
    if options.mode == "direct":
        cluster.lb_policy = ClusterLbPolicy.ROUND_ROBIN
    else:
        # In lean mode the access log tells who served, and no head is shown to the picker.
        told = options.mode == "stock" and options.tell_served
        cluster.load_balancing_policy = _override_host(tell_served=told)
    return cluster


def mirror(options: GatewayOptions) -> Cluster:
    """The mirror of requests, over HTTP/1.1; it answers at once, or is given nothing more.

    Raises:
        ConfigError: its address is not ``host:port``.
    """
    places = places_of([options.mirror], "--mirror")
    return Cluster(
        name=MIRROR,
        type=_discovery(*(host for host, _ in places)),
        connect_timeout=timedelta(seconds=CONNECT_SECONDS),
        per_connection_buffer_limit_bytes=BUFFER_BYTES,
        load_assignment=_assignment(MIRROR, places),
        circuit_breakers=_breakers(MIRRORED),
    )


def places_of(endpoints: Sequence[str], flag: str = "--endpoints") -> list[tuple[str, int]]:
    """Split ``host:port`` each; IPv6 hosts are in brackets there, and without them here.

    Raises:
        ConfigError: one is not of that form, or is there twice.
    """
    try:
        return [(each.host, each.port) for each in parse_addresses(",".join(endpoints))]
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error


def _override_host(*, tell_served: bool) -> LoadBalancingPolicy:
    """The picker's choice; the least loaded by Envoy's own count if there is none.

    Args:
        tell_served: tell the picker with the answer's head who served, after retries too. Envoy
            before 1.38 refuses a bootstrap that asks for it.
    """
    fallback = _policy("envoy.load_balancing_policies.least_request", Packed.pack(LeastRequest()))
    chosen = OverrideHost(
        override_host_sources=[OverrideHostOverrideHostSource(header=DESTINATION)],
        fallback_policy=fallback,
    )
    if tell_served:
        chosen.selected_host_key = MetadataKey(
            key=DESTINATION_NAMESPACE, path=[MetadataKeyPathSegment(key=SERVED)]
        )
    return _policy("envoy.load_balancing_policies.override_host", Packed.pack(chosen))


def _policy(name: str, packed: Packed) -> LoadBalancingPolicy:
    extension = TypedExtensionConfig(name=name, typed_config=packed)
    return LoadBalancingPolicy(
        policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension)]
    )


def _discovery(*hosts: str) -> ClusterDiscoveryType:
    """STATIC for addresses, DNS for names."""
    if all(host.replace(".", "").isdecimal() or ":" in host for host in hosts):
        return ClusterDiscoveryType.STATIC
    return ClusterDiscoveryType.STRICT_DNS


def _assignment(name: str, places: list[tuple[str, int]]) -> ClusterLoadAssignment:
    return ClusterLoadAssignment(
        cluster_name=name,
        endpoints=[
            LocalityLbEndpoints(
                lb_endpoints=[
                    LbEndpoint(endpoint=Endpoint(address=address(host, port)))
                    for host, port in places
                ]
            )
        ],
    )


def address(host: str, port: int) -> Address:
    """An address of Envoy's."""
    return Address(socket_address=SocketAddress(address=host, port_value=port))


def _tls() -> TransportSocket:
    """TLS without verification: the picker's certificate is made at its start."""
    context = UpstreamTlsContext(common_tls_context=CommonTlsContext(alpn_protocols=["h2"]))
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=Packed.pack(context))


def _breakers(most: int) -> CircuitBreakers:
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=most, max_pending_requests=most, max_requests=most,
                max_retries=most,
            )
        ]
    )  # fmt: skip
