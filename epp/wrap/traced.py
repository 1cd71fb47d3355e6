"""Puts spans around the parts of the line, for requests that are recorded.

The parts are wrapped when a pipeline is built and only where traces are wanted, so a picker
without traces runs none of this. A request that is not sampled pays one look per part.

**Source:** names and attributes of llm-d-router's spans; ``parse_request`` and
``schedule_request`` are ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import msgspec

from epp.model import Arrival, Endpoint, InferenceRequest, Pick
from epp.observe.spans import Span, Value
from epp.plugin import ProfileResult, type_of
from epp.schedule.profile import Profile
from epp.schedule.scheduler import Scheduler

TOP = 5  #: endpoints named in the span of a pick
NOTHING: Mapping[str, Value] = {}


class Tracer(Protocol):
    """Makes spans of the request that this task serves."""

    @property
    def recording(self) -> bool:
        """Whether the request is recorded."""
        ...

    def request(self) -> Span:
        """Return the request's own span."""
        ...

    def child(
        self, name: str, attributes: Mapping[str, Value] = NOTHING
    ) -> AbstractContextManager[Span]:
        """Open a span within the innermost open one; an exception marks it as failed."""
        ...


class TracedFormats:
    """Reads requests as ``inner`` does (see `pipeline.Formats`)."""

    def __init__(self, inner: Any, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def unfit(self, protocol: str) -> tuple[str, ...]:
        """See `pipeline.Formats.unfit`."""
        return self._inner.unfit(protocol)  # type: ignore[no-any-return]

    def aside(self, arrival: Arrival) -> tuple[str, ...]:
        """See `pipeline.Formats.aside`."""
        return self._inner.aside(arrival)  # type: ignore[no-any-return]

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        """See `pipeline.Formats.parse`."""
        if not self._tracer.recording:
            return self._inner.parse(arrival, now)  # type: ignore[no-any-return]
        root = self._tracer.request()
        root.set("gen_ai.request.id", arrival.id)
        attributes = {"llm_d.epp.request_bytes": len(arrival.body)}
        with self._tracer.child("parse_request", attributes) as span:
            request: InferenceRequest = self._inner.parse(arrival, now)
            span.set("llm_d.epp.format", request.format)
            span.set("llm_d.epp.prompt_tokens", request.prompt_tokens)
        root.set("gen_ai.request.model", request.model)
        root.set("llm_d.epp.streaming", request.streaming)
        return request


class TracedEnricher:
    """Enriches as ``inner`` does, with a span that covers what it waits for."""

    def __init__(self, inner: Any, type_: str, tracer: Tracer) -> None:
        self._inner = inner
        self._name = f"llm_d.epp.producer.{type_}"
        self._tracer = tracer

    def enrich(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Any:
        """See `plugin.Enricher.enrich`."""
        if not self._tracer.recording:
            return self._inner.enrich(request, endpoints)
        with ExitStack() as stack:
            attributes = {"llm_d.epp.producer.candidate_endpoints": len(endpoints)}
            span = stack.enter_context(self._tracer.child(self._name, attributes))
            enriched = self._inner.enrich(request, endpoints)
            if inspect.isawaitable(enriched):
                return _waited(enriched, request, span, stack.pop_all())
            _tell_matches(span, request, enriched)
            return enriched


async def _waited(
    enriched: Awaitable[InferenceRequest], before: InferenceRequest, span: Span, stack: ExitStack
) -> InferenceRequest:
    with stack:
        request = await enriched
        _tell_matches(span, before, request)
        return request


def _tell_matches(span: Span, before: InferenceRequest, after: InferenceRequest) -> None:
    """Say what a producer of prefix knowledge found."""
    for name, match in after.prefix.items():
        if before.prefix.get(name) is not match:
            span.set("llm_d.epp.producer.total_blocks", len(match.blocks))
            span.set("llm_d.epp.producer.max_match_blocks", max(match.held.values(), default=0))


class TracedScheduler(Scheduler, frozen=True, kw_only=True):
    """A scheduler whose decisions have a span."""

    inner: Scheduler
    tracer: Tracer

    def pick(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Pick:
        """See `Scheduler.pick`."""
        if not self.tracer.recording:
            return self.inner.pick(request, endpoints)
        attributes = {"llm_d.epp.candidate_endpoints": len(endpoints)}
        with self.tracer.child("schedule_request", attributes) as span:
            pick = self.inner.pick(request, endpoints)
            span.set("llm_d.epp.profile_handler.decision", pick.profile)
            if pick.prefill is not None:
                span.set("llm_d.epp.prefill_endpoint", pick.prefill.address)
            return pick


class TracedProfile(Profile, frozen=True, kw_only=True):
    """A profile with spans around its filters, its scorers and its picker."""

    tracer: Tracer

    def run(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> ProfileResult:
        """See `Profile.run`."""
        if not self.tracer.recording:
            return Profile.run(self, request, endpoints)
        with self.tracer.child("run_scheduler_profile", {"llm_d.epp.profile": self.name}):
            spanned = msgspec.structs.replace(
                self,
                filters=tuple(_TracedFilter(each, self.tracer) for each in self.filters),
                scorers=tuple(
                    (_TracedScorer(scorer, weight, self.tracer), weight)
                    for scorer, weight in self.scorers
                ),
                picker=_TracedPicker(self.picker, self.tracer),
            )
            return Profile.run(spanned, request, endpoints)


class _TracedFilter:
    """Filters as ``inner`` does."""

    def __init__(self, inner: Any, tracer: Tracer) -> None:
        self.type = type_of(inner)
        self._inner = inner
        self._tracer = tracer

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        attributes: dict[str, Value] = {
            "llm_d.epp.filter.type": self.type,
            "llm_d.epp.filter.candidate_endpoints": len(endpoints),
        }
        with self._tracer.child("filter_endpoints", attributes) as span:
            kept: Sequence[Endpoint] = self._inner.filter(request, endpoints)
            span.set("llm_d.epp.filter.kept_endpoints", len(kept))
            return kept


class _TracedScorer:
    """Scores as ``inner`` does."""

    def __init__(self, inner: Any, weight: float, tracer: Tracer) -> None:
        self.type = type_of(inner)
        self._inner = inner
        self._weight = weight
        self._tracer = tracer

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        attributes = {
            "llm_d.epp.scorer.weight": self._weight,
            "llm_d.epp.scorer.candidate_endpoints": len(endpoints),
        }
        name = f"llm_d.epp.scorer.{self.type}"
        with self._tracer.child(name, attributes) as span:
            scores: Sequence[float] = self._inner.score(request, endpoints)
            if scores:
                span.set("llm_d.epp.scorer.score_min", float(min(scores)))
                span.set("llm_d.epp.scorer.score_max", float(max(scores)))
                span.set("llm_d.epp.scorer.score_avg", float(sum(scores)) / len(scores))
            return scores


class _TracedPicker:
    """Picks as ``inner`` does."""

    def __init__(self, inner: Any, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> Sequence[Endpoint]:
        attributes = {"llm_d.epp.picker.candidate_endpoints": len(endpoints)}
        with self._tracer.child("pick_endpoints", attributes) as span:
            chosen: Sequence[Endpoint] = self._inner.pick(endpoints, scores)
            best = sorted(range(len(endpoints)), key=lambda i: scores[i], reverse=True)[:TOP]
            span.set("llm_d.epp.picker.chosen", [each.address for each in chosen])
            span.set("llm_d.epp.picker.top_endpoints", [endpoints[i].address for i in best])
            span.set("llm_d.epp.picker.top_scores", [float(scores[i]) for i in best])
            return chosen


def trace_profiles(scheduler: Scheduler, tracer: Tracer) -> Scheduler:
    """Return a scheduler whose profiles make spans."""
    profiles = {
        name: TracedProfile(each.name, each.filters, each.scorers, each.picker, tracer=tracer)
        for name, each in scheduler.profiles.items()
    }
    return msgspec.structs.replace(scheduler, profiles=profiles)


def trace_scheduler(scheduler: Scheduler, tracer: Tracer) -> Scheduler:
    """Return a scheduler whose decisions make a span."""
    return TracedScheduler(
        scheduler.profiles,
        scheduler.handler,
        scheduler.with_scores,
        inner=scheduler,
        tracer=tracer,
    )
