"""Spans by OpenTelemetry: the only module that imports it. Needs the extra ``epp[tracing]``.

A request's span begins with the stream's head, whose ``traceparent`` is its parent, and ends
with the exchange. Its own context goes on to the model server in ``traceparent``, whether it is
recorded or not, so that the whole trace is sampled or none of it. Baggage is a header like any
other and passes as it came.

Ended spans go into the batch processor's bounded queue; a thread of its own sends them, and drops
what the queue cannot take. No attribute holds a part of a prompt, and exceptions that are not
ours are named without their message, which may quote one.

**Source:** W3C Trace Context; OpenTelemetry specification, tracing SDK.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Thread
from typing import Any, Protocol

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from epp.errors import EppError
from epp.exchange import Exchange
from epp.model import Arrival, Pick
from epp.observe.spans import DROPPED_REASON, OUTCOME, STATUS_CODE, SpanObserver, Value
from epp.telemetry.trace_settings import TraceSettings
from epp.wrap.traced import NOTHING

CLOSE_SECONDS = 5.0  #: at most, to send what is left when the picker stops
MAX_TEXT = 256  #: characters of an attribute


class Routes(Protocol):
    """See `extproc.server.Routes`."""

    async def route(self, arrival: Arrival) -> Exchange:
        """Choose an endpoint and book it."""
        ...


class Service(Protocol):
    """What is traced; see `extproc.server.ExtProcService`."""

    router: Any
    tracing: Any


class _Span:
    """See `observe.spans.Span`."""

    __slots__ = ("_open", "context", "failed", "followed", "inner", "recording")

    def __init__(self, inner: trace.Span) -> None:
        self.inner = inner
        self.context = trace.set_span_in_context(inner, Context())
        self.recording = inner.is_recording()
        self.failed = False
        self.followed = False  #: an exchange ends it
        self._open = True

    def set(self, name: str, value: Value) -> None:
        if self._open and self.recording:
            self.inner.set_attribute(name, _plain(value))

    def fail(self, kind: str, said: str = "") -> None:
        if self.failed or not self._open:
            return
        self.failed = True
        self.set("error.type", kind)
        self.inner.set_status(Status(StatusCode.ERROR, _text(said or kind)))

    def end(self) -> None:
        if self._open:
            self._open = False
            self.inner.end()


_root: ContextVar[_Span | None] = ContextVar("epp_request_span", default=None)
_innermost: ContextVar[_Span | None] = ContextVar("epp_innermost_span", default=None)


class Tracing:
    """The spans of all requests (see `traced.Tracer` and `extproc.server.Tracing`)."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("epp")
        self._propagator = TraceContextTextMapPropagator()

    def attach(self, service: Service) -> None:
        """Trace what ``service`` serves."""
        service.router = _TracedRoutes(service.router, self)
        service.tracing = self

    def close(self) -> None:
        """Send what is left and stop, within `CLOSE_SECONDS`."""
        thread = Thread(target=self._provider.shutdown, name="tracing-close", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)

    # --- one request ---------------------------------------------------------------------

    def began(self, headers: Mapping[str, str]) -> None:
        """A request's head came on this task's stream."""
        parent = self._propagator.extract(headers, Context())
        span = _Span(self._tracer.start_span("gateway.request", parent, SpanKind.SERVER))
        _root.set(span)
        _innermost.set(span)

    def refused(self, error: EppError) -> None:
        """The request was answered with ``error``."""
        span = _root.get()
        if span is None:
            return
        span.set(STATUS_CODE, error.status)
        if error.reason:
            span.set(DROPPED_REASON, error.reason)
        span.fail(type(error).__name__, str(error))

    def closed(self) -> None:
        """The stream is over; the span too, unless an exchange goes on."""
        span = _root.get()
        if span is not None and not span.followed:
            span.set(OUTCOME, "refused" if span.failed else "abandoned")
            span.end()
        _root.set(None)
        _innermost.set(None)

    def routed(self, exchange: Exchange) -> Pick:
        """Let the exchange end the span; return the pick, with the span as the next one's parent.

        The exchange keeps its own pick: observers may know it by its identity.
        """
        pick, span = exchange.sent, _root.get()
        if span is None:
            return pick
        span.followed = True
        if span.recording:
            span.set("llm_d.epp.target_model", exchange.request.target_model)
            span.set("llm_d.epp.priority", exchange.request.priority)
            span.set("llm_d.epp.destination", pick.destination)
            exchange.listen(SpanObserver(span))
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, span.context)
        return msgspec.structs.replace(pick, headers={**pick.headers, **carrier})

    def trace_id(self) -> str:
        """The trace of this task's request, as 32 hex digits; '' if there is none."""
        span = _root.get()
        return "" if span is None else f"{span.inner.get_span_context().trace_id:032x}"

    # --- its parts -----------------------------------------------------------------------

    @property
    def recording(self) -> bool:
        """See `traced.Tracer.recording`."""
        span = _root.get()
        return span is not None and span.recording

    def request(self) -> _Span:
        """See `traced.Tracer.request`."""
        span = _root.get()
        return _Span(trace.INVALID_SPAN) if span is None else span

    @contextmanager
    def child(self, name: str, attributes: Mapping[str, Value] = NOTHING) -> Iterator[_Span]:
        """See `traced.Tracer.child`."""
        parent = _innermost.get()
        span = _Span(self._tracer.start_span(name, None if parent is None else parent.context))
        for key, value in attributes.items():
            span.set(key, value)
        token = _innermost.set(span)
        try:
            yield span
        except EppError as error:
            span.fail(type(error).__name__, str(error))
            raise
        except Exception as error:
            span.fail(type(error).__name__)
            raise
        finally:
            _innermost.reset(token)
            span.end()


class _TracedRoutes:
    """Routes as ``inner`` does, in a span."""

    def __init__(self, inner: Routes, tracing: Tracing) -> None:
        self._inner = inner
        self._tracing = tracing

    async def route(self, arrival: Arrival) -> Exchange:
        if not self._tracing.recording:
            return await self._inner.route(arrival)
        with self._tracing.child("gateway.request_orchestration"):
            return await self._inner.route(arrival)


def start(settings: TraceSettings) -> Tracing:
    """Start to trace as told; the exporter reads its endpoint and headers from the environment."""
    return Tracing(provider_of(settings, BatchSpanProcessor(_exporter(settings))))


def provider_of(settings: TraceSettings, processor: SpanProcessor) -> TracerProvider:
    """Build what makes spans; ``processor`` gets those that have ended."""
    named = {SERVICE_NAME: settings.service_name} if settings.service_name else None
    ratio = settings.ratio
    provider = TracerProvider(
        resource=Resource.create(named),
        sampler=None if ratio is None else ParentBased(TraceIdRatioBased(ratio)),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(processor)
    return provider


def _exporter(settings: TraceSettings) -> SpanExporter:
    if settings.exporter == "console":
        return ConsoleSpanExporter(formatter=lambda span: f"{span.to_json(indent=None)}\n")
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc  # noqa: PLC0415

        return grpc.OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http  # noqa: PLC0415

    return http.OTLPSpanExporter()


def _plain(value: Value) -> Value:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sequence) and value and isinstance(value[0], str):
        return [_text(str(each)) for each in value]
    return value


def _text(text: str) -> str:
    """Short and encodable: a header's bytes that are not UTF-8 are kept as surrogates."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()
