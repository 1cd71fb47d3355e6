"""KV that an engine fetches or keeps, in virtual time; worked out by hand. No sockets here."""

from __future__ import annotations

from epp.sim.engine import Engine
from epp.sim.model import Config, Request
from epp.sim.profiles import Timing

#: 10 ms a step, 0.1 ms per prefill token.
TIMING = Timing(
    base=0.010, per_decode=0.001, per_context=0.0, per_prefill=0.0001, per_attention=0.0
)


def engine(*, blocks: int = 101, seqs: int = 8, lease: float = 30.0) -> Engine:
    return Engine(Config(TIMING, blocks, block_tokens=4, max_num_seqs=seqs, lease_seconds=lease), 0)


def hashes(count: int) -> list[int]:
    return list(range(1, count + 1))


def fetching(name: str, prompt: int = 40, output: int = 4) -> Request:
    return Request(name, prompt, output, hashes(prompt // 4), fetches=True)


def test_a_fetched_prompt_waits_outside_the_batch_and_computes_one_token() -> None:
    it = engine()
    it.submit(fetching("a"), 0.0)
    assert it.begin(0.0) is None
    assert it.to_fetch() == ["a"]
    assert (it.waiting, it.running, it.cache.used) == (1, 0, 10)
    it.fetched("a")
    step = it.step(1.0)
    assert step is not None
    assert step.batched_tokens == 1
    assert (it.totals.external_tokens, it.totals.computed_tokens) == (40, 0)


def test_what_is_cached_already_is_not_counted_as_fetched() -> None:
    it = engine()
    it.submit(Request("local", 12, 1, hashes(3)), 0.0)
    it.step(0.0)
    it.submit(fetching("a"), 1.0)
    it.begin(1.0)
    it.fetched("a")
    it.step(2.0)
    assert it.totals.external_tokens == 40 - 12
    assert it.totals.hit_tokens == 12


def test_without_its_kv_the_prompt_is_computed_here() -> None:
    it = engine()
    it.submit(fetching("a"), 0.0)
    it.begin(0.0)
    it.fetched("a", good=False)
    step = it.step(5.0)
    assert step is not None
    assert step.batched_tokens == 40
    assert (it.totals.external_tokens, it.totals.computed_tokens) == (0, 40)


def test_nothing_is_fetched_while_the_batch_is_full() -> None:
    it = engine(seqs=1)
    it.submit(Request("first", 8, 3), 0.0)
    it.step(0.0)
    it.submit(fetching("a"), 0.0)
    it.step(0.1)
    assert it.to_fetch() == []
    it.step(0.2)
    it.begin(0.3)
    assert it.to_fetch() == ["a"]


def test_an_abort_gives_blocks_back_while_fetching_and_after() -> None:
    it = engine()
    for name in ("fetching", "fetched"):
        it.submit(Request(name, 40, 4, fetches=True), 0.0)
    it.begin(0.0)
    it.fetched("fetched")
    assert it.cache.used == 20
    for name in ("fetching", "fetched"):
        assert it.abort(name, 1.0) is not None
    assert (it.cache.used, it.waiting) == (0, 0)
    it.fetched("fetching")  # too late, and harmless
    assert it.step(2.0) is None


def test_a_kept_prompt_holds_its_blocks_until_it_is_read() -> None:
    it = engine()
    it.submit(Request("a", 40, 1, hashes(10), keeps=True), 0.0)
    it.step(0.0)
    assert (it.running, it.cache.used) == (0, 10)
    assert it.leases.release("a")
    assert it.cache.used == 0
    assert not it.leases.release("a")


def test_an_unread_lease_ends_after_its_time() -> None:
    it = engine(lease=30.0)
    it.submit(Request("a", 40, 1, keeps=True), 0.0)
    step = it.step(0.0)
    assert step is not None
    assert it.leases.expire(step.at + 29.9) == []
    assert it.leases.expire(step.at + 30.0) == ["a"]
    assert it.cache.used == 0


def test_an_answer_that_ends_by_itself_keeps_nothing() -> None:
    it = engine()
    it.submit(Request("a", 40, 1, reason="stop", keeps=True), 0.0)
    it.step(0.0)
    assert (len(it.leases), it.cache.used) == (0, 0)
