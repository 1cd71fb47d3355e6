"""The policies that a scenario may name: configurations of real plugins, and baselines."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epp.catalog import Catalog
from epp.config.presets import PRESETS
from epp.errors import ConfigError
from epp.sim.baselines.aibrix import AibrixPrefix
from epp.sim.baselines.cache_aware import CacheAware
from epp.sim.baselines.dynamo import Dynamo
from epp.sim.baselines.greedy import GreedyWork
from epp.sim.baselines.least_load import LeastLoad
from epp.sim.baselines.lmetric import LMetric
from epp.sim.baselines.oracle import Oracle
from epp.sim.baselines.plain import LeastRequest, PowerOfTwo, Random, RoundRobin
from epp.sim.baselines.preble import Preble
from epp.sim.baselines.ring import PrefixHash, SessionHash
from epp.sim.fleet.replica import BLOCK_TOKENS, Policy
from epp.sim.split.client import SimulatedPrefillClient
from epp.sim.split.policies import SPLITTING

BASELINES: tuple[type[Any], ...] = (
    RoundRobin,
    Random,
    LeastRequest,
    PowerOfTwo,
    SessionHash,
    PrefixHash,
    LMetric,
    GreedyWork,
    CacheAware,
    Dynamo,
    LeastLoad,
    AibrixPrefix,
    Preble,
    Oracle,
)

APPROXIMATE = "- type: approx-prefix-cache-producer\n"
EXACT = f"""\
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {{blockSizeTokens: {BLOCK_TOKENS}, hashSeed: sim}}
"""


ESTIMATED_INDEX = """\
- type: approx-prefix-cache-producer
  parameters:
    autoTune: false
    blockSizeTokens: 16
    lruCapacityPerServer: 31250
    maxPrefixTokensToMatch: 0
    maxPrefixBlocksToMatch: 256
"""
ESTIMATED = f"""\
plugins:
{ESTIMATED_INDEX}- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
"""


def _scorers(queue: float, usage: float, prefix: float, index: str) -> str:
    return f"""\
plugins:
{index}- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
  parameters: {{prefixMatchInfoProducerName: {index.split()[2]}}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: {queue}}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: {usage}}}
  - {{pluginRef: prefix-cache-scorer, weight: {prefix}}}
"""


def _sticky(index: str) -> str:
    return f"""\
plugins:
{index}- type: prefix-cache-affinity-filter
- type: token-load-scorer
"""


def _one(type_: str, index: str = "") -> str:
    return f"plugins:\n{index}- type: {type_}\n"


def _dynamo(temperature: float, index: str) -> str:
    return f"{_one('sim-dynamo', index)}  parameters: {{temperature: {temperature}}}\n"


EVENTS = "the same on KV events"

BEST_EXACT = f"""\
plugins:
{EXACT}- type: expected-ttft-scorer
  parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}
"""

POLICIES: Mapping[str, tuple[str, str]] = {
    "best": (PRESETS["best"], "expected-ttft-scorer, as `epp serve --preset best`"),
    "best-exact": (BEST_EXACT, EVENTS),
    "best-alone": (PRESETS["best"], "best, whose replicas tell each other nothing"),
    "best-alone-exact": (BEST_EXACT, EVENTS),
    "default": ("", "what `epp serve` does without a configuration"),
    "llm-d-2-2-3": (_scorers(2, 2, 3, APPROXIMATE), "llm-d's default: queue 2, KV 2, prefix 3"),
    "llm-d-2-2-3-exact": (_scorers(2, 2, 3, EXACT), EVENTS),
    "llm-d-3-2-2": (_scorers(2, 2, 3, APPROXIMATE), "prefix 3, queue 2, KV 2: the same weights"),
    "llm-d-3-2-2-exact": (_scorers(2, 2, 3, EXACT), EVENTS),
    "llm-d-2-1-1": (_scorers(1, 1, 2, APPROXIMATE), "prefix 2, queue 1, KV 1"),
    "llm-d-2-1-1-exact": (_scorers(1, 1, 2, EXACT), EVENTS),
    "llm-d-1-1-1": (_scorers(1, 1, 1, APPROXIMATE), "prefix, queue and KV alike"),
    "llm-d-estimated": (ESTIMATED, "1, 1, 1 with the fixed index of llm-d's published benchmark"),
    "llm-d-estimated-2-1-1": (
        _scorers(1, 1, 2, ESTIMATED_INDEX),
        "the same index, prefix 2, queue 1, KV 1",
    ),
    "llm-d-load": (_scorers(1, 1, 0, APPROXIMATE), "queue and KV only"),
    "llm-d-sticky": (_sticky(APPROXIMATE), "llm-d's affinity filter, then token load"),
    "llm-d-sticky-exact": (_sticky(EXACT), EVENTS),
    "round-robin": (_one("sim-round-robin"), "each engine in turn"),
    "random": (_one("sim-random"), "any engine"),
    "least-request": (_one("sim-least-request"), "fewest own requests in flight"),
    "p2c": (_one("sim-p2c"), "the better of two drawn at random"),
    "session-hash": (_one("sim-session-hash"), "ring on the session, unbounded"),
    "chwbl": (
        _one("sim-chwbl"),
        "ring on the prompt's beginning, load at most 1.25 times the mean",
    ),
    "cache-aware": (_one("sim-cache-aware", APPROXIMATE), "SGLang's and vLLM's: 0.3, 64, 1.5"),
    "greedy": (_one("sim-greedy-work", APPROXIMATE), "least uncached tokens in flight"),
    "greedy-exact": (_one("sim-greedy-work", EXACT), EVENTS),
    "lmetric": (_one("sim-lmetric", APPROXIMATE), "uncached tokens times requests"),
    "lmetric-exact": (_one("sim-lmetric", EXACT), EVENTS),
    "dynamo": (_dynamo(0, APPROXIMATE), "Dynamo's cost, the least"),
    "dynamo-exact": (_dynamo(0, EXACT), EVENTS),
    "dynamo-0.5": (_dynamo(0.5, APPROXIMATE), "Dynamo's cost, softmax of temperature 0.5"),
    "dynamo-0.5-exact": (_dynamo(0.5, EXACT), EVENTS),
    "least-load": (_one("sim-least-load"), "SMG's: queued tokens and a KV barrier"),
    "aibrix": (
        _one("sim-aibrix-prefix", APPROXIMATE),
        "AIBrix's prefix-cache: 8 requests, 1 sigma",
    ),
    "preble": (_one("sim-preble", APPROXIMATE), "Preble's E2, without its eviction cost"),
    "oracle": (_one("sim-oracle"), "knows queues, caches and speeds as they are"),
    **SPLITTING,
}
"""Configuration and description by name."""

TELLING = frozenset({"best", "best-exact", "default", *SPLITTING})
"""Those whose replicas tell each other what they sent, as `epp serve --peers` does: ours."""


class WithBaselines(Catalog):
    """Every plugin type of `epp`, and the baselines."""

    def __init__(self) -> None:
        super().__init__()
        own: tuple[type[Any], ...] = (*BASELINES, SimulatedPrefillClient)
        self._classes.update({each.type: each for each in own})


def policy_of(name: str) -> Policy:
    """Return a policy by its name, or that of a configuration file.

    Raises:
        ConfigError: there is neither.
    """
    catalog = WithBaselines()
    if name in POLICIES:
        return Policy(name, POLICIES[name][0], catalog, alone=name not in TELLING)
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json") or path.exists():
        try:
            return Policy(path.stem, path.read_text(encoding="utf-8"), catalog)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"policy file {name}: {error}") from error
    near = difflib.get_close_matches(name, POLICIES, 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"policy {name!r} is neither a name that is known{hint} nor a file")
