"""Spans kept in memory, and a picker that makes them."""

from __future__ import annotations

import random
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from epp.build import Parts, configure
from epp.clock import ManualClock
from epp.exchange import Exchange
from epp.plugin import Observer
from epp.telemetry.trace_settings import TraceSettings
from epp.telemetry.tracing import Tracing, provider_of
from tests.support.ext_proc import Picker

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"


class NoTimings:
    """Takes durations and forgets them, as the running picker's metrics would keep them."""

    def scheduled(self, seconds: float) -> None:
        pass

    def plugin_ran(self, point: str, kind: str, name: str, seconds: float) -> None:
        pass


class Traced:
    """A picker with the default configuration, and the spans it has ended."""

    def __init__(
        self,
        config: str | None = None,
        *,
        ratio: float = 0.0,
        observers: tuple[Observer, ...] = (),
        **picker: Any,
    ) -> None:
        self._exporter = InMemorySpanExporter()
        settings = TraceSettings("otlp", service_name="picker", ratio=ratio)
        self.tracing = Tracing(provider_of(settings, SimpleSpanProcessor(self._exporter)))
        self.picker = Picker(**picker)
        self.picker.service.on_answer_piece = Exchange.response_data
        parts = Parts(
            clock=ManualClock(),
            random=random.Random(1),
            ledger=self.picker.ledger,
            pool=self.picker.pool,
            timings=NoTimings(),
            extra_observers=observers,
            tracer=self.tracing,
        )
        _, self.pipeline = configure(config, parts)
        self.picker.router.reload(self.pipeline)
        self.tracing.attach(self.picker.service)

    def spans(self) -> list[ReadableSpan]:
        """Ended spans in the order of their end."""
        return list(self._exporter.get_finished_spans())

    def forget(self) -> None:
        """Drop the spans that have ended."""
        self._exporter.clear()

    def one(self, name: str) -> ReadableSpan:
        """The only span of that name."""
        (found,) = (span for span in self.spans() if span.name == name)
        return found

    def tree(self) -> dict[str, str]:
        """Name of each span's parent, by the span's name; '' for one that is not ours."""
        names = {span.context.span_id: span.name for span in self.spans()}
        return {
            span.name: names.get(span.parent.span_id, "") if span.parent else ""
            for span in self.spans()
        }
