"""The sockets of one engine's feed: published messages, replays, and whether it is connected."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from epp.clock import Clock
from epp.collect.kv.feed import Feed
from epp.collect.kv.pump import Pump
from epp.collect.kv.sockets import Readable, opened
from epp.collect.kv.turns import Turn
from epp.collect.parse import kv_messages

HELD_MESSAGES = 10_000  #: that wait in a socket, until more are lost and replayed
MOST_MESSAGE = 16 << 20  #: bytes; who sends more at a time is disconnected
MOST_REPLAYS = 16
"""Engines that are asked at a time: each may tell ten thousand messages faster than they are read."""
SETTLE_SECONDS = 0.1
"""A new connection hears all that is published only once the engine has read the subscription."""

_log = logging.getLogger(__name__)

_CONNECTION = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_OPTIONS: Mapping[str, Any] = {
    "rcvhwm": HELD_MESSAGES,
    "maxmsgsize": MOST_MESSAGE,
    "reconnect_ivl": 300,  # ms, as all below; it is not doubled where something else listens there
    "reconnect_ivl_max": 3000,
    "connect_timeout": 3000,
    "heartbeat_ivl": 5000,  # a pod that is gone without a word is noticed
    "heartbeat_timeout": 15_000,
    "ipv6": 1,
}


class Where(msgspec.Struct, frozen=True):
    """An engine's addresses, as ZMQ writes them; "" is none."""

    events: str = ""  #: "" if it connects to us
    replay: str = ""


class Line(msgspec.Struct, frozen=True):
    """What all links share."""

    context: zmq.Context[zmq.Socket[bytes]]
    pump: Pump
    clock: Clock
    topic: bytes = b""  #: what messages' topics must begin with
    curve: Mapping[str, bytes] = {}  #: options of sockets, with keys
    replaying: set[int] = msgspec.field(default_factory=set)  #: ids of links that ask
    failures: set[str] = msgspec.field(default_factory=set)  #: to open sockets, that were logged


class Link:
    """Of one engine, from `open` to `close`."""

    def __init__(self, feed: Feed, where: Where, line: Line) -> None:
        self.feed = feed
        self.where = where
        self._line = line
        self._events: Readable | None = None
        self._monitor: Readable | None = None
        self._replay: Readable | None = None
        self._settled_at: float | None = None
        self._opening: Turn | None = None  # until it is

    def open(self) -> None:
        """Connect; what fails is tried again, ever later, see `tick`."""
        if self.where.events:
            now = self._line.clock.now()
            self._opening = Turn(now)
            self._try_to_open(self._opening, now)

    def close(self) -> None:
        """Close all sockets."""
        self._line.pump.drop(self)
        self._opening = None
        self._end_replay()
        self._shut()

    def hear(self, message: kv_messages.Message) -> None:
        """Take in a message that came another way."""
        now = self._line.clock.now()
        if not self.feed.engine.confidence.connected:
            self.feed.connected(now)
        self.feed.heard(message, now, time.time())
        self._wake()

    def restarted(self) -> None:
        """Note that the engine's process is another one."""
        self.feed.restarted(self._line.clock.now())
        self._wake()

    def tick(self) -> None:
        """Let time pass; what lies here unread is no silence of the engine."""
        now = self._line.clock.now()
        if self._opening is not None and now >= self._opening.at:
            self._try_to_open(self._opening, now)
        if self._settled_at is not None and now >= self._settled_at:
            self._settled_at = None
            self.feed.connected(now)
        if self not in self._line.pump:
            self.feed.tick(now)
        if self._replay is not None and not self.feed.engine.sequence.catching_up:
            self._end_replay()  # nobody answered
        if self.feed.busy or self._ask():
            self._wake()

    def work(self) -> bool:
        """See `pump.Worker.work`."""
        if self.feed.busy:
            self.feed.advance()
            return True
        did = self._read_replay() or self._read_events() or self._read_monitor()
        return self._ask() or did

    def _try_to_open(self, turn: Turn, now: float) -> None:
        turn.begin(now)
        try:
            self._subscribe()
        except zmq.ZMQError as error:
            self._shut()
            self._note(error, self.where.events)
        else:
            self._opening = None
            self._line.failures.clear()

    def _subscribe(self) -> None:
        socket = opened(zmq.SUB, self._line.context, **_OPTIONS, **self._line.curve)
        self._events = Readable(socket, self._wake)
        self._monitor = Readable(socket.get_monitor_socket(_CONNECTION), self._wake)
        socket.subscribe(self._line.topic)
        socket.connect(self.where.events)

    def _shut(self) -> None:
        if self._events is not None:
            self._events.socket.disable_monitor()
        for readable in (self._monitor, self._events):
            if readable is not None:
                readable.close()
        self._monitor = self._events = None

    def _note(self, error: zmq.ZMQError, where: str) -> None:
        """Count a socket that could not be opened, and log it if it is the first of many."""
        self.feed.engine.unopened += 1
        if str(error) not in self._line.failures:
            self._line.failures.add(str(error))
            owner = self.feed.engine.endpoint_id
            _log.warning(
                "KV events of %s at %s: %s; is tried again, as others are", owner, where, error
            )

    def _wake(self) -> None:
        self._line.pump.wake(self)

    def _read_events(self) -> bool:
        frames = None if self._events is None else self._events.receive()
        if frames is None:
            return False
        message = kv_messages.read(frames)
        if message is None:
            self.feed.engine.unread += 1
        else:
            self.feed.heard(message, self._line.clock.now(), time.time())
        return True

    def _read_replay(self) -> bool:
        frames = None if self._replay is None else self._replay.receive()
        if frames is None:
            return False
        message = kv_messages.read(frames)
        if message is None:
            self.feed.engine.unread += 1
            return True
        self.feed.answered(message, self._line.clock.now())
        if message.ends and not self.feed.engine.sequence.catching_up:
            self._end_replay()
        return True

    def _read_monitor(self) -> bool:
        frames = None if self._monitor is None else self._monitor.receive()
        if frames is None:
            return False
        if parse_monitor_message(list(frames))["event"] == zmq.EVENT_DISCONNECTED:
            self._settled_at = None
            self.feed.disconnected()
        else:
            self._settled_at = self._line.clock.now() + SETTLE_SECONDS
        return True

    def _ask(self) -> bool:
        """Ask for old messages, if the feed wants to; answers to an older question are not read.

        Where too many ask already it waits for its turn.
        """
        asking = self._line.replaying
        full = len(asking) >= MOST_REPLAYS and id(self) not in asking
        if full and self.feed.asks and self.where.replay:
            self.feed.queued(self._line.clock.now())
            return False
        start = self.feed.question()
        if start is None or not self.where.replay:
            return False
        self._end_replay()
        try:
            socket = opened(zmq.DEALER, self._line.context, **_OPTIONS, **self._line.curve)
            self._replay = Readable(socket, self._wake)
            socket.connect(self.where.replay)
        except zmq.ZMQError as error:  # it is as if nobody answered
            self._end_replay()
            self._note(error, self.where.replay)
            return False
        asking.add(id(self))
        self._replay.send(kv_messages.ask(start))
        return True

    def _end_replay(self) -> None:
        self._line.replaying.discard(id(self))
        if self._replay is not None:
            self._replay.close()
            self._replay = None
