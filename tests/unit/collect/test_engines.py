"""What pages of engines say. Numbers of the vLLM pages are read off the files by eye."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.collect.parse.engines import Engine, Engines, Reading
from epp.collect.parse.prometheus import Selector
from epp.model import CacheCounts, CacheInfo, LoraInfo

DATA = Path(__file__).parents[2] / "data" / "metrics"
TYPE = "llm-d.ai/engine-type"


def page(name: str) -> bytes:
    return (DATA / name).read_bytes()


def read(text: str | bytes, **labels: str) -> Reading:
    raw = text.encode() if isinstance(text, str) else text
    return Engines().read(raw, 1.0, {TYPE: labels.pop("engine", "vllm"), **labels})


def test_a_loaded_vllm() -> None:
    reading = read(page("vllm_load_a.txt"))
    load = reading.load
    assert (load.queued, load.running) == (4.0, 8.0)
    assert load.kv_usage == pytest.approx(0.0039067, abs=1e-6)
    assert load.cache == CacheInfo(32, 262_144)
    assert load.lora is None
    assert not load.asleep
    assert reading.started == 1796092459.25
    assert reading.work == 3515.0
    assert reading.unreadable == 0


def test_tokens_found_cached_are_counted_wherever_they_came_from() -> None:
    text = """vllm:num_requests_running 1
vllm:prefix_cache_queries_total{engine="0"} 100
vllm:prefix_cache_queries_total{engine="1"} 20
vllm:prefix_cache_hits_total{engine="0"} 32
vllm:prefix_cache_hits_total{engine="1"} 16
vllm:external_prefix_cache_hits_total{engine="0"} 8
"""
    assert read(text).load.counts == CacheCounts(120.0, 56.0, admitted=True)
    assert read("vllm:num_requests_running 1\nvllm:prefix_cache_hits_total 3\n").load.counts is None
    assert read(text.replace(" 16", " NaN")).load.counts is None
    sglang = (
        "sglang:num_running_reqs 1\nsglang:prompt_tokens_total 9\nsglang:cached_tokens_total 4\n"
    )
    assert read(sglang, engine="sglang").load.counts == CacheCounts(9.0, 4.0)


def test_two_ranks_count_as_one_endpoint_with_the_cache_of_one_rank() -> None:
    reading = read(page("vllm_dp2.txt"))
    assert reading.ranks == 2
    assert reading.load.cache == CacheInfo(32, 262_144)  # num_gpu_blocks says 16384 for both
    assert reading.work == 70.0 + 210.0


def test_a_hybrid_models_cache_is_what_it_says_in_tokens() -> None:
    assert read(page("vllm_load_hybrid.txt")).load.cache == CacheInfo(32, 3175)


def test_the_newest_lora_series_wins() -> None:
    both = frozenset({"lora-a", "lora-b"})
    assert read(page("vllm_lora_load.txt")).load.lora == LoraInfo(both, both, 2)


def test_queues_of_ranks_are_added_and_their_usage_is_the_mean() -> None:
    load = read(
        'vllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_waiting{engine="1"} 2\n'
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    ).load
    assert (load.queued, load.running) == (3.0, 7.0)
    assert load.kv_usage == pytest.approx(0.4)


def test_tensor_parallel_ranks_share_one_queue() -> None:
    text = 'sglang:num_queue_reqs{tp_rank="0"} 3\nsglang:num_queue_reqs{tp_rank="1"} 2\n'
    reading = read(text, engine="sglang")
    assert (reading.load.queued, reading.ranks) == (3.0, 1)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "abc", ""])
def test_nonsense_is_not_told(value: str) -> None:
    load = read(
        f"vllm:num_requests_waiting {value}\nvllm:num_requests_running {value}\n"
        f"vllm:kv_cache_usage_perc {value}\n"
    ).load
    assert (load.queued, load.running, load.kv_usage) == (None, None, None)


def test_one_rank_of_nonsense_makes_the_sum_unknown() -> None:
    text = 'vllm:num_requests_waiting{engine="0"} 0\nvllm:num_requests_waiting{engine="1"} NaN\n'
    assert read(text).load.queued is None


def test_usage_above_one_is_full() -> None:
    assert read("vllm:kv_cache_usage_perc 1.5").load.kv_usage == 1.0


@pytest.mark.parametrize("text", ["", "garbage", "# HELP only\n", "\x00\x01", "<html>404</html>"])
def test_a_page_of_something_else_says_nothing(text: str) -> None:
    reading = read(text)
    assert not reading.found
    assert reading.load.queued is None


@pytest.mark.parametrize(
    ("value", "asleep"), [("1.0", False), ("0.0", True)], ids=["awake", "asleep"]
)
def test_a_sleeping_engine(value: str, asleep: bool) -> None:
    text = (
        f'vllm:engine_sleep_state{{sleep_state="awake"}} {value}\n'
        'vllm:engine_sleep_state{sleep_state="discard_all"} 1\n'
        "vllm:num_requests_waiting 0\n"
    )
    assert read(text).load.asleep is asleep


def test_a_label_tells_that_an_engine_sleeps() -> None:
    assert read("vllm:num_requests_waiting 0", sleeping="true").load.asleep


INFO = "vllm:cache_config_info"


@pytest.mark.parametrize(
    ("labels", "cache"),
    [
        pytest.param('block_size="16",num_gpu_blocks="100"', CacheInfo(16, 1600), id="blocks"),
        pytest.param('block_size="16",num_gpu_blocks="None"', CacheInfo(16, None), id="no blocks"),
        pytest.param('block_size="16",num_gpu_blocks="0"', CacheInfo(16, None), id="zero blocks"),
        pytest.param('block_size="None",num_gpu_blocks="9"', None, id="no block size"),
        pytest.param('block_size="0",num_gpu_blocks="9"', None, id="block size zero"),
        pytest.param('block_size="-16",num_gpu_blocks="9"', None, id="negative"),
        pytest.param('block_size="99999999",num_gpu_blocks="9"', None, id="absurd block size"),
        pytest.param(
            'block_size="16",num_gpu_blocks="100",kv_cache_size_tokens="800"',
            CacheInfo(16, 800),
            id="tokens are preferred",
        ),
        pytest.param(
            'block_size="16",num_gpu_blocks="100",kv_cache_size_tokens="None"',
            CacheInfo(16, 1600),
            id="tokens unknown",
        ),
    ],
)
def test_the_caches_size(labels: str, cache: CacheInfo | None) -> None:
    assert read(f"{INFO}{{{labels}}} 1\nvllm:num_requests_waiting 0\n").load.cache == cache


def test_blocks_summed_over_ranks_are_divided_among_them() -> None:
    lines = [f'{INFO}{{block_size="16",num_gpu_blocks="200",engine="{i}"}} 1' for i in (0, 1)]
    lines += [f'vllm:num_requests_waiting{{engine="{i}"}} 0' for i in (0, 1)]
    assert read("\n".join(lines)).load.cache == CacheInfo(16, 1600)


def test_adapters_with_spaces_and_nonsense_limits() -> None:
    series = 'vllm:lora_requests_info{{max_lora="{}",running_lora_adapters="a , b",'
    series += 'waiting_lora_adapters=""}} 5\n'
    told = read(series.format(3)).load.lora
    assert told == LoraInfo(frozenset({"a", "b"}), frozenset(), 3)
    assert read(series.format("many")).load.lora is None


SGLANG = """sglang:num_queue_reqs{model_name="m"} 2
sglang:num_running_reqs{model_name="m"} 5
sglang:token_usage{model_name="m"} 0.25
sglang:cache_config_info{page_size="64",num_pages="1000"} 1
sglang:prompt_tokens_total{model_name="m"} 77
"""
TRTLLM = """trtllm_num_requests_waiting 2
trtllm_num_requests_running 5
trtllm_kv_cache_utilization 0.25
trtllm_kv_cache_tokens_per_block 64
trtllm_kv_cache_max_blocks 1000
"""
TRITON_TRTLLM = """nv_trt_llm_request_metrics{model="m",request_type="waiting"} 2
nv_trt_llm_request_metrics{model="m",request_type="context"} 99
nv_trt_llm_request_metrics{model="m",request_type="scheduled"} 5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.25
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 1000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m"} 250
"""


@pytest.mark.parametrize(
    ("engine", "text"),
    [("sglang", SGLANG), ("trtllm-serve", TRTLLM), ("triton-tensorrt-llm", TRITON_TRTLLM)],
)
def test_other_engines(engine: str, text: str) -> None:
    load = read(text, engine=engine).load
    assert (load.queued, load.running, load.kv_usage) == (2.0, 5.0, 0.25)
    assert load.cache == CacheInfo(64, 64_000)


def test_triton_tells_requests_only() -> None:
    text = (
        'nv_inference_pending_request_count{model="a",version="1"} 2\nnv_inference_exec_count 5\n'
    )
    load = read(text, engine="triton").load
    assert (load.queued, load.running, load.kv_usage, load.cache) == (2.0, 5.0, None, None)


def test_the_older_label_names_an_engine_too() -> None:
    engines = Engines()
    assert engines.name_for({"inference.networking.k8s.io/engine-type": "sglang"}) == "sglang"
    assert engines.name_for({TYPE: "unheard-of"}) == "vllm"
    assert engines.name_for({}) == "vllm"


def test_an_unknown_default_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'tgi'.*sglang.*vllm"):
        Engines(default="tgi")


def test_custom_metrics_take_the_series_with_the_newest_timestamp_else_the_first() -> None:
    custom = Engine("mine", custom=(("heat", Selector("heat", {"gpu": "1"})),))
    engines = Engines([custom], default="mine")
    text = b'heat{gpu="0"} 9\nheat{gpu="1"} 40\nheat{gpu="1",x="y"} 50\n'
    assert engines.read(text, 1.0).load.attributes == {"heat": 40.0}
    newer = b'heat{gpu="1"} 40 1000\nheat{gpu="1",x="y"} 50 2000\n'
    assert engines.read(newer, 1.0).load.attributes == {"heat": 50.0}
    assert engines.read(b'heat{gpu="1"} NaN\n', 1.0).load.attributes == {}
