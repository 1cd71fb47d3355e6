"""Counts of what was believed and what was true, and of where the time to the first byte went."""

from __future__ import annotations

from epp.model import Endpoint, EndpointId
from epp.telemetry.caps import Cap
from epp.telemetry.store import Histogram, Labels, Number, Store
from epp.ttft.parts import Parts

TOKENS = tuple(f"epp_prefix_{word}_tokens_total" for word in ("predicted", "cached", "missed"))
MOST_CLASSES = 50  #: priorities, and roles of endpoints, that are told apart

_MEASURED = ("wait", "decision", "engine")
_STREAMED = (*_MEASURED, "remote_prefill", "queue", "prefill", "rest")


class Truth:
    """Writes into ``store``; see `telemetry.table.TRUTH`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._missed = store["epp_prefix_missed_ratio"].histogram()
        self._parts: dict[tuple[str, int, bool], Histogram] = {}
        self._tokens: dict[EndpointId, tuple[Labels, list[Number]]] = {}
        self._priorities, self._roles = Cap(MOST_CLASSES), Cap(MOST_CLASSES)

    def without_knowledge(self, why: str) -> None:
        """A request was placed without knowing any of its prompt; ``why`` is a fixed word."""
        self._store["epp_prefix_unknown_requests_total"].number(why).add()

    def first_byte(self, parts: Parts, *, priority: int, streamed: bool) -> None:
        """Take the parts of one request's time to the first byte; unknown ones are left out."""
        for name in _STREAMED if streamed else _MEASURED:
            seconds = getattr(parts, name)
            if seconds is not None:
                key = (name, priority, streamed)
                (self._parts.get(key) or self._new_part(*key)).observe(seconds)

    def foreseen(self, expected: float, measured: Parts, *, priority: int, role: str) -> None:
        """Compare what was expected of a first byte with what came.

        ``expected`` seconds of `Parts.engine`; ``role`` is the label of the endpoint that computed
        the prompt, "" without one.
        """
        key = ("expected", priority, True)
        whole = self._parts.get(key) or self._new_part(*key)
        whole.observe(measured.wait + measured.decision + expected)
        if expected > 0.0:
            ratios = self._store["epp_ttft_error_ratio"].histogram(self._roles(role))
            ratios.observe(measured.engine / expected)

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

    def _new_part(self, name: str, priority: int, streamed: bool) -> Histogram:  # noqa: FBT001 - a label
        labels: Labels = (self._priorities(str(priority)),)
        if name in _MEASURED:
            labels = (*labels, "true" if streamed else "false")
        made = self._store[f"epp_ttft_{name}_seconds"].histogram(*labels)
        if len(self._parts) < MOST_CLASSES * (len(_STREAMED) + 1):
            self._parts[(name, priority, streamed)] = made
        return made

    def _new_tokens(self, endpoint: Endpoint) -> tuple[Labels, list[Number]]:
        labels = (endpoint.name, endpoint.namespace, str(endpoint.port))
        numbers = [self._store[name].number(*labels) for name in TOKENS]
        made = self._tokens[endpoint.id] = (labels, numbers)
        return made
