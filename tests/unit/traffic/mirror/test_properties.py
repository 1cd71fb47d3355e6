"""Conversations are copied whole or not at all, however a client writes their turns."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.traffic.mirror.sampling import Sampling, conversation, forwarded

KEY = b"k" * 32
EVERYBODY = frozenset({"*"})
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
talks = st.lists(words, min_size=1, max_size=4)
shares = st.floats(0.05, 0.95)


def turns(system: str, questions: list[str]) -> list[list[dict[str, Any]]]:
    """The messages of each turn: all that was said before, and a new question."""
    said: list[dict[str, Any]] = [{"role": "system", "content": system}]
    found = []
    for number, question in enumerate(questions):
        said = [*said, {"role": "user", "content": question}]
        found.append(said)
        said = [*said, {"role": "assistant", "content": f"answer {number}"}]
    return found


def judged(sampling: Sampling, bodies: list[Any], **headers: str) -> set[str]:
    return {sampling.judge(headers, msgspec.json.encode(body)) for body in bodies}


@given(words, talks, shares, st.sampled_from(["messages", "input"]))
def test_all_turns_of_a_conversation_go_or_none(
    system: str, questions: list[str], share: float, name: str
) -> None:
    sampling = Sampling(EVERYBODY, share, KEY)
    bodies = [{"model": "m", name: said, "n": i} for i, said in enumerate(turns(system, questions))]
    assert len(judged(sampling, bodies)) == 1


@given(words, talks)
def test_marks_of_what_is_to_be_cached_may_move_from_turn_to_turn(
    system: str, questions: list[str]
) -> None:
    def marked(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
        mark = {"cache_control": {"type": "ephemeral"}}
        part = {"type": "text", "text": said[-1]["content"]}
        return [*said[:-1], {**said[-1], "content": [{**part, **mark}]}]

    bodies = [msgspec.json.encode({"messages": marked(said)}) for said in turns(system, questions)]
    assert len({conversation({}, body) for body in bodies}) == 1


def test_so_may_marks_of_pictures() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    bodies = [
        {"messages": [{"role": "user", "content": [{**picture, **mark}]}]}
        for mark in ({}, {"cache_control": {"type": "ephemeral"}})
    ]
    assert len({conversation({}, msgspec.json.encode(body)) for body in bodies}) == 1


@given(words, talks, st.sampled_from(["gzip", "deflate", "x-gzip"]))
def test_a_compressed_turn_is_of_the_same_conversation(
    system: str, questions: list[str], how: str
) -> None:
    found = set()
    for i, said in enumerate(turns(system, questions)):
        body = msgspec.json.encode({"messages": said})
        if i % 2:
            found.add(conversation({}, body))
        else:
            packed = zlib.compress(body) if how == "deflate" else gzip.compress(body)
            found.add(conversation({"content-encoding": how}, packed))
    assert len(found) == 1


@given(words, words, st.lists(st.binary(max_size=30), min_size=2, max_size=5), shares)
def test_a_session_goes_whole_whatever_is_in_it(
    session: str, tenant: str, bodies: list[bytes], share: float
) -> None:
    sampling = Sampling(EVERYBODY, share, KEY)
    headers = {"x-session-id": session, "x-gateway-inference-fairness-id": tenant}
    assert len({sampling.judge(headers, body) for body in bodies}) == 1


@given(words)
def test_turns_of_a_conversation_that_the_server_keeps_go_together(name: str) -> None:
    bodies = [{"conversation": name, "input": text} for text in ("first", "second")]
    assert len({conversation({}, msgspec.json.encode(body)) for body in bodies}) == 1


@settings(deadline=None, max_examples=12)
@given(shares, st.binary(min_size=32, max_size=64), st.sampled_from(["session", "messages"]))
def test_the_share_of_conversations_is_the_one_that_is_wanted(
    share: float, key: bytes, kind: str
) -> None:
    sampling = Sampling(EVERYBODY, share, key)
    count = 1500
    copied = 0
    for number in range(count):
        body = {"messages": [{"role": "user", "content": f"q{number}"}]}
        headers = {"x-session-id": str(number)} if kind == "session" else {}
        copied += sampling.judge(headers, msgspec.json.encode(body)) == "copy"
    deviation = (share * (1 - share) / count) ** 0.5
    assert abs(copied / count - share) < 5.5 * deviation  # a keyed hash: one in ten million misses


@given(st.lists(words, min_size=1, max_size=20), shares, shares)
def test_a_larger_share_holds_the_smaller_one(sessions: list[str], one: float, two: float) -> None:
    low, high = (Sampling(EVERYBODY, share, KEY) for share in sorted((one, two)))
    for name in sessions:
        if low.judge({"x-session-id": name}, b"") == "copy":
            assert high.judge({"x-session-id": name}, b"") == "copy"


@given(st.binary(max_size=60), st.sampled_from(["", "gzip", "deflate", "br"]))
def test_any_body_is_judged(body: bytes, how: str) -> None:
    headers = {"content-encoding": how} if how else {}
    assert Sampling(EVERYBODY, 1.0, KEY).judge(headers, body) == "copy"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": [3, "x", null, {"role": 7}]}',
        b'{"input": 3}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "user", "content": [3, null, ["x"]]}]}',
    ],
    ids=["deep", "deep inside", "no messages", "a number", "nothing said", "odd parts"],
)
def test_odd_bodies_are_judged(body: bytes) -> None:
    assert Sampling(EVERYBODY, 1.0, KEY).judge({}, body) == "copy"


@given(st.dictionaries(st.sampled_from([
    "authorization", "cookie", "x-api-key", "api-key", "proxy-authorization", "x-goog-api-key", "x-amz-security-token", "x-client-secret", "host", "te",
    "x-gateway-destination-endpoint", "x-forwarded-for", "x-envoy-internal", ":path",
    "content-length", "transfer-encoding", "connection",
]), words))  # fmt: skip
def test_no_credential_choice_or_hop_leaves(headers: dict[str, str]) -> None:
    assert forwarded(headers) == {"x-epp-mirrored": "1"}
