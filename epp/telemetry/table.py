"""Every metric the picker writes, declared once: name, kind, labels, buckets, older twin.

The names are the Go router's, so that its dashboards, alerts and autoscalers go on working; a
metric with an older name is written under both, from one count. ``epp_`` names are ours.

**Source:** llm-d-router's and the Gateway API Inference Extension's metrics, buckets included
(32778 is theirs).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]

PREFIX = "llm_d_epp_"


class Twin(msgspec.Struct, frozen=True):
    """The older name of a metric."""

    name: str
    labels: tuple[str, ...]  #: its labels; "new=old" where the name differs


class Spec(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    twin: Twin | None = None


def _powers(first: int, last: int) -> tuple[float, ...]:
    return tuple(float(2**power) for power in range(first, last + 1))


_WHOLE = (.005, .025, .05, .1, .2, .4, .6, .8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0,
          15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
          1200.0, 1800.0, 2700.0, 3600.0)  # fmt: skip
_FIRST = tuple(bound for bound in _WHOLE if bound <= 120)
_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_STREAMED = (.0005, .00205, .005, .01, .02, .04, .06, .08, .1, .125, .15, .2, .3, .4, .5, .6, .8,
             1.0, 2.0)  # fmt: skip
_BETWEEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0)
_SCHEDULER = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_PROCESSING = (.0005, .001, .002, .005, .01, .015, .025, .04, .06, .1, .25, .5, 1.0, 2.5, 5.0,
               10.0)  # fmt: skip
_LIVES = (.001, .005, .01, .05, .1, .5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
          600.0)  # fmt: skip
_ANSWERING = (.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1.0, 2.5,
              5.0)  # fmt: skip
_ANSWER_BYTES = (1.0, *_powers(3, 14), 32_778.0, 65_536.0)
_INPUT = (1.0, *_powers(3, 14), 32_778.0, *_powers(16, 20))
_OUTPUT = (1.0, *_powers(3, 13))

_M = ("model_name", "target_model_name", "fairness_id", "priority")
_OLD_M = ("model_name", "target_model_name")
_POOL = ("name",)
_PLUGIN = ("plugin_name", "plugin_type")


def _objective(name: str, *labels: str) -> Twin:
    return Twin(f"inference_objective_{name}", (*_OLD_M, *labels))


def _pool_gauge(name: str, text: str, twin: str = "") -> Spec:
    old = Twin(f"inference_pool_{twin}", _POOL) if twin else None
    return Spec(PREFIX + name, "gauge", text, _POOL, twin=old)


def _request(name: str, kind: Kind, text: str, buckets: tuple[float, ...] = (), *,
             more: tuple[str, ...] = (), twin: Twin | None = None) -> Spec:  # fmt: skip
    return Spec(f"{PREFIX}request_{name}", kind, text, (*_M, *more), buckets, twin)


def _decision(name: str, text: str) -> Spec:
    labels = ("plugin_name", "plugin_type", "model_name", "decision_type")
    twin = Twin(f"llm_d_inference_scheduler_{name}", labels)
    return Spec(PREFIX + name, "counter", text, labels, twin=twin)


REQUESTS = (
    _request("total", "counter", "Requests sent to an endpoint.",
             twin=_objective("request_total", "priority")),
    _request("error_total", "counter", "Requests that failed.", more=("error_code",),
             twin=_objective("request_error_total", "error_code")),
    _request("duration_seconds", "histogram", "Arrival to the end of the answer.", _WHOLE,
             twin=_objective("request_duration_seconds")),
    _request("size_bytes", "histogram", "Request body.", _powers(6, 30),
             twin=_objective("request_sizes")),
    Spec(f"{PREFIX}response_size_bytes", "histogram", "Response body.", _M, _ANSWER_BYTES,
         _objective("response_sizes")),
    _request("input_tokens", "histogram", "Prompt tokens, as the engine counts.", _INPUT,
             twin=_objective("input_tokens")),
    _request("output_tokens", "histogram", "Output tokens, as the engine counts.", _OUTPUT,
             twin=_objective("output_tokens")),
    _request("cached_tokens", "histogram", "Prompt tokens found cached by the engine.", _INPUT,
             twin=_objective("prompt_cached_tokens")),
    _request("running", "gauge", "Requests sent and not ended.",
             twin=Twin("inference_objective_running_requests", ("model_name",))),
    _request("ntpot_seconds", "histogram", "Duration per output token.", _PER_TOKEN,
             twin=_objective("normalized_time_per_output_token_seconds")),
    _request("ttft_seconds", "histogram", "Arrival to the answer's first byte.", _FIRST,
             more=("streaming",)),
    _request("streaming_tpot_seconds", "histogram", "Time per output token after the first.",
             _STREAMED),
    _request("streaming_itl_seconds", "histogram",
             "Time between two pieces of a stream that passes through, of one answer in 16.",
             _BETWEEN),
)  # fmt: skip

POOL = (
    _pool_gauge("average_kv_cache_utilization", "Mean KV usage of the endpoints that tell it.",
                "average_kv_cache_utilization"),
    _pool_gauge("average_queue_size", "Mean requests waiting in an engine.", "average_queue_size"),
    _pool_gauge("average_running_requests", "Mean requests running in an engine.",
                "average_running_requests"),
    _pool_gauge("std_dev_kv_cache_utilization", "Standard deviation of KV usage."),
    _pool_gauge("std_dev_queue_size", "Standard deviation of waiting requests."),
    _pool_gauge("std_dev_running_requests", "Standard deviation of running requests."),
    _pool_gauge("ready_endpoints", "Endpoints that may get requests.", "ready_pods"),
    Spec(f"{PREFIX}per_endpoint_queue_size", "gauge", "Requests waiting in one engine.",
         ("name", "model_server_endpoint"),
         twin=Twin("inference_pool_per_pod_queue_size",
                   ("name", "model_server_endpoint=model_server_pod"))),
    Spec(f"{PREFIX}inflight_requests", "gauge", "Requests sent to an endpoint and not ended.",
         ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")),
    Spec(f"{PREFIX}inflight_tokens", "gauge", "Uncached prompt tokens of those.",
         ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")),
    Spec("epp_stale_endpoints", "gauge", "Endpoints whose load is not known.", _POOL),
    Spec("epp_draining_endpoints", "gauge", "Endpoints that get nothing new.", _POOL),
    Spec("epp_unreachable_endpoints", "gauge", "Endpoints where nothing listens.", _POOL),
    Spec("epp_asleep_endpoints", "gauge", "Endpoints whose engine sleeps.", _POOL),
)  # fmt: skip

_KIND = ("plugin_type", "plugin_name")
TENTHS = tuple(tenth / 10 for tenth in range(11))
PICKER = (
    Spec(f"{PREFIX}scheduler_e2e_duration_seconds", "histogram", "Time of one decision.",
         buckets=_SCHEDULER, twin=Twin("inference_extension_scheduler_e2e_duration_seconds", ())),
    Spec(f"{PREFIX}scheduler_attempts_total", "counter", "Decisions, by what they chose.",
         ("status", "target_model_name", "endpoint_name", "namespace", "port"),
         twin=Twin("inference_extension_scheduler_attempts_total",
                   ("status", "target_model_name", "endpoint_name=pod_name", "namespace",
                    "port"))),
    Spec(f"{PREFIX}plugin_duration_seconds", "histogram",
         "Time of one call of a plugin, measured in one decision of 16.",
         ("extension_point", "plugin_type", "plugin_name"), _SCHEDULER,
         Twin("inference_extension_plugin_duration_seconds",
              ("extension_point", "plugin_type", "plugin_name"))),
    Spec(f"{PREFIX}request_processing_duration_seconds", "histogram",
         "Arrival to the decision, waiting included.", buckets=_PROCESSING),
    Spec(f"{PREFIX}response_processing_duration_seconds", "histogram",
         "Our own work on a stream that passes through, or the time from another answer's head to "
         "its end, of one answer in 16.", buckets=_ANSWERING),
    Spec(f"{PREFIX}info", "gauge", "The build; always 1.", ("commit", "build_ref"),
         twin=Twin("inference_extension_info", ("commit", "build_ref"))),
    Spec(f"{PREFIX}model_rewrite_decisions_total", "counter", "Models chosen by a rewrite rule.",
         ("model_rewrite_name", "model_name", "target_model"),
         twin=Twin("inference_extension_model_rewrite_decisions_total",
                   ("model_rewrite_name", "model_name", "target_model"))),
    Spec(f"{PREFIX}datalayer_poll_errors_total", "counter", "Scrapes without a page.",
         ("source_type",),
         twin=Twin("llm_d_inference_scheduler_datalayer_poll_errors_total", ("source_type",))),
    Spec(f"{PREFIX}datalayer_extract_errors_total", "counter", "Pages that could not be read.",
         ("source_type", "extractor_type"),
         twin=Twin("llm_d_inference_scheduler_datalayer_extract_errors_total",
                   ("source_type", "extractor_type"))),
    Spec(f"{PREFIX}prefix_indexer_size", "gauge", "Blocks in the prefix index.", _PLUGIN,
         twin=Twin("inference_extension_prefix_indexer_size", ())),
    Spec(f"{PREFIX}prefix_indexer_hit_ratio", "histogram", "Share of a prompt held where it went.",
         _PLUGIN, TENTHS,
         Twin("inference_extension_prefix_indexer_hit_ratio", ())),
    Spec(f"{PREFIX}prefix_indexer_hit_bytes", "histogram", "Bytes of a prompt held where it went.",
         _PLUGIN, (0.0, *_powers(4, 16)), Twin("inference_extension_prefix_indexer_hit_bytes", ())),
    Spec(f"{PREFIX}encoder_cache_queries_total", "counter",
         "Images, sounds and the like whose encoders were looked for.", (*_KIND, "modality")),
    Spec(f"{PREFIX}encoder_cache_hits_total", "counter",
         "Those of them that an endpoint is believed to have encoded.",
         (*_KIND, "pod", "modality")),
    Spec(f"{PREFIX}encoder_cache_hit_ratio", "histogram",
         "Share of a request's media that an endpoint is believed to have encoded.",
         _KIND, TENTHS),
    Spec(f"{PREFIX}flow_control_pool_saturation", "gauge", "How full the pool is; 1 is full.",
         ("inference_pool", "stage"),
         twin=Twin("inference_extension_flow_control_pool_saturation",
                   ("inference_pool", "stage"))),
    _decision("disagg_decision_total", "Requests placed by disagg-profile-handler, by stages."),
    _decision("pd_decision_total", "Requests placed by pd-profile-handler, by stages."),
    Spec(f"{PREFIX}extproc_streams_inflight", "gauge", "Open ext_proc streams."),
    Spec(f"{PREFIX}extproc_streams_total", "counter", "Ended ext_proc streams, by gRPC status.",
         ("code",)),
    Spec(f"{PREFIX}extproc_stream_duration_seconds", "histogram", "Life of an ext_proc stream.",
         buckets=_LIVES),
)  # fmt: skip

OURS = (
    Spec("epp_scrape_errors_total", "counter", "Failed scrapes, by reason.", ("reason",)),
    Spec("epp_unread_requests_total", "counter", "Requests routed without being understood.",
         ("reason",)),
    Spec("epp_refused_requests_total", "counter", "Requests answered with an error.",
         ("status", "reason")),
    Spec("epp_ended_requests_total", "counter", "Requests that ended, by how.", ("outcome",)),
    Spec("epp_seconds_since_last_stream", "gauge",
         "Since an ext_proc stream was last open, or since the start; 0 while one is."),
    Spec("epp_spurious_messages_total", "counter", "Messages that the protocol does not allow."),
    Spec("epp_plugin_faults_total", "counter", "Calls of a plugin that failed, by how.",
         ("plugin_name", "fault")),
    Spec("epp_disabled_plugins", "gauge", "1: switched off after repeated faults.",
         ("plugin_name", "plugin_type")),
    Spec("epp_config_reloads_total", "counter", "Reloads of the configuration.", ("result",)),
    Spec("epp_config_current", "gauge", "1: the configuration file is what is in use."),
    Spec("epp_leader", "gauge",
         "1: this replica holds the Lease, 0: another one may; absent without an election."),
    Spec("epp_buffered_bytes", "gauge", "Request bytes held in memory."),
    Spec("epp_open_exchanges", "gauge", "Requests whose end is awaited from elsewhere."),
    Spec("epp_reaped_requests_total", "counter", "Requests given up: nobody told their end."),
    Spec("epp_recorded_requests_total", "counter", "Requests written to --record-file."),
    Spec("epp_record_dropped_total", "counter", "Requests not recorded: queue full, or an error.",
         ("reason",)),
)  # fmt: skip

LEGS = (
    Spec("epp_stages_total", "counter", "Requests by where their stages run, and why.",
         ("stages", "reason")),
    Spec("epp_prefill_legs_total", "counter",
         "Prompts that the picker was to have computed elsewhere: done, or why not.", ("reason",)),
    Spec("epp_prefill_leg_seconds", "histogram",
         "Parts of a prompt's time elsewhere: its queue, its computing, the cache's way.",
         ("part",), _FIRST),
    Spec("epp_prefill_stranded_total", "counter",
         "Caches computed elsewhere that nobody has read, so that they stay until a lease ends."),
)  # fmt: skip

_ENDPOINT = ("endpoint_name", "namespace", "port")
_MISSED = (0.0, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0)
_RATIO = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_STREAMING = ("priority", "streaming")


def _first(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _FIRST) -> Spec:
    text = f"Part of the time to the first byte: {text}"
    return Spec(f"epp_ttft_{name}_seconds", "histogram", text, labels or ("priority",), buckets)


TRUTH = (
    Spec("epp_prefix_predicted_tokens_total", "counter",
         "Prompt tokens believed cached where a request went, if the engine told the truth.",
         _ENDPOINT),
    Spec("epp_prefix_cached_tokens_total", "counter",
         "Prompt tokens of the same requests that the engine found cached.", _ENDPOINT),
    Spec("epp_prefix_missed_tokens_total", "counter",
         "Prompt tokens believed cached that the engine did not find.", _ENDPOINT),
    Spec("epp_prefix_missed_ratio", "histogram",
         "Share of the tokens believed cached for a request that the engine did not find.",
         buckets=_MISSED),
    Spec("epp_prefix_unknown_requests_total", "counter",
         "Requests placed without knowing any of their prompt, by why.", ("reason",)),
    _first("wait", "waiting for leave to go on.", *_STREAMING),
    _first("decision", "the picker's own work.", *_STREAMING,
           buckets=(*_SCHEDULER, *_PROCESSING[10:])),
    _first("engine", "gateway, network, the engine's queue and prefill.", *_STREAMING),
    _first("remote_prefill", "queue and prefill of another endpoint, by its speed learned."),
    _first("queue", "prefill of requests before it, by the speed learned."),
    _first("prefill", "its own uncached tokens, by the speed learned."),
    _first("rest", "what is left of the engine's part: gateway, network, first steps."),
    Spec("epp_ttft_expected_seconds", "histogram",
         "Time to the first byte as expected at the pick, of streams whose first byte was seen.",
         ("priority",), _FIRST),
    Spec("epp_ttft_error_ratio", "histogram",
         "The engine's part of the time to the first byte, measured over expected.",
         ("role",), _RATIO),
    Spec("epp_learned_prefill_seconds_per_token", "gauge",
         "What an endpoint takes for an uncached prompt token, as its streamed answers taught.",
         _ENDPOINT),
    Spec("epp_learned_first_byte_rest_seconds", "gauge",
         "What it takes for a first byte besides.", _ENDPOINT),
)  # fmt: skip

_RANK = (*_ENDPOINT, "rank")
KNOWLEDGE = (
    Spec("epp_tokens_requests_total", "counter",
         "Requests by who told their token ids, and why nobody did.",
         (*_PLUGIN, "source", "reason")),
    Spec("epp_kv_requests_total", "counter",
         "Requests by what told of their prefix, and why nothing better did.",
         (*_PLUGIN, "source", "reason")),
    Spec("epp_kv_trust", "gauge", "1 for how far an engine's KV events are believed, and why.",
         (*_RANK, "level", "reason")),
    Spec("epp_kv_messages_total", "counter", "Messages with KV events taken in.", _RANK),
    Spec("epp_kv_gaps_total", "counter", "Times that messages were missing.", _RANK),
    Spec("epp_kv_lost_messages_total", "counter", "Messages that nobody had any more.", _RANK),
    Spec("epp_kv_replays_total", "counter", "Times that old messages were asked for.", _RANK),
    Spec("epp_kv_restarts_total", "counter", "Times that an engine began anew.", _RANK),
    Spec("epp_kv_unread_total", "counter", "Messages and events that were of no use.", _RANK),
    Spec("epp_kv_unopened_total", "counter",
         "Times that a socket for an engine's KV events could not be opened.", _RANK),
    Spec("epp_kv_lag_seconds", "gauge", "From an engine's last event to here, by both clocks.",
         _RANK),
    Spec("epp_kv_blocks", "gauge", "Different blocks that engines told of.", _PLUGIN),
    Spec("epp_kv_bytes", "gauge", "Memory of these.", _PLUGIN),
    Spec("epp_kv_refused_blocks_total", "counter", "Blocks that there was no room for.", _PLUGIN),
    Spec("epp_kv_computed_prompts_total", "counter",
         "Prompts whose tokens in flight ended with the event of their last block.", _PLUGIN),
    Spec("epp_kv_waiting_events", "gauge", "Events whose parent block is not known yet.", _PLUGIN),
)  # fmt: skip

PEERS = (
    Spec("epp_peers", "gauge", "Other pickers that this one hears.", _POOL),
    Spec("epp_peers_followers", "gauge", "Other pickers that hear this one.", _POOL),
    Spec("epp_peers_requests", "gauge", "Requests that other pickers have under way.", _POOL),
    Spec("epp_peers_lag_seconds", "gauge",
         "What the last message of a picker took longer than its quickest of late.",
         ("name", "peer")),
    Spec("epp_peers_told_events_total", "counter", "Events told to other pickers.", _POOL),
    Spec("epp_peers_told_bytes_total", "counter", "Bytes sent to all of them.", _POOL),
    Spec("epp_peers_heard_events_total", "counter", "Events heard of other pickers.", _POOL),
    Spec("epp_peers_heard_bytes_total", "counter", "Bytes received of them.", _POOL),
    Spec("epp_peers_unknown_endpoints_total", "counter",
         "Requests that other pickers told of, for endpoints that this one does not know.", _POOL),
    Spec("epp_peers_refused_facts_total", "counter",
         "Facts of other pickers that no plugin could read.", _POOL),
    Spec("epp_peers_cut_off_total", "counter", "Times that a picker read too slowly to be told.",
         _POOL),
    Spec("epp_peers_told_entries_total", "counter",
         "Entries of access logs told to other pickers, whose requests they are of.", _POOL),
    Spec("epp_peers_heard_entries_total", "counter",
         "Entries of access logs that other pickers told.", _POOL),
)  # fmt: skip

METRICS = (*REQUESTS, *POOL, *PICKER, *OURS, *LEGS, *TRUTH, *KNOWLEDGE, *PEERS)
