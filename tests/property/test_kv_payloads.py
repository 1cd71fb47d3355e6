"""Whatever an engine sends: it is read or refused, and what was read the index can take in.

Nothing of it is left once the engine clears its cache.
"""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.collect.parse import kv_slices
from epp.collect.parse.kv_events import UnreadableError, parse
from epp.collect.parse.kv_slices import each
from epp.prefix.exact.events import Cleared, Event, Removed, Stored
from epp.prefix.exact.keys import Prompt
from tests.support.kv import A, held, index, prompt, stored

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=3)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
HASHES = st.lists(st.integers(-9, 9) | st.binary(max_size=9), max_size=4) | ANYTHING
SMALL = st.integers(0, 20) | ANYTHING
FIELDS = {
    "type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Else"]),
    "block_hashes": HASHES,
    "parent_block_hash": st.none() | SMALL,
    "token_ids": st.lists(st.integers(0, 3), max_size=40) | ANYTHING,
    "block_size": SMALL,
    "lora_id": st.none() | SMALL,
    "medium": st.none() | st.sampled_from(["GPU", "CPU"]) | ANYTHING,
    "lora_name": st.none() | ANYTHING,
    "extra_keys": st.none() | st.lists(st.lists(ANYTHING, max_size=3), max_size=3) | ANYTHING,
    "group_idx": st.none() | SMALL,
    "kv_cache_spec_kind": st.sampled_from(["full_attention", "sliding_window"]) | ANYTHING,
}
MAPS = st.fixed_dictionaries(
    {"type": FIELDS["type"]}, optional={name: FIELDS[name] for name in list(FIELDS)[1:]}
)
EVEN = st.integers(0, 9).flatmap(
    lambda blocks: st.fixed_dictionaries({
        "type": st.just("BlockStored"),
        "extra_keys": st.none() | st.lists(
            st.none() | st.lists(st.sampled_from(["a", "b", ["c", 0], ["c", -1], b"d"]), max_size=2),
            max_size=blocks,
        ),
        "token_ids": st.lists(st.integers(0, 2**32 - 1), min_size=3 * blocks, max_size=3 * blocks),
        "block_hashes": st.lists(st.integers(0, 2**64 - 1), min_size=blocks, max_size=blocks),
        "block_size": st.just(3),
        "parent_block_hash": st.none() | st.integers(1, 9),
    })
)  # fmt: skip
ARRAYS = st.tuples(*list(FIELDS.values())[:10]).flatmap(
    lambda whole: st.integers(1, len(whole)).map(lambda length: list(whole[:length]))
)


@given(st.lists(MAPS | ARRAYS | ANYTHING, max_size=6), SMALL)
@settings(max_examples=150, deadline=None)
def test_every_event_is_taken_in_or_left_out(events: list[object], rank: object):
    batch = parse(msgspec.msgpack.encode([1.0, events, rank]))
    assert len(batch.events) + sum(batch.unread.values()) == len(events)
    of = index(A)
    of.apply(A, batch.events)
    known = of.look_up(Prompt(bytes(64 * 4), ""))
    assert known.blocks.get(A, 0) <= 4
    of.apply(A, [Cleared(), stored(0, 4)])
    while of.sweeping:
        of.sweep(8)
    assert held(of, prompt(0, 64)) == {A: 4}
    figures = of.figures()
    assert (figures["blocks"], figures["waiting_events"]) == (4, 0)


@given(st.lists(MAPS | ARRAYS | ANYTHING, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_large_payload_says_the_same_as_a_small_one(events: list[object]):
    payload = msgspec.msgpack.encode([1.0, [*events, "-" * kv_slices.SMALL]])
    read = [event for some in each(payload) for event in some]
    assert tuple(event for event in read if event is not None) == parse(payload).events
    assert len(read) == len(events) + 1


def united(parts: list[Event | None]) -> Event | None:
    """Return the one event that tells what ``parts`` tell one after the other."""
    first, hashes = parts[0], [each for part in parts if part for each in part.hashes]
    if None in parts or not isinstance(first, Stored):
        return None if first is None else Removed(tuple(hashes), first.tier, first.group)
    blocks, media = 0, []
    for part in parts:
        media += [(at + blocks * part.block_tokens, name) for at, name in part.media]
        blocks += len(part.hashes)
    return msgspec.structs.replace(
        first, hashes=tuple(hashes), tokens=b"".join(part.tokens for part in parts),
        media=tuple(media),
    )  # fmt: skip


def is_even(event: Event | None) -> bool:
    """Whether an event's tokens fill its blocks."""
    if not isinstance(event, Stored):
        return isinstance(event, Removed)
    return len(event.tokens) == len(event.hashes) * event.block_tokens * 4


@given(MAPS | ARRAYS | EVEN)
@settings(max_examples=300, deadline=None)
def test_the_parts_of_a_large_event_tell_what_it_tells(event: object):
    (whole,) = parse(payload := msgspec.msgpack.encode([1.0, [event]])).events or [None]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kv_slices, "MOST_TOKENS", 8)
        patched.setattr(kv_slices, "MOST_STEPS", 5)
        walk = kv_slices.Walk(payload, 11)  # after an array, a float, and an array of one
        parts = [part for some in kv_slices.parts(walk) for part in some]
    if is_even(whole) and whole.hashes:
        assert united(parts) == whole
        assert [part.parent for part in parts[1:] if isinstance(part, Stored)] == [
            part.hashes[-1] for part in parts[:-1] if isinstance(part, Stored)
        ]


@given(st.binary(max_size=64))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(payload: bytes):
    with contextlib.suppress(UnreadableError):
        parse(payload)
    for whole in (payload, payload + bytes(kv_slices.SMALL)):
        with contextlib.suppress(UnreadableError):
            list(each(whole))
