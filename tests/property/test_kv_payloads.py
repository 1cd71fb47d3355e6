"""Whatever an engine sends: it is read or refused, and what was read the index can take in.

Nothing of it is left once the engine clears its cache.
"""

from __future__ import annotations

import contextlib

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.collect.parse import kv_events
from epp.collect.parse.kv_events import UnreadableError, each, parse
from epp.prefix.exact.events import Cleared
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
    payload = msgspec.msgpack.encode([1.0, [*events, "-" * kv_events.SMALL]])
    read = [event for event in each(payload) if event is not None]
    assert tuple(read) == parse(payload).events
    assert len(list(each(payload))) == len(events) + 1


@given(st.binary(max_size=64))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(payload: bytes):
    with contextlib.suppress(UnreadableError):
        parse(payload)
    for whole in (payload, payload + bytes(kv_events.SMALL)):
        with contextlib.suppress(UnreadableError):
            list(each(whole))
