"""inference-perf's configuration: a trace's means, in the two workloads it can generate.

It cannot be told single requests, so this is a summary: many turns become `conversation_replay`,
single ones `shared_prefix`. Stages of a minute keep the trace's rate over time.

**Source:** kubernetes-sigs/inference-perf, ``docs/config.md``: ``load.stages``, ``data.type``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from epp.traffic.sessions import Turn, conversations
from epp.traffic.trace import Trace

STAGE_SECONDS = 60
MULTI_TURN = 1.2  #: turns of a conversation, on average, from which on they are told

Distribution = dict[str, Any]


def write(trace: Trace, *, seed: int = 1) -> str:
    """Return the configuration, as YAML. It lacks the server's address and model."""
    talks = conversations(trace)
    many = bool(talks) and len(trace.records) / len(talks) >= MULTI_TURN
    config = {
        "api": {"type": "completion", "streaming": True},
        "load": _load(trace, talks, many=many),
        "data": _conversations(talks, trace.block_tokens, seed) if many else _shared(trace),
    }
    return msgspec.yaml.encode(config).decode()


def _load(trace: Trace, talks: Sequence[Sequence[Turn]], *, many: bool) -> dict[str, Any]:
    if many:
        stage = {
            "concurrent_sessions": max(round(_at_once(talks)), 1),
            "num_sessions": len(talks),
        }
        return {"type": "trace_session_replay", "stages": [stage]}
    minutes = Counter(int(record.at // STAGE_SECONDS) for record in trace.records)
    stages = [
        {"rate": round(count / STAGE_SECONDS, 4), "duration": STAGE_SECONDS}
        for _, count in sorted(minutes.items())
    ]
    return {"type": "poisson", "stages": stages}


def _at_once(talks: Sequence[Sequence[Turn]]) -> float:
    """Conversations under way at a time, on average."""
    busy = sum(talk[-1].record.at - talk[0].record.at for talk in talks)
    last = max(talk[-1].record.at for talk in talks)
    return busy / last if last else len(talks)


def _conversations(talks: Sequence[Sequence[Turn]], block_tokens: int, seed: int) -> dict[str, Any]:
    later = [turn for talk in talks for turn in talk[1:]]
    fresh = [max(_fresh(turn), 1) for turn in later]
    shared = _shared_tokens(talks, block_tokens)
    return {
        "type": "conversation_replay",
        "conversation_replay": {
            "seed": seed,
            "num_conversations": len(talks),
            "shared_system_prompt_len": shared,
            "dynamic_system_prompt_len": _law(
                [max(talk[0].record.input_tokens - shared, 1) for talk in talks]
            ),
            "turns_per_conversation": _law([len(talk) for talk in talks]),
            "input_tokens_per_turn": _law(fresh),
            "output_tokens_per_turn": _law(
                [t.record.output_tokens for talk in talks for t in talk]
            ),
            "tool_call_latency_sec": _law([_gap(turn) for turn in later]),
        },
    }


def _fresh(turn: Turn) -> int:
    """Tokens that a later turn adds to what was said before."""
    before = turn.parent.record if turn.parent else turn.record
    return turn.record.input_tokens - before.input_tokens - before.output_tokens


def _gap(turn: Turn) -> float:
    if turn.record.think is not None:
        return turn.record.think
    return turn.record.at - turn.parent.record.at if turn.parent else 0.0


def _shared_tokens(talks: Sequence[Sequence[Turn]], block_tokens: int) -> int:
    """Tokens of the system prompt: of the full blocks that most conversations begin with."""
    firsts = [talk[0].record for talk in talks]
    chains = [each.hash_ids[: each.input_tokens // block_tokens] for each in firsts]
    depth = 0
    while True:
        at = Counter(ids[depth] for ids in chains if len(ids) > depth)
        if 2 * max(at.values(), default=0) <= len(talks):
            return depth * block_tokens
        depth += 1


def _shared(trace: Trace) -> dict[str, Any]:
    """Groups of prompts that begin alike: those of the same blocks at the median shared depth."""
    depths = _depths(trace)
    depth = int(statistics.median([each for each in depths if each] or [0]))
    groups = Counter(
        record.hash_ids[depth - 1]
        for record in trace.records
        if depth and len(record.hash_ids) >= depth
    )
    count = max(len(groups), 1)
    inputs = [record.input_tokens for record in trace.records] or [1]
    outputs = [record.output_tokens for record in trace.records] or [1]
    system = depth * trace.block_tokens
    return {
        "type": "shared_prefix",
        "shared_prefix": {
            "num_groups": count,
            "num_prompts_per_group": max(round(len(trace.records) / count), 1),
            "system_prompt_len": system,
            "question_len": max(round(statistics.fmean(inputs)) - system, 1),
            "output_len": max(round(statistics.fmean(outputs)), 1),
            "enable_multi_turn_chat": False,
        },
    }


def _depths(trace: Trace) -> list[int]:
    """Blocks that each request shares with one before it."""
    seen: set[int] = set()
    depths: list[int] = []
    for record in trace.records:
        ids = record.hash_ids
        depths.append(next((i for i, each in enumerate(ids) if each not in seen), len(ids)))
        seen.update(ids)
    return depths


def _law(values: Sequence[float]) -> Distribution:
    known = values or [1]
    return {
        "type": "lognormal",
        "min": round(min(known), 3),
        "max": round(max(known), 3),
        "mean": round(statistics.fmean(known), 3),
        "std_dev": round(statistics.pstdev(known), 3),
    }
