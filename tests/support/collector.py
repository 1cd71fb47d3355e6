"""An OpenTelemetry collector's end of OTLP over HTTP: takes spans and keeps them."""

from __future__ import annotations

import gzip
from typing import Self

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What came, and an address to send it to. Use it with ``async with``."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        application = web.Application()
        application.router.add_post("/v1/traces", self._take)
        self._server = TestServer(application, host="127.0.0.1")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def traces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have pickers that start from now on send every span here, soon."""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", self.address)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")

    async def __aenter__(self) -> Self:
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {
                each.value.string_value
                for each in resource.resource.attributes
                if each.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans += scope.spans
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")
