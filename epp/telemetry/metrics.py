"""What the picker counts: one small verb for each thing that happens.

Each verb is called by the one who knows: `observe.metrics` for requests, the ext_proc service
for streams, the scraper, the configuration's watcher. Gauges about the pool cost nothing until
the page is read: `Store.live` asks for them then.

Hot path: all verbs of one request together take about 6 us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from epp.errors import (
    BadRequest,
    Dropped,
    EppError,
    NoKvCache,
    TooLarge,
    TooSlow,
    Unavailable,
    UnknownPool,
)
from epp.ledger import Ledger
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Outcome, Pick, Usage
from epp.telemetry.caps import OTHER, Cap
from epp.telemetry.gauges import pool_gauges
from epp.telemetry.pools import Merged
from epp.telemetry.store import Histogram, Labels, Live, Number, Store
from epp.telemetry.table import METRICS, PREFIX
from epp.telemetry.truth import Truth

MOST_FLOWS = 1000  #: label sets of requests; more are counted as `OTHER`
MOST_ATTEMPTS = 5000  #: label sets of decisions
SCRAPED = "metrics-data-source"
EXTRACTED = "core-metrics-extractor"

Endpoints = Callable[[], Sequence[Endpoint]]


class Metrics:
    """All metrics of one process."""

    def __init__(
        self,
        *,
        commit: str = "",
        build_ref: str = "",
        process: bool = True,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Count from zero; ``process`` adds this process's CPU, memory and garbage collector."""
        self.store = Store(METRICS)
        self.truth = Truth(self.store)
        self.plugin_types: Mapping[str, str] = {}  #: type of each plugin instance, by name
        self._registry = CollectorRegistry(auto_describe=False)
        self._merged = Merged(self.store)
        self._pools: Callable[[], Mapping[str, Metrics]] = dict
        self._registry.register(self._merged)
        if process:
            ProcessCollector(registry=self._registry)
            PlatformCollector(registry=self._registry)
            GCCollector(registry=self._registry)
        self._models = Cap()
        self._fairness = Cap()
        self._flows: dict[tuple[str, str, str, int], _Flow] = {}
        self._flows_by_labels: dict[Labels, _Flow] = {}
        self._attempts: dict[tuple[str, EndpointId], Number] = {}
        self._attempt_labels: dict[EndpointId, list[Labels]] = {}
        store = self.store
        self._processing = store[f"{PREFIX}request_processing_duration_seconds"].histogram()
        self._scheduler = store[f"{PREFIX}scheduler_e2e_duration_seconds"].histogram()
        self._streams = store[f"{PREFIX}extproc_streams_inflight"].number()
        self._now = now
        self._begun = self._seen = 0  # streams so far; what of them the last page knew
        self._last_stream = now()
        store.live("epp_seconds_since_last_stream", self._without_stream)
        self._outcomes = {
            each: store["epp_ended_requests_total"].number(each.value) for each in Outcome
        }
        self._hits: dict[str, tuple[Histogram, Histogram]] = {}
        store[f"{PREFIX}info"].number(commit, build_ref).value = 1.0

    # --- requests ----------------------------------------------------------------------------

    def picked(self, request: InferenceRequest, pick: Pick, *, now: float) -> None:
        """A request is about to be forwarded; ``now`` on `Clock.now()`."""
        flow = self._flow(request)
        flow.total.value += 1
        flow.running.value += 1
        if request.body:
            flow.size.observe(len(request.body))
        self._processing.observe(max(now - request.arrived_at, 0.0))
        target = pick.endpoints[0]
        attempts = self._attempts.get((request.target_model, target.id))
        if attempts is None:
            attempts = self._new_attempts(request.target_model, target)
        attempts.value += 1
        if request.unread:
            self.store["epp_unread_requests_total"].number(request.unread).add()
        for producer, match in request.prefix.items():
            if match.blocks:
                ratio, size = self._hits.get(producer) or self._new_hits(producer)
                held = match.held.get(target.id, 0)
                ratio.observe(held / len(match.blocks))
                size.observe(held * match.block_tokens * 4)  # a token is about 4 bytes

    def ended(self, request: InferenceRequest, ending: Ending) -> None:
        """It is over. What was not told is not counted."""
        flow = self._flow(request)
        flow.running.value -= 1
        self._outcomes[ending.outcome].value += 1
        if ending.outcome is Outcome.FAILED:
            self._error("ModelServerError", flow.labels)
        seconds = max(ending.at - request.arrived_at, 0.0)
        if ending.outcome is Outcome.COMPLETED:
            flow.observe("request_duration_seconds", seconds)
        if ending.response_bytes is not None:
            flow.observe("response_size_bytes", ending.response_bytes)
        first = ending.first_byte_at
        if first is not None:
            streaming = "true" if ending.streamed else "false"
            flow.observe("request_ttft_seconds", max(first - request.arrived_at, 0.0), streaming)
        if ending.usage is not None:
            _count_tokens(flow, ending.usage)
            tokens = ending.usage.completion_tokens
            if tokens and ending.outcome is Outcome.COMPLETED:
                flow.observe("request_ntpot_seconds", seconds / tokens)
                if ending.streamed and first is not None and tokens > 1:
                    after = max(ending.at - first, 0.0)
                    flow.observe("request_streaming_tpot_seconds", after / (tokens - 1))

    def refused(self, error: EppError) -> None:
        """A request was answered with an error. Who asked for what is not known here."""
        self.store["epp_refused_requests_total"].number(str(error.status), error.reason).add()
        self._error(_error_code(error), ("", "", "", "0"))
        if isinstance(error, Unavailable | Dropped):
            self.store[f"{PREFIX}scheduler_attempts_total"].number("failure", "", "", "", "").add()

    def rewritten(self, rule: str, model: str, target: str) -> None:
        """A rewrite rule chose ``target`` for a request for ``model``."""
        labels = rule, self._models(model), self._models(target)
        self.store[f"{PREFIX}model_rewrite_decisions_total"].number(*labels).add()

    def reaped(self) -> None:
        """A request was given up: nobody told how it ended."""
        self.store["epp_reaped_requests_total"].number().add()

    # --- the line ------------------------------------------------------------------------------

    def scheduled(self, seconds: float) -> None:
        """A decision took this long."""
        self._scheduler.observe(seconds)

    def staged(self, name: str, handler: tuple[str, str], model: str, stages: str) -> None:
        """``handler``, a plugin's name and type, placed a request's ``stages``."""
        self.store[PREFIX + name].number(*handler, self._models(model), stages).add()

    def plugin_ran(self, point: str, kind: str, name: str, seconds: float) -> None:
        """A plugin's call at an extension point took this long."""
        family = self.store[f"{PREFIX}plugin_duration_seconds"]
        family.histogram(point, kind, name).observe(seconds)

    def plugin_failed(self, name: str, fault: str) -> None:
        """A plugin's call raised or took too long; ``fault`` says which, in one fixed word."""
        self.store["epp_plugin_faults_total"].number(name, fault).add()

    def plugin_disabled(self, name: str, kind: str, *, disabled: bool = True) -> None:
        """A plugin is switched off, or on again."""
        self.store["epp_disabled_plugins"].number(name, kind).value = float(disabled)

    def reloaded(self, *, ok: bool) -> None:
        """The configuration was read again; not ``ok``: the old one stays in use."""
        self.store["epp_config_reloads_total"].number("success" if ok else "failure").add()
        self.store["epp_config_current"].number().value = float(ok)

    # --- streams -------------------------------------------------------------------------------

    def stream_started(self) -> None:
        """An ext_proc stream opened."""
        self._streams.value += 1
        self._begun += 1

    def stream_ended(self) -> None:
        """It ended, however."""
        self._streams.value -= 1

    def _without_stream(self) -> float:
        """Seconds since a stream was last open; since the start, if none was yet.

        Exact to the time between two pages, so that no stream has to ask the clock.
        """
        now = self._now()
        if self._streams.value or self._begun != self._seen:
            self._seen, self._last_stream = self._begun, now
        return now - self._last_stream

    def spurious(self, count: int) -> None:
        """A stream brought ``count`` messages that the protocol does not allow there."""
        if count:
            self.store["epp_spurious_messages_total"].number().add(count)

    def stream_closed(self, code: str, seconds: float) -> None:
        """A stream ended with this gRPC status after so long."""
        self.store[f"{PREFIX}extproc_streams_total"].number(code).add()
        self.store[f"{PREFIX}extproc_stream_duration_seconds"].histogram().observe(seconds)

    # --- answers that pass through ---------------------------------------------------------------

    def gap(self, request: InferenceRequest, seconds: float) -> None:
        """Two pieces of its answer were this far apart."""
        self._flow(request).observe("request_streaming_itl_seconds", seconds)

    def answered(self, seconds: float) -> None:
        """An answer took this long to handle."""
        self.store[f"{PREFIX}response_processing_duration_seconds"].histogram().observe(seconds)

    # --- collectors -----------------------------------------------------------------------------

    def scrape_failed(self, reason: str) -> None:
        """A scrape brought nothing; ``reason`` is a fixed word."""
        self.store["epp_scrape_errors_total"].number(reason).add()
        self.store[f"{PREFIX}datalayer_poll_errors_total"].number(SCRAPED).add()

    def lines_unreadable(self, count: int) -> None:
        """A page had ``count`` broken lines."""
        family = self.store[f"{PREFIX}datalayer_extract_errors_total"]
        family.number(SCRAPED, EXTRACTED).add(count)

    def forget(self, endpoint_id: EndpointId) -> None:
        """The endpoint is gone: so are its series."""
        self.truth.forget(endpoint_id)
        family = self.store[f"{PREFIX}scheduler_attempts_total"]
        for labels in self._attempt_labels.pop(endpoint_id, ()):
            family.drop(labels)
        for key in [key for key in self._attempts if key[1] == endpoint_id]:
            del self._attempts[key]

    # --- the page --------------------------------------------------------------------------------

    def watch_pool(self, name: str, endpoints: Endpoints, ledger: Ledger) -> None:
        """Write gauges about the pool called ``name`` from what these say at each reading."""
        for metric, value in pool_gauges(name, endpoints, ledger):
            self.store.live(metric, value)

    def watch_pools(self, pools: Callable[[], Mapping[str, Metrics]]) -> None:
        """Show on the page what these count besides, with the pool's name; see `Merged`."""
        self._pools = pools

    def live(self, name: str, value: Live) -> None:
        """Write gauge ``name`` from what ``value`` says at each reading; see `Store.live`."""
        self.store.live(name, value)

    def refreshing(self) -> Iterator[None]:
        """Do what `refresh` does, in pieces: others may have a turn between two."""
        self.store.refresh()
        pools = self._pools()
        for metrics in pools.values():
            yield
            metrics.refresh()
        self._merged.pools = {name: metrics.store for name, metrics in pools.items()}

    def refresh(self) -> None:
        """Read the live gauges: on the event loop, before `render`. 4 ms for 1000 endpoints."""
        for _ in self.refreshing():
            pass

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type; may run in another thread."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    # --- label sets ------------------------------------------------------------------------------

    def _flow(self, request: InferenceRequest) -> _Flow:
        key = (request.model, request.target_model, request.flow, request.priority)
        return self._flows.get(key) or self._new_flow(key)

    def _new_flow(self, key: tuple[str, str, str, int]) -> _Flow:
        model, target, fairness = key[0], key[1], key[2]
        labels = (self._models(model), self._models(target), self._fairness(fairness), str(key[3]))
        if labels not in self._flows_by_labels and len(self._flows_by_labels) >= MOST_FLOWS:
            labels = (OTHER, OTHER, OTHER, labels[3])
        flow = self._flows_by_labels.get(labels)
        if flow is None:
            flow = self._flows_by_labels[labels] = _Flow(self.store, labels)
        if len(self._flows) < MOST_FLOWS:
            self._flows[key] = flow  # remembered without bound, it would be the leak we prevent
        return flow

    def _error(self, code: str, labels: Iterable[str]) -> None:
        self.store[f"{PREFIX}request_error_total"].number(*labels, code).add()

    def _new_attempts(self, target_model: str, endpoint: Endpoint) -> Number:
        target = self._models(target_model) if len(self._attempts) < MOST_ATTEMPTS else OTHER
        labels = ("success", target, endpoint.name, endpoint.namespace, str(endpoint.port))
        number = self.store[f"{PREFIX}scheduler_attempts_total"].number(*labels)
        mine = self._attempt_labels.setdefault(endpoint.id, [])
        if labels not in mine:
            mine.append(labels)
        if target == target_model:
            self._attempts[(target_model, endpoint.id)] = number
        return number

    def _new_hits(self, producer: str) -> tuple[Histogram, Histogram]:
        labels = (producer, self.plugin_types.get(producer, producer))
        self._hits[producer] = found = (
            self.store[f"{PREFIX}prefix_indexer_hit_ratio"].histogram(*labels),
            self.store[f"{PREFIX}prefix_indexer_hit_bytes"].histogram(*labels),
        )
        return found


class _Flow:
    """The counts of requests with the same labels; histograms appear with their first value."""

    __slots__ = ("_histograms", "_store", "labels", "running", "size", "total")

    def __init__(self, store: Store, labels: Labels) -> None:
        self.labels = labels
        self.total = store[f"{PREFIX}request_total"].number(*labels)
        self.running = store[f"{PREFIX}request_running"].number(*labels)
        self.size = store[f"{PREFIX}request_size_bytes"].histogram(*labels)
        self._store = store
        self._histograms: dict[tuple[str, str], Histogram] = {}

    def observe(self, name: str, value: float, more: str = "") -> None:
        """Count ``value`` in a histogram that has these labels, and ``more`` if given."""
        histogram = self._histograms.get((name, more))
        if histogram is None:
            labels = (*self.labels, more) if more else self.labels
            histogram = self._store[PREFIX + name].histogram(*labels)
            self._histograms[(name, more)] = histogram
        histogram.observe(value)


def _count_tokens(flow: _Flow, usage: Usage) -> None:
    if usage.prompt_tokens is not None:
        flow.observe("request_input_tokens", usage.prompt_tokens)
    if usage.cached_tokens is not None:
        flow.observe("request_cached_tokens", usage.cached_tokens)
    if usage.completion_tokens is not None:
        flow.observe("request_output_tokens", usage.completion_tokens)


def _error_code(error: EppError) -> str:
    if isinstance(error, BadRequest | TooLarge | TooSlow):
        return "BadRequest"
    if isinstance(error, UnknownPool):
        return "NotFound"
    if isinstance(error, NoKvCache):
        return "PreconditionFailed"
    if isinstance(error, Dropped):
        return "InferencePoolResourceExhausted"
    return "ServiceUnavailable" if isinstance(error, Unavailable) else "Internal"
