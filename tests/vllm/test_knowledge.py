"""What the picker knows of real vLLM's caches is what vLLM finds in them, block for block."""

from __future__ import annotations

import pytest

from tests.support.process import eventually
from tests.support.vllm.servers import BLOCK, Server
from tests.support.vllm.stack import VllmStack, ask, settled, user
from tests.vllm.conftest import BLOCKS, Fleet

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def at(stack: VllmStack, address: str) -> Server:
    return next(server for server in stack.servers if server.address == address)


def test_conversations_land_where_their_prefix_is_as_vllm_counts_it(fleet: Fleet) -> None:
    stack = fleet.pair
    stack.wait_exact()
    talks = [user(f"talk {number}", words=20) for number in range(3)]
    homes = []
    for turn in range(3):
        for number, talk in enumerate(talks):
            settled(stack)
            told = ask(stack, talk)
            assert told.cached == told.foreseen
            if turn:
                assert told.picked == homes[number]
                assert told.cached > BLOCK
            else:
                homes.append(told.picked)
            talk.append({"role": "assistant", "content": told.said})
            talk.append({"role": "user", "content": f"and {turn} " + "what is the weather " * 9})


def test_two_pickers_agree(fleet: Fleet) -> None:
    fleet.other.wait_exact()
    told = ask(fleet.pair, user("agree"))
    settled(fleet.other)
    again = ask(fleet.other, user("agree"))
    assert again.picked == told.picked
    assert again.cached == again.foreseen > BLOCK


@pytest.mark.parametrize("field", [{"model": "first"}, {"cache_salt": "tenant"}])
def test_adapters_and_salts_have_prefixes_of_their_own(fleet: Fleet, field: dict[str, str]) -> None:
    stack, text = fleet.pair, f"apart {field}"
    ask(stack, user(text))
    settled(stack)
    apart = ask(stack, user(text), **field)
    assert apart.cached == apart.foreseen == 0
    settled(stack)
    again = ask(stack, user(text), **field)
    assert again.cached == again.foreseen > BLOCK
    assert again.picked == apart.picked


def test_what_is_evicted_is_known_to_be_gone(fleet: Fleet) -> None:
    """Prompts that fill two caches twice over, then the first of them once more."""
    stack = fleet.pair
    size = ask(stack, user("many 0")).prompt // BLOCK
    for number in range(1, 4 * BLOCKS // size):
        ask(stack, user(f"many {number}"))
    settled(stack)
    told = [ask(stack, user(f"many {number}")) for number in (0, 1)]
    assert [(each.cached, each.foreseen) for each in told] == [(0, 0), (0, 0)]


def test_a_cache_that_was_reset_is_known_to_be_empty(fleet: Fleet) -> None:
    """vLLM tells of it with its next step only."""
    stack = fleet.pair
    first = ask(stack, user("reset"))
    settled(stack)
    server = at(stack, first.picked)
    assert server.call("POST", "/reset_prefix_cache")[0] == 200
    step = {"model": "tiny", "prompt": "step", "max_tokens": 1}
    assert server.call("POST", "/v1/completions", step)[0] == 200
    settled(stack)
    again = ask(stack, user("reset"))
    assert again.cached == again.foreseen == 0


def test_an_engine_that_sleeps_gets_nothing_until_it_wakes(fleet: Fleet) -> None:
    stack = fleet.pair
    home = ask(stack, user("sleep")).picked
    settled(stack)
    server = at(stack, home)
    assert server.call("POST", "/sleep?level=1")[0] == 200

    def seen(asleep: bool) -> bool:
        return all(e["load"]["asleep"] is asleep for e in stack.pool() if e["address"] == home)

    try:
        eventually(lambda: seen(True), 20.0, "sleep to be seen")
        assert ask(stack, user("sleep")).picked != home
    finally:
        assert server.call("POST", "/wake_up")[0] == 200
    eventually(lambda: seen(False), 20.0, "the engine to be awake")


def test_each_rank_of_an_engine_is_known_and_asked_for_what_it_holds(fleet: Fleet) -> None:
    """vLLM itself balances by load; what a client says of ranks does not reach it."""
    stack = fleet.ranks
    (server,) = stack.servers
    for rank, other in (("0", "1"), ("1", "0")):
        talk = user(f"rank {rank}")
        chat = {"model": "tiny", "messages": talk, "max_tokens": 1}
        only = {"x-data-parallel-rank": rank}
        assert server.call("POST", "/v1/chat/completions", chat, **only)[0] == 200
        for _ in range(3):
            settled(stack)
            told = ask(stack, talk, headers={"x-data-parallel-rank": other})
            assert told.cached == told.foreseen > BLOCK
    assert {each["rank"] for each in stack.knowledge()["engines"]} == {0, 1}
    assert stack.knowledge()["sentToOneRank"] == 6


def test_of_a_model_with_windows_the_layers_without_count(fleet: Fleet) -> None:
    stack = fleet.hybrid
    assert ask(stack, user("hybrid")).cached == 0
    settled(stack)
    told = ask(stack, user("hybrid"))
    assert told.cached == told.foreseen > BLOCK


def test_an_engine_that_restarts_in_place_is_known_to_be_empty(fleet: Fleet) -> None:
    stack = fleet.pair
    home = ask(stack, user("restart")).picked
    settled(stack)
    server = at(stack, home)
    server.kill()
    fleet.servers.restart(server)
    server.wait_ready()
    stack.wait_exact()
    eventually(lambda: all(e["reachable"] for e in stack.pool()), 20.0, "the engine to be back")
    again = ask(stack, user("restart"))
    assert again.cached == again.foreseen == 0
