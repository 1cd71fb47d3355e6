"""The engine's core: step durations, batching, cache hits and preemption, all worked out by hand."""

from __future__ import annotations

import pytest

from epp.sim.engine import Engine
from epp.sim.model import Config, Finished, Request, StepResult
from epp.sim.profiles import Timing

#: Round numbers: a step takes 10 ms, 1 ms per decoding sequence, 0.1 ms per prefill token.
TIMING = Timing(
    base=0.010, per_decode=0.001, per_context=0.0, per_prefill=0.0001, per_attention=0.0
)


def engine(
    *,
    timing: Timing = TIMING,
    kv_blocks: int = 101,
    seqs: int = 8,
    budget: int = 64,
    adapters: int = 2,
    jitter: float = 0.0,
    seed: int = 0,
) -> Engine:
    config = Config(
        timing,
        kv_blocks,
        block_tokens=4,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_adapters=adapters,
        jitter=jitter,
    )
    return Engine(config, seed)


def request(
    name: str, prompt: int, output: int = 1, *, blocks: str = "", adapter: str = ""
) -> Request:
    """Each letter of ``blocks`` is one block of four tokens; equal beginnings are shared."""
    hashes = [hash(blocks[: end + 1]) for end in range(len(blocks))]
    return Request(name, prompt, output, hashes, adapter)


def run(it: Engine, at: float = 0.0) -> tuple[list[StepResult], dict[str, Finished]]:
    """Step until nothing is left; the bound fails a test that would not end."""
    steps: list[StepResult] = []
    for _ in range(1000):
        step = it.step(at)
        if step is None:
            return steps, {end.id: end for each in steps for end in each.finished}
        at = step.at
        steps.append(step)
    raise AssertionError("the engine does not come to an end")


def test_an_idle_engine_has_nothing_to_do() -> None:
    assert engine().begin(0.0) is None


def test_a_prompt_takes_one_step_and_each_further_token_one_more() -> None:
    it = engine()
    it.submit(request("a", prompt=20, output=3), at=1.0)
    steps, ends = run(it, at=1.0)
    # 10 ms + 20 x 0.1 ms, then twice 10 ms + 1 ms
    assert [step.duration for step in steps] == pytest.approx([0.012, 0.011, 0.011])
    assert [list(step.emitted) for step in steps] == [["a"], ["a"], ["a"]]
    assert ends["a"].first_token_at == pytest.approx(1.012)
    assert ends["a"].ended_at == pytest.approx(1.034)
    assert steps[0].first_token_seconds == pytest.approx([0.012])
    assert steps[2].token_gap_seconds == pytest.approx([0.011])


def test_attention_and_context_cost_what_the_formula_says() -> None:
    timing = Timing(0.0, 0.0, per_context=0.001, per_prefill=0.0, per_attention=0.0001)
    it = engine(timing=timing, budget=8)
    it.submit(request("a", prompt=12, output=2), at=0.0)
    steps, _ = run(it)
    # chunks of 8 after 0 and 4 after 8 tokens: 8 x 4 and 4 x (8 + 2); then a context of 13 tokens
    assert [step.duration for step in steps] == pytest.approx([0.0032, 0.0040, 0.013])


def test_long_prompts_are_computed_in_chunks_beside_decodes() -> None:
    it = engine(budget=10)
    it.submit(request("short", prompt=2, output=4), at=0.0)
    it.submit(request("long", prompt=20, output=1), at=0.0)
    steps, _ = run(it)
    # short's prompt and 8 of long, then 1 decode and 9, then 1 decode and the last 3
    assert [step.batched_tokens for step in steps] == [10, 10, 4, 1]
    assert [list(step.emitted) for step in steps] == [
        ["short"], ["short"], ["short", "long"], ["short"],
    ]  # fmt: skip
    assert steps[1].duration == pytest.approx(0.010 + 0.001 + 9 * 0.0001)


def test_no_more_sequences_run_than_allowed_and_the_first_come_is_first_served() -> None:
    it = engine(seqs=1)
    for name in ("a", "b"):
        it.submit(request(name, prompt=4, output=2), at=0.0)
    it.begin(0.0)
    assert (it.running, it.waiting) == (1, 1)
    it.complete(0.01)
    _, ends = run(it, 0.01)
    assert ends["a"].ended_at < (ends["b"].admitted_at or 0.0) + 1e-9


def test_a_request_that_arrives_during_a_step_waits_for_the_next() -> None:
    it = engine()
    it.submit(request("a", prompt=4, output=2), at=0.0)
    it.begin(0.0)
    it.submit(request("b", prompt=4, output=1), at=0.005)
    assert list(it.complete(0.0104).emitted) == ["a"]
    it.begin(0.0104)
    assert list(it.complete(0.03).emitted) == ["a", "b"]


def test_an_embedding_ends_with_its_prompt_and_makes_no_token() -> None:
    it = engine()
    it.submit(request("a", prompt=8, output=0), at=0.0)
    steps, ends = run(it)
    assert [list(step.emitted) for step in steps] == [[]]
    assert (ends["a"].output_tokens, ends["a"].first_token_at) == (0, None)
    assert it.totals.prompt_tokens == 8


# --- prefix cache ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "blocks", "cached"),
    [
        pytest.param(12, "abc", 8, id="all cached but the last block is computed again"),
        pytest.param(13, "abc", 12, id="one token more and all three blocks count"),
        pytest.param(16, "abxy", 8, id="up to the first block that differs"),
        pytest.param(16, "xbcd", 0, id="nothing after a first block that differs"),
    ],
)
def test_leading_blocks_are_not_computed_again(prompt: int, blocks: str, cached: int) -> None:
    it = engine()
    it.submit(request("first", prompt=12, blocks="abc"), at=0.0)
    run(it)
    it.submit(request("second", prompt=prompt, blocks=blocks), at=1.0)
    steps, ends = run(it, 1.0)
    assert ends["second"].cached_tokens == cached
    assert steps[0].batched_tokens == prompt - cached
    assert (it.totals.queried_tokens, it.totals.hit_tokens) == (12 + prompt, cached)


def test_outputs_are_cached_as_prompts_are() -> None:
    it = engine()
    it.submit(request("turn 1", prompt=8, output=9, blocks="abcd"), at=0.0)
    run(it)
    it.submit(request("turn 2", prompt=20, blocks="abcde"), at=1.0)
    assert run(it, 1.0)[1]["turn 2"].cached_tokens == 16


def test_the_last_output_token_is_not_in_the_cache_since_it_was_never_computed() -> None:
    it = engine()
    it.submit(request("turn 1", prompt=8, output=8, blocks="abcd"), at=0.0)
    run(it)
    it.submit(request("turn 2", prompt=20, blocks="abcde"), at=1.0)
    assert run(it, 1.0)[1]["turn 2"].cached_tokens == 12


def test_a_block_is_shared_with_a_request_still_running() -> None:
    it = engine()
    it.submit(request("a", prompt=8, output=3, blocks="ab"), at=0.0)
    it.step(0.0)
    it.submit(request("b", prompt=9, output=1, blocks="ab"), at=0.02)
    it.begin(0.02)
    # a: two shared blocks and one for its output; b: the same two and one more
    assert it.cache.used == 4
    assert run(it, 0.02)[1]["b"].cached_tokens == 8


def test_the_oldest_idle_prefix_is_given_up_first() -> None:
    it = engine(kv_blocks=1 + 6)
    for at, (name, blocks) in enumerate({"old": "ab", "new": "cd"}.items()):
        it.submit(request(name, prompt=8, blocks=blocks), at=float(at))
        run(it, float(at))
    it.submit(request("third", prompt=15, blocks="xyz"), at=2.0)  # takes 4 of 6 blocks: 2 are free
    run(it, 2.0)
    it.submit(request("old again", prompt=9, blocks="ab"), at=3.0)
    old = run(it, 3.0)[1]["old again"]
    assert old.cached_tokens == 0


def test_prefixes_outlive_their_tails() -> None:
    it = engine(kv_blocks=1 + 5)
    it.submit(request("a", prompt=16, blocks="abcd"), at=0.0)
    run(it)
    it.submit(request("b", prompt=7, output=1, blocks="x"), at=1.0)  # 2 blocks: 1 free, 1 given up
    run(it, 1.0)
    it.submit(request("a again", prompt=17, blocks="abcd"), at=2.0)
    assert run(it, 2.0)[1]["a again"].cached_tokens == 12


# --- too little memory -------------------------------------------------------------------


def test_the_request_admitted_last_is_preempted_and_computed_again() -> None:
    it = engine(kv_blocks=1 + 5)
    it.submit(request("a", prompt=8, output=5), at=0.0)  # 2 blocks, 3 when it ends
    it.submit(request("b", prompt=8, output=8), at=0.0)  # 2 blocks, 4 when it ends
    first = it.step(0.0)
    assert first is not None
    second = it.step(first.at)  # a takes the fifth block, b finds none
    assert second is not None
    assert list(second.emitted) == ["a"]
    assert (it.running, it.waiting, it.totals.preemptions) == (1, 1, 1)
    _, ends = run(it, second.at)
    assert (ends["a"].preemptions, ends["b"].preemptions) == (0, 1)
    assert (ends["a"].output_tokens, ends["b"].output_tokens) == (5, 8)
    assert it.cache.used == 0


def test_a_preempted_request_finds_its_own_prefix_again() -> None:
    it = engine(kv_blocks=1 + 5)
    it.submit(request("a", prompt=8, output=2), at=0.0)
    it.submit(request("b", prompt=8, output=2, blocks="bc"), at=0.0)
    steps, _ = run(it)
    # both prompts; a alone, as b has no block; b's prompt is found, its one output token is not
    assert [step.batched_tokens for step in steps] == [16, 1, 1]


def test_a_request_waits_until_all_of_its_prompt_fits() -> None:
    it = engine(kv_blocks=1 + 5, budget=8)
    it.submit(request("a", prompt=8, output=2), at=0.0)
    it.submit(request("b", prompt=16, output=1), at=0.0)
    steps, ends = run(it)
    assert [list(step.emitted) for step in steps] == [["a"], ["a"], [], ["b"]]
    assert ends["b"].admitted_at == pytest.approx(ends["a"].ended_at)


def test_a_request_that_can_never_fit_is_refused() -> None:
    it = engine(kv_blocks=1 + 5)
    with pytest.raises(ValueError, match="needs 6 KV blocks of 5"):
        it.submit(request("a", prompt=20, output=1), at=0.0)


def test_an_id_in_use_is_refused() -> None:
    it = engine()
    it.submit(request("a", prompt=1), at=0.0)
    with pytest.raises(ValueError, match="'a' is in use"):
        it.submit(request("a", prompt=1), at=0.0)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, -1)], ids=["no prompt", "negative"])
def test_empty_requests_are_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match=f"{prompt} and {output}"):
        engine().submit(request("a", prompt, output), at=0.0)


# --- aborts ------------------------------------------------------------------------------


def test_an_abort_gives_the_blocks_back_even_during_a_step() -> None:
    it = engine()
    it.submit(request("a", prompt=8, output=5), at=0.0)
    it.submit(request("b", prompt=8, output=1), at=0.0)
    it.begin(0.0)
    end = it.abort("a", at=0.005)
    assert end is not None
    assert (end.reason, end.output_tokens, end.ended_at) == ("abort", 0, 0.005)
    assert list(it.complete(0.02).emitted) == ["b"]
    assert (it.running, it.waiting, it.cache.used, it.ids()) == (0, 0, 0, ())


def test_a_waiting_request_can_be_aborted() -> None:
    it = engine()
    it.submit(request("a", prompt=8), at=0.0)
    assert it.abort("a", at=1.0) is not None
    assert it.abort("a", at=1.0) is None
    assert it.begin(1.0) is None


# --- adapters ----------------------------------------------------------------------------


def test_requests_for_one_adapter_too_many_are_passed_over() -> None:
    it = engine(adapters=1)
    it.submit(request("a", prompt=4, output=2, adapter="x"), at=0.0)
    it.submit(request("b", prompt=4, output=1, adapter="y"), at=0.0)
    it.submit(request("c", prompt=4, output=1), at=0.0)
    step = it.step(0.0)
    assert step is not None
    assert list(step.emitted) == ["a", "c"]
    assert (it.deferred, it.waiting, it.running_adapters()) == (1, 1, {"x"})
    _, ends = run(it, step.at)
    assert (it.deferred, set(ends)) == (0, {"a", "b"})


# --- determinism -------------------------------------------------------------------------


def durations(seed: int) -> list[float]:
    it = engine(jitter=0.1, seed=seed)
    it.submit(request("a", prompt=4, output=20), at=0.0)
    return [step.duration for step in run(it)[0]]


def test_jitter_is_the_same_for_the_same_seed() -> None:
    assert durations(1) == durations(1)
    assert durations(1) != durations(2)


def test_all_tokens_come_out_and_all_blocks_come_back_under_memory_pressure() -> None:
    it = engine(kv_blocks=1 + 30, seqs=16, budget=16)
    wanted = {f"r{i}": 1 + (i * 7) % 23 for i in range(60)}
    for i, (name, output) in enumerate(wanted.items()):
        blocks = f"s{i % 5}"[:2] + "".join(chr(97 + (i + k) % 26) for k in range(8))
        it.submit(request(name, prompt=5 + (i * 13) % 40, output=output, blocks=blocks), at=0.0)
    _, ends = run(it)
    assert {name: end.output_tokens for name, end in ends.items()} == wanted
    assert it.totals.preemptions > 0
    assert it.cache.used == 0
