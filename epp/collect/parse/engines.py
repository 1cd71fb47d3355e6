"""What a model server's metrics say about its load, by kind of engine.

A value that is missing, not finite, negative, or known for only some of an endpoint's
data-parallel ranks is not told (None), never zero. Several series of one metric are several
ranks, adapters or models behind one port: counts are summed, the KV usage is their mean (each
rank has an equal share of the endpoint's cache). Tensor- and pipeline-parallel ranks of one
engine report the same queue: the largest of them counts once.

**Source:** the metrics' names and labels as vLLM 0.32 serves them; those of the other
engines, and the shape of ``engineConfigs``, as llm-d's core-metrics-extractor has them.
Triton's ``nv_inference_exec_count`` is a counter; it is read as running requests as there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from prometheus_client.samples import Sample

from epp.collect.parse.prometheus import Page, Reader, Selector
from epp.model import NO_LABELS, CacheCounts, CacheInfo, Load, LoraInfo

ENGINE_LABELS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
SLEEPING_LABEL = "sleeping"  #: production-stack's pod label; "true" while the engine sleeps
DEFAULT_ENGINE = "vllm"
MAX_BLOCK_TOKENS = 65_536  #: a larger block size is nonsense

_SAME_QUEUE = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
_AWAKE = Selector("vllm:engine_sleep_state", {"sleep_state": "awake"})
_START = Selector("process_start_time_seconds")
_CREATED = (Selector("vllm:prompt_tokens_created"), Selector("vllm:prompt_tokens_total_created"))
_WORK = (Selector("vllm:prompt_tokens_total"), Selector("sglang:prompt_tokens_total"))


class Engine(msgspec.Struct, frozen=True):
    """Where one kind of engine tells what. None: it does not."""

    name: str
    queued: Selector | None = None
    running: Selector | None = None
    kv_usage: tuple[Selector, ...] = ()  #: the first that is on the page counts
    lora: Selector | None = None
    queries: Selector | None = None  #: tokens of prompts, counted
    hits: tuple[Selector, ...] = ()  #: of these, found cached: all that are on the page, added
    counts_admitted: bool = False  #: both are counted when a prompt is admitted to the batch
    cache_info: Selector | None = None  #: a series whose labels tell the cache's size
    block_size_label: str = "block_size"
    num_blocks_label: str = "num_gpu_blocks"
    block_size: Selector | None = None  #: or gauges that do
    num_blocks: Selector | None = None
    custom: tuple[tuple[str, Selector], ...] = ()  #: (attribute, series)

    def selectors(self) -> Iterable[Selector]:
        """All of them."""
        single = (self.queued, self.running, self.lora, self.cache_info)
        sizes = (self.block_size, self.num_blocks, self.queries)
        return (
            *(selector for selector in (*single, *sizes) if selector is not None),
            *self.kv_usage,
            *self.hits,
            *(selector for _, selector in self.custom),
        )


def _trtllm(kind: str) -> Selector:
    return Selector("nv_trt_llm_kv_cache_block_metrics", {"kv_cache_block_type": kind})


BUILT_IN = (
    Engine(
        "vllm",
        queued=Selector("vllm:num_requests_waiting"),
        running=Selector("vllm:num_requests_running"),
        kv_usage=(Selector("vllm:kv_cache_usage_perc"), Selector("vllm:gpu_cache_usage_perc")),
        lora=Selector("vllm:lora_requests_info"),
        queries=Selector("vllm:prefix_cache_queries_total"),
        hits=(
            Selector("vllm:prefix_cache_hits_total"),
            Selector("vllm:external_prefix_cache_hits_total"),
        ),
        counts_admitted=True,
        cache_info=Selector("vllm:cache_config_info"),
    ),
    Engine(
        "sglang",
        queued=Selector("sglang:num_queue_reqs"),
        running=Selector("sglang:num_running_reqs"),
        kv_usage=(Selector("sglang:token_usage"),),
        queries=Selector("sglang:prompt_tokens_total"),
        hits=(Selector("sglang:cached_tokens_total"),),
        cache_info=Selector("sglang:cache_config_info"),
        block_size_label="page_size",
        num_blocks_label="num_pages",
    ),
    Engine(
        "trtllm-serve",
        queued=Selector("trtllm_num_requests_waiting"),
        running=Selector("trtllm_num_requests_running"),
        kv_usage=(Selector("trtllm_kv_cache_utilization"),),
        block_size=Selector("trtllm_kv_cache_tokens_per_block"),
        num_blocks=Selector("trtllm_kv_cache_max_blocks"),
    ),
    Engine(
        "triton-tensorrt-llm",
        queued=Selector("nv_trt_llm_request_metrics", {"request_type": "waiting"}),
        running=Selector("nv_trt_llm_request_metrics", {"request_type": "scheduled"}),
        kv_usage=(_trtllm("fraction"),),
        block_size=_trtllm("tokens_per"),
        num_blocks=_trtllm("max"),
    ),
    Engine(
        "triton",
        queued=Selector("nv_inference_pending_request_count"),
        running=Selector("nv_inference_exec_count"),
    ),
)


class Reading(msgspec.Struct, frozen=True):
    """One page, understood."""

    load: Load
    ranks: int = 0  #: series that told the queue: data-parallel ranks behind the port
    started: float | None = None  #: the engine process's start, seconds since 1970, if told
    work: float | None = None  #: prompt tokens since that start, if told
    found: bool = False  #: the page held anything of this engine
    unreadable: int = 0  #: lines that were wanted and broken


class Engines:
    """Reads the page of any configured kind of engine."""

    def __init__(self, engines: Sequence[Engine] = (), *, default: str = DEFAULT_ENGINE) -> None:
        """Know the built-in engines and ``engines``; an equal name replaces the built-in.

        Raises:
            ValueError: there is no engine called ``default``.
        """
        known = {engine.name: engine for engine in (*BUILT_IN, *engines)}
        if default not in known:
            raise ValueError(f"no engine is called {default!r}, only {', '.join(sorted(known))}")
        self.default = default
        self._engines = known
        shared = (_AWAKE, _START, *_CREATED, *_WORK)
        self._readers = {
            name: Reader(s.name for s in (*shared, *engine.selectors()))
            for name, engine in known.items()
        }

    def name_for(self, labels: Mapping[str, str]) -> str:
        """Which engine an endpoint with these labels runs; unknown names are the default's."""
        for label in ENGINE_LABELS:
            if (name := labels.get(label, "")) in self._engines:
                return name
        return self.default

    def read(self, page: bytes, at: float, labels: Mapping[str, str] = NO_LABELS) -> Reading:
        """Understand ``page``, read at ``at`` from an endpoint with these labels."""
        name = self.name_for(labels)
        engine, samples = self._engines[name], self._readers[name].read(page)
        queued = _series(samples, engine.queued)
        running = _series(samples, engine.running)
        usage = next((s for each in engine.kv_usage if (s := samples.select(each))), [])
        fraction = _mean(usage)
        ranks = max(len(_by_rank(queued)), len(_by_rank(running)), len(_by_rank(usage)))
        awake = [sample.value for sample in samples.select(_AWAKE)]
        sleeping = labels.get(SLEEPING_LABEL) == "true" or (bool(awake) and max(awake) == 0)
        load = Load(
            at=at,
            queued=_sum(queued),
            running=_sum(running),
            kv_usage=None if fraction is None else min(fraction, 1.0),
            cache=_cache(engine, samples, max(ranks, 1)),
            lora=_lora(_series(samples, engine.lora)),
            counts=_counts(engine, samples),
            asleep=sleeping,
            attributes=_attributes(engine, samples),
        )
        return Reading(
            load=load,
            ranks=ranks,
            started=_started(samples),
            work=next((w for s in _WORK if (w := _sum(samples.select(s))) is not None), None),
            found=bool(queued or running or usage or load.cache or load.attributes),
            unreadable=samples.unreadable,
        )


def _series(page: Page, selector: Selector | None) -> list[Sample]:
    return [] if selector is None else page.select(selector)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) and value >= 0 else None


def _by_rank(samples: Sequence[Sample]) -> list[float | None]:
    """One value for each group of series that do not describe the same queue."""
    if len(samples) == 1:
        return [_number(samples[0].value)]
    groups: dict[frozenset[tuple[str, str]], float | None] = {}
    for sample in samples:
        key = frozenset(pair for pair in sample.labels.items() if pair[0] not in _SAME_QUEUE)
        value = _number(sample.value)
        before = groups.get(key, value)
        groups[key] = None if value is None or before is None else max(before, value)
    return list(groups.values())


def _told(samples: Sequence[Sample]) -> list[float] | None:
    """The values of all ranks, or None if there are none or any of them is nonsense."""
    values = [value for value in _by_rank(samples) if value is not None]
    return values if values and len(values) == len(_by_rank(samples)) else None


def _sum(samples: Sequence[Sample]) -> float | None:
    values = _told(samples)
    return None if values is None else sum(values)


def _mean(samples: Sequence[Sample]) -> float | None:
    values = _told(samples)
    return None if values is None else sum(values) / len(values)


def _started(page: Page) -> float | None:
    """When the newest of the engine's processes started; seconds since 1970."""
    for selector in (_START, *_CREATED):
        if values := _told(page.select(selector)):
            return max(values)
    return None


def _attributes(engine: Engine, page: Page) -> Mapping[str, float]:
    """Custom metrics: the series with the newest timestamp, else the first."""
    found = {}
    for attribute, selector in engine.custom:
        series = [s for s in page.select(selector) if math.isfinite(s.value)]
        if series:
            newest = max(series, key=lambda s: float(s.timestamp or 0.0))  # the first, if equal
            found[attribute] = newest.value
    return found


def _counts(engine: Engine, page: Page) -> CacheCounts | None:
    queries = _sum(_series(page, engine.queries))
    hits = [_sum(series) for each in engine.hits if (series := page.select(each))]
    told = [count for count in hits if count is not None]
    if queries is None or not told or len(told) < len(hits):
        return None
    return CacheCounts(queries, sum(told), engine.counts_admitted)


def _lora(series: Sequence[Sample]) -> LoraInfo | None:
    """The newest series: its value is the time it was true, and old ones stay for ever."""
    told = [sample for sample in series if math.isfinite(sample.value)]
    if not told:
        return None
    labels = max(told, key=lambda sample: sample.value).labels
    most = _count(labels.get("max_lora", ""))
    if most is None:
        return None
    return LoraInfo(
        _names(labels.get("running_lora_adapters", "")),
        _names(labels.get("waiting_lora_adapters", "")),
        most,
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _count(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value >= 0 else None


def _cache(engine: Engine, page: Page, ranks: int) -> CacheInfo | None:
    """Block size and capacity of one rank; vLLM's ``num_gpu_blocks`` is the sum over ranks."""
    block, blocks, tokens = _from_gauges(engine, page)
    for sample in _series(page, engine.cache_info):
        block = _count(sample.labels.get(engine.block_size_label, "")) or block
        blocks = _count(sample.labels.get(engine.num_blocks_label, "")) or blocks
        told = _count(sample.labels.get("kv_cache_size_tokens", ""))
        tokens = told if tokens is None else min(tokens, told or tokens)
    if block is None or not 1 <= block <= MAX_BLOCK_TOKENS:
        return None
    if tokens is None or tokens < block:
        tokens = blocks * block // ranks if blocks else None
    return CacheInfo(block, tokens if tokens is not None and tokens >= block else None)


def _from_gauges(engine: Engine, page: Page) -> tuple[int | None, int | None, int | None]:
    block = _told(_series(page, engine.block_size))
    blocks = _told(_series(page, engine.num_blocks))
    return (int(min(block)) if block else None, int(sum(blocks)) if blocks else None, None)
