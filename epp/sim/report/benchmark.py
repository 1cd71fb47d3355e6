"""A run as a Benchmark Report, so that simulated figures stand beside measured ones.

**Source:** llm-d-benchmark, Benchmark Report v0.2.1. Its ``native`` sections say that this was a
simulation; times are virtual seconds.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import yaml

from epp import __version__
from epp.sim.fleet.scenario import Pods, Scenario
from epp.sim.fleet.story import Outcome, Story
from epp.sim.profiles import by_name
from epp.sim.report.figures import Summary

VERSION = "0.2.1"
_TOOL = {"tool": "epp sim", "tool_version": __version__}
_PERCENTS = {
    "p0p1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95,
    "p99": 99, "p99p9": 99.9,
}  # fmt: skip
_NAMES = uuid.UUID("6f1d9a34-3f0e-4f4e-9f0a-0d6d5a1c7e51")  #: of runs: equal runs have equal ids
_SIMULATED = {"simulated": True}


def yaml_of(report: Mapping[str, Any]) -> str:
    """Return the report as a file's text."""
    return yaml.safe_dump(report, sort_keys=False, width=100)


def report_of(scenario: Scenario, summary: Summary, outcome: Outcome) -> Mapping[str, Any]:
    """Return the report of one run."""
    told = msgspec.json.encode(scenario).decode()
    stories = [each for each in outcome.stories if each.at >= scenario.warm_up_seconds]
    return {
        "version": VERSION,
        "run": {
            "uid": str(uuid.uuid5(_NAMES, f"{told}/{summary.seed}")),
            "time": {"duration": f"PT{summary.seconds:.3f}S"},
            "description": f"simulated: policy {summary.policy}, seed {summary.seed}",
            "keywords": ["simulated", summary.policy],
        },
        "scenario": {
            "stack": [_engines(i, pods) for i, pods in enumerate(scenario.fleet)]
            + [_picker(scenario)],
            "load": _load(scenario, stories, summary.seconds),
        },
        "results": {
            "request_performance": {"aggregate": _aggregate(stories, summary)},
        },
    }


def _engines(position: int, pods: Pods) -> Mapping[str, Any]:
    profile = by_name(pods.profile)
    role = pods.role if pods.role in ("prefill", "decode") else "replica"
    return {
        "metadata": {"label": f"engines-{position}", "cfg_id": f"{pods.profile}-{position}"},
        "standardized": {
            "kind": "inference_engine",
            **_TOOL,
            "role": role,
            "replicas": pods.count,
            "model": {"name": pods.profile},
            "accelerator": {
                "model": pods.profile,
                "count": profile.gpus,
                "parallelism": {"tp": profile.gpus},
            },
        },
        "native": {"config": {**_SIMULATED, **msgspec.to_builtins(pods)}},
    }


def _picker(scenario: Scenario) -> Mapping[str, Any]:
    return {
        "metadata": {"label": "endpoint-picker", "cfg_id": scenario.policy},
        "standardized": {"kind": "generic", **_TOOL},
        "native": {"config": {**_SIMULATED, **msgspec.to_builtins(scenario.pickers)}},
    }


def _load(scenario: Scenario, stories: Sequence[Story], seconds: float) -> Mapping[str, Any]:
    turns = max((story.turn for story in stories), default=0) + 1
    return {
        "metadata": {"cfg_id": scenario.traffic.preset or "trace"},
        "standardized": {
            **_TOOL,
            "source": "sampled" if scenario.traffic.files else "random",
            "input_seq_len": _lengths(story.prompt_tokens for story in stories),
            "output_seq_len": _lengths(story.output_tokens for story in stories),
            "multi_turn": {"enabled": turns > 1},
            "rate_qps": len(stories) / max(seconds, 1e-9),
        },
        "native": {"config": {**_SIMULATED, **msgspec.to_builtins(scenario.traffic)}},
    }


def _aggregate(stories: Sequence[Story], summary: Summary) -> Mapping[str, Any]:
    good = [story for story in stories if story.outcome == "ok"]
    rate = max(summary.seconds, 1e-9)
    prompt, output = (
        sum(story.prompt_tokens for story in good),
        sum(story.output_tokens for story in good),
    )
    durations = [story.duration for story in good]
    latency = {
        "time_to_first_token": statistics("s", (story.ttft for story in good)),
        "time_per_output_token": statistics("s/token", (story.tpot for story in good)),
        "request_latency": statistics("s", durations),
    }
    return {
        "requests": {
            "total": len(stories),
            "failures": len(stories) - len(good),
            "input_length": statistics("count", (story.prompt_tokens for story in good)),
            "output_length": statistics("count", (story.output_tokens for story in good)),
        },
        "latency": {name: each for name, each in latency.items() if each is not None},
        "throughput": {
            "input_token_rate": {"units": "tokens/s", "mean": prompt / rate},
            "output_token_rate": {"units": "tokens/s", "mean": output / rate},
            "total_token_rate": {"units": "tokens/s", "mean": (prompt + output) / rate},
            "request_rate": {"units": "queries/s", "mean": len(good) / rate},
        },
    }


def statistics(units: str, values: Iterable[float | None]) -> Mapping[str, Any] | None:
    """Return the report's statistics; None of nothing."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return None
    found = {"units": units, "mean": float(known.mean()), "stddev": float(known.std())}
    found["min"] = float(known.min())
    ranks = np.percentile(known, list(_PERCENTS.values()), method="inverted_cdf")
    found.update(zip(_PERCENTS, map(float, ranks), strict=True))
    found["max"] = float(known.max())
    return found


def _lengths(values: Iterable[int]) -> Mapping[str, Any]:
    known = np.array(list(values) or [0])
    return {
        "distribution": "other",
        "value": float(known.mean()),
        "std_dev": float(known.std()),
        "min": int(known.min()),
        "max": int(known.max()),
    }
