"""Which requests a mirror copies, and what of them leaves."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epp.traffic.mirror.options import MirrorOptions
from epp.traffic.mirror.run import key_of
from epp.traffic.mirror.sampling import Sampling, conversation, forwarded
from epp.traffic.trace import TraceError

KEY = b"k" * 32


def chat(*said: str) -> bytes:
    roles = ("system", "user", "assistant", "user")
    return msgspec.json.encode(
        {"messages": [{"role": r, "content": s} for r, s in zip(roles, said, strict=False)]}
    )


def test_only_tenants_that_are_listed_are_copied_and_a_star_lists_all() -> None:
    headers = {"x-gateway-inference-fairness-id": "a"}
    assert Sampling(frozenset({"a"}), 1.0, KEY).judge(headers, b"") == "copy"
    assert Sampling(frozenset({"b"}), 1.0, KEY).judge(headers, b"") == "tenant"
    assert Sampling(frozenset({"b"}), 1.0, KEY).judge({}, b"") == "tenant"
    assert Sampling(frozenset({"*"}), 1.0, KEY).judge({}, b"") == "copy"


def test_a_copy_is_never_copied() -> None:
    sampling = Sampling(frozenset({"*"}), 1.0, KEY)
    assert sampling.judge(forwarded({"x-session-id": "s"}), b"") == "loop"


def test_a_conversation_is_copied_whole_or_not_at_all_and_the_share_is_of_conversations() -> None:
    sampling = Sampling(frozenset({"*"}), 0.25, KEY)
    copied = 0
    for number in range(2000):
        turns = [
            sampling.judge({}, chat("be kind", f"question {number}")),
            sampling.judge({}, chat("be kind", f"question {number}", "an answer", "another")),
        ]
        assert len(set(turns)) == 1
        copied += turns[0] == "copy"
    assert 420 <= copied <= 580  # 500 wanted; a standard deviation is 19


def test_the_clients_session_goes_before_the_text_and_a_larger_share_holds_the_smaller() -> None:
    few, many = (Sampling(frozenset({"*"}), share, KEY) for share in (0.1, 0.4))
    for number in range(300):
        headers = {"x-session-id": str(number)}
        assert few.judge(headers, b"one") == few.judge(headers, b"two")
        if few.judge(headers, b"") == "copy":
            assert many.judge(headers, b"") == "copy"


def test_mirrors_choose_alike_with_one_key_and_otherwise_not() -> None:
    def chosen(key: bytes) -> list[str]:
        sampling = Sampling(frozenset({"*"}), 0.5, key)
        return [sampling.judge({"x-session-id": str(number)}, b"") for number in range(64)]

    assert chosen(KEY) == chosen(KEY)
    assert chosen(KEY) != chosen(b"l" * 32)


@pytest.mark.parametrize(
    ("body", "known"),
    [
        (b'{"prompt": "abc", "n": 1}', b'"abc"'),
        (b'{"prompt": [1, 2]}', b"[1,2]"),
        (b'{"messages": [{"role": "system", "content": "x"}]}', None),
        (b"\xff no json", None),
        (b'{"messages": 3}', None),
        (b"", None),
    ],
)
def test_a_request_of_no_conversation_is_known_by_its_prompt_or_as_it_is(
    body: bytes, known: bytes | None
) -> None:
    assert conversation({}, body) == (body if known is None else known)


def test_credentials_and_the_pickers_choice_do_not_leave() -> None:
    sent = forwarded(
        {
            "authorization": "Bearer secret", "cookie": "c", "x-api-key": "k", "host": "a-shadow",
            "x-gateway-destination-endpoint": "10.0.0.1:8000", "content-length": "9",
            "x-forwarded-for": "10.0.0.9", "x-envoy-internal": "true",
            "content-type": "application/json", "x-gateway-inference-fairness-id": "a",
            "x-session-id": "s",
        }
    )  # fmt: skip
    assert sent == {
        "content-type": "application/json", "x-gateway-inference-fairness-id": "a",
        "x-session-id": "s", "x-epp-mirrored": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"to": "shadow:80"}, "--to 'shadow:80'"),
        ({"tenants": frozenset()}, "--tenants names nobody"),
        ({"share": 0.0}, "--share 0.0"),
        ({"share": 1.5}, "--share 1.5"),
        ({"body_bytes": 0}, "at least 1"),
    ],
)
def test_options_that_copy_nothing_or_everything_are_refused(wrong: dict, said: str) -> None:
    fields = {"to": "http://shadow", "tenants": frozenset({"a"}), **wrong}
    with pytest.raises(TraceError, match=said):
        MirrorOptions(**fields)


def test_a_key_is_read_whole_enough_or_refused_and_without_a_file_is_random(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"x" * 80)
    (tmp_path / "short").write_bytes(b"x")
    assert key_of(str(tmp_path / "key")) == b"x" * 64
    assert key_of("") != key_of("")
    with pytest.raises(TraceError, match="holds 1 bytes"):
        key_of(str(tmp_path / "short"))
    with pytest.raises(TraceError, match="No such file"):
        key_of(str(tmp_path / "none"))
