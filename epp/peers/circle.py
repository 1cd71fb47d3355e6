"""The pickers of one pool as one of them knows them: who follows it, and whom it follows.

What happens here is gathered for a moment and told to all followers at once. What others tell is
taken in some events at a time, so that no request waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from epp.clock import Clock
from epp.peers import wire
from epp.peers.entries import Entries, logged_of
from epp.peers.follower import Follower
from epp.peers.hearing import Hearing
from epp.peers.news import Batch, Event, Logged, Logs, Sent
from epp.peers.offset import Offset
from epp.peers.telling import Telling
from epp.rpc.call import Call
from epp.rpc.status import Aborted, Code

INTERVAL = 0.025  #: seconds in which events are gathered
HEARTBEAT = 1.0  #: seconds without an event, after which is told that this picker lives
PAST_EVENTS = 64  #: of the past, told in an interval to a follower: what is under way goes first
PAST_WAITING = (
    2**18
)  #: bytes that wait for a follower, with which no more of the past is told to it
REMEMBERED = 64  #: pickers that are not followed any more


class Met(msgspec.Struct):
    """A picker that is followed."""

    address: str
    offset: Offset
    events: int = 0  #: that it told
    caught_up: bool = False  #: all that was before is heard
    last: int = 0  #: the last request that it sent
    logs: Logs | None = None  #: that gateways opened to it; None before it was heard


class Counts(msgspec.Struct):
    """What was told and heard so far."""

    told_events: int = 0
    told_bytes: int = 0  #: to all followers together
    heard_events: int = 0
    heard_bytes: int = 0
    cut_off: int = 0  #: followers that read too slowly
    told_entries: int = 0  #: of access logs, those without a name once for each follower
    heard_entries: int = 0  #: of requests of ours, and those without a name


class Circle:
    """The pickers of one pool.

    Args:
        name: the pool's.
        instance: of this picker.
        telling: notes what happens here.
        hearing: takes in what happens elsewhere.
        entries: of access logs, and who follows.
        synced: whether the endpoints are known: what is told of others is lost.
        clock: tells the time.
    """

    def __init__(
        self,
        name: str,
        instance: str,
        telling: Telling,
        hearing: Hearing,
        entries: Entries,
        *,
        synced: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self.name = name
        self.telling = telling
        self.hearing = hearing
        self.counts = Counts()
        self.served = asyncio.Lock()  #: held by who tells and hears for it
        self.followed: dict[str, Met] = {}  #: by instance
        self.followers: set[Follower] = set()
        self._instance = instance
        self._entries = entries
        self._synced = synced
        self._clock = clock
        self._heard: dict[str, int] = {}  # the last request of each instance, the oldest met first

    @property
    def synced(self) -> bool:
        """Whether the endpoints are known."""
        return self._synced()

    # --- telling ---------------------------------------------------------------------------

    async def tell(self) -> None:
        """Tell followers what happens, until cancelled."""
        beat, logs = self._clock.now(), Logs()
        while True:
            await asyncio.sleep(INTERVAL)
            now, before, logs = self._clock.now(), logs, self._entries.logs
            if self._flush():
                beat = now
            elif now - beat >= HEARTBEAT or logs != before:
                self._push(wire.heartbeat(self._instance, now, logs))
                beat = now
            for follower in list(self.followers):
                self._tell_entries(follower, now)
                self._tell_past(follower, now)

    def end(self) -> None:
        """Tell nobody any more."""
        for follower in list(self.followers):
            self._drop(follower)
            follower.end()

    async def follow(self, call: Call, asked: wire.Asked) -> None:
        """Tell the other side of ``call`` what is and was, then what happens; never returns.

        Raises:
            Aborted: it is told already, or is this picker itself.
            Gone: it does not listen any more.
        """
        heard = {each.instance: each for each in asked.heard}
        known = heard.get(self._instance)
        if asked.instance == self._instance or (known is not None and known.now):
            raise Aborted(Code.ALREADY_EXISTS, "this picker is heard already")
        self._flush()  # those who follow already hear it as news
        after = 0 if known is None else known.number
        past = (sent for sent in self.telling.past if sent.number > after)
        follower = Follower(call, asked.instance, past)
        self.followers.add(follower)
        self._entries.join(follower)
        told, under_way, logs = follower.past_told, self.telling.under_way(), self._entries.logs
        try:
            for message in wire.pack(self._instance, under_way, logs, past_told=told):
                self.counts.told_bytes += await follower.send(message)
                await asyncio.sleep(0)
            while True:
                self.counts.told_bytes += await follower.send(await follower.next())
        finally:
            self._drop(follower)

    def _flush(self) -> bool:
        """Tell what has happened; return whether anything has."""
        if not self.telling.waiting:
            return False
        batch = self.telling.take()
        self.counts.told_events += len(batch.events)
        if batch.events and self.followers:
            for message in wire.pack(self._instance, batch, self._entries.logs):
                self._push(message)
        return bool(batch.events)

    def _tell_entries(self, follower: Follower, now: float) -> None:
        if not follower.entries:
            return
        events = tuple(map(logged_of, follower.entries))
        follower.entries.clear()
        self.counts.told_entries += len(events)
        for message in wire.pack(self._instance, Batch(now, events), self._entries.logs):
            self._push_to(follower, message)

    def _tell_past(self, follower: Follower, now: float) -> None:
        if follower.waiting > PAST_WAITING:
            return  # it takes longer to learn than to tell: it would be cut off, each time anew
        if past := follower.past(PAST_EVENTS):
            batch, told, logs = Batch(now, past), follower.past_told, self._entries.logs
            for message in wire.pack(self._instance, batch, logs, past_told=told):
                self._push_to(follower, message)

    def _push(self, message: bytes) -> None:
        for follower in list(self.followers):
            self._push_to(follower, message)

    def _push_to(self, follower: Follower, message: bytes) -> None:
        if follower in self.followers and not follower.push(message):
            self._drop(follower)
            self.counts.cut_off += 1

    def _drop(self, follower: Follower) -> None:
        self.followers.discard(follower)
        self._entries.leave(follower)

    # --- hearing ---------------------------------------------------------------------------

    def asking(self) -> wire.Asked:
        """What to ask another picker with."""
        heard = (
            wire.Heard(instance, number, instance in self.followed)
            for instance, number in self._heard.items()
        )
        return wire.Asked(self._instance, self.name, tuple(heard))

    def meet(self, instance: str, address: str) -> Met | None:
        """Begin to hear a picker; None if it is heard already, or is this one."""
        if instance == self._instance or instance in self.followed:
            return None
        met = self.followed[instance] = Met(address, Offset())
        self._heard[instance] = self._heard.pop(instance, 0)
        for gone in [each for each in self._heard if each not in self.followed]:
            if len(self._heard) <= REMEMBERED:
                break
            del self._heard[gone]
        return met

    async def hear(self, met: Met, news: wire.News, size: int) -> None:
        """Take in a message of ``size`` bytes.

        Raises:
            ValueError: an event cannot be.
        """
        ago = met.offset.see(self._clock.now(), news.now)
        self.counts.heard_bytes += size
        if news.logs != met.logs:
            before, met.logs = met.logs, news.logs
            self._entries.heard(before, met.logs)
        for events in news.slices():
            self.hearing.hear(news.instance, events, ago)
            met.events += len(events)
            entries = self._take(met, events)
            self.counts.heard_entries += entries
            self.counts.heard_events += len(events) - entries  # as they are told
            await asyncio.sleep(0)
        met.caught_up = met.caught_up or news.past_told
        if met.caught_up:
            self._heard[news.instance] = max(self._heard[news.instance], met.last)

    def _take(self, met: Met, events: Sequence[Event]) -> int:
        """Take in what is not to be booked; return how many are entries."""
        logged = []
        for event in events:
            if isinstance(event, Sent):
                if not event.over:
                    met.last = max(met.last, event.number)
            elif isinstance(event, Logged):
                logged.append(event)
        if logged:
            self._entries.take(logged)
        return len(logged)

    def part(self, instance: str) -> None:
        """A picker is not heard any more."""
        met = self.followed.pop(instance, None)
        if met is not None:
            self._entries.heard(met.logs, None)
            self.hearing.lost(instance)

    def page(self) -> Mapping[str, Any]:
        """What ``/debug/state`` shows."""
        return {
            "following": {
                met.address: {
                    "instance": instance,
                    "events": met.events,
                    "lag": met.offset.lag,
                    "access_logs": 0 if met.logs is None else met.logs.open,
                }
                for instance, met in self.followed.items()
            },
            "followers": {
                each.instance: {"waiting_bytes": each.waiting, "past_told": each.past_told}
                for each in self.followers
            },
            "booked": len(self.hearing),
            "unknown_endpoints": self.hearing.unknown,
            "refused_facts": self.hearing.refused,
            **msgspec.structs.asdict(self.counts),
        }
