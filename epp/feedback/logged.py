"""Envoy's access-log message as far as it is read here, as a protobuf type of our own.

Envoy writes a client's ``x-request-id`` twice: as the request's id, where each byte that is no UTF-8
has become `STRANGE`, and as the stream's id, as it came. In Envoy's own type that one is a string,
and one that is not UTF-8 spoils the whole message, with the entries of everybody else. Here
whatever else others may write is bytes, which is written alike, and what is not read is not looked at.
It costs what Envoy's own type costs.

**Source:** envoy/service/accesslog/v3/als.proto, envoy/data/accesslog/v3/accesslog.proto,
envoy/config/core/v3/base.proto, google/protobuf/struct.proto.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from envoy.config.core.v3 import address_pb2
from envoy.data.accesslog.v3 import accesslog_pb2
from google.protobuf import descriptor_pool, duration_pb2, message_factory, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError

from epp.model import join_host_port

MOST_KNOWN = 4096  #: values of one kind, such as addresses, that are remembered
STRANGE = "!"
_NO_UTF8 = re.compile("[\udc80-\udcff]")
_PACKAGE = "epp.feedback.logged"
_DURATION = ".google.protobuf.Duration"
_SCALARS = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}
_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "StreamAccessLogsMessage": {"http_logs": (2, "HTTPAccessLogEntries")},
    "HTTPAccessLogEntries": {"log_entry": (1, "repeated HTTPAccessLogEntry")},
    "HTTPAccessLogEntry": {
        "common_properties": (1, "AccessLogCommon"),
        "request": (3, "HTTPRequestProperties"),
        "response": (4, "HTTPResponseProperties"),
    },
    "AccessLogCommon": {
        "time_to_last_rx_byte": (6, _DURATION),
        "upstream_remote_address": (13, "bytes"),
        "response_flags": (16, "bytes"),
        "metadata": (17, "Metadata"),
        "duration": (23, _DURATION),
        "upstream_request_attempt_count": (24, "uint32"),
        "access_log_type": (33, "int32"),
    },
    "HTTPRequestProperties": {"request_id": (9, "string")},
    "HTTPResponseProperties": {
        "response_code": (1, "bytes"),
        "response_body_bytes": (3, "uint64"),
        "response_headers": (4, "map bytes"),
        "response_code_details": (6, "bytes"),
    },
    "Metadata": {"filter_metadata": (1, "map Struct")},
    "Struct": {"fields": (1, "map bytes")},  #: each a ``Value``
}
"""Fields with number and type. A map's keys are strings: gateways choose them."""


def _build() -> Any:
    file = FileDescriptorProto(name="epp/feedback/logged.proto", syntax="proto3", package=_PACKAGE)
    file.dependency.append(duration_pb2.DESCRIPTOR.name)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add(message, field, number, kind)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName(f"{_PACKAGE}.StreamAccessLogsMessage")
    return message_factory.GetMessageClass(found)


def _add(message: DescriptorProto, name: str, number: int, kind: str) -> None:
    how, _, of = kind.rpartition(" ")
    if how == "map":
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add(entry, "key", 1, "string")
        _add(entry, "value", 2, of)
        of = f"{message.name}.{entry.name}"
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if how else field.LABEL_OPTIONAL
    if of in _SCALARS:
        field.type = _SCALARS[of]
    else:
        field.type_name = of if of.startswith(".") else f".{_PACKAGE}.{of}"


StreamAccessLogsMessage = _build()
"""To be read only: an unread part is kept as it came."""


def as_logged(request_id: str) -> str:
    """Return an id from a header, with surrogates for what is no UTF-8, as an entry names it."""
    return request_id if request_id.isascii() else _NO_UTF8.sub(STRANGE, request_id)


@lru_cache(MOST_KNOWN)
def status_of(code: bytes) -> int | None:
    """Return the status that a ``UInt32Value`` tells; None if it tells none."""
    return _parsed(wrappers_pb2.UInt32Value, code).value or None


@lru_cache(MOST_KNOWN)
def address_of(address: bytes) -> str:
    """Return an ``Address`` as ``host:port``; "" if it is none, or of another kind."""
    place = _parsed(address_pb2.Address, address).socket_address
    return join_host_port(place.address, place.port_value) if place.address else ""


@lru_cache(MOST_KNOWN)
def flags_of(flags: bytes) -> str:
    """Return the names of the ``ResponseFlags`` that are set, with commas."""
    told = _parsed(accesslog_pb2.ResponseFlags, flags).ListFields()
    return ",".join(field.name for field, _ in told)


def _parsed(kind: Any, data: bytes) -> Any:
    """Read a part by itself: one that is none takes nothing else with it."""
    with contextlib.suppress(DecodeError):
        return kind.FromString(data)
    return kind()
