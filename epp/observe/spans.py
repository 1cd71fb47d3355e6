"""Ends a request's span with what became of the request.

The span is anything with the methods of `Span`: nothing here needs OpenTelemetry.

**Source:** OpenTelemetry semantic conventions for HTTP and generative AI; attribute names of
llm-d-router's traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

import msgspec

from epp.model import Ending, InferenceRequest, Outcome, Pick
from epp.ttft.parts import expected_parts, measured_parts

Value = str | bool | int | float | Sequence[str] | Sequence[float]
"""What an attribute may hold. Never a part of a prompt."""

OUTCOME = "llm_d.epp.outcome"
STATUS_CODE = "http.response.status_code"
DROPPED_REASON = "llm_d.epp.dropped_reason"


class Span(Protocol):
    """One stretch of time in a trace."""

    def set(self, name: str, value: Value) -> None:
        """Set an attribute; after `end` it does nothing."""
        ...

    def fail(self, kind: str, said: str = "") -> None:
        """Mark it as failed, as ``kind``; the first failure counts."""
        ...

    def end(self) -> None:
        """End it; only the first call counts."""
        ...


class SpanObserver:
    """Listens to one exchange and ends its span."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        span = self._span
        facts = chain(_facts(request, ending), _first_token(request, pick, ending))
        for name, value in facts:
            if value is not None:
                span.set(name, value)
        if ending.outcome is Outcome.FAILED:
            span.fail(str(ending.status or "failed"))
        span.end()


def _facts(request: InferenceRequest, ending: Ending) -> Iterator[tuple[str, Value | None]]:
    """What an ending says, by attribute."""
    yield OUTCOME, ending.outcome.value
    yield STATUS_CODE, ending.status
    yield "llm_d.epp.served_endpoint", ending.served or None
    yield "llm_d.epp.streamed", ending.streamed
    yield "llm_d.epp.response_bytes", ending.response_bytes
    if ending.first_byte_at is not None:
        yield "llm_d.epp.time_to_first_byte_seconds", ending.first_byte_at - request.arrived_at
    if ending.usage is not None:
        yield "gen_ai.usage.input_tokens", ending.usage.prompt_tokens
        yield "gen_ai.usage.output_tokens", ending.usage.completion_tokens
        yield "llm_d.epp.usage.cached_tokens", ending.usage.cached_tokens


def _first_token(
    request: InferenceRequest, pick: Pick, ending: Ending
) -> Iterator[tuple[str, Value | None]]:
    """The parts of the time to first token, as expected at the pick and as measured."""
    decision = max(ending.picked_at - request.arrived_at - request.waited, 0.0)
    expected = expected_parts(
        pick.expected,
        wait=request.waited,
        decision=decision,
        elsewhere=pick.prefill is not None,
    )
    for prefix, parts in (
        ("llm_d.epp.expected_ttft", expected),
        ("llm_d.epp.ttft", measured_parts(request, pick, ending)),
    ):
        if parts is not None:
            yield f"{prefix}.total_seconds", parts.total
            for name, seconds in msgspec.structs.asdict(parts).items():
                yield f"{prefix}.{name}_seconds", seconds
