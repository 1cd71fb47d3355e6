"""The index of what engines told, event by event; any order of them is the property test's."""

from __future__ import annotations

import msgspec
import pytest

from epp.collect.parse.kv_events import parse
from epp.model import EndpointId
from epp.prefix.exact.events import Cleared, Removed, Stored, Tier
from epp.prefix.exact.index import FEW, ExactIndex
from epp.prefix.exact.keys import Keys, Prompt
from epp.prefix.exact.source import ROWS
from tests.support.kv import A, B, captured, held, index, packed, prompt, stored


def test_a_prompt_is_matched_up_to_the_first_block_that_was_not_told():
    of = index(A, B)
    of.apply(A, [stored(0, 4)])
    of.apply(B, [stored(0, 2)])
    assert held(of, prompt(0, 64)) == {A: 4, B: 2}
    assert held(of, prompt(0, 47)) == {A: 2, B: 2}  # of the third block a token is missing
    assert held(of, prompt(1, 64)) == {}


def test_a_gap_ends_the_match_even_if_later_blocks_are_held():
    of = index()
    of.apply(A, [stored(0, 4), Removed((17,))])
    assert held(of, prompt(0, 64)) == {A: 1}


def test_a_block_told_twice_is_gone_when_it_is_removed_twice():
    of = index()
    of.apply(A, [stored(0, 1), stored(0, 1), Removed((1,))])
    assert held(of, prompt(0, 16)) == {A: 1}
    of.apply(A, [Removed((1,))])
    assert held(of, prompt(0, 16)) == {}


def test_an_engine_that_contradicts_itself_is_believed_what_it_told_first():
    of = index()
    of.apply(A, [stored(0, 1), Stored((1,), None, packed(range(500, 516)), 16)])
    assert (held(of, prompt(0, 16)), held(of, prompt(500, 16))) == ({A: 1}, {})
    of.apply(A, [Removed((1,)), Removed((1, 1, 99))])
    assert held(of, prompt(0, 16)) == {}
    assert of.figures()["blocks"] == 0


def test_real_repeats_of_one_prompt_are_all_removed():
    of = index(block_tokens=32)
    batches = captured("dup")
    first = batches[0].events[0]
    for batch in batches:
        of.apply(A, batch.events)
    # Its second block was told twice and removed twice; its first one was told and removed once.
    assert held(of, Prompt(first.tokens, "")) == {}
    told = sum(len(event.hashes) for batch in batches for event in batch.events
               if isinstance(event, Stored))  # fmt: skip
    gone = sum(len(event.hashes) for batch in batches for event in batch.events
               if isinstance(event, Removed))  # fmt: skip
    assert of.figures()["stored"] == told
    assert of.figures()["removed"] == gone > 0


def test_of_a_real_hybrid_model_only_full_attention_counts():
    of = index(block_tokens=32)
    sliding, full = captured("hybrid")[0].events
    of.apply(A, [sliding])
    assert held(of, Prompt(full.tokens, "")) == {}
    of.apply(A, [full])
    assert held(of, Prompt(full.tokens, "")) == {A: 6}
    of.apply(A, [Removed(sliding.hashes, group=sliding.group)])
    assert held(of, Prompt(full.tokens, "")) == {A: 6}


def test_groups_that_tell_no_kind_count_unless_they_have_holes():
    of = index()
    window = Stored((3,), None, packed(range(48)), 16, group=0)
    of.apply(A, [window, stored(0, 3, group=1), stored(0, 3, group=0)])
    assert held(of, prompt(0, 48)) == {A: 3}
    assert of.figures()["uneven"] == 1
    of.apply(A, [Removed((1, 17, 33), group=0)])
    assert held(of, prompt(0, 48)) == {A: 3}


def test_an_engine_with_very_many_groups_is_believed_as_far_as_groups_are_counted():
    of = index()
    of.apply(A, [stored(0, 1, kind="full_attention")])
    windows = [stored(0, 1, group=each, kind="sliding_window") for each in range(1, 2000)]
    of.apply(A, [*windows, stored(0, 1, group=2000, kind="full_attention"), Removed((1,))])
    assert held(of, prompt(0, 16)) == {}
    assert of.figures()["blocks"] == 0


def test_with_two_groups_of_full_attention_a_block_is_held_if_both_hold_it():
    of = index()
    of.apply(A, [stored(0, 1, group=0), stored(0, 1, group=1)])
    of.apply(A, [stored(100, 2, group=0), stored(100, 1, group=1)])
    assert held(of, prompt(100, 32)) == {A: 1}
    of.apply(A, [Removed((101,), group=0)])
    assert held(of, prompt(100, 32)) == {}
    of.apply(A, [stored(100, 1, group=0)])
    assert held(of, prompt(100, 32)) == {A: 1}


@pytest.mark.parametrize("size", [32, 64, 48])
def test_an_engines_larger_block_is_several_of_ours(size: int):
    of = index()
    of.apply(A, [stored(0, 2, size=size)])
    assert held(of, prompt(0, 2 * size)) == {A: 2 * size // 16}
    of.apply(A, [Removed((size + 1,))])
    assert held(of, prompt(0, 2 * size)) == {A: size // 16}
    of.apply(A, [Removed((1,))])
    assert held(of, prompt(0, 2 * size)) == {}
    assert of.figures()["blocks"] == 0


@pytest.mark.parametrize("size", [1, 4, 8])
def test_an_engines_smaller_blocks_fill_up_one_of_ours(size: int):
    of = index()
    of.apply(A, [stored(0, 16 // size, size=size)])
    of.apply(A, [stored(16, 16 // size - 1, parent=16 - size + 1, size=size)])
    assert held(of, prompt(0, 32)) == {A: 1}
    of.apply(A, [stored(32 - size, 1, parent=32 - 2 * size + 1, size=size)])
    assert held(of, prompt(0, 32)) == {A: 2}
    of.apply(A, [Removed((32 - size + 1,))])
    assert held(of, prompt(0, 32)) == {A: 1}


def test_blocks_that_do_not_divide_ours_are_matched_where_both_end():
    of = index()
    of.apply(A, [stored(0, 2, size=24)])
    assert held(of, prompt(0, 48)) == {A: 3}


def test_blocks_of_two_sizes_follow_each_other_on_one_engine():
    of = index()
    of.apply(A, [stored(0, 1, size=64), stored(64, 2, parent=1)])
    assert held(of, prompt(0, 96)) == {A: 6}


def test_media_tell_equal_tokens_apart_wherever_they_begin():
    tokens = packed([7] * 64)
    of = index(A, B)
    of.apply(A, [Stored((1, 2, 3, 4), None, tokens, 16, media=((20, "cat"),))])
    of.apply(B, [Stored((1, 2), None, tokens, 32, media=((20, "dog"),))])
    assert held(of, Prompt(tokens, "", media=((20, "cat"),))) == {A: 4, B: 1}
    assert held(of, Prompt(tokens, "", media=((20, "dog"),))) == {A: 1, B: 4}
    assert held(of, Prompt(tokens, "")) == {A: 1, B: 1}


def test_a_medium_that_begins_in_an_unfinished_block_is_not_lost():
    of = index()
    tokens = packed([7] * 16)
    first = Stored((1,), None, tokens[:32], 8, media=((5, "cat"),))
    of.apply(A, [first, Stored((2,), 1, tokens[32:], 8)])
    assert held(of, Prompt(tokens, "", media=((5, "cat"),))) == {A: 1}
    assert held(of, Prompt(tokens, "")) == {}


def test_tiers_extend_the_match_and_are_told():
    of = index()
    of.apply(A, [stored(0, 4), Stored((33, 49), None, b"", 0, Tier.CPU), Removed((33, 49))])
    known = of.look_up(prompt(0, 64))
    assert known.blocks == {A: 4}
    assert known.lower == {A: (2, 0, 2, 0, 0)}
    of.apply(A, [Removed((33,), Tier.CPU)])
    assert held(of, prompt(0, 64)) == {A: 2}


def test_what_lies_outside_the_pod_counts_until_it_is_removed_there_or_all_is_cleared():
    """vLLM names a storage that is remote, and no tokens; SGLang names it external, with tokens."""
    remote = {"medium": "STORAGE", "locality": "REMOTE"}
    placed = {"type": "BlockStored", "block_hashes": [1, 17], "parent_block_hash": None,
              "token_ids": [], "block_size": 0, **remote}  # fmt: skip
    external = ["BlockStored", [33], 17, list(range(32, 48)), 16, None, "EXTERNAL"]
    events = parse(msgspec.msgpack.encode([1.0, [placed, external], 0])).events
    of = index(A, B)
    of.apply(A, [stored(0, 2), *events, Removed((1, 17), Tier.CPU)])
    assert of.look_up(prompt(0, 48)).lower == {A: (2, 0, 0, 0, 1)}
    of.apply(A, [Removed((1, 17))])
    assert of.look_up(prompt(0, 48)).lower == {A: (0, 0, 0, 0, 3)}  # nobody told that B reads it
    gone = {"type": "BlockRemoved", "block_hashes": [17], **remote}
    of.apply(A, parse(msgspec.msgpack.encode([1.0, [gone], 0])).events)
    assert held(of, prompt(0, 48)) == {A: 1}
    of.apply(A, [Cleared()])
    assert held(of, prompt(0, 48)) == {}


def test_a_tier_of_larger_blocks_holds_all_their_parts():
    of = index()
    of.apply(A, [stored(0, 1, size=64), Stored((1,), None, b"", 0, Tier.DISK), Removed((1,))])
    assert of.look_up(prompt(0, 64)).lower == {A: (0, 0, 0, 4, 0)}


def test_ranks_hold_their_own_and_the_best_one_is_named():
    of = ExactIndex(Keys((b"s",)))
    of.join(A, 0)
    of.join(A, 1)
    of.apply(A, [stored(0, 1)], rank=0)
    of.apply(A, [stored(0, 3)], rank=1)
    known = of.look_up(prompt(0, 48))
    assert (known.blocks, known.ranks) == ({A: 3}, {A: 1})
    of.forget(A)
    assert held(of, prompt(0, 48)) == {}


def test_an_index_of_our_own_hash_does_not_care_how_engines_hash():
    of = index(A, B)
    of.apply(A, [stored(0, 2)])
    of.apply(B, [Stored((555, 777), None, packed(range(32)), 16)])
    assert held(of, prompt(0, 32)) == {A: 2, B: 2}
    of.apply(B, [Removed((777,))])
    assert held(of, prompt(0, 32)) == {A: 2, B: 1}


def test_a_new_secret_names_new_blocks_and_old_ones_are_found_until_it_goes():
    of = index()
    of.apply(A, [stored(0, 2)])
    of.rotate(Keys((b"new", b"secret")))
    of.apply(A, [stored(32, 1, parent=17), stored(100, 2)])
    assert held(of, prompt(0, 48)) == {A: 3}
    assert held(of, prompt(100, 32)) == {A: 2}
    of.rotate(Keys((b"new",)))
    assert held(of, prompt(0, 48)) == {}
    assert held(of, prompt(100, 32)) == {A: 2}


def test_a_block_that_is_told_again_under_a_new_secret_stays_in_its_chain():
    of = index()
    of.apply(A, [stored(0, 2)])
    of.rotate(Keys((b"new", b"secret")))
    of.apply(A, [stored(0, 3)])
    assert held(of, prompt(0, 48)) == {A: 3}


def test_an_endpoint_that_never_joined_tells_nothing():
    of = index(A)
    of.apply(B, [stored(0, 2)])
    assert held(of, prompt(0, 32)) == {}


def test_all_cleared_drops_every_tier_and_what_came_with_it_stays():
    of = index()
    of.apply(A, [stored(0, 2), Stored((1,), None, b"", 0, Tier.CPU)])
    of.apply(A, [stored(32, 1, parent=17), Cleared(), stored(100, 1)])
    assert held(of, prompt(0, 48)) == {}
    assert held(of, prompt(100, 16)) == {A: 1}


def test_what_finds_no_room_is_refused_and_the_rest_stays_right():
    of = index(most_bytes=150_000)
    for number in range(300):
        of.apply(A, [stored(number * 1000, 16)])
    figures = of.figures()
    assert of.refused(A) == figures["refused"] > 0
    assert of.refused(B) == 0
    assert figures["bytes"] <= 150_000
    whole = [held(of, prompt(number * 1000, 256)).get(A, 0) for number in range(300)]
    assert whole[0] == 16
    assert sum(whole) <= figures["blocks"]
    for number in range(300):
        of.apply(A, [Removed(stored(number * 1000, 16).hashes)])
    assert of.figures()["blocks"] == 0
    of.apply(A, [stored(0, 16)])
    assert held(of, prompt(0, 256)) == {A: 16}


def test_a_thousand_endpoints_are_told_apart():
    names = [EndpointId(f"pod-{number}") for number in range(1000)]
    of = index(*names, most_bytes=100_000_000)
    for number, name in enumerate(names):
        of.apply(name, [stored(0, 1 + number % 7)])
    assert held(of, prompt(0, 160)) == {name: 1 + number % 7 for number, name in enumerate(names)}


def test_sets_of_holders_that_all_differ_are_bounded_too():
    pods = [EndpointId(f"pod-{number}") for number in range(12)]
    of = index(*pods)
    for block in range(4096):
        for bit, pod in enumerate(pods):
            if block >> bit & 1:
                of.apply(pod, [stored(block * 100, 1)])
    figures = of.figures()
    assert figures["sets"] <= 1024
    assert figures["refused"] > 0
    for block in range(0, 4096, 37):
        wanted = {pod for bit, pod in enumerate(pods) if block >> bit & 1}
        assert set(held(of, prompt(block * 100, 16))) <= wanted


def test_blocks_told_in_reverse_or_as_their_own_parents_are_named_once_the_start_is_told():
    of = index()
    for block in range(99, 0, -1):
        of.apply(A, [stored(block * 16, 1, parent=(block - 1) * 16 + 1)])
    of.apply(A, [stored(7000, 1, parent=7001)])
    assert held(of, prompt(0, 1600)) == {}
    of.apply(A, [stored(0, 1), stored(7000, 1)])
    assert held(of, prompt(0, 1600)) == {A: 100}
    assert held(of, prompt(7000, 16)) == {A: 1}
    assert of.figures()["waiting_events"] == 0


def test_a_placeholder_that_comes_before_its_tokens_counts_once_they_are_told():
    of = index()
    of.apply(A, [Stored((1,), None, b"", 0, Tier.CPU), stored(0, 1)])
    of.apply(A, [Removed((1,))])
    assert of.look_up(prompt(0, 16)).lower == {A: (0, 0, 1, 0, 0)}
    of.apply(A, [Removed((1,), Tier.CPU)])
    assert held(of, prompt(0, 16)) == {}


def test_dropping_an_endpoint_masks_it_at_once_and_touches_a_bounded_part_of_its_rows():
    of = index(A, B, most_bytes=20_000_000)
    of.apply(A, [stored(0, 50_000)])
    of.apply(B, [stored(0, 1)])
    of.forget(A)
    assert held(of, prompt(0, 16)) == {B: 1}
    assert of.figures()["blocks"] > 50_000 - 2 * ROWS
    of.join(A)
    of.apply(A, [stored(16, 1, parent=None)])
    assert held(of, prompt(0, 32)) == {B: 1}
    left = of.figures()["blocks"]
    while of.sweeping:
        of.sweep(1)
        assert left - of.figures()["blocks"] <= ROWS
        left = of.figures()["blocks"]
    assert (held(of, prompt(0, 32)), left) == ({B: 1}, 2)


def test_an_endpoint_that_joins_again_and_again_leaves_nothing_behind():
    of = index(A, B)
    for number in range(1000):
        of.join(A)
        of.apply(A, [stored(0, 1), stored(1000 + number * 16, 1, parent=999)])
    assert len(of._endpoints) < 5
    assert of.figures()["waiting_events"] < 5
    assert held(of, prompt(0, 16)) == {A: 1}


def test_what_is_remembered_of_a_large_set_stays_as_it_was_told():
    pods = [EndpointId(f"pod-{number}") for number in range(FEW + 4)]
    of = index(*pods)
    for pod in pods:
        of.apply(pod, [stored(0, 2)])
    of.apply(pods[0], [stored(32, 2, parent=17)])
    for _ in range(3):
        assert held(of, prompt(0, 64)) == {**dict.fromkeys(pods, 2), pods[0]: 4}
    of.apply(pods[0], [Removed((1, 17, 33, 49))])
    assert held(of, prompt(0, 64)) == dict.fromkeys(pods[1:], 2)


def test_a_block_of_several_of_the_engines_is_gone_with_any_of_them():
    of = index(block_tokens=64)
    of.apply(A, [stored(0, 8, size=16)])
    assert held(of, prompt(0, 128)) == {A: 2}
    of.apply(A, [Removed((81,))])  # the second piece of our second block
    assert held(of, prompt(0, 128)) == {A: 1}
    of.apply(A, [stored(80, 3, parent=65, size=16)])  # computed again, and all that follows
    assert held(of, prompt(0, 128)) == {A: 2}
    of.apply(A, [Removed((113,))])  # its last piece has two copies
    assert held(of, prompt(0, 128)) == {A: 2}
    of.apply(A, [Removed((97,)), Removed((97,))])
    assert held(of, prompt(0, 128)) == {A: 1}
