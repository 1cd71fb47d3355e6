"""Counts of what was believed and what was true, and of where the time to the first byte went."""

from __future__ import annotations

from epp.model import Endpoint, EndpointId
from epp.telemetry.store import Histogram, Labels, Number, Store

TOKENS = tuple(f"epp_prefix_{word}_tokens_total" for word in ("predicted", "cached", "missed"))


class Truth:
    """Writes into ``store``; see `telemetry.table.TRUTH`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._missed = store["epp_prefix_missed_ratio"].histogram()
        self._parts: dict[bool, list[Histogram]] = {}
        self._tokens: dict[EndpointId, tuple[Labels, list[Number]]] = {}

    def without_knowledge(self, why: str) -> None:
        """A request was placed without knowing any of its prompt; ``why`` is a fixed word."""
        self._store["epp_prefix_unknown_requests_total"].number(why).add()

    def first_byte(self, *, wait: float, decision: float, engine: float, streamed: bool) -> None:
        """Take the parts of one request's time to the first byte, in seconds."""
        parts = self._parts.get(streamed) or self._new_parts(streamed)
        for histogram, seconds in zip(parts, (wait, decision, engine), strict=True):
            histogram.observe(max(seconds, 0.0))

    def predicted(self, endpoint: Endpoint, *, predicted: int, cached: int) -> None:
        """An engine told how many tokens of a prompt it found cached."""
        missed = max(predicted - cached, 0)
        _, numbers = self._tokens.get(endpoint.id) or self._new_tokens(endpoint)
        for number, tokens in zip(numbers, (predicted, cached, missed), strict=True):
            number.value += tokens
        if predicted:
            self._missed.observe(missed / predicted)

    def forget(self, endpoint_id: EndpointId) -> None:
        """The endpoint is gone: so are its series."""
        known = self._tokens.pop(endpoint_id, None)
        if known is not None:
            for name in TOKENS:
                self._store[name].drop(known[0])

    def _new_parts(self, streamed: bool) -> list[Histogram]:  # noqa: FBT001 - a label
        streaming = "true" if streamed else "false"
        names = [f"epp_ttft_{part}_seconds" for part in ("wait", "decision", "engine")]
        made = self._parts[streamed] = [self._store[name].histogram(streaming) for name in names]
        return made

    def _new_tokens(self, endpoint: Endpoint) -> tuple[Labels, list[Number]]:
        labels = (endpoint.name, endpoint.namespace, str(endpoint.port))
        numbers = [self._store[name].number(*labels) for name in TOKENS]
        made = self._tokens[endpoint.id] = (labels, numbers)
        return made
