"""Real vLLM prefills here and decodes there, KV caches moved by NIXL: every answer is right.

Both ways: the picker sends the prefill itself, or a sidecar before the decode engine does. An
answer is right if it is what an engine says that computes the prompt itself.
"""

from __future__ import annotations

import itertools
import signal
import time

import pytest

from tests.support.process import eventually
from tests.support.vllm.servers import Server
from tests.support.vllm.split import LONG_SECONDS, SplitVllm, prompt_of
from tests.vllm.conftest import BLOCKS, Split

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


@pytest.fixture(params=["remote", "sidecar"])
def stack(split: Split, request: pytest.FixtureRequest) -> SplitVllm:
    stack: SplitVllm = getattr(split, request.param)
    return stack


def prompt(stack: SplitVllm, text: str) -> str:
    """A prompt that no engine has seen."""
    return prompt_of(f"{stack.folder.name} {text}")


def hang(servers: list[Server], *, go_on: bool = False) -> None:
    for server in servers:
        server.signal(signal.SIGCONT if go_on else signal.SIGSTOP)


def revive(split: Split) -> None:
    """Start the prefill engine again, in place, and wait until pickers know."""
    server = split.remote.prefill
    split.servers.restart(server)
    server.wait_ready()
    for each in (split.remote, split.late, split.sidecar):
        eventually(lambda stack=each: _reachable(stack), LONG_SECONDS, "all engines")


def _reachable(stack: SplitVllm) -> bool:
    return all(each["reachable"] for each in stack.pool())


def test_answers_tell_prompts_apart(split: Split) -> None:
    texts = {split.remote.local(prompt_of(f"apart {number}")) for number in range(5)}
    assert len(texts) > 2


def test_long_prompts_are_fetched_and_short_or_cached_ones_are_not(stack: SplitVllm) -> None:
    fetched, prefilled = stack.fetched, stack.prefilled
    stack.ask("be kind")
    assert (stack.fetched, stack.prefilled) == (fetched, prefilled)

    long = prompt(stack, "long")
    said = stack.ask(long)
    assert stack.prefilled == prefilled + 1
    gained = stack.fetched - fetched
    assert gained > 200  # tokens
    assert stack.ask(long) == said  # where it is cached
    assert (stack.fetched - fetched, stack.prefilled) == (gained, prefilled + 1)
    assert stack.local(long) == said


def test_streams_are_the_same_text(stack: SplitVllm) -> None:
    fetched, long = stack.fetched, prompt(stack, "streamed")
    said = stack.ask(long, stream=True)
    assert stack.fetched > fetched
    assert said == stack.local(long)


def test_the_first_token_comes_before_the_last_is_made(stack: SplitVllm) -> None:
    fetched = stack.fetched
    text = prompt(stack, "early")
    assert stack.running_at_first_token(text, max_tokens=1500) == 1  # of three seconds
    assert stack.fetched > fetched
    stack.wait_idle()


@pytest.mark.parametrize("size", ["short", "long"])
def test_what_would_stop_an_engine_is_taken_from_clients(stack: SplitVllm, size: str) -> None:
    """Such parameters end a vLLM server on an assertion."""
    text = "be kind" if size == "short" else prompt(stack, "deadly")
    said = stack.ask(text, kv_transfer_params={"do_remote_prefill": True})
    assert said == stack.local(text)
    assert all(server.running for server in (stack.prefill, *stack.decodes))


def test_a_cache_whose_lease_is_over_is_not_used(split: Split) -> None:
    """Its blocks are freed by the engine, and nobody asks for them."""
    stack = split.late
    late, fetched, expired = stack.legs("lease-expired"), stack.fetched, _expired(stack)
    text = prompt(stack, "late")
    said = stack.ask(text)
    assert stack.fetched == fetched
    eventually(lambda: stack.legs("lease-expired") == late + 1, what="the count of that prefill")
    eventually(lambda: _expired(stack) > expired, LONG_SECONDS, "the end of the lease")
    assert said == stack.local(text)


def _expired(stack: SplitVllm) -> float:
    return stack.prefill.total(EXPIRED)


def overwrite(stack: SplitVllm, expired: float) -> None:
    """Let a lease of the prefill engine end, and all its blocks hold other prompts.

    Args:
        expired: leases that had ended before it began: this one may have, if we were kept waiting.
    """
    numbers = itertools.count()

    def other() -> None:
        stack.local(prompt(stack, f"other {time.monotonic()} {next(numbers)}"))

    def over() -> bool:
        other()
        return _expired(stack) > expired

    eventually(over, LONG_SECONDS, "the end of the lease")
    for _ in range(BLOCKS // 5):  # each takes more than five
        other()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_b138_an_engine_that_hangs_past_the_lease_leaves_no_wrong_answer(
    split: Split, *, stream: bool
) -> None:
    """Answers were made from blocks that the prefill side had freed, with status 200."""
    stack = split.sidecar
    fetched, prefilled, expired = stack.fetched, stack.prefilled, _expired(stack)
    text = prompt(stack, f"hung {stream}")

    def meanwhile() -> None:
        try:
            stack.wait_prefilled(prefilled)
            overwrite(stack, expired)
        finally:
            hang(list(stack.decodes), go_on=True)

    hang(list(stack.decodes))
    said = stack.ask_while(text, meanwhile, stream=stream)
    read = stack.fetched
    assert read > fetched  # blocks that hold another prompt, for an answer that was dropped
    assert said == stack.local(text)
    assert stack.ask(text) == said  # although the engine has cached those blocks
    again = prompt(stack, f"after {stream}")
    assert stack.ask(again) == stack.local(again)
    assert stack.fetched > read
    stack.wait_idle()


def test_b138_an_engine_that_is_not_heard_of_gets_no_cache(split: Split) -> None:
    """The picker is not there when the answer comes: it hands caches to engines that live."""
    stack = split.remote
    fetched, text = stack.fetched, prompt(stack, "unheard")

    def meanwhile() -> None:
        try:
            eventually(lambda: stack.state()["streams"] or stack.busy(), what="the request")
            eventually(lambda: _unheard(stack) == len(stack.decodes), LONG_SECONDS, "silence")
            hang([stack.prefill], go_on=True)
            stack.wait_prefilled(prefilled)
            overwrite(stack, expired)
        finally:
            hang([stack.prefill, *stack.decodes], go_on=True)

    prefilled, expired = stack.prefilled, _expired(stack)
    hang([stack.prefill, *stack.decodes])
    said = stack.ask_while(text, meanwhile)
    assert stack.fetched == fetched
    assert said == stack.local(text)
    stack.wait_idle()


def _unheard(stack: SplitVllm) -> int:
    return sum(each["load"] is None for each in stack.pool() if each["name"].startswith("decode"))


def test_a_prefill_that_is_killed_midway_is_computed_where_it_is_decoded(
    split: Split, stack: SplitVllm
) -> None:
    fetched, text = stack.fetched, prompt(stack, "killed")
    hang([stack.prefill])

    def meanwhile() -> None:
        eventually(lambda: stack.state()["streams"] or stack.busy(), what="the request")
        stack.prefill.kill()

    said = stack.ask_while(text, meanwhile)
    dead = stack.ask(prompt(stack, "dead"))  # its port refuses
    assert stack.fetched == fetched
    revive(split)
    assert said == stack.local(text)
    assert dead == stack.local(prompt(stack, "dead"))
    stack.wait_idle()


def test_a_cache_whose_engine_dies_before_it_is_read_is_computed_again(
    split: Split, stack: SplitVllm
) -> None:
    prefilled, text = stack.prefilled, prompt(stack, "gone")

    def meanwhile() -> None:
        try:
            stack.wait_prefilled(prefilled)
            stack.prefill.kill()
        finally:
            hang(list(stack.decodes), go_on=True)

    hang(list(stack.decodes))
    said = stack.ask_while(text, meanwhile)
    revive(split)
    assert said == stack.local(text)
    fetched = stack.fetched
    again = prompt(stack, "again")  # the new process has another engine id
    assert stack.ask(again) == stack.local(again)
    assert stack.fetched > fetched
    stack.wait_idle()
