"""Four bytes are one token."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.sim import tokenizer


def test_ids_are_four_bytes_little_endian() -> None:
    assert tokenizer.encode(b"abcde").tolist() == [0x64636261, 0x65]


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_ids_turn_back_into_the_text(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text.encode())) == text


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_ids_of_a_beginning_are_the_beginning_of_the_ids_but_for_the_last(
    start: bytes, rest: bytes
) -> None:
    whole = tokenizer.encode(start + rest).tolist()
    assert whole[: len(start) // 4] == tokenizer.encode(start).tolist()[: len(start) // 4]


def test_text_has_the_tokens_it_was_asked_for() -> None:
    assert [len(tokenizer.encode(tokenizer.text(n).encode())) for n in (0, 1, 7)] == [0, 1, 7]
    assert tokenizer.text(9, seed=1) == tokenizer.text(9, seed=1) != tokenizer.text(9, seed=2)


def test_words_are_distinct_and_one_token_each() -> None:
    assert len(set(tokenizer.WORDS)) == 64
    assert {len(tokenizer.encode(word)) for word in tokenizer.WORDS} == {1}


def test_an_answer_depends_on_prompt_seed_and_choice_alone() -> None:
    prompt = tokenizer.encode(b"what is it?")
    first = tokenizer.answer(prompt, 12).tolist()
    assert tokenizer.answer(prompt, 12).tolist() == first
    assert tokenizer.answer(prompt, 5).tolist() == first[:5]
    assert tokenizer.answer(prompt, 12, seed=1).tolist() != first
    assert tokenizer.answer(prompt, 12, choice=1).tolist() != first
    assert tokenizer.answer(prompt[:1], 12).tolist() != first


def test_an_answer_read_as_text_has_the_ids_it_was_made_of() -> None:
    ids = tokenizer.answer(tokenizer.encode(b"hi"), 20)
    assert np.array_equal(tokenizer.encode(tokenizer.decode(ids).encode()), ids)


@given(st.binary(min_size=1, max_size=20))
def test_a_draw_stays_in_its_range(prompt: bytes) -> None:
    assert 3 <= tokenizer.draw(tokenizer.encode(prompt), 3, 5) <= 5
