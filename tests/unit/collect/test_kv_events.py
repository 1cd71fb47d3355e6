"""Payloads of KV events: every layout of vLLM, SGLang's, and what is broken in them.

``legacy_frames.json`` holds one batch in the layout of each vLLM version, encoded from its message
definitions; the ``.jsonl`` files hold messages captured from vLLM 0.32; ``hashes.json`` holds digests
of the blocks 10..41 and 42..73 by each of its algorithms and seeds.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import msgspec
import pytest

from epp.collect.parse import kv_events
from epp.collect.parse.kv_events import UnreadableError, parse
from epp.prefix.exact.events import Batch, Cleared, Removed, Stored, Tier
from tests.support.kv import A, held, index, prompt

DATA = Path(__file__).parents[2] / "data" / "kv_events"
LEGACY = json.loads((DATA / "legacy_frames.json").read_text())
HASHES = json.loads((DATA / "hashes.json").read_text())
HASH = 0x1122334455667788


def packed(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def batch(*events: object, rank: object = 0) -> Batch:
    return parse(msgspec.msgpack.encode([1.5, list(events), rank]))


def captured(name: str) -> list[Batch]:
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [parse(bytes.fromhex(json.loads(line)["payload"])) for line in lines]


@pytest.mark.parametrize("version", LEGACY)
def test_every_versions_layout_reads_the_same(version: str):
    read = parse(bytes.fromhex(LEGACY[version]["hex"]))
    stored, removed, cleared = read.events
    assert (read.at, read.rank, read.unread) == (1.5, 0, {})
    assert isinstance(stored, Stored)
    told = stored.kind
    assert stored == Stored((HASH,), None, packed(1, 2, 3, 4), 4, kind=told)
    assert told in {"", "full_attention"}
    assert removed == Removed((HASH,))
    assert cleared == Cleared()


def test_the_kind_of_attention_is_read_where_it_is_told():
    kinds = {
        version: parse(bytes.fromhex(frames["hex"])).events[0].kind
        for version, frames in LEGACY.items()
    }
    assert kinds["0.20.2"] == ""
    assert kinds["0.22.1"] == kinds["0.31.0"] == "full_attention"


@pytest.mark.parametrize(
    ("name", "rank", "stored", "removed", "cleared"),
    [
        ("plain", 0, 13, 0, 1),
        ("session", 0, 2, 0, 2),  # the client named a session, which is a field of its own
        ("lora", 0, 64, 0, 0),
        ("dup", 0, 10, 46, 0),
        ("hybrid", 0, 12, 0, 0),
        ("dp0", 0, 1, 0, 0),
        ("dp1", 1, 3, 0, 0),
        ("pulled", 0, 2, 0, 0),  # by a decoding engine from the one that computed them
    ],
)
def test_every_real_event_is_read(name: str, rank: int, stored: int, removed: int, cleared: int):
    read = captured(name)
    assert {each.rank for each in read} == {rank}
    assert not any(each.unread for each in read)
    events = [type(event) for each in read for event in each.events]
    assert [events.count(kind) for kind in (Stored, Removed, Cleared)] == [stored, removed, cleared]


@pytest.mark.parametrize("algorithm", HASHES)
def test_a_digest_and_the_number_that_engines_make_of_it_are_one_block(algorithm: str):
    hashes = HASHES[algorithm]
    digests = [bytes.fromhex(hashes[each]) for each in ("first", "second")]
    tokens = list(range(10, 74))
    whole = ["BlockStored", digests, None, tokens, 32]
    of = index()
    of.apply(A, batch(whole).events)
    assert held(of, prompt(10, 64)) == {A: 4}
    of.apply(A, batch(["BlockRemoved", [hashes["first_number"]], "GPU"]).events)
    assert held(of, prompt(10, 64)) == {}


def test_a_real_prompts_start_carries_the_salt():
    (salted,) = captured("plain")[3].events
    assert isinstance(salted, Stored)
    assert (salted.hashes, salted.salt, salted.media) == ((15335340950225324668,), "tenant-A", ())
    assert salted.tokens == packed(*range(10, 42))


def test_a_real_adapter_is_told_apart_from_a_salt():
    (event,) = captured("lora")[2].events
    assert isinstance(event, Stored)
    assert (event.adapter, event.salt, event.media) == ("lora-b", "s1", ())


def test_real_groups_of_a_hybrid_model_keep_their_numbers_and_kinds():
    sliding, full = captured("hybrid")[0].events
    assert (sliding.group, sliding.kind, len(sliding.hashes)) == (0, "sliding_window", 2)
    assert (full.group, full.kind, len(full.hashes)) == (1, "full_attention", 6)


def test_a_rank_is_read_from_the_payload():
    assert {read.rank for read in captured("dp1")} == {1}


def test_hashes_of_bytes_are_cut_to_their_last_64_bits():
    digest = bytes(24) + HASH.to_bytes(8, "big")
    read = batch({"type": "BlockRemoved", "block_hashes": [digest, b"\x01"]})
    assert read.events == (Removed((HASH, 1)),)


def test_sglangs_signed_hashes_and_five_fields_are_read():
    read = batch(["BlockStored", [-1], -2, [7, 8], 2, None], ["BlockRemoved", [-1]])
    assert read.events == (
        Stored((2**64 - 1,), 2**64 - 2, packed(7, 8), 2),
        Removed((2**64 - 1,)),
    )


def test_of_sglangs_token_pairs_the_first_counts():
    read = batch(["BlockStored", [5], None, [[7, 8], [8, 9]], 2, None])
    assert read.events == (Stored((5,), None, packed(7, 8), 2),)


@pytest.mark.parametrize("parent", [None, 9])
@pytest.mark.parametrize("told", [{"metadata": {"cache_salt": "tenant"}}, {"cache_salt": "tenant"}])
def test_sglang_tells_a_salt_in_fields_of_its_own(told: dict[str, object], parent: int | None):
    """In arrays in a map at the end, in a place where vLLM has an adapter's name."""
    fields = {
        "block_hashes": [5], "parent_block_hash": parent, "token_ids": [7, 8], "block_size": 2,
        "lora_id": None, "medium": "GPU",
    }  # fmt: skip
    wanted = (Stored((5,), parent, packed(7, 8), 2, salt="" if parent else "tenant"),)
    assert batch({"type": "BlockStored", **fields, **told}).events == wanted
    assert batch(["BlockStored", *fields.values(), {"cache_salt": "tenant"}]).events == wanted


def test_of_sglangs_components_only_full_attention_counts_and_each_is_a_group():
    """With ``--enable-kv-events-component-types``; a checkpoint of a state space is one late page."""
    page = {"block_hashes": [5], "parent_block_hash": None, "token_ids": [*range(16)],
            "block_size": 16, "lora_id": None}  # fmt: skip
    state = {**page, "block_hashes": [6], "token_ids": [*range(16, 32)], "component_type": "mamba"}
    of = index()
    told = [{**page, "component_type": "full"}, {**page, "component_type": "swa"}, state]
    of.apply(A, batch(*({"type": "BlockStored", **each} for each in told)).events)
    assert (held(of, prompt(0, 16)), held(of, prompt(16, 16))) == ({A: 1}, {})
    gone = {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"}
    of.apply(A, batch({**gone, "component_type": "swa"}).events)
    assert held(of, prompt(0, 16)) == {A: 1}
    of.apply(A, batch({**gone, "component_type": "full"}).events)
    assert held(of, prompt(0, 16)) == {}


@pytest.mark.parametrize("several", [False, True], ids=["one", "a list"])
def test_sglangs_arrays_tell_components_after_the_medium(several: bool):
    def said(component: str) -> object:
        return [component] if several else component

    page = [[5], None, [*range(16)], 16, None, "GPU"]
    of = index()
    of.apply(A, batch(*(["BlockStored", *page, said(each)] for each in ("full", "swa"))).events)
    of.apply(
        A, batch(["BlockStored", [6], None, [*range(16, 32)], *page[3:], said("mamba")]).events
    )
    assert (held(of, prompt(0, 16)), held(of, prompt(16, 16))) == ({A: 1}, {})
    of.apply(A, batch(["BlockRemoved", [5], "GPU", said("swa")]).events)
    assert held(of, prompt(0, 16)) == {A: 1}
    of.apply(A, batch(["BlockRemoved", [5], "GPU", said("full")]).events)
    assert held(of, prompt(0, 16)) == {}


def test_sglangs_arrays_may_tell_a_salt_and_a_component_in_any_order():
    page, salt = [[5], None, [7, 8], 2, None, "GPU"], {"cache_salt": "tenant"}
    for more in (["full", salt], [salt, "full"]):
        (read,) = batch(["BlockStored", *page, *more]).events
        assert (read.adapter, read.salt, read.kind) == ("", "tenant", "full_attention")


def test_an_adapter_that_is_called_like_a_component_is_an_adapter():
    (read,) = batch(["BlockStored", [5], None, [7, 8], 2, 1, "GPU", "full"]).events
    assert (read.adapter, read.kind) == ("full", "")


@pytest.mark.parametrize("odd", [{"metadata": 7}, {"metadata": {}}, {"cache_salt": 7}])
def test_a_salt_that_is_none_is_no_salt(odd: dict[str, object]):
    event = {"block_hashes": [5], "parent_block_hash": None, "token_ids": [7], "block_size": 1}
    assert batch({"type": "BlockStored", **event, **odd}).events == (
        Stored((5,), None, packed(7), 1),
    )


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, Tier.GPU), ("GPU", Tier.GPU), ("gpu", Tier.GPU), ("NPU", Tier.GPU),
        ("CPU", Tier.CPU), ("CPU_PINNED", Tier.CPU), ("STORAGE", Tier.DISK), ("DISK", Tier.DISK),
        ("SHARED", Tier.SHARED), ("EXTERNAL", Tier.SHARED), ("somewhere", Tier.DISK), (3, Tier.DISK),
    ],
)  # fmt: skip
def test_a_medium_is_a_tier(medium: object, tier: Tier):
    read = batch({"type": "BlockRemoved", "block_hashes": [1], "medium": medium})
    assert read.events == (Removed((1,), tier),)


def test_what_lies_outside_the_pod_is_shared():
    read = batch({"type": "BlockRemoved", "block_hashes": [1], "medium": "STORAGE",
                  "locality": "REMOTE"})  # fmt: skip
    assert read.events == (Removed((1,), Tier.SHARED),)


def test_a_placeholder_has_no_tokens():
    read = batch(["BlockStored", [HASH], None, [], 0, None, "CPU"])
    assert read.events == (Stored((HASH,), None, b"", 0, Tier.CPU),)


def test_media_are_placed_where_they_begin():
    keys = [[["image-1", 2]], [["image-1", -2], ["image-2", 3]]]
    read = batch({"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": 9,
                  "token_ids": [0] * 8, "block_size": 4, "extra_keys": keys})  # fmt: skip
    assert read.events[0].media == ((2, "image-1"), (7, "image-2"))


def test_media_of_which_only_the_name_is_told_begin_where_it_is_told_first():
    keys = [None, ["image-1"], ["image-1"], ["image-1", "image-2"], "image-2", ["image-2"]]
    read = batch({"type": "BlockStored", "block_hashes": [1, 2, 3, 4, 5, 6], "block_size": 4,
                  "parent_block_hash": 9, "token_ids": [0] * 24, "extra_keys": keys})  # fmt: skip
    assert read.events[0].media[:2] == ((4, "image-1"), (12, "image-2"))


def test_media_are_in_order_whatever_order_they_are_told_in():
    keys = [[["image-2", 40], ["image-1", 2]]]
    read = batch({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": 9,
                  "token_ids": [0] * 64, "block_size": 64, "extra_keys": keys})  # fmt: skip
    assert read.events[0].media == ((2, "image-1"), (40, "image-2"))


def test_b115_adapters_by_number_by_name_and_by_none_are_told_apart():
    """Field problem B115 (vllm-project/vllm PR 27728): events with a wrong adapter id."""

    def adapter(**fields: object) -> str:
        event = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None,
                 "token_ids": [1], "block_size": 1, **fields}  # fmt: skip
        return batch(event).events[0].adapter

    assert adapter(lora_id=None) == adapter() == ""
    assert adapter(lora_id=2, lora_name="sql") == "sql"
    assert adapter(lora_id=2) not in {"", "2"}
    assert adapter(lora_id=2) != adapter(lora_id=3)


def test_b117_a_field_of_a_later_version_is_ignored():
    """Field problem B117 (LMCache/LMCache PR 2402): a new field crashed the reader."""
    as_array = ["BlockStored", [1], None, [5], 1, None, "GPU", None, None, 0, "", None, "later", 1]
    as_map = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None,
              "token_ids": [5], "block_size": 1, "later": {"a": 1}}  # fmt: skip
    expected = Stored((1,), None, packed(5), 1)
    assert batch(as_array, as_map).events == (expected, expected)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (["BlockMoved", [1]], "unknown_event"),
        ({"type": "BlockMoved"}, "unknown_event"),
        ({}, "unknown_event"),
        (7, "not_an_event"),
        ([], "not_an_event"),
        (["BlockRemoved"], "bad_hash"),
        (["BlockRemoved", ["x"]], "bad_hash"),
        (["BlockStored", [1], None, [1, 2**32], 2, None], "bad_tokens"),
        (["BlockStored", [1], None, [1, "x"], 2, None], "bad_tokens"),
        (["BlockStored", [1], None, "tokens", 2, None], "bad_tokens"),
        (["BlockStored", [1], None, [[]], 1, None], "bad_tokens"),
        (["BlockStored", [1], None, [1], 0, None], "bad_block_size"),
        (["BlockStored", [1], None, [1], None, None], "bad_block_size"),
        (["BlockStored", [1], None, [1], 1 << 40, None], "bad_block_size"),
    ],
)
def test_an_event_that_cannot_be_used_costs_only_itself(event: object, reason: str):
    read = batch(["BlockRemoved", [1]], event, ["BlockRemoved", [2]])
    assert read.events == (Removed((1,)), Removed((2,)))
    assert read.unread == {reason: 1}


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x91", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([1.0]),
     msgspec.msgpack.encode([1.0, "events"]), b"\x91" * 5000],
    ids=["empty", "unused byte", "cut", "map", "short", "no list", "deep"],
)  # fmt: skip
def test_what_is_no_batch_is_refused(payload: bytes):
    with pytest.raises(UnreadableError):
        parse(payload)


def test_a_rank_or_time_of_another_type_is_not_told():
    read = parse(msgspec.msgpack.encode(["now", [], "one"]))
    assert (read.at, read.rank, read.events) == (0.0, None, ())


def test_a_payloads_time_is_read_without_the_rest():
    assert kv_events.sent_at(bytes.fromhex(LEGACY["0.31.0"]["hex"])) == 1.5
    assert kv_events.sent_at(b"\x93\x01") == 0.0


def test_no_repr_shows_tokens():
    assert "tokens" not in repr(batch(["BlockStored", [5], None, [7], 1, None]).events[0])
