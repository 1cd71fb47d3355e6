"""Step times of the shipped profiles against numbers worked out from the table."""

from __future__ import annotations

import pytest

from epp.errors import ConfigError
from epp.sim import profiles
from epp.sim.options import EngineOptions


def test_a_decode_step_of_llama_8b_on_h100() -> None:
    timing = profiles.by_name("llama-3.1-8b-h100").timing(1.0)
    seconds = timing.step_seconds(decodes=32, context=32 * 1000)
    # 6.4 ms + 32 x 0.011 ms + 32,000 x 42 ns
    assert seconds == pytest.approx(0.0064 + 0.000352 + 0.001344)


def test_a_prefill_step_of_qwen_32b_on_two_h200() -> None:
    timing = profiles.by_name("qwen3-32b-h200-tp2").timing()
    seconds = timing.step_seconds(decodes=0, context=0, prefill=8192, attention=8192 * 4096)
    # 1.2 x (10.8 ms + 8,192 x 49.5 us + 33,554,432 x 1.65 ns) + 4 ms
    assert seconds == pytest.approx(1.2 * (0.0108 + 0.405504 + 0.0553648) + 0.004, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "tokens_per_second"),
    [("llama-3.1-8b-h100", 41_018), ("qwen3-32b-h100-tp2", 17_211), ("qwen3-32b-b200", 18_717)],
)
def test_prefill_speed_is_near_the_grids_own(name: str, tokens_per_second: float) -> None:
    """The grids' speed at 8,192 tokens; a step here also reads the weights once, as a decode does."""
    timing = profiles.by_name(name).timing(1.0)
    seconds = timing.step_seconds(decodes=0, context=0, prefill=8192, attention=8192 * 4096)
    assert 8192 / seconds == pytest.approx(tokens_per_second, rel=0.04)


def test_an_unknown_profile_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'nope' is not known.*llama-3.1-8b-h100"):
        profiles.by_name("nope")


def test_the_cache_is_the_profiles_unless_said_otherwise() -> None:
    assert EngineOptions().config().kv_blocks == 450_000 // 16
    assert EngineOptions(kv_blocks=70).config().kv_blocks == 70


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EngineOptions(speed=0.0), "speed must be > 0, not 0.0"),
        (EngineOptions(fail_rate=1.5), r"fail_rate must be within 0..1, not 1.5"),
        (EngineOptions(kv_blocks=1), "kv_blocks is too small: 1"),
        (EngineOptions(max_num_seqs=0), "max_num_seqs is too small: 0"),
        (EngineOptions(models=()), "at least one model name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_out_of_range_are_refused_by_name(options: EngineOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.config()
