"""The work of a prompt: tokens, dearer by those before them."""

from __future__ import annotations

import pytest

from epp.ttft.work import weight


@pytest.mark.parametrize(
    ("uncached", "prompt", "each"),
    [
        (0, 0, 1.0),
        (1000, 1000, 1.0 + 3.5e-5 * 500),
        (1000, 101_000, 1.0 + 3.5e-5 * 100_500),
        (100_000, 100_000, 1.0 + 3.5e-5 * 50_000),
        (200, 0, 1.0),
    ],
)
def test_each_token_weighs_more_by_the_mean_of_those_before_it(
    uncached: int, prompt: int, each: float
) -> None:
    assert weight(uncached, prompt) == pytest.approx(each)


def test_two_parts_of_a_prompt_are_as_much_work_as_the_whole() -> None:
    whole = 8000 * weight(8000, 8000)
    parts = 5000 * weight(5000, 5000) + 3000 * weight(3000, 8000)
    assert parts == pytest.approx(whole)
