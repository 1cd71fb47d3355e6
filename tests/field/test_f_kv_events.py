"""Field problems of KV events, in what decides: reading, index, feed. Sockets are shown elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import msgspec

from epp.collect.parse.kv_events import parse
from epp.model import EndpointId
from epp.prefix.exact.events import Cleared, Removed, Stored, Tier
from epp.prefix.exact.index import SMALLEST, ExactIndex
from epp.prefix.exact.keys import Keys, Prompt
from epp.prefix.exact.waiting import Room
from epp.prefix.feed.sequence import Apply, Ask, Sequence
from tests.support.kv import A, B, held, index, packed, prompt, stored


def swept(of: ExactIndex) -> ExactIndex:
    while of.sweeping:
        of.sweep(64)
    return of


def test_b100_a_late_event_of_a_deleted_pod_gives_the_next_one_nothing():
    """Field problem B100 (llm-d/llm-d-router#1736): late events added entries again."""
    of = index(A)
    of.apply(A, [stored(0, 4)])
    of.forget(A)
    of.apply(A, [stored(0, 4)])
    of.join(A)
    assert held(of, prompt(0, 64)) == {}
    assert swept(of).figures()["blocks"] == 0


def test_b102_what_was_learned_of_a_pods_cache_groups_goes_with_it():
    """Field problem B102 (llm-d/llm-d-router PR 2898): metadata of groups outlived the pod."""
    of = index(A)
    of.apply(A, [stored(0, 1, group=0, kind="sliding_window"), stored(0, 2, group=1)])
    of.join(A)
    of.apply(A, [stored(0, 2, group=0, size=32)])
    assert held(of, prompt(0, 64)) == {A: 4}


def test_b104_after_200_pods_came_and_went_the_index_is_back_at_its_start():
    """Field problem B104 (kubernetes-sigs/gateway-api-inference-extension#1289)."""
    of = index(most_bytes=40_000_000)
    before = of.figures()["blocks"]
    for number in range(200):
        pod = EndpointId(f"pod-{number}")
        of.join(pod)
        of.apply(pod, [stored(number * 100_000, 1000)])
    assert of.figures()["blocks"] == 200_000
    for number in range(200):
        of.forget(EndpointId(f"pod-{number}"))
    assert swept(of).figures()["blocks"] == before
    of.join(B)
    of.apply(B, [stored(0, 1000)])
    assert held(of, prompt(0, 16_000)) == {B: 1000}


def test_b105_a_block_of_one_token_is_raised_and_memory_stays_below_its_bound():
    """Field problem B105 (llm-d/llm-d-router#1158): out of memory with blocks of one token."""
    of = index(block_tokens=1, most_bytes=5_000_000)
    assert of.block_tokens == SMALLEST
    for number in range(10):
        of.apply(A, [stored(number * 10_000, 10_000, size=1)])
    assert held(of, prompt(0, 10_000)) == {A: 1250}
    assert of.figures()["bytes"] <= 5_000_000


def test_b105_a_million_tokens_on_fifty_pods_take_less_than_120_bytes_a_block():
    """Field problem B105: memory was entries times pods, without a bound that was told."""
    pods = [EndpointId(f"pod-{number}") for number in range(50)]
    of = index(*pods, most_bytes=200_000_000)
    for number, pod in enumerate(pods):
        for part in range(20):
            of.apply(pod, [stored((number * 20 + part) * 1000, 62)])
    figures = of.figures()
    assert figures["blocks"] == 50 * 20 * 62
    assert figures["bytes"] / figures["blocks"] <= 120


def test_b106_after_a_clear_neither_hash_gives_anything():
    """Field problem B106 (llm-d/llm-d-kv-cache#537): one of two maps was left behind."""
    of = index(A)
    of.apply(A, [stored(0, 4), Cleared()])
    assert held(of, prompt(0, 64)) == {}
    of.apply(A, [stored(64, 1, parent=49)])  # the engine's old hash leads nowhere
    assert held(of, prompt(0, 80)) == {}
    assert swept(of).figures()["blocks"] == 0


def test_b107_names_of_blocks_do_not_depend_on_the_process_or_on_engines():
    """Field problem B107 (vllm-project/vllm PR 51875): hashes differed between processes."""
    script = (
        "from epp.prefix.exact.keys import *;"
        "print(chain(Prompt(bytes(range(128)), 'm', salt='s', media=((3, 'i'),)),"
        "Keys((b'k',)).root('m', 's'), block_tokens=16, most=9))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert len(told.pop().split()) == 2


def test_b108_ten_times_what_fits_stays_within_the_bound_and_look_ups_stay_fast():
    """Field problem B108 (vllm-project/aibrix#892): the index grew until memory ran out."""
    of = index(most_bytes=300_000)
    for number in range(100):
        of.apply(A, [stored(number * 10_000, 600)])
    assert of.figures()["bytes"] <= 300_000
    assert of.figures()["refused"] > 10_000
    began = time.process_time()
    held(of, prompt(0, 9600))
    assert time.process_time() - began < 0.005


def test_b109_a_thousand_rounds_of_one_pod_leave_nothing_behind():
    """Field problem B109 (smg-project/smg PR 2132): a removed worker's tree was kept."""
    of = index(A)
    for number in range(1000):
        of.join(A)
        of.apply(A, [stored(number * 1000, 20)])
    figures = swept(of).figures()
    assert (figures["blocks"], figures["sources"]) == (20, 1)
    assert figures["bytes"] <= 1_000_000
    assert figures["sets"] <= 2100


def test_b110_a_burst_of_events_with_unknown_parents_is_bounded_at_once():
    """Field problem B110 (sgl-project/sglang PR 16734): growth between periodic sweeps."""
    room = Room(most=100_000)
    of = ExactIndex(Keys((b"s",)), room=room)
    of.join(A)
    for number in range(1000):
        of.apply(A, [stored(number * 1000, 10, parent=999_999_999 + number)])
        assert room.bytes <= room.most
    assert room.dropped > 800


def test_b113_blocks_of_an_engine_that_was_warm_before_us_become_known():
    """Field problem B113 (ai-dynamo/dynamo#1056): parents of new blocks were unknown."""
    of = index(A)
    of.apply(A, [stored(64, 2, parent=49), stored(96, 1, parent=81)])
    assert held(of, prompt(0, 112)) == {}
    of.apply(A, [stored(0, 4)])  # its next full prompt
    assert held(of, prompt(0, 112)) == {A: 7}


def test_b114_an_engine_that_never_answers_holds_nothing_up():
    """Field problem B114 (ai-dynamo/dynamo#10580): start-up waited for slow recovery."""
    silent = Sequence(can_ask=True)
    assert silent.live(100, b"first", at=1.0, now=0.0) == [Ask(0)]
    steps = [step for half in range(20) for step in silent.tick(half / 2)]
    assert Apply(b"first") in steps
    assert not silent.catching_up


def test_b115_blocks_of_an_adapter_are_no_match_for_the_base_model():
    """Field problem B115 (vllm-project/vllm PR 27728): events with a wrong adapter id."""
    of = index(A, B)
    event = ["BlockStored", [1], None, list(range(16)), 16, 3, "GPU"]
    of.apply(A, parse(msgspec.msgpack.encode([0.0, [event], 0])).events)
    of.apply(B, parse(msgspec.msgpack.encode([0.0, [[*event, "sql"]], 0])).events)
    assert held(of, prompt(0, 16)) == {}
    assert held(of, prompt(0, 16, model="sql")) == {B: 1}
    assert held(of, prompt(0, 16, model="3")) == {}


def test_b120_a_model_and_an_adapter_give_each_other_no_credit():
    """Field problem B120 (llm-d/llm-d-router#381): the key had tokens only."""
    of = ExactIndex(Keys((b"s",)))
    of.join(A, model="base")
    adapters = Stored((101, 102, 103), None, packed(range(48)), 16, adapter="sql")
    of.apply(A, [stored(0, 2), adapters])
    assert held(of, prompt(0, 48, model="base")) == {A: 2}
    assert held(of, prompt(0, 48, model="sql")) == {A: 3}


def test_b121_a_copy_in_another_tier_keeps_credit_and_needs_no_tokens():
    """Field problem B121 (llm-d/llm-d-router#878): every offload event raised an error."""
    of = index(A)
    of.apply(A, [stored(0, 2), Stored((1, 17), None, b"", 0, Tier.CPU), Removed((1, 17))])
    known = of.look_up(prompt(0, 32))
    assert (known.blocks, known.lower) == ({A: 2}, {A: (0, 0, 2, 0, 0)})


def test_b122_without_an_event_no_lower_tier_is_assumed():
    """Field problem B122 (LMCache/LMCache#3532): only GPU events were published."""
    of = index(A)
    of.apply(A, [stored(0, 2), Removed((1, 17))])
    assert held(of, prompt(0, 32)) == {}


def test_b124_the_second_turn_finds_the_answer_of_the_first():
    """Field problem B124 (llm-d/llm-d-router#1021): the generated answer was never indexed."""
    of = index(A)
    of.apply(A, [stored(0, 4)])
    for number in range(4, 132):  # 2,048 tokens of answer, told as each block fills
        of.apply(A, [stored(number * 16, 1, parent=number * 16 - 15)])
    assert held(of, prompt(0, 2112 + 64)) == {A: 132}


def test_b125_prompts_of_different_salts_give_each_other_no_credit():
    """Field problem B125 (smg-project/smg#2420): the key was built from the prompt only."""
    of = index(A, B)
    of.apply(A, [stored(0, 2, salt="a")])
    of.apply(B, [Stored((1, 2), None, packed(range(32)), 16, salt="b")])
    assert held(of, prompt(0, 32, salt="a")) == {A: 2}
    assert held(of, prompt(0, 32, salt="b")) == {B: 2}
    assert held(of, prompt(0, 32)) == {}
    of.apply(A, [Stored((3, 4), None, packed(range(32)), 16, salt="")])
    assert held(of, Prompt(packed(range(32)), "")) == {A: 2}


def test_b126_a_block_of_4096_tokens_tells_warm_from_cold_within_a_shorter_prompt_of_it():
    """Field problem B126 (llm-d/llm-d-router PR 2455): blocks of 4096 tokens hid everything."""
    of = index(A, B)
    of.apply(A, [stored(0, 1, size=4096)])
    assert held(of, prompt(0, 1000)) == {A: 62}
