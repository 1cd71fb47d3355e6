"""What is counted, and how the page looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from epp.clock import ManualClock
from epp.errors import BadRequest, EppError, Internal, NoEndpoints, NoKvCache, Saturated
from epp.ledger import Ledger
from epp.model import Ending, EndpointId, Outcome, PrefixMatch, Usage
from epp.observe.metrics import MetricsObserver
from epp.plugin import Observer
from epp.telemetry.metrics import Metrics
from epp.telemetry.table import METRICS
from tests.support import build

TABLE = Path(__file__).parents[2] / "data" / "metrics_table.tsv"
M = {"model_name": "llama", "target_model_name": "llama", "fairness_id": "", "priority": "0"}


def families(metrics: Metrics) -> dict[str, Metric]:
    """The page's metrics by their exposed name."""
    metrics.refresh()
    page, _ = metrics.render()
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = family
    return found


def value(metrics: Metrics, sample: str, **labels: str) -> float | None:
    """One sample's value; None if it is not on the page."""
    for family in families(metrics).values():
        for each in family.samples:
            if each.name == sample and each.labels == labels:
                return each.value
    return None


def counted(prompt: int | None = 100, output: int | None = 21, cached: int | None = 64) -> Usage:
    return Usage(prompt, output, cached)


def one_request(
    metrics: Metrics, *, usage: Usage | None = None, outcome: Outcome = Outcome.COMPLETED,
    first_byte_at: float | None = 10.5, streamed: bool = True, **facts: Any,
) -> None:  # fmt: skip
    """Arrives at 10.0 s, is picked at 10.1 s, ends at 14.0 s."""
    request = build.request(arrived_at=10.0, **facts)
    observer = MetricsObserver(metrics, ManualClock(10.1))
    observer.picked(request, build.pick("a"))
    ending = Ending(
        outcome=outcome, at=14.0, status=200, first_byte_at=first_byte_at, response_bytes=1000,
        streamed=streamed, usage=usage,
    )  # fmt: skip
    observer.ended(request, build.pick("a"), ending)


# --- names, types, labels, buckets -------------------------------------------------------------


def table() -> dict[str, tuple[str, set[str], list[float]]]:
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    return {
        name: (
            kind,
            {label for label in labels.split(",") if label},
            [float(bound) for bound in buckets.split(",") if bound],
        )
        for name, kind, labels, buckets in rows
    }


def everything() -> dict[str, Metric]:
    metrics = Metrics(process=False)
    for spec in METRICS:
        family = metrics.store[spec.name]
        labels = [f"<{label}>" for label in spec.labels]
        if spec.kind == "histogram":
            family.histogram(*labels).observe(1.0)
        else:
            family.number(*labels).add()
    return families(metrics)


def test_names_types_labels_and_buckets_are_those_of_the_table() -> None:
    shown = {}
    for name, family in everything().items():
        if name.startswith("epp_"):
            continue
        samples = [s for s in family.samples if "<commit>" in s.labels.values()] or family.samples
        labels = {label for sample in samples for label in sample.labels} - {"le"}
        bounds = [float(s.labels["le"]) for s in samples if s.name.endswith("_bucket")]
        shown[name] = (family.type, labels, [bound for bound in bounds if bound != float("inf")])
    assert shown == table()


def test_every_help_text_tells_the_stability() -> None:
    assert {family.documentation[:8] for family in everything().values()} == {"[ALPHA] "}


def test_a_metric_is_declared_once() -> None:
    names = [spec.name for spec in METRICS] + [s.twin.name for s in METRICS if s.twin]
    assert len(names) == len(set(names))


# --- requests --------------------------------------------------------------------------------------


def test_the_observer_is_one() -> None:
    assert isinstance(MetricsObserver(Metrics(process=False), ManualClock()), Observer)


def test_a_completed_stream_fills_everything() -> None:
    metrics = Metrics(process=False)
    one_request(metrics, usage=counted(), body=b"x" * 100)
    old = {"model_name": "llama", "target_model_name": "llama"}
    assert value(metrics, "llm_d_epp_request_total", **M) == 1
    assert value(metrics, "inference_objective_request_total", **old, priority="0") == 1
    assert value(metrics, "llm_d_epp_request_running", **M) == 0
    assert value(metrics, "llm_d_epp_request_duration_seconds_sum", **M) == 4.0
    assert value(metrics, "inference_objective_request_duration_seconds_sum", **old) == 4.0
    assert value(metrics, "llm_d_epp_request_size_bytes_sum", **M) == 100
    assert value(metrics, "llm_d_epp_response_size_bytes_sum", **M) == 1000
    assert value(metrics, "llm_d_epp_request_ttft_seconds_sum", **M, streaming="true") == 0.5
    assert value(metrics, "llm_d_epp_request_input_tokens_sum", **M) == 100
    assert value(metrics, "llm_d_epp_request_output_tokens_sum", **M) == 21
    assert value(metrics, "llm_d_epp_request_cached_tokens_sum", **M) == 64
    assert value(metrics, "llm_d_epp_request_ntpot_seconds_sum", **M) == pytest.approx(4.0 / 21)
    tpot = value(metrics, "llm_d_epp_request_streaming_tpot_seconds_sum", **M)
    assert tpot == pytest.approx(3.5 / 20)
    processing = value(metrics, "llm_d_epp_request_processing_duration_seconds_sum")
    assert processing == pytest.approx(0.1)


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    metrics = Metrics(process=False)
    one_request(metrics)  # 4 s exactly
    name = "llm_d_epp_request_duration_seconds_bucket"
    assert value(metrics, name, **M, le="3.0") == 0
    assert value(metrics, name, **M, le="4.0") == 1
    assert value(metrics, name, **M, le="+Inf") == 1


def test_what_was_not_told_is_absent_and_not_zero() -> None:
    metrics = Metrics(process=False)
    one_request(metrics, first_byte_at=None, body=b"")
    shown = families(metrics)
    for name in ("input_tokens", "output_tokens", "cached_tokens", "ttft_seconds", "ntpot_seconds"):
        assert f"llm_d_epp_request_{name}" not in shown


def test_an_abandoned_request_has_no_duration() -> None:
    metrics = Metrics(process=False)
    one_request(metrics, outcome=Outcome.ABANDONED)
    assert "llm_d_epp_request_duration_seconds" not in families(metrics)
    assert value(metrics, "epp_ended_requests_total", outcome="abandoned") == 1


def test_a_failed_request_is_the_model_servers_error() -> None:
    metrics = Metrics(process=False)
    one_request(metrics, outcome=Outcome.FAILED)
    assert value(metrics, "llm_d_epp_request_error_total", **M, error_code="ModelServerError") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadRequest("x"), "BadRequest"),
        (NoKvCache("x"), "PreconditionFailed"),
        (Saturated("x"), "InferencePoolResourceExhausted"),
        (NoEndpoints("x"), "ServiceUnavailable"),
        (Internal("x"), "Internal"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_refusals_are_counted_by_reason(error: EppError, code: str) -> None:
    metrics = Metrics(process=False)
    metrics.refused(error)
    labels = {"status": str(error.status), "reason": error.reason}
    assert value(metrics, "epp_refused_requests_total", **labels) == 1
    nobody = dict.fromkeys(("model_name", "target_model_name", "fairness_id"), "")
    total = value(metrics, "llm_d_epp_request_error_total", **nobody, priority="0", error_code=code)
    assert total == 1


def test_b061_a_picker_that_no_gateway_asks_says_for_how_long() -> None:
    """Field problem B061 (istio/istio#57855): the gateway asked another service instead."""
    clock = ManualClock(100.0)
    metrics = Metrics(process=False, now=clock.now)

    def told() -> float | None:
        metrics.refresh()
        return value(metrics, "epp_seconds_since_last_stream")

    clock.advance(30.0)
    assert told() == 30.0  # none since the start
    metrics.stream_started()
    metrics.stream_started()
    metrics.stream_ended()
    clock.advance(600.0)
    assert told() == 0.0  # one is open, however long
    metrics.stream_ended()
    assert told() == 0.0
    clock.advance(45.0)
    assert told() == 45.0
    metrics.stream_started()
    metrics.stream_ended()
    assert told() == 0.0  # one that was short


def test_choices_by_rewrite_rules_are_counted() -> None:
    metrics = Metrics(process=False)
    metrics.rewritten("rule", "public", "private")
    metrics.rewritten("rule", "public", "private")
    labels = {"model_rewrite_name": "rule", "model_name": "public", "target_model": "private"}
    assert value(metrics, "llm_d_epp_model_rewrite_decisions_total", **labels) == 2
    assert value(metrics, "inference_extension_model_rewrite_decisions_total", **labels) == 2


def test_an_older_name_is_the_sum_over_the_labels_it_lacks() -> None:
    metrics = Metrics(process=False)
    one_request(metrics, flow="alice")
    one_request(metrics, flow="bob")
    old = {"model_name": "llama", "target_model_name": "llama"}
    assert value(metrics, "inference_objective_request_total", **old, priority="0") == 2
    assert value(metrics, "inference_objective_request_duration_seconds_sum", **old) == 8.0
    assert value(metrics, "inference_objective_request_duration_seconds_count", **old) == 2


def test_prefix_hits_are_measured_where_the_request_went() -> None:
    metrics = Metrics(process=False)
    metrics.plugin_types = {"mine": "approx-prefix-cache-producer"}
    match = PrefixMatch((1, 2, 3, 4), 16, {EndpointId("a"): 1, EndpointId("b"): 4})  # type: ignore[arg-type]
    one_request(metrics, prefix={"mine": match})
    labels = {"plugin_name": "mine", "plugin_type": "approx-prefix-cache-producer"}
    assert value(metrics, "llm_d_epp_prefix_indexer_hit_ratio_sum", **labels) == 0.25
    assert value(metrics, "llm_d_epp_prefix_indexer_hit_bytes_sum", **labels) == 64
    assert value(metrics, "inference_extension_prefix_indexer_hit_ratio_sum") == 0.25


def test_requests_that_were_not_understood_are_counted_by_reason() -> None:
    metrics = Metrics(process=False)
    one_request(metrics, unread="content-type")
    assert value(metrics, "epp_unread_requests_total", reason="content-type") == 1


# --- bounds ----------------------------------------------------------------------------------------


def test_b174_random_model_names_make_no_unlimited_series() -> None:
    """Field problem llm-d/llm-d-router#1625: a model label from the body is the client's."""
    metrics = Metrics(process=False)
    requests = [build.request(model=f"m{i}", target_model=f"m{i}") for i in range(5000)]
    for request in requests:
        metrics.picked(request, build.pick("a"), now=0.0)
    for request in requests:
        metrics.ended(request, Ending(Outcome.COMPLETED, 1.0))
    running = metrics.store["llm_d_epp_request_running"].numbers
    assert len(running) == 1001
    assert {number.value for number in running.values()} == {0.0}
    totals = metrics.store["llm_d_epp_request_total"].numbers
    assert totals["other", "other", "other", "0"].value == 4000


def test_random_fairness_ids_and_model_names_together_are_bounded() -> None:
    metrics = Metrics(process=False)
    for i in range(3000):
        request = build.request(model=f"m{i % 100}", target_model=f"m{i % 100}", flow=f"f{i}")
        metrics.picked(request, build.pick("a"), now=0.0)
    assert len(metrics.store["llm_d_epp_request_total"].numbers) == 1001


def test_a_huge_model_name_is_not_kept() -> None:
    metrics = Metrics(process=False)
    one_request(metrics, model="x" * 10_000, target_model="x" * 10_000)
    page, _ = metrics.render()
    assert b"xxxx" not in page


def test_names_that_are_not_utf_8_leave_the_page_readable() -> None:
    metrics = Metrics(process=False)
    one_request(metrics, model="m\udcff", target_model="m\udcff", flow="\udcfe")
    labels = {"model_name": "m\\udcff", "target_model_name": "m\\udcff"}
    found = value(metrics, "llm_d_epp_request_total", fairness_id="\\udcfe", priority="0", **labels)
    assert found == 1
    assert value(metrics, "inference_objective_request_sizes_count", **labels) == 1


def test_b077_series_of_an_endpoint_go_with_it() -> None:
    """Field problem vllm-project/production-stack#888: its series stayed for ever."""
    metrics = Metrics(process=False)
    here = [build.endpoint("gone", queued=3), build.endpoint("stays", queued=4)]
    metrics.watch_pool("pool", lambda: here, Ledger())
    for endpoint in here:
        metrics.picked(build.request(), build.pick(endpoint.name), now=0.0)
    assert any("gone" in str(s.labels) for f in families(metrics).values() for s in f.samples)
    here.pop(0)
    metrics.forget(EndpointId("gone"))
    labels = [str(s.labels) for f in families(metrics).values() for s in f.samples]
    assert not any("gone" in each for each in labels)
    assert any("stays" in each for each in labels)


# --- the pool --------------------------------------------------------------------------------------


def test_gauges_about_the_pool() -> None:
    metrics = Metrics(process=False)
    ledger = Ledger()
    here = [
        build.endpoint("a", load=build.load(queued=2, running=4, kv_usage=0.2)),
        build.endpoint("b", load=build.load(queued=4, running=8, kv_usage=0.6), draining=True),
        build.endpoint("c", queued=None),
        build.endpoint("d", load=build.load(queued=None, running=None, kv_usage=None, asleep=True)),
        build.endpoint("e", queued=None, reachable=False),
    ]
    ledger.reserve(here[1], 50)
    metrics.watch_pool("pool", lambda: here, ledger)
    pool = {"name": "pool"}
    assert value(metrics, "llm_d_epp_average_queue_size", **pool) == 3
    assert value(metrics, "inference_pool_average_queue_size", **pool) == 3
    assert value(metrics, "llm_d_epp_std_dev_queue_size", **pool) == 1
    assert value(metrics, "llm_d_epp_average_running_requests", **pool) == 6
    assert value(metrics, "llm_d_epp_average_kv_cache_utilization", **pool) == pytest.approx(0.4)
    assert value(metrics, "llm_d_epp_ready_endpoints", **pool) == 3
    assert value(metrics, "epp_stale_endpoints", **pool) == 2
    assert value(metrics, "epp_draining_endpoints", **pool) == 1
    assert value(metrics, "epp_unreachable_endpoints", **pool) == 1
    assert value(metrics, "epp_asleep_endpoints", **pool) == 1
    queue = "llm_d_epp_per_endpoint_queue_size"
    assert value(metrics, queue, **pool, model_server_endpoint="a-rank-0") == 2
    assert value(metrics, queue, **pool, model_server_endpoint="c-rank-0") is None
    old = "inference_pool_per_pod_queue_size"
    assert value(metrics, old, **pool, model_server_pod="a-rank-0") == 2
    b = {"endpoint_name": "b-rank-0", "namespace": "default", "fairness_id": "", "priority": ""}
    producer = {"producer_name": "inflight-load-producer"}
    assert value(metrics, "llm_d_epp_inflight_requests", **b, **producer) == 1
    assert value(metrics, "llm_d_epp_inflight_tokens", **b, **producer) == 50


def test_averages_of_a_pool_that_tells_nothing_are_absent() -> None:
    metrics = Metrics(process=False)
    metrics.watch_pool("pool", lambda: [build.endpoint(queued=None)], Ledger())
    assert "llm_d_epp_average_queue_size" not in families(metrics)
    assert value(metrics, "epp_stale_endpoints", name="pool") == 1


# --- the rest --------------------------------------------------------------------------------------


def test_the_pickers_own_counts() -> None:
    metrics = Metrics(commit="abc", build_ref="v1", process=False)
    metrics.scheduled(0.0004)
    metrics.plugin_ran("Scorer", "queue-scorer", "q", 0.0004)
    metrics.plugin_failed("q", "raised")
    metrics.plugin_disabled("q", "queue-scorer")
    metrics.reloaded(ok=False)
    metrics.stream_started()
    metrics.stream_started()
    metrics.stream_ended()
    metrics.spurious(2)
    metrics.reaped()
    metrics.scrape_failed("timeout")
    metrics.lines_unreadable(3)
    metrics.live("epp_buffered_bytes", lambda: 17)
    q = {"plugin_name": "q", "plugin_type": "queue-scorer"}
    source = {"source_type": "metrics-data-source"}
    old = "inference_extension_scheduler_e2e_duration_seconds_count"
    assert value(metrics, "llm_d_epp_scheduler_e2e_duration_seconds_bucket", le="0.0005") == 1
    assert value(metrics, old) == 1
    name = "llm_d_epp_plugin_duration_seconds_count"
    assert value(metrics, name, **q, extension_point="Scorer") == 1
    assert value(metrics, "epp_plugin_faults_total", plugin_name="q", fault="raised") == 1
    assert value(metrics, "epp_disabled_plugins", **q) == 1
    assert value(metrics, "epp_config_reloads_total", result="failure") == 1
    assert value(metrics, "epp_config_current") == 0
    assert value(metrics, "llm_d_epp_extproc_streams_inflight") == 1
    assert value(metrics, "epp_spurious_messages_total") == 2
    assert value(metrics, "epp_reaped_requests_total") == 1
    assert value(metrics, "epp_scrape_errors_total", reason="timeout") == 1
    assert value(metrics, "llm_d_epp_datalayer_poll_errors_total", **source) == 1
    extractor = {"extractor_type": "core-metrics-extractor"}
    assert value(metrics, "llm_d_epp_datalayer_extract_errors_total", **source, **extractor) == 3
    assert value(metrics, "epp_buffered_bytes") == 17
    assert value(metrics, "llm_d_epp_info", commit="abc", build_ref="v1") == 1


def test_an_undeclared_live_gauge_is_refused() -> None:
    with pytest.raises(KeyError, match="epp_unheard_of"):
        Metrics(process=False).live("epp_unheard_of", lambda: 1)


def test_the_reader_chooses_the_format() -> None:
    metrics = Metrics(process=False)
    assert metrics.render()[1].startswith("text/plain; version=0.0.4")
    page, content_type = metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert page.endswith(b"# EOF\n")


def test_the_processes_own_metrics_are_there() -> None:
    page, _ = Metrics().render()
    assert b"process_resident_memory_bytes" in page
