"""What a gateway says about the pool of a request, on the first message of its stream.

Only what the gateway itself tells is read, never a header of the request: a client could set it.
Three ways are known: metadata of the gRPC call, which a route may have of its own; filter or route
metadata; and the names of cluster and route among the attributes, where the filter asks for them.

**Source:** envoy/service/ext_proc/v3/external_processor.proto (``attributes``,
``metadata_context``); envoy/extensions/filters/http/ext_proc/v3/ext_proc.proto
(``request_attributes``, ``grpc_initial_metadata``); Envoy's attributes ``xds.*``. Envoy AI Gateway
writes the pool into metadata of the route, as ``NAMESPACE/POOL/SERVICE/PORT/...``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError

CALL_KEY = "epp-pool"  #: in the metadata of the gRPC call
NAMESPACE, KEY = "epp", "pool"  #: of filter or route metadata
AI_GATEWAY = ("aigateway.envoy.io", "per_route_rule_inference_pool")
CLUSTER, ROUTE = "xds.cluster_name", "xds.route_name"
METADATA = ("xds.route_metadata", "xds.cluster_metadata")
"""Metadata asked for whole comes as protobuf's text, and a key of it, asked for by a CEL index, as
its value."""

_KEYS = ((NAMESPACE, KEY), AI_GATEWAY)


class Hints(msgspec.Struct, frozen=True):
    """Names, each of which may be of a pool; the first kind that there is counts."""

    told: tuple[str, ...] = ()  #: said to be a pool's: ``NAME`` or ``NAMESPACE/NAME``
    clusters: tuple[str, ...] = ()  #: where the gateway will send the request
    routes: tuple[str, ...] = ()  #: named by people


NOTHING = Hints()


def read_hints(data: bytes, call: Iterable[tuple[str, str | bytes]] = ()) -> Hints:
    """Read a serialised ``ProcessingRequest``, and the metadata of its gRPC call.

    What cannot be read says nothing: `wire.decode` tells what is wrong with it.
    """
    told = [value for key, value in call if key == CALL_KEY and isinstance(value, str)]
    try:
        message = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        return NOTHING
    told += _metadata(message.metadata_context.filter_metadata)
    clusters, routes = [], []
    for name, value in _attributes(message.attributes):
        if name == CLUSTER:
            clusters.append(value)
        elif name == ROUTE:
            routes.append(value)
        elif name.startswith(METADATA):
            told += _printed(name, value)
    return Hints(*(_named(each) for each in (told, clusters, routes)))


def _attributes(attributes: Any) -> Iterator[tuple[str, str]]:
    for name in attributes:  # by filter; there is one
        for attribute, value in attributes[name].fields.items():
            if value.string_value:
                yield attribute, value.string_value


def _metadata(metadata: Any) -> list[str]:
    return [
        _pool(namespace, metadata[namespace].fields[key].string_value)
        for namespace, key in _KEYS
        if namespace in metadata and key in metadata[namespace].fields
    ]


def _printed(attribute: str, value: str) -> list[str]:
    """The pool in metadata that is printed whole, or that is asked for by its key."""
    if not attribute.endswith(METADATA):
        return [_pool(namespace, value) for namespace, key in _KEYS
                if namespace in attribute and key in attribute]  # fmt: skip
    found = ((namespace, _PRINTED[namespace].search(value)) for namespace, _ in _KEYS)
    return [_pool(namespace, match[1]) for namespace, match in found if match]


def _pool(namespace: str, value: str) -> str:
    if namespace != AI_GATEWAY[0]:
        return value
    return "/".join(value.split("/")[:2])


def _named(names: list[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in names if name.strip())


_PRINTED = {
    namespace: re.compile(
        rf'key:\s*"{re.escape(namespace)}"\s*value\s*{{\s*(?:fields\s*{{[^{{}}]*{{[^{{}}]*}}\s*}}\s*)*?'
        rf'fields\s*{{\s*key:\s*"{re.escape(key)}"\s*value\s*{{\s*string_value:\s*"([^"]*)"'
    )
    for namespace, key in _KEYS
}
"""Finds one key among the plain ones of a namespace."""
