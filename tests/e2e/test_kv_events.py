"""Exact prefix knowledge through a real Envoy: engines publish, the picker follows."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.support.kv_stack import BLOCK, Conversation, EngineStack, wait_told

pytestmark = pytest.mark.e2e


def post(port: int, path: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method="POST")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def test_conversations_land_where_their_prefix_is_as_engines_count_it(tmp_path: Path) -> None:
    with EngineStack(tmp_path, tokens={"vllm": {}}, mode="stock", backends=3) as stack:
        stack.wait_exact()
        talks = [Conversation(stack, number) for number in range(4)]
        homes = [talk.turn() for talk in talks]  # on one engine or several, as it happens
        for _ in range(3):
            wait_told(stack, talks)
            answers = [talk.turn() for talk in talks]
            assert [each.engine for each in answers] == [each.engine for each in homes]
            assert [each.cached for each in answers] == [each.foreseen for each in answers]
            assert min(each.cached for each in answers) > 128  # the system prompt and more
            assert {each.receipt["tokens_from"] for each in answers} == {"render"}
            assert {each.receipt["prefix_known_from"] for each in answers} == {"events"}
        wait_told(stack, talks)

        for port in stack.backend_ports:
            post(port, "/reset_prefix_cache")  # told with the next step only
        fresh = [Conversation(stack, 100 + number) for number in range(9)]
        stepped = {each.turn().engine for each in fresh}
        left = [talk for talk, home in zip(talks, homes, strict=True) if home.engine not in stepped]
        wait_told(stack, [*fresh, *left])


def test_an_engine_that_restarts_in_place_is_known_to_be_empty(tmp_path: Path) -> None:
    with EngineStack(tmp_path, tokens={"vllm": {}}, mode="lean", backends=1) as stack:
        stack.wait_exact()
        talk, other = Conversation(stack, 1), Conversation(stack, 2)
        talk.turn()
        wait_told(stack, [talk])
        stack.backends[0].kill()
        stack.start_backend(0)
        other.turn()
        wait_told(stack, [other])
        stack.wait_exact()
        again = talk.turn()
        assert (again.cached, again.predicted) == (0, 0)


def test_lost_events_are_asked_for_and_evictions_are_followed(tmp_path: Path) -> None:
    """A small cache under more than it holds, and three of ten messages never arrive."""
    flags = ("--kv-blocks=101", "--kv-events-drop=0.3")
    with EngineStack(tmp_path, tokens={"vllm": {}}, engine=flags, mode="lean", backends=2) as stack:
        stack.wait_exact()
        talks = [Conversation(stack, number) for number in range(8)]
        answers = [talk.turn() for _ in range(6) for talk in talks]
        engines = stack.knowledge()["engines"]
        assert sum(each["gaps"] for each in engines) > 5
        assert sum(each["lost"] for each in engines) == 0
        right = [abs(each.foreseen - each.cached) <= BLOCK for each in answers]
        assert stack.knowledge()["computedPrompts"] > 0  # nothing of the answers is seen here
        assert sum(right) > 0.8 * len(right)  # a lost message is asked for when the next one comes


def test_without_token_ids_own_picks_count_and_the_reason_is_told(tmp_path: Path) -> None:
    nowhere = {"vllm": {"url": "http://127.0.0.1:9"}}
    with EngineStack(tmp_path, tokens=nowhere, mode="lean", backends=2) as stack:
        talk = Conversation(stack, 1)
        answers = [talk.turn() for _ in range(3)]
        assert len({each.engine for each in answers}) == 1
        assert {each.receipt["no_tokens"] for each in answers} == {"connection"}
        assert {each.receipt["prefix_known_from"] for each in answers} == {"picks"}
        counted = {name: n for name, n in stack.metrics().items() if "_kv_requests_total" in name}
        assert [(n, 'reason="connection"' in name) for name, n in counted.items()] == [(3.0, True)]
