"""Numbers of blocks: the same for the same prefix, and what is not told."""

from __future__ import annotations

from epp.recording.numbers import Numbers, Recent
from epp.recording.record import expanded

START = 1000


def ids(numbers: Numbers, chain: list[int], conversation: int) -> list[int]:
    return list(expanded(numbers.tell(chain, conversation).runs))


def test_a_new_prompt_is_one_run_and_its_continuation_begins_with_it() -> None:
    numbers = Numbers(least=5, start=START)
    assert numbers.tell([7, 8, 9], 1).runs == ((1000, 3),)
    assert numbers.tell([7, 8, 9, 10], 1).runs == ((1000, 4),)
    assert numbers.tell([7, 8, 20], 1).runs == ((1000, 2), (1004, 1))


def test_what_fewer_conversations_share_than_the_least_is_not_told() -> None:
    numbers = Numbers(least=3, start=START)
    assert ids(numbers, [7, 8], 1) == [1000, 1001]
    second = ids(numbers, [7, 8], 2)
    assert not set(second) & {1000, 1001}
    assert ids(numbers, [7, 8, 9], 2)[:2] == second  # within it, repetition is told
    assert ids(numbers, [7, 8], 1) == [1000, 1001]


def test_from_the_least_on_all_of_them_share() -> None:
    numbers = Numbers(least=3, start=START)
    for conversation in (1, 2):
        numbers.tell([7, 8], conversation)
    assert ids(numbers, [7, 99], 3)[0] == 1000
    assert ids(numbers, [7, 8], 2)[0] == 1000
    assert numbers.tell([7, 99], 4).shared == 1
    assert numbers.tell([50], 4).shared == 0


def test_one_conversation_that_comes_and_goes_does_not_count_twice() -> None:
    numbers = Numbers(least=3, start=START)
    for conversation in (1, 2, 1, 2, 1, 2):
        numbers.tell([7], conversation)
    assert numbers.tell([7], 2).shared == 0


def test_with_a_least_of_one_everything_is_told_at_once() -> None:
    numbers = Numbers(least=1, start=START)
    numbers.tell([7, 8], 1)
    told = numbers.tell([7, 8], 2)
    assert (told.runs, told.shared) == (((1000, 2),), 2)


def test_blocks_that_many_hold_are_common_even_where_they_are_not_told() -> None:
    numbers = Numbers(least=10, start=START)
    for conversation in range(3):
        numbers.tell([7, conversation + 100], conversation)
    assert numbers.common([7, 100]) == 1
    assert numbers.common([5]) == 0


def test_memory_is_bounded_and_what_is_asked_for_stays() -> None:
    recent: Recent[int] = Recent(10)
    recent.put(0, 42)
    for key in range(1, 100):
        recent.put(key, key)
        assert recent.get(0) == 42
        assert len(recent) <= 11
    assert recent.get(50) is None


def test_a_forgotten_block_gets_a_new_number() -> None:
    numbers = Numbers(least=1, start=START, most=4)
    first = ids(numbers, [7], 1)
    ids(numbers, [10, 11, 12, 13, 14], 2)
    assert ids(numbers, [7], 1) != first
