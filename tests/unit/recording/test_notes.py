"""What is written of a request, and that names and numbers end with their key."""

from __future__ import annotations

import msgspec
import pytest

from epp.model import EndpointId
from epp.recording.keys import Names
from epp.recording.notes import Fact, Notes
from epp.recording.record import Line, record_of
from epp.recording.slots import Slots

SECRET = b"k" * 32
DAY = 86_400.0


def notes(least: int = 1, *known: str, secret: bytes = SECRET) -> Notes:
    return Notes(Names(secret, DAY), least, frozenset(known))


def fact(at: float, *chain: int, tokens: int = 300, output: int = 50, **more: object) -> Fact:
    given = {"at": at, "ended_at": at + 2, "input_tokens": tokens, "output_tokens": output}
    return msgspec.convert(
        {**given, "chain": chain, "block_tokens": 100 if chain else 0, **more}, Fact
    )


def test_a_line_has_times_in_milliseconds_and_reads_back() -> None:
    line = notes().line(
        fact(10.0, 7, 8, ttft=0.25, counted_tokens=290, cached_tokens=100, predicted_tokens=200,
             slot=4, reason="longest", outcome="failed")
    )  # fmt: skip
    assert (line.timestamp, line.ttft_ms, line.e2e_ms) == (10_000.0, 250.0, 2000.0)
    assert (line.counted_tokens, line.cached_tokens, line.predicted_tokens) == (290, 100, 200)
    assert (line.slot, line.reason, line.outcome, line.block_size) == (4, "longest", "failed", 100)
    assert record_of(msgspec.json.decode(msgspec.json.encode(line), type=Line)).ttft == 0.25


def test_a_request_without_known_blocks_is_recorded_with_its_lengths() -> None:
    line = notes().line(fact(10.0))
    assert (line.hash_rle, line.input_length, line.parent) == ((), 300, "")


def test_a_session_is_followed_by_its_keyed_name() -> None:
    made = notes()
    first = made.line(fact(10.0, 7, session="alice"))
    other = made.line(fact(11.0, 7, session="bob"))
    second = made.line(fact(20.0, 7, 8, session="alice"))
    assert first.session_id == second.session_id != other.session_id
    assert (second.parent, second.think_ms) == (first.id, 8000.0)
    assert "alice" not in str(first.session_id)


def test_without_a_session_a_longer_prompt_continues_the_one_it_begins_with() -> None:
    made = notes()
    first = made.line(fact(10.0, 7, 8, tokens=250))
    retry = made.line(fact(11.0, 7, 8, tokens=250))
    second = made.line(fact(20.0, 7, 8, 9, tokens=350))
    assert first.session_id != retry.session_id
    assert (second.session_id, second.parent) == (retry.session_id, retry.id)


def test_a_shared_system_prompt_is_no_conversation() -> None:
    made = notes()
    for i in range(3):
        made.line(fact(float(i), 7, 100 + i, tokens=250))
    lone = made.line(fact(10.0, 7, tokens=150))
    later = made.line(fact(20.0, 7, 300, tokens=250))
    assert lone.session_id != later.session_id
    assert later.parent == ""


def test_tenants_and_classes_are_keyed_unless_a_class_is_named() -> None:
    line = notes(1, "chat").line(fact(10.0, tenant="bank", business="chat"))
    assert line.business == "chat"
    assert len(str(line.tenant)) == 16
    assert notes().line(fact(10.0, business="chat")).business not in ("", "chat")


def test_a_family_is_named_once_enough_conversations_share_it() -> None:
    made = notes(2)
    assert made.line(fact(1.0, 7, 8, session="a")).family == ""
    second = made.line(fact(2.0, 7, 9, session="b"))
    third = made.line(fact(3.0, 7, 10, session="c"))
    assert second.family == third.family != ""


def test_recorders_with_one_key_give_one_name_and_others_another() -> None:
    names = [
        each.line(fact(10.0, tenant="bank")).tenant
        for each in (notes(), notes(), notes(secret=b"x" * 32))
    ]
    assert names[0] == names[1] != names[2]


def test_with_a_new_key_nothing_can_be_followed() -> None:
    made = notes()
    before = made.line(fact(DAY - 10, 7, 8, session="alice", tenant="bank"))
    after = made.line(fact(DAY + 10, 7, 8, session="alice", tenant="bank"))
    assert before.session_id != after.session_id
    assert before.tenant != after.tenant
    assert before.hash_rle != after.hash_rle
    assert after.parent == ""


def test_numbers_begin_at_random_and_stay_exact_as_doubles() -> None:
    firsts = {notes().line(fact(1.0, 7)).hash_rle[0][0] for _ in range(20)}
    assert len(firsts) == 20
    assert max(firsts) < 2**53


def test_a_pod_keeps_its_slot_and_a_new_one_takes_the_smallest_free() -> None:
    slots = Slots()
    a, b, c = (EndpointId(name) for name in "abc")
    assert [slots.of(a), slots.of(b), slots.of(a)] == [0, 1, 0]
    slots.forget(a)
    assert slots.get(a) is None
    assert [slots.of(c), slots.of(b), slots.of(a)] == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "\ud800"], ids=["nothing", "half a surrogate pair"])
def test_any_text_has_a_name_but_none_has_none(text: str) -> None:
    names = Names(SECRET, DAY)
    names.turn(0.0)
    assert bool(names.name("tenant", text)) == bool(text)
