"""Envoy's HTTP filters and access log, as the mode needs them."""

from __future__ import annotations

from datetime import timedelta

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    ResponseFlagFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any as Packed

from epp.extproc.hints import CLUSTER
from epp.gateway.clusters import PICKER
from epp.gateway.options import GatewayOptions
from epp.gateway.usage import ttft_filter, usage_filters
from epp.headers import DESTINATION_NAMESPACE, OWN_NAMESPACE, REQUEST_ID, SUBSET_NAMESPACE

_SEND, _SKIP = ProcessingModeHeaderSendMode.SEND, ProcessingModeHeaderSendMode.SKIP
_DUPLEX = ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED
_HIDDEN = ProcessingModeBodySendMode.NONE
GRPC_SECONDS = 10  #: until a stream to the picker must be open


def filters(options: GatewayOptions) -> list[HttpFilter]:
    """Return the HTTP filters, in order. The picker comes after all that reads the answer.

    Answers come by in the reverse order, and ``json_to_metadata`` holds them back until they are
    whole: the clock of the first chunk stands before it.
    """
    chain: list[HttpFilter] = []
    if options.mode == "lean":
        chain += usage_filters() if options.lean_usage else []
        chain += [ttft_filter()] if options.lean_ttft else []
    if options.mode != "direct":
        chain.append(
            HttpFilter(
                name="envoy.filters.http.ext_proc", typed_config=Packed.pack(_picker(options))
            )
        )
    chain.append(HttpFilter(name="envoy.filters.http.router", typed_config=Packed.pack(Router())))
    return chain


def access_logs(options: GatewayOptions) -> list[AccessLog]:
    """Return how Envoy tells the picker about answers that it does not see, or not the end of."""
    if options.mode == "direct":
        return []
    config = HttpGrpcAccessLogConfig(
        common_config=CommonGrpcAccessLogConfig(
            log_name="epp",
            grpc_service=_grpc(),
            transport_api_version=ApiVersion.V3,
            buffer_flush_interval=timedelta(seconds=options.log_flush_interval),
        ),
        additional_request_headers_to_log=[REQUEST_ID],
        additional_response_headers_to_log=["content-type"],
    )
    log = AccessLog(name="envoy.access_loggers.http_grpc", typed_config=Packed.pack(config))
    if options.mode == "stock":  # of an answer that broke off, a stream does not tell at whose end
        log.filter = AccessLogFilter(response_flag_filter=ResponseFlagFilter())
    return [log]


def _picker(options: GatewayOptions) -> ExternalProcessor:
    namespaces = [SUBSET_NAMESPACE, DESTINATION_NAMESPACE]
    received = [DESTINATION_NAMESPACE, OWN_NAMESPACE]
    return ExternalProcessor(
        grpc_service=_grpc(),
        failure_mode_allow=options.fail_open,
        processing_mode=_stock() if options.mode == "stock" else _lean(),
        message_timeout=timedelta(seconds=options.message_timeout),
        request_attributes=[CLUSTER] if options.pools else [],
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(untyped=namespaces),
            receiving_namespaces=MetadataOptionsMetadataNamespaces(untyped=received),
        ),
    )


def _stock() -> ProcessingMode:
    return ProcessingMode(
        request_header_mode=_SEND,
        request_body_mode=_DUPLEX,
        request_trailer_mode=_SEND,
        response_header_mode=_SEND,
        response_body_mode=_DUPLEX,
        response_trailer_mode=_SEND,
    )


def _lean() -> ProcessingMode:
    return ProcessingMode(
        request_header_mode=_SEND,
        request_body_mode=_DUPLEX,
        request_trailer_mode=_SEND,
        response_header_mode=_SKIP,
        response_body_mode=_HIDDEN,
        response_trailer_mode=_SKIP,
    )


def _grpc() -> GrpcService:
    return GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=PICKER),
        timeout=timedelta(seconds=GRPC_SECONDS),
    )


__all__ = ["TypedExtensionConfig", "access_logs", "filters"]
