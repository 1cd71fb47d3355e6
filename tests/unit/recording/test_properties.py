"""What a recording never tells, whatever is asked in whatever order."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.recording.keys import Names
from epp.recording.notes import Fact, Notes
from epp.recording.numbers import Numbers
from epp.recording.record import Line, expanded

DAY = 86_400.0
SECRET = b"k" * 32

#: Who asks, and what: paths in a small tree, so that beginnings coincide.
asked = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.integers(0, 1), min_size=1, max_size=5)),
    min_size=1, max_size=40,
)  # fmt: skip


def chain_of(path: list[int]) -> list[int]:
    """Hashes of blocks, each chained on the one before."""
    found, at = [], 1
    for each in path:
        at = hash((at, each)) & (2**64 - 1)
        found.append(at)
    return found


@settings(deadline=None)
@given(asked, st.integers(1, 6))
def test_what_fewer_conversations_share_than_the_least_stays_novel(
    asks: list[tuple[int, list[int]]], least: int
) -> None:
    numbers = Numbers(least, 1000)
    holders: dict[int, set[int]] = {}  # of a block, so far
    owners: dict[int, set[int]] = {}  # of a number: conversations that it was written for
    meaning: dict[int, int] = {}
    for conversation, path in asks:
        chain = chain_of(path)
        for block in chain:
            holders.setdefault(block, set()).add(conversation)
        told = numbers.tell(chain, conversation)
        written = list(expanded(told.runs))
        assert len(written) == len(chain)
        for block, number in zip(chain, written, strict=True):
            assert meaning.setdefault(number, block) == block  # a number never means two blocks
            owners.setdefault(number, set()).add(conversation)
            if len(owners[number]) > 1:
                assert len(holders[block]) >= least
        family = [block for block in chain if len(holders[block]) >= max(least, 2)]
        assert told.shared == len(family)


@settings(deadline=None)
@given(asked, st.integers(1, 6))
def test_within_a_conversation_repetition_is_always_told(
    asks: list[tuple[int, list[int]]], least: int
) -> None:
    numbers = Numbers(least, 1000)
    for conversation, path in asks:
        first = numbers.tell(chain_of(path), conversation)
        assert numbers.tell(chain_of(path), conversation) == first


def fact(at: float, chain: list[int], who: int, *, session: bool) -> Fact:
    return Fact(
        at=at, ended_at=at + 0.5, input_tokens=16 * len(chain), output_tokens=4, chain=chain,
        block_tokens=16, session=f"s{who}" if session else "", tenant=f"t{who % 2}",
        business="chat",
    )  # fmt: skip


def texts(line: Line) -> set[str]:
    """All pseudonyms of a line."""
    named = (line.session_id, line.tenant, line.family, line.business)
    return {str(each) for each in named if each}


@settings(deadline=None, max_examples=50)
@given(before=asked, after=asked, session=st.booleans())
def test_nothing_can_be_followed_from_one_key_to_the_next(
    before: list[tuple[int, list[int]]], after: list[tuple[int, list[int]]], *, session: bool
) -> None:
    notes = Notes(Names(SECRET, DAY), least=1)
    lines: list[list[Line]] = []
    for day, asks in enumerate((before, after)):
        lines.append(
            [
                notes.line(fact(day * DAY + i, chain_of(path), who, session=session))
                for i, (who, path) in enumerate(asks)
            ]
        )
    old, new = lines
    assert not set().union(*map(texts, old)) & set().union(*map(texts, new))
    numbers = [{n for line in some for n in expanded(line.hash_rle)} for some in lines]
    assert numbers[0].isdisjoint(numbers[1])
    ids = {line.id for line in old}
    assert all(line.parent not in ids for line in new)


@settings(deadline=None, max_examples=50)
@given(asked)
def test_a_parent_is_an_earlier_record_of_the_same_conversation(
    asks: list[tuple[int, list[int]]],
) -> None:
    notes = Notes(Names(SECRET, DAY), least=3)
    seen: dict[object, Line] = {}
    for i, (who, path) in enumerate(asks):
        line = notes.line(fact(float(i), chain_of(path), who, session=bool(i % 2)))
        assert line.id not in seen
        if line.parent:
            assert seen[line.parent].session_id == line.session_id
            assert line.think_ms is not None
        else:
            assert line.think_ms is None
        seen[line.id] = line


MARK = "Xyzzy"
marked = st.text("Xyzé本", max_size=4).map(lambda rest: MARK + rest)


@settings(deadline=None)
@given(marked, marked, marked, st.sampled_from([1, 5]))
def test_no_line_has_what_clients_call_themselves(
    session: str, tenant: str, business: str, least: int
) -> None:
    notes = Notes(Names(SECRET, DAY), least, known=frozenset({"chat"}))
    chain = chain_of([0, 1])
    for turn in range(3):
        asks = Fact(
            at=float(turn), ended_at=turn + 0.5, input_tokens=40, output_tokens=3, chain=chain,
            block_tokens=16, session=session, tenant=tenant, business=business,
        )  # fmt: skip
        written = msgspec.json.encode(notes.line(asks)).decode()
        assert MARK not in written
        for block in chain:  # nor any hash of what was said
            assert str(block) not in written
            assert f"{block:x}" not in written
