"""Every header and metadata key the picker reads or writes, spelled once. All lower-case.

Source: Gateway API Inference Extension, proposal 004 (endpoint picker protocol);
the names of llm-d-router's endpoint picker, with the older GAIE names as aliases.
"""

from __future__ import annotations

from collections.abc import Mapping

# --- the pick ---------------------------------------------------------------------
DESTINATION = "x-gateway-destination-endpoint"
DESTINATION_NAMESPACE = "envoy.lb"
SCORES = "x-gateway-destination-endpoint-scores"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
OWN_NAMESPACE = "epp"
"""What our gateway configuration's filters and we tell Envoy's access log. `DESTINATION_NAMESPACE`
would be taken over by more gateways, but balancers by subsets find nothing by one key too many."""
EXCHANGE = "exchange"  #: in `OWN_NAMESPACE`: the exchange's name, see `feedback.unseen`
DROP_REASON = "x-llm-d-request-dropped-reason"

# --- what a client may ask for: the current name, then its older alias ------------
FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
MODEL_REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
SLO_TTFT_MS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
SLO_TPOT_MS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
DEFAULT_FLOW = "default-flow"

# --- prefill/decode and data parallel ---------------------------------------------
PREFILLER = "x-prefiller-host-port"
ENCODERS = "x-encoder-hosts-ports"
DATA_PARALLEL = "x-data-parallel-host-port"
KV_SOURCE = "x-kv-cache-source-host-port"
RANK = "x-data-parallel-rank"

# --- the rest ----------------------------------------------------------------------
REQUEST_ID = "x-request-id"
SESSION_TOKEN = "x-session-token"  # noqa: S105 - a header's name
SESSION_ID = "x-session-id"
PREFER = "prefer"
PROFILE = "epp-profile"
TEST_SELECTION = "test-epp-endpoint-selection"
TEST_SERVED = "x-conformance-test-served-endpoint"
RETRY_AFTER = "retry-after"
DECISION = "x-epp-decision"

#: Only we may set these: a client's copy is removed before the request is forwarded.
#: A client that could set them would choose its own destination or make a sidecar call
#: any host, or send all its requests to one rank of an engine. `x-prefiller-url` is an older
#: sidecar's spelling of `PREFILLER`.
CONTROL = frozenset(
    {
        DESTINATION, SERVED, SUBSET, SCORES, PREFILLER, "x-prefiller-url", ENCODERS,
        DATA_PARALLEL, KV_SOURCE, RANK, DROP_REASON,
    }
)  # fmt: skip

#: Hop-by-hop headers (RFC 9110, 7.6.1) and those that describe the body's length.
NEVER_SET = frozenset(
    {
        "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade", "proxy-authenticate", "proxy-authorization", "content-length", "host",
    }
)  # fmt: skip


def first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the value of the first of ``names`` that is present and not empty, else ''."""
    for name in names:
        if value := headers.get(name):
            return value
    return ""
