"""``/metrics`` of a model server, with vLLM's names, labels and buckets.

Written by hand since a scrape of a fleet of simulated engines must be cheap, and since the label
order and the ``_created`` gauges are vLLM's. Times are wall-clock seconds: an engine that
runs faster than life reports what its clients see.

**Source:** ``/metrics`` of vLLM 0.32 servers, idle and under load, with and without LoRA adapters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from epp.sim.engine import Engine
from epp.sim.model import Finished, StepResult
from epp.sim.options import EngineOptions

_SHORT = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
REQUEST_SECONDS = (*_SHORT, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_TAIL = (0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, *_TAIL)
FIRST_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(*_TAIL, 160.0, 640.0, 2560.0),
)
STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
REASONS = ("stop", "length", "abort", "error", "repetition")


def token_buckets(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to ``most``."""
    steps = (float(digit * 10**power) for power in range(8) for digit in (1, 2, 5))
    return tuple(step for step in steps if step <= most)


class Histogram:
    """Counts by bucket."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help_text
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        self.sum += value
        self._counts[bisect_left(self._bounds, value)] += 1

    def lines(self, labels: str, created: float) -> Iterator[str]:
        """Render; ``labels`` holds ``{le}`` where the bound stands."""
        before, after = labels.split("{le}")
        name, plain = self.name, f"{{{before}{after}}}"
        yield f"# HELP {name} {self.help}"
        yield f"# TYPE {name} histogram"
        running = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            running += count
            yield f'{name}_bucket{{{before}le="{bound}",{after}}} {running}.0'
        yield f"{name}_count{plain} {running}.0"
        yield f"{name}_sum{plain} {self.sum}"
        yield f"# HELP {name}_created {self.help}"
        yield f"# TYPE {name}_created gauge"
        yield f"{name}_created{plain} {created}"


More = Callable[[str, float], Iterable[str]]
"""Renders what else a server counts: takes the labels of all series, and when it began."""


def _no_more(labels: str, created: float) -> Iterable[str]:
    return ()


class Metrics:
    """What one server counts beside its engine, and the text of it all."""

    def __init__(self, options: EngineOptions, engine: Engine, *, created: float) -> None:
        """Count from now on; ``created`` is the start in seconds since 1970."""
        self.rejected = 0  #: requests over `EngineOptions.max_num_queued_reqs`
        self._options = options
        self._engine = engine
        self._created = created
        self._successes = dict.fromkeys(REASONS, 0)
        self._adapter_sets: dict[str, float] = {}
        self._adapters_seen = ""
        self._labels = f'engine="0",model_name="{options.models[0]}"'
        self._declare(token_buckets(options.max_model_len))

    def _declare(self, tokens: Sequence[float]) -> None:
        def seconds(name: str, text: str, bounds: Sequence[float] = REQUEST_SECONDS) -> Histogram:
            return Histogram(f"vllm:{name}_seconds", text, bounds)

        self._prompt = Histogram("vllm:request_prompt_tokens", "Prompt tokens.", tokens)
        self._output = Histogram("vllm:request_generation_tokens", "Output tokens.", tokens)
        self._step = Histogram("vllm:iteration_tokens_total", "Tokens of a step.", STEP_TOKENS)
        self._first = seconds("time_to_first_token", "Time to first token.", FIRST_SECONDS)
        self._gap = seconds("inter_token_latency", "Time between tokens.", TOKEN_SECONDS)
        self._per_token = seconds(
            "request_time_per_output_token", "Mean time between a request's tokens.", TOKEN_SECONDS
        )
        self._whole = seconds("e2e_request_latency", "Arrival to last token.")
        self._queue = seconds("request_queue_time", "Arrival to admission.")
        self._inference = seconds("request_inference_time", "Admission to last token.")
        self._prefill = seconds("request_prefill_time", "Admission to first token.")
        self._decode = seconds("request_decode_time", "First to last token.")
        self._preemptions = Histogram(
            "vllm:request_num_preemptions", "Preemptions of a request.", PREEMPTIONS
        )
        self._computed = Histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens not found cached.", tokens
        )

    # --- counting ------------------------------------------------------------------------

    def observe(self, result: StepResult) -> None:
        """Count a step."""
        speed = self._options.speed
        self._step.observe(result.batched_tokens)
        for seconds in result.first_token_seconds:
            self._first.observe(max(seconds, 0.0) / speed)
        for seconds in result.token_gap_seconds:
            self._gap.observe(seconds / speed)
        for finished in result.finished:
            self._finish(finished, speed)

    def _finish(self, finished: Finished, speed: float) -> None:
        self._successes[finished.reason] += 1
        self._prompt.observe(finished.prompt_tokens)
        self._output.observe(finished.output_tokens)
        self._preemptions.observe(finished.preemptions)
        self._computed.observe(
            finished.prompt_tokens - finished.cached_tokens - finished.external_tokens
        )
        arrived, ended = finished.arrived_at, finished.ended_at
        admitted = arrived if finished.admitted_at is None else max(finished.admitted_at, arrived)
        first = ended if finished.first_token_at is None else finished.first_token_at
        self._whole.observe(max(ended - arrived, 0.0) / speed)
        self._queue.observe((admitted - arrived) / speed)
        self._inference.observe(max(ended - admitted, 0.0) / speed)
        self._prefill.observe(max(first - admitted, 0.0) / speed)
        self._decode.observe((ended - first) / speed)
        if finished.output_tokens > 1:
            self._per_token.observe((ended - first) / (finished.output_tokens - 1) / speed)

    def note_adapters(self, now: float) -> None:
        """Remember which adapters run, if that changed; ``now`` in seconds since 1970."""
        names = ",".join(sorted(self._engine.running_adapters()))
        if names != self._adapters_seen or not self._adapter_sets:
            self._adapters_seen = names
            self._adapter_sets[names] = now

    # --- the text --------------------------------------------------------------------------

    def render(self, now: float, *, asleep: bool = False, more: More = _no_more) -> str:
        """Return the exposition text; ``now`` in seconds since 1970."""
        lines = [*self._gauges(asleep=asleep), *self._counters()]
        before, after = self._labels.split(",")
        labels = f"{before},{{le}}{after}"
        for histogram in self._histograms():
            lines.extend(histogram.lines(labels, self._created))
        lines.extend(more(self._labels, self._created))
        lines.extend(self._cache_info())
        if self._options.adapters:
            self.note_adapters(now)
            lines.extend(self._adapter_lines())
        lines.append("")
        return "\n".join(lines)

    def _histograms(self) -> Sequence[Histogram]:
        return (
            *(self._prompt, self._output, self._step, self._first, self._gap, self._per_token),
            *(self._whole, self._queue, self._inference, self._prefill, self._decode),
            *(self._preemptions, self._computed),
        )

    def _gauge(self, name: str, text: str, values: Mapping[str, float]) -> Iterator[str]:
        yield f"# HELP vllm:{name} {text}"
        yield f"# TYPE vllm:{name} gauge"
        for extra, value in values.items():
            yield f"vllm:{name}{{{self._labels}{extra}}} {float(value)}"

    def _gauges(self, *, asleep: bool) -> Iterator[str]:
        engine = self._engine
        yield from self._gauge("num_requests_running", "Requests running.", {"": engine.running})
        yield from self._gauge("num_requests_waiting", "Requests waiting.", {"": engine.waiting})
        deferred = min(engine.deferred, engine.waiting)
        reasons = {',reason="capacity"': engine.waiting - deferred, ',reason="deferred"': deferred}
        yield from self._gauge("num_requests_waiting_by_reason", "Why requests wait.", reasons)
        sleep = {',sleep_state="awake"': 1 - asleep, ',sleep_state="weights_offloaded"': asleep}
        sleep[',sleep_state="discard_all"'] = 0
        yield from self._gauge("engine_sleep_state", "Whether the engine is awake.", sleep)
        yield from self._gauge(
            "kv_cache_usage_perc", "KV blocks used, 0 to 1.", {"": engine.kv_usage}
        )

    def _counter(
        self, name: str, text: str, values: Mapping[str, float], *, labels: str | None = None
    ) -> Iterator[str]:
        """``values`` by further labels, each starting with a comma."""
        shared = self._labels if labels is None else labels
        yield f"# HELP vllm:{name}_total {text}"
        yield f"# TYPE vllm:{name}_total counter"
        for extra, value in values.items():
            yield f"vllm:{name}_total{{{shared}{extra}}} {float(value)}"
        yield f"# HELP vllm:{name}_created {text}"
        yield f"# TYPE vllm:{name}_created gauge"
        for extra in values:
            yield f"vllm:{name}_created{{{shared}{extra}}} {self._created}"

    def _counters(self) -> Iterator[str]:
        totals = self._engine.totals
        external = totals.external_tokens
        cached = totals.prompt_tokens - totals.computed_tokens - external
        missed = totals.queried_tokens - totals.hit_tokens
        asked = missed if self._engine.tiers else external
        plain = {
            "prefix_cache_queries": ("Tokens looked up in the cache.", totals.queried_tokens),
            "prefix_cache_hits": ("Tokens found in the cache.", totals.hit_tokens),
            "external_prefix_cache_queries": ("Tokens looked up elsewhere.", asked),
            "external_prefix_cache_hits": ("Tokens found elsewhere.", external),
            "num_preemptions": ("Preemptions.", totals.preemptions),
            "prompt_tokens": ("Prompt tokens.", totals.prompt_tokens),
            "prompt_tokens_cached": ("Prompt tokens found cached.", cached + external),
            "generation_tokens": ("Output tokens.", totals.output_tokens),
        }
        for name, (text, value) in plain.items():
            yield from self._counter(name, text, {"": value})
        sources = {
            ',source="local_compute"': totals.computed_tokens,
            ',source="local_cache_hit"': cached,
            ',source="external_kv_transfer"': external,
        }
        yield from self._counter("prompt_tokens_by_source", "Prompt tokens by source.", sources)
        yield from self._successes_lines()
        model = self._labels.split(",")[1]
        rejections = {',reason="max_num_queued_reqs"': self.rejected}
        rejections[',reason="max_num_queued_tokens"'] = 0
        text = "Requests turned away."
        yield from self._counter("admission_rejections", text, rejections, labels=model)

    def _successes_lines(self) -> Iterator[str]:
        """``finished_reason`` stands before ``model_name``: labels are in alphabetical order."""
        before, after = self._labels.split(",")
        values = {
            f',finished_reason="{reason}",{after}': count
            for reason, count in self._successes.items()
        }
        yield from self._counter("request_success", "Requests finished.", values, labels=before)

    def _cache_info(self) -> Iterator[str]:
        config = self._engine.config
        facts = {
            "block_size": config.block_tokens,
            "cache_dtype": "auto",
            "enable_prefix_caching": config.prefix_caching,
            "engine": 0,
            "gpu_memory_utilization": 0.9,
            "kv_cache_size_tokens": config.kv_blocks * config.block_tokens,
            "num_cpu_blocks": None,
            "num_gpu_blocks": config.kv_blocks,
            "num_gpu_blocks_override": self._options.kv_blocks,
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": None,
        }
        labels = ",".join(f'{name}="{value}"' for name, value in facts.items())
        yield "# HELP vllm:cache_config_info How the KV cache is configured."
        yield "# TYPE vllm:cache_config_info gauge"
        yield f"vllm:cache_config_info{{{labels}}} 1.0"

    def _adapter_lines(self) -> Iterator[str]:
        """One series per set of adapters ever seen: the one with the latest time holds."""
        yield "# HELP vllm:lora_requests_info Adapters of requests."
        yield "# TYPE vllm:lora_requests_info gauge"
        most = f'max_lora="{self._options.max_adapters}"'
        for names, at in self._adapter_sets.items():
            lists = f'running_lora_adapters="{names}",waiting_lora_adapters="{names}"'
            yield f"vllm:lora_requests_info{{{most},{lists}}} {at!r}"
