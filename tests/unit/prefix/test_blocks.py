"""Block hashes. In: the chain, its root, its bounds. Out: what a prompt is, and any index."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from epp.prefix import blocks
from epp.prefix.blocks import Runs, block_hashes, root

PROMPT = bytes(range(256)) * 4  # four blocks of 64 tokens, all alike


def test_each_hash_is_chained_on_the_one_before() -> None:
    first = xxh3_64_intdigest(PROMPT[:256], 5)
    second = xxh3_64_intdigest(PROMPT[256:512], first)
    assert block_hashes(PROMPT, root=5)[:2] == (first, second)


def test_equal_blocks_at_different_places_have_different_hashes() -> None:
    assert len(set(block_hashes(PROMPT, root=5))) == 4


@pytest.mark.parametrize(
    ("size", "full"), [(0, 0), (255, 0), (256, 1), (511, 1), (512, 2)], ids=str
)
def test_only_full_blocks_count(size: int, full: int) -> None:
    assert len(block_hashes(bytes(size), root=0)) == full


def test_no_more_than_max_blocks_are_hashed() -> None:
    whole = block_hashes(PROMPT, root=1, block_tokens=1)
    assert len(whole) == 256
    assert block_hashes(PROMPT, root=1, block_tokens=1, max_blocks=10) == whole[:10]


def test_a_block_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="not 0"):
        block_hashes(PROMPT, root=0, block_tokens=0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(("a", ""), ("b", ""), id="model"),
        pytest.param(("a", "s"), ("a", "t"), id="salt"),
        pytest.param(("a", ""), ("a", "s"), id="no salt"),
        pytest.param(("ab", "c"), ("a", "bc"), id="where the model ends"),
    ],
)
def test_roots_differ_by(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert root(*one) != root(*other)
    assert not set(block_hashes(PROMPT, root=root(*one))) & set(
        block_hashes(PROMPT, root=root(*other))
    )


def test_a_secret_changes_every_hash() -> None:
    assert root("a", "b", secret=b"x") != root("a", "b")
    assert root("a", "b", secret=b"x") != root("a", "bx")


def test_hashes_are_the_same_in_another_process() -> None:
    code = (
        "from epp.prefix.blocks import *;"
        "print(block_hashes(bytes(range(256)) * 4, root=root('m', 's'))[-1])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=30,
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {b"%d\n" % block_hashes(PROMPT, root=root("m", "s"))[-1]}


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 8))
def test_hashes_agree_exactly_as_far_as_the_blocks_do(a: bytes, b: bytes, tokens: int) -> None:
    size = 4 * tokens
    common = 0
    while (
        len(a) >= (common + 1) * size
        and len(b) >= (common + 1) * size
        and a[: (common + 1) * size] == b[: (common + 1) * size]
    ):
        common += 1
    pairs = zip(
        block_hashes(a, root=3, block_tokens=tokens),
        block_hashes(b, root=3, block_tokens=tokens),
        strict=False,
    )
    assert [x == y for x, y in pairs].count(True) == common


@given(
    prompts=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    tail=st.binary(max_size=300),
    most=st.integers(1, 4),
)
def test_remembered_runs_change_no_hash(prompts: list[int], tail: bytes, most: int) -> None:
    runs = Runs(most)
    root_hash = root("m")
    parts = [bytes([i]) * 4 * blocks.RUN * 2 for i in range(4)]  # two runs of blocks of 1 token
    so_far = b""
    for i in prompts:
        so_far += parts[i]
        prompt = so_far + tail
        assert block_hashes(
            prompt, root=root_hash, block_tokens=1, max_blocks=100_000, runs=runs
        ) == block_hashes(prompt, root=root_hash, block_tokens=1, max_blocks=100_000)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.integers(1, 4096))
def test_hashes_are_told_as_they_are(chain: list[int], block_tokens: int) -> None:
    fact = blocks.packed(chain, block_tokens)  # type: ignore[arg-type]
    assert fact == b"".join(each.to_bytes(8, "little") for each in (block_tokens, *chain))
    assert blocks.unpacked(fact) == (tuple(chain), block_tokens)


@pytest.mark.parametrize("length", [0, 1, 8, 15, 17])
def test_bytes_that_are_no_hashes_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} bytes"):
        blocks.unpacked(bytes(length))
