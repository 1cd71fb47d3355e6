"""The work that waits on every endpoint of a large pool, brought up to date by what changed.

An endpoint's facts are a column of numbers, so that a decision among a thousand endpoints is a few
operations on arrays. Only a scrape, a pick, an answer's first byte or its end changes a column;
time is taken off all of them at once.

What an endpoint has to compute before one more request is the sum of two estimates:

* our own requests whose prompts are not computed, less what was computed since one of them was;
* those of others, as the last scrape told: of the requests that wait by its word some are ours, and
  the rest is taken for requests of mean work; what is in the batch and not computed is told by the
  engine's counts, see `ttft.inside`; less what was computed of them since.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.ledger import NOTHING, InFlight, Ledger
from epp.model import Endpoint, EndpointId, Load
from epp.ttft.backlog import FOLLOW, Backlog
from epp.ttft.inside import Inside

Numbers = NDArray[np.float64]

LEFT = 0.2  #: of our own work, at least, as long as its end is told and was not
UNDER_WAY = 2.0
"""Requests of others that an engine computes while others of theirs wait, if it does not count."""
SLOWEST = 0.25  #: of an engine's time, at least, that others' requests get
FEW = 6  #: columns that are written one by one: all at once costs more
TAUGHT = 0.999  #: weight of earlier scrapes in our share of the traffic
_NAN = float("nan")
MEAN = 3000.0  #: work of a request, before any was sent
_COLUMN = 13  #: numbers of an endpoint, by name:
WORK, BEGAN, LEAST, FAST, RATIO, REST, SENT, OTHERS, AT, WAITING, RUNNING, KV, ROOM = range(_COLUMN)
_UNKNOWN = (RATIO, OTHERS, WAITING, RUNNING, KV)  #: NaN until told


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What is known of each endpoint, by position; NaN where it is not told, if not `whole`."""

    ids: list[EndpointId]  #: the same list as long as the endpoints are the same
    whole: bool  #: nothing is NaN
    queue: Numbers  #: work to be computed before one more request
    own: Numbers  #: that of our own requests; never NaN
    per_token: Numbers  #: seconds for one token of work; NaN before its first answer
    rest: Numbers  #: seconds that no work accounts for, more than on average
    waiting: Numbers  #: requests that wait, by the last scrape, and sent since
    running: Numbers  #: requests in the batch
    kv: Numbers  #: fraction of KV blocks in use, 0.0 to 1.0
    sent: Numbers  #: prompt tokens sent there since the last scrape
    room: Numbers  #: fraction of the KV cache that a token takes; 0.0 if not told


class Queues:
    """Facts of all endpoints. Time is an argument: nothing here reads a clock."""

    def __init__(self, ledger: Ledger) -> None:
        self.mean = MEAN  #: work of a request
        self.share = 1.0  #: of the pool's requests in flight that are ours
        self._ledger = ledger
        self._rows: dict[EndpointId, _Row] = {}
        self._free: list[int] = []
        self._unknown: set[int] = set()  # columns with a NaN
        self._facts = np.zeros((_COLUMN, 16))
        self._endpoints: Sequence[Endpoint] = ()  # last seen, and
        self._ids: list[EndpointId] = []  # their ids,
        self._seen: list[_Row] = []  # their rows,
        self._moves = -1  # changes in the ledger that are heeded; -1: none are
        self._places: NDArray[np.intp] | slice = slice(0, 0)  # their columns
        self._changed: list[_Row] = []  # since, whose columns are still to be written
        self._ours = self._every = 0.0
        self._theirs = SLOWEST  # share of an engine's time that others get

    def see(self, endpoints: Sequence[Endpoint], per_token: float, now: float) -> Seen:
        """Return what is known; ``per_token`` seconds is the speed of all endpoints together.

        O(len(endpoints)), a few operations on arrays, besides what changed.
        """
        if endpoints is not self._endpoints:
            self._look(endpoints, per_token, now)
        for row in self._changed:
            self._sync(row, now)
        if self._moves != self._ledger.moves.count:
            self._follow(now)
        self._write_all()
        facts = self._facts[:, self._places]
        (
            work, began, least, fast, ratio, rest, sent, others, at, waiting, running, kv, room,
        ) = facts  # fmt: skip
        rate = fast * (1.0 / per_token)
        own = np.maximum(work - (now - began) * rate, work * least)
        others = others - (now - at) * rate * self._theirs
        return Seen(
            self._ids, not self._unknown, own + np.maximum(others, 0.0), own, ratio * per_token,
            rest, waiting, running, kv, sent, room,
        )  # fmt: skip

    def backlog(self, endpoint_id: EndpointId, now: float) -> Backlog:
        """Return our own requests on an endpoint, up to date."""
        row = self._row(endpoint_id)
        self._sync(row, now)
        return row.backlog

    def queue(self, endpoint: Endpoint, per_token: float, now: float) -> float | None:
        """Return `Seen.queue` of one endpoint at its own speed; None if it is not told."""
        row = self._row(endpoint.id)
        if endpoint.load is not row.load:
            self._heed([(row, endpoint.load)], per_token, now)
        facts, place, own = self._facts, row.place, row.backlog
        others = facts.item(OTHERS, place)
        if math.isnan(others):
            return None
        others -= max(now - facts.item(AT, place), 0.0) / per_token * self._theirs
        ours = own.work - max(now - own.began, 0.0) / per_token
        return max(others, 0.0) + max(ours, own.work * _least(row))

    def send(
        self, endpoint_id: EndpointId, work: float, *, prompt: float, request: str, now: float
    ) -> None:
        """A request of ``work`` and ``prompt`` tokens goes there."""
        row = self._row(endpoint_id)
        row.backlog.send(work, now, request)
        self.mean += FOLLOW * (work - self.mean)
        row.prompts += prompt
        row.came += 1.0
        self._note(row)  # booked next, and perhaps released again before anybody looks

    def teach(self, endpoint_id: EndpointId, ratio: float, rest: float) -> None:
        """Its tokens take ``ratio`` times as long as all endpoints', and ``rest`` seconds more."""
        row = self._row(endpoint_id)
        self._facts[RATIO, row.place] = ratio
        self._facts[FAST, row.place] = 1.0 / ratio
        self._facts[REST, row.place] = rest
        self._doubt(row)

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop all that is known of an endpoint."""
        row = self._rows.pop(endpoint_id, None)
        self._endpoints, self._ids = (), []
        if row is not None:
            self._free.append(row.place)
            self._unknown.discard(row.place)
            self._changed = [each for each in self._changed if each is not row]

    def _look(self, endpoints: Sequence[Endpoint], per_token: float, now: float) -> None:
        """See who the endpoints are, and which were scraped."""
        ids = [endpoint.id for endpoint in endpoints]
        if ids != self._ids:
            self._arrange(ids)
        pairs = zip(self._seen, endpoints, strict=True)
        fresh = [(row, load) for row, each in pairs if (load := each.load) is not row.load]
        if fresh:
            self._heed(fresh, per_token, now)
        # A list may change without becoming another one.
        self._endpoints = endpoints if isinstance(endpoints, tuple) else ()

    def _heed(
        self, fresh: Sequence[tuple[_Row, Load | None]], per_token: float, now: float
    ) -> None:
        """Take new scrapes, or that the last one is stale."""
        columns = [self._scraped(row, load, per_token, now) for row, load in fresh]
        if len(fresh) <= FEW:
            for (row, _), column in zip(fresh, columns, strict=True):
                self._facts[SENT:, row.place] = column
        else:
            self._facts[SENT:, [row.place for row, _ in fresh]] = np.array(columns).T
        for row, _ in fresh:
            self._doubt(row)

    def _scraped(
        self, row: _Row, load: Load | None, per_token: float, now: float
    ) -> tuple[float, ...]:
        """Return the numbers from `SENT` on."""
        row.load = load
        self._sync(row, now)  # what was booked since is in flight, too
        row.prompts = row.came = 0.0
        if load is None:
            return (0.0, _NAN, now, _NAN, _NAN, _NAN, 0.0)
        ratio = float(self._facts[RATIO, row.place])
        speed = per_token * ratio if ratio > 0.0 else per_token
        if len(row.backlog) and not row.counts.told:
            row.backlog.settle(load, speed, now, most=row.counts.requests)
        queued, running, kv = (
            _NAN if each is None else each for each in (load.queued, load.running, load.kv_usage)
        )
        self._count(row.counts, load)
        others = self._others(row, queued, row.inside.see(load, speed))
        tokens = None if load.cache is None else load.cache.tokens
        room = 1.0 / tokens if tokens else 0.0
        return (0.0, others, min(load.at, now), queued, running, kv, room)

    def _others(self, row: _Row, queued: float, inside: float | None) -> float:
        """Return the work of others, of whom and us ``queued`` wait and ``inside`` is in the batch."""
        own = len(row.backlog)
        others = max(queued - own, queued * (1.0 - self.share))
        if inside is None:
            return (others + UNDER_WAY * min(others, 1.0)) * self.mean
        admitted = max(own - (queued - others), 0.0)  # of ours
        ours = row.backlog.work * admitted / own if own else 0.0
        return others * self.mean + max(inside - ours, 0.0)

    def _doubt(self, row: _Row) -> None:
        """Note whether something of it is not told."""
        load, place = row.load, row.place
        told = load is not None and None not in (load.queued, load.running, load.kv_usage)
        if told and self._facts[RATIO, place] > 0.0:
            self._unknown.discard(place)
        else:
            self._unknown.add(place)

    def _count(self, counts: InFlight, load: Load) -> None:
        """Learn which share of what is in flight is ours."""
        if load.queued is None or load.running is None:
            return
        every = load.queued + load.running
        self._ours = self._ours * TAUGHT + min(counts.requests, every)
        self._every = self._every * TAUGHT + every
        if self._every > 0.0:
            self.share = self._ours / self._every
            self._theirs = max(1.0 - self.share, SLOWEST)

    def _follow(self, now: float) -> None:
        """Look at the rows on whose endpoints the ledger has changed."""
        moves = self._ledger.moves
        moved, self._moves = moves.since(self._moves), moves.count
        if moved is None:
            rows = self._seen
        else:
            rows = [row for each in dict.fromkeys(moved) if (row := self._rows.get(each))]
        for row in rows:
            if row.counts.tokens != row.tokens:
                self._sync(row, now)

    def _sync(self, row: _Row, now: float) -> None:
        """Let go of our own requests of which the ledger has."""
        row.counts = counts = self._ledger.get(row.endpoint_id)
        row.tokens = counts.tokens
        if counts.told:
            row.backlog.keep(counts.computing, now)
        elif not counts.tokens and len(row.backlog):
            row.backlog.keep((), now)
        self._note(row)

    def _note(self, row: _Row) -> None:
        """Its column is to be written before it is read: one write for many picks."""
        if not row.changed:
            row.changed = True
            self._changed.append(row)

    def _write_all(self) -> None:
        for row in self._changed:
            self._write(row)
            row.changed = False
        self._changed.clear()

    def _write(self, row: _Row) -> None:
        facts, place = self._facts, row.place
        facts[WORK, place] = row.backlog.work
        facts[BEGAN, place] = row.backlog.began
        facts[LEAST, place] = _least(row)
        facts[SENT, place] += row.prompts
        facts[WAITING, place] += row.came
        row.prompts = row.came = 0.0

    def _arrange(self, ids: list[EndpointId]) -> None:
        self._seen = [self._row(each) for each in ids]
        places = [row.place for row in self._seen]
        in_order = places == list(range(len(places)))
        self._places = slice(0, len(places)) if in_order else np.array(places, np.intp)
        self._moves = -1
        self._ids = ids

    def _row(self, endpoint_id: EndpointId) -> _Row:
        row = self._rows.get(endpoint_id)
        return self._add(endpoint_id) if row is None else row

    def _add(self, endpoint_id: EndpointId) -> _Row:
        place = self._free.pop() if self._free else len(self._rows)
        if place >= self._facts.shape[1]:
            self._facts = np.hstack([self._facts, np.zeros_like(self._facts)])
        self._facts[:, place] = 0.0
        self._facts[list(_UNKNOWN), place] = _NAN
        self._facts[FAST, place] = 1.0
        self._unknown.add(place)
        row = self._rows[endpoint_id] = _Row(endpoint_id, place)
        return row


class _Row:
    """One endpoint's column, and what it was last written from."""

    __slots__ = (
        "backlog", "came", "changed", "counts", "endpoint_id", "inside", "load", "place", "prompts",
        "tokens",
    )  # fmt: skip

    def __init__(self, endpoint_id: EndpointId, place: int) -> None:
        self.endpoint_id = endpoint_id
        self.place = place
        self.backlog = Backlog(0.0)
        self.inside = Inside()
        self.counts: InFlight = NOTHING
        self.load: Load | None = None
        self.tokens = 0
        self.prompts = 0.0  #: tokens sent, and
        self.came = 0.0  #: requests, that its column does not count yet
        self.changed = False  #: its column is to be written


def _least(row: _Row) -> float:
    """Share of our own work there that is not over before its end is told."""
    return LEFT if row.counts.told else 0.0
