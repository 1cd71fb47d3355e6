"""What clients may not say about a KV cache's way in gRPC requests, and its removal. Pure.

As in JSON: one ``{"do_remote_prefill": true}`` stops a vLLM server, by whatever API it comes.
Protobuf's own reader finds the fields, so what it takes for them is what an engine takes for them.
The other fields stay as they are, known or not.

**Source:** ``vllm_engine.proto``, ``sglang_scheduler.proto``, ``trtllm_service.proto`` and
``tokenspeed_scheduler.proto`` of smg's ``smg-grpc-proto`` 0.4, which these engines serve.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from epp.errors import BadRequest
from epp.formats.grpc.frame import HEAD_BYTES, MAX_BYTES
from epp.formats.grpc.messages import Fields, classes

_METHOD = "/Generate"
_FIELDS: Mapping[str, Fields] = {
    "vllm.grpc.engine.VllmEngine": {
        "kv_transfer_params": (6, "Nothing"),
        "kv_transfer_params_json": (8, "bytes"),
    },
    "sglang.grpc.scheduler.SglangScheduler": {"disaggregated_params": (10, "Nothing")},
    "trtllm.TrtllmService": {"disaggregated_params": (17, "Nothing")},
    "tokenspeed.grpc.scheduler.TokenSpeedScheduler": {
        "encode_bootstrap_info": (10, "Nothing"),
        "kv_bootstrap_info": (11, "Nothing"),
    },
}
"""By the service whose ``Generate`` it is."""
_MESSAGES = {
    service: classes("epp.disagg", {"Nothing": {}, "Request": fields})["Request"]
    for service, fields in _FIELDS.items()
}
_ZLIB_OR_GZIP = 47  #: for zlib's ``wbits``: told by the data


def service_of(path: str) -> str:
    """Return the engine's service that ``path`` calls, if such requests can name caches; else ""."""
    path = path.partition("?")[0]
    if not path.endswith(_METHOD):
        return ""
    service = path.removesuffix(_METHOD).rpartition("/")[2]
    return service if service in _FIELDS else ""


def cleared(body: bytes, service: str, *, most: int | None = None) -> bytes:
    """Return the body without the fields of `service_of`; the same object if it has none.

    A compressed message that has some goes on uncompressed.

    Args:
        body: a gRPC request's; messages after the first are not read by engines.
        service: of `service_of`.
        most: bytes that a compressed message may have.

    Raises:
        BadRequest: it is compressed, and longer, or not by gzip or deflate.
    """
    end = HEAD_BYTES + int.from_bytes(body[1:HEAD_BYTES], "big")
    if len(body) < HEAD_BYTES or end > len(body):
        return body  # no engine reads it either
    message = body[HEAD_BYTES:end]
    if body[0]:
        message = _inflated(message, MAX_BYTES if most is None else most)
    try:
        told = _MESSAGES[service].FromString(message)
    except DecodeError:
        return body
    found = [field.name for field, _ in told.ListFields()]
    if not found:
        return body
    for name in found:
        told.ClearField(name)
    left = told.SerializeToString()
    return b"".join((b"\0", len(left).to_bytes(4, "big"), left, body[end:]))


def _inflated(message: bytes, most: int) -> bytes:
    reader = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        found = reader.decompress(message, most + 1)
    except zlib.error:
        raise BadRequest(
            f"the message of {len(message)} bytes is compressed, and not by gzip or deflate: it "
            "may say where a KV cache is"
        ) from None
    if len(found) > most:
        raise BadRequest(
            f"the message of {len(message)} bytes has over {most} when it is not compressed, and "
            "may say where a KV cache is"
        )
    return found
