"""Entries of access logs that are of other pickers' requests: each is told to the one that picked.

A gateway opens its log to one picker, which hears the ends of all requests, whoever picked. The name
of an exchange begins with the instance of its picker (see `feedback.unseen`), so an entry is told to
that one only, and once, however many pools they share. Those of clients that left before the gateway had
the pick have no name, and are told to all by a hash of the request's id. Pickers tell each other how many logs they
hear, too: who hears none of its own still knows that an entry may come.
"""

from __future__ import annotations

from collections.abc import Iterable

from epp.feedback.entry import Entry, digest
from epp.feedback.unseen import RUN, Unseen
from epp.peers.follower import Follower
from epp.peers.news import Logged, Logs


class Entries:
    """A process's, shared by its circles.

    Args:
        run: this picker's instance, which begins the names of its exchanges.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self._unseen: Unseen | None = None
        self._followers: dict[str, list[Follower]] = {}  # by instance, one for each pool

    def attach(self, unseen: Unseen) -> None:
        """Hand what is heard to ``unseen``."""
        self._unseen = unseen

    @property
    def logs(self) -> Logs:
        """The logs that gateways opened to this picker."""
        unseen = self._unseen
        return Logs() if unseen is None else Logs(unseen.logs_here, unseen.logs_lost)

    def join(self, follower: Follower) -> None:
        """A picker begins to follow."""
        self._followers.setdefault(follower.instance, []).append(follower)

    def leave(self, follower: Follower) -> None:
        """It does so no more; entries that wait for it are of nobody. Twice is once."""
        same = self._followers.get(follower.instance, [])
        if follower in same:
            same.remove(follower)
            if not same:
                del self._followers[follower.instance]
        if self._unseen is not None:
            self._unseen.strange += len(follower.entries)
        follower.entries.clear()

    def tell(self, entry: Entry) -> bool:
        """Have an entry told to the picker that named its exchange; False if that cannot be.

        One without a name is told to all.
        """
        if not entry.name:
            return sum(same[-1].log(entry) for same in self._followers.values()) > 0
        followers = self._followers.get(entry.name[:RUN])
        return followers is not None and followers[-1].log(entry)  # an older line may be dead

    def take(self, logged: Iterable[Logged]) -> None:
        """Take what other pickers were told. Those of no exchange of ours are passed over."""
        unseen, untaken = self._unseen, {}
        if unseen is None:
            return
        for each in logged:
            if each.request is not None:
                untaken[each.request] = each.entry
            elif each.entry.name.startswith(self.run):
                unseen.entry(each.entry)
        if untaken:
            unseen.untaken_elsewhere(untaken)

    def heard(self, before: Logs | None, now: Logs | None) -> None:
        """Note a picker's logs, as they were and as they are; None while it is not heard.

        What they tell is lost while it is not.
        """
        if self._unseen is None or before == now:
            return
        if before is None or now is None:
            opened = (now or Logs()).open - (before or Logs()).open
            self._unseen.logs_of_others(opened, lost=opened != 0)
        else:
            self._unseen.logs_of_others(now.open - before.open, lost=now.lost != before.lost)


def logged_of(entry: Entry) -> Logged:
    """Return what is told of an entry."""
    return Logged(entry) if entry.name else Logged(entry, digest(entry.request_id))
