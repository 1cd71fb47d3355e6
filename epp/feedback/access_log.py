"""The gRPC access log service: Envoy's word on how each request ended.

Served on the ext_proc port, so that a gateway needs one cluster only. Envoy sends entries in
batches; one of type ``DownstreamEnd`` per request. They are matched by ``x-request-id``.

**Source:** envoy/service/accesslog/v3/als.proto, envoy/data/accesslog/v3/accesslog.proto.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from epp.extproc.received import decoded
from epp.feedback.unseen import Entry, Unseen
from epp.model import Outcome, Usage, join_host_port

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
MOST = float(2**53)  #: numbers from here on are nobody's count
METADATA = "epp"  #: dynamic metadata namespace that the lean gateway's filters write to

_MEASURED = ("prompt_tokens", "completion_tokens", "cached_tokens", "first_chunk_ms")

#: Begins the details of an answer whose status, such as 200, was sent before its body broke off.
_BROKEN_OFF = "upstream_reset_after_response_started"
_ENDS = frozenset({accesslog_pb2.NotSet, accesslog_pb2.DownstreamEnd})


class AccessLogs:
    """Hands each entry of each connected gateway to `Unseen`."""

    def __init__(self, unseen: Unseen) -> None:
        self._unseen = unseen

    def handler(self) -> grpc.GenericRpcHandler:
        """The gRPC handler of `SERVICE`."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "StreamAccessLogs": grpc.stream_unary_rpc_method_handler(
                    self._stream,
                    response_serializer=als_pb2.StreamAccessLogsResponse.SerializeToString,
                )
            },
        )

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> Any:
        self._unseen.log_opened()
        try:
            async for data in messages:
                message = await decoded(als_pb2.StreamAccessLogsMessage, data, context)
                for logged in message.http_logs.log_entry:
                    if logged.common_properties.access_log_type in _ENDS:
                        self._unseen.entry(read(logged))
        finally:
            self._unseen.log_closed()
        return als_pb2.StreamAccessLogsResponse()


def read(logged: Any) -> Entry:
    """Translate one ``HTTPAccessLogEntry``."""
    common = logged.common_properties
    response = logged.response
    status = response.response_code.value or None
    address = common.upstream_remote_address.socket_address
    numbers = _numbers(common.metadata.filter_metadata)
    first, arrived = numbers.get("first_chunk_ms"), _seconds(common, "time_to_last_rx_byte") or 0.0
    whole = _seconds(common, "duration")
    return Entry(
        request_id=logged.request.request_id,
        outcome=_outcome(status, response.response_code_details, common.response_flags),
        status=status,
        served=join_host_port(address.address, address.port_value) if address.address else "",
        response_bytes=response.response_body_bytes,
        usage=_usage(numbers),
        first_byte_seconds=None if first is None else max(first / 1000 - arrived, 0.0),
        seconds=None if whole is None else max(whole - arrived, 0.0),
        streamed="text/event-stream" in response.response_headers.get("content-type", ""),
        attempts=common.upstream_request_attempt_count or None,
        flags=",".join(field.name for field, _ in common.response_flags.ListFields()),
    )


def _outcome(status: int | None, details: str, flags: Any) -> Outcome:
    if flags.downstream_connection_termination or flags.downstream_remote_reset or status is None:
        return Outcome.ABANDONED
    cut = (
        details.startswith(_BROKEN_OFF)
        or flags.upstream_connection_termination
        or flags.upstream_remote_reset
        or flags.upstream_protocol_error
        or flags.stream_idle_timeout
        or flags.upstream_max_stream_duration_reached
    )
    return Outcome.FAILED if cut or status >= 400 else Outcome.COMPLETED


def _numbers(metadata: Any) -> Mapping[str, float]:
    """What the gateway's filters measured: numbers that are not negative, by name."""
    if METADATA not in metadata:
        return {}
    fields = metadata[METADATA].fields
    found: dict[str, float] = {}
    for name in _MEASURED:
        if name in fields:
            value = fields[name]
            if value.HasField("number_value") and 0 <= value.number_value < MOST:
                found[name] = value.number_value
    return found


def _usage(numbers: Mapping[str, float]) -> Usage | None:
    def count(key: str) -> int | None:
        return int(numbers[key]) if key in numbers else None

    usage = Usage(count("prompt_tokens"), count("completion_tokens"), count("cached_tokens"))
    return None if usage == Usage() else usage


def _seconds(common: Any, name: str) -> float | None:
    """Return a duration, counted from the request's first byte; None if it is not told."""
    if not common.HasField(name):
        return None
    told = getattr(common, name)
    return float(told.seconds + told.nanos * 1e-9)
