"""Which request continues which."""

from __future__ import annotations

from epp.recording.record import Record
from epp.traffic.sessions import conversations
from epp.traffic.trace import Trace


def record(at: float, tokens: int, *ids: int, session: str = "") -> Record:
    runs = tuple((each, 1) for each in ids)
    return Record(at=at, input_tokens=tokens, output_tokens=50, runs=runs, session=session)


def talks(*records: Record) -> list[list[float]]:
    return [[turn.record.at for turn in talk] for talk in conversations(Trace(records, 100))]


def test_named_sessions_are_taken_at_their_word() -> None:
    assert talks(
        record(0, 100, 1, session="a"), record(1, 100, 1, session="b"), record(2, 50, session="a")
    ) == [[0, 2], [1]]


def test_a_request_without_a_session_among_named_ones_is_alone() -> None:
    assert talks(record(0, 100, 1), record(1, 100, 1), record(2, 50, session="a")) == [
        [0],
        [1],
        [2],
    ]


def test_where_no_session_is_named_parents_are_taken_at_their_word() -> None:
    def named(at: float, id: str, parent: str = "") -> Record:
        return Record(at=at, input_tokens=5, output_tokens=1, id=id, parent=parent)

    assert talks(
        named(0, "a"), named(1, "b"), named(2, "c", "a"), named(3, "d", "c"), named(4, "e", "gone"),
        named(5, "f", "f"),
    ) == [[0, 2, 3], [1], [4], [5]]  # fmt: skip


def test_a_prompt_that_begins_with_another_and_its_answer_continues_it() -> None:
    assert talks(record(0, 250, 1, 2, 9), record(1, 350, 1, 2, 3), record(2, 450, 1, 2, 3, 4)) == [
        [0, 1, 2]
    ]


def test_a_prompt_too_short_for_the_answer_is_no_continuation() -> None:
    assert talks(record(0, 390, 1, 2, 3, 9), record(1, 310, 1, 2, 3)) == [[0], [1]]


def test_what_three_conversations_hold_is_a_system_prompt() -> None:
    systems = [record(i, 150, 1) for i in range(3)]
    assert talks(*systems, record(9, 900, 1, *range(10, 18)))[-1] == [9]


def test_turns_know_their_parent_and_index() -> None:
    ((first, second),) = conversations(
        Trace((record(0, 100, 1, session="a"), record(1, 200, 1, 2, session="a")), 100)
    )
    assert (first.parent, first.index) == (None, 0)
    assert (second.parent, second.index) == (first, 1)
