"""What an engine has admitted and not computed, by two scrapes of what it counts."""

from __future__ import annotations

import pytest

from epp.model import CacheCounts, Load
from epp.ttft.backlog import STEP
from epp.ttft.inside import Inside
from epp.ttft.work import BEND

SPEED = 1e-4  #: seconds a token: a step of 8,192 takes 0.8 s


def told(at: float, prompts: float, held: float = 0.0, *, running: int = 4) -> Load:
    return Load(at, 0.0, running, 0.1, counts=CacheCounts(prompts, held, admitted=True))


def test_a_long_prompt_is_under_way_after_its_first_step_until_its_time_is_over() -> None:
    inside = Inside()
    assert inside.see(told(1.0, 5_000), SPEED) == 0.0  # what came before is not known
    left = 100_000 - STEP
    work = left * (1.0 + BEND * (100_000 - left / 2))
    assert inside.see(told(1.5, 105_000), SPEED) == pytest.approx(work)
    assert inside.see(told(2.5, 105_000), SPEED) == pytest.approx(work - 10_000)
    assert inside.see(told(90.0, 105_000), SPEED) == 0.0


def test_what_its_cache_held_is_no_work() -> None:
    inside = Inside()
    inside.see(told(1.0, 0), SPEED)
    assert inside.see(told(1.5, 100_000, held=95_000), SPEED) == 0.0
    # 20,000 of the next 100,000, of which one step is over when it is told.
    left = 20_000 - STEP
    work = left * (1.0 + BEND * (100_000 - left / 2))
    assert inside.see(told(2.0, 200_000, held=175_000), SPEED) == pytest.approx(work)


def test_whoever_is_admitted_shows_that_earlier_prompts_are_computed() -> None:
    inside = Inside()
    inside.see(told(1.0, 0), SPEED)
    assert inside.see(told(1.5, 100_000), SPEED) > 50_000
    assert inside.see(told(2.0, 101_000), SPEED) == 0.0


def test_of_long_ago_half_the_time_was_there_to_compute() -> None:
    inside = Inside()
    inside.see(told(1.0, 0), SPEED)
    # In 6 s 60,000 tokens; what came did so in the middle, so that 30,000 are over.
    left = 40_000 - 30_000
    work = left * (1.0 + BEND * (40_000 - left / 2))
    assert inside.see(told(7.0, 40_000), SPEED) == pytest.approx(work)


def test_an_engine_without_requests_computes_nothing() -> None:
    inside = Inside()
    inside.see(told(1.0, 0), SPEED)
    assert inside.see(told(1.5, 100_000), SPEED) > 50_000
    assert inside.see(told(2.0, 100_000, running=0), SPEED) == 0.0  # its client left


def test_a_process_that_begins_anew_counts_from_nothing() -> None:
    inside = Inside()
    inside.see(told(1.0, 500_000), SPEED)
    assert inside.see(told(1.5, 100), SPEED) == 0.0
    assert inside.see(told(2.0, 50_100), SPEED) > 40_000


def test_an_engine_that_counts_with_its_answers_says_nothing_of_what_it_computes() -> None:
    inside = Inside()
    for at, prompts in ((1.0, 0.0), (1.5, 100_000.0)):
        load = Load(at, 0.0, 4.0, 0.1, counts=CacheCounts(prompts, 0.0))
        assert inside.see(load, SPEED) is None


def test_an_engine_that_does_not_count_says_nothing() -> None:
    inside = Inside()
    inside.see(told(1.0, 0), SPEED)
    inside.see(told(1.5, 100_000), SPEED)
    assert inside.see(Load(2.0, 0.0, 4.0, 0.1), SPEED) is None
    assert inside.see(told(2.5, 300_000), SPEED) == 0.0
