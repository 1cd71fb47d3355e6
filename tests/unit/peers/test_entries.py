"""To whom an entry is told, and what others' logs mean here. Out: the wire, what entries end."""

from __future__ import annotations

from typing import Any

import pytest

from epp.clock import ManualClock
from epp.feedback.entry import Entry, digest
from epp.feedback.unseen import RUN, Unseen
from epp.model import Outcome
from epp.peers import follower as followers
from epp.peers.entries import Entries, logged_of
from epp.peers.follower import Follower
from epp.peers.news import Logged, Logs
from epp.pool import Pool

US, A, B = "0" * RUN, "a" * RUN, "b" * RUN


LEFT = Entry(request_id="r-1", outcome=Outcome.ABANDONED)  #: before the gateway had the pick


def entry(run: str, number: int = 1) -> Entry:
    return Entry(request_id="", name=f"{run}{number:012x}", outcome=Outcome.COMPLETED)


def follower(instance: str) -> Follower:
    call: Any = None
    return Follower(call, instance, ())


@pytest.fixture
def entries() -> Entries:
    made = Entries(US)
    made.attach(Unseen(Pool(), ManualClock(100.0), run=US, forward=made.tell))
    return made


def unseen(entries: Entries) -> Unseen:
    assert entries._unseen is not None
    return entries._unseen


def test_an_entry_is_told_once_to_whose_it_is_however_many_pools_it_follows(
    entries: Entries,
) -> None:
    ofs = [follower(A), follower(A), follower(B)]
    for each in ofs:
        entries.join(each)
    unseen(entries).entry(entry(A))
    assert [len(each.entries) for each in ofs] == [0, 1, 0]  # the newest line: others may be dead
    entries.leave(ofs[1])  # with what waits for it
    assert unseen(entries).strange == 1
    unseen(entries).entry(entry(A, 2))
    unseen(entries).entry(entry(B))
    assert [len(each.entries) for each in ofs] == [1, 0, 1]
    assert unseen(entries).strange == 1
    entries.leave(ofs[1])  # again
    entries.leave(ofs[0])
    assert unseen(entries).strange == 2
    unseen(entries).entry(entry(A, 3))
    assert unseen(entries).strange == 3
    assert entries._followers == {B: [ofs[2]]}


def test_one_without_a_name_is_told_to_each_picker_once_by_a_hash(entries: Entries) -> None:
    unseen(entries).untaken(LEFT)
    assert unseen(entries).strange == 1  # nobody follows
    ofs = [follower(A), follower(A), follower(B)]
    for each in ofs:
        entries.join(each)
    unseen(entries).untaken(LEFT)
    assert [each.entries for each in ofs] == [[], [LEFT], [LEFT]]
    assert unseen(entries).strange == 1
    assert logged_of(LEFT).request == digest("r-1")
    assert logged_of(entry(A)).request is None


def test_too_many_entries_are_dropped_and_counted(
    entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "MOST_ENTRIES", 3)
    slow = follower(A)
    entries.join(slow)
    for number in range(10):
        unseen(entries).entry(entry(A, number))
    assert (len(slow.entries), unseen(entries).strange) == (3, 7)


def test_of_what_others_tell_only_entries_of_ours_are_taken(entries: Entries) -> None:
    entries.take([Logged(entry(A)), Logged(LEFT, 7)])
    assert len(unseen(entries)._early) == unseen(entries).strange == 0
    entries.take([Logged(entry(US))])
    assert len(unseen(entries)._early) == 1


@pytest.mark.parametrize(
    ("before", "now", "connected", "lost"),
    [
        (None, Logs(), 0, False),
        (None, Logs(2, 5), 2, True),  # what it told before we heard it went nowhere
        (Logs(), Logs(1), 1, False),
        (Logs(2, 5), Logs(1, 6), -1, True),
        (Logs(1, 5), Logs(1, 6), 0, True),  # one ended, another one came
        (Logs(2, 5), None, -2, True),
        (Logs(0, 5), None, 0, False),
        (None, None, 0, False),
    ],
)
def test_logs_of_another_picker_come_and_go(
    entries: Entries, before: Logs | None, now: Logs | None, connected: int, lost: bool
) -> None:
    entries.heard(before, now)
    assert unseen(entries).logs_connected == connected
    assert (unseen(entries)._log_lost_at == 100.0) is lost


def test_own_logs_are_told_and_those_of_others_are_not(entries: Entries) -> None:
    entries.heard(None, Logs(3))
    unseen(entries).log_opened()
    unseen(entries).log_opened()
    unseen(entries).log_closed()
    assert entries.logs == Logs(1, 1)
    assert Entries(US).logs == Logs()  # of none that hears logs
