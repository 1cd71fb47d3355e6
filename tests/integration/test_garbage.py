"""Bytes that are no message, on every method of the gRPC ports: refused, and not a line of log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.served import Served, serving

GARBAGE = b"\xff\xfe no protobuf at all \x00"
SECONDS = 10.0
ACCESS_LOG = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
EXT_PROC = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
HEALTH = "/grpc.health.v1.Health/"
INVALID, OK = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OK


def sent(port: int, method: str, body: bytes) -> grpc.StatusCode:
    """Send one message; return the status of the call."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        if method in (ACCESS_LOG, EXT_PROC):
            call = channel.stream_stream(method)(iter([body]), timeout=SECONDS)
        else:
            call = channel.unary_stream(method)(body, timeout=SECONDS)
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return error.code()
        return OK


@pytest.fixture(scope="module")
def picker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("picker")
    with serving(folder, "--endpoints=127.0.0.1:1", "--secure-serving=false") as running:
        yield running


@pytest.mark.parametrize(
    ("port", "method", "status"),
    [
        ("grpc", ACCESS_LOG, INVALID),
        ("grpc", EXT_PROC, OK),  # the client is answered 500
        ("grpc", HEALTH + "Check", INVALID),
        ("grpc", HEALTH + "List", INVALID),
        ("health", HEALTH + "Check", INVALID),
        ("health", HEALTH + "List", INVALID),
        ("health", HEALTH + "Watch", INVALID),
    ],
)
def test_what_is_no_message_is_refused_without_a_traceback(
    port: str, method: str, status: grpc.StatusCode, picker: Served
) -> None:
    before = picker.log.read_text()
    assert sent(picker.ports[port], method, GARBAGE) is status
    assert "Traceback" not in picker.log.read_text()[len(before) :]
    assert sent(picker.ports["grpc"], ACCESS_LOG, b"") is OK  # it goes on serving
