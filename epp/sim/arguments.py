"""The flags of ``epp engine``."""

from __future__ import annotations

import argparse

from epp.sim import profiles
from epp.sim.options import EngineOptions
from epp.sim.transfer.faults import FAULTS
from epp.terminal.arguments import add_options, read_options

HELPS = {
    "host": "address to listen on",
    "port": "0 takes a free one; it is printed at start",
    "name": "sent back in the header x-engine-name",
    "models": "served model names; the first labels the metrics",
    "adapters": "LoRA adapters served too",
    "max_adapters": "adapters in one batch",
    "block_size": "tokens per KV block",
    "kv_blocks": "KV blocks; by default what the profile's GPU holds",
    "max_num_seqs": "requests in one batch",
    "max_num_batched_tokens": "tokens in one step",
    "max_model_len": "longest request in tokens",
    "max_num_queued_reqs": "more get 503; unbounded by default",
    "profile": "latency model: " + ", ".join(sorted(profiles.PROFILES)),
    "speed": "greater than 1 runs faster than life",
    "jitter": "standard deviation of step times, as a fraction",
    "seed": "same seed, same answers",
    "shutdown_timeout": "seconds to finish what is under way on SIGTERM; 0 aborts it",
    "prompt_tokens_details": "tell cached_tokens in usage",
    "max_body_bytes": "longest request body",
    "fail_rate": "fraction of requests answered 500, to test routers",
    "hang_metrics": "/metrics never answers, to test routers",
    "kv_events_port": "publish KV events over ZMQ here, plus the rank (0 takes a free one)",
    "kv_events_connect": "connect there to publish them, as tcp://picker:5557",
    "kv_events_replay_port": "answer who asks for old events here, plus the rank",
    "kv_events_topic": "of KV events, by convention kv@POD@MODEL",
    "kv_events_layout": "of KV events: map (vLLM since 0.24) or array (before, and SGLang)",
    "kv_events_buffer": "messages kept for who asks",
    "kv_events_drop": "fraction of messages never sent, to test routers",
    "kv_cpu_blocks": "KV blocks in the CPU's memory, where each is copied when it is computed; those that "
    "the GPU gave up are loaded from there",
    "kv_disk_blocks": "KV blocks on a disk, where each is copied too; they are loaded through the CPU's",
    "kv_cpu_rate": "tokens in a second from the CPU to the GPU",
    "kv_disk_rate": "and from the disk to the CPU",
    "data_parallel_rank": "told with KV events, and added to their ports",
    "role": "prefill keeps KV for who asks with kv_transfer_params, decode fetches it, both does "
    "both; without one these parameters are ignored",
    "kv_side_channel_port": "where KV is fetched; 0 takes a free one",
    "kv_lease_duration": "seconds for which KV is kept for who asked",
    "kv_load_failure_policy": "fail or recompute, of KV that cannot be fetched",
    "kv_connect_timeout": "seconds for the engine that has KV to answer",
    "kv_transfer_latency": "seconds that each transfer takes",
    "kv_transfer_rate": "and tokens in a second",
    "kv_faults": "what goes wrong with prefills, to test routers: "
    + "; ".join(f"{name} {what}" for name, what in FAULTS.items()),
    "kv_fault_rate": "fraction of prefills with which one of them does",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_options(parser, EngineOptions, HELPS)


def run(parsed: argparse.Namespace) -> int:
    """Run an engine until it is told to stop."""
    from epp.sim import serving  # noqa: PLC0415 - the HTTP server is only needed here

    serving.run(read_options(parsed, EngineOptions))
    return 0
